"""The benchmark: files as their authors publish them, and a table that adds up."""

import gzip
import json

import pytest

import bench
from model import LoadError
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
