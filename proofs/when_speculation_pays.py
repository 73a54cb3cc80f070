"""When speculation pays: how many nodes a pass should hold, given what a pass costs on this machine.

Setting. A pass over n nodes costs c(n) > 0 seconds and commits E(n) > 0 tokens in expectation. For a
best-first tree E(n) is the sum of the n largest path probabilities (proofs/best_first.py), so E is concave.
Many cycles run one after another; what counts is tokens per second in the long run.

Statement 1. With one curve E for every cycle the long-run rate of size n is E(n) / c(n). Let rate* be its
maximum. Then the sizes that maximise E(n) - rate* c(n) are exactly those that reach rate*, and the maximum is
0. Proof. E(n) / c(n) <= rate* says E(n) - rate* c(n) <= 0, with equality for the best sizes only.

Statement 2. Let each cycle be of one of finitely many kinds t, independently of the others, with probability
pi_t and a curve E_t of its own, and let a policy pick a size n_t for each kind. Its long-run rate is sum pi_t
E_t(n_t) / sum pi_t c(n_t) (renewal reward). Let rate* be the best policy's. Then choosing in every cycle a
size that maximises E_t(n) - rate* c(n) is a best policy. Proof. For every policy sum pi_t (E_t(n_t) - rate*
c(n_t)) <= 0, with equality exactly for the best. The rule maximises each summand, so its sum is at least that
of a best policy, 0; being at most 0 it is 0, and the rule is best.

So further nodes have to earn rate* for each second that they add: that is tree.worthwhile_size. The program
does not know rate*; it uses the rate of its recent cycles. Statement 3 (Dinkelbach). Start from any policy's
rate r and let r' be the rate of a policy that maximises E_t - r c. Then r' >= r, and r' = r only at rate*.
Proof. The maximum of sum pi_t (E_t - r c) is at least the old policy's, 0; so the new policy has sum pi_t E_t
>= r sum pi_t c. If it is equal, the maximum is 0, so no policy has a rate above r. With finitely many
policies the iteration ends at rate*. From any other r, too high or too low, the first step gives a policy's
rate, and the rest follows. (The program's rate is measured over a few dozen cycles, so it follows this
iteration with noise; and a tree's size changes what later cycles know, which the model leaves out.)

Statement 4. If E is concave and c convex in n, the first size whose next node gains no more than it costs,
E(n+1) - E(n) <= rate x (c(n+1) - c(n)), is best. Proof. E - rate c is then concave; it grew up to that size,
and a concave sequence that does not grow once never does again. For a measured c, which need not be convex,
the program compares all measured sizes instead, up to the first that holds the whole tree: if c never falls,
larger ones cost no less and yield no more.

Never slower than plain decoding? Suppose that the smallest size costs what a pass of plain decoding costs,
drafting included: drafting is free there, or not drafting is one of the sizes. It commits no fewer tokens, so
at rate*, with right estimates, the rule is not slower. If plain decoding's pass costs c0 < c(smallest), that
holds up to the factor c0 / c(smallest), which is reached where no draft is ever accepted.
"""

import itertools
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tree import worthwhile_size  # noqa: E402

SIZES = range(1, 5)
Curve = tuple[Fraction, ...]  # path probabilities by falling size, the root's 1 first: E(n) is the sum of n


def curves() -> list[Curve]:
    """All falling sequences of path probabilities over a small grid."""
    grid = [Fraction(n, 4) for n in range(5)]
    rest = itertools.combinations_with_replacement(sorted(grid, reverse=True), len(SIZES) - 1)
    return [(Fraction(1), *probabilities) for probabilities in rest]


def costs() -> Iterator[dict[int, Fraction]]:
    """All rising cost curves over a small grid, convex or not."""
    for steps in itertools.product((Fraction(0), Fraction(1, 5), Fraction(1)), repeat=len(SIZES) - 1):
        yield {n: 1 + sum(steps[: n - 1]) for n in SIZES}


def offers() -> list[tuple[int, ...]]:
    """Every way to measure only some of the sizes."""
    return [some for count in SIZES for some in itertools.combinations(SIZES, count)]


