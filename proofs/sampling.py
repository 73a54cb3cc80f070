"""Sampling: one number a text position makes sampling as exact as greedy decoding, and leaves the
distribution alone.

Setting. The model gives, after each text x, a distribution over the next token. For each position n of the
text one number u_n is drawn, uniform in [0, 1) and independent of the others. The token after a text of
length n is the inverse of the distribution at u_n: the first token whose cumulative probability exceeds u_n.

Statement 1. For every sequence of drafted trees the loop commits the same text, that of plain sampling with
these u. Proof. With u fixed, "the next token after x" is a function f of x alone: its length picks u_n, its
content picks the distribution. Losslessness holds for every function f (proofs/losslessness.py). At a node of
depth d in a tree below a text of length n the loop uses u_(n+d), as plain sampling would.

Statement 2. The text has the model's distribution: P(text = t1 ... tN) = product of the model's p(t_i | t1
... t(i-1)). Proof. Given t1 ... t(i-1), token i is t exactly if u_i falls into t's interval of the cumulative
distribution, whose length is p(t | t1 ... t(i-1)); u_i is independent of u_1 ... u_(i-1), which decided the
text so far. Multiply over i.

What would break it: drawing a number for a node rather than for a position. Then a rejected draft would have
used up a number, and the text would depend on what was drafted.

The check is exact. Distributions are fractions with denominator M, and u takes the M values 0/M ... (M-1)/M,
each as likely: the inverse then has exactly the model's distribution. All M^N number sequences are tried.
"""

import itertools
import sys
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tree import BRANCH, Tree, walk  # noqa: E402

M, N, ALPHABET = 4, 3, (0, 1, 2)

Text = tuple[int, ...]


def distribution(text: Text, model: int) -> tuple[int, ...]:
    """Numerators over M of the next token's probabilities after a text; a few models, all different in every
    text."""
    parts = [p for p in itertools.product(range(M + 1), repeat=len(ALPHABET)) if sum(p) == M]
    return parts[
        (7 * model + sum((token + 2) * 5**i for i, token in enumerate(text)) + 3 * len(text)) % len(parts)
    ]


def draw(text: Text, numbers: tuple[int, ...], model: int) -> int:
    """The token after `text`: the inverse of its distribution at the number of its position."""
    u, cumulative = numbers[len(text)] if len(text) < N else 0, 0
    for token, share in zip(ALPHABET, distribution(text, model), strict=True):
        cumulative += share
        if u < cumulative:
            return token
    raise AssertionError("the shares do not sum to M")


def all_trees() -> list[Tree]:
    """Every tree of at most three nodes."""
    trees = [Tree.rooted(0)]
    for size in (2, 3):
        for parents in itertools.product(*(range(node) for node in range(1, size))):
            for tokens in itertools.product(ALPHABET, repeat=size - 1):
                tree = Tree.rooted(0)
                for parent, token in zip(parents, tokens, strict=True):
                    tree.add(parent, token, BRANCH)
                trees.append(tree)
    return trees


def check() -> dict[str, int]:
    """All number sequences, all trees at every committed text, for several models."""
    trees, cycles, texts = all_trees(), 0, 0
    for model in range(4):
        seen: Counter[Text] = Counter()
        for numbers in itertools.product(range(M), repeat=N):
            truth: Text = ()
            while len(truth) < N:
                truth += (draw(truth, numbers, model),)
            seen[truth] += 1
            for length, tree in itertools.product(range(N), trees):
                text = truth[:length]
                predictions = [draw(text + tuple(tree.path_to(v)), numbers, model) for v in range(len(tree))]
                path, bonus = walk(tree, predictions)
                committed = text + tuple(tree.tokens[v] for v in path[1:]) + (bonus,)
                assert committed[:N] == truth[: len(committed)], f"{tree} at {text}, numbers {numbers}"
                cycles += 1
        for text in itertools.product(ALPHABET, repeat=N):
            wanted = Fraction(1)
            for i, token in enumerate(text):
                wanted *= Fraction(distribution(text[:i], model)[token], M)
            assert Fraction(seen[text], M**N) == wanted, f"model {model}: {text}"
            texts += 1
    return {
        "number sequences": 4 * M**N,
        "trees": len(trees),
        "cycles": cycles,
        "probabilities of texts": texts,
    }


def main() -> None:
    started = time.time()
    for what, count in check().items():
        print(f"{what}: {count:,}")
    print(f"one text for all trees, with the model's distribution; {time.time() - started:.1f} s")


if __name__ == "__main__":
    main()
