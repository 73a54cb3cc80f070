"""The arithmetic: why a row rounds alike wherever it stands, and the CUDA path as far as a CPU can run it."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from goose import Drafter, Settings, drafter_for, generate
from kernels import BLOCK, MAX_WIDTH, ONES, DeviceLayout, Layout, Linear
from model import Cache, Model, Scorer, prefill
from tests.test_goose import tokens_of

needs_triton = pytest.mark.skipif(kernels.triton is None, reason="triton is not installed")
CUDA = torch.cuda.is_available()


def random_tree(random, size: int) -> tuple[list[int], list[int]]:
    """Parents (-1 for the root) and depths of a tree of any shape."""
    parents, depths = [-1], [0]
    for node in range(1, size):
        parents.append(random.randrange(node) if random.random() < 0.5 else node - 1)
        depths.append(depths[parents[-1]] + 1)
    return parents, depths


def mask_of(parents: list[int], width: int) -> torch.Tensor:
    mask = torch.eye(width, dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask


# ---- what is taken from the library ------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    st.randoms(use_true_random=False),
    st.integers(4, 200),
    st.sampled_from([8, 16, 64, 128]),
    st.integers(1, BLOCK),
    st.integers(8, MAX_WIDTH),
)
def test_a_product_adds_its_terms_in_order_so_zeros_between_them_are_nothing(random, rows, size, keys, width):
    generator = torch.Generator().manual_seed(random.randrange(2**31))
    weights = torch.rand(2, rows, keys, generator=generator) ** 3
    values = torch.randn(2, keys, size + ONES, generator=generator)
    dense = torch.zeros(2, rows, size + ONES).baddbmm_(weights, values)
    slots = sorted(random.sample(range(keys + width), keys))
    spread_weights = torch.zeros(2, rows, keys + width)
    spread_values = torch.randn(2, keys + width, size + ONES, generator=generator)
    spread_weights[:, :, slots], spread_values[:, slots] = weights, values
    spread = torch.zeros(2, rows, size + ONES).baddbmm_(spread_weights, spread_values)
    assert torch.equal(dense, spread)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**31),
    st.sampled_from(["float32", "bfloat16", "float16"]),
    st.sampled_from([(48, 64), (96, 48), (300, 48), (576, 1536), (960, 576)]),
    st.booleans(),
)
def test_a_row_of_a_product_does_not_depend_on_the_other_rows(seed, dtype, shape, bias):
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, dtype)
    linear = Linear(
        torch.randn(shape, generator=generator).to(dtype),
        torch.randn(shape[0], generator=generator).to(dtype) if bias else None,
    )
    plain = F.linear
    x = torch.randn(128, shape[1], generator=generator).to(dtype)
    wanted = plain(x.double(), linear.weight.double(), linear.bias.double() if bias else None)
    linear.pack()
    whole = linear(x)
    torch.testing.assert_close(
        whole.double(), wanted, atol=1e-4 if dtype == torch.float32 else 1.0, rtol=0.02
    )
    for rows in (4, 8, 16, 24, 40, 64, 120):
        order = torch.randperm(128, generator=generator)[:rows]
        assert torch.equal(linear(x[order].contiguous()), whole[order])


# ---- the reference attention -------------------------------------------------------------------------------


def attention_case(random, heads, groups, size, length, width, dtype=torch.float32):
    generator = torch.Generator().manual_seed(random.randrange(2**31))
    q = torch.randn(width, heads, size, generator=generator) * size**-0.5
    keys = torch.randn(groups, length + width + 8, size, generator=generator).to(dtype)
    values = torch.randn(groups, length + width + 8, size, generator=generator).to(dtype)
    return q, keys, values


def direct(q, keys, values, length, mask):
    """Softmax attention in float64, written without blocks."""
    width, groups = len(mask), len(keys)
    seen = torch.cat([torch.ones(width, length, dtype=torch.bool), mask], 1)
    q = q.double().unflatten(1, (groups, -1))  # [W, G, R, K]
    scores = torch.einsum("wgrk,gtk->wgrt", q, keys[:, : length + width].double())
    weights = scores.masked_fill(~seen[:, None, None], -torch.inf).softmax(-1)
    return torch.einsum("wgrt,gtk->wgrk", weights, values[:, : length + width].double()).flatten(1, 2)


def with_ones(values):
    return torch.cat([values.float(), torch.ones(*values.shape[:2], ONES)], -1)


@settings(deadline=None, max_examples=80)
@given(
    st.randoms(use_true_random=False),
    st.integers(0, 300),
    st.integers(4, MAX_WIDTH),
    st.sampled_from([(4, 4), (4, 2), (9, 3), (8, 1)]),
    st.sampled_from([8, 16, 64]),
    st.sampled_from([1, 100]),
)
def test_tree_attention_is_softmax_attention_over_the_ancestors(random, length, width, heads, size, scale):
    q, keys, values = attention_case(random, *heads, size, length, width)
    q = q * scale  # large scores must not overflow
    parents, depths = random_tree(random, random.randint(1, width))
    mask = mask_of(parents, width)
    depths = torch.tensor(depths + [0] * (width - len(depths)))
    keys[:, length + width :] = values[:, length + width :] = float("nan")  # beyond the pass: never seen
    out = kernels.tree_attention(q, keys, with_ones(values), Layout.of(length, depths, mask))
    torch.testing.assert_close(
        out.double(), direct(q, keys, values, length, mask), atol=2e-5 * scale, rtol=1e-4
    )


@settings(deadline=None, max_examples=80)
@given(
    st.randoms(use_true_random=False),
    st.integers(1, 200),
    st.integers(2, MAX_WIDTH),
    st.sampled_from([(4, 4), (4, 2), (9, 3)]),
)
def test_where_a_key_is_stored_never_changes_a_bit(random, length, nodes, heads):
    """A node's row equals the row of a pass in which its ancestors are already part of the prefix."""
    q, keys, values = attention_case(random, *heads, 16, length, max(nodes, 4))
    width = max(nodes, 4)
    values = with_ones(values)
    parents, depths = random_tree(random, nodes)
    padded = torch.tensor(depths + [0] * (width - nodes))
    out = kernels.tree_attention(q, keys, values, Layout.of(length, padded, mask_of(parents, width)))
    node = random.randrange(nodes)
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    sources = torch.tensor([length + p for p in path])
    moved_keys, moved_values = keys.clone(), values.clone()
    moved_keys[:, length : length + len(path)], moved_values[:, length : length + len(path)] = (
        keys[:, sources],
        values[:, sources],
    )
    before = length + len(path) - 1
    rows = 4 if random.random() < 0.5 else 16
    extra = torch.zeros(len(keys), rows + 16, keys.shape[-1])
    moved_keys = torch.cat([moved_keys[:, : before + 1], extra], 1)
    moved_values = torch.cat([moved_values[:, : before + 1], with_ones(extra)], 1)
    alone = q[node : node + 1].expand(rows, -1, -1).contiguous()
    plain = kernels.tree_attention(
        alone,
        moved_keys,
        moved_values,
        Layout.of(before, torch.zeros(rows, dtype=torch.long), torch.eye(rows).bool()),
    )
    assert torch.equal(plain[0], out[node])


