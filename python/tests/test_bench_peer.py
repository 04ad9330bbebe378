"""bench/peer_train.py --compile: each model is one graph to the compiler, whatever rows came before it, and what the
compiler keeps lies in a folder of the process's own. bench/peer_decode.py: its steps through the cache are the reference's
whole pass, and a layer is one graph."""
import json
import os
import subprocess
import sys

import pytest

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench")
WEFT = os.path.join(os.path.dirname(os.environ.get("WEFT_LIBRARY", "")), "weft")
SIZES = "N_LAYER=3 N_EMBD=32 N_HEAD=4 CONTEXT=16 VOCAB_SIZE=64 BATCH_SIZE=2 RA_MLA_LATENT_DIM=16".split()

# The peer with a compiler that makes no code: what is looked at is done before that.
PEER = """
import functools, sys
sys.path.insert(0, {bench!r})
import peer_train
peer_train.torch.compile = functools.partial(peer_train.torch.compile, backend="eager")
sys.argv = ["peer", "--compile", "--form", "cheap"]
peer_train.main()
"""


def talk(script, requests, folder, **settings):
    environment = {k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"}
    return subprocess.run([sys.executable, "-c", script], input=requests, env={**environment, "TMPDIR": folder, **settings},
                          stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.mark.skipif(not os.access(WEFT, os.X_OK), reason="the program is not built")
def test_every_model_is_one_graph_in_any_row(tmp_path):
    peer = tmp_path / "peer.py"
    peer.write_text(PEER.format(bench=BENCH))
    command = [WEFT, "bench", "train", "--threads", "1", "--steps", "1", "--peer", f"'{sys.executable}' '{peer}'"]
    for size in SIZES:
        command += ["-o", size]
    done = subprocess.run(command, env={**os.environ, "TORCH_LOGS": "graph_breaks,recompiles"}, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    assert "the faster of eager and compiled" in done.stdout
    assert "Graph break" not in done.stderr and "ecompil" not in done.stderr, done.stderr


def test_the_compiler_has_a_folder_of_its_own(tmp_path):
    script = (f"import sys; sys.path.insert(0, {BENCH!r}); import os, peer_train; sys.argv = ['peer', '--compile']\n"
              "show = lambda request: {'folder': os.environ['TORCHINDUCTOR_CACHE_DIR']}\n"
              "peer_train.row_requests = lambda prepare: {'show': show}\n"
              "peer_train.main()")
    request = '{"do": "show"}\n'
    assert str(tmp_path) in talk(script, request, str(tmp_path))
    assert not list(tmp_path.iterdir())
    assert "/the/users" in talk(script, request, str(tmp_path), TORCHINDUCTOR_CACHE_DIR="/the/users")


def test_decoding_is_the_reference():
    done = subprocess.run([sys.executable, os.path.join(BENCH, "peer_decode.py"), "--check"], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0 and done.stdout.count("the same") == len(done.stdout.splitlines()) >= 15, done.stdout


DECODE = """
import json, sys
sys.path.insert(0, {bench!r})
import peer_decode as peer
peer.compiled()
peer.COMPILED[0] = peer.torch.compile(peer.run_layer, dynamic=False, backend="eager", fullgraph=True)
whole = peer.make_random
def make_random(request, layers=None):
    model = whole(request, layers)
    model.one = peer.compiled()
    return model
peer.make_random = make_random
peer.main()
"""


@pytest.mark.skipif(not os.access(WEFT, os.X_OK), reason="the program is not built")
def test_every_layer_of_the_grid_is_one_graph(tmp_path):
    peer = tmp_path / "peer.py"
    peer.write_text(DECODE.format(bench=BENCH))
    command = [WEFT, "bench", "decode", "--grid", "--json", "--threads", "1", "--steps", "1", "--peer", f"'{sys.executable}' '{peer}'"]
    for size in SIZES:
        command += ["-o", size]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 12 and all("peer_seconds" in row for row in rows), done.stderr
