"""Goose (arXiv 2604.02047): speculative decoding without training, and without changing one token of the
output.

    python goose.py --prompt 'def fibonacci(n):'
    python goose.py --weights FOLDER_OR_HUB_ID --prompt TEXT --method goose --compare

Every method is the same loop; methods differ only in the tree they draft. Greedy decoding drafts the root
alone, prompt lookup a chain, token recycling branches, Goose a spine with branches. `generate` is that loop
(Algorithm 2), `Drafter` decides what to draft, and whatever reports on a run (text, colours, totals, JSON)
reads the stream of `Cycle`s.
"""

import argparse
import dataclasses
import json
import math
import os
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch says so on import; not needed
import torch
from torch import Tensor

import kernels
import trace
from model import DTYPES, Cache, LoadError, Model, Scorer, Stream, Tokenizer, find, load, prefill
from sources import AcceptanceAverage, AdjacencyTable, Candidates, ContextMatcher, Match, confidence_of
from tree import (
    BRANCH,
    SPINE,
    Tree,
    best_first_tree,
    chain_tree,
    cheapest_nodes,
    isotropic_tree,
    spine_tree,
    walk,
    worthwhile_size,
)

METHODS = ("greedy", "lookup", "recycling", "isotropic", "goose")
TREES = ("best", "spine")


class GenerationError(Exception):
    """A run that cannot go on; the message is one line."""


# ---- settings ----------------------------------------------------------------------------------------------


def option(default, low, high, text: str):
    return field(default=default, metadata={"low": low, "high": high, "help": text})


def switch(text: str):
    return field(default=True, metadata={"help": text})


@dataclass(frozen=True)
class Settings:
    """What to draft: the method, the constants of Table 5 and a switch for each part that the paper removes.

    Raises ValueError, naming the field, for a value out of its range.
    """

    method: str = "goose"
    tree: str = "best"  # best: largest expected yield; spine: the paper's Algorithm 1
    width: int = option(
        0,
        0,
        kernels.MAX_WIDTH,
        "nodes in a pass, the root included; 0: as many as pay, measured; 1: plain passes of one row, "
        "which round otherwise than all others",
    )
    budget: int = option(60, 1, 1000, "B: nodes of a tree without confidence")
    max_budget: int = option(100, 1, 1000, "nodes of a tree at full confidence")
    max_depth: int = option(6, 1, 1000, "D: how deep branches grow")
    successors: int = option(10, 1, 100, "K: successors kept for each token")
    rho: float = option(0.5, 0.0, 1.0, "share of the branch budget that spine nodes get")
    min_score: float = option(0.01, 0.0, 1.0, "successors with a lower score are not drafted")
    max_chain: int = option(20, 1, 1000, "tokens copied from one match")
    extension: int = option(100, 0, 1000, "tokens to which a chain is extended at full confidence")
    long_match: int = option(8, 1, 1000, "length from which a chain counts as long")
    average_weight: float = option(0.3, 0.0, 1.0, "weight of the newest cycle in the acceptance average")
    branching: int = option(3, 1, 100, "successors of every node in the isotropic tree")
    context: bool = switch("draft from the context")
    transitions: bool = switch("draft from the adjacency table")
    spine_branches: bool = switch("attach branches to spine nodes")
    bigram: bool = switch("ask the bigram tier of the table")
    confidence: bool = switch("let confidence set budget, spine and extension")
    prefill_harvest: bool = switch("fill the table from the prompt")

    def __post_init__(self):
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}")
        if self.tree not in TREES:
            raise ValueError(f"tree must be one of {', '.join(TREES)}")
        for f in dataclasses.fields(self):
            low, high = f.metadata.get("low"), f.metadata.get("high")
            if low is not None and not low <= getattr(self, f.name) <= high:
                raise ValueError(f"{f.name.replace('_', '-')} must be from {low} to {high}")


# ---- drafting ----------------------------------------------------------------------------------------------


