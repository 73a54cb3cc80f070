"""The loop: no tree can change the output, whatever drafts it, and all counts add up."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from goose import (
    METHODS,
    Cycle,
    Draft,
    Drafter,
    GenerationError,
    Sampling,
    Settings,
    Totals,
    drafter_for,
    generate,
    measure,
)
from model import ARCHITECTURES, Cache, Scorer
from tree import BRANCH, SPINE, Tree, chain_tree

MODELS = st.integers(0, len(ARCHITECTURES) - 1)
EXACT = st.sampled_from(["float32", "bfloat16", "float16"])
PROMPTS = st.one_of(
    st.lists(st.integers(0, 63), min_size=1, max_size=40),
    st.builds(
        lambda part, times: part * times,
        st.lists(st.integers(0, 63), min_size=1, max_size=7),
        st.integers(1, 8),
    ),
)


def tokens_of(cycles) -> list[int]:
    return [token for cycle in cycles for token in cycle.tokens]


def greedy(model, prompt, most=24, stops=frozenset(), sampling=Sampling(), width=0):
    drafter = Drafter(Settings(method="greedy", width=width))
    return tokens_of(generate(model, prompt, drafter, most, stops, sampling))


class Arbitrary:
    """Drafts whatever Hypothesis draws: any parents, any tokens, a new tree each pass; half of the tokens are
    taken from the true continuation, so that long paths are accepted too."""

    top_k = 0

    def __init__(self, data, truth, width):
        self.data, self.truth, self.width, self.text = data, truth, width, []

    def start(self, prompt, ids, scores):
        self.prompt = len(prompt)

    def commit(self, tokens):
        self.text += tokens

    def draft(self):
        size = self.data.draw(st.integers(1, self.width))
        random = self.data.draw(st.randoms(use_true_random=False))
        tree = Tree.rooted(self.text[-1])
        for _ in range(size - 1):
            parent = random.randrange(len(tree)) if random.random() < 0.5 else len(tree) - 1
            at = len(self.text) + tree.depths[parent]
            right = self.truth[at] if at < len(self.truth) and random.random() < 0.7 else random.randrange(64)
            tree.add(parent, right, random.choice([SPINE, BRANCH]))
        return Draft(tree, BRANCH)

    def learn(self, draft, path, committed, ids, scores):
        self.text += committed


@settings(deadline=None, max_examples=150)
@given(data=st.data(), which=MODELS, dtype=EXACT, prompt=PROMPTS, width=st.integers(2, 128))
def test_no_tree_can_change_the_output(tiny_models, data, which, dtype, prompt, width):
    model = tiny_models[dtype][which]
    truth = greedy(model, prompt)
    assert tokens_of(generate(model, prompt, Arbitrary(data, truth, width), 24)) == truth


@settings(deadline=None, max_examples=200)
@given(data=st.data(), which=MODELS, dtype=EXACT, prompt=PROMPTS, method=st.sampled_from(METHODS))
def test_every_method_gives_greedy_decodings_tokens(tiny_models, data, which, dtype, prompt, method):
    """For every budget, switch, stop set and limit."""
    flags = {
        name: data.draw(st.booleans(), name)
        for name in ("context", "transitions", "spine_branches", "bigram", "confidence", "prefill_harvest")
    }
    chosen = Settings(
        method=method,
        tree=data.draw(st.sampled_from(["best", "spine"]), "tree"),
        width=data.draw(st.integers(0, 128), "width"),
        budget=data.draw(st.integers(1, 100), "budget"),
        rho=data.draw(st.floats(0, 1), "rho"),
        max_depth=data.draw(st.integers(1, 9), "depth"),
        **flags,
    )
    curve = data.draw(st.sampled_from([None, {4: 1.0, 16: 1.2, 64: 2.0}, {4: 1.0, 8: 3.0}]), "curve")
    most = data.draw(st.integers(1, 40), "limit")
    stops = data.draw(st.frozensets(st.integers(0, 63), max_size=4), "stops")
    model, totals = tiny_models[dtype][which], Totals()
    drafter = drafter_for(chosen, curve)
    committed = 0
    for cycle in generate(model, prompt, drafter, most, stops):
        totals.add(cycle)
        committed += len(cycle.path)
        assert len(cycle.draft.tree) <= drafter.width
        assert len(cycle.tokens) == len(cycle.origins)
    truth = greedy(model, prompt, most, width=1 if chosen.width == 1 else 0)  # one row rounds otherwise
    end = next((i + 1 for i, token in enumerate(truth) if token in stops), most)
    assert totals.tokens == truth[:end]
    assert totals.finish_reason == ("stop" if truth[end - 1] in stops else "length")
    report = totals.report()
    assert report["committed"] == committed >= len(totals.tokens)
    assert report["committed"] == (1 + sum(report["accepted"].values()) + report["bonus"] + report["plain"])
    assert sum(report["cycles"].values()) + 1 == report["forward_passes"]
    if method == "greedy":
        assert totals.passes == len(totals.tokens) and not totals.nodes


@settings(deadline=None, max_examples=60)
@given(data=st.data(), which=MODELS, dtype=EXACT, prompt=PROMPTS)
def test_the_state_a_run_leaves_is_that_of_plain_decoding(tiny_models, data, which, dtype, prompt):
    """Cache contents and position bit for bit; the matcher's text; the unigram keys of every committed
    token."""
    model, caches, runs = tiny_models[dtype][which], [], []
    original = Cache.__init__

    def remember(self, *args):
        original(self, *args)
        caches.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cache, "__init__", remember)
        truth = greedy(model, prompt)
        tree = data.draw(st.sampled_from(["best", "spine"]))
        drafter = drafter_for(Settings(tree=tree, width=data.draw(st.integers(2, 64))))
        runs.append(tokens_of(generate(model, prompt, drafter, 24)))
        arbitrary = Arbitrary(data, truth, 20)
        runs.append(tokens_of(generate(model, prompt, arbitrary, 24)))
    assert runs == [truth, truth]
    plain, *others = caches
    assert plain.length == len(prompt) + len(truth) - 1  # the newest token has not been forwarded
    for cache in others:
        assert cache.length == plain.length
        assert torch.equal(cache.keys[:, :, : plain.length], plain.keys[:, :, : plain.length])
        assert torch.equal(cache.values[:, :, : plain.length], plain.values[:, :, : plain.length])
    assert drafter.matcher.text == prompt + truth
    assert set(drafter.table.unigram) >= set((prompt + truth)[:-1])


class Fixed:
    """Drafts trees from a function of the true continuation; counts what was accepted."""

    width, top_k = 128, 0

    def __init__(self, truth, build):
        self.truth, self.build, self.text, self.accepted = truth, build, [], []

    def start(self, prompt, ids, scores):
        pass

    def commit(self, tokens):
        self.text += tokens

    def draft(self):
        return Draft(self.build(self.text[-1], self.truth[len(self.text) :]), BRANCH)

    def learn(self, draft, path, committed, ids, scores):
        self.text += committed
        self.accepted.append(len(path) - 1)


def test_a_wrong_draft_is_never_committed_at_any_depth(tiny_models):
    for model in tiny_models["float32"]:
        truth = greedy(model, [5, 6, 7])
        for depth in (1, 2, 8):

            def wrong(anchor, rest, depth=depth):
                tree = Tree.rooted(anchor)
                for i in range(depth):
                    tree.add(len(tree) - 1, (rest[i] + 1) % 64 if i < len(rest) else 0, BRANCH)
                return tree

            drafter = Fixed(truth, wrong)
            cycles = list(generate(model, [5, 6, 7], drafter, 24))
            assert tokens_of(cycles) == truth and set(drafter.accepted) == {0}
            assert all(len(cycle.tokens) == 1 for cycle in cycles)


def last_sibling_right(anchor, rest):
    """Each level: two wrong children, then the right one, which alone has children; accepted rows lie
    scattered."""
    tree, node = Tree.rooted(anchor), 0
    for token in rest[:5]:
        tree.add(node, (token + 1) % 64, BRANCH)
        tree.add(node, (token + 2) % 64, BRANCH)
        node = tree.add(node, token, BRANCH)
    return tree


@pytest.mark.parametrize("filler", [1e4, float("nan")])
def test_scattered_paths_are_compacted_and_dead_slots_never_seen(tiny_models, filler):
    """After every commit all slots past the live length are overwritten; text and logits stay as they are."""
    for dtype, models in tiny_models.items():
        for model in models:
            truth = greedy(model, [5, 6, 7], 40)
            original = Cache.commit

            def poison(self, path, original=original):
                original(self, path)
                self.keys[:, :, self.length :] = filler
                self.values[:, :, self.length :, :-8] = filler

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Cache, "commit", poison)
                drafter = Fixed(truth, last_sibling_right)
                assert tokens_of(generate(model, [5, 6, 7], drafter, 40)) == truth, dtype
            assert max(drafter.accepted) == 5


def test_the_cache_follows_the_text_whatever_is_accepted(tiny_models):
    """None, some, all accepted, and an empty draft: positions never slip."""
    for model in tiny_models["float32"]:
        truth = greedy(model, [5, 6, 7], 40)
        for take in (0, 1, 2, 5):

            def partly(anchor, rest, take=take):
                tree = Tree.rooted(anchor)
                for i, token in enumerate(rest[:5]):
                    tree.add(len(tree) - 1, token if i < take else (token + 1) % 64, SPINE)
                return tree if take else Tree.rooted(anchor)

            emitted, lengths, original = 1, [], Cache.commit

            def record(self, path, original=original, lengths=lengths):
                original(self, path)
                lengths.append(self.length)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Cache, "commit", record)
                cycles = list(generate(model, [5, 6, 7], Fixed(truth, partly), 40))
            for cycle, length in zip(cycles[1:], lengths[1:], strict=True):
                emitted += len(cycle.tokens)
                assert length == 3 + emitted - 1
            assert tokens_of(cycles) == truth


@pytest.mark.parametrize("method", METHODS)
def test_every_limit_is_met_exactly(tiny_models, method):
    model = tiny_models["float32"][0]
    prompt = [5, 6, 7, 8] * 4
    truth = greedy(model, prompt, 40)
    for most in range(1, 41):
        cycles = list(generate(model, prompt, drafter_for(Settings(method=method)), most))
        assert tokens_of(cycles) == truth[:most]
        assert cycles[-1].finish_reason == "length" and not any(c.finish_reason for c in cycles[:-1])


def stop_case(model, at, most):
    """A draft that holds the whole continuation, with the token at index `at` a stop token."""
    truth = greedy(model, [5, 6, 7], 12)
    stop = truth[at]
    first = truth.index(stop)
    cycles = list(
        generate(
            model,
            [5, 6, 7],
            Fixed(truth, lambda anchor, rest: last_sibling_right(anchor, rest)),
            most,
            frozenset([stop]),
        )
    )
    return tokens_of(cycles), cycles[-1].finish_reason, truth, first


def test_a_stop_token_inside_an_accepted_path_ends_the_text_there(tiny_models):
    for model in tiny_models["float32"]:
        for at in range(12):
            tokens, reason, truth, first = stop_case(model, at, 12)
            assert tokens == truth[: first + 1] and reason == "stop"
            if first > 0:
                tokens, reason, truth, first = stop_case(model, at, first)
                assert tokens == truth[:first] and reason == "length"


def test_the_context_ends_generation_cleanly(tiny_models):
    """A prompt of exactly the context's length yields one token; the token after the last position is the
    last."""
    for model in tiny_models["float32"]:
        context = model.config.max_position_embeddings
        for spare in (0, 1, 3, 9):
            prompt = [i % 64 for i in range(context - spare)]
            for method in ("greedy", "goose"):
                cycles = list(generate(model, prompt, drafter_for(Settings(method=method)), 20))
                wanted = min(spare + 1, 20)
                assert len(tokens_of(cycles)) == wanted and cycles[-1].finish_reason == "context"
            assert tokens_of(cycles) == greedy(model, prompt, 20)
        one = list(generate(model, [1] * context, drafter_for(Settings()), 1))
        assert len(tokens_of(one)) == 1
        with pytest.raises(GenerationError, match=f"{context + 1} tokens.*{context}"):
            next(generate(model, [1] * (context + 1)))
        with pytest.raises(GenerationError, match="empty"):
            next(generate(model, []))
        with pytest.raises(GenerationError, match="at least 1"):
            next(generate(model, [1], max_new_tokens=0))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_prompts_shorter_than_an_ngram_work(tiny_models, length):
    for model in tiny_models["float32"]:
        prompt = [9] * length
        for method in METHODS:
            assert tokens_of(generate(model, prompt, drafter_for(Settings(method=method)), 24)) == greedy(
                model, prompt
            )


def test_runs_do_not_leak_into_each_other(tiny_models):
    """The same trees and the same text, whatever ran before on the same model."""
    model = tiny_models["float32"][0]
    long, short = [5, 6, 7, 8, 9] * 12, [3, 5]
    for tree in ("best", "spine"):
        runs = [list(generate(model, p, drafter_for(Settings(tree=tree)), 24)) for p in (long, short, long)]
        assert [c.draft for c in runs[0]] == [c.draft for c in runs[2]]
        assert tokens_of(runs[0]) == greedy(model, long) and tokens_of(runs[1]) == greedy(model, short)


def test_equal_logits_take_the_lowest_id_everywhere(tmp_path):
    from model import load
    from tests.conftest import random_tensors, tiny_config, write_folder

    config = tiny_config()
    tensors = random_tensors(config)
    tensors["model.norm.weight"].fill_(1.0)
    head = tensors["lm_head.weight"]
    tensors["lm_head.weight"] = torch.zeros_like(head)  # all logits are equal but for rows 5 and 9
    model = load(write_folder(tmp_path / "ties", config, tensors), "float32", "cpu")
    assert set(greedy(model, [3, 4, 9])) == {0}
    tensors["lm_head.weight"] = head.clone()
    tensors["lm_head.weight"][9] = tensors["lm_head.weight"][5] = 50 * head[5].abs() * torch.sign(head[5])
    model = load(write_folder(tmp_path / "ties2", config, tensors), "float32", "cpu")
    truth = greedy(model, [3, 4, 9], 60)
    assert 5 in truth and 9 not in truth
    for method in METHODS:
        assert tokens_of(generate(model, [3, 4, 9], drafter_for(Settings(method=method)), 60)) == truth


def test_a_drafts_route_and_its_tokens_origins(tiny_models):
    """Each token is named for the node that it was, the one after the path bonus, or plain where nothing was
    drafted."""
    model = tiny_models["float32"][0]
    truth = greedy(model, [5, 6, 7], 40)

    def mixed(anchor, rest):
        tree = Tree.rooted(anchor)
        for i, token in enumerate(rest[:4]):
            tree.add(len(tree) - 1, token, SPINE if i < 2 else BRANCH)
        return tree

    first, *others = generate(model, [5, 6, 7], Fixed(truth, mixed), 31)
    assert first.origins == ["prefill"]
    assert [c.origins for c in others] == [["spine", "spine", "branch", "branch", "bonus"]] * 6
    origins = [c.origins for c in generate(model, [5, 6, 7], Drafter(Settings(method="greedy")), 5)]
    assert origins == [["prefill"]] + [["plain"]] * 4


SUCCESSORS = {5: (6, 9), 6: (7, 8), 7: (5, 4)}  # what the table of a started drafter knows


def started(settings, text, seconds=None):
    """A drafter after its prefill: each token of the text was scored, with these successors."""
    drafter = drafter_for(settings, seconds)
    drafter.start(
        text[:-1],
        [list(SUCCESSORS.get(token, (token + 1, token + 2))) for token in text[:-1]],
        [[0.7, 0.3]] * (len(text) - 1),
    )
    drafter.commit(text[-1:])
    return drafter


def paths(tree):
    return [(tree.path_to(node), tree.sources[node]) for node in range(1, len(tree))]


def test_each_method_drafts_its_own_tree():
    """The text repeats 5 6 7 and ends with 5; what the table names is in SUCCESSORS."""
    text = [5, 6, 7] * 6 + [5]

    def draft(method, **changes):
        return started(Settings(method=method, tree="spine", **changes), text).draft()

    assert (draft("greedy").route, len(draft("greedy").tree)) == ("plain", 1)
    lookup = draft("lookup", width=5)
    assert lookup.route == "chain" and lookup.tree == chain_tree(5, [6, 7, 5, 6])
    recycling = draft("recycling", width=4)
    assert recycling.route == BRANCH and SPINE not in recycling.tree.sources
    assert [path for path, _ in paths(recycling.tree)] == [[6], [9], [6, 7]]
    isotropic = draft("isotropic", width=6, branching=2)
    assert isotropic.route == BRANCH
    assert [path for path, _ in paths(isotropic.tree)] == [[6], [9], [6, 7], [6, 8], [6, 7, 5]]
    goose = draft("goose", width=5)
    assert goose.route == SPINE and goose.match.consensus
    assert paths(goose.tree) == [([6, 7, 5, 6][:n], SPINE) for n in (1, 2, 3, 4)]
    apart = draft("goose", width=5, confidence=False)
    assert paths(apart.tree)[:2] == [([6], SPINE), ([6, 7], SPINE)] and ([9], BRANCH) in paths(apart.tree)


def test_the_best_drafters_nodes_are_named_for_the_source_that_drafted_them():
    text = [1, 5, 6, 2, 1, 5]
    tree = started(Settings(width=12), text).draft().tree
    assert ([6], SPINE) in paths(tree) and ([9], BRANCH) in paths(tree)
    alone = started(Settings(width=12, context=False), text).draft()
    assert alone.route == BRANCH and SPINE not in alone.tree.sources and len(alone.tree) > 1
    alone = started(Settings(width=12, transitions=False), text).draft()
    assert alone.route == SPINE and BRANCH not in alone.tree.sources and len(alone.tree) > 1


def test_a_tree_holds_as_many_nodes_as_pay():
    """At a rate of one token a second. A drafter that has seen nothing takes a slower one: larger trees."""
    text = [5, 6, 7] * 3 + [5]
    curves = {64: {4: 1.0, 64: 1.0}, 4: {4: 1.0, 64: 1000.0}, 8: {4: 1.0, 8: 1.1, 64: 1e3}}
    for nodes, seconds in curves.items():
        drafter = started(Settings(), text, seconds)
        assert drafter.tokens / drafter.cost == pytest.approx(1 / max(seconds.values()))
        drafter.tokens = drafter.cost = 1.0
        assert len(drafter.draft().tree) == nodes


def test_the_best_drafter_learns_from_what_the_model_said():
    """The candidates at each node of the path are judged by the token that was committed there."""
    drafter = started(Settings(), [1, 2, 3, 5], {4: 1.0, 16: 3.0})
    draft = drafter.draft()
    offered = list(drafter.offered)
    node = next(n for n in range(1, len(draft.tree)) if draft.tree.parents[n] == 0)
    committed = [draft.tree.tokens[node], 63]
    before = {kind: list(counts) for kind, counts in drafter.candidates.counts.items()}
    rows = [[60 + n % 4, 50] for n in range(len(draft.tree))]
    drafter.learn(draft, [0, node], committed, rows, [[0.8, 0.2]] * len(rows))
    for found, truth in ((offered[0], committed[0]), (offered[node], committed[1])):
        for _, token, _, kind in found:
            before[kind][0] += token == truth
            before[kind][1] += 1
    assert drafter.candidates.counts == before
    assert drafter.matcher.text == [1, 2, 3, 5, *committed]
    assert drafter.table.bigram[3, 5] == ((60, 0.8), (50, 0.2))  # the root's row: what stands before is known
    pair = (5, draft.tree.tokens[node])
    last = max(n for n in range(1, len(rows)) if (draft.tree.before(n), draft.tree.tokens[n]) == pair)
    assert drafter.table.bigram[pair] == ((60 + last % 4, 0.8), (50, 0.2))
    assert drafter.tokens == pytest.approx(0.98 * 5 + 2)
    assert drafter.cost == pytest.approx(0.98 * 15 + (1.0 if len(draft.tree) <= 4 else 3.0))


STAGES = ("draft", "model", "commit")


def test_totals_add_up_by_hand():
    def cycle(route, nodes, path, tokens, *seconds):
        tree = Tree.rooted(0)
        for source in nodes:
            tree.add(len(tree) - 1, 1, source)
        return Cycle(Draft(tree, route), path, tokens, [], dict(zip(STAGES, seconds, strict=True)))

    totals = Totals()
    totals.add(cycle("prefill", [], [0], [1], 0.0, 5.0, 0.0))
    totals.add(cycle(SPINE, [SPINE, BRANCH, BRANCH], [0, 1, 2], [1, 1, 2], 0.25, 1.0, 0.25))
    totals.add(cycle("plain", [], [0], [3], 0.0, 0.5, 0.0))
    report = totals.report()
    assert report["forward_passes"] == 3 and report["tau"] == round(5 / 3, 4) and report["committed"] == 5
    assert report["tokens_per_second"] == 2.0
    assert report["nodes"] == {"spine": 1, "branch": 2} and report["accepted"] == {"spine": 1, "branch": 1}
    assert report["bonus"] == report["plain"] == report["continuations"] == 1
    assert report["tree_sizes"] == {"1": 1, "4": 1}
    assert report["cycles"] == {"spine": 1, "branch": 0, "chain": 0, "plain": 1}
    assert report["seconds"] == {"prefill": 5.0, "decode": 2.0, "draft": 0.25, "model": 1.5, "commit": 0.25}


def test_constants_are_those_of_table_5():
    s = Settings()
    assert (s.budget, s.max_budget, s.max_depth, s.successors, s.rho) == (60, 100, 6, 10, 0.5)
    assert (s.min_score, s.max_chain, s.extension, s.long_match) == (0.01, 20, 100, 8)
    assert (s.average_weight, s.branching) == (0.3, 3)


def test_measuring_takes_the_sizes_between_from_the_line(tiny_models):
    """Every pass is over `length` cached tokens; every multiple of 8 up to the largest has a cost."""
    lengths, original = set(), Scorer.__call__

    def watched(self, *args):
        lengths.add(self.cache.length)
        return original(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scorer, "__call__", watched)
        seconds = measure(tiny_models["float32"][0], (4, 8, 24), 100)
    assert lengths == {100} and list(seconds) == [4, 8, 16, 24] and min(seconds.values()) > 0
    assert seconds[16] == pytest.approx((seconds[8] + seconds[24]) / 2)


def test_goose_needs_far_fewer_passes_than_tokens_where_the_text_repeats(tiny_models):
    """Losslessness alone would be met by drafting nothing."""
    for model in tiny_models["float32"]:
        prompt = [5, 6, 7, 8] * 4
        for tree in ("best", "spine"):
            totals = Totals()
            for cycle in generate(model, prompt, drafter_for(Settings(tree=tree)), 200):
                totals.add(cycle)
            assert totals.passes <= 0.8 * len(totals.tokens), (tree, totals.passes)
