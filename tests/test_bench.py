"""The benchmark: files as their authors publish them, and a table that adds up."""

import gzip
import json

import pytest

import bench
from model import LoadError
from tests import exactness
from tests.test_loading import refused


def write(path, rows):
    text = "\n".join(json.dumps(row) for row in rows) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def test_every_benchmark_is_read_in_the_papers_prompt_format(tmp_path):
    question = "Question: How many?\n\nAnswer: Let me solve step by step.\n"
    for name, row, wanted in (
        (
            "HumanEval.jsonl",
            {"task_id": "HumanEval/0", "prompt": "def f():\n", "test": ""},
            ("HumanEval/0", "def f():\n"),
        ),
        (
            "HumanEval.jsonl.gz",
            {"task_id": "HumanEval/1", "prompt": "def f():\n"},
            ("HumanEval/1", "def f():\n"),
        ),
        ("mbpp.jsonl", {"task_id": 11, "text": "Write f.", "code": "x"}, ("11", "# Write f.\n")),
        ("test.jsonl", {"question": "How many?", "answer": "3"}, ("0", question)),
        ("question.jsonl", {"question_id": 81, "turns": ["First.", "Second."]}, ("81", "First.")),
        ("mine.jsonl", {"task_id": "a", "prompt": "b"}, ("a", "b")),
    ):
        assert bench.read_prompts(write(tmp_path / name, [row])) == [wanted]
    (tmp_path / "ClassEval_data.json").write_text(json.dumps([{"task_id": "C_0", "skeleton": "class A:"}]))
    assert bench.read_prompts(tmp_path / "ClassEval_data.json") == [("C_0", "class A:")]


def test_unknown_files_are_refused(tmp_path):
    refused(lambda: bench.read_prompts(tmp_path / "none.jsonl"), "none.jsonl", "No such file")
    refused(
        lambda: bench.read_prompts(write(tmp_path / "x.jsonl", [{"a": 1}])), "line 1", "no known benchmark"
    )
    (tmp_path / "y.jsonl").write_text("not json\n")
    refused(lambda: bench.read_prompts(tmp_path / "y.jsonl"), "not JSON lines")
    with pytest.raises(LoadError, match="invalid choice"):
        bench.main(["--prompts", "x", "--methods", "fastest"])


@pytest.mark.parametrize(
    "choice", [["--methods", "greedy", "lookup", "goose-spine", "goose"], ["--topology"], ["--ablations"]]
)
def test_a_run_prints_a_table_and_writes_every_run(tmp_path, capsys, tiny_folder, choice):
    prompts = write(
        tmp_path / "p.jsonl",
        [{"task_id": i, "prompt": f"def f{i}(x):\n    return x\n" * 3} for i in range(3)],
    )
    arguments = [
        "--weights",
        tiny_folder,
        "--prompts",
        prompts,
        "--max-new-tokens",
        "16",
        "--json",
        tmp_path / "out",
    ]
    assert bench.main(list(map(str, [*arguments, *choice]))) == 0
    out = capsys.readouterr().out
    runs = json.loads((tmp_path / "out").read_text())
    methods = {run["method"] for run in runs}
    table = [line for line in out.splitlines() if line.startswith("| ")][1:]
    assert len(table) == len(methods) and len(runs) == 3 * len(methods) and "greedy" in methods
    for line in table:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        mine = [run for run in runs if run["method"] == cells[0]]
        tokens, passes = (
            sum(len(run["tokens"]) for run in mine),
            sum(run["report"]["forward_passes"] for run in mine),
        )
        assert cells[1] == f"{tokens / passes:.2f}" and cells[4] == "3/3" and "x (" in cells[3]
    greedy = {run["task"]: run["tokens"] for run in runs if run["method"] == "greedy"}
    assert all(run["tokens"] == greedy[run["task"]] for run in runs)


