"""Anisotropy (Proposition 3): with p_s > p_t the best spine tree beats the best balanced tree of one source.

The trees. A balanced tree is filled level by level with k transitions under every node, its last level
possibly not full; the best one is over all k. Its one source is the transitions, so every node has p_t. (A
balanced tree of the context source would be a chain, since a match proposes one token a node: the case of
proofs/best_first.py.) A spine tree has a chain of L >= 1 context nodes from the root (none if B = 1); every
other node is a transition and may hang below any node. In both, no node has more than K children.

The model (the paper's, "coins"). Children are tried in order, the spine child first, each with a coin of its
own, until one is accepted: the spine child with p_s, a transition with p_t. So k transitions carry on with
probability 1 - (1 - p_t)^k.

Statement 1. Let p_s > p_t and at least one draft (B >= 2). Then the best spine tree yields strictly more than
the best tree of transitions, balanced or not, with the same B and K. Proof. Take a best tree of transitions
that has a draft (nodes never lower the yield). Let the child of the root with the largest Y be tried first, Y
being what the tree yields once that child is accepted, its own 1 included. This order never yields less: of
two neighbours with Y and Y', trying the one with Y first gains p_t^2 (Y - Y'). Let R be what the tree yields
if it fails. The tree yields f(p) = p Y + (1 - p) R at p = p_t. Turn that child into a spine node: the yield
is f(p_s). Once the first of k children has failed, another is accepted with probability 1 - (1 - p_t)^(k - 1)
< 1, and then yields at most Y. So R < Y, f grows with p, and f(p_s) > f(p_t).

Statement 2 (p_s > p_t is needed). If p_s <= p_t, no spine tree yields more than the best tree of transitions.
Proof. From the deepest spine node up, Y and R now being those at its parent: if Y >= R, replacing p_s by p_t
does not lower the yield; if Y < R, dropping the child with all below it does not. Either way a spine node is
gone.

Conditions, by search over p_s and p_t in [0, 1]: without drafts (B = 1) both trees are the root, and equal;
p_t = 0 is no exception, the transitions then yield 0. Nothing but p_s > p_t and one draft is needed here.

What does not hold as stated.
(a) If the branches of spine trees may not grow (one level, as in the formula of Proposition 1), a deep
balanced tree can win: 7 drafts, k = 3, p_t = 2/5, p_s = 401/1000 (the fewest drafts on the grid searched).
(b) Siblings carry different tokens, so in truth their acceptances are disjoint. Let k transitions carry on
with probability k p_t, those beside a spine child being tried only where that fails, as in
proofs/expected_yield.py. Then two transitions with p_t = 1/2 are certain to yield 1, while with p_s = 3/5 a
chain of two yields 3/5 + 9/25 = 24/25, a spine node with a branch beside it 3/5 + 2/5 x 1/2 = 4/5, and one
with a branch below it 3/5 x 3/2 = 9/10: p_s > p_t is not
enough. The nearest true claim: p_s - p_t > p_s p_t (k - 1) is enough, k being the number of the root's
children in a best tree of transitions. Proof. The swap of Statement 1 gains (p_s - p_t) Y and lowers the
probability of the k - 1 others, none of which yields more than Y, from p_t to (1 - p_s) p_t.

main() works the measured medians, p_s = 0.21, p_t = 0.033, B = 60: with K = 3 and K = 10 for all trees, and
without a bound, where the best balanced tree is the star and a spine has little to add."""

import itertools
import time
from fractions import Fraction
from functools import cache

COINS, DISJOINT = "coins", "disjoint"


def balanced(p_t: Fraction, k: int, drafts: int, first: Fraction | None = None) -> Fraction:
    """Accepted drafts of a balanced tree in the coin model. With `first` the root's first child is a spine
    node, accepted with that probability."""

    def below(node: int) -> Fraction:
        """Yield below a node; 0 is the root, and the children of node n are n k + 1 ... n k + k."""
        result = Fraction(0)
        for child in reversed(range(node * k + 1, min(node * k + k, drafts) + 1)):
            p = p_t if first is None or child > 1 else first
            result = p * (1 + below(child)) + (1 - p) * result
        return result

    return below(0)


def best_trees(
    p_s: Fraction, p_t: Fraction, K: int, drafts: int, model: str = COINS, grow: bool = True
) -> tuple[Fraction, int, Fraction]:
    """The largest yield of all trees of transitions, with the number of its root's children, and the largest
    of all spine trees. grow: whether transitions may have children.

    By dynamic programming: the first child is drafted with m nodes below it, the other children get the rest.
    """
    room_of = K if model == COINS or not p_t else min(K, int(1 / p_t))  # disjoint: k p_t is at most 1
    otherwise = 1 - p_t if model == COINS else 1  # of two disjoint tokens neither waits for the other

    @cache
    def transitions(n: int, room: int) -> tuple[Fraction, int]:
        """n nodes below a node that has room for so many children."""
        best = (Fraction(0), 0)
        for m in range(n if grow else min(n, 1)) if room else ():
            rest, others = transitions(n - 1 - m, room - 1)
            growth = transitions(m, room_of)[0] if m else 0
            best = max(best, (p_t * (1 + growth) + otherwise * rest, 1 + others))
        return best

    @cache
    def spine(n: int) -> Fraction:
        """n nodes below a spine node or the root, the first of them its spine child."""
        return max(
            (
                p_s * (1 + max(spine(m), transitions(m, room_of)[0]))
                + (1 - p_s) * transitions(n - 1 - m, min(room_of, K - 1))[0]
                for m in range(n)
            ),
            default=Fraction(0),
        )

    return *transitions(drafts, room_of), spine(drafts)


