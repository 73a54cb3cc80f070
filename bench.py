"""The paper's tables from files of prompts: every method on every prompt, interleaved in one process.

    python bench.py --weights W --prompts HumanEval.jsonl.gz test.jsonl --methods greedy lookup goose
    python bench.py --weights W --prompts mbpp.jsonl --ablations        # Table 2
    python bench.py --weights W --prompts mbpp.jsonl --topology         # Table 1

Ratios are taken against plain decoding in the same run: the same forward pass over one row, without drafts.
Such a pass may round otherwise than larger ones, so outputs are compared with greedy decoding's in padded
passes. A row of the table holds tau, tokens per second, the ratio (median over prompts, with the quartiles),
how many outputs equal greedy's, the share of spine and of branch nodes accepted, and nodes a pass. With
several files each has a table, and all together one.
"""

import dataclasses
import gzip
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import goose
from goose import GenerationError, Settings, Totals, drafter_for, generate, measure
from model import DTYPES, LoadError, Model, Tokenizer, find, load

PLAIN = "plain, one row"
METHODS = {
    "greedy": Settings(method="greedy"),
    "lookup": Settings(method="lookup"),
    "recycling": Settings(method="recycling"),
    "isotropic": Settings(method="isotropic"),
    "goose-spine": Settings(tree="spine"),
    "goose": Settings(),
}
ABLATIONS = {
    "goose-spine": {},
    "without spine branches": {"spine_branches": False},
    "without bigram tier": {"bigram": False},
    "without confidence": {"confidence": False},
    "without context": {"context": False},
    "without transitions": {"transitions": False},
    "without prefill harvest": {"prefill_harvest": False},
}
TOPOLOGY = {
    "isotropic, k = 3": {"method": "isotropic"},
    "isotropic, k = 5": {"method": "isotropic", "branching": 5},
    "goose-spine": {},
    "goose-best": {"tree": "best"},
}


def read_prompts(file: Path) -> list[tuple[str, str]]:
    """(task id, prompt) pairs in the paper's prompt format, from HumanEval, MBPP, GSM8K, MT-bench and
    ClassEval as published, or from JSON lines with task_id and prompt."""
    try:
        text = (
            gzip.open(file, "rt", encoding="utf-8").read()
            if file.suffix == ".gz"
            else file.read_text("utf-8")
        )
        rows = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else [json.loads(line) for line in text.splitlines() if line.strip()]
        )
    except (OSError, ValueError) as error:
        raise LoadError(f"{file}: {getattr(error, 'strerror', None) or 'not JSON lines'}") from None
    found = []
    for number, row in enumerate(rows):
        if "turns" in row:
            prompt = row["turns"][0]
        elif "question" in row:
            prompt = f"Question: {row['question']}\n\nAnswer: Let me solve step by step.\n"
        elif "skeleton" in row:
            prompt = row["skeleton"]
        elif "prompt" in row:
            prompt = row["prompt"]
        elif "text" in row:
            prompt = f"# {row['text']}\n"
        else:
            raise LoadError(f"{file}: line {number + 1} is of no known benchmark and has no prompt")
        found.append((str(row.get("task_id", row.get("question_id", number))), prompt))
    return found


@dataclasses.dataclass
class Run:
    """One method on one prompt."""

    method: str
    file: str
    task: str
    tokens: list[int]
    seconds: float  # after the prefill
    prefill_seconds: float
    report: dict

    @property
    def rate(self) -> float:
        """Tokens per second after the first token."""
        return (len(self.tokens) - 1) / self.seconds if self.seconds else 0.0


def ours(model: Model, settings: Settings, seconds: dict[int, float]) -> Callable:
    """A runner: (prompt, limit, stop ids) -> (tokens, decode seconds, prefill seconds, report)."""

    def runner(prompt: list[int], limit: int, stops: frozenset[int]):
        totals = Totals()
        for cycle in generate(model, prompt, drafter_for(settings, seconds), limit, stops):
            totals.add(cycle)
        return totals.tokens, totals.seconds["decode"], totals.seconds["prefill"], totals.report()

    return runner


def theirs(folder: Path, dtype: torch.dtype, device: torch.device, **options) -> Callable:
    """transformers' own generate as a runner; its prefill is timed by a run of one token."""
    import transformers

    transformers.logging.set_verbosity_error()
    oracle = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()

    def runner(prompt: list[int], limit: int, stops: frozenset[int]):
        row, laps, out = torch.tensor([prompt], device=device), [], None
        for most in (1, limit):
            started = time.perf_counter()
            out = oracle.generate(
                row,
                attention_mask=torch.ones_like(row),
                max_new_tokens=most,
                do_sample=False,
                eos_token_id=sorted(stops) or None,
                pad_token_id=0,
                **options,
            )
            laps.append(time.perf_counter() - started)
        return out[0, len(prompt) :].tolist(), max(laps[1] - laps[0], 1e-9), laps[0], {}

    return runner


