"""How many outputs equal plain decoding's, by this repository's arithmetic and by the usual one.

    python -m tests.exactness --weights DIR_OR_ID --prompts FILE.jsonl [...] [--dtype bfloat16]

For each prompt Goose with default settings and with widths 8, 16, 32 and 64 against greedy decoding: the same
tokens, and the same bits in every logits row that a token was taken from. Then the same two runs by the usual
arithmetic: PyTorch's scaled_dot_product_attention, plain F.linear, passes without padding. Exits 1 if an
output of ours differs.
"""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F

import goose
import kernels
import model as model_module
from bench import read_prompts
from goose import BestDrafter, Drafter, Settings, generate, measure
from model import DTYPES, Model, Tokenizer, find, load

WIDTHS = (8, 16, 32, 64)


def decode(model: Model, prompt: list[int], drafter, most: int, stops) -> tuple[list[int], torch.Tensor]:
    """Tokens, and the logits row [tokens, vocab] that each was taken from."""
    tokens, rows, last = [], [], []
    choose = goose.choose

    def watched(logits, *rest):
        last[:] = [logits]
        return choose(logits, *rest)

    with mock.patch("goose.choose", watched):
        for cycle in generate(model, prompt, drafter, most, stops):
            tokens += cycle.tokens
            rows.append(last[0][cycle.path[: len(cycle.tokens)]].clone())
    return tokens, torch.cat(rows)


def usual_attention(q_WHK, keys_GTK, values_GTK, layout):
    """PyTorch's attention over the prefix and the rows that a row sees, in the model's dtype."""
    W, H, K = q_WHK.shape
    slots = layout.length + W
    bias = torch.zeros(W, slots, dtype=usual_attention.dtype)
    bias[:, layout.first :].masked_fill_(layout.hidden_WS, -torch.inf)
    q, k, v = (
        t[None].to(bias.dtype)
        for t in (q_WHK.transpose(0, 1), keys_GTK[:, :slots], values_GTK[:, :slots, :K])
    )
    out = F.scaled_dot_product_attention(q, k, v, bias, scale=1.0, enable_gqa=True)
    return out[0].transpose(0, 1).float()


def usual_arithmetic(dtype: torch.dtype) -> ExitStack:
    stack = ExitStack()
    usual_attention.dtype = dtype
    stack.enter_context(mock.patch.object(kernels, "tree_attention", usual_attention))
    stack.enter_context(mock.patch.object(model_module, "rows_for", lambda nodes: nodes))
    return stack


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--weights", required=True, metavar="DIR_OR_ID")
    parser.add_argument("--prompts", nargs="+", type=Path, required=True, metavar="FILE")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N")
    parser.add_argument("--limit", type=int, default=None, metavar="N", help="only the first N of each file")
    parser.add_argument(
        "--usual-every", type=int, default=1, metavar="N", help="usual arithmetic on every Nth"
    )
    parser.add_argument("--widths", nargs="*", type=int, default=WIDTHS, metavar="W")
    options = parser.parse_args()
    folder = find(options.weights)
    tokenizer, ours = Tokenizer(folder), load(folder, options.dtype, "cpu")
    with mock.patch.object(kernels.Linear, "pack", lambda self: None):
        theirs = load(folder, options.dtype, "cpu")
    seconds = measure(ours)
    names = ["default", *(f"width {width}" for width in options.widths), "usual arithmetic"]
    tokens_same, rows_same, cases = (dict.fromkeys(names, 0) for _ in range(3))

    def compare(name: str, model: Model, prompt: list[int], plain, drafter) -> None:
        tokens, rows = decode(model, prompt, drafter, options.max_new_tokens, tokenizer.stop_ids)
        cases[name] += 1
        tokens_same[name] += tokens == plain[0]
        rows_same[name] += tokens == plain[0] and torch.equal(rows, plain[1])

    texts = [text for file in options.prompts for _, text in read_prompts(file)[: options.limit]]
    for number, text in enumerate(texts):
        prompt = tokenizer.encode(text)
        greedy = Drafter(Settings(method="greedy"))
        plain = decode(ours, prompt, greedy, options.max_new_tokens, tokenizer.stop_ids)
        compare("default", ours, prompt, plain, BestDrafter(Settings(), seconds))
        for width in options.widths:
            compare(f"width {width}", ours, prompt, plain, BestDrafter(Settings(width=width)))
        if number % options.usual_every == 0:
            with usual_arithmetic(ours.dtype):
                greedy = Drafter(Settings(method="greedy"))
                plain = decode(theirs, prompt, greedy, options.max_new_tokens, tokenizer.stop_ids)
                compare("usual arithmetic", theirs, prompt, plain, BestDrafter(Settings(), seconds))
        print(f"\r{number + 1} of {len(texts)} prompts", end="", file=sys.stderr, flush=True)
    print(f"\n{folder.name}, {options.dtype}, {options.max_new_tokens} new tokens", file=sys.stderr)
    for name in names:
        print(f"{name}: tokens {tokens_same[name]}, logits {rows_same[name]} of {cases[name]}")
    return int(any(rows_same[name] < cases[name] for name in names[:-1]))


if __name__ == "__main__":
    sys.exit(main())
