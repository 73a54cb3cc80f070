"""Tree attention and the products around it: the arithmetic that makes every method round alike.

Dimension letters, used as suffixes on tensors throughout this file and model.py:

    W rows in a pass      T cache slots, one a token      D model width      V vocabulary
    H query heads         G key/value heads               K head size        R = H / G query heads a key head

A pass scores W rows at once. Row i of the pass writes its key and value into cache slot `length + i`, and
sees the cached prefix (slots below `length`), its ancestors in the drafted tree, and itself.

Why the output can be bit for bit that of plain decoding. Floating-point sums depend on their order. The same
key is a draft in one pass (at a slot that depends on the tree) and part of the prefix in a later one, so an
ordinary attention adds it at another place and rounds differently. Here the order is fixed by the text
instead of the slots:

  - the text is cut into blocks of BLOCK positions, and each block is one product, added to the result in text
    order;
  - inside a block, a product adds its keys one after another, slot by slot. A parent stands before its
    children, so ancestors stand in text order, and a key that a row does not see enters with weight 0 and
    adds exactly nothing.

So a row's result depends on its text alone. The one thing taken from the library is that a float32 product of
at most BLOCK + MAX_WIDTH terms adds them in order, whatever the other rows hold; tests/test_kernels.py checks
it here.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # only the CUDA path needs it
    triton = None

BLOCK = 64  # positions in a block of text
MAX_WIDTH = 128  # rows in a pass; BLOCK + MAX_WIDTH terms still are one run of MKL's float32 product
ONES = 8  # columns of ones beside each value: they carry the softmax denominator through the same product


class Linear:
    """y = x A^T + b, where a row of y has the same bits however many rows x has (from 4 up; README:
    Exactness).

    On a CPU the weight is kept in oneDNN's blocked layout, which also reads it about twice as fast as
    F.linear does. `weight_` is [out, in]; `pack` replaces it by the blocked copy, after which only __call__
    may be used.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        self.weight, self.bias, self.packed = weight, bias, False

    def pack(self) -> None:
        if (
            self.weight.device.type == "cpu"
            and self.weight.dtype in (torch.float32, torch.bfloat16)
            and torch.backends.mkldnn.is_available()
        ):
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, 16)
            self.packed = True

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class Layout:
    """Which keys each row of a pass sees; computed once a pass, used by every layer.

    length: tokens in the cache before this pass. hidden_WS: bool, True where a row must not see slot first +
    s; blocks: for each text block that the slots from `first` on reach into, float32 [S] with 1 where the
    slot belongs.
    """

    length: int
    first: int
    hidden_WS: Tensor
    blocks: list[Tensor]

    @staticmethod
    def of(length: int, depths_W: Tensor, mask_WW: Tensor) -> "Layout":
        """depths_W int64: distance from the root; mask_WW bool: row i sees row j (its ancestors and
        itself)."""
        width = len(depths_W)
        first = length // BLOCK * BLOCK
        hidden_WS = torch.zeros(width, length - first + width, dtype=torch.bool)
        hidden_WS[:, length - first :] = ~mask_WW
        positions_S = torch.cat([torch.arange(first, length), length + depths_W])
        owner_S = positions_S // BLOCK
        blocks = [(owner_S == block).float() for block in range(first // BLOCK, int(owner_S.max()) + 1)]
        return Layout(length, first, hidden_WS, blocks)


def tree_attention(q_WHK: Tensor, keys_GTK: Tensor, values_GTK: Tensor, layout: Layout) -> Tensor:
    """Attention of W rows over the prefix and the rows' ancestors, summed in text order (see the module's
    docstring).

    q_WHK float32, already scaled; keys_GTK float32 [G, T, K] and values_GTK float32 [G, T, K + ONES] whose
    last ONES columns are 1: the static cache of one layer, this pass's rows already written. Returns [W, H,
    K] float32.
    """
    W, H, K = q_WHK.shape
    G = len(keys_GTK)
    slots = layout.length + W
    # fewer than 12 columns take another path in MKL, so the product may look at slots that nobody sees
    q_GMK = q_WHK.view(W, G, H // G, K).transpose(0, 1).reshape(G, W * (H // G), K)
    scores_GMT = torch.bmm(q_GMK, keys_GTK[:, : max(slots, 16)].transpose(1, 2))[:, :, :slots]
    tail_GWRS = scores_GMT[:, :, layout.first :].unflatten(1, (W, H // G))
    tail_GWRS.masked_fill_(layout.hidden_WS[:, None], -torch.inf)
    weights_GMT = scores_GMT.sub_(scores_GMT.amax(-1, keepdim=True)).exp_()

    sums_GMK = torch.zeros(G, W * (H // G), K + ONES)
    for start in range(0, layout.first, BLOCK):
        sums_GMK.baddbmm_(weights_GMT[:, :, start : start + BLOCK], values_GTK[:, start : start + BLOCK])
    weights_GMS, values_GSK = weights_GMT[:, :, layout.first :], values_GTK[:, layout.first : slots]
    for block_S in layout.blocks:
        sums_GMK.baddbmm_(weights_GMS * block_S if len(layout.blocks) > 1 else weights_GMS, values_GSK)
    out_GMK = sums_GMK[..., :K] / sums_GMK[..., K : K + 1]
    return out_GMK.view(G, W, H // G, K).transpose(0, 1).reshape(W, H, K)


# ---- the same on CUDA --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeviceLayout:
    """What Layout is to the CPU, all of it in tensors, so that one captured graph serves every pass.

    length_1: int32 [1], tokens in the cache; depths_W: int32 [W]; ancestors_WW: int32, entry [i, d] is the
    row of row i's ancestor at depth d (i itself at its own depth; meaningless beyond).
    """

    length_1: Tensor
    depths_W: Tensor
    ancestors_WW: Tensor

    @staticmethod
    def of(length_1: Tensor, depths_W: Tensor, mask_WW: Tensor) -> "DeviceLayout":
        W = len(depths_W)
        rows_WW = torch.arange(W, device=depths_W.device).expand(W, W)
        target_WW = torch.where(mask_WW, depths_W.long(), W)  # unseen rows go to a column that is cut off
        table = torch.zeros(W, W + 1, dtype=torch.long, device=depths_W.device).scatter_(
            1, target_WW, rows_WW
        )
        return DeviceLayout(length_1.int(), depths_W.int(), table[:, :W].int().contiguous())


if triton is not None:

    @triton.jit
    def absorb(q_MK, k_SK, v_SK, seen_MS, maximum_M, total_M, sum_MK, PRECISION: tl.constexpr):
        """Add one block of keys to the running softmax of M queries. A query that sees none of them is left
        as it was, bit for bit: its weights are 0 and its scale is 1."""
        scores_MS = tl.where(seen_MS, tl.dot(q_MK, tl.trans(k_SK), input_precision=PRECISION), -float("inf"))
        new_M = tl.maximum(maximum_M, tl.max(scores_MS, 1))
        scale_M = tl.exp(maximum_M - new_M)
        weights_MS = tl.exp(scores_MS - new_M[:, None])
        total_M = total_M * scale_M + tl.sum(weights_MS, 1)
        added_MK = tl.dot(weights_MS.to(v_SK.dtype), v_SK, input_precision=PRECISION)
        return new_M, total_M, sum_MK * scale_M[:, None] + added_MK

    @triton.jit
    def attention_kernel(
        q,
        keys,
        values,
        out,
        length_1,
        depths_W,
        ancestors_WW,
        slots,
        W,
        H: tl.constexpr,
        R: tl.constexpr,
        K: tl.constexpr,
        KP: tl.constexpr,
        ROWS: tl.constexpr,
        M: tl.constexpr,
        S: tl.constexpr,
        PRECISION: tl.constexpr,
    ):
        """One program: one key head and ROWS rows, whose ROWS x R queries share the loaded keys as one tile
        of M.

        Blocks of S keys stand at multiples of S in the text. Blocks that are all prefix are shared by the
        tile. From the first draft position on each row has keys of its own; they are gathered into text order
        and absorbed by the same products of the same shape, in which only that row's queries take part.
        """
        head, first_row = tl.program_id(0), tl.program_id(1) * ROWS
        lane_M, k_K, s_S = tl.arange(0, M), tl.arange(0, KP), tl.arange(0, S)
        row_M = first_row + lane_M // R
        real_M = (lane_M < ROWS * R) & (row_M < W)
        at_MK = (row_M * H + head * R + lane_M % R)[:, None] * K + k_K[None, :]
        inside_K = (k_K < K)[None, :]
        q_MK = tl.load(q + at_MK, mask=real_M[:, None] & inside_K, other=0.0)
        keys += head * slots * K
        values += head * slots * K
        length = tl.load(length_1)
        first = length // S * S
        maximum_M = tl.full([M], -1e30, tl.float32)  # finite, since -inf less -inf is no number
        total_M = tl.zeros([M], tl.float32)
        sum_MK = tl.zeros([M, KP], tl.float32)
        for start in range(0, first, S):
            at_SK = (start + s_S)[:, None] * K + k_K[None, :]
            k_SK = tl.load(keys + at_SK, mask=inside_K, other=0.0)
            v_SK = tl.load(values + at_SK, mask=inside_K, other=0.0)
            seen_MS = real_M[:, None] & (s_S >= 0)[None, :]
            maximum_M, total_M, sum_MK = absorb(
                q_MK, k_SK, v_SK, seen_MS, maximum_M, total_M, sum_MK, PRECISION
            )
        for row in range(first_row, tl.minimum(first_row + ROWS, W)):
            depth = tl.load(depths_W + row)
            for start in range(first, length + depth + 1, S):
                back_S = start + s_S - length  # depth of the key's position below the root, < 0 in the prefix
                live_S = back_S <= depth
                draft_S = tl.load(ancestors_WW + row * W + back_S, mask=live_S & (back_S >= 0), other=0)
                slot_S = tl.where(back_S < 0, start + s_S, length + draft_S)
                at_SK = slot_S[:, None] * K + k_K[None, :]
                k_SK = tl.load(keys + at_SK, mask=live_S[:, None] & inside_K, other=0.0)
                v_SK = tl.load(values + at_SK, mask=live_S[:, None] & inside_K, other=0.0)
                seen_MS = ((row_M == row) & real_M)[:, None] & live_S[None, :]
                maximum_M, total_M, sum_MK = absorb(
                    q_MK, k_SK, v_SK, seen_MS, maximum_M, total_M, sum_MK, PRECISION
                )
        tl.store(out + at_MK, sum_MK / total_M[:, None], mask=real_M[:, None] & inside_K)


def device_tree_attention(
    q_WHK: Tensor, keys_GTK: Tensor, values_GTK: Tensor, layout: DeviceLayout
) -> Tensor:
    """tree_attention by the handwritten kernel: [W, H, K] float32; keys and values [G, T, K] in the model's
    dtype."""
    return torch.ops.goose.tree_attention(
        q_WHK, keys_GTK, values_GTK, layout.length_1, layout.depths_W, layout.ancestors_WW
    )


@torch.library.custom_op("goose::tree_attention", mutates_args=())
def tree_attention_op(
    q_WHK: Tensor,
    keys_GTK: Tensor,
    values_GTK: Tensor,
    length_1: Tensor,
    depths_W: Tensor,
    ancestors_WW: Tensor,
) -> Tensor:
    """A custom operator, so that a tracer takes the launch as one opaque step."""
    if triton is None:
        raise RuntimeError(
            "decoding on CUDA needs the package triton, which CUDA builds of PyTorch bring along"
        )
    (W, H, K), (G, T, _) = q_WHK.shape, keys_GTK.shape
    R = H // G
    rows = max(1, 64 // triton.next_power_of_2(R))
    out_WHK = torch.empty(W, H, K, dtype=torch.float32, device=q_WHK.device)
    attention_kernel[(G, triton.cdiv(W, rows))](
        q_WHK.to(keys_GTK.dtype).contiguous(),
        keys_GTK,
        values_GTK,
        out_WHK,
        length_1,
        depths_W,
        ancestors_WW,
        T,
        W,
        H=H,
        R=R,
        K=K,
        KP=max(16, triton.next_power_of_2(K)),
        ROWS=rows,
        M=max(16, triton.next_power_of_2(rows * R)),
        S=BLOCK,
        PRECISION="ieee",
    )
    return out_WHK


@tree_attention_op.register_fake
def _(q_WHK, keys_GTK, values_GTK, length_1, depths_W, ancestors_WW):
    return torch.empty_like(q_WHK, dtype=torch.float32)


def capture(function: Callable[[], None]) -> Callable[[], None]:
    """A CUDA graph of `function`, which reads and writes static buffers only; called, it replays. Warm-up
    runs on a side stream, as capture asks. Where capture fails, one warning, and `function` itself is
    returned."""
    try:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
    except (RuntimeError, AssertionError) as error:
        warnings.warn(
            f"no CUDA graph ({(str(error).splitlines() or ['?'])[0]}); going on without", stacklevel=2
        )
        return function
    return graph.replay


# ---- around a pass -----------------------------------------------------------------------------------------


def summarize(logits_WV: Tensor, k: int) -> Tensor:
    """What the host wants of a pass in one tensor, so in one copy: float32 [W, 2 + 2k], a row holding the
    argmax (the lowest id of equals), its logit, the k best ids, and the softmax over those k. Ids below 2^24
    are exact in float32.

    The vocabulary is searched through the maxima of its stretches of 64: a stretch that holds one of the k
    best ids is itself among the k best by maximum.
    """
    logits_WV = logits_WV.float()
    W, V = logits_WV.shape
    k, stretch = min(k, V), 64
    logits_WV = F.pad(logits_WV, (0, -V % stretch), value=-torch.inf) if V % stretch else logits_WV
    stretches_WNS = logits_WV.view(W, -1, stretch)
    maxima_WN = stretches_WNS.amax(-1)
    winner_W = maxima_WN.argmax(-1)
    best_W1 = (
        winner_W * stretch + stretches_WNS[torch.arange(W, device=winner_W.device), winner_W].argmax(-1)
    )[:, None]
    summary = [best_W1, logits_WV.gather(-1, best_W1)]
    if k:
        chosen_WN = maxima_WN.topk(min(k, maxima_WN.shape[-1])).indices.sort(-1).values
        ids_WC = (chosen_WN[..., None] * stretch + torch.arange(stretch, device=winner_W.device)).flatten(1)
        top = logits_WV.gather(-1, ids_WC).topk(k)
        summary += [ids_WC.gather(-1, top.indices), top.values.softmax(-1)]
    return torch.cat([part.float() for part in summary], -1)


def compact(keys_LGTK: Tensor, values_LGTK: Tensor, length: int, path: list[int]) -> None:
    """Keep the rows of an accepted path (Algorithm 2, step 7): row path[i] moves to slot length + i, in
    place.

    path starts with the root's row 0 and rises, so path[i] >= i: copied in this order, no row is overwritten
    before it has been read, and nothing is allocated.
    """
    for target, source in enumerate(path):
        if target != source:
            keys_LGTK[:, :, length + target].copy_(keys_LGTK[:, :, length + source])
            values_LGTK[:, :, length + target].copy_(values_LGTK[:, :, length + source])
