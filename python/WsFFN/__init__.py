"""The module of the WsFFN write-up: its names and its state_dicts, on weft's kernels. The two losses are here in plain
PyTorch, for z-heads of your own; wsFFN computes them itself."""
from torch.nn import functional
from weft.torch import Config, WsFFN

__all__ = ["Config", "contrastive_loss_wsffn_batched", "wsFFN", "z_regularization_loss"]


class wsFFN(WsFFN):
    def __init__(self, config):
        super().__init__(config)
        self.d_ffn, self.num_heads, self.z_dim_head = config.d_ffn, config.n_head, config.d_ffn // config.n_head
        self.core.lend(self, {"ffn.z_proj.weight": "z_projection.weight",
                              **{f"ffn.{name}.weight": f"{name}.weight" for name in ("w1", "w2", "w3")}})


def z_regularization_loss(z_vector, lambda_z):
    """λ_z times the mean squared length of z_vector's rows, [batch · time · heads, z_dim]."""
    return lambda_z * z_vector.square().sum(-1).mean()


def contrastive_loss_wsffn_batched(z_context_flat, lambda_c, num_heads=None, batch_size=None, temperature=0.07):
    """λ_c times InfoNCE over the rows of z_context_flat, [batch · heads, z_dim], each its own positive; 0 where
    there is one. The two counts are in the rows already and change nothing."""
    if z_context_flat.shape[0] < 2:
        return z_context_flat.new_zeros(())
    unit = functional.normalize(z_context_flat, dim=-1, eps=1e-8)
    scores = unit @ unit.T / temperature
    return lambda_c * (scores.logsumexp(-1) - scores.diagonal()).mean()
