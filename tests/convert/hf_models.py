"""Small random models of Hugging Face's transformers: one for each config that published/ has, in the form in which it was
published but for its sizes, and one for each thing that configs may say beside."""

import json
import pathlib

import torch
from transformers import (AutoConfig, AutoModelForCausalLM, DeepseekV3Config, Gemma2Config, Gemma3TextConfig, GemmaConfig, GPT2Config,
                          GPTNeoXConfig, LlamaConfig, MistralConfig, Olmo2Config, Olmo3Config, Phi3Config, Qwen2Config, Qwen3Config,
                          SmolLM3Config)

VOCAB = 700
PUBLISHED = {path.stem: path for path in sorted((pathlib.Path(__file__).parent / "published").glob("*.json"))}


def llama_config(kind=LlamaConfig, **more):
    sizes = dict(hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 max_position_embeddings=64, vocab_size=VOCAB, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    return kind(**(sizes | more))


def gpt2_config(**more):
    sizes = dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=VOCAB, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    return GPT2Config(**(sizes | more))


def deepseek_config(**more):
    sizes = dict(num_key_value_heads=4, first_k_dense_replace=2, kv_lora_rank=12, q_lora_rank=10, qk_nope_head_dim=6,
                 qk_rope_head_dim=4, v_head_dim=6)
    return llama_config(DeepseekV3Config, **(sizes | more))


def neox_config(**more):
    sizes = dict(hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
                 vocab_size=VOCAB, rotary_pct=1.0, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    return GPTNeoXConfig(**(sizes | more))


def rope(kind, theta=10000.0, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


CASES = {
    "gpt2": gpt2_config(),
    "gpt2-eps-inner": gpt2_config(layer_norm_epsilon=1e-3, n_inner=40, activation_function="gelu_pytorch_tanh"),
    "gpt2-untied": gpt2_config(tie_word_embeddings=False),
    "llama": llama_config(),
    "llama-tied": llama_config(tie_word_embeddings=True),
    "llama-tied-eps": llama_config(tie_word_embeddings=True, rms_norm_eps=1e-2, num_key_value_heads=4),
    "llama-bias": llama_config(attention_bias=True),
    "llama-mlp-bias": llama_config(mlp_bias=True),
    "llama-head-dim": llama_config(head_dim=12),
    "llama-theta": llama_config(**rope("default", 500.0)),
    "llama-linear": llama_config(**rope("linear", factor=4.0)),
    "llama-llama3": llama_config(**rope(
        "llama3", 100.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)),
    "llama-yarn": llama_config(**rope("yarn", 100.0, factor=4.0, original_max_position_embeddings=16)),
    "mistral": llama_config(MistralConfig, sliding_window=None),
    "mistral-window": llama_config(MistralConfig, sliding_window=9),
    "qwen2-windows": llama_config(Qwen2Config, num_hidden_layers=4, use_sliding_window=True, sliding_window=9,
                                  layer_types=["sliding_attention", "full_attention"] * 2),
    "phi3-partial": llama_config(Phi3Config, hidden_size=64, partial_rotary_factor=0.75, sliding_window=9, tie_word_embeddings=True),
    "phi3-longrope": llama_config(Phi3Config, original_max_position_embeddings=4, **rope(
        "longrope", short_factor=[1.0, 1.1, 1.3, 1.7], long_factor=[2.0, 2.5, 4.0, 7.3], factor=1.9)),
    "phi3-shortrope": llama_config(Phi3Config, original_max_position_embeddings=64, partial_rotary_factor=0.5, **rope(
        "longrope", short_factor=[1.0, 1.7], long_factor=[1.5, 7.3], attention_factor=1.25)),
    "gemma": llama_config(GemmaConfig, head_dim=16),
    "gemma2": llama_config(Gemma2Config, head_dim=16, num_hidden_layers=4, query_pre_attn_scalar=24, sliding_window=9,
                           attn_logit_softcapping=3.0, final_logit_softcapping=2.0),
    "gemma2-uncapped": llama_config(Gemma2Config, head_dim=16, query_pre_attn_scalar=16, sliding_window=64, attn_logit_softcapping=None,
                                    final_logit_softcapping=None, attention_bias=True),
    "gemma3": llama_config(Gemma3TextConfig, head_dim=16, num_hidden_layers=7, sliding_window=9, query_pre_attn_scalar=24,
                           rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                                            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}),
    "gemma3-wide": llama_config(Gemma3TextConfig, head_dim=16, num_hidden_layers=4, sliding_window=80,
                                layer_types=["sliding_attention", "full_attention"] * 2),
    "qwen2": llama_config(Qwen2Config, num_key_value_heads=1),
    "qwen3": llama_config(Qwen3Config, head_dim=12),
    "qwen3-bias": llama_config(Qwen3Config, head_dim=8, attention_bias=True),
    "neox": neox_config(),
    "neox-sequential": neox_config(use_parallel_residual=False, hidden_act="gelu_new", rotary_emb_base=500),
    "olmo2": llama_config(Olmo2Config, num_key_value_heads=4, rms_norm_eps=1e-6, attention_bias=True),
    "olmo3": llama_config(Olmo3Config, num_hidden_layers=5, num_key_value_heads=4, rms_norm_eps=1e-6, sliding_window=9, rope_parameters={
        "full_attention": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}),
    "smollm3": llama_config(SmolLM3Config, num_hidden_layers=5, no_rope_layer_interval=2, mlp_bias=True),
    "deepseek": deepseek_config(),
    "deepseek-plain": deepseek_config(q_lora_rank=None, rope_interleave=False),
}


def small(published):
    """The config.json with small sizes: heads as many as before, up to 16, and of the same width relative to the model's."""
    config = dict(published)
    if config["model_type"] == "gpt2":
        return config | dict(n_embd=48, n_layer=2, vocab_size=VOCAB, bos_token_id=1, eos_token_id=1)
    for key in "bos_token_id", "eos_token_id", "pad_token_id":
        if config.get(key) is not None:
            config[key] = [3, 4] if isinstance(config[key], list) else 3
    heads = config["num_attention_heads"]
    kv = config.get("num_key_value_heads", heads)
    by = max(1, heads // 16)
    heads, kv, layers = heads // by, kv // by, 7 if config["model_type"] == "gemma3_text" else 5 if "no_rope_layers" in config else 2
    if "num_key_value_heads" in config:
        config["num_key_value_heads"] = kv
    config |= dict(num_attention_heads=heads, hidden_size=16 * heads if "rotary_pct" in config else 8 * heads, intermediate_size=88,
                   num_hidden_layers=layers, vocab_size=VOCAB)
    if "head_dim" in config:
        config["head_dim"] = config["head_dim"] * published["num_attention_heads"] * 8 // published["hidden_size"] // 2 * 2
    rope = config.get("rope_scaling")
    if rope and "long_factor" in rope:  # as many factors as pairs are left, and texts of the tests beyond the first context
        pairs = int(8 * config.get("partial_rotary_factor", 1)) // 2
        config |= dict(original_max_position_embeddings=32, max_position_embeddings=1024, rope_scaling={
            key: value[len(value) // pairs - 1::len(value) // pairs] if isinstance(value, list) else value for key, value in rope.items()})
    if config.get("sliding_window") and config["sliding_window"] < config.get("max_position_embeddings", 131072):
        config["sliding_window"] = 12
    for key in "no_rope_layers", "layer_types":
        if key in config:
            config[key] = config[key][:layers]
    return config


def attention_of(model_type):
    """What from_config and from_pretrained need for the model as it is: soft-caps of scores are computed by one form alone."""
    return {"attn_implementation": "eager"} if model_type == "gemma2" else {}


def make(name, seed=0):
    """A model with weights large enough that its logits differ by about 1, its biases and gains drawn too; and its config.json
    where that is not what transformers would write."""
    torch.manual_seed(seed)
    text = small(json.loads(PUBLISHED[name].read_text())) if name in PUBLISHED else None
    if text:
        kept = {key: value for key, value in text.items() if key not in ("torch_dtype", "architectures")}
        config = AutoConfig.for_model(**kept)
    else:
        config = CASES[name]
    eager = attention_of(config.model_type)
    gain = 0.0 if config.model_type.startswith("gemma") else 1.0  # Gemma's are kept less 1
    model = AutoModelForCausalLM.from_config(config, **eager).float().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            around = gain if parameter.ndim == 1 and not parameter_name.endswith("bias") else 0.0
            spread = 0.2 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
            parameter.copy_(around + spread * torch.randn_like(parameter))
        model.get_output_embeddings().weight[VOCAB - 1] = 0  # a text does not end early
        if text and text.get("eos_token_id") is not None:
            model.get_output_embeddings().weight[text["eos_token_id"]] = 0
    return model, text
