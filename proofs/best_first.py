"""Best first is optimal, and with it Proposition 4: at least as many tokens in expectation as either source
alone.

Setting. Every possible node v has finitely many candidates for its children, each with a probability q of
being accepted given that v is. P(v) is the product of q along the path. By proofs/expected_yield.py a tree's
expected yield is the sum of P over its nodes (the root's P = 1 stands for the bonus token).

Statement 1. Best first starts with the root and takes, again and again, the node with the largest P among the
candidates of the nodes already taken. After B nodes no tree of B nodes over the same candidates has a larger
expected yield.

Proof. Every q is at most 1, so P(child) <= P(parent). Order all nodes by falling P, parents before children
where they are equal, and let S be the first B of them (all of them if there are fewer). With a node its
parent is in S: S is a tree. A tree of B nodes has the sum of B values of P, so at most the sum of the B
largest, which S has. Best first takes such nodes: of the nodes not yet taken let v be one with the largest P,
and u the topmost node on the way to v that is not taken. u's parent is taken, so u is a candidate, and
P(u) >= P(v); so the best candidate attains the largest P of all nodes not yet taken. After B steps the
taken values of P are the B largest.

Seen as an exchange: if some candidate of a tree has a larger P than one of the tree's leaves, putting it in
the leaf's place gains the difference, and the result is a tree (the leaf is not the candidate's parent,
whose P is no smaller).

Statement 2 (Proposition 4). For every budget B the best tree over both sources' candidates yields in
expectation at least what the context chain alone and the transition tree alone yield, each with all of B.
Proof. Both are trees of at most B nodes over the same candidates; apply Statement 1 (adding nodes never
lowers the sum).

What this needs: one q for a candidate, the same whatever else is in the tree. In truth that is so, since
q(v) is about the model's next token. It is not so in the paper's formula, where a branch counts for less
beside a spine token; there Proposition 4 is about a family that contains both sources' trees, and a maximum
over a family is at least each member. Where q is an estimate, all of this is about the estimated yield.
"""

import itertools
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tree import BRANCH, Tree, best_first_tree  # noqa: E402

Path_ = tuple[int, ...]
Candidates = dict[Path_, tuple[Fraction, ...]]  # path of a node -> q of its children with tokens 0, 1, ...

QUARTERS = [(Fraction(a, 4), Fraction(b, 4)) for a in range(5) for b in range(5 - a)]  # all pairs of siblings
FEW = [(Fraction(1, 2), Fraction(1, 2)), (Fraction(1, 3), Fraction(2, 3)), (Fraction(0), Fraction(1))]
LEVELS = [(2, QUARTERS, 7), (3, FEW, 5)]  # levels below the root, q of two siblings, largest budget


def subtrees(candidates: Candidates, size: int) -> Iterator[frozenset[Path_]]:
    """Every tree of `size` nodes over the candidates, as its set of paths with the root's ()."""
    layer = {frozenset([()])}
    for _ in range(size - 1):
        layer = {
            tree | {node + (token,)}
            for tree in layer
            for node in tree
            for token in range(len(candidates.get(node, ())))
            if node + (token,) not in tree
        }
    return iter(layer)


def probability(candidates: Candidates, path: Path_) -> Fraction:
    result = Fraction(1)
    for depth, token in enumerate(path):
        result *= candidates[path[:depth]][token]
    return result


def best(candidates: Candidates, budget: int) -> tuple[Tree, Fraction]:
    """The repository's best-first tree and its expected yield, which is recomputed here: what the builder
    itself reports is only checked."""

    def offers(tree: Tree, node: int) -> list[tuple[int, str, Fraction]]:
        found = enumerate(candidates.get(tuple(tree.path_to(node)), ()))
        return sorted(((token, BRANCH, q) for token, q in found), key=lambda offer: -offer[2])

    tree, probabilities = best_first_tree(0, offers, budget)
    paths = [tuple(tree.path_to(node)) for node in range(len(tree))]
    assert len(set(paths)) == len(paths), f"a node was taken twice: {tree}"
    truth = [probability(candidates, path) for path in paths]
    assert truth == probabilities, f"{tree} reports {probabilities}, not {truth}"
    return tree, sum(truth, Fraction(0))


def check() -> dict[str, int]:
    """Statement 1: all candidate trees of LEVELS, all budgets, all trees. Statement 2: one spine and one
    table of two successors, over a grid of p_s and p_t."""
    optimal = trees = 0
    for levels, pairs, most in LEVELS:
        inner = [path for n in range(levels) for path in itertools.product(range(2), repeat=n)]
        two_each = dict.fromkeys(inner, pairs[0])
        shapes = {budget: list(subtrees(two_each, budget)) for budget in range(1, most + 1)}
        for choice in itertools.product(pairs, repeat=len(inner)):
            candidates: Candidates = dict(zip(inner, choice, strict=True))
            P = {(): Fraction(1)}
            for node in inner:
                P |= {node + (token,): P[node] * q for token, q in enumerate(candidates[node])}
            for budget in range(1, most + 1):
                tree, ours = best(candidates, budget)
                assert len(tree) <= budget, f"budget {budget}: {tree}"
                for other in shapes[budget]:
                    theirs = sum(P[path] for path in other)
                    assert ours >= theirs, (
                        f"budget {budget}: {set(other)} yields {theirs}, best first {ours}, {candidates}"
                    )
                optimal, trees = optimal + 1, trees + len(shapes[budget])

    bounds = 0
    grid = [Fraction(n, 5) for n in range(6)]
    for p_s, p_t in itertools.product(grid, repeat=2):
        if p_s + 2 * p_t * (1 - p_s) > 1 or 2 * p_t > 1:
            continue
        # token 0 continues the context along the spine, tokens 1 and 2 are the table's; off the spine only
        # those
        both: Candidates = {}
        for path in (p for n in range(4) for p in itertools.product(range(3), repeat=n)):
            on_spine = not any(path)
            share = p_t * (1 - p_s) if on_spine else p_t
            both[path] = (p_s if on_spine else Fraction(0), share, share)
        for budget in range(1, 10):
            _, ours = best(both, budget)
            chain = sum((p_s**i for i in range(min(budget, 5))), Fraction(0))
            only = {path: (Fraction(0), *q[1:]) for path, q in both.items()}
            assert ours >= chain and ours >= best(only, budget)[1], (p_s, p_t, budget)
            bounds += 1
    return {"candidate sets and budgets": optimal, "trees compared": trees, "bounds of Proposition 4": bounds}


def main() -> None:
    started = time.time()
    for what, count in check().items():
        print(f"{what}: {count:,}")
    print(f"no tree beat best first; {time.time() - started:.1f} s")


if __name__ == "__main__":
    main()
