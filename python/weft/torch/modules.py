"""The architectures' blocks as PyTorch modules. Each computes on weft's kernels, forward and backward."""
from dataclasses import dataclass

import torch
from torch import nn

from ._part import Part

EPS = 1e-6


class RMSNorm(nn.Module):
    """x / √(mean x² + eps) · weight, in plain PyTorch: for use beside weft's blocks, which have their own."""

    def __init__(self, width, eps=EPS):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class RotaryEmbedding(nn.Module):
    """The tables of rotary positions: rope(x, seq_len=T) gives (cos, sin), each [1, 1, T, head_dim]."""

    def __init__(self, head_dim, base=10000.0):
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"rotary positions need an even head_dim, not {head_dim}")
        self.head_dim, self.base = head_dim, base

    def forward(self, x, seq_len=None):
        time = x.shape[-2] if seq_len is None else seq_len
        rate = self.base ** (-torch.arange(0, self.head_dim, 2, dtype=torch.float64, device=x.device) / self.head_dim)
        angle = torch.outer(torch.arange(time, dtype=torch.float64, device=x.device), rate)
        angle = torch.cat((angle, angle), -1)[None, None]
        kind = x.dtype if x.is_floating_point() else torch.float32
        return angle.cos().to(kind), angle.sin().to(kind)


def apply_rotary_pos_emb(q, k, cos, sin):
    """Rotates q and k [B, H, T, D]: column i turns with column i + D/2."""
    def turn(x):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin
    return turn(q), turn(k)


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


def check_rotary(given, head_dim, x):
    """The engine makes the rotation itself; tables that say something else are refused."""
    if given is None or torch.compiler.is_compiling():
        return
    cos, sin = given
    if cos.device != x.device or sin.device != x.device:
        raise ValueError(f"weft: rotary_emb_outputs lie on {cos.device}, but x on {x.device}; move them to one device")
    want_cos, want_sin = RotaryEmbedding(head_dim)(x, seq_len=x.shape[1])
    if cos.shape[-2:] != want_cos.shape[-2:] or (cos - want_cos).abs().max() > 1e-2 or (sin - want_sin).abs().max() > 1e-2:
        raise ValueError(f"rotary_emb_outputs must be RotaryEmbedding({head_dim})(x, seq_len={x.shape[1]}): "
                         "weft rotates positions 0 to T - 1 with base 10000")


class _W2(nn.Module):
    """What W2 attention and its block share: one set of weights under any mask."""

    def __init__(self, part, hidden_size, heads, rope=True, **options):
        super().__init__()
        if hidden_size % heads:
            raise ValueError(f"hidden_size {hidden_size} is no multiple of num_attention_heads {heads}")
        self.heads, self.head_dim, self.rope = heads, hidden_size // heads, rope
        self.core = Part(part, ATTENTION="w2", POSITION="rope" if rope else "none", GPT2_BIAS=False, CAUSAL=True,
                         N_EMBD=hidden_size, N_HEAD=heads, **options)

    def forward(self, hidden_states, rotary_emb_outputs=None, attention_mask=None, is_causal=False):
        """`attention_mask`: True (or 0) where a token is visible, False (or -inf) where not, of a shape
        that spreads to [batch, heads, time, time]. None, all visible and the causal triangle run on
        weft's kernels, and so does is_causal=True; another mask runs on PyTorch's own attention, and so
        does any mask under torch.compile."""
        check_rotary(rotary_emb_outputs, self.head_dim, hidden_states)
        kind = mask_kind(attention_mask, hidden_states.shape[1])
        if is_causal and kind == "other":
            attention_mask = self._both(attention_mask, hidden_states)
        elif is_causal:
            kind = "causal"
        if kind == "other":
            return self._masked(hidden_states, attention_mask)
        return self.core(hidden_states, CAUSAL="y" if kind == "causal" else "n")["y"]

    def _both(self, mask, x):
        from .masked import score_mask
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        return score_mask(mask, x).masked_fill(hidden, float("-inf"))

    def _masked(self, x, mask):
        from . import masked
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        p = dict(zip(self.core.names, self.core.weights()))
        if self.core.part == "layer":
            return masked.block(x, p, self.heads, mask, self.eps)
        return masked.attention(x, p, self.heads, self.rope, mask)