@dataclass
class Draft:
    """A tree and how it came about: route is spine, branch, chain or plain (Algorithm 2, steps 2 to 4),
    prefill for the first pass; match is what the context matcher proposed; estimates are each node's path
    probability, where the drafter has any."""

    tree: Tree
    route: str
    match: Match = Match()
    estimates: list[float] = field(default_factory=list)


class TreeSource(Protocol):
    """What the loop needs of a drafter. Any tree of at most `width` nodes is allowed: none can change the
    output."""

    width: int
    top_k: int  # how many best next tokens of each row `learn` wants; 0 saves the work

    def start(self, prompt: list[int], ids: list[list[int]], scores: list[list[float]]) -> None:
        """The prompt, with each of its rows' top_k next tokens and their softmax scores (none where top_k is
        0)."""

    def draft(self) -> Draft:
        """A tree whose root is the last committed token."""

    def commit(self, tokens: list[int]) -> None:
        """The first token, which the prefill gives."""

    def learn(
        self,
        draft: Draft,
        path: list[int],
        committed: list[int],
        ids: list[list[int]],
        scores: list[list[float]],
    ) -> None:
        """What came of it: the accepted path, the tokens committed, and every node's top_k next tokens."""


class Drafter:
    """The paper's drafter: two sources, confidence, and the choice between them (Section 4, Algorithm 2)."""

    WIDTH = 16  # where settings.width leaves it open

    def __init__(self, settings: Settings):
        self.settings, self.width = settings, settings.width or self.WIDTH
        self.use_context = settings.context and settings.method in ("lookup", "isotropic", "goose")
        self.use_table = settings.transitions and settings.method in ("recycling", "isotropic", "goose")
        self.top_k = settings.successors if self.use_table else 0
        self.matcher = ContextMatcher(max_chain=settings.max_chain)
        self.table = AdjacencyTable(settings.bigram)
        self.average = AcceptanceAverage(weight=settings.average_weight)
        self.text: list[int] = []

    def start(self, prompt: list[int], ids: list[list[int]], scores: list[list[float]]) -> None:
        self.text = list(prompt)
        if self.use_context:
            self.matcher.extend(prompt)
        if self.use_table and self.settings.prefill_harvest:
            self.table.harvest(prompt, [None, *prompt[:-1]], ids, scores)

    def commit(self, tokens: list[int]) -> None:
        self.text += tokens
        if self.use_context:
            self.matcher.extend(tokens)

    def draft(self) -> Draft:
        s, anchor = self.settings, self.text[-1]
        before = self.text[-2] if len(self.text) > 1 else None
        if s.method == "greedy" or self.width == 1:
            return Draft(Tree.rooted(anchor), "plain")
        match = self.matcher.chain() if self.use_context else Match()
        if self.use_table and self.table.successors(anchor, before):
            confidence = confidence_of(match, s.long_match) if s.confidence else 0.0
            budget = min(s.budget + int(confidence * max(s.max_budget - s.budget, 0)), self.width)
            if s.method == "isotropic":
                tree = isotropic_tree(
                    anchor, before, self.table, budget, s.branching, s.max_depth, s.min_score
                )
            else:
                chain = match.tokens
                if confidence > 0.6:
                    chain = self.matcher.extended(match, confidence, s.long_match, s.extension)
                length = min(len(chain), int(budget * self.average.spine_share(confidence)), self.width - 1)
                tree = spine_tree(
                    anchor,
                    before,
                    chain,
                    self.table,
                    budget,
                    length,
                    s.rho if s.spine_branches else None,
                    s.max_depth,
                    s.successors,
                    s.min_score,
                )
            if len(tree) > 1:
                return Draft(tree, SPINE if SPINE in tree.sources else BRANCH, match)
        elif match.tokens:
            return Draft(chain_tree(anchor, match.tokens[: self.width - 1]), "chain", match)
        return Draft(Tree.rooted(anchor), "plain")

    def learn(
        self,
        draft: Draft,
        path: list[int],
        committed: list[int],
        ids: list[list[int]],
        scores: list[list[float]],
    ) -> None:
        tree = draft.tree
        if self.use_table:
            before = [tree.before(node) for node in range(len(tree))]
            if draft.route in ("chain", "plain") and len(self.text) > 1:
                before[0] = self.text[-2]
            self.table.harvest(tree.tokens, before, ids, scores)
        if draft.route == SPINE:
            self.average.observe(sum(tree.sources[node] == SPINE for node in path), tree.sources.count(SPINE))
        self.commit(committed)


