"""The architectures' blocks as PyTorch modules. Each computes on weft's kernels, forward and backward."""
import weakref
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from .._blocks import ONE_LOSS
from ._ops import check_devices, type_name
from ._part import Part

EPS, BASE = 1e-6, 10000.0


class RMSNorm(nn.Module):
    """x / √(mean x² + eps) · weight, in plain PyTorch: for use beside weft's blocks, which have their own."""

    def __init__(self, hidden_size, eps=EPS):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(hidden_size)), eps

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class RotaryEmbedding(nn.Module):
    """The tables of rotary positions: rope(x, seq_len=T) gives (cos, sin), each [1, 1, T, head_dim]. Outside
    of tracing the tables of a length are made once and given again: do not write to them."""

    def __init__(self, head_dim, base=BASE):
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"rotary positions need an even head_dim, not {head_dim}")
        if not base > 1:
            raise ValueError(f"rotary positions need a base above 1, not {base}")
        self.head_dim, self.base, self._made = head_dim, float(base), {}

    def forward(self, x, seq_len=None):
        time = x.shape[-2] if seq_len is None else seq_len
        kind = x.dtype if x.is_floating_point() else torch.float32
        if torch.compiler.is_compiling() or x.is_meta or type(x) not in (torch.Tensor, nn.Parameter):
            return self.tables(time, kind, x.device)
        key = time, kind, x.device
        found = self._made.get(key)
        if found is None:
            if len(self._made) >= 8:
                self._made.clear()
            with torch.inference_mode(False):
                found = self._made[key] = self.tables(time, kind, x.device)
            note_base(found, self.head_dim, self.base)
        return found

    def tables(self, time, kind, device):
        rate = self.base ** (-torch.arange(0, self.head_dim, 2, dtype=torch.float64, device=device) / self.head_dim)
        angle = torch.outer(torch.arange(time, dtype=torch.float64, device=device), rate)
        angle = torch.cat((angle, angle), -1)[None, None]
        return angle.cos().to(kind), angle.sin().to(kind)

    def __getstate__(self):
        return {**self.__dict__, "_made": {}}

    def extra_repr(self):
        return f"{self.head_dim}, base={self.base:g}"


def apply_rotary_pos_emb(q, k, cos, sin):
    """Rotates q and k [B, H, T, D]: column i rotates with column i + D/2."""
    def rotate(x):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin
    return rotate(q), rotate(k)


def mask_kind(mask, time):
    """What a mask means: "none" for every token, "causal" for the lower triangle, else "other". Values
    are not looked at while tracing."""
    if mask is None:
        return "none"
    if torch.compiler.is_compiling():
        return "other"
    seen = mask if mask.dtype == torch.bool else mask == 0
    if mask.dtype != torch.bool and not bool((seen | (mask < -1e3)).all()):
        return "other"
    if mask.shape[-2:] == (time, time):
        lower = torch.ones(time, time, dtype=torch.bool, device=mask.device).tril()
        if bool((seen == lower).all()):
            return "causal"
    return "none" if bool(seen.all()) else "other"


# What is known of tables, by their cosines: to look at values on a GPU would wait for it.
_bases = WeakIdKeyDictionary()


def note_base(tables, head_dim, base):
    cos, sin = tables
    _bases[cos] = weakref.ref(sin), cos._version, sin._version, head_dim, base


def known_base(tables, head_dim):
    """The base of tables that RotaryEmbedding made, or that were looked at; None: unknown."""
    cos, sin = tables
    known = _bases.get(cos)
    if known is None or known[0]() is not sin or known[1:4] != (cos._version, sin._version, head_dim):
        return None
    return known[4]


