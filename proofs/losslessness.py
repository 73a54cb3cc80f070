"""Losslessness: whatever trees are drafted, the loop commits exactly the text of plain decoding.

Statement. Let f be any function from texts to next tokens (for greedy decoding the argmax, for sampling the
draw at the text's next position: proofs/sampling.py). Plain decoding maps a text x to x f(x), again and
again. The loop of Algorithm 2 drafts any tree whose root stands for the last token of x, computes f at every
node (at a node it sees x and the tokens from below the root down to that node), walks (Algorithm 3),
and appends the accepted tokens and the bonus token. Then after every cycle the committed text is a text of
plain decoding, and it is longer than before by at least one token.

Proof. Let t1, t2, ... be what plain decoding appends to x, so t1 = f(x) and t(i+1) = f(x t1 ... ti). Claim:
when the walk stands at a node of depth d, the tokens on the path to it are t1 ... td. At the root d = 0 and
there is nothing to show. If it holds at a node, the prediction there is f(x t1 ... td) = t(d+1); the walk
moves to a child only if the child's token equals that prediction, and then the claim holds at the child. So
the accepted tokens are t1 ... td for the last node, and the bonus token, the prediction there, is t(d+1). The
cycle appends t1 ... t(d+1), which is what d + 1 steps of plain decoding append. By induction over the cycles
the whole text is plain decoding's, for every sequence of trees; a limit or a stop token cuts both texts at
the same place. Nothing was assumed of the trees: tokens may be wrong, repeated, or the same twice among
siblings.

The check drives the repository's own walk. Texts are bounded: longer ones get token 0, and what is committed
beyond the bound is not compared. One cycle depends on earlier cycles only through the text committed so far.
So it is enough to try every tree at every text that the loop reaches; a sequence, as counted, is a choice of
one tree for each cycle until the text is full.

What is outside: that the pass computes f of x and the path at each node, which is the business of mask,
positions and cache; and that f is a function, though in half precision a pass over many rows may round
otherwise than a pass over one. The tests see to both on models; here f is given.
"""

import itertools
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tree import BRANCH, Tree, walk  # noqa: E402

SIZES = [(2, 3, 4), (3, 2, 3)]  # tokens in the alphabet, tokens in the text, nodes of a tree at most


def all_trees(alphabet: range, nodes: int) -> Iterator[Tree]:
    """Every tree of 1 to `nodes` nodes: all parents, all tokens, equal siblings included."""
    for size in range(1, nodes + 1):
        for parents in itertools.product(*(range(node) for node in range(1, size))):
            for tokens in itertools.product(alphabet, repeat=size - 1):
                tree = Tree.rooted(0)
                for parent, token in zip(parents, tokens, strict=True):
                    tree.add(parent, token, BRANCH)
                yield tree


def cycle(tree: Tree, text: tuple[int, ...], f: dict[tuple[int, ...], int]) -> tuple[int, ...]:
    """The text after one cycle of the loop."""
    predictions = [f.get(text + tuple(tree.path_to(node)), 0) for node in range(len(tree))]
    path, bonus = walk(tree, predictions)
    return text + tuple(tree.tokens[node] for node in path[1:]) + (bonus,)


def sequences_from_nothing(f: dict[tuple[int, ...], int], trees: list[Tree], length: int) -> tuple[int, int]:
    """Runs the loop with every sequence of trees until `length` tokens are committed, and compares each cycle
    with plain decoding. Returns how many sequences that are and how many cycles were run for them."""
    truth: tuple[int, ...] = ()
    while len(truth) < length:
        truth += (f[truth],)
    cycles = 0

    @cache
    def ways(done: int) -> int:
        """Sequences that fill the text from its first `done` tokens on."""
        nonlocal cycles
        if done >= length:
            return 1
        total = 0
        for tree in trees:
            committed = cycle(tree, truth[:done], f)
            cycles += 1
            assert len(committed) > done, f"no progress: {tree} at {truth[:done]}, f = {f}"
            assert committed[:length] == truth[: len(committed)], f"{tree} at {truth[:done]}, f = {f}"
            total += ways(len(committed))
        return total

    return ways(0), cycles


def check() -> dict[str, int]:
    """Every function on the bounded texts, every tree, every text that is reached."""
    functions = drafted = cycles = sequences = 0
    for tokens, length, nodes in SIZES:
        alphabet = range(tokens)
        texts = [text for n in range(length) for text in itertools.product(alphabet, repeat=n)]
        trees = list(all_trees(alphabet, nodes))
        drafted += len(trees)
        for values in itertools.product(alphabet, repeat=len(texts)):
            more, run = sequences_from_nothing(dict(zip(texts, values, strict=True)), trees, length)
            functions, sequences, cycles = functions + 1, sequences + more, cycles + run
    return {
        "functions": functions,
        "trees": drafted,
        "cycles checked": cycles,
        "sequences covered": sequences,
    }


def main() -> None:
    started = time.time()
    for what, count in check().items():
        print(f"{what}: {count:,}")
    print(f"no tree changed the text; {time.time() - started:.1f} s")


if __name__ == "__main__":
    main()