def one_level_loses() -> tuple[int, int, Fraction, Fraction] | None:
    """(a): the fewest drafts on a grid, with k, p_s and p_t, where spine trees whose branches do not grow
    yield less than a balanced tree."""
    for drafts, k, n in itertools.product(range(1, 16), range(1, 4), range(1, 20)):
        p_t, p_s = Fraction(n, 20), Fraction(n, 20) + Fraction(1, 1000)
        if best_trees(p_s, p_t, drafts + 1, drafts, grow=False)[2] < balanced(p_t, k, drafts):
            return drafts, k, p_s, p_t
    return None


def check() -> dict[str, int]:
    """All statements on grids: p_s and p_t in sixths (disjoint: in tenths), up to 8 drafts, up to K = 4."""
    strict = equal = not_above = 0
    grid = [Fraction(n, 6) for n in range(7)]
    for p_s, p_t, K, drafts in itertools.product(grid, grid, range(1, 5), range(9)):
        case = f"p_s {p_s}, p_t {p_t}, K {K}, {drafts} drafts"
        transitions, _, ours = best_trees(p_s, p_t, K, drafts)
        flat = max(balanced(p_t, k, drafts) for k in range(1, K + 1))
        assert flat <= transitions, f"a balanced tree above the best tree of transitions: {case}"
        if p_s <= p_t:
            assert ours <= transitions, f"a spine helps although p_s <= p_t: {case}"
            not_above += 1
            continue
        for k in range(1, K + 1):
            swapped = balanced(p_t, k, drafts, p_s)
            assert swapped <= ours, f"the swap is no spine tree: k {k}, {case}"
            assert (swapped > balanced(p_t, k, drafts)) == (drafts > 0), f"the swap: k {k}, {case}"
        assert (ours > transitions) == (drafts > 0), f"spine {ours}, transitions {transitions}: {case}"
        strict, equal = strict + (drafts > 0), equal + (drafts == 0)
    promises = failures = 0
    grid = [Fraction(n, 10) for n in range(1, 10)]
    for p_s, p_t, K, drafts in itertools.product(grid, grid, range(1, 5), range(1, 9)):
        if p_s > p_t:
            transitions, k, ours = best_trees(p_s, p_t, K, drafts, DISJOINT)
            promised = p_s - p_t > p_s * p_t * (k - 1)
            assert ours > transitions or not promised, f"p_s {p_s}, p_t {p_t}, K {K}, {drafts} drafts, k {k}"
            promises, failures = promises + promised, failures + (ours <= transitions)
    example = best_trees(Fraction(3, 5), Fraction(1, 2), 2, 2, DISJOINT)
    assert example == (1, 2, Fraction(24, 25)), f"(b): {example}"
    assert one_level_loses() == (7, 3, Fraction(401, 1000), Fraction(2, 5)), f"(a): {one_level_loses()}"
    return {
        "strictly better": strict,
        "equal without drafts": equal,
        "not better for p_s <= p_t": not_above,
        "disjoint, strict as promised": promises,
        "disjoint, strictness fails": failures,
    }


def main() -> None:
    started = time.time()
    for what, count in check().items():
        print(f"{what}: {count:,}")
    drafts, k, p_s, p_t = one_level_loses()
    ours, flat = best_trees(p_s, p_t, drafts + 1, drafts, grow=False)[2], balanced(p_t, k, drafts)
    print(f"(a) one-level branches, {drafts} drafts, k = {k}, p_s = {p_s}, p_t = {p_t}:", end=" ")
    print(f"spine {float(ours):.4f}, balanced {float(flat):.4f}")
    print("\nmedians p_s = 0.21, p_t = 0.033, B = 60, coin model: E[tau] of the best of each kind")
    for K in (3, 10, 59):
        flat, k = max((balanced(0.033, k, 59), k) for k in range(1, K + 1))
        transitions, _, ours = best_trees(0.21, 0.033, K, 59)
        print(f"  at most {K:2} children: balanced {1 + flat:.3f} (k = {k}),", end=" ")
        print(f"transitions of any shape {1 + transitions:.3f}, spine tree {1 + ours:.3f}", end=" ")
        print(f"({(1 + ours) / (1 + flat) - 1:+.1%})")
    print(f"\n{time.time() - started:.1f} s")


if __name__ == "__main__":
    main()
