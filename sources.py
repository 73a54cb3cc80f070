"""Where guesses come from: the text itself (`ContextMatcher`) and the model's earlier passes
(`AdjacencyTable`).

Both are training-free and own their state. A source of another kind needs one of their two query methods:
`chain(drafted) -> Match` for a source that proposes a run of tokens, `successors(token, before)` for one that
proposes alternatives for the next token. Section 4.1 and Appendix C.1 of the paper; confidence is Section
4.3.
"""

from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Match:
    """What the context matcher found: the proposed tokens, whether all earlier occurrences agree on the first
    of them, and the position in the text that they were copied from (-1: nothing found)."""

    tokens: tuple[int, ...] = ()
    consensus: bool = False
    origin: int = -1


class ContextMatcher:
    """Prompt lookup (Saxena 2023): what followed the last n tokens when they stood in the text before.

    For each n-gram that has a token after it the index keeps where the first and the newest occurrence end,
    how often it occurred, and whether the token after it was always the same; so a query is one look-up for
    each n, whatever the length of the text, and each new token costs as much.
    """

    def __init__(self, ngram_lengths: Sequence[int] = (5, 4, 3), max_chain: int = 20):
        self.ngram_lengths, self.max_chain = tuple(ngram_lengths), max_chain
        self.text: list[int] = []
        self.index: dict[tuple[int, ...], tuple[int, int, bool, int]] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens (the prompt first) and index what they follow."""
        for token in tokens:
            end = len(self.text)
            for n in self.ngram_lengths:
                if n <= end:
                    key = tuple(self.text[end - n :])
                    first, count, same, _ = self.index.get(key, (end, 0, True, end))
                    same = same and (count == 0 or self.text[first] == token)
                    self.index[key] = (first, count + 1, same, end)
            self.text.append(token)

    def chain(self, drafted: Sequence[int] = ()) -> Match:
        """The longest n-gram that ends the text (followed by `drafted`, tokens not yet committed) and
        occurred before decides: up to max_chain tokens after its earliest occurrence, which has the longest
        text after it."""
        longest = max(self.ngram_lengths, default=1)
        tail = (self.text[-longest:] + list(drafted))[-longest:]
        for n in self.ngram_lengths:
            found = self.index.get(tuple(tail[-n:])) if n <= len(tail) else None
            if found:
                first, count, same, _ = found
                return Match(tuple(self.text[first : first + self.max_chain]), same and count > 1, first)
        return Match()

    def places(self, tail: Sequence[int]) -> list[tuple[int, bool]]:
        """Where the text went on after the longest n-gram that ends `tail`: (position, consensus) of the
        newest and of the earliest occurrence; [] if there is none."""
        for n in self.ngram_lengths:
            found = self.index.get(tuple(tail[-n:])) if n <= len(tail) else None
            if found:
                first, count, same, last = found
                return [(last, same and count > 1), (first, same and count > 1)][: 1 + (first != last)]
        return []

    def newest(self) -> Match:
        """The newest match of the text's end, which leads the best-first tree's context candidates."""
        for position, consensus in self.places(self.text)[:1]:
            return Match(tuple(self.text[position : position + self.max_chain]), consensus, position)
        return Match()

    def extended(self, match: Match, confidence: float, long_match: int = 8, most: int = 100) -> list[int]:
        """Chain extension (Section 4.3): copy on from the end of what is drafted, to int(most * confidence)
        tokens.

        The last copy may overshoot. With full confidence each further proposal is judged where it was made,
        and the first that is not fully confident itself is the last.
        """
        tokens = list(match.tokens)
        while len(tokens) < int(most * confidence):
            further = self.chain(tokens)
            tokens += further.tokens
            if not further.tokens or (confidence == 1 and confidence_of(further, long_match) < 1):
                break
        return tokens


def confidence_of(match: Match, long_match: int = 8) -> float:
    """Section 4.3: 0 without a chain, 1 with consensus, else by the chain's length; above 0.6 it is
    extended."""
    length = len(match.tokens)
    if not length:
        return 0.0
    if match.consensus:
        return 1.0
    if length >= long_match:
        return min(0.9, 0.7 + 0.2 * (length - long_match) / 12)
    return 0.6 * length / long_match


class AdjacencyTable:
    """Token Recycling (Luo et al. 2024): the successors that the model's own logits named in earlier passes.

    Two tiers: keyed by (token before, token), asked first, and by the token alone. Each entry is overwritten
    by the newest row that scored its key, so the tables hold at most one entry for each key scored.
    """

    NAMED = 3

    def __init__(self, use_bigram: bool = True):
        self.use_bigram = use_bigram
        self.unigram: dict[int, tuple[tuple[int, float], ...]] = {}
        self.bigram: dict[tuple[int, int], tuple[tuple[int, float], ...]] = {}
        self.named: Counter[int] = Counter()  # in how many unigram entries a token is one of the NAMED best

    def harvest(
        self,
        tokens: Sequence[int],
        before: Sequence[int | None],
        ids: Sequence[Sequence[int]],
        scores: Sequence[Sequence[float]],
    ) -> None:
        """Learn from a pass: row i scored tokens[i], which follows before[i] (None: unknown, unigram tier
        only), and ids[i] are its top K next tokens, best first, with scores[i], the softmax over those K. The
        last row of a key wins."""
        for token, past, row_ids, row_scores in zip(tokens, before, ids, scores, strict=True):
            entry = tuple(zip(row_ids, row_scores, strict=True))
            self.named.subtract(successor for successor, _ in self.unigram.get(token, ())[: self.NAMED])
            self.named.update(row_ids[: self.NAMED])
            self.unigram[token] = entry
            if past is not None and self.use_bigram:
                self.bigram[past, token] = entry

    def successors(self, token: int, before: int | None) -> tuple[tuple[int, float], ...]:
        """(token, score) pairs, best first; () for a token never scored."""
        found = self.bigram.get((before, token)) if self.use_bigram and before is not None else None
        return found if found is not None else self.unigram.get(token, ())


@dataclass
class AcceptanceAverage:
    """The running share of spine nodes accepted, which sets the spine's share of the budget (Section 4.3)."""

    value: float = 0.5
    weight: float = 0.3

    def observe(self, accepted: int, drafted: int) -> None:
        if drafted:
            self.value = self.weight * accepted / drafted + (1 - self.weight) * self.value

    def spine_share(self, confidence: float, tiers: tuple[float, float, float] = (0.15, 0.30, 0.50)) -> float:
        """r = r0 + confidence (1 - r0), where r0 is the tier of the average (under 0.2, under 0.4, above)."""
        r0 = tiers[0] if self.value < 0.2 else tiers[1] if self.value < 0.4 else tiers[2]
        return r0 + confidence * (1 - r0)


