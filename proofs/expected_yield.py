"""Yield (Proposition 1): the expected number of accepted drafts is the sum of path probabilities over the
nodes.

Setting. Given that a node is accepted, its child v is accepted next with probability q(v). The model emits
one token, and siblings carry different tokens, so the acceptances of siblings are disjoint events and their q
sum to at most 1; with the rest, 1 - sum of q, the walk ends here. P(v) is the product of q along the path to
v, so it is the probability that the walk passes through v.

Statement 1. E[accepted drafts] = sum of P(v) over all nodes but the root; with the bonus token E[tau] = 1 +
that sum. Proof. The number of accepted drafts is the number of nodes (root aside) that the walk passes
through: for each node add 1 if the walk passes through it and 0 if not. The expectation of a sum is the sum
of the expectations, and that of v's summand is P(v).

Statement 2. The paper says that E[tau], for a spine of length L with k_i branches at spine node i, is at
least

    1 + sum_{i=1..L} p_s^i + sum_{i<L} p_s^i (1 - p_s) (1 - (1 - p_t)^k_i) + p_s^L (1 - (1 - p_t)^k_L),

This sum is Statement 1 for one-level branches that are tried in order, each by a coin of its own: branch j =
1, 2, ... of spine node i is the accepted one if the spine breaks there, the coins before it fail and its own
succeeds, so q = (1 - p_s) (1 - p_t)^(j-1) p_t (at the end of the spine, i = L, without the factor 1 - p_s).
These are disjoint events, and over j they add up to (1 - p_s) (1 - (1 - p_t)^k_i). In this model, which is
the paper's, and with branches that have no children, "at least" is always an equality.

Real branches are not coins. They carry different tokens and the model emits one. Write b_i for the true
probability that some branch at node i is right, given that the walk stands there and takes no spine child
(the spine breaks there, or ends). For branches without children E[tau] differs from the formula by the sum
over i of w_i (b_i - 1 + (1 - p_t)^k_i), with w_i = p_s^i (1 - p_s) for i < L and w_L = p_s^L: "at least"
holds exactly if that is not negative. If each branch is right with p_t in that case, then b_i = k_i p_t. (So
k_i p_t <= 1: coins can stand for any number of branches, tokens cannot.) Now

  - k p_t >= 1 - (1 - p_t)^k (Bernoulli's inequality: the chance of a union is at most the sum), strictly if
    k >= 2 and p_t > 0;
  - children of branches only add nodes, and each adds its P >= 0.

So "at least" holds, and it is an equality exactly if no branch has a child that can be accepted and, at every
node where the spine can break or end, k_i <= 1 or p_t = 0. (The spine cannot break at a node i < L if p_s =
1, and no node i > 0 is reached if p_s = 0.) If p_t is read as the chance that a branch is right whether or
not the spine breaks, q is p_t instead of (1 - p_s) p_t, and the true yield is no smaller.

No one q serves for all L: a branch at node i counts p_t (1 - p_s) where the spine goes on and p_t where it
ends, so its q depends on what else was drafted. proofs/best_first.py needs a q that does not.
"""

import itertools
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tree import BRANCH, SPINE, Tree, chain_tree, walk  # noqa: E402


def outcomes(tree: Tree, q: list[Fraction], node: int = 0) -> Iterator[tuple[Fraction, dict[int, int]]]:
    """Every way the model can go on from `node`: (probability, prediction at each node on the way). -1 is a
    token that was not drafted."""
    children = [v for v in range(1, len(tree)) if tree.parents[v] == node]
    yield 1 - sum(q[v] for v in children), {node: -1}
    for v in children:
        for probability, predictions in outcomes(tree, q, v):
            yield q[v] * probability, predictions | {node: tree.tokens[v]}


def expected(tree: Tree, q: list[Fraction]) -> Fraction:
    """E[accepted drafts] by the definition: each outcome's probability times what the walk accepts of it."""
    total, certain = Fraction(0), Fraction(0)
    for probability, predictions in outcomes(tree, q):
        path, _ = walk(tree, [predictions.get(node, -1) for node in range(len(tree))])
        total, certain = total + probability * (len(path) - 1), certain + probability
    assert certain == 1, "the outcomes are not all"
    return total