@settings(deadline=None, max_examples=40)
@given(st.randoms(use_true_random=False), st.integers(0, 100), st.integers(4, 40))
def test_padding_rows_touch_nothing_and_rows_may_stand_anywhere(tiny_models, random, length, nodes):
    """Same tree, other padding content and width: the same logits, bit for bit, in every dtype."""
    parents, depths = random_tree(random, nodes)
    tokens = [random.randrange(64) for _ in range(nodes)]
    prompt = [random.randrange(64) for _ in range(length + 1)]
    for models in tiny_models.values():
        model = models[random.randrange(len(models))]
        outputs = []
        for width, filler in ((-(-nodes // 8) * 8, 0), (MAX_WIDTH, 7), (64, 63)):
            cache = Cache(model, length + 1 + MAX_WIDTH)
            list(prefill(model, prompt, cache, False))
            padding = width - nodes
            hidden = model.step(
                torch.tensor(tokens + [filler] * padding),
                torch.tensor(depths + [0] * padding),
                mask_of(parents, width),
                cache,
            )
            outputs.append(model.lm_head(hidden)[:nodes])
        assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 30), min_size=0, max_size=10, unique=True), st.integers(0, 20))
def test_compaction_moves_rows_in_place_and_in_order(rest, length):
    path = [0, *sorted(rest)]
    keys = torch.randn(2, 3, length + 40, 4)
    values, wanted, address = keys.clone() + 1, keys.clone(), keys.data_ptr()
    kernels.compact(keys, values, length, path)
    wanted[:, :, length : length + len(path)] = wanted[:, :, [length + p for p in path]]
    live = slice(0, length + len(path))
    assert torch.equal(keys[:, :, live], wanted[:, :, live])
    assert torch.equal(values[:, :, live], wanted[:, :, live] + 1)
    assert keys.data_ptr() == address


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 9), st.integers(1, 300), st.integers(0, 12), st.integers(0, 2**31), st.booleans())
def test_the_summary_of_a_pass_is_argmax_and_top_k(rows, vocabulary, k, seed, ties):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocabulary, generator=generator)
    if ties:
        logits = logits.round()
    summary = kernels.summarize(logits, k)
    k = min(k, vocabulary)
    assert summary[:, 0].tolist() == logits.argmax(-1).tolist()
    assert torch.equal(summary[:, 1], logits.max(-1).values)
    top = logits.topk(k) if k else None
    if k:
        ids = summary[:, 2 : 2 + k].long()
        assert torch.equal(logits.gather(-1, ids), top.values) and all(len(set(r)) == k for r in ids.tolist())
        torch.testing.assert_close(summary[:, 2 + k :], top.values.softmax(-1))
        if not ties:
            assert torch.equal(ids, top.indices)


