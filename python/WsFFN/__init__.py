"""The WsFFN write-up's import names, on weft."""
from weft.torch import Config
from weft.torch import WsFFN as wsFFN

__all__ = ["Config", "wsFFN"]
