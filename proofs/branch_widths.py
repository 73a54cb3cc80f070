"""Widths (Proposition 2): how many branches each spine node should get, and what the deployed 1/i rule costs.

Setting. In the paper's model the branches at spine node i add w_i (1 - x^k_i) to the yield, where x = 1 - p_t
and w_i is the probability that the walk leaves the spine at node i: w_i = p_s^i (1 - p_s) for i < L and w_L =
p_s^L. With k_0 + ... + k_L = b fixed, the best widths maximise the sum. Let 0 < p_s < 1 and 0 < p_t < 1; at
p_t = 0 every allocation is worth 0.

Statement 1. Branch number k at node i gains g_i(k) = w_i x^(k-1) p_t. An allocation is best if and only if
some number lambda separates what it took from what it left: g_i(k_i + 1) <= lambda for every node i, and
g_i(k_i) >= lambda for every node with k_i >= 1.

Proof. At every node the gains fall with k, so the first k_i are node i's largest. If lambda exists, the b
gains taken are b largest of all gains, and no b gains sum to more. If none exists, some gain taken is smaller
than some gain left; moving that branch raises the sum.

Statement 2 (the line, in whole numbers). Solve g_i(k) = lambda for real k - 1: it is l_i = ln(w_i p_t /
lambda) / -ln x. Statement 1 says l_i <= k_i, and k_i <= l_i + 1 where k_i >= 1: the widths are l_i rounded up
(at a tie possibly one more), or 0 where l_i is below 0. For i < L, ln w_i = ln(1 - p_s) + i ln p_s, so l_i is
affine in i with slope ln p_s / -ln x < 0: the paper's Lagrange condition. Without logarithms, for neighbours
before the end of the spine (i + 1 < L) with k_(i+1) >= 1: x^(k_i - k_(i+1) - 1) >= p_s >= x^(k_i - k_(i+1) +
1), that is, the step k_i - k_(i+1) is within 1 of s = ln p_s / ln x. (From g_i(k_i) >= lambda >=
g_(i+1)(k_(i+1) + 1), and the same with i and i + 1 exchanged; k_i >= 1 too, since w_i > w_(i+1).)

What does not hold as stated. "The best k_i fall with depth" is false at the last node: its weight is p_s^L,
not p_s^L (1 - p_s), so its line lies higher by ln(1 - p_s) / ln x. The smallest counterexample is L = 1 and
one branch with p_s > 1/2: the best widths are 0, 1. What is true: before the end the widths never rise (else
g_(i+1)(k_(i+1)) < g_i(k_i + 1), though the first was taken and the second left); and for L >= 1 some best
allocation never rises at all, whatever b is, if and only if p_s <= 1/2. (Then w_(L-1) >= w_L. If p_s >
1/2, node L gets its first branch before node L - 1 does.)

How steep the line is. At the medians p_s = 0.21, p_t = 0.033 a step is s = 46.5 branches: of the 50 that B =
60 leaves beside a spine of 9, the root gets 48, the first spine node 2 and the others none.

The 1/i rule. Algorithm 1 gives the root half of b and nodes 1 ... L shares proportional to 1/i. It needs no
estimate of p_s or p_t. Before rounding they fall like 1/i: beside the line they have a tail where the line is
0, and no rise at the end. It is neither always better nor always worse than an even split; main() prints what
both lose."""

import itertools
import time
from collections.abc import Iterator
from fractions import Fraction

Widths = tuple[int, ...]
THIRD, HALF = Fraction(1, 3), Fraction(1, 2)
SPINE_RATES = (Fraction(1, 5), THIRD, HALF, Fraction(2, 3), Fraction(4, 5))
BRANCH_RATES = (Fraction(1, 30), Fraction(1, 6), HALF)
LENGTHS, BUDGETS = range(1, 4), range(1, 9)


def weights(p_s: Fraction, L: int) -> list[Fraction]:
    """The probability that the walk leaves the spine at node 0 ... L."""
    return [p_s**i * (1 - p_s) for i in range(L)] + [p_s**L]


def value(w: list[Fraction], x: Fraction, widths: Widths) -> Fraction:
    """What branches of these widths add to the expected yield."""
    return sum((w_i * (1 - x**k) for w_i, k in zip(w, widths, strict=True)), Fraction(0))


def allocations(nodes: int, b: int) -> Iterator[Widths]:
    """Every way to split b branches over the nodes."""
    if nodes == 1:
        yield (b,)
        return
    for k in range(b + 1):
        yield from ((k, *rest) for rest in allocations(nodes - 1, b - k))


def best_by_dynamic_programming(w: list[Fraction], x: Fraction, b: int) -> tuple[Fraction, Widths]:
    """The largest value over all ways to split b branches, node by node."""
    table = {0: (Fraction(0), ())}  # branches used so far -> the best value with them, and its widths
    for w_i in w:
        longer: dict[int, tuple[Fraction, Widths]] = {}
        for used, (so_far, widths) in table.items():
            for k in range(b - used + 1):
                candidate = (so_far + w_i * (1 - x**k), (*widths, k))
                longer[used + k] = max(longer.get(used + k, candidate), candidate)
        table = longer
    return table[b]