def test_width_1_is_a_pass_over_one_row(tiny_models):
    """Plain decoding, the base of every speed ratio, pays for no padding; all other passes have 4 rows or
    more."""
    for width, wanted in ((1, {1}), (2, {4}), (16, {4})):
        rows, original = set(), Model.step

        def watched(self, tokens_W, depths_W, *rest, rows=rows, original=original):
            if int(depths_W.max()) == 0:  # not the prefill, which is a chain
                rows.add(len(tokens_W))
            return original(self, tokens_W, depths_W, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Model, "step", watched)
            drafter = Drafter(Settings(method="greedy", width=width))
            list(generate(tiny_models["float32"][0], [5, 6, 7], drafter, 8))
        assert rows == wanted


# ---- the CUDA path -----------------------------------------------------------------------------------------


def ordered_product(a, b, dtype=None):
    """a b with every element summed in order of k, so that no row depends on its place."""
    total = a[:, :1] * b[:1]
    for k in range(1, a.shape[1]):
        total = total + a[:, k : k + 1] * b[k : k + 1]
    return total.astype(dtype or total.dtype)


@pytest.fixture(autouse=True, scope="module")
def interpreted_products():
    """A GPU multiplies each row of a tile alike. Triton's interpreter leaves tl.dot to numpy, whose library
    rounds a row by its place on some processors (seen with OpenBLAS 0.3.31 and AVX-512)."""
    with pytest.MonkeyPatch.context() as patch:
        if kernels.triton is not None and not CUDA:
            patch.setattr("numpy.matmul", ordered_product)
        yield


@needs_triton
@settings(deadline=None, max_examples=10)
@given(
    st.randoms(use_true_random=False),
    st.integers(0, 200),
    st.integers(1, 24),
    st.sampled_from([(4, 4), (4, 2), (9, 3), (7, 1)]),
    st.sampled_from([16, 24]),
    st.sampled_from([torch.float32, torch.float16]),
)
def test_the_kernel_computes_the_reference_attention(random, length, width, heads, size, dtype):
    q, keys, values = attention_case(random, *heads, size, length, width, dtype)
    parents, depths = random_tree(random, random.randint(1, width))
    mask = mask_of(parents, width)
    depths = torch.tensor(depths + [0] * (width - len(depths)))
    q = q.to(dtype).float()  # the kernel takes queries in the keys' dtype
    keys[:, length + width :] = values[:, length + width :] = float("nan")
    device = "cuda" if CUDA else "cpu"
    layout = DeviceLayout.of(torch.tensor([length], device=device), depths.to(device), mask.to(device))
    out = kernels.device_tree_attention(q.to(device), keys.to(device), values.to(device), layout).cpu()
    tolerance = (
        2e-5 if dtype == torch.float32 else 5e-3
    )  # float16 rounds the weights before the second product
    torch.testing.assert_close(out.double(), direct(q, keys, values, length, mask), atol=tolerance, rtol=1e-3)


