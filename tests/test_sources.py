"""The two sources, against definitions that read the whole text every time."""

from bisect import bisect
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sources import (
    LENGTHS,
    SCORES,
    AcceptanceAverage,
    AdjacencyTable,
    Candidates,
    ContextMatcher,
    Match,
    confidence_of,
)

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def occurrences(text: list[int], gram: list[int]) -> list[int]:
    """Positions after every occurrence of `gram` that has a token after it."""
    return [i + len(gram) for i in range(len(text) - len(gram)) if text[i : i + len(gram)] == gram]


@settings(max_examples=400)
@given(TEXTS, st.lists(st.integers(0, 3), max_size=5), st.data())
def test_a_match_is_the_earliest_of_the_longest_ngram(text, drafted, data):
    matcher, at = ContextMatcher(), 0
    while at < len(text):  # fed in parts of any size
        size = data.draw(st.integers(1, len(text) - at))
        matcher.extend(text[at : at + size])
        at += size
    whole = text + drafted
    for n in (5, 4, 3):
        found = occurrences(text, whole[-n:]) if n <= len(whole) else []
        if found:
            after = [text[i] for i in found]
            wanted = Match(
                tuple(text[found[0] : found[0] + 20]), len(found) > 1 and len(set(after)) == 1, found[0]
            )
            assert matcher.chain(drafted) == wanted
            assert matcher.places(whole)[0][0] == found[-1] and matcher.places(whole)[-1][0] == found[0]
            break
    else:
        assert matcher.chain(drafted) == Match() and matcher.places(whole) == []


@given(TEXTS)
def test_an_extension_copies_on_from_its_own_end(text):
    matcher = ContextMatcher()
    matcher.extend(text)
    match = matcher.chain()
    confidence = confidence_of(match)
    extended = matcher.extended(match, confidence)
    assert extended[: len(match.tokens)] == list(match.tokens)
    assert len(extended) < max(int(100 * confidence), len(match.tokens) + 1) + 20
    if confidence == 0:
        assert extended == []


def test_confidence_is_the_papers_table():
    def of(length, consensus=False):
        return confidence_of(Match(tuple(range(length)), consensus))

    assert of(0) == 0 and of(0, True) == 0 and of(3, True) == 1
    assert of(4) == 0.3 and of(8) == 0.7 and abs(of(14) - 0.8) < 1e-12 and of(20) == 0.9 and of(30) == 0.9


def test_the_acceptance_average_is_the_papers():
    average = AcceptanceAverage()
    average.observe(0, 0)
    assert average.value == 0.5
    average.observe(1, 10)
    assert abs(average.value - (0.3 * 0.1 + 0.7 * 0.5)) < 1e-12
    for value, share in ((0.1, 0.15), (0.2, 0.30), (0.39, 0.30), (0.4, 0.50)):
        assert AcceptanceAverage(value).spine_share(0.0) == share
        assert AcceptanceAverage(value).spine_share(1.0) == 1.0


class TableAgainstDictionary(RuleBasedStateMachine):
    """The table is a dictionary of the newest entry for each key, bigram before unigram."""

    def __init__(self):
        super().__init__()
        self.table, self.plain = AdjacencyTable(), {}

    @rule(
        rows=st.lists(
            st.tuples(st.integers(0, 4), st.none() | st.integers(0, 4), st.integers(0, 99)), max_size=5
        )
    )
    def harvest(self, rows):
        ids = [[mark, mark + 1] for _, _, mark in rows]
        self.table.harvest([t for t, _, _ in rows], [b for _, b, _ in rows], ids, [[0.7, 0.3]] * len(rows))
        for token, before, mark in rows:
            self.plain[token] = mark
            if before is not None:
                self.plain[before, token] = mark

    @invariant()
    def queries_agree(self):
        for token in range(5):
            for before in (None, *range(5)):
                mark = self.plain.get((before, token), self.plain.get(token))
                wanted = () if mark is None else ((mark, 0.7), (mark + 1, 0.3))
                assert self.table.successors(token, before) == wanted
        assert len(self.table.unigram) + len(self.table.bigram) == len(self.plain)

    @invariant()
    def tokens_are_counted_once_for_each_token_that_they_follow(self):
        named = Counter()
        for token in range(5):
            named.update([self.plain[token], self.plain[token] + 1] if token in self.plain else [])
        assert +self.table.named == named


TestTable = TableAgainstDictionary.TestCase


def test_without_the_bigram_tier_only_the_token_counts():
    table = AdjacencyTable(use_bigram=False)
    table.harvest([1], [0], [[5]], [[1.0]])
    assert table.bigram == {} and table.successors(1, 3) == table.successors(1, None) == ((5, 1.0),)


