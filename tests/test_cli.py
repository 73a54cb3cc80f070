"""The command line as a person meets it: output, exit codes, one-line errors."""

import json
import os
import signal
import subprocess
import sys

import pytest

import goose
from goose import Sampling
from model import Tokenizer, load
from tests.conftest import ROOT, tiny_config, write_folder
from tests.test_goose import greedy


def run(*arguments, environment=None, stdin=None):
    return subprocess.run(
        [sys.executable, "goose.py", *map(str, arguments)],
        cwd=ROOT,
        input=stdin,
        env=os.environ | (environment or {}),
        capture_output=True,
    )


def main(capsys, *arguments):
    """goose.main in this process: (exit code, standard output, standard error)."""
    code = goose.command(list(map(str, arguments)))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_reports_what_the_stream_shows(capsys, tiny_folder):
    arguments = ["--weights", tiny_folder, "--prompt", "def f(x):", "--max-new-tokens", "12", "--ignore-eos"]
    code, text, status = main(capsys, *arguments)
    assert code == 0 and "12 tokens in" in status
    code, out, err = main(capsys, *arguments, "--json")
    report = json.loads(out)
    assert code == 0 and out.count("\n") == 1 and err == ""
    assert text == report["text"] + "\n"
    model, tokenizer = load(tiny_folder), Tokenizer(tiny_folder)
    prompt = tokenizer.encode("def f(x):")
    assert report["tokens"] == greedy(model, prompt, 12)
    assert report["text"] == tokenizer.decode(report["tokens"], prompt)
    assert report["prompt_tokens"] == len(prompt) and report["finish_reason"] == "length"
    assert report["tau"] == pytest.approx(12 / report["forward_passes"], abs=1e-3)
    assert {"load", "prefill", "decode", "draft", "model", "commit"} == set(report["seconds"])
    assert report["dtype"] == "float32" and report["device"] == "cpu" and report["method"] == "goose"
    cycles, nodes, accepted = report["cycles"], report["nodes"], report["accepted"]
    assert set(cycles) == {"spine", "branch", "chain", "plain"} and set(nodes) == set(accepted) == {
        "spine",
        "branch",
    }
    assert report["committed"] == 1 + sum(accepted.values()) + report["bonus"] + report["plain"]


def test_the_prompt_may_come_from_a_file_or_standard_input(capsys, tiny_folder, tmp_path):
    (tmp_path / "p").write_text("def f(x):", encoding="utf-8")
    base = ["--weights", tiny_folder, "--max-new-tokens", "5", "--ignore-eos"]
    wanted = main(capsys, *base, "--prompt", "def f(x):")[1]
    assert main(capsys, *base, "--prompt-file", tmp_path / "p")[1] == wanted
    piped = run(*base, "--prompt-file", "-", stdin=b"def f(x):")
    assert piped.returncode == 0 and piped.stdout.decode() == wanted


