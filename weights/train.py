"""Train the embedded default model: a small Llama that writes Python, on the standard library's own source.

    python weights/train.py                 # writes config, tokenizer and weights beside this file
    python weights/train.py --steps 20 --out trial

The corpus is what the running interpreter brings along: every top-level function and class of its standard
library, and every method on its own, each a document that ends with <|end|>. Every 40th file is held out. The
model is model.py's, trained by AdamW; with the same interpreter, seed and thread count a run gives the same
weights.
"""

import argparse
import ast
import json
import math
import sys
import sysconfig
import textwrap
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from model import Config, Model  # noqa: E402

END, VOCABULARY, CONTEXT = "<|end|>", 2048, 512
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 672,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": None,
    "eos_token_id": 0,
}


def documents(file: Path) -> list[str]:
    """The top-level definitions of a source file, and each method of its classes as a function of its own."""
    source = file.read_text(encoding="utf-8")
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, definitions):
            found.append(ast.get_source_segment(source, node))
            if isinstance(node, ast.ClassDef):
                methods = [part for part in node.body if isinstance(part, definitions[:2])]
                found += [textwrap.dedent(ast.get_source_segment(source, m, padded=True)) for m in methods]
    return [text.rstrip() + "\n" for text in found]


def corpus() -> tuple[list[str], list[str]]:
    """Training and held-out documents, from the standard library of the running interpreter without its
    tests."""
    library = Path(sysconfig.get_path("stdlib"))
    skip = {"site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__", "turtledemo"}
    files = [f for f in sorted(library.rglob("*.py")) if not skip & set(f.relative_to(library).parts)]
    train, held_out = [], []
    for number, file in enumerate(files):
        try:
            (held_out if number % 40 == 39 else train).extend(documents(file))
        except (SyntaxError, UnicodeDecodeError):
            continue
    return train, held_out


def make_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE: any text can be encoded, and <|end|> is id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return tokenizer


def loss_of(model: Model, batch_BT: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats a token, of each token given those before it in its row."""
    B, T = batch_BT.shape[0], batch_BT.shape[1] - 1

    def attend(index, q_WHK, k_WGK, v_WGK):
        q, k, v = (
            part.unflatten(0, (B, T)).transpose(1, 2).to(v_WGK.dtype) for part in (q_WHK, k_WGK, v_WGK)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1)

    hidden = model.forward(batch_BT[:, :-1].flatten(), torch.arange(T).repeat(B), attend)
    return F.cross_entropy(model.lm_head(hidden).float(), batch_BT[:, 1:].flatten())


def train(steps: int, batch: int, seed: int, out: Path) -> None:
    torch.manual_seed(seed)
    train_texts, held_texts = corpus()
    tokenizer = make_tokenizer(train_texts)
    ids, held = (
        torch.tensor([t for e in tokenizer.encode_batch([x + END for x in texts]) for t in e.ids])
        for texts in (train_texts, held_texts)
    )
    held = held[: len(held) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)[:64]
    print(f"{len(train_texts)} documents, {len(ids):,} tokens; held out {held.numel():,}", flush=True)

    model = Model(Config.read(CONFIG))
    parameters = model.checkpoint()
    fused = [model.embed_tokens, model.norm] + [
        t for layer in model.layers for t in vars(layer).values() if isinstance(t, torch.Tensor)
    ]
    matrices = [linear.weight for layer in model.layers for linear in layer.linears()]
    for tensor in fused:
        tensor.fill_(1.0) if tensor.dim() == 1 else tensor.normal_(0, 0.02)
    for layer in model.layers:
        for linear in layer.linears():
            outward = linear is layer.o_proj or linear is layer.down_proj  # feeds the residual stream
            linear.weight.normal_(0, 0.02 / math.sqrt(2 * len(model.layers)) if outward else 0.02)
    print(f"{sum(p.numel() for p in parameters.values()):,} parameters", flush=True)

    for tensor in fused + matrices:
        tensor.requires_grad_()
    norms = [t for t in fused if t.dim() == 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices + [model.embed_tokens], "weight_decay": 0.1},
            {"params": norms, "weight_decay": 0.0},
        ],
        lr=1.0,
        betas=(0.9, 0.95),
    )
    peak, warm_up, started = 3e-3, min(100, steps // 10 + 1), time.time()

    def held_out_loss() -> float:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return sum(loss_of(model, rows).item() for rows in held.split(8)) / len(held.split(8))

    for step in range(steps):
        rate = peak * min((step + 1) / warm_up, 1.0) * max(1 - step / steps, 0.02)  # linear down to 2 %
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(ids) - CONTEXT - 1, (batch,))
        rows = torch.stack([ids[s : s + CONTEXT + 1] for s in starts.tolist()])
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(fused + matrices, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == steps - 1:
            print(
                f"step {step:5} of {steps}  loss {loss.item():.3f}  {time.time() - started:.0f} s", flush=True
            )
        if step % 500 == 499 or step == steps - 1:
            print(f"held-out loss {held_out_loss():.4f}", flush=True)
            save(model, tokenizer, out)


def save(model: Model, tokenizer: Tokenizer, out: Path) -> None:
    """The layout of a Hub folder, so that the default loads like any other checkpoint."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().to(torch.bfloat16).contiguous() for name, t in model.checkpoint().items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(out / "tokenizer.json"))
    for name, value in {
        "config.json": CONFIG,
        "generation_config.json": {"eos_token_id": 0},
        "tokenizer_config.json": {"eos_token": END},
    }.items():
        (out / name).write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=3600, help="optimiser steps (default %(default)s)")
    parser.add_argument(
        "--batch", type=int, default=8, help="rows of 512 tokens a step (default %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of initial weights and batches (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent, help="folder to write")
    options = parser.parse_args()
    train(options.steps, options.batch, options.seed, options.out)