def table(runs: list[Run], methods: list[str]) -> str:
    """Markdown, one row a method; per prompt, ratios are against plain's run, exactness against greedy's."""
    plain = {(run.file, run.task): run for run in runs if run.method == PLAIN}
    greedy = {(run.file, run.task): run for run in runs if run.method == "greedy"}
    lines = [
        "| method | tau | tokens/s | ratio (quartiles) | exact | p_s | p_t | nodes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method in methods:
        mine = [run for run in runs if run.method == method]
        ratios = sorted(
            run.rate / plain[run.file, run.task].rate
            for run in mine
            if run.rate and plain[run.file, run.task].rate
        ) or [0.0]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        exact = sum(run.tokens == greedy[run.file, run.task].tokens for run in mine)
        rate = statistics.median([run.rate for run in mine if len(run.tokens) > 1] or [0.0])
        cells = [
            method,
            "",
            f"{rate:.1f}",
            f"{middle:.2f}x ({low:.2f}-{high:.2f})",
            f"{exact}/{len(mine)}",
            "",
            "",
            "",
        ]
        if mine[0].report:
            passes = sum(run.report["forward_passes"] for run in mine)
            cells[1] = f"{sum(len(run.tokens) for run in mine) / passes:.2f}"
            for column, source in ((5, "spine"), (6, "branch")):
                drafted = sum(run.report["nodes"][source] for run in mine)
                accepted = sum(run.report["accepted"][source] for run in mine)
                cells[column] = f"{accepted / drafted:.3f}" if drafted else "-"
            nodes = sum(int(size) * n for run in mine for size, n in run.report["tree_sizes"].items())
            cells[7] = f"{nodes / max(passes - len(mine), 1):.1f}"
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parser() -> goose.Parser:
    p = goose.Parser(prog="bench.py", description=__doc__.partition("\n")[0], allow_abbrev=False)
    p.add_argument("--weights", default=str(Path(__file__).resolve().parent / "weights"), metavar="DIR_OR_ID")
    p.add_argument("--revision")
    p.add_argument(
        "--prompts",
        nargs="+",
        type=Path,
        required=True,
        metavar="FILE",
        help="HumanEval.jsonl(.gz), mbpp.jsonl, GSM8K test.jsonl, MT-bench question.jsonl, "
        "ClassEval_data.json, or JSON lines with task_id and prompt",
    )
    p.add_argument(
        "--methods",
        nargs="+",
        default=list(METHODS),
        choices=list(METHODS),
        metavar="METHOD",
        help=f"of {', '.join(METHODS)} (plain decoding and greedy always run)",
    )
    p.add_argument("--ablations", action="store_true", help="Algorithm 1 without each of its parts (Table 2)")
    p.add_argument("--topology", action="store_true", help="spine, best-first and balanced trees (Table 1)")
    p.add_argument("--max-new-tokens", type=int, default=256, metavar="N")
    p.add_argument("--limit", type=int, default=0, metavar="N", help="only the first N prompts of each file")
    p.add_argument(
        "--width", type=int, default=0, metavar="N", help="nodes in a pass for every method (0: its default)"
    )
    p.add_argument("--dtype", default="auto", choices=["auto", *DTYPES])
    p.add_argument("--device", default="auto")
    p.add_argument(
        "--against", choices=["transformers"], help="add its greedy and its prompt lookup to the run"
    )
    p.add_argument("--json", type=Path, metavar="FILE", help="write every run")
    return p


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.max_new_tokens < 2:
        raise LoadError("--max-new-tokens must be at least 2")
    prompts = [
        (file.name, task, text)
        for file in options.prompts
        for task, text in read_prompts(file)[: options.limit or None]
    ]
    folder = find(options.weights, options.revision)
    tokenizer, model = Tokenizer(folder), load(folder, options.dtype, options.device)

    width = options.width or (64 if model.device.type == "cuda" else 0)
    try:
        changes = ABLATIONS if options.ablations else TOPOLOGY if options.topology else None
        chosen = (
            {
                name: Settings(**{"tree": "spine", "width": width or 64} | change)
                for name, change in changes.items()
            }
            if changes
            else {name: dataclasses.replace(METHODS[name], width=width) for name in options.methods}
        )
    except ValueError as error:
        raise LoadError(str(error)) from None
    seconds = measure(model)
    runners = {
        PLAIN: ours(model, Settings(method="greedy", width=1), {}),
        "greedy": ours(model, METHODS["greedy"], {}),
    }
    runners |= {name: ours(model, settings, seconds) for name, settings in chosen.items() if name != "greedy"}
    if options.against:
        try:
            runners["transformers greedy"] = theirs(folder, model.dtype, model.device)
            runners["transformers lookup"] = theirs(
                folder, model.dtype, model.device, prompt_lookup_num_tokens=10
            )
        except ImportError:
            raise LoadError("--against transformers: the package is not installed") from None

    runs, names = [], list(runners)
    warm = tokenizer.encode(prompts[0][2])
    for runner in runners.values():
        runner(warm, 8, frozenset())
    for number, (file, task, text) in enumerate(prompts):
        ids = tokenizer.encode(text)
        for name in (
            names[number % len(names) :] + names[: number % len(names)]
        ):  # no method always goes first
            tokens, decode, prefill, report = runners[name](ids, options.max_new_tokens, tokenizer.stop_ids)
            runs.append(Run(name, file, task, tokens, decode, prefill, report))
        print(f"\r{number + 1} of {len(prompts)} prompts", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(run) for run in runs]) + "\n")
    print(
        f"{folder.name}, {str(model.dtype).removeprefix('torch.')}, {model.device}, "
        f"{torch.get_num_threads()} threads, "
        f"{len(prompts)} prompts, {options.max_new_tokens} new tokens\n"
    )
    files = list(dict.fromkeys(run.file for run in runs))
    for file in files if len(files) > 1 else []:
        print(f"{file}\n\n{table([run for run in runs if run.file == file], names)}\n")
    if len(files) > 1:
        print("all prompts\n")
    print(table(runs, names))
    return 0


if __name__ == "__main__":
    try:
        code = main()
    except (LoadError, GenerationError) as error:
        print(f"bench.py: error: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
