"""What is kept as JSON, packed by gzip: tests/vectors/NAME.json.gz."""

import gzip
import json
import os
import sys

VECTORS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "vectors")


def path_of(name):
    return os.path.join(VECTORS, f"{name}.json.gz")


def read_json(name):
    with gzip.open(path_of(name), "rt", encoding="utf-8") as file:
        return json.load(file)


def write_json(name, value):
    text = json.dumps(value, separators=(",", ":")) + "\n"
    with open(path_of(name), "wb") as file:
        file.write(gzip.compress(text.encode(), 9, mtime=0))


def keep(name, value):
    """Writes it; with --check in the command it must be what is kept."""
    if sys.argv[1:] != ["--check"]:
        write_json(name, value)
    elif json.loads(json.dumps(value)) != read_json(name):
        sys.exit(f"tests/vectors/{name}.json.gz is not what this script makes")
