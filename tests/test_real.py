"""A real checkpoint (135M parameters, Llama architecture), where GOOSE_TEST_WEIGHTS names its folder."""

import json
import shutil

import pytest
import torch

from goose import METHODS, BestDrafter, Settings, drafter_for, generate, measure
from model import Stream, Tokenizer, load
from tests.test_goose import greedy, tokens_of

COLOURS = "red green blue red green blue red green blue red green"
PROMPTS = [
    "def fibonacci(n):",
    COLOURS,
    "The capital of France is",
    "# Sort a list of words by length.\n",
    "Question: Anna has 3 apples and buys 5 more. How many has she?\n\nAnswer: Let me solve step by step.\n",
]
WORDS = "Repeat exactly: one two three. one two three. one two three."


@pytest.fixture(scope="module")
def tokenizer(real_folder):
    return Tokenizer(real_folder)


def chat(tokenizer, text):
    return tokenizer.encode_chat([{"role": "user", "content": text}])


def test_greedy_tokens_are_those_of_transformers(real_folder, real_model, tokenizer):
    transformers = pytest.importorskip("transformers")
    oracle = transformers.AutoModelForCausalLM.from_pretrained(real_folder, dtype=torch.float32).eval()
    for prompt in PROMPTS[:2]:
        row = torch.tensor([tokenizer.encode(prompt)])
        wanted = oracle.generate(
            row,
            attention_mask=torch.ones_like(row),
            max_new_tokens=128,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0, row.shape[1] :].tolist()
        assert greedy(real_model, row[0].tolist(), 128) == wanted


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_method_gives_greedys_tokens(real_folder, tokenizer, dtype):
    model = load(real_folder, dtype, "cpu")
    seconds = measure(model)
    for prompt in PROMPTS[1:4]:
        ids = tokenizer.encode(prompt)
        truth = greedy(model, ids, 48)
        for method in METHODS:
            drafter = drafter_for(Settings(method=method, width=32))
            assert tokens_of(generate(model, ids, drafter, 48)) == truth, (prompt, method)
        assert tokens_of(generate(model, ids, BestDrafter(Settings(), seconds), 48)) == truth, prompt


def test_known_continuations(real_model, tokenizer):
    ids = tokenizer.encode(COLOURS)
    assert len(ids) == 11
    for limit in (1, 2, 3, 5, 8, 48):
        wanted = [4461] + [2654] * (limit - 1)
        for method in METHODS:
            assert tokens_of(generate(real_model, ids, drafter_for(Settings(method=method)), limit)) == wanted
    for text, start in (
        ("Hello", [29, 1717, 29, 2759, 29, 5476, 29, 1766]),
        ("\n", [29, 378, 476, 49, 18, 314, 253, 2244]),
    ):
        assert greedy(real_model, tokenizer.encode(text), 8) == start
    assert tokenizer.decode(greedy(real_model, tokenizer.encode("The capital of France is"), 1)) == " Paris"


def test_control_tokens_in_a_prompt_are_special_and_do_not_stop_it(real_model, tokenizer):
    assert tokenizer.encode("a<|im_end|>b") == [81, 2, 82]
    prompt = [81, 2, 82, 2] * 6
    for method in METHODS:
        cycles = list(
            generate(real_model, prompt, drafter_for(Settings(method=method)), 12, tokenizer.stop_ids)
        )
        truth = greedy(real_model, prompt, 12)
        end = truth.index(2) + 1 if 2 in truth else 12
        assert tokens_of(cycles) == truth[:end]


def test_stop_ids_survive_missing_files(real_folder, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in real_folder.iterdir():
        if file.name == "model.safetensors":
            (folder / file.name).symlink_to(file)
        elif file.name != "generation_config.json":
            shutil.copy(file, folder)
    model = load(folder, "float32", "cpu")
    for remove in (False, True):
        if remove:
            config = json.loads((folder / "config.json").read_text())
            del config["eos_token_id"]
            (folder / "config.json").write_text(json.dumps(config))
        tokenizer = Tokenizer(folder)
        cycles = list(
            generate(model, chat(tokenizer, WORDS), drafter_for(Settings()), 32, tokenizer.stop_ids)
        )
        assert tokens_of(cycles) == [2705, 827, 1296, 30, 2] and cycles[-1].finish_reason == "stop"


def test_a_character_cut_by_the_limit_is_flushed_as_a_mark(real_model, tokenizer):
    prompt = chat(tokenizer, "日本語で「こんにちは」と言ってください。")
    assert len(prompt) == 67
    tokens = greedy(real_model, prompt, 48)
    stream, text = Stream(tokenizer, prompt), ""
    for token in tokens:
        text += stream.push([token])
    text += stream.flush()
    assert text == tokenizer.decode(tokens, prompt) == tokenizer.backend.decode(tokens)
    assert text == "こんにちは" * 5 + "こ\ufffd"


def test_ids_and_widths_of_replacement_marks(tokenizer):
    for ids, wanted in (([81, 216, 24211, 278], "a \ufffd b"), ([116, 224, 19556], "\ufffd\ufffdHello")):
        stream = Stream(tokenizer)
        assert "".join(stream.push([token]) for token in ids) == wanted and stream.flush() == ""
    duck = tokenizer.encode("Hello ") + [10813, 116]
    assert "Hello" not in tokenizer.decode([224], duck)


def test_empty_and_blank_prompts(tokenizer):
    assert tokenizer.encode("") == [] and tokenizer.encode(" ") == [216]
