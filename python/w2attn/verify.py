"""Four quick checks: python -m w2attn.verify, or python tests/verify.py in a source tree."""
import torch

from w2attn.attention import W2Attention
from w2attn.block import W2TransformerBlock
from w2attn.rope import RotaryEmbedding


class Config:
    hidden_size = 64
    num_attention_heads = 4
    intermediate_size = 128
    rms_norm_eps = 1e-6


def rope_shapes():
    cos, sin = RotaryEmbedding(16)(torch.zeros(2, 10, 64), seq_len=10)
    return cos.shape == sin.shape == (1, 1, 10, 16) and bool(torch.allclose(cos**2 + sin**2, torch.ones(())))


def attention_forward():
    x = torch.randn(2, 10, 64)
    y = W2Attention(Config())(x, RotaryEmbedding(16, max_position_embeddings=32)(x, seq_len=10))
    return y.shape == x.shape and bool(y.isfinite().all())


def block_forward():
    x = torch.randn(2, 10, 64)
    y = W2TransformerBlock(Config())(hidden_states=x, rotary_emb_outputs=RotaryEmbedding(16)(x, seq_len=10))
    return y.shape == x.shape and bool(y.isfinite().all())


def gradients():
    block, x = W2TransformerBlock(Config()), torch.randn(2, 10, 64, requires_grad=True)
    block(hidden_states=x).sum().backward()
    return all(t.grad is not None and bool(t.grad.isfinite().all()) for t in (x, *block.parameters()))


CHECKS = [("RoPE Shapes", rope_shapes), ("Attention Forward", attention_forward), ("Block Forward", block_forward),
          ("Gradients", gradients)]


def main():
    print("Running Verification Tests...")
    passed = True
    for i, (name, check) in enumerate(CHECKS, 1):
        ok = check()
        passed &= ok
        print(f"Test {i}: {name}... {'PASSED' if ok else 'FAILED'}")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
