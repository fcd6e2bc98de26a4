"""The qwen35 hybrid (Gated DeltaNet and gated attention) as pure functions of a flat parameter dict.

Parameters carry GGUF tensor names and GGUF layouts: matrices are [out, in], value heads are in tiled order
(value head j reads key head j % n_key_heads) and norm weights lie around 1. The one exception is
`blk.i.ssm_a_log`, of which the file holds `ssm_a` = -exp(ssm_a_log).

Axis letters: B rows, T tokens, D hidden, H heads, N chunks, n tokens of a chunk, r value heads per key head.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 64  # tokens the delta rule handles in parallel


@dataclass(frozen=True)
class Geometry:
    """Shape of a model; everything the forward pass needs besides the parameters."""

    n_layers: int
    hidden: int
    ffn: int
    n_key_heads: int
    n_value_heads: int
    n_heads: int
    n_kv_heads: int
    vocab: int
    context_length: int
    head_k_dim: int = 128
    head_v_dim: int = 128
    head_dim: int = 256
    n_rot: int = 64
    rope_theta: float = 1e7
    conv_kernel: int = 4
    rms_eps: float = 1e-6
    full_attention_interval: int = 4

    def is_attention(self, layer: int) -> bool:
        return (layer + 1) % self.full_attention_interval == 0

    @property
    def key_dim(self) -> int:
        return self.n_key_heads * self.head_k_dim

    @property
    def value_dim(self) -> int:
        return self.n_value_heads * self.head_v_dim

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_dim + self.value_dim

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Geometry":
        return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})


def parameter_shapes(g: Geometry, tied: bool = True) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every parameter; an untied model has `output.weight` too."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (g.vocab, g.hidden)}
    if not tied:
        shapes["output.weight"] = (g.vocab, g.hidden)
    shapes["output_norm.weight"] = (g.hidden,)
    for layer in range(g.n_layers):
        block: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (g.hidden,),
            "post_attention_norm.weight": (g.hidden,),
            "ffn_gate.weight": (g.ffn, g.hidden),
            "ffn_up.weight": (g.ffn, g.hidden),
            "ffn_down.weight": (g.hidden, g.ffn),
        }
        if g.is_attention(layer):
            block |= {
                "attn_q.weight": (2 * g.n_heads * g.head_dim, g.hidden),
                "attn_k.weight": (g.n_kv_heads * g.head_dim, g.hidden),
                "attn_v.weight": (g.n_kv_heads * g.head_dim, g.hidden),
                "attn_output.weight": (g.hidden, g.n_heads * g.head_dim),
                "attn_q_norm.weight": (g.head_dim,),
                "attn_k_norm.weight": (g.head_dim,),
            }
        else:
            block |= {
                "attn_qkv.weight": (g.conv_channels, g.hidden),
                "attn_gate.weight": (g.value_dim, g.hidden),
                "ssm_beta.weight": (g.n_value_heads, g.hidden),
                "ssm_alpha.weight": (g.n_value_heads, g.hidden),
                "ssm_out.weight": (g.hidden, g.value_dim),
                "ssm_conv1d.weight": (g.conv_channels, g.conv_kernel),
                "ssm_a_log": (g.n_value_heads,),
                "ssm_dt.bias": (g.n_value_heads,),
                "ssm_norm.weight": (g.head_v_dim,),
            }
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    return shapes


def is_matrix(name: str) -> bool:
    """Whether the parameter takes part in a matrix product, and so is stored in one-bit blocks."""
    return name.endswith(".weight") and not name.endswith(("norm.weight", "conv1d.weight"))


def init_parameters(g: Geometry, seed: int, tied: bool = True) -> dict[str, Tensor]:
    """Random latent parameters, a function of the seed."""
    random = torch.Generator().manual_seed(seed)
    residual = math.sqrt(2 * g.n_layers)
    p: dict[str, Tensor] = {}
    for name, shape in parameter_shapes(g, tied).items():
        if name == "token_embd.weight":
            p[name] = torch.randn(shape, generator=random) * 0.02
        elif is_matrix(name):
            scale = 1 / math.sqrt(shape[1])
            if name.endswith(("ffn_down.weight", "attn_output.weight", "ssm_out.weight")):
                scale /= residual
            p[name] = torch.randn(shape, generator=random) * scale
        elif name.endswith("conv1d.weight"):
            p[name] = torch.rand(shape, generator=random) * 0.6 - 0.3
            p[name][:, -1] += 0.7
        elif name.endswith("ssm_a_log"):
            p[name] = torch.linspace(1, 8, shape[0]).log() if shape[0] > 1 else torch.zeros(shape)
        elif name.endswith("ssm_dt.bias"):
            low, high = math.log(0.001), math.log(0.1)
            step = torch.exp(torch.rand(shape, generator=random) * (high - low) + low)
            p[name] = step + torch.log(-torch.expm1(-step))  # the inverse of softplus
        else:
            p[name] = torch.ones(shape)
    return p


@dataclass
class LayerState:
    """What one layer remembers of the tokens before: either pair of tensors, by the kind of layer."""

    conv: Tensor | None = None  # [B, conv_kernel - 1, C] inputs of the convolution, before it
    delta: Tensor | None = None  # [B, Hk, dk, r, dv]
    keys: Tensor | None = None  # [B, Hkv, tokens, head_dim] after norm and rotation
    values: Tensor | None = None  # [B, Hkv, tokens, head_dim]


class State:
    """Memory of a sequence that `forward` continues and updates."""

    def __init__(self, g: Geometry):
        self.layers = [LayerState() for _ in range(g.n_layers)]
        self.position = 0


def column_sums(x: Tensor) -> Tensor:
    """Sums over all axes but the last, several times faster as a product than by sum()."""
    rows = x.flatten(0, -2)
    return torch.mv(rows.T, rows.new_ones(len(rows)))


class _RmsNorm(torch.autograd.Function):
    """x / sqrt(mean x^2 + eps) * weight over the last axis, with fewer passes than its composition takes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1])
        inverse = mean_square.add_(eps).rsqrt_()
        normed = x * inverse
        ctx.save_for_backward(normed, inverse, weight)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        normed, inverse, weight = ctx.saved_tensors
        product = (grad * normed).flatten(0, -2)
        along = torch.mv(product, weight).view(inverse.shape).div_(grad.shape[-1])
        grad_x = (grad * weight).addcmul_(normed, along, value=-1).mul_(inverse)
        return grad_x, column_sums(product) if ctx.needs_input_grad[1] else None, None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _RmsNorm.apply(x, weight, eps)


