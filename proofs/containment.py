"""Containment: a tree that contains another accepts at least as many tokens, step by step; and why no tree
without room for both sources' trees can do that for both.

Setting. Siblings carry different tokens (all builders see to that, if a source names no token twice). The
continuation t1 t2 ... is what the model goes on with. A path of a tree is the list of tokens from below the
root down to one of its nodes. Tree T contains tree U if every path of U is a path of T.

Statement 1. T accepts at least as many tokens as U of every continuation if and only if T contains U.

Proof. The walk goes from a node to the child that carries the next token, and there is at most one such
child. So of t1 t2 ... a tree accepts the longest prefix that is one of its paths. If T contains U: a prefix
that U accepts is a path of U, so a path of T, so T accepts at least that many. If T does not contain U: some
path of U is no path of T; let the model go on with exactly that path. U accepts all of it, T less. No
probability was used.

Consequence. A spine tree contains its own spine, a chain, and its own branches at the root with what grows
below them, a transition tree. At every single step it accepts at least as many tokens as either: the paper's
bound, exact, for the parts that the tree contains.

Distinct siblings are needed. With two children of the same token the walk takes the first; if U is the tree
without the first, U may accept more. The check holds such a pair.

Statement 2 ("at the same budget, at every step at least what either source alone accepts") is false, and not
only for Algorithm 1. Let C be the chain and R the transition tree that the sources make when each has the
whole budget. By Statement 1 a tree is never worse than either exactly if it contains both. So a tree with
fewer nodes than C and R have together (counting a path of both once) is worse than one of them at some
continuation, however it was built. With one draft to spend and two sources that name different tokens it is
plain: one of the two is left out. The search finds just that for Algorithm 1, in both directions. What does
hold at equal budget is Proposition 4: in expectation, for the best allocation (proofs/best_first.py).

Statement 3 (nearest to it for the deployed rule). With the paper's constants (B = 60, growing with the
confidence to 100) the spine takes the whole copy of up to 20 tokens, whatever its length, the consensus and
the acceptance average. So at every step at which Algorithm 2 builds a tree (the table knows a successor of
the anchor) it accepts at least what prompt lookup would with its 20 tokens of the same match. Where the table
knows none it verifies just that chain, and the same holds. Proof: by Statement 1, and by going through all
cases. The confidence is what does it: with confidence switched off a chain of 20 is cut to int(60 x 0.15) = 9
once the average is under 0.2, with it the chain of 20 has confidence 0.9, and the spine may have int(96 x
0.915) = 87 nodes. A chain that extension has made longer may be cut."""

import itertools
import operator
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from sources import AcceptanceAverage, Match, confidence_of  # noqa: E402
from tree import BRANCH, Tree, chain_tree, spine_tree, walk  # noqa: E402

DRAFTED, NEVER_DRAFTED, NODES = (0, 1), 2, 6
AVERAGES = (0.5, 0.3, 0.1)  # one acceptance average of each tier


def accepted(tree: Tree, continuation: tuple[int, ...]) -> int:
    """Drafts that the walk accepts when the model goes on with `continuation` (and then with no drafted
    token)."""
    predictions = [continuation[d] if d < len(continuation) else -1 for d in tree.depths]
    return len(walk(tree, predictions)[0]) - 1


def tree_of(paths: frozenset[tuple[int, ...]]) -> Tree:
    """The tree with these paths; a set closed under dropping the last token."""
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
            for token in DRAFTED
            if parent + (token,) not in paths
        }
        found = found | layer
    return found


class OneSuccessor:
    """A table that proposes the same token after every other. An empty table would not do: without a
    successor of the anchor Algorithm 2 builds no tree."""

    TOKEN = 0

    def successors(self, token: int, before: int | None) -> tuple[tuple[int, float], ...]:
        return ((self.TOKEN, 1.0),)


def counterexample(right: str) -> dict:
    """The smallest budget, then the shortest chain, at which Algorithm 1 accepts less than the source that is
    right alone does with all of the budget: "chain" or "table"."""
    table = OneSuccessor()
    for budget in range(2, 20):
        for length, average in itertools.product(range(1, budget), AVERAGES):
            chain = tuple(range(1, length + 1))
            share = AcceptanceAverage(average).spine_share(confidence_of(Match(chain)))
            tree = spine_tree(0, None, chain, table, budget, min(length, int(budget * share)))
            if right == "chain":
                alone, continuation = chain_tree(0, chain), chain
            else:
                alone, continuation = spine_tree(0, None, (), table, budget, 0), (table.TOKEN,) * budget
            ours, theirs = accepted(tree, continuation), accepted(alone, continuation)
            if ours < theirs:
                return {
                    "budget": budget,
                    "chain": length,
                    "average": average,
                    "share": round(share, 4),
                    "Algorithm 1 accepts": ours,
                    f"the {right} alone": theirs,
                }
    raise AssertionError("no counterexample up to 20 nodes: Statement 2 holds after all")


def deployed_spine(length: int, consensus: bool, average: float, with_confidence: bool = True) -> int:
    """Spine nodes of a copy of this length by the paper's constants, B = 60 and at most 100, unextended.
    That the program's own trees hold such copies is a test (tests/test_bound.py)."""
    match = Match(tuple(range(length)), consensus)
    confidence = confidence_of(match) if with_confidence else 0.0
    budget = 60 + int(confidence * (100 - 60))
    return min(length, int(budget * AcceptanceAverage(average).spine_share(confidence)))


def check() -> dict[str, int]:
    """All pairs of trees and all continuations; both counterexamples; all copies by the paper's constants."""
    trees = {paths: tree_of(paths) for paths in all_path_sets(NODES)}
    continuations = list(itertools.product((*DRAFTED, NEVER_DRAFTED), repeat=NODES))
    score = {paths: [accepted(tree, c) for c in continuations] for paths, tree in trees.items()}
    containing = 0
    for large, small in itertools.product(trees, repeat=2):
        never_less = all(map(operator.ge, score[large], score[small]))
        assert never_less == (small <= large), (
            f"{set(large)} {'never accepts' if never_less else 'accepts'} less than {set(small)}"
        )
        containing += never_less

    twins = Tree.rooted(-1)
    twins.add(0, 0, BRANCH)
    twins.add(twins.add(0, 0, BRANCH), 1, BRANCH)
    assert accepted(twins, (0, 1)) < accepted(tree_of(frozenset({(0,), (0, 1)})), (0, 1)), "equal siblings"

    for right in ("chain", "table"):
        assert counterexample(right)["budget"] == 2, f"not the smallest: {counterexample(right)}"

    copies = 0
    for length, consensus, average in itertools.product(range(1, 21), (False, True), AVERAGES):
        spine = deployed_spine(length, consensus, average)
        assert spine == length, f"{length} tokens, consensus {consensus}, average {average}: spine of {spine}"
        copies += 1
    assert deployed_spine(20, False, 0.1, with_confidence=False) == 9
    return {
        "trees": len(trees),
        "pairs": len(trees) ** 2,
        "pairs that contain": containing,
        "continuations of each": len(continuations),
        "copies by the paper's constants": copies,
    }


def main() -> None:
    started = time.time()
    for what, count in check().items():
        print(f"{what}: {count:,}")
    print("exactly a containing tree never accepts less")
    for right in ("chain", "table"):
        print(f"same budget, per step: false, for example where the {right} is right:", counterexample(right))
    print(f"{time.time() - started:.1f} s")


if __name__ == "__main__":
    main()