class BestDrafter:
    """The best-first drafter: candidates of both sources at every node, the nodes most likely to be accepted
    first.

    seconds: cost of a pass by its number of rows, from `measure`; then a tree holds as many nodes as pay, and
    else settings.width of them. The rate that a pass has to beat is what recent passes reached, in tokens per
    second of that curve; so what is drafted depends on the text and the curve alone.
    """

    DECAY = 0.98  # of the sums behind the rate: the last fifty passes or so count
    SLOW = 5.0  # as if so many slow passes had gone before: first trees are larger, since they fill the table

    def __init__(self, settings: Settings, seconds: dict[int, float] | None = None):
        self.settings, self.seconds = settings, seconds
        self.width = max(seconds) if seconds else settings.width or Drafter.WIDTH
        self.top_k = settings.successors if settings.transitions else 0
        self.matcher = ContextMatcher((6, 4, 3, 2) if settings.context else ())
        self.table = AdjacencyTable(settings.bigram)
        self.candidates = Candidates(self.matcher, self.table)
        self.offered: list[list] = []
        self.cheapest = cheapest_nodes(seconds or {})
        self.tokens, self.cost = self.SLOW, self.SLOW * max(seconds.values()) if seconds else 1.0

    def start(self, prompt: list[int], ids: list[list[int]], scores: list[list[float]]) -> None:
        self.matcher.extend(prompt)
        if self.top_k and self.settings.prefill_harvest:
            self.table.harvest(prompt, [None, *prompt[:-1]], ids, scores)

    def commit(self, tokens: list[int]) -> None:
        self.matcher.extend(tokens)

    def offer(self, tree: Tree, node: int) -> list[tuple[int, str, float]]:
        found = self.candidates.after(tree.path_to(node))
        self.offered.append(found)
        return [(token, SPINE if tier == "context" else BRANCH, q) for q, token, tier, _ in found]

    def draft(self) -> Draft:
        self.offered, rate = [], self.tokens / self.cost

        def enough(size: int, probability: float) -> bool:
            return size in self.cheapest and probability < rate * self.cheapest[size]

        tree, estimates = best_first_tree(self.matcher.text[-1], self.offer, self.width, enough)
        if self.seconds:
            size = worthwhile_size(estimates, self.seconds, rate)
            tree, estimates = tree.cut(size), estimates[:size]
        route = "plain" if len(tree) == 1 else SPINE if SPINE in tree.sources else BRANCH
        return Draft(tree, route, self.matcher.newest(), estimates)

    def learn(
        self,
        draft: Draft,
        path: list[int],
        committed: list[int],
        ids: list[list[int]],
        scores: list[list[float]],
    ) -> None:
        tree, text = draft.tree, self.matcher.text
        for node, token in zip(path, committed, strict=False):
            self.candidates.observe(self.offered[node], token)
        before = [tree.before(node) for node in range(len(tree))]
        before[0] = text[-2] if len(text) > 1 else None
        if self.top_k:
            self.table.harvest(tree.tokens, before, ids, scores)
        if self.seconds:
            self.tokens = self.DECAY * self.tokens + len(path)
            self.cost = self.DECAY * self.cost + min(s for n, s in self.seconds.items() if n >= len(tree))
        self.commit(committed)


def drafter_for(settings: Settings, seconds: dict[int, float] | None = None) -> TreeSource:
    """The drafter of a method; seconds, the measured cost curve, is used where settings.width leaves the size
    open."""
    if settings.method == "goose" and settings.tree == "best":
        return BestDrafter(settings, None if settings.width else seconds)
    return Drafter(settings)


# ---- sampling ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampling:
    """How the model's own next token is chosen. temperature 0 is greedy decoding."""

    temperature: float = 0.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self):
        if not (self.temperature >= 0 and self.top_k >= 0 and 0 < self.top_p <= 1):
            raise ValueError("temperature must be 0 or more, top-k 0 or more, top-p above 0 and at most 1")