@needs_triton
@settings(deadline=None, max_examples=40)
@given(st.randoms(use_true_random=False), st.integers(1, 150), st.integers(2, 24))
def test_the_kernel_gives_a_row_the_same_bits_wherever_its_keys_are_stored(random, length, width):
    q, keys, values = attention_case(random, 4, 2, 16, length, 2 * width)
    q = q[:width]
    parents, depths = random_tree(random, width)
    device = "cuda" if CUDA else "cpu"
    keys, values, q = keys.to(device), values.to(device), q.to(device)
    layout = DeviceLayout.of(
        torch.tensor([length], device=device),
        torch.tensor(depths, device=device),
        mask_of(parents, width).to(device),
    )
    out = kernels.device_tree_attention(q, keys, values, layout)
    node = random.randrange(width)
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    moved_keys, moved_values = keys.clone(), values.clone()
    sources = torch.tensor([length + p for p in path], device=device)
    moved_keys[:, length : length + len(path)], moved_values[:, length : length + len(path)] = (
        keys[:, sources],
        values[:, sources],
    )
    alone = DeviceLayout.of(
        torch.tensor([length + len(path) - 1], device=device),
        torch.zeros(width, dtype=torch.long, device=device),
        torch.eye(width, device=device).bool(),
    )
    moved = torch.zeros_like(q)
    moved[0] = q[node]
    assert torch.equal(kernels.device_tree_attention(moved, moved_keys, moved_values, alone)[0], out[node])


@pytest.fixture
def device_path(monkeypatch):
    """Caches and scorers as on a device, run on the CPU by the interpreter."""
    original = Cache.__init__
    monkeypatch.setattr(Cache, "__init__", lambda self, model, slots: original(self, model, slots, True))


@needs_triton
def test_the_device_path_decodes_the_same_tokens(tiny_models, device_path):
    """Greedy and Goose, through fixed-width passes over static buffers."""
    for model in tiny_models["float32"]:
        prompt = [5, 6, 7, 8] * 3
        tokens = {
            method: tokens_of(generate(model, prompt, drafter_for(Settings(method=method, width=12)), 10))
            for method in ("greedy", "goose")
        }
        assert tokens["greedy"] == tokens["goose"]


@needs_triton
def test_a_device_pass_reuses_its_buffers(tiny_models, device_path):
    model = tiny_models["float32"][0]
    cache = Cache(model, 64)
    list(prefill(model, [5, 6, 7], cache, False, 16))
    scorer = Scorer(model, cache, 8, 3)
    addresses = None
    for tokens in ([1, 2, 3], [4], [9, 9, 9, 9, 9, 9, 9, 9]):
        depths = list(range(len(tokens)))
        scorer(tokens, depths, lambda width: torch.ones(width, width).tril().bool())
        cache.commit([0])
        now = [
            t.data_ptr()
            for t in (
                scorer.buffer,
                scorer.host,
                scorer.logits,
                scorer.summary,
                cache.keys,
                cache.values,
                cache.length_1,
            )
        ]
        assert addresses in (None, now)
        addresses = now
        assert cache.length_1.item() == cache.length


@needs_triton
def test_a_device_pass_is_one_graph_without_host_synchronisation(tiny_models, device_path):
    """A full-graph trace fails on .item(), on boolean indexing, and on any shape that depends on data."""
    for model in tiny_models["float32"]:
        cache = Cache(model, 64)
        list(prefill(model, [5, 6, 7], cache, False, 16))
        scorer = Scorer(model, cache, 8, 3)
        scorer.buffer[:, 0] = torch.arange(8)
        traced = []

        def backend(graph, inputs, traced=traced):
            traced.append(graph)
            return graph.forward

        torch._dynamo.reset()
        run = torch.compile(scorer.run, fullgraph=True, backend=backend)
        scorer.run()
        wanted = scorer.summary.clone()
        scorer.summary.zero_()
        run()
        assert torch.equal(scorer.summary, wanted)
        cache.commit([0])  # another length: the same graph
        run()
        assert len(traced) == 1


@pytest.mark.skipif(CUDA, reason="capture succeeds here; tests/gpu.py checks it")
def test_a_failed_capture_warns_once_and_goes_on_without():
    calls = []

    def function():
        calls.append(1)

    with pytest.warns(UserWarning, match="no CUDA graph") as warned:
        replay = kernels.capture(function)
    replay()
    assert replay is function and len(warned) == 1 and calls


def test_the_cpu_and_the_device_path_agree(tiny_models):
    """One tree, both paths: the same logits up to float32 rounding."""
    if kernels.triton is None:
        pytest.skip("triton is not installed")
    tokens, depths = [3, 4, 5, 6, 7], [0, 1, 1, 2, 3]
    mask = mask_of([-1, 0, 0, 2, 3], 8)
    for model in tiny_models["float32"]:
        results = []
        for on_device in (False, True):
            cache = Cache(model, 160, on_device)
            list(prefill(model, [9, 8, 7] * 20, cache, False))
            logits, _ = Scorer(model, cache, 8, 0)(tokens, depths, lambda width: mask[:width, :width])
            results.append(logits.clone())
        torch.testing.assert_close(*results, atol=1e-4, rtol=0)
