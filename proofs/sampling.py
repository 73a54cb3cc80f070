"""Sampling: one number a text position makes sampling as exact as greedy decoding, and leaves the
distribution alone.

Setting. The model gives, after each text x, a distribution over the next token. For each position n of the
text one number u_n is drawn, uniform in [0, 1) and independent of the others. The token after a text of
length n is the inverse of the distribution at u_n: the first token whose cumulative probability exceeds u_n.

Statement 1. For every sequence of drafted trees the loop commits the same text, that of plain sampling with
these u. Proof. With u fixed, "the next token after x" is a function f of x alone: its length picks u_n, its
content picks the distribution. Losslessness holds for every function f (proofs/losslessness.py). At a node of
depth d in a tree below a text of length n the loop uses u_(n+d), as plain sampling would: siblings, and all
nodes of one depth, share a number, and a position keeps it: where a draft was rejected, the next cycle uses
the same number again.

Statement 2. The text has the model's distribution: P(text = t1 ... tN) = product of the model's p(t_i | t1
... t(i-1)). Proof. By Statement 1 it is enough to look at plain sampling. Given t1 ... t(i-1), token i is t
exactly if u_(i-1) falls into t's interval of the cumulative distribution, whose length is
p(t | t1 ... t(i-1)); that number is independent of the earlier ones, which decided the text so far. Multiply
over i.

What breaks Statement 1: a number for each node of the pass, taken from one stream, instead of for each
position. A rejected draft then uses up a number, and the text depends on what was drafted. The check holds
such a case: a fair coin, two tokens, one draft.

The check is exact. Distributions are fractions with denominator M, and u takes the M values 0/M ... (M-1)/M,
each as likely: the inverse then has exactly the model's distribution. Within each setting (alphabet, M, text
length N) nothing is left out: all models, all M^N number sequences, all trees up to a size, at every text
that plain sampling passes through. One cycle depends on earlier ones through the committed text only, so that
covers all sequences of trees. It draws by itself; that the program uses u_(n+d) at depth d is tested in
tests/test_sampling.py.
"""

import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tree import BRANCH, Tree, walk  # noqa: E402

SETTINGS = ((2, 3, 2, 4), (3, 2, 2, 3), (2, 2, 3, 3))  # alphabet, M, N, nodes of the largest tree

Text = tuple[int, ...]
Model = dict[Text, tuple[int, ...]]  # text -> numerators over M of the next token's probabilities


def all_models(alphabet: int, M: int, N: int) -> Iterator[Model]:
    """Every choice of a distribution with denominator M after each text of fewer than N tokens."""
    texts = [text for n in range(N) for text in itertools.product(range(alphabet), repeat=n)]
    distributions = [p for p in itertools.product(range(M + 1), repeat=alphabet) if sum(p) == M]
    for choice in itertools.product(distributions, repeat=len(texts)):
        yield dict(zip(texts, choice, strict=True))


def all_trees(alphabet: int, nodes: int) -> list[Tree]:
    """Every tree of 1 to `nodes` nodes, equal siblings included."""
    trees = []
    for size in range(1, nodes + 1):
        for parents in itertools.product(*(range(node) for node in range(1, size))):
            for tokens in itertools.product(range(alphabet), repeat=size - 1):
                tree = Tree.rooted(0)
                for parent, token in zip(parents, tokens, strict=True):
                    tree.add(parent, token, BRANCH)
                trees.append(tree)
    return trees


def draw(distribution: tuple[int, ...], u: int) -> int:
    """The inverse of a distribution at u / M: the first token whose cumulative probability exceeds it."""
    return next(token for token, share in enumerate(itertools.accumulate(distribution)) if u < share)


def cycle(text: Text, tree: Tree, token_at: Callable[[int, Text], int]) -> Text:
    """The text after one cycle; token_at(node, the text that the node sees) is the model's token there."""
    predictions = [token_at(node, text + tuple(tree.path_to(node))) for node in range(len(tree))]
    path, bonus = walk(tree, predictions)
    return text + tuple(tree.tokens[node] for node in path[1:]) + (bonus,)


def one_number_a_node() -> tuple[Text, Text, Text]:
    """A case that breaks it, a fair coin, one draft: the numbers, and the texts of two tokens with
    and without the draft, when every node of a pass takes the next number of a stream."""
    for numbers in itertools.product(range(2), repeat=4):
        texts = []
        for tree in all_trees(2, 1) + all_trees(2, 2)[1:2]:
            text: Text = ()
            used = 0
            while len(text) < 2:
                stream = numbers[used:]
                text = cycle(text, tree, lambda node, seen, stream=stream: draw((1, 1), stream[node]))
                used += len(tree)
            texts.append(text[:2])
        if texts[0] != texts[1]:
            return numbers, texts[1], texts[0]
    raise AssertionError("a number for each node changed no text")


def check() -> dict[str, int]:
    """All models, number sequences, trees and texts of every setting; the case that breaks Statement 1."""
    models = sequences = cycles = probabilities = 0
    for alphabet, M, N, nodes in SETTINGS:
        trees = all_trees(alphabet, nodes)
        for model in all_models(alphabet, M, N):
            seen: Counter[Text] = Counter()
            for numbers in itertools.product(range(M), repeat=N):
                f = {text: draw(shares, numbers[len(text)]) for text, shares in model.items()}
                truth: Text = ()
                while len(truth) < N:
                    truth += (f[truth],)
                seen[truth] += 1
                for length, tree in itertools.product(range(N), trees):
                    # beyond the bounded texts f is 0; nothing of that is compared
                    committed = cycle(truth[:length], tree, lambda node, seen, f=f: f.get(seen, 0))
                    assert len(committed) > length and committed[:N] == truth[: len(committed)], (
                        f"{committed} instead of {truth}: {tree}, numbers {numbers}, model {model}"
                    )
                    cycles += 1
                sequences += 1
            for text in itertools.product(range(alphabet), repeat=N):
                wanted = Fraction(1)
                for i, token in enumerate(text):
                    wanted *= Fraction(model[text[:i]][token], M)
                assert Fraction(seen[text], M**N) == wanted, f"P{text} is not {wanted}: model {model}"
                probabilities += 1
            models += 1
    assert one_number_a_node()
    return {
        "models": models,
        "number sequences": sequences,
        "cycles": cycles,
        "probabilities of texts": probabilities,
    }


def main() -> None:
    started = time.time()
    for what, count in check().items():
        print(f"{what}: {count:,}")
    print("one text for all trees, with the model's distribution")
    numbers, drafted, plain = one_number_a_node()
    print(f"a number a node instead: the stream {numbers} gives {drafted} with one draft, {plain} without")
    print(f"{time.time() - started:.1f} s")


if __name__ == "__main__":
    main()