@pytest.mark.parametrize(
    "arguments, says",
    [
        ([], "--prompt TEXT or --prompt-file"),
        (["--prompt", "a", "--prompt-file", "b"], "either"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt-file", "no/such/file"], "no/such/file: No such file"),
        (["--prompt", "a", "--max-new-tokens", "0"], "at least 1"),
        (["--prompt", "a", "--max-new-tokens", "-1"], "at least 1"),
        (["--prompt", "a", "--max-new-tokens", "many"], "invalid int value"),
        (["--prompt", "a", "--method", "best"], "invalid choice"),
        (["--prompt", "a", "--unknown"], "unrecognized arguments"),
        (["--prompt", "a", "--weights", "./nowhere"], "no such folder"),
        (["--prompt", "a", "--width", "129"], "width must be from 0 to 128"),
        (["--prompt", "a", "--budget", "0"], "budget must be from 1"),
        (["--prompt", "a", "--rho", "1.5"], "rho must be from 0.0 to 1.0"),
        (["--prompt", "a", "--temperature", "-1"], "temperature"),
        (["--prompt", "a", "--top-p", "0"], "top-p"),
        (["--prompt", "a", "--system", "b"], "--system needs --chat"),
        (["--prompt", "a", "--chat"], "no chat template"),
        (["--prompt", "a" * 1000], "1000 tokens and the model's context holds 512"),
        (["--prompt", "a", "--device", "tpu"], "device"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(capsys, tiny_folder, arguments, says):
    if "--weights" not in arguments:
        arguments = ["--weights", tiny_folder, *arguments]
    code, out, err = main(capsys, *arguments)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert err.startswith("goose.py: error: ") and says in err


def test_a_file_that_is_not_text_is_refused(capsys, tiny_folder, tmp_path):
    (tmp_path / "p").write_bytes(b"\xff\xfe\x00")
    code, _, err = main(capsys, "--weights", tiny_folder, "--prompt-file", tmp_path / "p")
    assert code == 2 and "not UTF-8" in err


def test_a_traceback_never_reaches_the_user(tiny_folder):
    done = run("--weights", tiny_folder, "--prompt", "")
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"Traceback" not in done.stderr


def test_a_blank_prompt_works(capsys, tiny_folder):
    assert main(capsys, "--weights", tiny_folder, "--prompt", " ", "--max-new-tokens", "3")[0] == 0


def test_compare_says_whether_the_tokens_are_the_same(capsys, tiny_folder, monkeypatch):
    arguments = ["--weights", tiny_folder, "--prompt", "def f(x):" * 3, "--max-new-tokens", "20", "--compare"]
    code, _, err = main(capsys, *arguments)
    assert code == 0 and "tokens the same" in err and "ratio" in err
    code, out, _ = main(capsys, *arguments, "--json")
    assert json.loads(out)["compare"]["same_tokens"] is True
    original = goose.walk
    monkeypatch.setattr(
        goose,
        "walk",
        lambda tree, predictions: original(tree, predictions) if len(tree) == 1 else ([0, 1], 3),
    )  # accepts a draft unseen
    code, _, err = main(capsys, *arguments)
    assert code == 1 and "DIFFER" in err


def test_color_is_for_terminals_only(capsys, tiny_folder, monkeypatch):
    arguments = ["--weights", tiny_folder, "--prompt", "def f(x):" * 3, "--max-new-tokens", "9", "--color"]
    plain = main(capsys, *arguments)[1]
    assert "\x1b" not in plain
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    colored = main(capsys, *arguments)[1]
    assert "\x1b[32mspine" in colored
    import re

    assert re.sub(r"\x1b\[\d+m", "", colored).split("\n", 1)[1] == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(capsys, *arguments)[1] == plain


def test_a_closed_pipe_is_no_error(tiny_folder):
    command = (
        f"{sys.executable} goose.py --weights {tiny_folder} --prompt 'def' --max-new-tokens 400 "
        "--ignore-eos | head -c 5"
    )
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True)
    assert done.returncode == 141 and b"Traceback" not in done.stderr and b"Exception" not in done.stderr


def test_control_c_ends_cleanly_with_what_was_written(tiny_folder):
    process = subprocess.Popen(
        [
            sys.executable,
            "goose.py",
            "--weights",
            str(tiny_folder),
            "--prompt",
            "def",
            "--max-new-tokens",
            "500",
            "--ignore-eos",
            "--method",
            "greedy",
        ],
        cwd=ROOT,
        bufsize=0,  # so that communicate misses nothing that read has buffered
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert first and process.returncode == 130 and b"Traceback" not in err
    assert b"ended by interrupted" in err
    shown = (first + rest).decode("utf-8").removesuffix("\n")
    model, tokenizer = load(tiny_folder), Tokenizer(tiny_folder)
    prompt = tokenizer.encode("def")
    whole = tokenizer.decode(greedy(model, prompt, 500), prompt)
    assert shown.rstrip("\ufffd") == whole[: len(shown.rstrip("\ufffd"))]


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_any_console_can_print_any_text(tmp_path, encoding):
    folder = write_folder(tmp_path / "m", tiny_config(vocab_size=300))
    done = run(
        "--weights",
        folder,
        "--prompt",
        "🦆é",
        "--max-new-tokens",
        "60",
        "--ignore-eos",
        environment={"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
    )
    assert done.returncode == 0, done.stderr
    done.stdout.decode(encoding)


def test_ignore_eos_goes_on(capsys, tmp_path):
    """A model that always says </s>: it stops there, or goes on to the limit; without any eos it goes on
    too."""
    from tests.conftest import random_tensors

    config = tiny_config(vocab_size=300)
    tensors = random_tensors(config)
    tensors["lm_head.weight"].zero_()
    tensors["lm_head.weight"][1] = 1.0
    tensors["model.norm.weight"].zero_()  # hidden states are 0, so all logits tie and id 0 wins
    folder = write_folder(tmp_path / "m", config | {"eos_token_id": 0}, tensors)
    base = ["--weights", folder, "--prompt", "abc" * 4, "--max-new-tokens", "15", "--json"]
    report = json.loads(main(capsys, *base)[1])
    assert report["tokens"] == [0] and report["finish_reason"] == "stop"
    report = json.loads(main(capsys, *base, "--ignore-eos")[1])
    assert report["tokens"] == [0] * 15 and report["finish_reason"] == "length"
    folder = write_folder(
        tmp_path / "none", config | {"eos_token_id": None}, tensors, settings={"pad_token": "<s>"}
    )
    report = json.loads(main(capsys, *["--weights", folder, *base[2:]])[1])
    assert report["tokens"] == [0] * 15


def test_output_rows_beyond_the_tokenizer_decode_to_nothing(capsys, tmp_path):
    """More output rows than tokens (padding for alignment): such ids are legal, silent, and may be
    drafted."""
    from tests.conftest import random_tensors

    config = tiny_config(vocab_size=320)
    tensors = random_tensors(config)
    tensors["lm_head.weight"][:300] = 0
    folder = write_folder(tmp_path / "m", config, tensors)
    for method in goose.METHODS:
        code, out, _ = main(
            capsys,
            "--weights",
            folder,
            "--prompt",
            "abab",
            "--max-new-tokens",
            "30",
            "--json",
            "--method",
            method,
        )
        report = json.loads(out)
        assert code == 0 and len(report["tokens"]) == 30 and max(report["tokens"]) >= 300
        model, tokenizer = load(folder), Tokenizer(folder)
        assert report["tokens"] == greedy(model, tokenizer.encode("abab"), 30)


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as done:
        goose.main(["--help"])
    text = capsys.readouterr().out
    assert done.value.code == 0
    for name in (
        "--weights",
        "--prompt-file",
        "--method",
        "--budget",
        "--no-bigram",
        "--temperature",
        "--json",
    ):
        assert name in text


def test_sampling_options_reach_the_text(capsys, tiny_folder):
    base = ["--weights", tiny_folder, "--prompt", "def f(x):", "--max-new-tokens", "12", "--ignore-eos"]
    model, tokenizer = load(tiny_folder), Tokenizer(tiny_folder)
    prompt, texts = tokenizer.encode("def f(x):"), []
    for sampling in (Sampling(1.0, 5, 0.9, 7), Sampling(1.0, 5, 0.9, 8), Sampling(2.5, seed=7)):
        options = ["--temperature", sampling.temperature, "--top-k", sampling.top_k]
        options += ["--top-p", sampling.top_p, "--seed", sampling.seed]
        report = json.loads(main(capsys, *base, *options, "--json")[1])
        assert report["tokens"] == greedy(model, prompt, 12, sampling=sampling)
        texts.append(tuple(report["tokens"]))
    assert len(set(texts)) == 3


def test_dtype_and_chat_reach_the_model(capsys, tmp_path):
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    folder = write_folder(
        tmp_path / "m",
        tiny_config(vocab_size=300),
        settings={"eos_token": "</s>", "chat_template": template},
    )
    options = ["--weights", folder, "--prompt", "Hi", "--chat", "--system", "Be brief", "--dtype", "bfloat16"]
    code, out, _ = main(capsys, *options, "--max-new-tokens", "3", "--json")
    report, tokenizer = json.loads(out), Tokenizer(folder)
    assert code == 0 and report["dtype"] == "bfloat16"
    prompt = tokenizer.encode("[system]Be brief[user]Hi[assistant]")
    assert report["prompt_tokens"] == len(prompt)
    assert report["tokens"] == greedy(load(folder, "bfloat16"), prompt, 3, tokenizer.stop_ids)


def test_the_trace_and_the_trees_show_every_cycle(capsys, tiny_folder, tmp_path):
    file = tmp_path / "t.html"
    arguments = ["--weights", tiny_folder, "--prompt", "def f(x):" * 3, "--max-new-tokens", "15"]
    arguments += ["--ignore-eos", "--width", "8"]
    code, out, err = main(capsys, *arguments, "--trace", file, "--show-tree")
    page = file.read_text(encoding="utf-8")
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert code == 0 and f"in {len(data['cycles'])} passes" in err
    assert data["report"]["forward_passes"] == len(data["cycles"])
    assert sum(
        line.startswith(("prefill: ", "spine: ", "branch: ", "plain: ")) for line in out.splitlines()
    ) == len(data["cycles"])


def test_an_interrupted_comparison_compares_nothing(capsys, tiny_folder, monkeypatch):
    """In the plain half or in the method's own: exit 130, and no word on sameness."""
    original, calls = goose.generate, []

    def interrupted(*arguments):
        calls.append(1)
        for number, cycle in enumerate(original(*arguments)):
            if number == 2 and len(calls) == at:
                raise KeyboardInterrupt
            yield cycle

    monkeypatch.setattr(goose, "generate", interrupted)
    arguments = ["--weights", tiny_folder, "--prompt", "def f(x):", "--max-new-tokens", "20", "--compare"]
    for at in (1, 2):
        calls.clear()
        code, _, err = main(capsys, *arguments, "--ignore-eos")
        assert code == 130 and len(calls) == at and "DIFFER" not in err and "the same" not in err
    at, walk = 3, goose.walk  # a draft accepted unseen makes the texts differ, so that a third run decides
    monkeypatch.setattr(
        goose, "walk", lambda tree, tokens: walk(tree, tokens) if len(tree) == 1 else ([0, 1], 3)
    )
    calls.clear()
    code, _, err = main(capsys, *arguments, "--ignore-eos")
    assert code == 130 and len(calls) == 3 and "DIFFER" not in err
