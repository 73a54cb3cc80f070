"""Every proof's check passes, and has checked as many cases as there are."""

import importlib.util
import subprocess
import sys
from math import comb

import pytest

from tests.conftest import ROOT

FILES = sorted(path.stem for path in (ROOT / "proofs").glob("*.py"))
BINARY_TREES = sum(comb(2 * n, n) // (n + 1) for n in range(1, 8))
KNOWN = {
    "losslessness": {  # alphabets of 2 and of 3 tokens; trees by their size: parents times tokens
        "functions": 2 ** (1 + 2 + 4) + 3 ** (1 + 3),
        "trees": (1 + 2 + 2 * 4 + 6 * 8) + (1 + 3 + 2 * 9),
    },
    "containment": {  # binary trees of 0 ... 6 nodes: Catalan numbers
        "trees": BINARY_TREES,
        "pairs": BINARY_TREES**2,
        "continuations of each": 3**6,
        "copies by the paper's constants": 20 * 2 * 3,
    },
    "best_first": {  # pairs of q to the power of inner nodes, times budgets
        "candidate sets and budgets": 15**3 * 7 + 3**7 * 5,
    },
    "branch_widths": {  # splits of b = 1 ... 8 branches over L + 1 nodes; p_s > 1/2, p_t, L
        "allocations": 5 * 3 * sum(comb(b + L, L) for L in range(1, 4) for b in range(1, 9)),
        "(p_s, p_t, L) that rise at the end": 2 * 3 * 3,
    },
    "anisotropy": {  # pairs p_s > p_t of seven values, K = 1 ... 4, drafts 0 ... 8
        "strictly better": 21 * 4 * 8,
        "equal without drafts": 21 * 4,
        "not better for p_s <= p_t": 28 * 4 * 9,
    },
    "sampling": {  # distributions to the power of texts; times M^N; times texts, times trees
        "models": 4**3 + 6**4 + 3**7,
        "number sequences": 4**3 * 3**2 + 6**4 * 2**2 + 3**7 * 2**3,
        "cycles": 4**3 * 3**2 * 2 * (1 + 2 + 2 * 4 + 6 * 8)
        + 6**4 * 2**2 * 2 * (1 + 3 + 2 * 9)
        + 3**7 * 2**3 * 3 * (1 + 2 + 2 * 4),
        "probabilities of texts": 4**3 * 2**2 + 6**4 * 3**2 + 3**7 * 2**3,
    },
    "when_speculation_pays": {  # curves, costs; and sets of sizes, rates
        "curves and costs": 35 * 3**3,
        "some sizes measured": (1 + 5 + 15 + 35) * 3**3 * (2**4 - 1) * 3,
        "mixtures": comb(12, 2) * 2 * 3**3,
    },
    "expected_yield": {"spine formulas": 4 * 3 * (4 + 4**2 + 4**3 + 4**4)},
}


def test_there_is_a_proof_for_every_claim():
    assert FILES == [
        "anisotropy",
        "best_first",
        "branch_widths",
        "containment",
        "expected_yield",
        "losslessness",
        "sampling",
        "when_speculation_pays",
    ]


@pytest.mark.parametrize("name", FILES)
def test_a_proof_checks_all_of_its_cases(name):
    spec = importlib.util.spec_from_file_location(f"proof_{name}", ROOT / "proofs" / f"{name}.py")
    proof = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(proof)
    counts = proof.check()
    assert counts and all(count > 0 for count in counts.values())
    for what, count in KNOWN.get(name, {}).items():
        assert counts[what] == count
    assert len(proof.__doc__) > 800 and "Proof" in proof.__doc__


@pytest.mark.parametrize("name", FILES)
def test_a_proof_runs_alone_from_anywhere(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "proofs" / f"{name}.py")], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0 and " s" in done.stdout.splitlines()[-1]
