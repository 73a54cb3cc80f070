"""Losslessness: whatever trees are drafted, the loop commits exactly the text of plain decoding.

Statement. Let f be any function from texts to next tokens (for greedy decoding the argmax, for sampling the
draw at the text's next position: proofs/sampling.py). Plain decoding maps a text x to x f(x), again and
again. The loop of Algorithm 2 drafts any tree whose root is the last token of x, computes f at every node (at
a node it sees x and the tokens on the path to that node), walks (Algorithm 3), and appends the accepted
tokens and the bonus token. Then after every cycle the committed text is a text of plain decoding, and it is
longer than before by at least one token.

Proof. Let t1, t2, ... be what plain decoding appends to x, so t1 = f(x) and t(i+1) = f(x t1 ... ti). Claim:
when the walk stands at a node of depth d, the tokens on the path to it are t1 ... td. At the root d = 0 and
there is nothing to show. If it holds at a node, the prediction there is f(x t1 ... td) = t(d+1); the walk
moves to a child only if the child's token equals that prediction, and then the claim holds at the child. So
the accepted tokens are t1 ... td for the last node, and the bonus token, the prediction there, is t(d+1). The
cycle appends t1 ... t(d+1), which is what d + 1 steps of plain decoding append. By induction over the cycles
the whole text is plain decoding's, for every sequence of trees; a limit or a stop token cuts both texts at
the same place. Nothing was assumed of the trees: tokens may be wrong, repeated, or the same twice among
siblings.

The check drives the repository's own walk. One cycle from a committed text depends on earlier cycles only
through that text. So it is enough to try every tree at every text that plain decoding reaches; what is
counted as a sequence is a choice of one tree for each cycle until the text is full.
"""

import itertools
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tree import BRANCH, Tree, walk  # noqa: E402

ALPHABET, LENGTH, NODES = (0, 1), 3, 4


def all_trees(nodes: int) -> Iterator[Tree]:
    """Every tree of 1 to `nodes` nodes: all parents, all tokens, equal siblings included."""
    for size in range(1, nodes + 1):
        for parents in itertools.product(*(range(node) for node in range(1, size))):
            for tokens in itertools.product(ALPHABET, repeat=size - 1):
                tree = Tree.rooted(0)
                for parent, token in zip(parents, tokens, strict=True):
                    tree.add(parent, token, BRANCH)
                yield tree


def cycle(tree: Tree, text: tuple[int, ...], f: dict[tuple[int, ...], int]) -> tuple[int, ...]:
    """The text after one cycle of the loop. Beyond the bounded texts f is 0; the caller cuts there."""
    predictions = [f.get(text + tuple(tree.path_to(node)), 0) for node in range(len(tree))]
    path, bonus = walk(tree, predictions)
    return text + tuple(tree.tokens[node] for node in path[1:]) + (bonus,)


def check() -> dict[str, int]:
    """Every function on texts of fewer than LENGTH tokens, every tree of up to NODES nodes, every reachable
    text."""
    texts = [text for n in range(LENGTH) for text in itertools.product(ALPHABET, repeat=n)]
    trees = list(all_trees(NODES))
    functions = cycles = sequences = 0
    for values in itertools.product(ALPHABET, repeat=len(texts)):
        f = dict(zip(texts, values, strict=True))
        truth: tuple[int, ...] = ()
        while len(truth) < LENGTH:
            truth += (f[truth],)

        @cache
        def ways(length: int, f=f, truth=truth) -> int:
            """Sequences of trees from the text truth[:length] until it is full, each checked."""
            nonlocal cycles
            if length >= LENGTH:
                return 1
            total = 0
            for tree in trees:
                committed = cycle(tree, truth[:length], f)
                cycles += 1
                assert len(committed) > length, f"no progress: {tree}, f = {f}"
                assert committed[:LENGTH] == truth[: len(committed)], f"{tree} at {truth[:length]}, f = {f}"
                total += ways(len(committed))  # noqa: B023
            return total

        sequences += ways(0)
        functions += 1
    return {
        "functions": functions,
        "trees": len(trees),
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