@settings(max_examples=200)
@given(TEXTS.filter(bool), st.lists(st.integers(0, 3), max_size=4), st.integers(0, 3), st.integers(0, 10**6))
def test_candidates_are_distinct_sorted_and_counted(text, drafted, truth, seed):
    import random

    r, table, matcher = random.Random(seed), AdjacencyTable(), ContextMatcher((4, 3, 2))
    matcher.extend(text)
    for token in range(4):
        for before in (None, r.randrange(4)):
            table.harvest([token], [before], [r.sample(range(4), 3)], [[0.6, 0.3, 0.1]])
    candidates = Candidates(matcher, table)
    found = candidates.after(drafted)
    tokens, qs = [token for _, token, _, _ in found], [q for q, _, _, _ in found]
    assert len(set(tokens)) == len(tokens) and qs == sorted(qs, reverse=True) and all(0 < q < 1 for q in qs)
    whole = text + drafted
    assert set(t for t, _ in table.successors(whole[-1], whole[-2] if len(whole) > 1 else None)) <= set(
        tokens
    )
    if places := matcher.places(whole):
        assert text[places[0][0]] in tokens
    candidates.observe(found, truth)
    for q, token, _, kind in found:
        alone = [k for _, _, _, k in found].count(kind) == 1
        assert not alone or (candidates.q(kind) > q if token == truth else candidates.q(kind) < q)


def test_where_no_source_knows_the_last_token_those_that_follow_most_tokens_stand_in():
    table, matcher = AdjacencyTable(), ContextMatcher()
    matcher.extend([1, 2, 3])
    for token, successors in ((4, [7, 8, 9, 5]), (5, [8, 7, 6, 5]), (6, [8, 1, 2, 5])):
        table.harvest([token], [None], [successors], [[0.4, 0.3, 0.2, 0.1]])
    found = Candidates(matcher, table).after([])
    assert [token for _, token, _, _ in found][:2] == [8, 7] and 5 not in [token for _, token, _, _ in found]
    assert [kind for _, _, _, kind in found] == [("common", rank) for rank in range(len(found))]
    candidates = Candidates(matcher, table)
    candidates.after([])
    table.harvest([10, 11], [None] * 2, [[12, 13, 14]] * 2, [[0.5, 0.3, 0.2]] * 2)
    table.harvest([12, 13], [None] * 2, [[12, 13, 14]] * 2, [[0.5, 0.3, 0.2]] * 2)
    matcher.extend([3])
    assert [token for _, token, _, _ in candidates.after([])][:3] == [12, 13, 14]  # counted anew
    table.harvest([3], [None], [[5]], [[1.0]])
    assert [token for _, token, _, _ in Candidates(matcher, table).after([])] == [5]


def test_a_kind_says_what_is_known_of_a_candidate():
    """Match length, consensus, the table's word and the order of a context candidate; tier, rank, score and
    rival of a table's."""
    phrase = [1, 2, 3, 4, 5, 6, 7]

    def kinds(text, tables=()):
        matcher, table = ContextMatcher((6, 4, 3, 2)), AdjacencyTable()
        matcher.extend(text)
        for token, before, ids, scores in tables:
            table.harvest([token], [before], [ids], [scores])
        return {token: kind for _, token, _, kind in Candidates(matcher, table).after([])}

    seven, two = bisect(LENGTHS, 7), bisect(LENGTHS, 2)
    text = [*phrase, 8, 9, *phrase]
    assert kinds(text) == {8: ("context", seven, False, "unknown", 0)}
    assert kinds([30, 6, 7, 8, 31, 6, 7]) == {8: ("context", two, False, "unknown", 0)}
    twice = [*phrase, 8, 9, *phrase, 8, 10, *phrase]
    assert kinds(twice) == {8: ("context", seven, True, "unknown", 0)}
    other = [*phrase, 8, 9, *phrase, 11, 10, *phrase]
    assert kinds(other) == {
        11: ("context", seven, False, "unknown", 0),
        8: ("context", seven, False, "unknown", 1),
    }
    for ids, agreement in (([8, 20], "first"), ([20, 8], "lower"), ([20, 21], "not")):
        found = kinds(text, [(7, None, ids, [0.6, 0.4])])
        assert found[8] == ("context", seven, False, agreement, 0)
        assert found[20] == ("unigram", ids.index(20), bisect(SCORES, 0.6 if ids[0] == 20 else 0.4), seven)
    assert kinds([40, 41], [(41, 40, [5], [0.99])]) == {5: ("bigram", 0, bisect(SCORES, 0.99), -1)}


def test_estimates_approach_the_observed_share():
    candidates, kind = Candidates(ContextMatcher(), AdjacencyTable()), ("bigram", 0, 3, -1)
    before = candidates.q(kind)
    for i in range(1000):
        candidates.observe([(before, 7, "table", kind)], 7 if i % 4 == 0 else 8)
    assert abs(candidates.q(kind) - 0.25) < 0.01
