"""Tree attention and the products around it: the arithmetic that makes every method round alike.

Dimension letters, used as suffixes on tensors throughout this file and model.py:

    W rows in a pass          T cache slots (one per token)     D model width      V vocabulary
    H query heads             G key/value heads                 K head size        R = H / G query heads a key head serves

A pass scores W rows at once. Row i of the pass writes its key and value into cache slot `length + i`, and sees the
cached prefix (slots below `length`), its ancestors in the drafted tree, and itself.

Why the output can be bit for bit that of plain decoding. Floating-point sums depend on their order. The same key is a
draft in one pass (at a slot that depends on the tree) and part of the prefix in a later one, so an ordinary attention
adds it at another place and rounds differently. Here the order is fixed by the text instead of the slots:

  - the text is cut into blocks of BLOCK positions, and each block is one product, added to the result in text order;
  - inside a block, a product adds its keys one after another, slot by slot. A parent stands before its children, so
    ancestors stand in text order, and a key that a row does not see enters with weight 0 and adds exactly nothing.

So a row's result depends on its text alone. The one thing taken from the library is that a float32 product of at most
BLOCK + MAX_WIDTH terms adds them in order, whatever the other rows hold; tests/test_kernels.py checks it here.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 64        # positions in a block of text
MAX_WIDTH = 128   # rows in a pass; BLOCK + MAX_WIDTH terms still are one run of MKL's float32 product
ONES = 8          # columns of ones beside each value: they carry the softmax denominator through the same product


class Linear:
    """y = x A^T + b, where a row of y has the same bits however many rows x has (from 2 up; README: Exactness).

    On a CPU the weight is kept in oneDNN's blocked layout, which also reads it about twice as fast as F.linear does.
    `weight_` is [out, in]; `pack` replaces it by the blocked copy, after which only __call__ may be used.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        self.weight, self.bias, self.packed = weight, bias, False

    def pack(self) -> None:
        if (self.weight.device.type == "cpu" and self.weight.dtype in (torch.float32, torch.bfloat16)
                and torch.backends.mkldnn.is_available()):
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, 16)
            self.packed = True

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class Layout:
    """Which keys each row of a pass sees; computed once a pass, used by every layer.

    length: tokens in the cache before this pass. hidden_WS: bool, True where a row must not see slot first + s;
    blocks: for each text block that the slots from `first` on reach into, float32 [S] with 1 where the slot belongs.
    """
    length: int
    first: int
    hidden_WS: Tensor
    blocks: list[Tensor]

    @staticmethod
    def of(length: int, depths_W: Tensor, mask_WW: Tensor) -> "Layout":
        """depths_W int64: distance from the root; mask_WW bool: row i sees row j (its ancestors and itself)."""
        width = len(depths_W)
        first = length // BLOCK * BLOCK
        hidden_WS = torch.zeros(width, length - first + width, dtype=torch.bool)
        hidden_WS[:, length - first:] = ~mask_WW
        positions_S = torch.cat([torch.arange(first, length), length + depths_W])
        owner_S = positions_S // BLOCK
        blocks = [(owner_S == block).float() for block in range(first // BLOCK, int(owner_S.max()) + 1)]
        return Layout(length, first, hidden_WS, blocks)


def tree_attention(q_WHK: Tensor, keys_GTK: Tensor, values_GTK: Tensor, layout: Layout) -> Tensor:
    """Attention of W rows over the prefix and the rows' ancestors, summed in text order (see the module's docstring).

    q_WHK float32, already scaled; keys_GTK float32 [G, T, K] and values_GTK float32 [G, T, K + ONES] whose last ONES
    columns are 1: the static cache of one layer, this pass's rows already written. Returns [W, H, K] float32.
    """
    W, H, K = q_WHK.shape
    G = len(keys_GTK)
    slots = layout.length + W
    # fewer than 12 columns take another path in MKL, so the product may look at slots that nobody sees
    q_GMK = q_WHK.view(W, G, H // G, K).transpose(0, 1).reshape(G, W * (H // G), K)
    scores_GMT = torch.bmm(q_GMK, keys_GTK[:, :max(slots, 16)].transpose(1, 2))[:, :, :slots]
    tail_GWRS = scores_GMT[:, :, layout.first:].unflatten(1, (W, H // G))
    tail_GWRS.masked_fill_(layout.hidden_WS[:, None], -torch.inf)
    weights_GMT = (scores_GMT - scores_GMT.amax(-1, keepdim=True)).exp_()

    sums_GMK = torch.zeros(G, W * (H // G), K + ONES)
    for start in range(0, layout.first, BLOCK):
        sums_GMK.baddbmm_(weights_GMT[:, :, start:start + BLOCK], values_GTK[:, start:start + BLOCK])
    weights_GMS, values_GSK = weights_GMT[:, :, layout.first:], values_GTK[:, layout.first:slots]
    for block_S in layout.blocks:
        sums_GMK.baddbmm_(weights_GMS * block_S if len(layout.blocks) > 1 else weights_GMS, values_GSK)
    out_GMK = sums_GMK[..., :K] / sums_GMK[..., K:K + 1]
    return out_GMK.view(G, W, H // G, K).transpose(0, 1).reshape(W, H, K)


def compact(keys_LGTK: Tensor, values_LGTK: Tensor, length: int, path: list[int]) -> None:
    """Keep the rows of an accepted path (Algorithm 2, step 7): row path[i] moves to slot length + i, in place.

    path starts with the root's row 0 and rises, so path[i] >= i: copied in this order, no row is overwritten before it
    has been read, and nothing is allocated.
    """
    for target, source in enumerate(path):
        if target != source:
            keys_LGTK[:, :, length + target].copy_(keys_LGTK[:, :, length + source])
            values_LGTK[:, :, length + target].copy_(values_LGTK[:, :, length + source])