def sum_of_path_probabilities(tree: Tree, q: list[Fraction]) -> Fraction:
    probability = [Fraction(1)]
    for node in range(1, len(tree)):
        probability.append(probability[tree.parents[node]] * q[node])
    return sum(probability[1:], Fraction(0))


def paper(p_s: Fraction, p_t: Fraction, widths: tuple[int, ...]) -> Fraction:
    """The right side of Proposition 1, less the bonus token; widths are k_0 ... k_L."""
    L, some = len(widths) - 1, [1 - (1 - p_t) ** k for k in widths]
    spine = sum((p_s**i for i in range(1, L + 1)), Fraction(0))
    return spine + sum(p_s**i * (1 - p_s) * some[i] for i in range(L)) + p_s**L * some[L]


def spine_with_branches(
    p_s: Fraction, p_t: Fraction, widths: tuple[int, ...], coins: bool
) -> tuple[Tree, list[Fraction]]:
    """The tree of the formula and its q: where the spine breaks each branch has p_t, or, as coins, p_t times
    the chance that those before it fail."""
    L = len(widths) - 1
    tree = chain_tree(0, range(1, L + 1), SPINE)
    q = [Fraction(1)] + [p_s] * L
    for node, k in enumerate(widths):
        for j in range(k):
            tree.add(node, 100 + j, BRANCH)
            q.append(p_t * (1 - p_s if node < L else 1) * ((1 - p_t) ** j if coins else 1))
    return tree, q


def check() -> dict[str, int]:
    """Statement 1 on every tree of up to 5 nodes; Statement 2, coins and tokens, on a grid."""
    shares = [Fraction(1, 7), Fraction(2, 7), Fraction(3, 7)]
    trees = 0
    for size in range(1, 6):
        for parents in itertools.product(*(range(node) for node in range(1, size))):
            tree = Tree.rooted(0)
            for token, parent in enumerate(parents, 1):
                tree.add(parent, token, BRANCH)
            for values in itertools.product(shares, repeat=size - 1):
                q = [Fraction(1), *values]
                if all(sum(q[v] for v in range(1, size) if tree.parents[v] == n) <= 1 for n in range(size)):
                    trees += 1
                    by_outcomes, by_paths = expected(tree, q), sum_of_path_probabilities(tree, q)
                    assert by_outcomes == by_paths, f"{by_outcomes}, not {by_paths}: {parents}, q {values}"
    formulas = equalities = grown = 0
    rates = [Fraction(0), Fraction(1, 5), Fraction(1, 3)]
    for p_s, p_t in itertools.product([*rates, Fraction(1)], rates):
        for widths in (w for L in range(4) for w in itertools.product(range(4), repeat=L + 1)):
            case, formula, L = f"p_s {p_s}, p_t {p_t}, k {widths}", paper(p_s, p_t, widths), len(widths) - 1
            coins = expected(*spine_with_branches(p_s, p_t, widths, coins=True))
            assert coins == formula, f"coins yield {coins}, the formula {formula}: {case}"
            tree, q = spine_with_branches(p_s, p_t, widths, coins=False)
            exact = expected(tree, q)
            breaks = [i for i in range(L + 1) if (i == 0 or p_s > 0) and (i == L or p_s < 1)]
            tight = p_t == 0 or all(widths[i] <= 1 for i in breaks)
            assert exact >= formula, f"tokens yield {exact}, the formula {formula}: {case}"
            assert (exact == formula) == tight, f"{exact}, {formula}, equality expected {tight}: {case}"
            formulas, equalities = formulas + 1, equalities + tight
            if len(tree) > L + 1 and p_t and p_s not in (0, 1):
                tree.add(len(tree) - 1, 200, BRANCH)  # a child of the last branch
                assert expected(tree, [*q, Fraction(1, 2)]) > exact, f"a child adds nothing: {case}"
                grown += 1
    return {
        "trees": trees,
        "spine formulas": formulas,
        "of them equalities": equalities,
        "grown branches": grown,
    }


def main() -> None:
    started = time.time()
    for what, count in check().items():
        print(f"{what}: {count:,}")
    print(f"yield is the sum of path probabilities; {time.time() - started:.1f} s")


if __name__ == "__main__":
    main()
