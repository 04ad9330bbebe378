"""The config of a model that `weft convert --to-hf` wrote: weft's options by their names in small letters."""
from types import SimpleNamespace

from transformers import PretrainedConfig

# Every option that says what is computed, and its default. weft writes no model that needs another.
OPTIONS = {
    "attention": "dot", "ffn": "gelu", "position": "learned", "norm": "layernorm", "norm_eps": 0.0, "norm_placement": "pre",
    "parallel_residual": False, "n_layer": 12, "n_head": 12, "head_dim": 0, "n_embd": 768, "n_ffn": 0, "kv_heads": 0, "kv_share": 1,
    "vocab_size": 50304, "context": 1024, "weight_tying": True, "embed_scale": 1.0, "bias": True,
    "attention_bias": "auto", "ffn_bias": False, "qk_norm": False,
    "qk_norm_whole": False, "attention_gate": "none", "attention_scale": 0.0, "window": 0, "window_every": 0, "softcap_attention": 0.0,
    "softcap_logits": 0.0, "document_mask": False, "document_token": -1, "document_positions": "continue", "dropout": 0.0,
    "lambda_logits_z": 0.0, "logits_z_detach": False, "causal": True, "mup": False, "mup_base_width": 0, "mup_base_head": 0,
    "rope_theta": 10000.0, "rope_dim": 0, "rope_scaling": "none", "rope_factor": 1.0, "rope_context": 8192, "rope_low": 1.0,
    "rope_high": 4.0, "rope_amplitude": 0.0, "rope_short_factors": "", "rope_long_factors": "", "rope_local_theta": 0.0, "nope_every": 0,
    "w2_kernel": "w2", "w2_tau": 0.0, "w2_tau_learned": True, "w2_sigma_dim": 0,
    "wsffn_n_head": 8, "wsffn_z_proj": "dense", "wsffn_lambda_z": 1e-5, "wsffn_lambda_c": 5e-3, "wsffn_tau": 0.07,
    "wsffn_positive": "self", "wsffn_z_logits": 0.0, "wsffn_aux_loss": True, "ra_mla_latent_dim": 128, "ra_mla_ra_window": 64, "ra_mla_ra_alpha": 0.0,
    "ra_mla_per_head_q_latent": True, "ra_mla_per_head_v_up": True, "ra_mla_use_rope": False, "ra_mla_joint_kv": False,
    "ra_mla_score": "dot", "ra_mla_latent_heads": 1, "ra_mla_rope_dim": 0, "ra_mla_latent_norm": False, "ra_mla_q_rank": 0,
    "ra_mla_mlp_attn_gate": False, "ra_mla_mlp_gate_alpha": 0.1, "ra_mla_mlp_gate_dim": 64, "ra_mla_mlp_gate_pool": "token",
    "ra_mla_mlp_gate_open": 0.0, "ra_mla_mlp_route_after_gate": False, "ra_mla_mlp_latent_detach": False, "ra_mla_mlp_alpha_learned": False,
    "ra_mla_mlp_cross_token": False, "ra_mla_mlp_cross_alpha": 0.3, "ra_mla_mlp_cross_rank": 0,
    "ra_mla_mlp_sparse_mode": "topk", "ra_mla_mlp_sparse_k": 8, "ra_mla_mlp_sparse_rms_threshold": 0.5,
    "ra_mla_mlp_sparse_normalize": True, "ra_mla_mlp_sparse_head_average": True, "ra_mla_mlp_latent_recip": False,
    "ra_mla_mlp_recip_alpha": 0.2, "ra_mla_mlp_latent_dim": 128, "ra_mla_mlp_tying_mode": "tied_transpose",
    # These change nothing here.
    "allow_future_leak": False, "tokenizer": "bytes", "preset": "none",
}


class Options(SimpleNamespace):
    """weft's options as attributes, and sizes that follow from them."""

    @property
    def sizes(self):
        """Query heads, key heads, and the width of one."""
        return self.n_head, self.kv_heads or self.n_head, self.head_dim or self.n_embd // self.n_head

    @property
    def rotated(self):
        """The columns of queries and keys that rotate: the first, and how many."""
        mla, dim = self.attention == "mla", self.sizes[2]
        if self.attention == "gta":
            return dim // 2, dim // 2
        if mla and self.ra_mla_rope_dim:
            return self.ra_mla_latent_dim, self.ra_mla_rope_dim
        if self.position != "rope" and not (mla and self.ra_mla_use_rope):
            return 0, 0
        width = self.ra_mla_latent_dim // (2 if self.ra_mla_score == "w2" else 1) if mla else dim
        return 0, min(self.rope_dim or width, width)

    @property
    def hidden(self):
        return self.n_ffn or 4 * self.n_embd


class WeftConfig(PretrainedConfig):
    """`weft` are weft's options; what transformers reads by other names is made from them."""
    model_type = "weft"

    def __init__(self, weft=None, **given):
        self.weft = {**OPTIONS, **(weft or {})}
        unknown = sorted(set(self.weft) - set(OPTIONS))
        if unknown:
            raise ValueError(f"weft: this model needs a later modeling_weft.py, for {', '.join(unknown)}")
        self.vocab_size, self.hidden_size = self.weft["vocab_size"], self.weft["n_embd"]
        self.num_hidden_layers, self.num_attention_heads = self.weft["n_layer"], self.weft["n_head"]
        self.max_position_embeddings = self.weft["context"]
        # A tied model has no output layer of its own, so there is nothing for transformers to tie.
        super().__init__(**{**given, "tie_word_embeddings": False})

    @property
    def options(self):
        return Options(**self.weft)