def on_the_line(w: list[Fraction], x: Fraction, widths: Widths) -> bool:
    """Whether some lambda separates the gains taken from the gains left (p_t is in all, and cancels)."""
    left = max(w_i * x**k for w_i, k in zip(w, widths, strict=True))
    return all(w_i * x ** (k - 1) >= left for w_i, k in zip(w, widths, strict=True) if k)


def harmonic(L: int, b: int) -> Widths:
    """Algorithm 1, steps 2 to 4 with rho = 1/2. What rounding down leaves over goes to the first spine nodes,
    one each, so that all of b is compared (Algorithm 1 spends it below the branches)."""
    share = max(1, b // 2)
    total, left, widths = sum(Fraction(1, i) for i in range(1, L + 1)), share, []
    for i in range(1, L + 1):
        widths.append(min(max(1, int(share / i / total)), left))
        left -= widths[-1]
    return (b - share, *(k + (i < left) for i, k in enumerate(widths)))


def even(L: int, b: int) -> Widths:
    return tuple(b // (L + 1) + (i < b % (L + 1)) for i in range(L + 1))


def check() -> dict[str, int]:
    """Both statements, and where the widths fall, on every allocation over a grid."""
    compared = optima = neighbours = rule_wins = even_wins = 0
    rising = set()
    for p_s, p_t, L, b in itertools.product(SPINE_RATES, BRANCH_RATES, LENGTHS, BUDGETS):
        case, w, x = f"p_s {p_s}, p_t {p_t}, L {L}, b {b}", weights(p_s, L), 1 - p_t
        falls, (top, found) = False, best_by_dynamic_programming(w, x, b)
        assert sum(found) == b and value(w, x, found) == top, f"dynamic programming: {found}, {case}"
        for widths in allocations(L + 1, b):
            best = value(w, x, widths) == top
            assert value(w, x, widths) <= top, f"better than the best: {widths}, {case}"
            assert best == on_the_line(w, x, widths), f"best {best}, but not so on the line: {widths}, {case}"
            compared += 1
            if not best:
                continue
            optima += 1
            falls = falls or list(widths) == sorted(widths, reverse=True)
            for k, following in itertools.pairwise(widths[:-1]):
                assert k >= following, f"rises below the end: {widths}, {case}"
                if following:
                    step = k - following
                    assert x ** (step - 1) >= p_s >= x ** (step + 1), f"step {step}: {widths}, {case}"
                    neighbours += 1
        assert falls or p_s > HALF, f"no best allocation falls: {case}"
        assert not falls or (L, b) != (1, 1) or p_s <= HALF, f"no counterexample at its smallest: {case}"
        if not falls:
            rising.add((p_s, p_t, L))
        rule, split = (value(w, x, widths) for widths in (harmonic(L, b), even(L, b)))
        rule_wins, even_wins = rule_wins + (rule > split), even_wins + (rule < split)
    expected = set(itertools.product([p_s for p_s in SPINE_RATES if p_s > HALF], BRANCH_RATES, LENGTHS))
    assert rule_wins and even_wins and neighbours, "nothing compared, or one split is always the better"
    assert rising == expected, f"rises at the end for some b, or should: {rising ^ expected}"
    return {
        "allocations": compared,
        "best allocations": optima,
        "steps within 1 of the line": neighbours,
        "(p_s, p_t, L) that rise at the end": len(rising),
        "1/i above even": rule_wins,
        "1/i below even": even_wins,
    }


def main() -> None:
    started = time.time()
    for what, count in check().items():
        print(f"{what}: {count:,}")
    print("\nE[tau] in the paper's formula, spine length L = 0.15 B, and what each rule loses of it")
    print("  p_s    p_t    B   L   best   1/i rule      even split    best widths | 1/i rule")
    grid = itertools.product((Fraction(21, 100), HALF, Fraction(4, 5)), (Fraction(33, 1000), Fraction(1, 10)))
    for (p_s, p_t), B in itertools.product(grid, (20, 40, 60)):
        L = int(B * Fraction(15, 100))
        b, w, x = B - 1 - L, weights(p_s, L), 1 - p_t
        best, widths = best_by_dynamic_programming(w, x, b)
        spine = 1 + sum(p_s**i for i in range(1, L + 1))
        tau = [float(spine + value(w, x, rule)) for rule in (harmonic(L, b), even(L, b))]
        top = float(spine + best)
        losses = "  ".join(f"{t:.3f} -{1 - t / top:5.1%}" for t in tau)
        shown = " | ".join(" ".join(map(str, rule)) for rule in (widths, harmonic(L, b)))
        print(f"  {float(p_s):.2f}  {float(p_t):.3f}  {B:3}  {L:2}  {top:.3f}  {losses}  {shown}")
    print(f"\n{time.time() - started:.1f} s")


if __name__ == "__main__":
    main()
