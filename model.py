"""A Llama or Qwen checkpoint in plain PyTorch: configuration, weights, forward pass, KV cache, tokenizer.

In reading order: `Config` (config.json), `Model` (the forward pass), `Cache` and `Model.step` (one pass over
W rows of a tree), `prefill`, `load` (safetensors or .bin, a folder or a Hub id), `Tokenizer` (text in, text
out). Dimension letters are those of kernels.py. Everything that can be wrong with a checkpoint raises
`LoadError` with one line that says what.
"""

import datetime
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

import kernels

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class LoadError(Exception):
    """A checkpoint, tokenizer or prompt that cannot be used; the message is one line that says what to do."""


# ---- configuration -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """The fields of config.json that the forward pass needs, spelled as there."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int = 0  # 0 or null: as many as num_attention_heads
    head_dim: int = 0  # 0 or null: hidden_size / num_attention_heads
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_parameters: dict = field(default_factory=dict)
    architecture: str = "LlamaForCausalLM"
    dtype: str = ""  # "" where the checkpoint does not say

    @property
    def qkv_bias(self) -> bool:
        return self.attention_bias or self.architecture == "Qwen2ForCausalLM"

    @property
    def output_bias(self) -> bool:
        return self.attention_bias and self.architecture != "Qwen2ForCausalLM"

    @staticmethod
    def read(raw: dict) -> "Config":
        """From the parsed config.json, in its older form (rope_theta, rope_scaling, torch_dtype) or its newer
        one (rope_parameters, dtype). Raises LoadError for whatever this forward pass does not implement."""
        architecture = (raw.get("architectures") or ["none named"])[0]
        if architecture not in ARCHITECTURES:
            raise LoadError(
                f"config.json: architecture {architecture} is not supported "
                f"(supported: {', '.join(ARCHITECTURES)})"
            )
        if raw.get("quantization_config") or raw.get("compression_config"):
            method = (raw.get("quantization_config") or {}).get("quant_method", "unknown method")
            raise LoadError(f"config.json: quantised checkpoint ({method}); use the unquantised one")
        if raw.get("hidden_act", "silu") not in ("silu", "swish"):
            raise LoadError(f"config.json: hidden_act {raw['hidden_act']!r} is not supported (only 'silu')")
        if raw.get("partial_rotary_factor", 1.0) != 1.0:
            raise LoadError("config.json: partial_rotary_factor other than 1 is not supported")
        refuse_sliding_window(raw, architecture)

        values = {f.name: raw[f.name] for f in fields(Config) if raw.get(f.name) is not None}
        for name in (
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "vocab_size",
        ):
            if not isinstance(values.get(name), int) or values[name] < 1:
                raise LoadError(f"config.json: {name} is missing or not a positive number")
        heads = values["num_attention_heads"]
        values["num_key_value_heads"] = values.get("num_key_value_heads") or heads
        values["head_dim"] = values.get("head_dim") or values["hidden_size"] // heads
        if heads % values["num_key_value_heads"]:
            raise LoadError("config.json: num_attention_heads is not a multiple of num_key_value_heads")
        if architecture == "MistralForCausalLM":
            values.pop("attention_bias", None)  # that architecture has none, whatever the file says
        if architecture not in ("LlamaForCausalLM",):
            values.pop("mlp_bias", None)
        values["architecture"] = architecture
        values["dtype"] = str(raw.get("dtype") or raw.get("torch_dtype") or "").removeprefix("torch.")
        values["rope_parameters"] = read_rope(raw)
        return Config(**values)


def refuse_sliding_window(raw: dict, architecture: str) -> None:
    """A window that is switched off, or not shorter than the context, changes nothing; any other is
    refused."""
    window = raw.get("sliding_window")
    context = raw.get("max_position_embeddings", 2048)
    layers = raw.get("num_hidden_layers", 0)
    if architecture.startswith("Qwen"):
        in_use = bool(raw.get("use_sliding_window")) and raw.get("max_window_layers", 28) < layers
    else:
        in_use = window is not None
    named = [kind for kind in raw.get("layer_types") or [] if kind != "full_attention"]
    if named or (in_use and (window is None or window < context)) or raw.get("attention_chunk_size"):
        kind = named[0] if named else "sliding_window" if in_use else "attention_chunk_size"
        raise LoadError(f"config.json: {kind} is in use (window {window}); only full attention is supported")