def rotation(given, head_dim, x, base):
    """The base of what rotary_emb_outputs say, `base` where there are none. The engine makes the rotation
    itself, so tables that RotaryEmbedding did not make must be those of `base`."""
    if given is None:
        return base
    cos, sin = given
    if cos.device != x.device or sin.device != x.device:
        raise ValueError(f"weft: rotary_emb_outputs lie on {cos.device}, but x on {x.device}; move them to one device")
    time = x.shape[1]
    wrong = (f"rotary_emb_outputs must be those of RotaryEmbedding({head_dim})(x, seq_len={time}): weft rotates positions "
             f"0 to T - 1, by base {base:g} here. Another base: RotaryEmbedding({head_dim}, base), or the block's rope_theta")
    if cos.shape[-2:] != (time, head_dim) or sin.shape[-2:] != (time, head_dim):
        raise ValueError(wrong)
    traced = torch.compiler.is_compiling()
    known = None if traced else known_base(given, head_dim)
    if known is not None:
        return known
    want_cos, want_sin = RotaryEmbedding(head_dim, base).tables(time, torch.float32, x.device)
    near = ((cos - want_cos).abs().max() < 1e-2) & ((sin - want_sin).abs().max() < 1e-2)
    if traced:
        torch._assert_async(near, wrong)
    elif not near:
        raise ValueError(wrong)
    else:
        note_base(given, head_dim, base)
    return base


class W2(nn.Module):
    """What W2 attention and its block share: one set of weights under any mask."""

    def __init__(self, part, hidden_size, heads, rope=True, base=BASE, kernel="w2", **options):
        super().__init__()
        if hidden_size % heads:
            raise ValueError(f"hidden_size {hidden_size} is no multiple of num_attention_heads {heads}")
        self.heads, self.head_dim, self.rope, self.base = heads, hidden_size // heads, rope, float(base)
        if rope:
            options["ROPE_THETA"] = self.base
        self.core = Part(part, ATTENTION="w2", W2_KERNEL=kernel, POSITION="rope" if rope else "none", BIAS=False, CAUSAL=True,
                         N_EMBD=hidden_size, N_HEAD=heads, **options)

    def forward(self, hidden_states, rotary_emb_outputs=None, attention_mask=None, is_causal=False):
        """`attention_mask`: True (or 0) where a token is visible, False (or -inf) where not, of a shape
        that spreads to [batch, heads, time, time]. None, all visible and the causal triangle run on
        weft's kernels, and so does is_causal=True; another mask runs on PyTorch's own attention, and so
        does any mask under torch.compile. The tables of a RotaryEmbedding set the base of the rotation."""
        self.core.check(hidden_states)
        base = rotation(rotary_emb_outputs, self.head_dim, hidden_states, self.base) if self.rope else self.base
        kind = mask_kind(attention_mask, hidden_states.shape[1])
        if is_causal and kind == "other":
            attention_mask = self._both(attention_mask, hidden_states)
        elif is_causal:
            kind = "causal"
        if kind == "other":
            return self._masked(hidden_states, attention_mask, base)
        causal = "y" if kind == "causal" else "n"
        if base != self.base:
            return self.core(hidden_states, CAUSAL=causal, ROPE_THETA=repr(base))["y"]
        return self.core(hidden_states, CAUSAL=causal)["y"]

    def _both(self, mask, x):
        from .masked import score_mask
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        return score_mask(mask, x).masked_fill(hidden, float("-inf"))

    def _masked(self, x, mask, base):
        from . import masked
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        type_name(x.dtype)
        p = dict(zip(self.core.names, self.core.weights()))
        check_devices((x, *p.values(), mask))
        rope = RotaryEmbedding(self.head_dim, base).tables(x.shape[1], x.dtype, x.device) if self.rope else None
        if self.core.part == "layer":
            return masked.block(x, p, self.heads, rope, mask, self.eps)
        return masked.attention(x, p, self.heads, rope, mask)


class W2Attention(W2):
    """Attention by the Wasserstein-2 distance of Gaussians, with its four projections: x → y, both
    [batch, time, hidden_size]. `rope` False leaves positions out; `base` is that of the rotation; `kernel`
    "overlap" scores by the Gaussians' overlap."""

    def __init__(self, hidden_size, num_attention_heads, rope=True, base=BASE, kernel="w2"):
        super().__init__("attention", hidden_size, num_attention_heads, rope, base, kernel)


