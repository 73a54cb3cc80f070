"""Anisotropy (Proposition 3): with p_s > p_t a spine tree beats the balanced tree of the same budget.

Model (the paper's): a node's k transition children are accepted with probability a(k) = 1 - (1 - p_t)^k
together. Where a node has a spine child, that is tried first, with p_s; its branches count where it fails. A
balanced tree has the same k transition children at every node, depth by depth, its last level possibly not
full.

Statement 1. Let B >= 2 (the root and at least one draft), p_s > p_t and p_t < 1. For every balanced tree
there is a spine tree of the same size with a strictly larger expected yield: the same tree with the root's
first child, which has the largest subtree, turned into a spine node (spine length 1, transitions below it and
beside it). Proof. Let Y be what the tree yields if the first child is accepted, that child's 1 included, and
R what it yields if it is not. The root yields f(p) = p Y + (1 - p) R with p = p_t, and the spine tree f(p_s).
Levels are filled from the first node on, so no other child yields more than Y once it is accepted, and one of
the k - 1 others is accepted with probability 1 - (1 - p_t)^(k-1) < 1. Hence R < Y, f grows with p, and f(p_s)
> f(p_t).

Conditions. B = 1: both trees are the root, yields are equal. p_t = 1: then p_s > p_t is impossible. p_t = 0:
the balanced tree yields 0 and the spine p_s > 0. So p_s > p_t and one draft suffice; nothing else is needed.

Statement 2. In Statement 1 transitions grow below the spine node. If the branches of spine trees may not grow
(one level, as in the formula of Proposition 1), the claim is false: for large p_t a deep balanced tree beats
every such spine tree with p_s barely above p_t. The search finds the smallest number of drafts on its grid.

Against the other single source, a context chain of n drafts, the best spine tree with one-level branches is
strictly better exactly if the best single branch beats the chain's last node: max over i < n - 1 of p_s^i (1
- p_s) p_t, or p_s^(n-1) p_t at the new end, is larger than p_s^n. (Each further swap gains less.) With 0 <
p_t and p_s < 1 that holds for every large enough n, since p_s^n tends to 0 and (1 - p_s) p_t does not.

main() works the measured medians, p_s = 0.21, p_t = 0.033, B = 60. One caution: with so small a p_t and no
bound on the width the best balanced tree is the star (k = B - 1), and the table bounds k by K = 10.
"""

import itertools
import time
from fractions import Fraction
from functools import cache


def some(p_t: Fraction, k: int) -> Fraction:
    """The probability that one of k transition children is accepted."""
    return 1 - (1 - p_t) ** k


def balanced(p_t: Fraction, k: int, nodes: int) -> Fraction:
    """Accepted drafts of the balanced tree with `nodes` drafts, filled level by level; the children of a node
    in order, so the nodes of a level that is not full are the first ones."""

    @cache
    def below(first: int) -> Fraction:
        """Yield below node `first` (0 is the root; the children of node n are n k + 1 ... n k + k)."""
        children = [c for c in range(first * k + 1, first * k + k + 1) if c <= nodes]
        value = Fraction(0)
        for c in reversed(children):  # tried in order: a child's turn comes if those before it failed
            value = p_t * (1 + below(c)) + (1 - p_t) * value
        return value

    return below(0)


def one_level(p_s: Fraction, p_t: Fraction, nodes: int) -> tuple[Fraction, tuple[int, ...]]:
    """The best spine tree with `nodes` drafts whose branches do not grow: yield and widths k_0 ... k_L."""
    best = (Fraction(-1), ())
    for L in range(nodes + 1):
        w = [p_s**i * (1 - p_s) for i in range(L)] + [p_s**L]
        widths, value = [0] * (L + 1), sum((p_s**i for i in range(1, L + 1)), Fraction(0))
        for _ in range(nodes - L):
            i = max(range(L + 1), key=lambda i: w[i] * (1 - p_t) ** widths[i])
            value += w[i] * (1 - p_t) ** widths[i] * p_t
            widths[i] += 1
        best = max(best, (value, tuple(widths)))
    return best


def grafted(p_s: Fraction, p_t: Fraction, k: int, nodes: int) -> Fraction:
    """The spine tree of the proof: the balanced tree with the root's first child turned into a spine node."""
    full = balanced(p_t, k, nodes)
    if nodes == 0:
        return full

    @cache
    def below(first: int) -> Fraction:
        value = Fraction(0)
        for c in reversed([c for c in range(first * k + 1, first * k + k + 1) if c <= nodes]):
            p = p_s if c == 1 else p_t
            value = p * (1 + below(c)) + (1 - p) * value
        return value

    return below(0)


def check() -> dict[str, int]:
    """Statement 1 and its conditions, Statement 2, and the context chain, on grids of rational numbers."""
    strict = conditions = chains = 0
    grid = [Fraction(n, 6) for n in range(7)]
    for p_s, p_t, k, nodes in itertools.product(grid, grid, range(1, 5), range(0, 16)):
        if p_s > p_t:
            better = grafted(p_s, p_t, k, nodes) > balanced(p_t, k, nodes)
            assert better == (nodes > 0), (p_s, p_t, k, nodes)
            strict, conditions = strict + better, conditions + (not better)
    for p_s, p_t, nodes in itertools.product(grid[1:6], grid[:5], range(1, 8)):
        chain = sum((p_s**i for i in range(1, nodes + 1)), Fraction(0))
        best, widths = one_level(p_s, p_t, nodes)
        gain = max([p_s**i * (1 - p_s) * p_t for i in range(nodes - 1)] + [p_s ** (nodes - 1) * p_t])
        assert (best > chain) == (gain > p_s**nodes), (p_s, p_t, nodes, widths)
        chains += 1
    assert counterexample() is not None
    return {"strictly better": strict, "equal, as the conditions say": conditions, "context chains": chains}


def counterexample() -> tuple[int, int, Fraction, Fraction] | None:
    """The smallest number of drafts, with k, p_s > p_t, at which no spine tree of one-level branches beats
    balance."""
    for nodes in range(1, 32):
        for k, n in itertools.product(range(1, 4), range(1, 20)):
            p_t, p_s = Fraction(n, 20), Fraction(n, 20) + Fraction(1, 1000)
            if one_level(p_s, p_t, nodes)[0] <= balanced(p_t, k, nodes):
                return nodes, k, p_s, p_t
    return None


def main() -> None:
    started = time.time()
    for what, count in check().items():
        print(f"{what}: {count:,}")
    nodes, k, p_s, p_t = counterexample()
    print(
        f"one-level branches: false, for example {nodes} drafts, k = {k}, p_s = {p_s}, p_t = {p_t}: spine "
        f"{float(one_level(p_s, p_t, nodes)[0]):.4f}, balanced {float(balanced(p_t, k, nodes)):.4f}"
    )
    p_s, p_t, drafts = Fraction(21, 100), Fraction(33, 1000), 59
    value, widths = one_level(p_s, p_t, drafts)
    flat = {k: float(balanced(p_t, k, drafts)) for k in (1, 3, 5, 10, drafts)}
    print(
        f"medians p_s = 0.21, p_t = 0.033, B = 60: tau of the best spine tree 1 + {float(value):.3f}, "
        f"widths {widths}"
    )
    print("    balanced, by k: " + ", ".join(f"{k}: 1 + {v:.3f}" for k, v in flat.items()))
    print(f"{time.time() - started:.1f} s")


if __name__ == "__main__":
    main()
