"""The openai package as a client of the server.

    clients.py URL EXPECTED.json

EXPECTED.json is what `weft generate --json --logprobs 2` writes for the prompt "Once" with seed 5 and
24 tokens. Ends on 0 when all is well, with an exception otherwise, 77 where the package is missing.
"""
import json
import sys
import threading

try:
    import openai
except ImportError:
    print("%s has no package openai" % sys.executable)
    sys.exit(77)


def check_completions(client, model, want):
    whole = client.completions.create(model=model, prompt="Once", max_tokens=24, seed=5, logprobs=2,
                                      extra_body={"return_token_ids": True})
    assert whole.choices[0].text == want["text"], whole
    assert whole.choices[0].token_ids == want["tokens"], whole
    assert whole.choices[0].finish_reason == want["finish"], whole
    assert whole.usage.completion_tokens == 24, whole
    assert whole.usage.prompt_tokens == want["prompt_tokens"], whole
    assert whole.choices[0].logprobs.token_logprobs == want["logprobs"], whole
    events = client.completions.create(model=model, prompt="Once", max_tokens=24, seed=5, stream=True)
    assert "".join(e.choices[0].text for e in events) == want["text"]


def check_chat(client, model):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    common = {"model": model, "messages": messages, "max_tokens": 20, "seed": 7, "stop": ["zz"],
              "temperature": 0.9, "top_p": 0.9}
    whole = client.chat.completions.create(n=2, logprobs=True, top_logprobs=3, **common)
    assert [c.index for c in whole.choices] == [0, 1]
    assert whole.choices[0].message.role == "assistant"
    assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 3
    texts, usage = ["", ""], None
    for e in client.chat.completions.create(n=2, stream=True, stream_options={"include_usage": True},
                                            **common):
        usage = e.usage or usage
        for c in e.choices:
            texts[c.index] += c.delta.content or ""
    assert texts == [c.message.content for c in whole.choices], texts
    assert usage.total_tokens == whole.usage.total_tokens


def check_errors(client, model):
    for kind, call in ((openai.BadRequestError, {"model": model, "max_tokens": 0}),
                       (openai.BadRequestError, {"model": model, "temperature": -1}),
                       (openai.NotFoundError, {"model": "none"})):
        try:
            client.completions.create(prompt="x", **call)
        except kind as error:
            assert error.body["message"] and error.body["type"] == "invalid_request_error"
        else:
            raise AssertionError("%s was taken" % call)


def check_many(client, model, want):
    """Many at once, and some of them given up in the middle."""
    wrong = []

    def run(i):
        try:
            if i % 3 == 0:
                events = client.completions.create(model=model, prompt="Once", max_tokens=200,
                                                   stream=True)
                next(iter(events))
                events.close()
                return
            got = client.completions.create(model=model, prompt="Once", max_tokens=24, seed=5)
            if got.choices[0].text != want["text"]:
                wrong.append(got)
        except Exception as error:  # told by the main thread
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(24)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
    with open(sys.argv[2], encoding="utf-8") as file:
        want = json.load(file)
    model = client.models.list().data[0].id
    assert client.models.retrieve(model).id == model
    check_completions(client, model, want)
    check_chat(client, model)
    check_errors(client, model)
    check_many(client, model, want)
    print("openai %s" % openai.__version__)


if __name__ == "__main__":
    main()