# ---- acceptance estimates, for the best-first tree ---------------------------------------------------------
#
# The paper gives every spine token one acceptance rate and every branch token another. But much more is known
# of a candidate before it is tried: how long the match is that it continues, whether all earlier occurrences
# agree, whether the table names the same token and how sure it was. `Candidates` sorts candidates into kinds
# by what is known, and counts for each kind how often such a candidate was right where its parent was
# accepted. Every candidate at every accepted node is counted, drafted or not, since the model's own next
# token there is known either way; so the counts are not biased by what was drafted. Before a kind has been
# seen often, a prior speaks: constants below, which were read off runs on the development prompts and which a
# few dozen observations outweigh.
#
#     kind of a context candidate: (length of the match, consensus, the table's word, newest or earliest)
#     kind of a table candidate:   (tier, rank, score, does the context name another token)
#     where neither source knows the last token: ("common", rank). Tokens that follow many different tokens,
#     by the table, stand in, as continuation counts do in Kneser and Ney's smoothing.

LENGTHS = (2, 3, 4, 6, 8, 12, 20, 32)  # stretches of match length, in tokens
SCORES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95)
PRIOR_WEIGHT = 8.0  # observations that the prior counts for


class Candidates:
    """What may follow a text, from both sources at once, each with the probability q that it is right."""

    MAX_MATCH = 32  # tokens over which a match's length is measured
    COMMON = 16  # tokens that stand in where nothing is known

    def __init__(self, matcher: ContextMatcher, table: AdjacencyTable):
        self.matcher, self.table = matcher, table
        self.counts: dict[tuple, list[float]] = {}
        self.common: tuple[int, list[int]] = (-1, [])  # length of the text, the stand-ins then

    def stand_ins(self) -> list[int]:
        """The tokens that follow most different tokens, looked up once for each length of the text."""
        if self.common[0] != len(self.matcher.text):
            most = self.table.named.most_common(self.COMMON)
            self.common = len(self.matcher.text), [token for token, _ in most]
        return self.common[1]

    def q(self, kind: tuple) -> float:
        """The estimated probability that a candidate of this kind is right, given that its parent is
        accepted."""
        counts = self.counts.get(kind)
        if counts is None:
            counts = self.counts[kind] = [PRIOR_WEIGHT * prior(kind), PRIOR_WEIGHT]
        return counts[0] / counts[1]

    def after(self, drafted: Sequence[int]) -> list[tuple[float, int, str, tuple]]:
        """(q, token, tier, kind) of every candidate for the token after the text and `drafted`, by falling q.

        tier is "context" or "table". Two context candidates at most: the newest match's, and the earliest's.
        """
        text = self.matcher.text
        tail = (text[-self.MAX_MATCH :] + list(drafted))[-self.MAX_MATCH :]
        token, before = tail[-1], tail[-2] if len(tail) > 1 else None
        successors = self.table.successors(token, before)
        tier = "bigram" if (before, token) in self.table.bigram else "unigram"
        ranks = {successor: rank for rank, (successor, _) in enumerate(successors)}
        found = []
        for position, consensus in self.matcher.places(tail):
            token = text[position]
            if any(token == other for _, other, _, _ in found):
                continue
            length = 1
            while (
                length < len(tail) and length < position and tail[-1 - length] == text[position - 1 - length]
            ):
                length += 1
            rank = ranks.get(token)
            agreement = (
                "unknown" if not successors else "not" if rank is None else "first" if rank == 0 else "lower"
            )
            kind = ("context", bisect(LENGTHS, length), consensus, agreement, len(found))
            found.append((self.q(kind), token, "context", kind))
        named = {token for _, token, _, _ in found}
        rival = found[0][3][1] if found else -1
        for rank, (token, score) in enumerate(successors):
            if token not in named:
                kind = (tier, min(rank, 4), bisect(SCORES, score), rival)
                found.append((self.q(kind), token, "table", kind))
        if not found:
            for rank, token in enumerate(self.stand_ins()):
                kind = ("common", rank)
                found.append((self.q(kind), token, "table", kind))
        found.sort(key=lambda candidate: -candidate[0])
        return found

    def observe(self, candidates: Sequence[tuple[float, int, str, tuple]], truth: int) -> None:
        """The model put `truth` where these candidates stood."""
        for _, token, _, kind in candidates:
            counts = self.counts[kind]
            counts[0] += token == truth
            counts[1] += 1


