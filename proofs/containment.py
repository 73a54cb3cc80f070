"""Containment: a tree that contains another accepts at least as many tokens, step by step; and what that does
not say.

Statement 1. Let siblings carry different tokens (all builders see to that), and let tree T contain tree U:
both have the same root, and every path of tokens in U is a path in T. Then for every continuation that the
model may produce, T accepts at least as many tokens as U.

Proof. What a tree with distinct siblings accepts of a continuation t1 t2 ... is the longest prefix t1 ... td
that is a path of the tree: the walk goes from a node to the child that carries the next token, and there is
at most one. If U accepts t1 ... td, that is a path of U, so a path of T, so T accepts at least d tokens. No
probability was used.

Consequence. A spine tree contains its spine, a chain, and the branches at its root with all that grows on
them, a transition tree. At every single step it accepts at least as many tokens as either of these: the
paper's bound, exact, for the parts that it contains.

Distinct siblings are needed. With two children of the same token the walk takes the first; if U is the tree
without the first, U may accept more. The check holds such a pair.

Statement 2 (false). "At the same budget Algorithm 1 accepts, at every step, at least what the context chain
alone accepts." Algorithm 1 gives the spine int(budget x r) nodes, r = r0 + confidence (1 - r0), where r0 is
0.15, 0.30 or 0.50 by the running acceptance average. The chain alone gets the whole budget. If the chain is
right where the spine was cut, the chain alone accepts more. The search below finds the smallest budget at
which that happens. What does hold at equal budget is Proposition 4: in expectation, for the best allocation
(proofs/best_first.py).
"""

import itertools
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from sources import AcceptanceAverage, Match, confidence_of  # noqa: E402
from tree import BRANCH, Tree, chain_tree, spine_tree, walk  # noqa: E402

ALPHABET, NODES = (0, 1), 6


def accepted(tree: Tree, continuation: tuple[int, ...]) -> int:
    """Drafts that the walk accepts when the model goes on with `continuation` (and then with no drafted
    token)."""
    predictions = [continuation[d] if d < len(continuation) else -1 for d in tree.depths]
    return len(walk(tree, predictions)[0]) - 1


def tree_of(paths: frozenset[tuple[int, ...]]) -> Tree:
    """The tree with these paths of tokens below the root; a set closed under dropping the last token."""
    tree, number = Tree.rooted(-1), {(): 0}
    for path in sorted(paths, key=lambda path: (len(path), path)):
        number[path] = tree.add(number[path[:-1]], path[-1], BRANCH)
    return tree


def all_path_sets(nodes: int) -> set[frozenset[tuple[int, ...]]]:
    """The path sets of all trees with distinct siblings and at most `nodes` nodes besides the root."""
    found = layer = {frozenset()}
    for _ in range(nodes):
        layer = {
            paths | {parent + (token,)}
            for paths in layer
            for parent in (*paths, ())
            for token in ALPHABET
            if parent + (token,) not in paths
        }
        found = found | layer
    return found


class Wrong:
    """A table that proposes one token, never right here. An empty table would not do: without a successor of
    the anchor Algorithm 2 verifies the plain chain and builds no tree."""

    def successors(self, token: int, before: int | None) -> tuple[tuple[int, float], ...]:
        return ((-2, 1.0),)


def counterexample() -> dict:
    """The smallest budget, then the shortest right chain, at which Algorithm 1 accepts less than the chain
    alone."""
    for budget in itertools.count(2):
        for length in range(1, budget):
            for average in (0.5, 0.3, 0.1):
                chain = list(range(1, length + 1))
                confidence = confidence_of(Match(tuple(chain)))
                share = AcceptanceAverage(average).spine_share(confidence)
                tree = spine_tree(0, None, chain, Wrong(), budget, min(length, int(budget * share)))
                ours, alone = accepted(tree, tuple(chain)), accepted(chain_tree(0, chain), tuple(chain))
                if ours < alone:
                    return {
                        "budget": budget,
                        "chain": length,
                        "average": average,
                        "share": round(share, 4),
                        "Algorithm 1 accepts": ours,
                        "the chain alone": alone,
                    }


def check() -> dict[str, int]:
    """All pairs of trees, one containing the other, and all continuations; both counterexamples."""
    trees = {paths: tree_of(paths) for paths in all_path_sets(NODES)}
    continuations = list(itertools.product(ALPHABET, repeat=NODES))
    score = {paths: [accepted(tree, c) for c in continuations] for paths, tree in trees.items()}
    pairs = 0
    for large, small in itertools.product(trees, trees):
        if small <= large:
            pairs += 1
            for i, (more, less) in enumerate(zip(score[large], score[small], strict=True)):
                assert more >= less, f"{set(large)} accepts less than {set(small)} of {continuations[i]}"

    twins = Tree.rooted(-1)
    twins.add(0, 0, BRANCH)
    twins.add(twins.add(0, 0, BRANCH), 1, BRANCH)
    assert accepted(twins, (0, 1)) < accepted(tree_of(frozenset({(0,), (0, 1)})), (0, 1)), "equal siblings"

    found = counterexample()
    assert found["Algorithm 1 accepts"] < found["the chain alone"]
    return {"trees": len(trees), "pairs": pairs, "comparisons": pairs * len(continuations)}


def main() -> None:
    started = time.time()
    for what, count in check().items():
        print(f"{what}: {count:,}")
    print("a containing tree never accepted less")
    print("same budget, per step: false, for example", counterexample())
    print(f"{time.time() - started:.1f} s")


if __name__ == "__main__":
    main()
