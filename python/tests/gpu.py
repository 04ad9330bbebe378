"""Why modules cannot be run on a GPU here."""
import torch

from weft import WeftError
from weft._blocks import engine


def missing():
    """None where they can. PyTorch may see a GPU that the library, built without CUDA, has no use for."""
    if not torch.cuda.is_available():
        return "there is no GPU"
    try:
        engine("cuda")
    except WeftError as error:
        return str(error)
    return None
