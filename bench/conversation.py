"""What the PyTorch sides of the benchmarks have in common: they answer requests, one line of JSON each, from
standard input. A request that fails is answered {"error": "one line"}, and the conversation goes on."""

import json
import sys

try:
    import torch
except Exception as problem:  # ImportError, or a library that does not load
    torch = None
    missing = f"{type(problem).__name__}: {problem}".splitlines()[0]


def hello(request, how):
    """{"do": "hello", "threads": N}: who answers, in which way, and on how many threads."""
    torch.set_num_threads(request["threads"])
    return {"name": f"PyTorch {torch.__version__}{how}", "threads": torch.get_num_threads()}


def row_requests(prepare):
    """The requests of a table whose rows are made, timed in turns and dropped. `prepare` takes a request and gives
    an object with a function timed(), in seconds, and the reply."""
    state = {}

    def make(request):
        state.clear()
        state["row"], reply = prepare(request)
        return reply

    def run(request):
        return {"seconds": [state["row"].timed() for _ in range(request["repeats"])]}

    def drop(request):
        state.clear()
        return {}

    return {"prepare": make, "run": run, "drop": drop}


def answer(request, functions, how):
    if torch is None:
        return {"error": f"PyTorch cannot be imported ({missing})"}
    if request["do"] == "hello":
        return hello(request, how)
    if request["do"] not in functions:
        return {"error": f"no request '{request['do']}'"}
    return functions[request["do"]](request)


def converse(functions, how=""):
    """`functions` by the name in "do": from a request to its reply. `how` follows PyTorch's name."""
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line), functions, how)
        except Exception as problem:  # the row is lost, the conversation is not
            reply = {"error": f"{type(problem).__name__}: {problem}".splitlines()[0]}
        print(json.dumps(reply), flush=True)
