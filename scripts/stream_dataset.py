#!/usr/bin/env python3
"""Streams a Hugging Face dataset, or local parquet files, as JSON lines for `weft tokenize`.

    scripts/stream_dataset.py --tokenizer openai-community/gpt2 data/gpt2
    scripts/stream_dataset.py HuggingFaceFW/fineweb-edu --name sample-10BT |
        build/weft tokenize --tokenizer data/gpt2 --jsonl text --val-share 0.001 \\
            --out data/fineweb-edu -
    scripts/stream_dataset.py data/*.parquet | build/weft tokenize --jsonl text --out data/own -

Nothing is downloaded beyond what is read, and nothing is held but a batch. Local files need
pyarrow, datasets by name the package `datasets`. With --tokenizer, the tokenizer.json of a model is
put into the folder instead; a folder that has one is left as it is.
"""

import argparse
import glob
import json
import os
import shutil
import sys


def need(package):
    try:
        return __import__(package)
    except ImportError:
        sys.exit(f"stream_dataset: {package} cannot be imported; pip install {package}")


def parquet_files(source):
    if os.path.isdir(source):
        files = sorted(glob.glob(os.path.join(source, "**", "*.parquet"), recursive=True))
        return files or sys.exit(f"stream_dataset: {source}: the folder has no .parquet")
    return [source]


def local_texts(files, field):
    need("pyarrow")
    from pyarrow import parquet

    for path in files:
        try:
            file = parquet.ParquetFile(path)
            if field not in file.schema_arrow.names:
                names = ", ".join(file.schema_arrow.names)
                sys.exit(f"stream_dataset: {path}: has no column {field}; it has {names}")
            for batch in file.iter_batches(batch_size=1024, columns=[field]):
                yield from batch.column(0).to_pylist()
        except (OSError, ValueError) as error:
            sys.exit(f"stream_dataset: {path}: {' '.join(str(error).split())}")


def remote_texts(source, name, split, field):
    datasets = need("datasets")
    try:
        for row in datasets.load_dataset(source, name, split=split, streaming=True):
            if field not in row:
                sys.exit(f"stream_dataset: {source}: has no column {field}; it has {', '.join(row)}")
            yield row[field]
    except Exception as error:  # of the network, of the hub, of a file's format
        sys.exit(f"stream_dataset: {source}: {' '.join(str(error).split())[:200]}")


def save_tokenizer(model, folder):
    """MODEL's tokenizer.json in FOLDER, by the package that `datasets` brings with it."""
    if os.path.exists(os.path.join(folder, "tokenizer.json")):
        return
    hub = need("huggingface_hub")
    try:
        path = hub.hf_hub_download(model, "tokenizer.json")
    except Exception as error:  # the package has many kinds, of the network and of its own
        sys.exit(f"stream_dataset: {model}: {' '.join(str(error).split())[:200]}")
    os.makedirs(folder, exist_ok=True)
    shutil.copyfile(path, os.path.join(folder, "tokenizer.json"))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenizer", nargs=2, metavar=("MODEL", "FOLDER"), help="put its tokenizer there")
    parser.add_argument("source", nargs="*", help="parquet files, a folder of them, or a name")
    parser.add_argument("--name", help="the dataset's configuration, such as sample-10BT")
    parser.add_argument("--split", default="train")
    parser.add_argument("--field", default="text", help="the column that holds the text")
    parser.add_argument("--limit", type=int, default=0, help="so many documents at most")
    args = parser.parse_args()
    if args.tokenizer:
        save_tokenizer(*args.tokenizer)
        return
    if not args.source:
        parser.error("no source is named")
    if all(os.path.exists(source) for source in args.source):
        files = [path for source in args.source for path in parquet_files(source)]
        texts = local_texts(files, args.field)
    elif len(args.source) == 1 and not args.source[0].endswith(".parquet"):
        texts = remote_texts(args.source[0], args.name, args.split, args.field)
    else:
        missing = next(source for source in args.source if not os.path.exists(source))
        sys.exit(f"stream_dataset: {missing}: there is no such file")
    written = 0
    for text in texts:
        if not isinstance(text, str) or not text:
            continue
        sys.stdout.write(json.dumps({args.field: text}) + "\n")
        written += 1
        if written == args.limit:
            break


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader ended; it says why
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
