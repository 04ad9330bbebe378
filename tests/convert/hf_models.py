"""Small random models of Hugging Face's transformers, one for each thing that their configs may say."""

import torch
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM)

VOCAB = 700


def llama_config(kind=LlamaConfig, **more):
    sizes = dict(hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 max_position_embeddings=64, vocab_size=VOCAB, bos_token_id=None, eos_token_id=None)
    return kind(**(sizes | more))


def gpt2_config(**more):
    sizes = dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=VOCAB, bos_token_id=None, eos_token_id=None)
    return GPT2Config(**(sizes | more))


def rope(kind, theta=10000.0, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


CASES = {
    "gpt2": (GPT2LMHeadModel, gpt2_config()),
    "gpt2-eps-inner": (GPT2LMHeadModel, gpt2_config(layer_norm_epsilon=1e-3, n_inner=40, activation_function="gelu_pytorch_tanh")),
    "gpt2-untied": (GPT2LMHeadModel, gpt2_config(tie_word_embeddings=False)),
    "llama": (LlamaForCausalLM, llama_config()),
    "llama-tied-eps": (LlamaForCausalLM, llama_config(tie_word_embeddings=True, rms_norm_eps=1e-2, num_key_value_heads=4)),
    "llama-bias": (LlamaForCausalLM, llama_config(attention_bias=True)),
    "llama-theta": (LlamaForCausalLM, llama_config(**rope("default", 500.0))),
    "llama-linear": (LlamaForCausalLM, llama_config(**rope("linear", factor=4.0))),
    "llama-llama3": (LlamaForCausalLM, llama_config(**rope(
        "llama3", 100.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32))),
    "llama-yarn": (LlamaForCausalLM, llama_config(**rope("yarn", 100.0, factor=4.0, original_max_position_embeddings=16))),
    "mistral": (MistralForCausalLM, llama_config(MistralConfig, sliding_window=None)),
    "qwen2": (Qwen2ForCausalLM, llama_config(Qwen2Config, num_key_value_heads=1)),
}


def make(name, seed=0):
    """A model with weights large enough that its logits differ, its biases and gains drawn too."""
    torch.manual_seed(seed)
    kind, config = CASES[name]
    model = kind(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            around = 1.0 if parameter.ndim == 1 and not parameter_name.endswith("bias") else 0.0
            parameter.copy_(around + 0.2 * torch.randn_like(parameter))
    return model
