"""On a CUDA machine: the kernel against the reference, exactness in every dtype, and figures.

    python tests/gpu.py [FOLDER]        # FOLDER: a checkpoint for the figures; default: the embedded model

Not part of the test suite, which runs the same kernel in Triton's CPU interpreter. Exits 1 if a check fails.
"""

import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from goose import METHODS, Settings, Totals, drafter_for, generate  # noqa: E402
from model import Cache, Scorer, Tokenizer, load, prefill  # noqa: E402
from tree import chain_tree  # noqa: E402

WIDTHS = (8, 16, 32, 64, 128)


def tokens_of(model, prompt, settings, most=96, graph=True):
    totals = Totals()
    for cycle in generate(model, prompt, drafter_for(settings), most, graph=graph):
        totals.add(cycle)
    return totals


def check_kernel() -> bool:
    """The laws of tests/test_kernels.py, which take the GPU where there is one."""
    import pytest

    return (
        pytest.main(["-q", str(ROOT / "tests/test_kernels.py"), "-k", "kernel", "-p", "no:cacheprovider"])
        == 0
    )


def check_exactness(folder: Path, prompts: list[list[int]]) -> bool:
    """Every method and width against greedy at the same width, in every dtype; and without a graph."""
    good = True
    for dtype in ("float32", "bfloat16", "float16"):
        model = load(folder, dtype, "cuda")
        for width in WIDTHS:
            same = cases = 0
            for prompt in prompts:
                truth = tokens_of(model, prompt, Settings(method="greedy", width=width)).tokens
                runs = [Settings(method=method, width=width) for method in METHODS[1:]]
                runs.append(Settings(tree="spine", width=width))
                for settings in runs:
                    same += tokens_of(model, prompt, settings).tokens == truth
                    cases += 1
                same += tokens_of(model, prompt, runs[-1], graph=False).tokens == truth
                cases += 1
            print(f"exact, {dtype}, width {width}: {same} of {cases}")
            good &= same == cases
    return good


def timed(function, repeats=30) -> float:
    """Median seconds, the device waited for."""
    laps = []
    for _ in range(repeats + 3):
        torch.cuda.synchronize()
        started = time.perf_counter()
        function()
        torch.cuda.synchronize()
        laps.append(time.perf_counter() - started)
    return sorted(laps[3:])[repeats // 2]


def figures(folder: Path, prompt: list[int]) -> None:
    """Copy bandwidth, the cost curve of the captured step, and Goose's speed-up beside its tau."""
    block = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(block)
    bandwidth = 2 * block.numel() / timed(lambda: target.copy_(block))
    for dtype in ("bfloat16", "float32"):
        model = load(folder, dtype, "cuda")
        weights = sum(t.numel() * t.element_size() for t in model.checkpoint().values())
        print(
            f"{dtype}: weights {weights / 1e6:.0f} MB, copy bandwidth {bandwidth / 1e9:.0f} GB/s, "
            f"floor {1e3 * weights / bandwidth:.3f} ms a pass"
        )
        for graph in (True, False):
            for width in (1, *WIDTHS):
                cache = Cache(model, 1024)
                list(prefill(model, prompt, cache, False))
                scorer, tree = Scorer(model, cache, width, 10, graph), chain_tree(0, [0] * (width - 1))
                seconds = timed(lambda s=scorer, t=tree: s(t.tokens, t.depths, t.mask))
                print(f"    {'graph' if graph else 'eager'}, width {width}: {1e3 * seconds:.3f} ms")
        plain = tokens_of(model, prompt, Settings(method="greedy", width=1), 256)
        for width in (32, 64, 128):
            for tree in ("spine", "best"):
                run = tokens_of(model, prompt, Settings(tree=tree, width=width), 256)
                host = (run.seconds["draft"] + run.seconds["commit"]) / max(run.passes - 1, 1)
                print(
                    f"    {tree} tree, width {width}: tau {run.tau:.2f}, "
                    f"{run.tokens_per_second:.0f} tokens/s, "
                    f"{run.tokens_per_second / plain.tokens_per_second:.2f}x, host {1e3 * host:.2f} ms"
                )


def main() -> int:
    if not torch.cuda.is_available():
        print("no CUDA device: nothing was checked", file=sys.stderr)
        return 2
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "weights"
    tokenizer = Tokenizer(folder)
    texts = [
        "def fibonacci(n):\n    ",
        "class Stack:\n    def push(self, x):\n" * 4,
        "import os\n\ndef main():\n",
    ]
    prompts = [tokenizer.encode(text) for text in texts]
    print(torch.cuda.get_device_name(), torch.__version__)
    good = check_kernel() & check_exactness(folder, prompts)
    figures(folder, prompts[1])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
