"""Trees: masks, walks, and what each builder promises."""

import itertools
import math
from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tree import (
    BRANCH,
    ROOT,
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

TOKENS = st.integers(0, 7)


@st.composite
def trees(draw, most=20) -> Tree:
    """Any tree; siblings may carry the same token."""
    tree = Tree.rooted(draw(TOKENS))
    for _ in range(draw(st.integers(0, most - 1))):
        tree.add(draw(st.integers(0, len(tree) - 1)), draw(TOKENS), draw(st.sampled_from([SPINE, BRANCH])))
    return tree


class Table:
    """A transition source of random but fixed content, five successors at most."""

    def __init__(self, seed: int, known: float = 0.8):
        self.seed, self.known = seed, known

    def successors(self, token, before):
        import random

        r = random.Random(f"{self.seed} {token} {before}")
        if r.random() > self.known:
            return ()
        scores = sorted((r.random() for _ in range(r.randint(1, 5))), reverse=True)
        return tuple(
            (t, s / sum(scores)) for t, s in zip(r.sample(range(8), len(scores)), scores, strict=True)
        )


TABLES = st.builds(Table, st.integers(0, 10**6), st.floats(0, 1))


def ancestors(tree: Tree, node: int) -> set[int]:
    return {node} if node == 0 else {node} | ancestors(tree, tree.parents[node])


@given(trees(), st.integers(0, 8))
def test_a_row_of_the_mask_is_a_nodes_ancestors_and_padding_sees_itself_alone(tree, padding):
    width = len(tree) + padding
    mask = tree.mask(width)
    assert mask.shape == (width, width) and mask.dtype == torch.bool
    for node in range(width):
        wanted = ancestors(tree, node) if node < len(tree) else {node}
        assert set(mask[node].nonzero()[:, 0].tolist()) == wanted


@given(trees(), st.data())
def test_the_walk_follows_the_predictions_and_stops_where_no_child_agrees(tree, data):
    predictions = data.draw(st.lists(TOKENS, min_size=len(tree), max_size=len(tree)))
    path, bonus = walk(tree, predictions)
    assert path[0] == 0 and bonus == predictions[path[-1]]
    for parent, child in itertools.pairwise(path):
        assert tree.parents[child] == parent and tree.tokens[child] == predictions[parent]
        assert child == min(
            n for n in range(len(tree)) if tree.parents[n] == parent and tree.tokens[n] == predictions[parent]
        )
    last = path[-1]
    assert not any(tree.parents[n] == last and tree.tokens[n] == bonus for n in range(1, len(tree)))


@given(trees(), st.data())
def test_a_prefix_of_a_tree_is_a_tree_and_paths_lead_to_nodes(tree, data):
    size = data.draw(st.integers(1, len(tree)))
    part = tree.cut(size)
    assert len(part) == len(part.sources) == size and all(p < n for n, p in enumerate(part.parents))
    for node in range(len(tree)):
        path, at = tree.path_to(node), node
        assert len(path) == tree.depths[node]
        for token in reversed(path):
            assert tree.tokens[at] == token
            at = tree.parents[at]
        assert at == 0


def check_valid(tree: Tree) -> None:
    """Parents first, depths right, siblings with different tokens."""
    assert tree.parents[0] == -1 and tree.sources[0] == ROOT
    for node in range(1, len(tree)):
        assert 0 <= tree.parents[node] < node and tree.depths[node] == tree.depths[tree.parents[node]] + 1
    pairs = list(zip(tree.parents, tree.tokens, strict=True))
    assert len(set(pairs)) == len(pairs)


CHAINS = st.lists(TOKENS, max_size=25)


@settings(max_examples=300)
@given(TABLES, TOKENS, st.none() | TOKENS, CHAINS, st.integers(1, 60), st.data())
def test_algorithm_1_keeps_its_promises(table, anchor, before, chain, budget, data):
    length = data.draw(st.integers(0, min(len(chain), budget)))
    rho, depth, k = data.draw(st.floats(0, 1)), data.draw(st.integers(1, 8)), data.draw(st.integers(1, 10))
    cut = data.draw(st.sampled_from([0.0, 0.01, 0.2]))
    tree = spine_tree(anchor, before, chain, table, budget, length, rho, depth, k, cut)
    check_valid(tree)
    assert len(tree) <= max(budget, length + 1) and tree.sources.count(SPINE) == length
    assert tree.tokens[1 : length + 1] == list(chain[:length])
    assert tree.parents[: length + 1] == list(range(-1, length))
    for node in range(length + 1, len(tree)):
        parent = tree.parents[node]
        past = tree.before(parent) if parent else before
        score = dict(table.successors(tree.tokens[parent], past))[tree.tokens[node]]
        assert score >= cut and tree.sources[node] == BRANCH
        assert tree.depths[node] <= depth or parent <= length  # D bounds growth, not where a branch starts


def test_a_spine_that_takes_the_whole_budget_has_one_node_more():
    assert len(spine_tree(0, None, list(range(20)), Table(1), 10, 10)) == 11


@given(TABLES, TOKENS, st.none() | TOKENS, st.integers(1, 60))
def test_without_a_chain_the_tree_is_the_pure_transition_tree(table, anchor, before, budget):
    tree = spine_tree(anchor, before, [], table, budget, 0)
    check_valid(tree)
    assert SPINE not in tree.sources and len(tree) <= budget
    if budget > 1 and any(score >= 0.01 for _, score in table.successors(anchor, before)):
        assert len(tree) > 1


@given(TABLES, TOKENS, st.none() | TOKENS, st.integers(1, 60), st.integers(1, 5), st.integers(1, 8))
def test_the_isotropic_tree_gives_every_node_its_best_successors(table, anchor, before, budget, width, depth):
    tree = isotropic_tree(anchor, before, table, budget, width, depth)
    check_valid(tree)
    assert len(tree) <= budget and max(tree.depths) <= depth and tree.depths == sorted(tree.depths)
    children = {
        n: [tree.tokens[c] for c in range(len(tree)) if tree.parents[c] == n] for n in range(len(tree))
    }
    for node, tokens in children.items():
        past = tree.before(node) if node else before
        best = [t for t, s in table.successors(tree.tokens[node], past) if s >= 0.01][:width]
        assert tokens == best[: len(tokens)]
        if tokens != best:
            assert len(tree) == budget or tree.depths[node] == depth


@given(TOKENS, CHAINS)
def test_a_chain_is_a_path(anchor, chain):
    tree = chain_tree(anchor, chain)
    assert tree.tokens == [anchor, *chain] and tree.parents == list(range(-1, len(chain)))


def offers_of(table: Table, anchor_before=None):
    """Candidates for the best-first tree, from a table, by falling q."""

    def candidates(tree, node):
        past = tree.before(node) if node else anchor_before
        return [(token, BRANCH, score) for token, score in table.successors(tree.tokens[node], past)]

    return candidates


@settings(max_examples=200)
@given(TABLES, TOKENS, st.integers(1, 40))
def test_the_best_first_tree_takes_nodes_by_falling_probability(table, anchor, budget):
    candidates = offers_of(table)
    tree, probabilities = best_first_tree(anchor, candidates, budget)
    check_valid(tree)
    assert len(tree) == len(probabilities) <= budget and probabilities == sorted(probabilities, reverse=True)
    for node in range(1, len(tree)):
        q = {token: q for token, _, q in candidates(tree, tree.parents[node])}[tree.tokens[node]]
        assert probabilities[node] == probabilities[tree.parents[node]] * q
    inside = set(zip(tree.parents, tree.tokens, strict=True))
    left = [
        probabilities[node] * q
        for node in range(len(tree))
        for token, _, q in candidates(tree, node)
        if (node, token) not in inside
    ]
    if len(tree) == budget:
        assert max(left, default=0) <= probabilities[-1]
    else:
        assert max(left, default=0) == 0


class Numbered:
    """Ten successors of every token, all different, all with the same score."""

    def successors(self, token, before):
        return [(100 * (token + 1) + i, 0.1) for i in range(10)]


def test_step_4_splits_the_spine_share_by_1_over_depth():
    """9 branches beside a spine of 3: rho sets what spine nodes get, and 1, 1/2, 1/3 how they share it."""
    for rho, wanted in (
        (0.5, [5, 2, 1, 1]),
        (0.8, [2, 3, 1, 1]),
        (1.0, [0, 4, 2, 1]),
        (0.0, [8, 1, 0, 0]),
        (None, [9, 0, 0, 0]),
    ):
        tree = spine_tree(0, None, [1, 2, 3], Numbered(), 13, 3, rho, max_depth=1)
        widths = [
            sum(tree.parents[n] == node and tree.sources[n] == BRANCH for n in range(len(tree)))
            for node in range(4)
        ]
        assert widths == wanted, rho


@settings(max_examples=200)
@given(TABLES, TOKENS, CHAINS, st.floats(0.05, 1), st.integers(1, 40))
def test_the_best_first_yield_is_at_least_the_chains_and_the_transition_trees(
    table, anchor, chain, sure, budget
):
    """Proposition 4 at the same budget, under the tree's own q: both are trees over the same candidates."""

    def candidates(tree, node):
        offers = {t: (BRANCH, s * 0.5) for t, s in table.successors(tree.tokens[node], tree.before(node))}
        if tree.path_to(node) == chain[: tree.depths[node]] and tree.depths[node] < len(chain):
            offers[chain[tree.depths[node]]] = (SPINE, sure)
        return sorted(((t, s, q) for t, (s, q) in offers.items()), key=lambda offer: -offer[2])

    def expected(tree):
        total, probability = 0.0, [1.0]
        for node in range(1, len(tree)):
            offers = {t: q for t, _, q in candidates(tree, tree.parents[node])}
            probability.append(probability[tree.parents[node]] * offers[tree.tokens[node]])
            total += probability[-1]
        return total

    best, _ = best_first_tree(anchor, candidates, budget)
    slack = 1e-12
    assert expected(best) + slack >= expected(chain_tree(anchor, chain[: budget - 1]))
    assert expected(best) + slack >= expected(isotropic_tree(anchor, None, table, budget, 5, 40, 0.0))


@given(
    st.lists(st.floats(0, 1), max_size=40).map(lambda xs: [1.0, *sorted(xs, reverse=True)]),
    st.dictionaries(st.integers(1, 64), st.floats(0.01, 1), min_size=1, max_size=6),
    st.floats(0, 1000),
)
def test_the_worthwhile_size_has_the_largest_yield_less_its_price(probabilities, seconds, rate):
    size = worthwhile_size(probabilities, seconds, rate)
    last = min((n for n in seconds if n >= len(probabilities)), default=max(seconds))

    def worth(n):
        return math.fsum(probabilities[:n]) - rate * seconds[n]

    assert size in seconds and size <= last
    assert all(worth(size) >= worth(n) - 1e-9 * (1 + rate) for n in seconds if n <= last)


@settings(max_examples=300)
@given(
    TABLES,
    TOKENS,
    st.dictionaries(st.integers(1, 40), st.integers(1, 50), min_size=1, max_size=6),
    st.integers(0, 20),
)
def test_a_tree_that_ends_early_has_the_nodes_that_pay(table, anchor, seconds, rate):
    """What is left out by cheapest_nodes would not have been drafted."""

    def candidates(tree, node):
        pairs = table.successors(tree.tokens[node], tree.before(node))
        return sorted(((t, BRANCH, Fraction(s) / 2) for t, s in pairs), key=lambda offer: -offer[2])

    rate, cheapest = Fraction(rate, 10), cheapest_nodes({n: Fraction(s) for n, s in seconds.items()})
    whole, probabilities = best_first_tree(anchor, candidates, max(seconds))
    early, fewer = best_first_tree(
        anchor, candidates, max(seconds), lambda n, p: n in cheapest and p < rate * cheapest[n]
    )
    assert early == whole.cut(len(early)) and fewer == probabilities[: len(early)]
    assert worthwhile_size(fewer, seconds, rate) == worthwhile_size(probabilities, seconds, rate)
