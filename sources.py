"""Where guesses come from: the text itself (`ContextMatcher`) and the model's earlier passes (`AdjacencyTable`).

Both are training-free and own their state. A source of another kind needs one of their two query methods:
`chain(tail) -> Match` for a source that proposes a run of tokens, `successors(token, before)` for one that proposes
alternatives for the next token. Section 4.1 and Appendix C.1 of the paper; confidence is Section 4.3.
"""
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Match:
    """What the context matcher found: the proposed tokens, whether all earlier occurrences agree on the first of
    them, and the position in the text that they were copied from (-1: nothing found)."""
    tokens: tuple[int, ...] = ()
    consensus: bool = False
    origin: int = -1


class ContextMatcher:
    """Prompt lookup (Saxena 2023): what followed the last n tokens when they stood in the text before.

    For each n-gram that has a token after it the index keeps where the first occurrence ends, how often it occurred,
    and whether the token after it was always the same; so a query is one look-up for each n, whatever the length of the
    text, and each new token costs as much.
    """

    def __init__(self, ngram_lengths: Sequence[int] = (5, 4, 3), max_chain: int = 20):
        self.ngram_lengths, self.max_chain = tuple(ngram_lengths), max_chain
        self.text: list[int] = []
        self.index: dict[tuple[int, ...], tuple[int, int, bool]] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens (the prompt first) and index what they follow."""
        for token in tokens:
            end = len(self.text)
            for n in self.ngram_lengths:
                if n <= end:
                    key = tuple(self.text[end - n:])
                    first, count, same = self.index.get(key, (end, 0, True))
                    self.index[key] = (first, count + 1, same and self.text[first] == token if count else True)
            self.text.append(token)

    def chain(self, drafted: Sequence[int] = ()) -> Match:
        """The longest n-gram that ends the text (followed by `drafted`, tokens not yet committed) and occurred before
        decides: up to max_chain tokens after its earliest occurrence, which has the longest text after it."""
        longest = max(self.ngram_lengths)
        tail = (self.text[-longest:] + list(drafted))[-longest:]
        for n in self.ngram_lengths:
            found = self.index.get(tuple(tail[-n:])) if n <= len(tail) else None
            if found:
                first, count, same = found
                return Match(tuple(self.text[first:first + self.max_chain]), same and count > 1, first)
        return Match()

    def extended(self, match: Match, confidence: float, long_match: int = 8, most: int = 100) -> list[int]:
        """Chain extension (Section 4.3): copy on from the end of what is drafted, to int(most * confidence) tokens.

        The last copy may overshoot. With full confidence each further proposal is judged where it was made, and the
        first that is not fully confident itself is the last.
        """
        tokens = list(match.tokens)
        while len(tokens) < int(most * confidence):
            further = self.chain(tokens)
            tokens += further.tokens
            if not further.tokens or (confidence == 1 and confidence_of(further, long_match) < 1):
                break
        return tokens


def confidence_of(match: Match, long_match: int = 8) -> float:
    """Section 4.3: 0 without a chain, 1 with consensus, else by the chain's length; above 0.6 it is extended."""
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

    Two tiers: keyed by (token before, token), asked first, and by the token alone. Each entry is overwritten by the
    newest row that scored its key, so the tables hold at most one entry for each key scored.
    """

    def __init__(self, use_bigram: bool = True):
        self.use_bigram = use_bigram
        self.unigram: dict[int, tuple[tuple[int, float], ...]] = {}
        self.bigram: dict[tuple[int, int], tuple[tuple[int, float], ...]] = {}

    def harvest(self, tokens: Sequence[int], before: Sequence[int | None], ids: Sequence[Sequence[int]],
                scores: Sequence[Sequence[float]]) -> None:
        """Learn from a pass: row i scored tokens[i], which follows before[i] (None: unknown, unigram tier only), and
        ids[i] are its top K next tokens, best first, with scores[i], the softmax over those K. The last row of a key
        wins."""
        for token, past, row_ids, row_scores in zip(tokens, before, ids, scores, strict=True):
            entry = tuple(zip(row_ids, row_scores, strict=True))
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