def read_rope(raw: dict) -> dict:
    """One dictionary with rope_type, rope_theta and the type's own fields; rope_parameters wins over the
    older keys."""
    rope = dict(raw.get("rope_scaling") or {}) | dict(raw.get("rope_parameters") or {})
    rope["rope_type"] = rope.get("rope_type") or rope.pop("type", None) or "default"
    rope["rope_theta"] = float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    needs = {
        "default": [],
        "linear": ["factor"],
        "yarn": ["factor"],
        "llama3": ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"],
    }
    if rope["rope_type"] not in needs:
        raise LoadError(
            f"config.json: rope type {rope['rope_type']!r} is not supported (supported: {', '.join(needs)})"
        )
    for name in needs[rope["rope_type"]]:
        if not isinstance(rope.get(name), (int, float)):
            raise LoadError(f"config.json: rope type {rope['rope_type']} needs the number {name}")
    return rope


def rotary_frequencies(config: Config) -> tuple[Tensor, float]:
    """Angles per position [K / 2] float32, and the factor that scales cosine and sine (1 but for yarn)."""
    rope, K = config.rope_parameters, config.head_dim
    theta, kind = rope["rope_theta"], rope["rope_type"]
    frequency = 1.0 / theta ** (torch.arange(0, K, 2, dtype=torch.int64).float() / K)
    if kind == "linear":
        return frequency / rope["factor"], 1.0
    if kind == "llama3":
        # long wavelengths are stretched by factor, short ones kept, those between interpolated
        turns = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
        keep = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        keep = keep.clamp(0, 1)
        return (1 - keep) * frequency / rope["factor"] + keep * frequency, 1.0
    if kind == "yarn":  # arXiv 2309.00071, sections 3.2 to 3.4
        context = rope.get("original_max_position_embeddings") or config.max_position_embeddings

        def dimension(turns: float) -> float:
            return K * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = dimension(rope.get("beta_fast") or 32), dimension(rope.get("beta_slow") or 1)
        if rope.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, K - 1)
        ramp = ((torch.arange(K // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)

        def temperature(scale: float) -> float:
            return 0.1 * scale * math.log(rope["factor"]) + 1.0 if rope["factor"] > 1 else 1.0

        scale = rope.get("attention_factor")
        if scale is None and rope.get("mscale") and rope.get("mscale_all_dim"):
            scale = temperature(rope["mscale"]) / temperature(rope["mscale_all_dim"])
        elif scale is None:
            scale = temperature(1.0)
        return frequency / rope["factor"] * ramp + frequency * (1 - ramp), scale
    return frequency, 1.0


# ---- the forward pass --------------------------------------------------------------------------------------


class Layer:
    """The tensors of one block. q, k and v are one product, gate and up are one, since each pass is bound by
    reading."""

    def __init__(self, config: Config, new: Callable[..., Tensor]):
        D, K = config.hidden_size, config.head_dim
        heads = (config.num_attention_heads + 2 * config.num_key_value_heads) * K
        query, inner = config.num_attention_heads * K, config.intermediate_size
        self.input_layernorm = new(D)
        self.qkv = kernels.Linear(new(heads, D), new(heads) if config.qkv_bias else None)
        qk_norm = config.architecture == "Qwen3ForCausalLM"
        self.q_norm, self.k_norm = (new(K), new(K)) if qk_norm else (None, None)
        self.o_proj = kernels.Linear(new(D, query), new(D) if config.output_bias else None)
        self.post_attention_layernorm = new(D)
        self.gate_up = kernels.Linear(new(2 * inner, D), new(2 * inner) if config.mlp_bias else None)
        self.down_proj = kernels.Linear(new(D, inner), new(D) if config.mlp_bias else None)

    def checkpoint(self, config: Config) -> dict[str, Tensor]:
        """The block's tensors under the names of the checkpoint; parts of a fused product are views of it."""
        kv = config.num_key_value_heads * config.head_dim
        parts = {"self_attn.q_proj": (self.qkv, 0, config.num_attention_heads * config.head_dim)}
        parts["self_attn.k_proj"] = (self.qkv, parts["self_attn.q_proj"][2], kv)
        parts["self_attn.v_proj"] = (self.qkv, parts["self_attn.q_proj"][2] + kv, kv)
        parts["self_attn.o_proj"] = (self.o_proj, 0, config.hidden_size)
        parts["mlp.gate_proj"] = (self.gate_up, 0, config.intermediate_size)
        parts["mlp.up_proj"] = (self.gate_up, config.intermediate_size, config.intermediate_size)
        parts["mlp.down_proj"] = (self.down_proj, 0, config.hidden_size)
        named = {
            "input_layernorm.weight": self.input_layernorm,
            "post_attention_layernorm.weight": self.post_attention_layernorm,
        }
        if self.q_norm is not None:
            named |= {"self_attn.q_norm.weight": self.q_norm, "self_attn.k_norm.weight": self.k_norm}
        for name, (linear, start, size) in parts.items():
            named[name + ".weight"] = linear.weight.narrow(0, start, size)
            if linear.bias is not None:
                named[name + ".bias"] = linear.bias.narrow(0, start, size)
        return named

    def linears(self) -> tuple[kernels.Linear, ...]:
        return self.qkv, self.o_proj, self.gate_up, self.down_proj


Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Model:
    """The weights and the forward pass. It knows nothing of trees or tokens' origins; `attend` decides who
    sees whom.

    new: how to make a tensor of a given shape; load() and weights/train.py differ only in that.
    """

    def __init__(self, config: Config, new: Callable[..., Tensor] = torch.zeros):
        self.config = config
        self.embed_tokens = new(config.vocab_size, config.hidden_size)
        self.layers = [Layer(config, new) for _ in range(config.num_hidden_layers)]
        self.norm = new(config.hidden_size)
        head = self.embed_tokens if config.tie_word_embeddings else new(config.vocab_size, config.hidden_size)
        self.lm_head = kernels.Linear(head)
        self.dtype, self.device = self.embed_tokens.dtype, self.embed_tokens.device
        frequencies, self.rotary_scale = rotary_frequencies(config)
        self.frequencies = frequencies.to(self.device)

    def outer(self) -> dict[str, Tensor]:
        """The tensors outside the blocks, by their names in a checkpoint."""
        named = {"model.embed_tokens.weight": self.embed_tokens, "model.norm.weight": self.norm}
        return named if self.config.tie_word_embeddings else named | {"lm_head.weight": self.lm_head.weight}

    def checkpoint(self) -> dict[str, Tensor]:
        """Every tensor that a checkpoint of this configuration must hold, by its name there (before
        packing)."""
        named = self.outer()
        for index, layer in enumerate(self.layers):
            named |= {f"model.layers.{index}.{name}": t for name, t in layer.checkpoint(self.config).items()}
        return named

    def forward(self, tokens_W: Tensor, positions_W: Tensor, attend: Attend) -> Tensor:
        """Hidden states [W, D] after the last norm, for tokens at the given positions in the text (both int64
        [W]).

        attend(layer, q [W, H, K], k [W, G, K], v [W, G, K]) -> [W, H, K] is the only place where rows meet; q
        and k are float32 and rotated, q is scaled by 1 / sqrt(K).
        """
        H, G, K = self.config.num_attention_heads, self.config.num_key_value_heads, self.config.head_dim
        eps, D = self.config.rms_norm_eps, (self.config.hidden_size,)
        angles_W1K = (positions_W.float()[:, None] * self.frequencies)[:, None].repeat(1, 1, 2)
        cosine_W1K, sine_W1K = angles_W1K.cos() * self.rotary_scale, angles_W1K.sin() * self.rotary_scale
        sine_W1K[..., : K // 2] *= -1
        x_WD = F.embedding(tokens_W, self.embed_tokens).to(self.dtype)
        for index, layer in enumerate(self.layers):
            heads_WNK = layer.qkv(F.rms_norm(x_WD, D, layer.input_layernorm, eps)).view(-1, H + 2 * G, K)
            qk_WNK, v_WGK = heads_WNK[:, : H + G], heads_WNK[:, H + G :]
            if layer.q_norm is not None:
                qk_WNK = torch.cat(
                    [
                        F.rms_norm(qk_WNK[:, :H], (K,), layer.q_norm, eps),
                        F.rms_norm(qk_WNK[:, H:], (K,), layer.k_norm, eps),
                    ],
                    1,
                )
            qk_WNK = qk_WNK.float()
            qk_WNK = torch.addcmul(qk_WNK * cosine_W1K, qk_WNK.roll(K // 2, -1), sine_W1K)
            attended_WHK = attend(index, qk_WNK[:, :H] * K**-0.5, qk_WNK[:, H:], v_WGK)
            x_WD = x_WD + layer.o_proj(attended_WHK.reshape(-1, H * K).to(x_WD.dtype))
            gate_WF, up_WF = layer.gate_up(F.rms_norm(x_WD, D, layer.post_attention_layernorm, eps)).chunk(
                2, -1
            )
            x_WD = x_WD + layer.down_proj(F.silu(gate_WF) * up_WF)
        return F.rms_norm(x_WD, D, self.norm, eps)

    @torch.inference_mode()
    def step(self, tokens_W: Tensor, depths_W: Tensor, mask_WW: Tensor, cache: "Cache") -> Tensor:
        """Pass the rows of a tree over the cached prefix; hidden states [W, D], for lm_head to turn into
        logits.

        tokens_W, depths_W int64 [W], depths from the root's 0; mask_WW bool: row i sees row j (its ancestors,
        itself). Writes the rows' keys and values to the cache slots from cache.length on; cache.commit keeps
        the accepted ones.
        """
        if cache.on_device:
            layout = kernels.DeviceLayout.of(cache.length_1, depths_W, mask_WW)
            positions_W = cache.length_1.long() + depths_W
        else:
            layout = kernels.Layout.of(cache.length, depths_W, mask_WW)
            positions_W = cache.length + depths_W

        def attend(index: int, q_WHK: Tensor, k_WGK: Tensor, v_WGK: Tensor) -> Tensor:
            cache.write(index, k_WGK.transpose(0, 1), v_WGK.transpose(0, 1))
            attention = kernels.device_tree_attention if cache.on_device else kernels.tree_attention
            return attention(q_WHK, cache.keys[index], cache.values[index], layout)

        return self.forward(tokens_W, positions_W, attend)


class Cache:
    """The static KV cache: allocated once, `length` tokens of it in use.

    On a CPU keys are [L, G, T, K] and values [L, G, T, K + kernels.ONES] float32, whatever the model's dtype:
    attention is computed in float32, and converting the prefix in every layer of every pass would cost more
    than the memory does. On a device (on_device) both are [L, G, T, K] in the model's dtype, and the length
    is a tensor there as well.
    """

    def __init__(self, model: Model, slots: int, on_device: bool | None = None):
        config = model.config
        self.on_device = model.device.type != "cpu" if on_device is None else on_device
        shape = (config.num_hidden_layers, config.num_key_value_heads, max(slots, 16), config.head_dim)
        dtype = model.dtype if self.on_device else torch.float32
        self.keys = torch.zeros(shape, dtype=dtype, device=model.device)
        ones = 0 if self.on_device else kernels.ONES
        self.values = torch.zeros(*shape[:3], shape[3] + ones, dtype=dtype, device=model.device)
        self.values[..., config.head_dim :] = 1
        self.length = 0
        self.length_1 = torch.zeros(1, dtype=torch.int32, device=model.device)

    def write(self, index: int, k_GWK: Tensor, v_GWK: Tensor) -> None:
        """Put the keys and values of a pass into layer `index`, from slot `length` on."""
        W, K = k_GWK.shape[1:]
        if self.on_device:
            slots_W = self.length_1.long() + torch.arange(W, device=k_GWK.device)
            self.keys[index].index_copy_(1, slots_W, k_GWK.to(self.keys.dtype))
            self.values[index].index_copy_(1, slots_W, v_GWK)
        else:
            self.keys[index, :, self.length : self.length + W] = k_GWK
            self.values[index, :, self.length : self.length + W, :K] = v_GWK

    def commit(self, path: list[int]) -> None:
        """Keep the rows of the last pass that `path` names (rising, the root's 0 first) and drop the
        others."""
        kernels.compact(self.keys, self.values, self.length, path)
        self.length += len(path)
        if self.on_device:
            self.length_1.fill_(self.length)


class Scorer:
    """Scores trees over a cache. One call is one forward pass: what the paper calls verification.

    On a CPU a pass has just enough rows, because products round alike at any number of rows from 4 up; at
    width 1 it is plain decoding's pass over one row, faster and with a rounding of its own. On a device every
    pass has `width` rows and reads and writes the same buffers: a CUDA graph, captured once, replays it.
    """

    def __init__(self, model: Model, cache: Cache, width: int, top_k: int, graph: bool = True):
        self.model, self.cache, self.width, self.top_k = model, cache, width, top_k
        self.replay = None
        if cache.on_device:
            self.host = torch.zeros(
                width, width + 2, dtype=torch.int32, pin_memory=model.device.type == "cuda"
            )
            self.buffer = self.host.to(model.device, copy=True)
            self.summary = torch.zeros(
                width, 2 + 2 * min(top_k, model.config.vocab_size), device=model.device
            )
            self.logits = torch.zeros(width, model.config.vocab_size, dtype=model.dtype, device=model.device)
            self.buffer[:, 2:].fill_diagonal_(1)
            self.replay = kernels.capture(self.run) if graph and model.device.type == "cuda" else self.run

    @torch.inference_mode()
    def run(self) -> None:
        """The captured part, from embedding to top-K: buffers in, buffers out, nothing asks the host."""
        tokens_W, depths_W, mask_WW = (
            self.buffer[:, 0].long(),
            self.buffer[:, 1].long(),
            self.buffer[:, 2:].bool(),
        )
        self.logits.copy_(self.model.lm_head(self.model.step(tokens_W, depths_W, mask_WW, self.cache)))
        self.summary.copy_(kernels.summarize(self.logits, self.top_k))

    @torch.inference_mode()
    def __call__(
        self, tokens: list[int], depths: list[int], mask: Callable[[int], Tensor]
    ) -> tuple[Tensor, list[list[float]]]:
        """Logits [N, V] of a tree's N nodes, and kernels.summarize of them as rows of numbers.

        mask(width) gives the bool [width, width] ancestor mask with its padding rows. A device's logits are a
        view of a buffer that the next pass overwrites.
        """
        n = len(tokens)
        width = self.width if self.replay or self.width == 1 else rows_for(n)
        rows_W2 = torch.tensor([tokens + [0] * (width - n), depths + [0] * (width - n)])
        if self.replay is None:
            logits_NV = self.model.lm_head(self.model.step(*rows_W2, mask(width), self.cache))[:n]
            return logits_NV, kernels.summarize(logits_NV, self.top_k).tolist()
        self.host[:, :2], self.host[:, 2:] = rows_W2.T, mask(width)
        self.buffer.copy_(self.host, non_blocking=True)
        self.replay()
        return self.logits[:n], self.summary.tolist()[:n]


def rows_for(nodes: int) -> int:
    """Rows of a CPU pass that holds so many nodes: a few sizes only, and never so few that products round
    otherwise."""
    return 4 if nodes <= 4 else -(-nodes // 8) * 8


@torch.inference_mode()
def prefill(
    model: Model, tokens: list[int], cache: Cache, every_row: bool, chunk: int = kernels.MAX_WIDTH
) -> Iterator[Tensor]:
    """Feed a prompt to the cache, `chunk` tokens a pass; yields logits [rows, V] of each chunk, the last row
    last.

    every_row: logits of every token (the table learns from them); else only of each chunk's last. A chunk is
    a tree of one path, so prompt and draft go through the same arithmetic; on a CPU any chunking gives the
    same bits. Never more than chunk x V logits exist at a time.
    """
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        n = len(part)
        width = chunk if cache.on_device else rows_for(n)
        row_W = torch.tensor(part + [0] * (width - n), device=model.device)
        mask_WW = torch.ones(width, width, dtype=torch.bool, device=model.device).tril()
        hidden_WD = model.step(row_W, torch.arange(width, device=model.device), mask_WW, cache)
        cache.commit(list(range(n)))
        first = 0 if every_row or cache.on_device else max(0, n - 4)  # on a device rows round by their number
        logits_WV = model.lm_head(hidden_WD if cache.on_device else hidden_WD[first : max(n, 4)])
        yield logits_WV[: n - first]


# ---- loading -----------------------------------------------------------------------------------------------

HUB_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
]
SAFETENSORS = ["model.safetensors", "model.safetensors.index.json", "model-*.safetensors"]
PICKLED = ["pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin"]
INCOMPLETE = "the download looks incomplete, fetch it again"


def find(weights: str, revision: str | None = None) -> Path:
    """The folder that --weights means: a local one, or a Hub id's snapshot (downloaded if it is not in the
    cache)."""
    if Path(weights).is_dir():
        return Path(weights)
    if Path(weights).exists():
        raise LoadError(f"{weights} is a file; give the folder that holds config.json and the weights")
    parts = weights.split("/")
    if weights.startswith((".", "/", "~")) or len(parts) > 2 or not all(parts):
        raise LoadError(f"{weights}: no such folder")
    from huggingface_hub import errors, snapshot_download

    try:
        folder = Path(snapshot_download(weights, revision=revision, allow_patterns=HUB_FILES + SAFETENSORS))
        if not any(folder.glob("*.safetensors")):
            snapshot_download(weights, revision=revision, allow_patterns=HUB_FILES + PICKLED)
        return folder
    except errors.GatedRepoError:
        raise LoadError(
            f"{weights} is gated: accept its licence on its Hub page, then set HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise LoadError(f"{weights} has no revision {revision!r} on the Hub") from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise LoadError(
            f"{weights} is neither a local folder nor a Hub id that can be read "
            "(a private one needs HF_TOKEN)"
        ) from None
    except errors.LocalEntryNotFoundError:
        offline = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
        reason = "HF_HUB_OFFLINE is set" if offline else "the Hub cannot be reached"
        raise LoadError(
            f"{weights} is not in the local cache and {reason}; "
            "download it where there is a network, or give a local folder"
        ) from None
    except Exception as error:  # the hub library passes on whatever its HTTP client raises
        raise LoadError(
            f"{weights}: download failed ({type(error).__name__}); check the network or give a local folder"
        ) from None


def read_json(file: Path) -> dict:
    """The object in a JSON file; {} if there is no such file."""
    if not file.exists():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise LoadError(f"{file}: not readable as JSON ({error}); {INCOMPLETE}") from None
    if not isinstance(value, dict):
        raise LoadError(f"{file}: expected a JSON object")
    return value


def open_shard(file: Path):
    """A mapping from tensor names to tensors that are read when touched; the file is mapped, not copied to
    memory."""
    if file.suffix == ".bin":
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    return safe_open(file, "pt")


def read_tensor(file: Path, name: str) -> Tensor:
    """One tensor. The shard is opened anew each time: pages of a mapping count as memory until it is
    closed."""
    try:
        shard = open_shard(file)
        return shard[name] if isinstance(shard, dict) else shard.get_tensor(name)
    except Exception as error:  # safetensors, pickle, zip and torch each raise their own
        raise LoadError(f"{file}: cannot read tensor {name} ({first_line(error)}); {INCOMPLETE}") from None


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def tensor_files(folder: Path) -> dict[str, Path]:
    """Which file holds which tensor: one file or an index with shards, safetensors before .bin."""
    for single, index in (
        ("model.safetensors", "model.safetensors.index.json"),
        ("pytorch_model.bin", "pytorch_model.bin.index.json"),
    ):
        file = folder / single
        if file.exists():
            try:
                return dict.fromkeys(open_shard(file).keys(), file)
            except Exception as error:
                raise LoadError(
                    f"{file}: not a readable weights file ({first_line(error)}); {INCOMPLETE}"
                ) from None
        if (folder / index).exists():
            names = read_json(folder / index).get("weight_map")
            if not isinstance(names, dict):
                raise LoadError(f"{folder / index}: has no weight_map; {INCOMPLETE}")
            for shard in sorted(set(names.values())):
                if not (folder / shard).exists():
                    raise LoadError(f"{folder / shard}: missing, though {index} names it; {INCOMPLETE}")
            return {name: folder / shard for name, shard in names.items()}
    raise LoadError(
        f"{folder}: holds no model.safetensors or pytorch_model.bin (nor an index of shards); {INCOMPLETE}"
    )


def some(names: set[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def load(folder: Path, dtype: str = "auto", device: str = "auto") -> Model:
    """The model in `folder`, its tensors read one by one straight to the target dtype and device.

    dtype: auto (the checkpoint's own) or a key of DTYPES; device: auto (cuda if there is one), cpu, cuda,
    cuda:N. Raises LoadError for a missing, surplus, misshapen, truncated or quantised tensor, by name.
    """
    if not (folder / "config.json").exists():
        raise LoadError(f"{folder}: holds no config.json; give the folder of a checkpoint")
    config = Config.read(read_json(folder / "config.json"))
    files = tensor_files(folder)
    if dtype == "auto":
        dtype = config.dtype or str(read_tensor(*next((f, n) for n, f in files.items())).dtype).removeprefix(
            "torch."
        )
    if dtype not in DTYPES:
        raise LoadError(f"dtype {dtype} is not supported; choose --dtype {', '.join(DTYPES)}")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device != "cpu" and not (device.split(":")[0] == "cuda" and torch.cuda.is_available()):
        raise LoadError(f"--device {device}: this PyTorch sees no such device (auto, cpu, cuda or cuda:N)")

    def new(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=DTYPES[dtype], device=device)  # takes no memory until it is filled

    with torch.inference_mode():
        model = Model(config, new)
        expected = set(model.checkpoint())
    missing = expected - files.keys()
    surplus = {
        name
        for name in files.keys() - expected
        if not name.endswith("rotary_emb.inv_freq")
        and not (name == "lm_head.weight" and config.tie_word_embeddings)
    }
    if missing:
        raise LoadError(f"{folder}: the weights lack {some(missing)}; {INCOMPLETE}")
    if surplus:
        raise LoadError(
            f"{folder}: the weights hold {some(surplus)}, which {config.architecture} does not use"
        )

    def fill(named: dict[str, Tensor], prefix: str = "") -> None:
        for name, target in named.items():
            source = read_tensor(files[prefix + name], prefix + name)
            if source.dtype not in DTYPES.values():
                raise LoadError(
                    f"{files[prefix + name]}: {prefix + name} is stored as {source.dtype}; "
                    "quantised or double precision checkpoints are not supported"
                )
            if source.shape != target.shape:
                raise LoadError(
                    f"{files[prefix + name]}: {prefix + name} has shape {list(source.shape)}, "
                    f"config.json asks for {list(target.shape)}"
                )
            target.copy_(source)

    with torch.inference_mode():
        fill(model.outer())
        model.lm_head.pack()
        if model.lm_head.packed and config.tie_word_embeddings:
            # the blocked copy serves the head; rows of the embedding come from the file, which stays mapped
            name = "model.embed_tokens.weight"
            model.embed_tokens = read_tensor(files[name], name)
        for index, layer in enumerate(model.layers):
            fill(layer.checkpoint(config), f"model.layers.{index}.")
            for linear in layer.linears():
                linear.pack()
    return model


# ---- text --------------------------------------------------------------------------------------------------


class Tokenizer:
    """Text to token ids and back, as the checkpoint's tokenizer.json says; chat through its own template."""

    def __init__(self, folder: Path):
        from tokenizers import Tokenizer as Backend

        file = folder / "tokenizer.json"
        if not file.exists():
            raise LoadError(
                f"{folder}: holds no tokenizer.json (a tokenizer.model alone must first be converted "
                "with transformers' AutoTokenizer and save_pretrained)"
            )
        try:
            self.backend = Backend.from_file(str(file))
        except Exception as error:  # the backend raises bare Exception
            raise LoadError(f"{file}: not readable ({first_line(error)}); {INCOMPLETE}") from None
        self.backend.no_truncation()
        self.backend.no_padding()
        self.settings = read_json(folder / "tokenizer_config.json")
        template = folder / "chat_template.jinja"
        self.template = (
            template.read_text(encoding="utf-8") if template.exists() else self.settings.get("chat_template")
        )
        self.stop_ids = self.find_stop_ids(folder)
        self.letter = self.backend.encode("a", add_special_tokens=False).ids[-1:]

    def find_stop_ids(self, folder: Path) -> frozenset[int]:
        """Every eos id of generation_config.json, else of config.json, else the tokenizer's eos token; may be
        empty."""
        for file in ("generation_config.json", "config.json"):
            eos = read_json(folder / file).get("eos_token_id")
            if eos is not None:
                return frozenset(eos if isinstance(eos, list) else [eos])
        eos = self.backend.token_to_id(self.special("eos_token") or "")
        return frozenset() if eos is None else frozenset([eos])

    def special(self, name: str) -> str | None:
        """The text of a special token such as eos_token, which the settings hold as a string or an object."""
        value = self.settings.get(name)
        return value.get("content") if isinstance(value, dict) else value

    def encode(self, text: str) -> list[int]:
        """Ids of a raw prompt, with BOS where the tokenizer's post-processor adds one. Special tokens that
        the text spells out are special; a BOS that it begins with is not doubled."""
        ids = self.backend.encode(text).ids
        bare = self.backend.encode(text, add_special_tokens=False).ids
        doubled = len(ids) == len(bare) + 1 and len(ids) > 1 and ids[0] == ids[1] and ids[1:] == bare
        is_special = doubled and self.backend.id_to_token(ids[0]) in self.special_tokens()
        return bare if is_special else ids

    def special_tokens(self) -> set[str]:
        return {token.content for token in self.backend.get_added_tokens_decoder().values() if token.special}

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Ids of a conversation ({"role", "content"} each) up to where the model is to answer. The template
        writes every special token itself, so none is added; control tokens spelled out in a message act as
        such."""
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        template = self.template
        if isinstance(template, list):  # several named ones
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        if not template:
            raise LoadError("this tokenizer has no chat template; leave out --chat")

        def refuse(message: str):
            raise jinja2.TemplateError(message)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(
            value, ensure_ascii=False, indent=indent
        )
        specials = {n: self.special(n) or "" for n in ("bos_token", "eos_token", "pad_token", "unk_token")}
        try:
            text = environment.from_string(template).render(
                messages=messages, add_generation_prompt=True, **specials
            )
        except jinja2.TemplateError as error:
            raise LoadError(f"the chat template failed: {first_line(error)}") from None
        return self.backend.encode(text, add_special_tokens=False).ids

    def piece(self, ids: list[int], inside: bool) -> str:
        """The text of `ids` alone; `inside` a text, where decoders that strip a first space must not."""
        if not (inside and self.letter):
            return self.backend.decode(ids)
        return self.backend.decode(self.letter + ids)[len(self.backend.decode(self.letter)) :]

    def decode(self, ids: list[int], after: list[int] = ()) -> str:
        """The text that `ids` add when they follow `after`: what a Stream shows of them, all at once.

        Special tokens and ids beyond the vocabulary are silent; bytes that are no character become U+FFFD,
        and so do those that complete a character which `after` began.
        """
        stream = Stream(self, after)
        return "".join([stream.push([token]) for token in ids]) + stream.flush()


class Stream:
    """Turns tokens into text as they come, whole characters only."""

    MAX_HELD = 3  # bytes of an unfinished UTF-8 character, each of which may decode to one U+FFFD

    def __init__(self, tokenizer: Tokenizer, after: list[int] = ()):
        self.tokenizer, self.inside = tokenizer, bool(tokenizer.backend.decode(list(after)))
        self.pending, self.shown = [], ""  # tokens not settled yet, and what was shown of them

    def push(self, tokens: list[int]) -> str:
        """The text that is certain now; a character still in the making is held back."""
        self.pending += tokens
        text = self.tokenizer.piece(self.pending, self.inside)
        held = len(text) - len(text.rstrip("\ufffd"))
        certain = text[: len(text) - min(held, self.MAX_HELD)]
        new, self.shown = certain[len(self.shown) :], certain
        if text and not held:
            self.pending, self.shown, self.inside = [], "", True
        return new

    def flush(self) -> str:
        """The rest, at the end: an unfinished character becomes U+FFFD."""
        return self.tokenizer.piece(self.pending, self.inside)[len(self.shown) :]