class W2TransformerBlock(W2):
    """RMSNorm, W2 attention, RMSNorm, SwiGLU, with residual sums. `config` is any object with
    hidden_size, num_attention_heads and intermediate_size; rms_norm_eps (1e-6), rope_theta (10000) and w2_kernel
    ("w2") count where it has them."""

    def __init__(self, config, rope=True):
        eps = float(getattr(config, "rms_norm_eps", EPS))
        if not 0 < eps < 1:
            raise ValueError(f"rms_norm_eps is {eps:g}; it must be above 0 and below 1")
        super().__init__("layer", config.hidden_size, config.num_attention_heads, rope, getattr(config, "rope_theta", BASE),
                         getattr(config, "w2_kernel", "w2"), FFN="swiglu", NORM="rmsnorm", NORM_EPS=eps, N_FFN=config.intermediate_size)
        self.eps = eps


class MLAttention(nn.Module):
    """Attention whose keys and values live in one latent of `latent_dim` numbers that all heads share.
    Causal unless `causal` is False."""

    def __init__(self, hidden_size, num_attention_heads, latent_dim=128, joint=False, rope=False, base=BASE):
        super().__init__()
        if hidden_size % num_attention_heads:
            raise ValueError(f"hidden_size {hidden_size} is no multiple of num_attention_heads {num_attention_heads}")
        angles = {"ROPE_THETA": float(base)} if rope else {}
        self.core = Part("attention", ATTENTION="mla", POSITION="rope" if rope else "none", CAUSAL=True,
                         N_EMBD=hidden_size, N_HEAD=num_attention_heads, RA_MLA_LATENT_DIM=latent_dim,
                         RA_MLA_JOINT_KV=joint, **angles)

    def forward(self, x, causal=True):
        return self.core(x, CAUSAL="y" if causal else "n")["y"]


@dataclass(frozen=True)
class Config:
    """WsFFN's options."""
    d_model: int = 1024
    d_ffn: int = 4096
    n_head: int = 8
    lambda_z: float = 1e-5
    lambda_c: float = 5e-3
    lambda_logits_z: float = 1e-4  # for the loss of the model around it
    use_aux_loss: bool = True
    tau: float = 0.07
    z_proj: str = "dense"

    def for_finetuning(self):
        """The same without auxiliary losses."""
        return replace(self, use_aux_loss=False)

    def for_pretraining(self):
        """The same with auxiliary losses."""
        return replace(self, use_aux_loss=True)


class WsFFN(nn.Module):
    """SwiGLU with latent z-heads: x → (output, aux_loss). The loss is a scalar in training with
    use_aux_loss, else None. `is_training`, where it is given, counts in place of self.training."""

    def __init__(self, config):
        super().__init__()
        if config.d_ffn % config.n_head:
            raise ValueError(f"d_ffn ({config.d_ffn}) must be a multiple of n_head ({config.n_head})")
        self.config, self.use_aux_loss = config, config.use_aux_loss
        self.core = Part("ffn", FFN="wsffn", N_EMBD=config.d_model, N_HEAD=1, N_FFN=config.d_ffn,
                         WSFFN_N_HEAD=config.n_head, WSFFN_LAMBDA_Z=config.lambda_z, WSFFN_LAMBDA_C=config.lambda_c,
                         WSFFN_TAU=config.tau, WSFFN_Z_PROJ=config.z_proj)
        self.core.purpose = ONE_LOSS

    def forward(self, x, is_training=None):
        training = self.training if is_training is None else is_training
        training = bool(training and self.use_aux_loss)
        out = self.core(x, train=training)
        return out["y"], out["aux"] if training else None


class SwiGLU(nn.Module):
    """W₂(silu(W₃ x) ⊙ W₁ x), without biases."""

    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.core = Part("ffn", FFN="swiglu", N_EMBD=hidden_size, N_HEAD=1, N_FFN=intermediate_size)

    def forward(self, x):
        return self.core(x)["y"]
