"""Sampling: the text depends on the seed alone, and its distribution is the model's own."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from goose import METHODS, Sampling, Settings, choose, drafter_for, generate
from tests.test_goose import EXACT, MODELS, PROMPTS, Arbitrary, greedy, tokens_of

SAMPLINGS = st.builds(
    Sampling,
    st.floats(0.05, 3),
    st.sampled_from([0, 1, 5, 40, 100]),
    st.floats(0.05, 1),
    st.integers(0, 2**40),
)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), which=MODELS, dtype=EXACT, prompt=PROMPTS, sampling=SAMPLINGS)
def test_one_seed_gives_one_text_whatever_is_drafted(tiny_models, data, which, dtype, prompt, sampling):
    model = tiny_models[dtype][which]
    truth = greedy(model, prompt, sampling=sampling)
    method = data.draw(st.sampled_from(METHODS))
    tree = data.draw(st.sampled_from(["best", "spine"]))
    drafter = drafter_for(Settings(method=method, tree=tree, width=data.draw(st.integers(2, 64))))
    assert tokens_of(generate(model, prompt, drafter, 24, sampling=sampling)) == truth
    assert tokens_of(generate(model, prompt, Arbitrary(data, truth, 24), 24, sampling=sampling)) == truth


def test_a_text_may_be_cut_anywhere_and_continued(tiny_models):
    """The number of a position does not depend on where the prompt ends."""
    for model in tiny_models["float32"]:
        prompt, sampling = [5, 6, 7], Sampling(1.5, seed=4)
        whole = greedy(model, prompt, 16, sampling=sampling)
        for cut in range(1, 16):
            assert greedy(model, prompt + whole[:cut], 16 - cut, sampling=sampling) == whole[cut:]


def filtered(logits: list[float], sampling: Sampling) -> list[float]:
    """Temperature, top-k, top-p in plain Python: the likeliest tokens until top_p is reached."""
    largest = max(logits)
    weights = [math.exp((x - largest) / sampling.temperature) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    if sampling.top_k:
        order = order[: sampling.top_k]
    total, kept, mass = sum(weights[i] for i in order), [], 0.0
    for i in order:
        if mass >= sampling.top_p:
            break
        kept.append(i)
        mass += weights[i] / total
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(logits))]


def draws(logits: torch.Tensor, sampling: Sampling, count: int) -> list[int]:
    rows = logits.expand(count, -1)
    return choose(rows, kernels.summarize(rows, 0).tolist(), range(count), sampling)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0),
        Sampling(0.7, top_k=7),
        Sampling(1.3, top_p=0.8),
        Sampling(2.0, 20, 0.9, seed=5),
        Sampling(0.2),
    ],
)
def test_frequencies_are_the_filtered_distributions(sampling):
    """Chi-square over 20,000 positions. With d degrees of freedom its mean is d and its deviation sqrt(2 d);
    five deviations are passed by chance less than once in ten thousand runs, and the seed is fixed."""
    logits = torch.randn(64, generator=torch.Generator().manual_seed(3)) * 2
    count, wanted = 20_000, filtered(logits.tolist(), sampling)
    seen = torch.bincount(torch.tensor(draws(logits, sampling, count)), minlength=64).tolist()
    assert all(n == 0 for n, p in zip(seen, wanted, strict=True) if p == 0)
    cells = [(n, p * count) for n, p in zip(seen, wanted, strict=True) if p * count >= 5]
    rest = (count - sum(n for n, _ in cells), count - sum(e for _, e in cells))
    cells += [rest] if rest[1] >= 5 else []
    statistic, freedom = sum((n - e) ** 2 / e for n, e in cells), len(cells) - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


def test_a_model_samples_from_its_own_next_token_distribution(tiny_models):
    """The same through the whole loop: the second token of 1,500 seeds, given the first."""
    from collections import Counter

    from model import Cache, prefill

    model, sampling = tiny_models["float32"][0], Sampling(1.0, top_k=3)
    texts = [
        tuple(
            tokens_of(
                generate(model, [5, 6, 7], drafter_for(Settings()), 2, sampling=Sampling(1.0, 3, 1.0, seed))
            )
        )
        for seed in range(1500)
    ]
    first = Counter(text[0] for text in texts).most_common(1)[0][0]
    second = Counter(text[1] for text in texts if text[0] == first)
    cache = Cache(model, 160)
    logits = list(prefill(model, [5, 6, 7, first], cache, True))[-1][-1]
    wanted, count = filtered(logits.tolist(), sampling), sum(second.values())
    assert count > 300
    statistic = sum((second[i] - p * count) ** 2 / (p * count) for i, p in enumerate(wanted) if p)
    assert statistic < 2 + 5 * math.sqrt(4) and all(wanted[i] > 0 for i in second)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 60), st.integers(0, 2**31), SAMPLINGS)
def test_only_filtered_tokens_are_drawn_and_a_row_does_not_see_the_others(rows, seed, sampling):
    logits = torch.randn(rows, 30, generator=torch.Generator().manual_seed(seed)) * 3
    summary = kernels.summarize(logits, 0).tolist()
    chosen = choose(logits, summary, range(rows), sampling)
    for i, token in enumerate(chosen):
        assert filtered(logits[i].tolist(), sampling)[token] > 0
        assert choose(logits[i : i + 1], summary[i : i + 1], [i], sampling) == [token]


def test_temperature_0_is_greedy_and_bad_values_are_refused():
    logits = torch.tensor([[0.0, 3.0, 3.0]])
    assert choose(logits, kernels.summarize(logits, 0).tolist(), [0], Sampling()) == [1]
    for bad in (
        {"temperature": -0.1},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"temperature": float("nan")},
    ):
        with pytest.raises(ValueError):
            Sampling(**bad)