def expected(curve: Curve, n: int) -> Fraction:
    return sum(curve[:n], Fraction(0))


def rate(policy: tuple[int, ...], mixture: list[tuple[Fraction, Curve]], c: dict[int, Fraction]) -> Fraction:
    """Long-run tokens per second of picking policy[t] in cycles of kind t."""
    tokens = sum(pi * expected(curve, n) for n, (pi, curve) in zip(policy, mixture, strict=True))
    return tokens / sum(pi * c[n] for n, (pi, _) in zip(policy, mixture, strict=True))


def check() -> dict[str, int]:
    """Statements 1 and 4 on all curves and costs; 2 and 3 on mixtures of two curves and all policies."""
    single = stopped = some_sizes = mixtures = steps = 0
    rates = (Fraction(1, 3), Fraction(1), Fraction(2))
    for curve, c in itertools.product(curves(), list(costs())):
        ratios = {n: expected(curve, n) / c[n] for n in SIZES}
        best = max(ratios.values())
        worth = {n: expected(curve, n) - best * c[n] for n in SIZES}
        assert max(worth.values()) == 0, f"{curve}, {c}: {worth} at the best rate {best}"
        for n in SIZES:
            assert (worth[n] == 0) == (ratios[n] == best), f"{curve}, {c}: size {n}, rates {ratios}"
        n = worthwhile_size(curve, c, best)
        assert ratios[n] == best, f"{curve}, {c}: {n} of {ratios}"
        single += 1
        if all(c[n + 2] - c[n + 1] >= c[n + 1] - c[n] for n in SIZES[:-2]):
            for r in rates:
                stop = next((n for n in SIZES[:-1] if curve[n] <= r * (c[n + 1] - c[n])), SIZES[-1])
                worth = {n: expected(curve, n) - r * c[n] for n in SIZES}
                assert worth[stop] == max(worth.values()), f"{curve}, {c}, rate {r}"
                n = worthwhile_size(curve, c, r)
                assert worth[n] == worth[stop], f"{curve}, {c}, rate {r}: {n}, but one may stop at {stop}"
                stopped += 1
    trees = {curve[:length] for curve in curves() for length in SIZES}  # few candidates make small trees
    for curve, c, some in itertools.product(sorted(trees), list(costs()), offers()):
        for r in rates:
            n = worthwhile_size(curve, {n: c[n] for n in some}, r)
            worth = {n: expected(curve, n) - r * c[n] for n in some}
            assert worth[n] == max(worth.values()), f"{curve}, {c}, rate {r}, of sizes {some}: {n}"
            some_sizes += 1
    some_curves = curves()[::3]
    policies = list(itertools.product(SIZES, repeat=2))
    for c in costs():
        for (first, second), pi in itertools.product(
            itertools.combinations(some_curves, 2), (Fraction(1, 4), Fraction(1, 2))
        ):
            mixture = [(pi, first), (1 - pi, second)]
            best = max(rate(policy, mixture, c) for policy in policies)
            rule = tuple(worthwhile_size(curve, c, best) for _, curve in mixture)
            assert rate(rule, mixture, c) == best, f"{mixture}, {c}: {rule}"
            mixtures += 1
            rates_of_policies = {rate(policy, mixture, c) for policy in policies}
            for r in (Fraction(0), Fraction(100), *rates_of_policies):
                while (
                    better := rate(tuple(worthwhile_size(curve, c, r) for _, curve in mixture), mixture, c)
                ) != r:
                    assert better > r or r not in rates_of_policies, f"{mixture}, {c}: fell from {r}"
                    r, steps = better, steps + 1
                assert r == best, f"{mixture}, {c}: stuck at {r}, best {best}"
    return {
        "curves and costs": single,
        "stopping rules": stopped,
        "some sizes measured": some_sizes,
        "mixtures": mixtures,
        "iterations": steps,
    }


def main() -> None:
    started = time.time()
    for what, count in check().items():
        print(f"{what}: {count:,}")
    print(f"yield less rate x cost finds the best rate; {time.time() - started:.1f} s")


if __name__ == "__main__":
    main()
