"""Widths (Proposition 2): how many branches each spine node should get, and what the deployed 1/i rule costs.

Setting. In the paper's model the branches at spine node i add w_i (1 - x^k_i) to the yield, where x = 1 - p_t
and w_i is the probability that the walk leaves the spine at node i: w_i = p_s^i (1 - p_s) for i < L and w_L =
p_s^L. With k_0 + ... + k_L = b fixed, the best widths maximise the sum.

Statement. For neighbours i, i + 1 below the end of the spine, in a best allocation with k_(i+1) >= 1,

    x^(k_i - k_(i+1) - 1) >= p_s >= x^(k_i - k_(i+1) + 1),

that is, k_i - k_(i+1) lies within 1 of s = ln p_s / ln(1 - p_t): the widths fall along a line of slope -s, up
to rounding, until they reach 0. This is the paper's Lagrange condition, k_i affine in i with slope ln p_s /
-ln(1 - p_t), for whole numbers. The end of the spine has its own weight w_L = p_s^L, larger than the line's
by 1 / (1 - p_s), and so gets ln(1 - p_s) / ln x branches more than the line says: the paper's sentence holds
below the end only.

Proof. Moving one branch from node i to node j changes the sum by w_j x^k_j p_t - w_i x^(k_i - 1) p_t, which
is not positive in a best allocation. With j = i + 1: w_i x^(k_i - 1) >= w_(i+1) x^k_(i+1), and w_(i+1) = p_s
w_i, so x^(k_i - 1 - k_(i+1)) >= p_s. From i + 1 to i: p_s x^(k_(i+1) - 1) >= x^k_i. (If k_i = 0 nothing can
be moved from i, but then k_(i+1) = 0 too, since w_i > w_(i+1).) For real widths both hold with equality of
the derivatives, which is the line. Each term is concave in k_i, so taking branches one at a time by the
largest gain finds a best allocation.

The rule of Algorithm 1 gives the spine nodes 1 ... L shares proportional to 1/i. It needs no estimate of p_s
or p_t. Against the line it is convex: it gives the first nodes about as much, and keeps a tail where the line
has reached 0. main() prints the share of the branches' yield that it loses, beside the even split.
"""

import itertools
import time
from fractions import Fraction


def weights(p_s: Fraction, L: int) -> list[Fraction]:
    """The probability that the walk leaves the spine at node 0 ... L."""
    return [p_s**i * (1 - p_s) for i in range(L)] + [p_s**L]


def gain(w: list[Fraction], x: Fraction, widths: tuple[int, ...]) -> Fraction:
    """What branches of these widths add to the expected yield."""
    return sum((w_i * (1 - x**k) for w_i, k in zip(w, widths, strict=True)), Fraction(0))


def best_by_dynamic_programming(w: list[Fraction], x: Fraction, b: int) -> tuple[Fraction, tuple[int, ...]]:
    """The largest gain over all ways to split b branches, node by node."""
    table = {n: (Fraction(0), ()) for n in range(b + 1) if n == 0}
    for w_i in w:
        longer: dict[int, tuple[Fraction, tuple[int, ...]]] = {}
        for used, (value, widths) in table.items():
            for k in range(b - used + 1):
                candidate = (value + w_i * (1 - x**k), widths + (k,))
                if used + k not in longer or candidate[0] > longer[used + k][0]:
                    longer[used + k] = candidate
        table = longer
    return table[b]


def greedy(w: list[Fraction], x: Fraction, b: int) -> tuple[int, ...]:
    """One branch at a time, where it gains most."""
    widths = [0] * len(w)
    for _ in range(b):
        i = max(range(len(w)), key=lambda i: w[i] * x ** widths[i])
        widths[i] += 1
    return tuple(widths)


def harmonic(L: int, b: int) -> tuple[int, ...]:
    """Algorithm 1, step 4: shares proportional to 1/i over nodes 1 ... L, at least one each while they
    last."""
    total, left, widths = sum(Fraction(1, i) for i in range(1, L + 1)), b, [0]
    for i in range(1, L + 1):
        widths.append(min(max(1, int(b / i / total)), left))
        left -= widths[-1]
    return tuple(widths)


def even(L: int, b: int) -> tuple[int, ...]:
    return (0, *(b // L + (i < b % L) for i in range(L)))


def check() -> dict[str, int]:
    """The optimum by dynamic programming on a grid, the inequality between neighbours, and the greedy
    allocation."""
    allocations = neighbours = 0
    for p_s, p_t in itertools.product(
        (Fraction(1, 5), Fraction(1, 2), Fraction(4, 5)), (Fraction(1, 30), Fraction(1, 6))
    ):
        for L, b in itertools.product(range(1, 6), range(1, 13)):
            w, x = weights(p_s, L), 1 - p_t
            value, widths = best_by_dynamic_programming(w, x, b)
            assert sum(widths) == b and value == gain(w, x, widths)
            assert gain(w, x, greedy(w, x, b)) == value, f"greedy is not best: {p_s}, {p_t}, {L}, {b}"
            assert gain(w, x, harmonic(L, b)) <= value
            for i in range(L - 1):
                if widths[i + 1] >= 1:
                    d = widths[i] - widths[i + 1]
                    assert x ** (d - 1) >= p_s >= x ** (d + 1), f"{widths} at {i} for p_s {p_s}, p_t {p_t}"
                    neighbours += 1
            allocations += 1
    return {"allocations": allocations, "pairs of neighbours on the line": neighbours}


def main() -> None:
    started = time.time()
    for what, count in check().items():
        print(f"{what}: {count:,}")
    print("\nshare of the branches' yield kept, spine nodes 1 ... L only, b branches")
    print(
        "  p_s    p_t   L   b   best widths                     1/i rule                        1/i    even"
    )
    for p_s, p_t, L, b in itertools.product((0.21, 0.5, 0.8), (0.033, 0.1), (5, 9), (12, 25)):
        w, x = weights(Fraction(p_s).limit_denominator(100), L), 1 - Fraction(p_t).limit_denominator(1000)
        w[0] = Fraction(0)  # the root has a share of its own
        line, rule, flat = greedy(w, x, b), harmonic(L, b), even(L, b)
        top = gain(w, x, line)
        kept = [float(gain(w, x, widths) / top) for widths in (rule, flat)]
        shown = [" ".join(map(str, widths[1:])).ljust(30) for widths in (line, rule)]
        print(f"  {p_s:.2f}  {p_t:.3f}  {L}  {b:2}   {shown[0]}  {shown[1]}  {kept[0]:.3f}  {kept[1]:.3f}")
    print(f"{time.time() - started:.1f} s")


if __name__ == "__main__":
    main()