@lru_cache
def rope_table(count: int, n_rot: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin [count, n_rot / 2] of the positions 0..count; angles in f64, then rounded once."""
    inverse = theta ** (-torch.arange(0, n_rot, 2, dtype=torch.float64) / n_rot)
    angles = torch.arange(count, dtype=torch.float64)[:, None] * inverse
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first dims of x [B, H, T, head_dim]: dim p pairs with p + n_rot / 2."""
    half = cos.shape[-1]
    a, b, rest = x.split((half, half, x.shape[-1] - 2 * half), -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos, rest), -1)


def attention(
    g: Geometry, p: Mapping[str, Tensor], block: str, x: Tensor, state: LayerState | None, position: int
) -> Tensor:
    """Gated attention mixer, [B, T, D] -> [B, T, D]."""
    rows, count, _ = x.shape
    # A head's rows of attn_q are its query and then its output gate.
    query_gate = F.linear(x, p[block + "attn_q.weight"]).view(rows, count, g.n_heads, 2, g.head_dim)
    query, gate = query_gate.unbind(3)
    key, value = (
        F.linear(x, p[block + name]).view(rows, count, g.n_kv_heads, g.head_dim)
        for name in ("attn_k.weight", "attn_v.weight")
    )
    value = value.transpose(1, 2)
    end = position + count
    # Rounding the size up lets successive tokens share a table.
    cos, sin = (table[position:end] for table in rope_table(-(-end // 256) * 256, g.n_rot, g.rope_theta))
    query = rotate(rms_norm(query, p[block + "attn_q_norm.weight"], g.rms_eps).transpose(1, 2), cos, sin)
    key = rotate(rms_norm(key, p[block + "attn_k_norm.weight"], g.rms_eps).transpose(1, 2), cos, sin)
    mask = None
    if state is not None:
        if state.keys is not None and state.values is not None:
            key, value = torch.cat((state.keys, key), 2), torch.cat((state.values, value), 2)
            mask = torch.ones(count, key.shape[2], dtype=torch.bool).tril(key.shape[2] - count)
        state.keys, state.values = key, value
    out = F.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None, enable_gqa=True)
    out = out.transpose(1, 2) * torch.sigmoid(gate)
    return F.linear(out.reshape(rows, count, -1), p[block + "attn_output.weight"])


class _UnitLowerInverse(torch.autograd.Function):
    """(I + A)^-1 of strictly lower A [..., n, n], by forward substitution.

    Substitution is safe where products of powers of A are not: with repeating keys those reach 1e17.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        identity = torch.eye(a.shape[-1], dtype=a.dtype).expand_as(a)
        inverse = torch.linalg.solve_triangular(a, identity, upper=False, unitriangular=True)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return (inverse.mT @ grad @ inverse.mT).neg_().tril_(-1)


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """The gated delta rule in chunks.

    q (scaled) and k are [B, T, Hk, dk], v is [B, T, r, Hk, dv] (tiled value heads), log_decay and beta are
    [B, T, r, Hk], the state is [B, Hk, dk, r, dv]. Returns the outputs, shaped like v, and the state after.
    """
    rows, count, ratio, heads, dv = v.shape
    dk = k.shape[-1]
    n = min(chunk, count)
    if padding := -count % n:  # zero keys, betas and decays change neither outputs nor state
        q, k = (F.pad(x, (0, 0, 0, 0, 0, padding)) for x in (q, k))
        v = F.pad(v, (0, 0, 0, 0, 0, 0, 0, padding))
        log_decay, beta = (F.pad(x, (0, 0, 0, 0, 0, padding)) for x in (log_decay, beta))
    chunks = (count + padding) // n
    q, k = (x.view(rows, chunks, n, heads, dk).permute(1, 0, 3, 2, 4).contiguous() for x in (q, k))
    v = v.view(rows, chunks, n, ratio, heads, dv).permute(1, 0, 4, 3, 2, 5)  # [N, B, Hk, r, n, dv]
    log_decay, beta = (
        x.view(rows, chunks, n, ratio, heads).permute(1, 0, 4, 3, 2) for x in (log_decay, beta)
    )
    total = log_decay.cumsum(-1)  # [N, B, Hk, r, n]
    beta = beta.unsqueeze(-1)

    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    decay = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(future, -math.inf).exp()
    reads = (q @ k.mT).unsqueeze(3) * decay  # [N, B, Hk, r, n, n]
    overlaps = ((k @ k.mT).unsqueeze(3) * decay).mul(beta).tril(-1)
    inverse = _UnitLowerInverse.apply(overlaps)
    since_start = total.exp().unsqueeze(-1)
    until_end = (total[..., -1:] - total).exp().unsqueeze(-1)

    if state is None:
        state = q.new_zeros(rows, heads, dk, ratio, dv)
    outputs = []
    # unbind() rather than indexing: its gradient is one stack, not a sum of zero-filled tensors
    parts = (
        x.unbind()
        for x in (
            torch.cat((k, q), -2),
            k.mT,
            v * beta,
            beta * since_start,
            since_start,
            until_end,
            inverse,
            reads,
        )
    )
    for kq, k_columns, scaled_v, scaled_start, start, end, solve, read in zip(*parts, strict=True):
        # Key heads are shared: the r value heads of one lie side by side as columns of its state.
        seen = (kq @ state.flatten(-2)).unflatten(-1, (ratio, dv)).transpose(-2, -3)
        seen_k, seen_q = seen.split(n, -2)  # [B, Hk, r, n, dv]
        update = solve @ torch.addcmul(scaled_v, scaled_start, seen_k, value=-1)
        outputs.append(torch.addcmul(read @ update, start, seen_q))
        kept = (update * end).transpose(-2, -3).flatten(-2)  # [B, Hk, n, r * dv]
        written = (k_columns @ kept).unflatten(-1, (ratio, dv))
        state = torch.addcmul(written, state, start[..., -1:, :].permute(0, 1, 3, 2, 4))
    out = torch.stack(outputs, 1).permute(0, 1, 4, 3, 2, 5).reshape(rows, chunks * n, ratio, heads, dv)
    return out[:, :count], state


class _CausalConvSilu(torch.autograd.Function):
    """SiLU of a depthwise convolution of x [B, T, C] over T by weight [taps, C], oldest tap first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        taps, count = len(weight), x.shape[1]
        out = x * weight[-1]
        for lag in range(1, min(taps, count)):
            out[:, lag:].addcmul_(x[:, :-lag], weight[taps - 1 - lag])
        ctx.save_for_backward(x, weight, out)
        return F.silu(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, out = ctx.saved_tensors
        taps, count = len(weight), x.shape[1]
        grad = torch.ops.aten.silu_backward(grad, out)
        grad_x, grad_weight = grad * weight[-1], torch.zeros_like(weight)
        product = grad * x
        grad_weight[-1] = column_sums(product)
        for lag in range(1, min(taps, count)):
            grad_x[:, :-lag].addcmul_(grad[:, lag:], weight[taps - 1 - lag])
            product[:, :lag] = 0
            torch.mul(grad[:, lag:], x[:, :-lag], out=product[:, lag:])
            grad_weight[taps - 1 - lag] = column_sums(product)
        return grad_x, grad_weight


def causal_conv_silu(x: Tensor, weight: Tensor, history: Tensor | None) -> Tensor:
    """SiLU of the depthwise convolution of x [B, T, C] by weight [C, taps]; history is [B, taps - 1, C]."""
    if history is None:
        return _CausalConvSilu.apply(x, weight.T.contiguous())
    return _CausalConvSilu.apply(torch.cat((history, x), 1), weight.T.contiguous())[:, history.shape[1] :]


def delta_net(
    g: Geometry, p: Mapping[str, Tensor], block: str, x: Tensor, state: LayerState | None
) -> Tensor:
    """Gated DeltaNet mixer, [B, T, D] -> [B, T, D]."""
    rows, count, _ = x.shape
    ratio = g.n_value_heads // g.n_key_heads
    qkv = F.linear(x, p[block + "attn_qkv.weight"])
    gate = F.linear(x, p[block + "attn_gate.weight"]).view(rows, count, g.n_value_heads, g.head_v_dim)
    beta = torch.sigmoid(F.linear(x, p[block + "ssm_beta.weight"])).view(rows, count, ratio, g.n_key_heads)
    step = F.softplus(F.linear(x, p[block + "ssm_alpha.weight"]) + p[block + "ssm_dt.bias"])
    log_decay = (-p[block + "ssm_a_log"].exp() * step).view(rows, count, ratio, g.n_key_heads)

    mixed = causal_conv_silu(qkv, p[block + "ssm_conv1d.weight"], state and state.conv)
    q, k, v = mixed.split((g.key_dim, g.key_dim, g.value_dim), -1)
    # x / sqrt(sum x^2 + eps) is an RMS norm with eps / dk and weights 1/sqrt(dk); q gets those squared.
    scale = q.new_full((g.head_k_dim,), g.head_k_dim**-0.5)
    q, k = (
        rms_norm(heads.unflatten(-1, (g.n_key_heads, g.head_k_dim)), weight, g.rms_eps / g.head_k_dim)
        for heads, weight in ((q, scale.square()), (k, scale))
    )
    v = v.unflatten(-1, (ratio, g.n_key_heads, g.head_v_dim))
    out, final = delta_rule(q, k, v, log_decay, beta, state and state.delta)
    if state is not None:
        history = qkv if state.conv is None else torch.cat((state.conv, qkv), 1)
        missing = max(0, g.conv_kernel - 1 - history.shape[1])
        state.conv = F.pad(history, (0, 0, missing, 0))[:, 1 - g.conv_kernel :]
        state.delta = final
    out = rms_norm(out.reshape(gate.shape), p[block + "ssm_norm.weight"], g.rms_eps)
    return F.linear((out * F.silu(gate)).flatten(2), p[block + "ssm_out.weight"])


def forward(
    g: Geometry,
    p: Mapping[str, Tensor],
    tokens: Tensor,
    state: State | None = None,
    hidden_states: list[Tensor] | None = None,
) -> Tensor:
    """Token ids [B, T] -> hidden vectors [B, T, D] after the last norm; a given state is continued.

    `hidden_states` collects the embedding and the residual stream after every layer.
    """
    x = F.embedding(tokens, p["token_embd.weight"])
    position = state.position if state else 0
    for layer in range(g.n_layers):
        if hidden_states is not None:
            hidden_states.append(x)
        block, memory = f"blk.{layer}.", state.layers[layer] if state else None
        h = rms_norm(x, p[block + "attn_norm.weight"], g.rms_eps)
        if g.is_attention(layer):
            x = x + attention(g, p, block, h, memory, position)
        else:
            x = x + delta_net(g, p, block, h, memory)
        h = rms_norm(x, p[block + "post_attention_norm.weight"], g.rms_eps)
        h = F.silu(F.linear(h, p[block + "ffn_gate.weight"])) * F.linear(h, p[block + "ffn_up.weight"])
        x = x + F.linear(h, p[block + "ffn_down.weight"])
    if state:
        state.position += tokens.shape[1]
    x = rms_norm(x, p["output_norm.weight"], g.rms_eps)
    if hidden_states is not None:
        hidden_states.append(x)
    return x


def logits(p: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    """Scores over the vocabulary, [..., D] -> [..., V]; without `output.weight` the embedding is the head."""
    return F.linear(hidden, p["output.weight"] if "output.weight" in p else p["token_embd.weight"])


@torch.no_grad()
def generate_batch(
    g: Geometry, p: Mapping[str, Tensor], prompts: Tensor, max_tokens: int, stop_id: int
) -> list[list[int]]:
    """Greedy answers to prompts of one length [B, T]; an answer ends with stop_id unless it was cut off."""
    state = State(g)
    answers: list[list[int]] = [[] for _ in prompts]
    tokens = prompts
    running = torch.ones(len(prompts), dtype=torch.bool)
    for _ in range(max_tokens):
        best = logits(p, forward(g, p, tokens, state)[:, -1]).argmax(-1)
        for row in running.nonzero().flatten().tolist():
            answers[row].append(int(best[row]))
        running &= best != stop_id
        if not running.any():
            break
        tokens = best[:, None]
    return answers


def generate(
    g: Geometry, p: Mapping[str, Tensor], prompt_ids: Iterable[int], max_tokens: int, stop_id: int
) -> list[int]:
    """Greedy answer to one prompt; it ends with stop_id unless it was cut off."""
    return generate_batch(g, p, torch.tensor([list(prompt_ids)]), max_tokens, stop_id)[0]