# Shares of candidates that were right on the development prompts: context by match length, then table by
# score.
CONTEXT_PRIORS = {
    "first": (0.5, 0.7, 0.76, 0.82, 0.88, 0.93, 0.95, 0.95, 0.97),
    "lower": (0.2, 0.32, 0.42, 0.44, 0.56, 0.66, 0.74, 0.8, 0.9),
    "not": (0.05, 0.12, 0.22, 0.25, 0.40, 0.57, 0.75, 0.8, 0.9),
}
TABLE_PRIORS = {
    "bigram": (0.011, 0.024, 0.043, 0.082, 0.2, 0.4, 0.55, 0.6, 0.68, 0.9),
    "unigram": (0.013, 0.023, 0.05, 0.09, 0.18, 0.26, 0.33, 0.48, 0.5, 0.6),
}


def prior(kind: tuple) -> float:
    """What to believe of a kind before it has been seen."""
    if kind[0] == "context":
        _, length, consensus, agreement, order = kind
        q = CONTEXT_PRIORS["lower" if agreement == "unknown" else agreement][length]
        return (1 - (1 - q) / 3 if consensus else q) * (1.0, 0.3)[order]
    if kind[0] == "common":
        return 0.09 / (1 + kind[1]) ** 0.7
    tier, _, score, rival = kind
    return TABLE_PRIORS[tier][score] * (
        1.0 if rival < 0 else 0.4 if rival < 3 else 0.3 if rival < 5 else 0.15
    )
