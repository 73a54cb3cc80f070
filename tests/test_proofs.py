"""Every proof's check passes, and has checked as many cases as there are."""

import importlib.util
import subprocess
import sys

import pytest

from tests.conftest import ROOT

FILES = sorted(path.stem for path in (ROOT / "proofs").glob("*.py"))
KNOWN = {
    "losslessness": {"functions": 2**7, "trees": 1 + 2 + 2 * 4 + 6 * 8},
    "sampling": {"number sequences": 4 * 4**3, "trees": 1 + 3 + 2 * 9, "probabilities of texts": 4 * 3**3},
    "branch_widths": {"allocations": 3 * 2 * 5 * 12},
    "when_speculation_pays": {"curves and costs": 35 * 27},
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