@torch.inference_mode()
def choose(
    logits_WV: Tensor, rows: list[list[float]], positions: Sequence[int], sampling: Sampling
) -> list[int]:
    """The model's token after each row: the argmax (the lowest id of equals), or the inverse of the row's
    filtered distribution at a number that depends only on (seed, position of the token in the text).

    So a draft is right exactly if it is the token that plain decoding would put there, with temperature too.
    rows are kernels.summarize's. Raises GenerationError where a row's best logit is not finite.
    """
    if not all(math.isfinite(row[1]) for row in rows):
        raise GenerationError(
            f"the logits are not finite in {str(logits_WV.dtype).removeprefix('torch.')}; "
            "try --dtype bfloat16 or float32"
        )
    if sampling.temperature == 0:
        return [int(row[0]) for row in rows]
    logits_WV = logits_WV.double() / sampling.temperature
    if 0 < sampling.top_k < logits_WV.shape[-1]:
        lowest_W1 = logits_WV.topk(sampling.top_k).values[:, -1:]
        logits_WV = logits_WV.masked_fill(logits_WV < lowest_W1, -torch.inf)
    probabilities_WV = logits_WV.softmax(-1)
    if sampling.top_p < 1:
        # the smallest set of most likely tokens that holds top_p: those before whom less than top_p stands
        ordered_WV, ids_WV = probabilities_WV.sort(stable=True, dim=-1, descending=True)
        outside_WV = ordered_WV.cumsum(-1) - ordered_WV >= sampling.top_p
        probabilities_WV = probabilities_WV.masked_fill(outside_WV.gather(-1, ids_WV.argsort(-1)), 0)
    cumulative_WV = probabilities_WV.cumsum(-1)
    numbers = [random.Random(f"{sampling.seed}:{position}").random() for position in positions]
    targets_W1 = (
        torch.tensor(numbers, dtype=torch.float64, device=logits_WV.device)[:, None] * cumulative_WV[:, -1:]
    )
    return torch.searchsorted(cumulative_WV, targets_W1, right=True)[:, 0].tolist()


# ---- the loop ----------------------------------------------------------------------------------------------


@dataclass
class Cycle:
    """One forward pass and what came of it; the first one is the prefill."""

    draft: Draft
    path: list[int]  # accepted nodes, the root's 0 first
    tokens: list[int]  # emitted: accepted, then bonus, cut at a stop token or a limit
    origins: list[str]  # of each emitted token: prefill, spine, branch, bonus or plain
    seconds: dict[str, float]  # draft, model, commit
    finish_reason: str = ""  # stop, length or context, in the last cycle


