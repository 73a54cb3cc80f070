"""Trees, matches, harvests, walks and whole runs are those of the authors' implementation."""

import json
import os
from pathlib import Path

import pytest

from model import Tokenizer
from tests.conformance import CHECKS, RUNS, check_run, mismatches

COPIES = Path(__file__).parent / "vectors"
WHOLE = os.environ.get("GOOSE_TEST_VECTORS", "")


@pytest.mark.parametrize(
    "folder",
    [
        COPIES,
        pytest.param(
            Path(WHOLE),
            marks=pytest.mark.skipif(
                not WHOLE, reason="set GOOSE_TEST_VECTORS to a folder of recorded cases"
            ),
        ),
    ],
    ids=["copies", "whole"],
)
def test_every_recorded_case_is_reproduced(folder):
    found = mismatches(folder)
    assert set(found) == set(CHECKS) and all(count >= 6 for count, _ in found.values())
    assert {name: bad for name, (_, bad) in found.items() if bad} == {}


def test_a_changed_case_is_noticed():
    """The comparison can fail: one number off in the expected answer is a mismatch."""
    for name, key in (
        ("matcher", "chain"),
        ("walks", "path"),
        ("spine_trees", "tree"),
        ("isotropic_trees", "tree"),
    ):
        case = next(
            c
            for c in json.loads((COPIES / f"{name}.json").read_text())
            if (c[key] if name in ("matcher", "walks") else len(c[key]["tokens"]) > 1)
        )
        assert CHECKS[name](case)
        wanted = case[key] if isinstance(case[key], list) else case[key]["parents"]
        wanted[-1] += 1
        assert not CHECKS[name](case)


@pytest.mark.skipif(not (WHOLE and Path(WHOLE, "runs.json").exists()), reason="no recorded runs")
def test_a_recorded_run_on_the_real_model_is_reproduced(real_folder, real_model):
    """One prompt by every method; `python -m tests.conformance` goes through all of them in a few minutes."""
    case = json.loads(Path(WHOLE, "runs.json").read_text())[0]
    assert set(case["methods"]) == set(RUNS)
    assert check_run(case, real_model, Tokenizer(real_folder)) == {}
