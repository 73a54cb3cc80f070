"""README shows nothing that does not run: its two commands, its options, its scripts, its tables."""

import re
import shlex
import subprocess
import sys

import pytest

import bench
import goose
from tests.conftest import ROOT, tiny_config, write_folder

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.S)
embedded = pytest.mark.skipif(not (ROOT / "weights/model.safetensors").exists(), reason="no embedded model")


@embedded
@pytest.mark.parametrize(
    "code", [code for language, code in BLOCKS if language == "python"], ids=["events", "source"]
)
def test_every_script_runs(code):
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_there_are_two_scripts_and_one_is_short():
    scripts = [code.strip().splitlines() for language, code in BLOCKS if language == "python"]
    assert len(scripts) == 2 and len([line for line in scripts[0] if line]) <= 13


def commands() -> list[list[str]]:
    lines = [
        line for language, code in BLOCKS if language == "sh" for line in code.splitlines() if line.strip()
    ]
    return [shlex.split(part, comments=True) for line in lines for part in line.split(" && ")]


@embedded
def test_the_first_command_runs_on_the_embedded_model():
    command = next(c for c in commands() if "goose.py" in c and "--weights" not in c)
    done = subprocess.run([sys.executable, *command[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("\n") and "return" in done.stdout


def test_every_goose_and_bench_command_runs(tmp_path, monkeypatch, capsys):
    """With a tiny checkpoint and one prompt in place of the reader's own, and few tokens."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    folder = write_folder(
        tmp_path / "m",
        tiny_config(vocab_size=300),
        settings={"eos_token": "</s>", "chat_template": template},
    )
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"task_id": 1, "prompt": "def f(x):"}\n')
    monkeypatch.chdir(ROOT)
    ran = 0
    for command in commands():
        program = next((part for part in command if part.endswith(".py")), None)
        if program not in ("goose.py", "bench.py") or "--help" in command:
            continue
        if "transformers" in command:
            pytest.importorskip("transformers")
        parser = goose.parser() if program == "goose.py" else bench.parser()
        given = command[command.index(program) + 1 :]
        changed = ["--weights", str(folder), "--max-new-tokens", "4"]
        if program == "bench.py":
            changed += ["--prompts", str(prompts)]
        elif parser.parse_args(given).prompt_file:
            (tmp_path / "text").write_text("def f(x):")
            changed += ["--prompt-file", str(tmp_path / "text")]
        if "--trace" in given:
            changed += ["--trace", str(tmp_path / "t.html")]
        main = goose.command if program == "goose.py" else bench.main
        assert main([*given, *changed]) == 0, command
        ran += 1
    assert ran >= 8 and "| goose |" in capsys.readouterr().out


def test_every_command_names_things_that_exist(tmp_path):
    """Options parse, requirement files and modules exist; one's own weights and prompts are not checked."""
    seen = set()
    for command in commands():
        program = next((part for part in command if part.endswith(".py")), None)
        if program in ("goose.py", "bench.py"):
            parser = goose.parser() if program == "goose.py" else bench.parser()
            parser.parse_args([part for part in command[command.index(program) + 1 :] if part != "--help"])
        elif program:
            assert (ROOT / program).exists(), program
        for part in command:
            if part.startswith("requirements"):
                assert (ROOT / part).exists()
        seen |= {program, *command[:3]}
    assert {"goose.py", "bench.py", "install", "pytest"} <= seen


def test_the_map_points_at_things_that_exist():
    """Every `file.Name` and test file in README's tables."""
    for name in re.findall(r"`((?:tests/|proofs/)?\w+\.(?:py|md|png))`", README):
        assert any((ROOT / folder / name).exists() for folder in ("", "tests")), name
    for module, attribute in re.findall(r"`(tree|sources|goose|kernels|model)\.(\w+)`", README):
        if attribute != "py":
            assert hasattr(__import__(module), attribute), (module, attribute)


def test_readme_and_code_agree_on_what_is_supported():
    from model import ARCHITECTURES

    for name in ARCHITECTURES:
        assert f"`{name}`" in README
    assert f"`--method {' | '.join(goose.METHODS)}`" in README


def test_no_placeholder_is_left():
    assert not re.search(r"@\w+@", README)