def generate(
    model: Model,
    prompt: list[int],
    drafter: TreeSource | None = None,
    max_new_tokens: int = 256,
    stop_ids: frozenset[int] = frozenset(),
    sampling: Sampling = Sampling(),
    graph: bool = True,
) -> Iterator[Cycle]:
    """Algorithm 2: yields one Cycle a forward pass, the prefill first.

    prompt: token ids, at least one and at most max_position_embeddings (else GenerationError). Ends with
    finish_reason stop (a token of stop_ids, which is emitted), length (max_new_tokens) or context: the token
    that follows position max_position_embeddings - 1 is the last, since it needs no slot of its own. graph:
    capture CUDA graphs.
    """
    drafter = drafter or drafter_for(Settings())
    room = model.config.max_position_embeddings - len(prompt) + 1
    if not prompt:
        raise GenerationError("the prompt is empty and this tokenizer adds no BOS to start from")
    if room < 1:
        raise GenerationError(
            f"the prompt has {len(prompt)} tokens and the model's context holds "
            f"{model.config.max_position_embeddings}"
        )
    if max_new_tokens < 1:
        raise GenerationError("max_new_tokens must be at least 1")
    limit, reason = min((max_new_tokens, "length"), (room, "context"))
    clock = Clock()

    cache = Cache(model, len(prompt) + limit + kernels.MAX_WIDTH)
    rows = []
    for logits in prefill(model, prompt, cache, every_row=drafter.top_k > 0):
        rows += kernels.summarize(logits, drafter.top_k).tolist()
    (token,) = choose(logits[-1:], rows[-1:], [len(prompt)], sampling)
    clock.lap("model")
    drafter.start(prompt, *best(rows))
    drafter.commit([token])
    clock.lap("commit")
    finish = "stop" if token in stop_ids else reason if limit == 1 else ""
    yield Cycle(Draft(Tree.rooted(prompt[-1]), "prefill"), [0], [token], ["prefill"], clock.seconds, finish)

    scorer = Scorer(model, cache, drafter.width, drafter.top_k, graph)
    emitted = 1
    while not finish:
        clock = Clock()
        draft = drafter.draft()
        tree = draft.tree
        clock.lap("draft")

        logits, rows = scorer(tree.tokens, tree.depths, tree.mask)
        predictions = choose(logits, rows, [cache.length + depth + 1 for depth in tree.depths], sampling)
        clock.lap("model")

        path, bonus = walk(tree, predictions)
        tokens = [tree.tokens[node] for node in path[1:]] + [bonus]
        origins = [tree.sources[node] for node in path[1:]] + ["plain" if draft.route == "plain" else "bonus"]

        cut = next((i + 1 for i, token in enumerate(tokens) if token in stop_ids), None)
        if emitted + (cut or len(tokens)) >= limit and not (cut and emitted + cut <= limit):
            cut, finish = limit - emitted, reason
        elif cut:
            finish = "stop"
        tokens, origins = tokens[:cut], origins[:cut]
        cache.commit(path[:cut])

        drafter.learn(draft, path, tokens, *best(rows))
        emitted += len(tokens)
        clock.lap("commit")
        yield Cycle(draft, path, tokens, origins, clock.seconds, finish)


def best(rows: list[list[float]]) -> tuple[list[list[int]], list[list[float]]]:
    """The K best next tokens of each row of kernels.summarize, and the softmax over those K."""
    k = (len(rows[0]) - 2) // 2
    return [[int(token) for token in row[2 : 2 + k]] for row in rows], [row[2 + k :] for row in rows]


@torch.inference_mode()
def measure(model: Model, sizes: Sequence[int] = (4, 8, 16, 32, 64), length: int = 256) -> dict[int, float]:
    """Seconds of a pass by its number of rows, over `length` cached tokens, on this machine now: the fastest
    of three rounds for each of `sizes`, and the straight line between two of them for other multiples of 8.
    On a device, where every pass has one width, {}."""
    cache = Cache(model, length + kernels.MAX_WIDTH)
    if cache.on_device:
        return {}
    scorer, fastest = Scorer(model, cache, max(sizes), 10), dict.fromkeys(sizes, math.inf)
    cache.length = length
    for _ in range(3):
        for n in sizes:
            tree = chain_tree(0, [0] * (n - 1))
            started = time.perf_counter()
            scorer(tree.tokens, tree.depths, tree.mask)
            fastest[n] = min(fastest[n], time.perf_counter() - started)
    curve = dict(fastest)
    for low, high in zip(sizes, sizes[1:], strict=False):
        for n in range(low + 8 - low % 8, high, 8):
            curve[n] = fastest[low] + (fastest[high] - fastest[low]) * (n - low) / (high - low)
    return dict(sorted(curve.items()))


class Clock:
    """Splits a cycle's wall time into stages, in seconds."""

    def __init__(self):
        self.last, self.seconds = time.perf_counter(), dict.fromkeys(("draft", "model", "commit"), 0.0)

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] += now - self.last
        self.last = now


