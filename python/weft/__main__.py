"""`python -m weft` says in one line what was installed."""
from . import WeftError, library_path, version
from ._blocks import engine
from ._library import lib


def device(name):
    """A device in words, or why it is not there."""
    try:
        return lib.weft_engine_device(engine(name)).decode()
    except WeftError as error:
        return f"no {name} ({error})"


if __name__ == "__main__":
    print(f"weft {version()}: {device('cpu')}; {device('cuda')}; {library_path}")
