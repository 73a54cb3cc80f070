"""Tiny checkpoints of every architecture, written to disk like a Hub folder, and the embedded and real
models."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported: the kernel runs in its CPU interpreter
from safetensors.torch import save_file
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from model import ARCHITECTURES, Config, Model, load  # noqa: E402

TINY = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 64,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "eos_token_id": 1,
}


def tiny_config(architecture: str = "LlamaForCausalLM", **changes) -> dict:
    kind = architecture.removesuffix("ForCausalLM").lower()
    return TINY | {"architectures": [architecture], "model_type": kind} | changes


def random_tensors(
    config: dict, seed: int = 0, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Weights large enough that the next token depends on the whole text."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (
            (1 + 0.3 * torch.randn(t.shape, generator=generator))
            if name.endswith("norm.weight")
            else torch.randn(t.shape, generator=generator)
            * (0.5 if t.dim() == 1 else 2 * t.shape[-1] ** -0.5)
        ).to(dtype)
        for name, t in Model(Config.read(config)).checkpoint().items()
    }


def byte_tokenizer(texts=("def f(x):\n    return x\n" * 20,), vocabulary: int = 300) -> Backend:
    tokenizer = Backend(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=["<s>", "</s>"],
            show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        ),
    )
    return tokenizer


def write_folder(
    folder: Path,
    config: dict,
    tensors: dict | None = None,
    tokenizer: Backend | None = None,
    settings: dict | None = None,
) -> Path:
    """A checkpoint folder; its tokenizer is byte-level BPE with </s> as id 1 unless another is given."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(random_tensors(config) if tensors is None else tensors, folder / "model.safetensors")
    (tokenizer or byte_tokenizer()).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings or {"eos_token": "</s>"}))
    return folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A Llama whose vocabulary matches its tokenizer, for the command line."""
    return write_folder(tmp_path_factory.mktemp("tiny"), tiny_config(vocab_size=300))


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory):
    """dtype name -> list of one model for each architecture."""
    folders = [write_folder(tmp_path_factory.mktemp(name), tiny_config(name)) for name in ARCHITECTURES]
    return {
        dtype: [load(folder, dtype, "cpu") for folder in folders]
        for dtype in ("float32", "bfloat16", "float16")
    }


@pytest.fixture(scope="session")
def real_folder():
    folder = os.environ.get("GOOSE_TEST_WEIGHTS")
    if not folder or not Path(folder, "config.json").exists():
        pytest.skip("set GOOSE_TEST_WEIGHTS to the folder of the real model")
    return Path(folder)


@pytest.fixture(scope="session")
def real_model(real_folder):
    return load(real_folder, "float32", "cpu")
