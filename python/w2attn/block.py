from weft.torch import W2TransformerBlock

__all__ = ["W2TransformerBlock"]
