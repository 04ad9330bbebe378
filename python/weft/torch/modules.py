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


def is_causal(mask, time):
    """What a mask means: False for none, True for the lower triangle; others are refused."""
    if mask is None:
        return False
    seen = mask if mask.dtype == torch.bool else mask > -1e3
    lower = torch.ones(time, time, dtype=torch.bool, device=mask.device).tril()
    if mask.shape[-2:] == (time, time) and bool((seen == lower).all()):
        return True
    if bool(seen.all()):
        return False
    raise ValueError("weft attends to all tokens or to those so far: the mask must be None, all visible, "
                     "or the causal triangle [..., T, T]")


def check_rotary(given, head_dim, x):
    """The engine makes the rotation itself; tables that say something else are refused."""
    if given is None or torch.compiler.is_compiling():
        return
    cos, sin = given
    want_cos, want_sin = RotaryEmbedding(head_dim)(x, seq_len=x.shape[1])
    if cos.shape[-2:] != want_cos.shape[-2:] or (cos - want_cos).abs().max() > 1e-2 or (sin - want_sin).abs().max() > 1e-2:
        raise ValueError(f"rotary_emb_outputs must be RotaryEmbedding({head_dim})(x, seq_len={x.shape[1]}): "
                         "weft rotates positions 0 to T - 1 with base 10000")


class _TwoWays(nn.Module):
    """One set of weights, with and without a causal mask."""

    def __init__(self, part, **options):
        super().__init__()
        self.core = Part(part, CAUSAL=True, **options)

    def run(self, x, causal):
        self.core.options["CAUSAL"] = "y" if causal else "n"
        return self.core(x)


class W2Attention(_TwoWays):
    """Attention by the Wasserstein-2 distance of Gaussians, with its four projections: x → y, both
    [batch, time, hidden_size]. `rope` False leaves positions out."""

    def __init__(self, hidden_size, num_attention_heads, rope=True):
        if hidden_size % num_attention_heads:
            raise ValueError(f"hidden_size {hidden_size} is no multiple of num_attention_heads {num_attention_heads}")
        super().__init__("attention", ATTENTION="w2", POSITION="rope" if rope else "none", GPT2_BIAS=False,
                         N_EMBD=hidden_size, N_HEAD=num_attention_heads)
        self.head_dim = hidden_size // num_attention_heads

    def forward(self, hidden_states, rotary_emb_outputs=None, attention_mask=None):
        check_rotary(rotary_emb_outputs, self.head_dim, hidden_states)
        return self.run(hidden_states, is_causal(attention_mask, hidden_states.shape[1]))["y"]


class W2TransformerBlock(_TwoWays):
    """RMSNorm, W2 attention, RMSNorm, SwiGLU, with residual sums. `config` is any object with
    hidden_size, num_attention_heads, intermediate_size and rms_norm_eps."""

    def __init__(self, config):
        if abs(getattr(config, "rms_norm_eps", EPS) - EPS) > 1e-12:
            raise ValueError(f"weft's RMSNorm has eps 1e-6; rms_norm_eps is {config.rms_norm_eps}")
        if config.hidden_size % config.num_attention_heads:
            raise ValueError(f"hidden_size {config.hidden_size} is no multiple of "
                             f"num_attention_heads {config.num_attention_heads}")
        super().__init__("layer", ATTENTION="w2", FFN="swiglu", NORM="rmsnorm", POSITION="rope", GPT2_BIAS=False,
                         N_EMBD=config.hidden_size, N_HEAD=config.num_attention_heads, N_FFN=config.intermediate_size)
        self.head_dim = config.hidden_size // config.num_attention_heads

    def forward(self, hidden_states, rotary_emb_outputs=None, attention_mask=None):
        check_rotary(rotary_emb_outputs, self.head_dim, hidden_states)
        return self.run(hidden_states, is_causal(attention_mask, hidden_states.shape[1]))["y"]


class MLAttention(_TwoWays):
    """Attention whose keys and values live in one latent of `latent_dim` numbers that all heads share.
    Causal unless `causal` is False."""

    def __init__(self, hidden_size, num_attention_heads, latent_dim=128, joint=False, rope=False):
        super().__init__("attention", ATTENTION="mla", POSITION="rope" if rope else "none", N_EMBD=hidden_size,
                         N_HEAD=num_attention_heads, RA_MLA_LATENT_DIM=latent_dim, RA_MLA_JOINT_KV=joint)

    def forward(self, x, causal=True):
        return self.run(x, causal)["y"]


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
        self.core.train(bool(training and self.config.use_aux_loss))
        out = self.core(x)
        if not self.core.training:
            return out["y"], None
        return out["y"], sum(out[name] for name in ("aux_z", "aux_contrastive") if name in out)