class Totals:
    """What a run adds up to; `add` each cycle. Counts are taken before the output is cut at a stop or limit,
    so 1 + accepted + bonus + plain = committed."""

    def __init__(self):
        self.tokens: list[int] = []
        self.passes = self.continuations = 0
        self.cycles, self.nodes, self.accepted, self.sizes = Counter(), Counter(), Counter(), Counter()
        self.seconds, self.finish_reason = Counter(), ""

    def add(self, cycle: Cycle) -> None:
        sources = cycle.draft.tree.sources
        taken = [sources[node] for node in cycle.path[1:]]
        self.tokens += cycle.tokens
        self.passes += 1
        self.cycles[cycle.draft.route] += 1
        self.nodes.update(sources[1:])
        self.sizes[len(sources)] += cycle.draft.route != "prefill"
        self.accepted.update(taken)
        self.continuations += any(pair == (SPINE, BRANCH) for pair in zip(taken, taken[1:], strict=False))
        self.seconds["prefill" if cycle.draft.route == "prefill" else "decode"] += sum(cycle.seconds.values())
        if cycle.draft.route != "prefill":
            self.seconds.update(cycle.seconds)
        self.finish_reason = cycle.finish_reason

    @property
    def tau(self) -> float:
        """Tokens per forward pass, the prefill counted as one."""
        return len(self.tokens) / self.passes if self.passes else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first over the seconds after the prefill."""
        return (len(self.tokens) - 1) / self.seconds["decode"] if self.seconds["decode"] else 0.0

    def report(self) -> dict:
        plain = self.cycles["plain"]
        bonus = self.passes - self.cycles["prefill"] - plain
        return {
            "finish_reason": self.finish_reason,
            "forward_passes": self.passes,
            "tau": round(self.tau, 4),
            "tokens_per_second": round(self.tokens_per_second, 3),
            "committed": self.cycles["prefill"] + sum(self.accepted.values()) + bonus + plain,
            "cycles": {route: self.cycles[route] for route in (SPINE, BRANCH, "chain", "plain")},
            "nodes": {source: self.nodes[source] for source in (SPINE, BRANCH)},
            "accepted": {source: self.accepted[source] for source in (SPINE, BRANCH)},
            "tree_sizes": {str(n): count for n, count in sorted(self.sizes.items()) if count},
            "bonus": bonus,
            "plain": plain,
            "continuations": self.continuations,
            "seconds": {
                name: round(self.seconds[name], 6)
                for name in ("prefill", "decode", "draft", "model", "commit")
            },
        }


# ---- the command line --------------------------------------------------------------------------------------

COLORS = {SPINE: "32", BRANCH: "36", "bonus": "33", "plain": "0", "prefill": "0"}


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise LoadError(f"{message} (see --help)")


def parser() -> Parser:
    p = Parser(
        prog="goose.py",
        description="Speculative decoding without training, with exactly plain decoding's output "
        "(Goose, arXiv 2604.02047).",
        allow_abbrev=False,
    )
    p.add_argument(
        "--weights",
        default=str(Path(__file__).resolve().parent / "weights"),
        metavar="DIR_OR_ID",
        help="a checkpoint folder or a Hub id (default: the embedded model, which writes Python)",
    )
    p.add_argument("--revision", help="branch, tag or commit of a Hub id")
    p.add_argument("--prompt", help="the text to continue")
    p.add_argument("--prompt-file", metavar="FILE", help="read the prompt from a file; - is standard input")
    p.add_argument("--chat", action="store_true", help="put the prompt into the checkpoint's chat template")
    p.add_argument("--system", metavar="TEXT", help="a system message for --chat")
    p.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="default %(default)s")
    p.add_argument("--ignore-eos", action="store_true", help="go on after a stop token")
    p.add_argument("--dtype", default="auto", choices=["auto", *DTYPES], help="auto: the checkpoint's own")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    p.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0 (the default) is greedy decoding"
    )
    p.add_argument(
        "--top-k", type=int, default=0, metavar="K", help="sample among the K likeliest tokens (0: all)"
    )
    p.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="sample among the likeliest that hold P"
    )
    p.add_argument("--seed", type=int, default=0, help="of the sampling; the text depends on it alone")
    p.add_argument("--json", action="store_true", help="print one JSON object at the end instead of the text")
    p.add_argument("--compare", action="store_true", help="decode plainly first; exit 1 if the tokens differ")
    p.add_argument(
        "--color", action="store_true", help="colour each token by where it came from (on a terminal)"
    )
    p.add_argument(
        "--show-tree",
        action="store_true",
        help="print each cycle's tree: * accepted, token, source, estimated chance of the path down to it",
    )
    p.add_argument("--trace", metavar="FILE.html", help="write a page that shows every cycle's tree")
    p.add_argument("--no-graph", dest="graph", action="store_false", help="do not capture a CUDA graph")
    group = p.add_argument_group(
        "drafting (Table 5 of the paper)",
        "The best-first tree goes by --width, --successors, --no-context, --no-transitions, --no-bigram and "
        "--no-prefill-harvest; the others shape Algorithm 1 (--tree spine) and the other methods.",
    )
    for f in dataclasses.fields(Settings):
        name = f.name.replace("_", "-")
        if f.name == "method":
            group.add_argument("--method", default=f.default, choices=METHODS, help="default %(default)s")
        elif f.name == "tree":
            group.add_argument(
                "--tree",
                default=f.default,
                choices=TREES,
                help="goose's: best has the largest expected yield, spine is the paper's Algorithm 1 "
                "(default %(default)s)",
            )
        elif f.type in ("bool", bool):
            group.add_argument(
                f"--no-{name}", dest=f.name, action="store_false", help=f"do not {f.metadata['help']}"
            )
        else:
            group.add_argument(
                f"--{name}",
                type=type(f.default),
                default=f.default,
                metavar="N",
                help=f"{f.metadata['help']} (default %(default)s)",
            )
    return p


def read_prompt(options: argparse.Namespace) -> str:
    if (options.prompt is None) == (options.prompt_file is None):
        raise LoadError("give the prompt with either --prompt TEXT or --prompt-file FILE")
    if options.prompt is not None:
        return options.prompt
    try:
        if options.prompt_file == "-":
            return sys.stdin.buffer.read().decode("utf-8")
        return Path(options.prompt_file).read_text(encoding="utf-8")
    except OSError as error:
        raise LoadError(f"{options.prompt_file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise LoadError(f"{options.prompt_file}: not UTF-8 text") from None


def run(
    model: Model,
    tokenizer: Tokenizer,
    prompt: list[int],
    drafter: TreeSource,
    options: argparse.Namespace,
    show: bool,
    cycles: list[Cycle] | None = None,
) -> Totals:
    """One generation; shows the text as it comes where asked, and adds its cycles to `cycles`. Ctrl-C ends it
    with what there is so far."""
    totals, stream = Totals(), Stream(tokenizer, prompt)
    stops = frozenset() if options.ignore_eos else tokenizer.stop_ids
    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.seed)
    colored = show and options.color and sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def write(text: str, origin: str = "plain") -> None:
        if show and text:
            sys.stdout.write(f"\x1b[{COLORS[origin]}m{text}\x1b[0m" if colored else text)
            sys.stdout.flush()

    if colored:
        for origin in (SPINE, BRANCH, "bonus", "plain"):
            write(origin + " ", origin)
        write("\n")
    try:
        for cycle in generate(model, prompt, drafter, options.max_new_tokens, stops, sampling, options.graph):
            totals.add(cycle)
            if cycles is not None:
                cycles.append(cycle)
            if show and options.show_tree:
                write(
                    "\n" + trace.show(cycle, tokenizer, "utf" in (sys.stdout.encoding or "").lower()) + "\n"
                )
            for token, origin in zip(cycle.tokens, cycle.origins, strict=True):
                write(stream.push([token]), origin)
    except KeyboardInterrupt:
        totals.finish_reason = "interrupted"
    finally:
        write(stream.flush())
        write("\n" if totals.tokens else "")
    return totals


def note(text: str) -> None:
    """A progress line on a terminal, replaced by the next; nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        names = [f.name for f in dataclasses.fields(Settings)]
        settings = Settings(**{name: getattr(options, name) for name in names})
        Sampling(options.temperature, options.top_k, options.top_p, options.seed)
    except ValueError as error:
        raise LoadError(str(error)) from None
    if options.max_new_tokens < 1:
        raise LoadError("--max-new-tokens must be at least 1")
    if options.system is not None and not options.chat:
        raise LoadError("--system needs --chat")
    text = read_prompt(options)
    if options.trace and (Path(options.trace).is_dir() or not os.access(Path(options.trace).parent, os.W_OK)):
        raise LoadError(f"{options.trace}: not a file that can be written")

    started = time.perf_counter()
    folder = find(options.weights, options.revision)
    tokenizer = Tokenizer(folder)
    if options.chat:
        messages = [{"role": "system", "content": options.system}] if options.system is not None else []
        prompt = tokenizer.encode_chat([*messages, {"role": "user", "content": text}])
    else:
        prompt = tokenizer.encode(text)
    model = load(folder, options.dtype, options.device)
    load_seconds = time.perf_counter() - started

    show = not options.json
    width = settings.width or (64 if model.device.type == "cuda" else Drafter.WIDTH)
    fixed = dataclasses.replace(settings, width=width)
    seconds = {}
    if settings.method == "goose" and settings.tree == "best" and not settings.width:
        note("measuring the cost of a pass ...")
        seconds = measure(model, length=max(256, len(prompt)))
        note("")
    drafter = BestDrafter(settings, seconds) if seconds else drafter_for(fixed)
    if options.compare:
        plain = Settings(method="greedy", width=1)
        greedy = run(model, tokenizer, prompt, Drafter(plain), options, False)
        if greedy.finish_reason == "interrupted":
            return 130
    cycles: list[Cycle] = []
    totals = run(model, tokenizer, prompt, drafter, options, show, cycles)
    report = {
        "method": settings.method,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "prompt_tokens": len(prompt),
        "tokens": totals.tokens,
        "text": tokenizer.decode(totals.tokens, prompt),
        **totals.report(),
        "settings": dataclasses.asdict(settings),
        "width": drafter.width,
        "pass_seconds": {str(n): round(s, 6) for n, s in seconds.items()},
    }
    report["seconds"] = {"load": round(load_seconds, 6), **report["seconds"]}
    same, compare = True, options.compare and totals.finish_reason != "interrupted"
    if compare:
        same = greedy.tokens == totals.tokens
        if not same:  # a pass over one row may round otherwise; plain decoding in this run's passes decides
            padded = Drafter(dataclasses.replace(fixed, method="greedy"))
            judge = run(model, tokenizer, prompt, padded, options, False)
            if judge.finish_reason == "interrupted":
                return 130
            same = judge.tokens == totals.tokens
        ratio = totals.tokens_per_second / greedy.tokens_per_second if greedy.tokens_per_second else 0.0
        report["compare"] = {
            "greedy_tokens_per_second": round(greedy.tokens_per_second, 3),
            "ratio": round(ratio, 4),
            "same_tokens": same,
        }
    if options.trace:
        try:
            Path(options.trace).write_text(trace.page(cycles, prompt, tokenizer, report), encoding="utf-8")
        except OSError as error:
            raise LoadError(f"{options.trace}: {error.strerror}") from None
    if options.json:
        print(json.dumps(report))
    else:
        print(
            f"[{len(totals.tokens)} tokens in {totals.passes} passes, tau {totals.tau:.2f}, "
            f"{totals.tokens_per_second:.1f} tokens/s, ended by {totals.finish_reason}]",
            file=sys.stderr,
        )
        if compare:
            print(
                f"[greedy {greedy.tokens_per_second:.1f} tokens/s, "
                f"{settings.method} {totals.tokens_per_second:.1f}, "
                f"ratio {ratio:.2f}x, tau {totals.tau:.2f}, tokens {'the same' if same else 'DIFFER'}]",
                file=sys.stderr,
            )
    if totals.finish_reason == "interrupted":
        return 130
    return 0 if same else 1


def command(arguments: list[str] | None = None) -> int:
    """main with every foreseen failure turned into one line and an exit code."""
    try:
        code = main(arguments)
        sys.stdout.flush()
        return code
    except (LoadError, GenerationError) as error:
        print(f"goose.py: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")
    sys.stderr.reconfigure(errors="replace")
    sys.exit(command())