class W2Attention(_W2):
    """Attention by the Wasserstein-2 distance of Gaussians, with its four projections: x → y, both
    [batch, time, hidden_size]. `rope` False leaves positions out."""

    def __init__(self, hidden_size, num_attention_heads, rope=True):
        super().__init__("attention", hidden_size, num_attention_heads, rope)


class W2TransformerBlock(_W2):
    """RMSNorm, W2 attention, RMSNorm, SwiGLU, with residual sums. `config` is any object with
    hidden_size, num_attention_heads, intermediate_size and rms_norm_eps."""

    def __init__(self, config):
        eps = float(getattr(config, "rms_norm_eps", EPS))
        super().__init__("layer", config.hidden_size, config.num_attention_heads, FFN="swiglu", NORM="rmsnorm",
                         NORM_EPS=eps, N_FFN=config.intermediate_size)
        self.eps = eps


class MLAttention(nn.Module):
    """Attention whose keys and values live in one latent of `latent_dim` numbers that all heads share.
    Causal unless `causal` is False."""

    def __init__(self, hidden_size, num_attention_heads, latent_dim=128, joint=False, rope=False):
        super().__init__()
        if hidden_size % num_attention_heads:
            raise ValueError(f"hidden_size {hidden_size} is no multiple of num_attention_heads {num_attention_heads}")
        self.core = Part("attention", ATTENTION="mla", POSITION="rope" if rope else "none", CAUSAL=True,
                         N_EMBD=hidden_size, N_HEAD=num_attention_heads, RA_MLA_LATENT_DIM=latent_dim,
                         RA_MLA_JOINT_KV=joint)

    def forward(self, x, causal=True):
        return self.core(x, CAUSAL="y" if causal else "n")["y"]


@dataclass
class Config:
    """WsFFN's options."""
    d_model: int = 1024
    d_ffn: int = 4096
    n_head: int = 8
    lambda_z: float = 1e-5
    lambda_c: float = 5e-3
    lambda_logits_z: float = 0.0
    use_aux_loss: bool = True
    tau: float = 0.07
    z_proj: str = "dense"

    @classmethod
    def for_finetuning(cls, **options):
        """Without auxiliary losses."""
        return cls(**{**options, "use_aux_loss": False})

    @classmethod
    def for_pretraining(cls, **options):
        """With auxiliary losses."""
        return cls(**{**options, "use_aux_loss": True})


class WsFFN(nn.Module):
    """SwiGLU with latent z-heads: x → (output, aux_loss). The loss is a scalar in training with
    use_aux_loss, else None. `is_training`, where it is given, counts in place of self.training."""

    def __init__(self, config):
        super().__init__()
        if config.d_ffn % config.n_head:
            raise ValueError(f"d_ffn ({config.d_ffn}) must be a multiple of n_head ({config.n_head})")
        self.config = config
        self.core = Part("ffn", FFN="wsffn", N_EMBD=config.d_model, N_HEAD=1, N_FFN=config.d_ffn,
                         WSFFN_N_HEAD=config.n_head, WSFFN_LAMBDA_Z=config.lambda_z, WSFFN_LAMBDA_C=config.lambda_c,
                         WSFFN_TAU=config.tau, WSFFN_Z_PROJ=config.z_proj)

    def forward(self, x, is_training=None):
        training = self.training if is_training is None else is_training
        training = bool(training and self.config.use_aux_loss)
        out = self.core(x, train=training)
        if not training:
            return out["y"], None
        return out["y"], sum(out[name] for name in ("aux_z", "aux_contrastive") if name in out)


class SwiGLU(nn.Module):
    """W₂(silu(W₃ x) ⊙ W₁ x), without biases."""

    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.core = Part("ffn", FFN="swiglu", N_EMBD=hidden_size, N_HEAD=1, N_FFN=intermediate_size)

    def forward(self, x):
        return self.core(x)["y"]
