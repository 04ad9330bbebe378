"""Small models in Hugging Face's layout, and the logits that transformers gives for them: tests/vectors/hf.tar.xz.

Needs transformers. `tokens[i] = (7 i + 3) mod V` on both sides, 2 rows of 9; the logits are those of the first 8 of each row."""

import lzma
import os
import pathlib
import shutil
import sys
import tarfile
import tempfile

import torch
from safetensors.torch import save_file
from transformers import (DeepseekV3Config, DeepseekV3ForCausalLM, Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig,
                          GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM, Olmo2Config,
                          Olmo2ForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen3Config, Qwen3ForCausalLM, SmolLM3Config,
                          SmolLM3ForCausalLM)

KEPT = pathlib.Path(__file__).resolve().parent.parent / "vectors" / "hf.tar.xz"
VOCAB, ROWS, LENGTH = 13, 2, 8

MODELS = {
    "gpt2": (GPT2LMHeadModel, GPT2Config(n_embd=8, n_layer=2, n_head=2, n_positions=12, n_inner=12, vocab_size=VOCAB,
                                         layer_norm_epsilon=1e-3, bos_token_id=None, eos_token_id=None)),
    # Two files and an index, grouped-query heads, RoPE scaling, biases.
    "llama": (LlamaForCausalLM, LlamaConfig(
        hidden_size=16, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=VOCAB,
        max_position_embeddings=12, rms_norm_eps=1e-3, attention_bias=True, bos_token_id=None, eos_token_id=None,
        rope_parameters={"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 32})),
    # Normed queries and keys, heads wider than their share.
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(
        hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=6,
        vocab_size=VOCAB, max_position_embeddings=12, tie_word_embeddings=True)),
    # Layers without rotation, biases in the feed-forward.
    "smollm3": (SmolLM3ForCausalLM, SmolLM3Config(
        hidden_size=8, intermediate_size=12, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, mlp_bias=True,
        vocab_size=VOCAB, max_position_embeddings=12, no_rope_layer_interval=2, bos_token_id=None, eos_token_id=None,
        pad_token_id=None)),
    # Attention and feed-forward beside each other, queries, keys and values head by head.
    "neox": (GPTNeoXForCausalLM, GPTNeoXConfig(
        hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, vocab_size=VOCAB, rotary_pct=1.0,
        max_position_embeddings=12, bos_token_id=None, eos_token_id=None, pad_token_id=None)),
    # Norms behind the branches, and over all heads of queries and keys.
    "olmo2": (Olmo2ForCausalLM, Olmo2Config(
        hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, vocab_size=VOCAB,
        max_position_embeddings=12, rms_norm_eps=1e-6, bos_token_id=None, eos_token_id=None, pad_token_id=None)),
    # Maps in one tensor, rotation of a part of a head's columns, a sliding window.
    "phi3": (Phi3ForCausalLM, Phi3Config(
        hidden_size=16, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=VOCAB,
        max_position_embeddings=12, partial_rotary_factor=0.5, sliding_window=3, bos_token_id=None, eos_token_id=None,
        pad_token_id=None)),
    # Pairs that are each slowed by a factor of their own.
    "phi3-long": (Phi3ForCausalLM, Phi3Config(
        hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, vocab_size=VOCAB,
        max_position_embeddings=12, original_max_position_embeddings=4, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        rope_parameters={"rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.25]})),
    # Norms on both sides of the branches, their gains kept less 1; GeGLU, scaled embeddings, soft-caps, windows.
    "gemma2": (Gemma2ForCausalLM, Gemma2Config(
        hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=6,
        vocab_size=VOCAB, max_position_embeddings=12, query_pre_attn_scalar=9, sliding_window=3, attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0, attn_implementation="eager")),
    # Two laws of angles, normed queries and keys.
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(
        hidden_size=8, intermediate_size=12, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=6,
        vocab_size=VOCAB, max_position_embeddings=12, query_pre_attn_scalar=6, sliding_window=3,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={"full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}})),
    # A latent, a rotated part whose pairs are neighbours, queries of low rank, heads that do not fill the width; no experts.
    "deepseek": (DeepseekV3ForCausalLM, DeepseekV3Config(
        hidden_size=16, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, vocab_size=VOCAB,
        max_position_embeddings=12, first_k_dense_replace=2, kv_lora_rank=6, q_lora_rank=7, qk_nope_head_dim=5, qk_rope_head_dim=4,
        v_head_dim=5, bos_token_id=None, eos_token_id=None)),
}


def make(name, out):
    torch.manual_seed(1)
    kind, config = MODELS[name]
    model = kind(config).double().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            around = 0.0 if name.startswith("gemma") else 1.0
            around = around if parameter.ndim == 1 and not key.endswith("bias") else 0.0
            parameter.copy_((around + 0.3 * torch.randn_like(parameter)).float())
        tokens = (7 * torch.arange(ROWS * (LENGTH + 1)) + 3).remainder(VOCAB).reshape(ROWS, LENGTH + 1)
        logits = model(tokens[:, :LENGTH]).logits
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    model.float().save_pretrained(folder, max_shard_size="8KB" if name == "llama" else "1GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    save_file({"logits": logits.contiguous()}, out / f"{name}.logits.safetensors")


def pack(folder):
    """In words of four bytes, as the weights are; nothing of the machine."""
    def nameless(entry):
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o755 if entry.isdir() else 0o644
        return entry

    words = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 20, "lc": 0, "lp": 2}
    with lzma.open(KEPT, "wb", filters=[words]) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(folder, "hf", filter=nameless)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        models = pathlib.Path(work) / "hf"
        if sys.argv[1:]:
            with tarfile.open(KEPT) as archive:
                archive.extractall(work)
        os.makedirs(models, exist_ok=True)
        for one in sys.argv[1:] or MODELS:
            make(one, models)
        pack(models)
