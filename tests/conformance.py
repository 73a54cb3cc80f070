"""Compare this implementation with inputs and outputs recorded from the authors' own (version 1.0.0).

    python -m tests.conformance DIR        # DIR holds matcher.json, ..., like tests/vectors

Prints cases and mismatches for each file and exits 1 on any mismatch. runs.json needs the model that it was
recorded with: its folder in GOOSE_TEST_WEIGHTS.
"""

import json
import os
import sys
from pathlib import Path

import torch

import kernels
from goose import Drafter, Settings, Totals, best, generate
from model import Tokenizer, load
from sources import AcceptanceAverage, AdjacencyTable, ContextMatcher, confidence_of
from tree import Tree, isotropic_tree, spine_tree, walk


def table_of(case: dict) -> AdjacencyTable:
    """The recorded table; it names at most top_k successors, as a table of that K would."""
    table, k = AdjacencyTable(case["config"]["use_bigram"]), case["config"]["top_k"]
    table.unigram = {int(token): tuple(map(tuple, entry[:k])) for token, entry in case["unigram"].items()}
    table.bigram = {(before, token): tuple(map(tuple, entry[:k])) for before, token, entry in case["bigram"]}
    return table


def same_tree(tree: Tree, wanted: dict) -> bool:
    spine = wanted.get("spine_nodes", 0)
    sources = ["root"] + ["spine"] * spine + ["branch"] * (len(tree) - 1 - spine)
    return (tree.tokens, tree.parents, tree.depths, tree.sources) == (
        wanted["tokens"],
        wanted["parents"],
        wanted["depths"],
        sources,
    )


def check_matcher(case: dict) -> bool:
    matcher = ContextMatcher(case["ngram_lengths"], case["max_chain"])
    for part in case["parts"]:
        matcher.extend(part)
    match = matcher.chain()
    confidence = confidence_of(match, case["long_match"])
    extended = matcher.extended(match, confidence, case["long_match"]) if confidence > 0.6 else None
    return (
        list(match.tokens) == case["chain"]
        and match.consensus == case["consensus"]
        and abs(confidence - case["confidence"]) < 1e-6
        and extended == case.get("extended")
    )


def check_adjacency(case: dict) -> bool:
    table = AdjacencyTable()
    for rows in case["passes"]:
        summary = kernels.summarize(torch.tensor(rows["logits"]), case["top_k"]).tolist()
        table.harvest(rows["tokens"], rows["before"], *best(summary))

    def same(query: dict) -> bool:
        ours, theirs = table.successors(query["token"], query["before"]), query["successors"]
        return [t for t, _ in ours] == [t for t, _ in theirs] and all(
            abs(a - b) < 1e-3 for (_, a), (_, b) in zip(ours, theirs, strict=True)
        )

    return all(map(same, case["queries"]))


def check_spine_trees(case: dict) -> bool:
    config, chain, confidence = case["config"], case["chain"], case["confidence"]
    budget = config["budget"] + int(confidence * (100 - config["budget"]))
    share = AcceptanceAverage(case["acceptance_average"]).spine_share(confidence)
    tree = spine_tree(
        case["anchor"],
        case["before"],
        chain,
        table_of(case),
        budget,
        min(len(chain), int(budget * share)),
        config["rho"],
        config["max_depth"],
        config["top_k"],
        config["min_score"],
    )
    return same_tree(tree, case["tree"])


def check_isotropic_trees(case: dict) -> bool:
    config = case["config"]
    tree = isotropic_tree(
        case["anchor"],
        case["before"],
        table_of(case),
        config["budget"],
        case["branching"],
        config["max_depth"],
        config["min_score"],
    )
    return same_tree(tree, case["tree"])


def check_walks(case: dict) -> bool:
    tree = Tree(case["tree"]["tokens"], case["tree"]["parents"], [0] * len(case["tree"]["tokens"]), [])
    path, bonus = walk(tree, case["predictions"])
    return path[1:] == case["path"] and bonus == case["bonus"]


RUNS = {
    "goose": {},
    "isotropic3": {"method": "isotropic"},
    "chain": {"method": "lookup"},
    "recycling": {"method": "recycling"},
    "no_bigram": {"bigram": False},
    "no_confidence": {"confidence": False},
    "no_spine_branches": {"rho": 0.0},
    "no_prefill_harvest": {"prefill_harvest": False},
}


def counts(totals: Totals) -> dict[str, int]:
    """A run's totals under the names of runs.json."""
    return {
        "forward_passes": totals.passes,
        "spine_tree_cycles": totals.cycles["spine"],
        "branch_tree_cycles": totals.cycles["branch"],
        "chain_cycles": totals.cycles["chain"],
        "plain_cycles": totals.cycles["plain"],
        "draft_nodes": sum(totals.nodes.values()),
        "spine_nodes": totals.nodes["spine"],
        "spine_accepted": totals.accepted["spine"],
        "branch_accepted": totals.accepted["branch"],
        "spine_continuations": totals.continuations,
    }


def check_run(case: dict, model, tokenizer) -> dict[str, dict]:
    """{method: what differs} of a whole run on the real model in float32, trees whole (128 nodes fit)."""
    differs = {}
    for method, wanted in case["methods"].items():
        totals = Totals()
        drafter = Drafter(Settings(width=128, tree="spine", **RUNS[method]))
        for cycle in generate(
            model, tokenizer.encode(case["prompt"]), drafter, case["max_new_tokens"], frozenset([2])
        ):
            totals.add(cycle)
        ours = counts(totals)
        bad = {name: (value, wanted[name]) for name, value in ours.items() if value != wanted[name]}
        if totals.tokens != case["tokens"]:
            bad["tokens"] = (totals.tokens, case["tokens"])
        if bad:
            differs[method] = bad
    return differs


CHECKS = {
    "matcher": check_matcher,
    "adjacency": check_adjacency,
    "spine_trees": check_spine_trees,
    "isotropic_trees": check_isotropic_trees,
    "walks": check_walks,
}


def mismatches(folder: Path) -> dict[str, tuple[int, list[int]]]:
    """For each file of the folder that CHECKS knows: the number of cases, and the indices of those that
    differ."""
    found = {}
    for name, check in CHECKS.items():
        if (folder / f"{name}.json").exists():
            cases = json.loads((folder / f"{name}.json").read_text())
            found[name] = (len(cases), [i for i, case in enumerate(cases) if not check(case)])
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    folder, weights = Path(sys.argv[1]), os.environ.get("GOOSE_TEST_WEIGHTS")
    result = mismatches(folder)
    for name, (cases, bad) in result.items():
        print(
            f"{name:16} {cases:5} cases  {len(bad):4} mismatches" + (f"  (first: {bad[:5]})" if bad else "")
        )
    if (folder / "runs.json").exists() and weights:
        model, tokenizer = load(Path(weights), "float32", "cpu"), Tokenizer(Path(weights))
        cases = json.loads((folder / "runs.json").read_text())
        runs = {
            (i, method): bad
            for i, case in enumerate(cases)
            for method, bad in check_run(case, model, tokenizer).items()
        }
        print(f"{'runs':16} {len(cases) * len(RUNS):5} cases  {len(runs):4} mismatches")
        for (i, method), bad in runs.items():
            print(
                f"    case {i} {method}: "
                + ", ".join(f"{name} {a} (theirs {b})" for name, (a, b) in bad.items())
            )
        result["runs"] = (len(cases), list(runs))
    sys.exit(any(bad for _, bad in result.values()) or not result)