def run(method, task, tokens, seconds, **report):
    counts = {"forward_passes": 3, "nodes": {"spine": 8, "branch": 4}, "accepted": {"spine": 2, "branch": 1}}
    return bench.Run(
        method, "f", task, tokens, seconds, 9.0, counts | {"tree_sizes": {"1": 1, "4": 1}} | report
    )


def test_a_table_adds_up_by_hand():
    """Ratios against plain's run of the same prompt, exactness against greedy's."""
    runs = [
        run(bench.PLAIN, "a", [1, 2, 3], 2.0),
        run("greedy", "a", [1, 2, 4], 2.5),
        run("goose", "a", [1, 2, 4], 1.0),
        run(bench.PLAIN, "b", [1, 2, 3], 4.0),
        run("greedy", "b", [1, 2, 3], 4.0),
        run("goose", "b", [1, 2, 9], 1.0),
    ]
    rows = bench.table(runs, [bench.PLAIN, "greedy", "goose"]).splitlines()[2:]
    assert rows[0].startswith("| plain, one row | 1.00 | 0.8 | 1.00x (1.00-1.00) | 1/2 |")
    assert rows[1].startswith("| greedy | 1.00 | 0.7 | 0.90x (")
    cells = [cell.strip() for cell in rows[2].strip("|").split("|")]
    assert cells[:2] == ["goose", "1.00"] and cells[2] == "2.0" and cells[3].startswith("3.00x (")
    assert cells[4:] == ["1/2", "0.250", "0.250", "2.5"]


def test_each_file_has_a_table_of_its_own(tmp_path, capsys, tiny_folder):
    files = [
        write(tmp_path / name, [{"task_id": "a", "prompt": "abc" * 5}]) for name in ("p.jsonl", "q.jsonl")
    ]
    arguments = [
        "--weights",
        tiny_folder,
        "--max-new-tokens",
        "4",
        "--methods",
        "lookup",
        "--prompts",
        *files,
    ]
    assert bench.main(list(map(str, arguments))) == 0
    out = capsys.readouterr().out
    heads = [line for line in out.splitlines() if line in ("p.jsonl", "q.jsonl", "all prompts")]
    assert heads == ["p.jsonl", "q.jsonl", "all prompts"]
    exact = [line.split("|")[5].strip() for line in out.splitlines() if line.startswith("| lookup")]
    assert exact == ["1/1", "1/1", "2/2"]


def test_transformers_can_be_added_to_the_run(tmp_path, capsys, tiny_folder):
    pytest.importorskip("transformers")
    prompts = write(tmp_path / "p.jsonl", [{"task_id": "a", "prompt": "abc" * 5}])
    arguments = [
        "--weights",
        tiny_folder,
        "--prompts",
        prompts,
        "--max-new-tokens",
        "8",
        "--methods",
        "greedy",
        "--against",
        "transformers",
    ]
    assert bench.main(list(map(str, arguments))) == 0
    out = capsys.readouterr().out
    assert "| transformers greedy |" in out and "| transformers lookup |" in out


def test_exactness_counts_equal_outputs(tmp_path, capsys, tiny_folder, monkeypatch):
    """`python -m tests.exactness`: all of ours are equal, and a wrong token is seen."""
    prompts = write(tmp_path / "p.jsonl", [{"task_id": i, "prompt": f"abc{i}" * 5} for i in range(2)])
    arguments = ["exactness", "--weights", tiny_folder, "--prompts", prompts, "--max-new-tokens", "16"]
    monkeypatch.setattr("sys.argv", list(map(str, [*arguments, "--usual-every", "2", "--widths", "8"])))
    assert exactness.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"{name}: tokens 2, logits 2 of 2" for name in ("default", "width 8")]
    assert lines[2].startswith("usual arithmetic: tokens ") and lines[2].endswith(" of 1")
    original = exactness.goose.walk
    monkeypatch.setattr(
        exactness.goose,
        "walk",
        lambda tree, predictions: original(tree, predictions) if len(tree) == 1 else ([0, 1], 3),
    )
    assert exactness.main() == 1
