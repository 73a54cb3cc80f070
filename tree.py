"""Trees of drafted tokens: what they are, who builds them, and the walk that accepts a path.

A tree is `tokens` and `parents`; node 0, the root, is the anchor (the last committed token), and a parent
stands before its children, so the nodes along any path stand in text order. Builders take the two sources
through small interfaces (README: your own source):

    chain                          list[int], tokens that a context source proposes after the anchor
    table.successors(token, before) -> [(token, score), ...], best first; [] for a token never seen

Builders: `chain_tree` (prompt lookup), `spine_tree` (Algorithm 1), `isotropic_tree` (the control of Section
5.3) and `best_first_tree` (ours: the largest expected yield of all trees over the same candidates;
proofs/best_first.py). `walk` is Algorithm 3.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

ROOT, SPINE, BRANCH = "root", "spine", "branch"


class Table(Protocol):
    """The transition source, as far as a builder sees it."""

    def successors(self, token: int, before: int | None) -> Sequence[tuple[int, float]]:
        """(token, score) pairs, best first, of what may follow `token` after `before`; empty if unknown."""


@dataclass
class Tree:
    """A rooted tree in flat lists, one entry a node; a parent's number is below its children's."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)  # -1 for the root
    depths: list[int] = field(default_factory=list)  # 0 for the root
    sources: list[str] = field(default_factory=list)  # ROOT, SPINE or BRANCH

    @staticmethod
    def rooted(anchor: int) -> "Tree":
        return Tree([anchor], [-1], [0], [ROOT])

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int, source: str) -> int:
        """Append a child of node `parent`; returns its number."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.sources.append(source)
        return len(self.tokens) - 1

    def before(self, node: int) -> int | None:
        """The token that stands before a node's own token; None for the root, whose past is not in the
        tree."""
        return self.tokens[self.parents[node]] if node else None

    def cut(self, size: int) -> "Tree":
        """The tree of the first `size` nodes: parents stand before their children, so it is one."""
        return Tree(self.tokens[:size], self.parents[:size], self.depths[:size], self.sources[:size])

    def path_to(self, node: int) -> list[int]:
        """The tokens from below the root down to a node."""
        tokens = []
        while node:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def mask(self, width: int) -> Tensor:
        """bool [width, width]: row i sees row j if j is i or an ancestor of i. Rows from len(self) on are
        padding: they see only themselves, and nobody sees them."""
        rows = []
        for node in range(width):
            parent = self.parents[node] if node < len(self) else -1
            row = bytearray(width) if parent < 0 else bytearray(rows[parent])
            row[node] = 1
            rows.append(row)
        return torch.frombuffer(bytearray().join(rows), dtype=torch.bool).view(width, width)


def walk(tree: Tree, predictions: Sequence[int]) -> tuple[list[int], int]:
    """Algorithm 3: follow the model's own predictions down the tree.

    predictions[i] is the token that the model puts after node i. Returns the accepted path (node numbers, the
    root's 0 first) and the bonus token, the prediction at the path's last node. Of siblings with the same
    token the first counts; builders attach the spine first, so that is the spine's.
    """
    children: dict[tuple[int, int], int] = {}
    for node in range(1, len(tree)):
        children.setdefault((tree.parents[node], tree.tokens[node]), node)
    path = [0]
    while (child := children.get((path[-1], predictions[path[-1]]))) is not None:
        path.append(child)
    return path, predictions[path[-1]]


def chain_tree(anchor: int, chain: Sequence[int], source: str = SPINE) -> Tree:
    """The anchor with one chain below it: prompt lookup's tree, and with an empty chain plain decoding's."""
    tree = Tree.rooted(anchor)
    for token in chain:
        tree.add(len(tree) - 1, token, source)
    return tree


def attach(
    tree: Tree,
    node: int,
    table: Table,
    before: int | None,
    most: int,
    min_score: float,
    skip: int | None = None,
) -> list[tuple[int, float]]:
    """Attach up to `most` successors of a node as branches, best first, until a score is under min_score.

    `skip` is a token that the node already has as its spine child. Returns (new node, its score) pairs.
    """
    added = []
    for token, score in table.successors(tree.tokens[node], before):
        if len(added) >= most or score < min_score:
            break
        if token != skip:
            added.append((tree.add(node, token, BRANCH), score))
    return added


def spine_tree(
    anchor: int,
    before: int | None,
    chain: Sequence[int],
    table: Table,
    budget: int,
    spine_length: int,
    rho: float | None = 0.5,
    max_depth: int = 6,
    top_k: int = 10,
    min_score: float = 0.01,
) -> Tree:
    """Algorithm 1: a spine from the context with branches from the table, at most `budget` nodes.

    before: the token before the anchor (None: unknown); chain: the (extended) context match, of which the
    first spine_length tokens become the spine. A spine that takes the whole budget makes budget + 1 nodes:
    the root is not charged then. Without a chain the result is the pure transition tree. rho 0 still leaves
    the spine one branch, as in the authors' code; None leaves none.
    """
    tree = chain_tree(anchor, chain[:spine_length])  # step 1
    spine = range(1, len(tree))

    share = max(budget - 1 - len(spine), 0)  # step 2
    spine_share = max(1, int(rho * share)) if rho is not None and spine and share else 0

    def following(node: int) -> int | None:
        return tree.tokens[node + 1] if node + 1 <= len(spine) else None

    branches = attach(tree, 0, table, before, share - spine_share, min_score, following(0))  # step 3

    left, weights = spine_share, sum(1 / i for i in spine)  # step 4
    for i in spine:
        width = min(max(1, int(spine_share / i / weights)), left)
        added = attach(tree, i, table, tree.before(i), width, min_score, following(i))
        left -= width
        branches += added

    queue = [pair for pair in branches if tree.depths[pair[0]] < max_depth]  # step 5
    for node, score in queue:  # grows while it is walked: breadth first
        rest = budget - len(tree)
        if rest <= 0:
            break
        successors = len(table.successors(tree.tokens[node], tree.before(node)))
        width = min(
            max(1, min(successors, math.ceil(rest * score))), max(1, top_k // tree.depths[node]), rest
        )
        added = attach(tree, node, table, tree.before(node), width, min_score)
        queue += [pair for pair in added if tree.depths[pair[0]] < max_depth]
    return tree


def isotropic_tree(
    anchor: int,
    before: int | None,
    table: Table,
    budget: int,
    branching: int = 3,
    max_depth: int = 6,
    min_score: float = 0.01,
) -> Tree:
    """The balanced control of Section 5.3: breadth first, `branching` successors at every node, transitions
    only."""
    tree = Tree.rooted(anchor)
    for node in range(budget):
        if node >= len(tree) or tree.depths[node] >= max_depth:
            break
        past = tree.before(node) if node else before
        attach(tree, node, table, past, min(branching, budget - len(tree)), min_score)
    return tree


def best_first_tree(
    anchor: int,
    candidates: Callable[[Tree, int], Sequence[tuple[int, str, float]]],
    budget: int,
    enough: Callable[[int, float], bool] = lambda size, probability: False,
) -> tuple[Tree, list[float]]:
    """The tree of at most `budget` nodes (root included) with the largest expected yield over the candidates.

    candidates(tree, node) gives (token, source, q) for each possible child of a node, by falling q, tokens
    distinct; q is the probability that the child is accepted given that its parent is. Nodes are taken by
    falling path probability (the product of q along the path), which never grows along a path, so a heap
    finds them in order; it holds the next candidate of each node only. Of equals the older node's comes
    first. enough(size, probability of the next node) ends the tree before its budget. Returns the tree and
    each node's path probability, 1 for the root; their sum is the expected number of tokens committed.
    """
    tree, probabilities, offers, heap = Tree.rooted(anchor), [1], [], []

    def offer(node: int, rank: int) -> None:
        if rank < len(offers[node]) and (q := offers[node][rank][2]) > 0:
            heapq.heappush(heap, (-probabilities[node] * q, node, rank))

    offers.append(candidates(tree, 0))
    offer(0, 0)
    while heap and len(tree) < budget and not enough(len(tree), -heap[0][0]):
        negative, parent, rank = heapq.heappop(heap)
        token, source, _ = offers[parent][rank]
        node = tree.add(parent, token, source)
        probabilities.append(-negative)
        offers.append(candidates(tree, node))
        offer(parent, rank + 1)
        offer(node, 0)
    return tree, probabilities


def cheapest_nodes(seconds: dict[int, float]) -> dict[int, float]:
    """For each size but the largest, the least seconds that a node beyond it can cost.

    Below rate * that, no further node of a best-first tree can pay: their probabilities fall, so no larger
    size is worthwhile.
    """
    return {
        n: min((seconds[m] - seconds[n]) / (m - n) for m in seconds if m > n)
        for n in seconds
        if n < max(seconds)
    }


def worthwhile_size(probabilities: Sequence[float], seconds: dict[int, float], rate: float) -> int:
    """How many of the best-first nodes a pass should hold: the n with the largest expected yield less rate *
    cost.

    probabilities fall; seconds[n] is the measured cost of a pass over up to n nodes, for the sizes on offer;
    rate is the tokens per second that decoding reaches. A pass of cost c must earn rate * c tokens, or that
    time were better spent on other passes; the fixed point of this rule has the largest rate of all
    (proofs/when_speculation_pays.py).
    """
    best, size, earned, done = -math.inf, 1, 0, 0
    for n in sorted(seconds):
        earned += sum(probabilities[done:n])
        done = n
        if earned - rate * seconds[n] > best:
            best, size = earned - rate * seconds[n], n
        if n >= len(probabilities):
            break
    return size
