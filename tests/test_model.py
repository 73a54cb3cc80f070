"""The forward pass, against an independent implementation and against itself."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from goose import Drafter, GenerationError, Settings, generate
from model import ARCHITECTURES, Cache, Config, LoadError, load, prefill, rotary_frequencies
from tests.conftest import random_tensors, tiny_config, write_folder

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

VARIANTS = {
    "llama": tiny_config(),
    "llama with a head size of its own": tiny_config(head_dim=24),
    "llama, head_dim null": tiny_config(head_dim=None, hidden_size=64),
    "llama, tied head": tiny_config(tie_word_embeddings=True),
    "llama with biases": tiny_config(attention_bias=True, mlp_bias=True),
    "llama without grouping": tiny_config(num_key_value_heads=4),
    "llama3 scaling": tiny_config(rope_scaling=LLAMA3),
    "llama3 scaling, older key": tiny_config(
        rope_scaling={"type" if k == "rope_type" else k: v for k, v in LLAMA3.items()}
    ),
    "linear scaling": tiny_config(rope_scaling={"type": "linear", "factor": 3.0}),
    "yarn": tiny_config(rope_scaling=YARN),
    "newer form": {
        k: v
        for k, v in tiny_config(
            dtype="float32", rope_parameters={"rope_type": "default", "rope_theta": 123456.0}
        ).items()
        if k not in ("rope_theta", "torch_dtype")
    },
    "newer form, llama3": {
        k: v
        for k, v in tiny_config(dtype="float32", rope_parameters=LLAMA3 | {"rope_theta": 5000.0}).items()
        if k not in ("rope_theta", "torch_dtype")
    },
    "mistral": tiny_config("MistralForCausalLM", sliding_window=None),
    "qwen2": {
        k: v
        for k, v in tiny_config(
            "Qwen2ForCausalLM", hidden_size=64, use_sliding_window=False, sliding_window=4
        ).items()
        if k != "head_dim"
    },
    "qwen3": tiny_config("Qwen3ForCausalLM", head_dim=32, rms_norm_eps=1e-2),
    "qwen3 with biases": tiny_config("Qwen3ForCausalLM", attention_bias=True),
}


def logits_of(model, tokens, chunk, slots=512):
    cache = Cache(model, slots)
    return torch.cat(list(prefill(model, tokens, cache, True, chunk))), cache


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_and_greedy_tokens_are_those_of_transformers(name, tmp_path):
    """Fed at once, in chunks and token by token; at positions far enough that a wrong rotation shows."""
    transformers = pytest.importorskip("transformers")
    config = VARIANTS[name]
    folder = write_folder(tmp_path / "m", config)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours = load(folder, "float32", "cpu")
    tokens = torch.randint(0, 64, (75,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.no_grad():
        wanted = oracle(torch.tensor([tokens])).logits[0]
    for chunk in (128, 32, 7, 1):
        logits, _ = logits_of(ours, tokens, chunk)
        torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=0)
    row = torch.tensor([tokens])
    greedy = oracle.generate(
        row,
        attention_mask=torch.ones_like(row),
        max_new_tokens=24,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0, len(tokens) :].tolist()
    cycles = generate(ours, tokens, Drafter(Settings(method="greedy")), 24)
    assert [t for cycle in cycles for t in cycle.tokens] == greedy


@settings(deadline=None, max_examples=40)
@given(
    data=st.data(),
    which=st.integers(0, len(ARCHITECTURES) - 1),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_any_chunking_of_the_prompt_gives_the_same_bits(tiny_models, data, which, dtype):
    model = tiny_models[dtype][which]
    tokens = data.draw(st.lists(st.integers(0, 63), min_size=1, max_size=200))
    whole, cache_whole = logits_of(model, tokens, 128)
    parts, cache_parts = logits_of(model, tokens, data.draw(st.integers(1, 128)))
    n = len(tokens)
    assert torch.equal(whole, parts)
    assert torch.equal(cache_whole.keys[:, :, :n], cache_parts.keys[:, :, :n])
    assert torch.equal(cache_whole.values[:, :, :n], cache_parts.values[:, :, :n])


def test_only_the_last_row_is_the_same_last_row(tiny_models):
    """prefill without every_row runs the head on a few rows only; they must round like the full head."""
    for model in tiny_models["float32"]:
        for n in (1, 2, 3, 4, 5, 17, 128, 130):
            tokens = [i * 7 % 64 for i in range(n)]
            few = list(prefill(model, tokens, Cache(model, 400), False))[-1]
            assert torch.equal(few[-1], logits_of(model, tokens, 128)[0][-1])


def test_llama3_frequencies_are_those_published():
    config = Config.read(
        tiny_config(
            head_dim=64,
            rope_theta=500000.0,
            rope_scaling={
                "rope_type": "llama3",
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        )
    )
    frequencies, scale = rotary_frequencies(config)
    wanted = {
        14: 0.00321144599,
        15: 0.00129054793,
        16: 0.000429556797,
        17: 9.7082878e-05,
        18: 1.94616382e-05,
        31: 9.4183067e-08,
    }
    for index, value in wanted.items():
        assert math.isclose(frequencies[index], value, rel_tol=1e-5)
    assert scale == 1.0


@pytest.mark.parametrize(
    "changes, theta",
    [
        ({"rope_theta": 123456.0}, 123456.0),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 123456.0, "rope_type": "default"}}, 123456.0),
        ({"rope_theta": None}, 10000.0),
        ({"rope_theta": 5000.0, "rope_parameters": {"rope_theta": 123456.0}}, 123456.0),
        ({"rope_theta": 5000.0, "rope_scaling": None}, 5000.0),
    ],
)
def test_rope_theta_is_found_where_configurations_keep_it(changes, theta):
    assert Config.read(tiny_config(**changes)).rope_parameters["rope_theta"] == theta


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported"),
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM is not supported"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "Qwen3MoeForCausalLM is not supported"),
        ({"architectures": None}, "is not supported"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised checkpoint (fp8)"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope type 'longrope'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
        ({"rope_scaling": {"type": "linear"}}, "needs the number factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "needs the number low_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 4}, "sliding_window is in use"),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "use_sliding_window": True,
                "sliding_window": 4,
                "max_window_layers": 1,
            },
            "sliding_window is in use",
        ),
        (
            {"architectures": ["Qwen3ForCausalLM"], "layer_types": ["full_attention", "sliding_attention"]},
            "sliding_attention is in use",
        ),
        ({"attention_chunk_size": 8192}, "attention_chunk_size is in use"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_attention_heads": 3}, "not a multiple"),
    ],
)
def test_what_the_forward_pass_cannot_do_is_refused(changes, says, tmp_path):
    folder = write_folder(tmp_path / "m", tiny_config())
    (folder / "config.json").write_text(json.dumps(tiny_config(**changes)))
    with pytest.raises(LoadError) as error:
        load(folder)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False, "sliding_window": 4},
        {
            "architectures": ["Qwen2ForCausalLM"],
            "use_sliding_window": True,
            "sliding_window": 4,
        },  # from layer 28 on
        {"architectures": ["MistralForCausalLM"], "sliding_window": None},
        {"architectures": ["MistralForCausalLM"], "sliding_window": 512},  # as long as the context
        {"architectures": ["Qwen3ForCausalLM"], "layer_types": ["full_attention"] * 2},
    ],
)
def test_a_sliding_window_that_is_not_in_use_is_accepted(changes):
    assert Config.read(tiny_config(**changes)).architecture == changes["architectures"][0]


def test_float16_overflow_is_reported_not_decoded(tmp_path):
    config = tiny_config()
    tensors = random_tensors(config)
    tensors["model.layers.0.mlp.up_proj.weight"] *= 1e3
    tensors["model.layers.0.mlp.down_proj.weight"] *= 1e5
    folder = write_folder(tmp_path / "m", config, tensors)
    with pytest.raises(GenerationError, match="not finite in float16.*--dtype"):
        list(generate(load(folder, "float16", "cpu"), [5, 6, 7], max_new_tokens=4))
    for dtype in ("bfloat16", "float32"):
        cycles = list(generate(load(folder, dtype, "cpu"), [5, 6, 7], max_new_tokens=4))
        assert sum(len(c.tokens) for c in cycles) == 4
