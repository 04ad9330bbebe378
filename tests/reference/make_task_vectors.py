"""Sequences of the tasks, for src/data/tasks.c: tests/vectors/tasks.json.gz. Needs nothing but Python.

Random numbers are Philox 4x32-10's, written from its paper, as src/data/dataset.h numbers them. Each sequence is also
read back, by a plain rule that knows nothing of how it was drawn, and what is asked for must be what the rule says.

    python make_task_vectors.py [--check]
"""
from kept import keep

WORD = 0xFFFFFFFF


def philox(key, counter):
    k = [key & WORD, key >> 32]
    c = list(counter)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & WORD, (a >> 32) ^ c[3] ^ k[1], a & WORD]
        k = [(k[0] + 0x9E3779B9) & WORD, (k[1] + 0xBB67AE85) & WORD]
    return c


class Stream:
    def __init__(self, task, place):
        name = "data.%s.%s" % (task, place["split"])
        site = 2166136261
        for byte in name.encode():
            site = (site ^ byte) * 16777619 & WORD
        seed = 0 if place["split"] == "val" else place["seed"]
        self.words = (w for block in range(1 << 30)
                      for w in philox(seed, [block, place["sequence"], place["iteration"], site]))

    def below(self, n):
        return next(self.words) * n >> 32

    def unit(self):
        return (next(self.words) >> 8) / 2 ** 24


def pairs(r, n, keys, first):
    pool, values = list(range(keys)), []
    for i in range(n):
        j = i + r.below(keys - i)
        pool[i], pool[j] = pool[j], pool[i]
        values.append(first + r.below(keys))
    return list(zip(pool[:n], values))


def mqar(r, vocab, n, noise, time):
    half = vocab // 2
    known = pairs(r, n, half, half)
    out = [(t, -1) for pair in known for t in pair]
    places = (time - 2 * n + 1) // 2
    left = min(places, n)
    for place in range(places):
        asks = r.below(places - place) < left
        fill = half + r.below(half), half + r.below(half)
        if asks:
            at = r.below(len(known))
            key, value = known[at]
            known[at] = known[0]  # what stood first takes the place of what was drawn
            known.pop(0)
            out += [(key, value), (value, -1)]
            left -= 1
        else:
            out += [(fill[0], -1), (fill[1], -1)]
    return out[:time]


def induction(r, vocab, n, noise, time):
    third = vocab // 3
    known, seen, out = pairs(r, n, third, third), set(), []
    while len(out) + 1 < time:
        unit = r.unit()
        if out and (unit < noise or len(out) + 2 == time):
            out.append((2 * third + r.below(vocab - 2 * third), -1))
            continue
        key, value = known[r.below(n)]
        out += [(key, value if key in seen else -1), (value, -1)]
        seen.add(key)
    while True:
        key, value = known[r.below(n)]
        if key in seen:
            return out + [(key, value)]


def copying(r, vocab, n, noise, time):
    left, out = n, []
    for place in range(time - n):
        if r.below(time - n - place) < left:
            out.append((2 + r.below(vocab - 2), -1))
            left -= 1
        else:
            out.append((0, -1))
    return out + [(1, letter) for letter, _ in out if letter]


def compression(r, vocab, n, noise, time):
    letters = vocab - 1 - n
    text = [r.below(letters) for _ in range(n)]
    out = [(t, -1) for t in text] + [(letters, -1)]
    while len(out) < time:
        place = r.below(n)
        out.append((letters + 1 + place, text[place]))
    return out


def answers(task, tokens, vocab, n):
    """What is asked for, place by place, read from the tokens alone."""
    found = [-1] * len(tokens)
    if task in ("mqar", "induction"):
        keys = vocab // (2 if task == "mqar" else 3)
        values = {}
        for t, token in enumerate(tokens):
            if token >= keys:
                continue
            if token in values:
                found[t] = values[token]
            else:
                values[token] = tokens[t + 1]
    elif task == "copying":
        letters = [t for t in tokens if t > 1]
        for t, letter in enumerate(letters):
            found[len(tokens) - n + t] = letter
    else:
        for t in range(n + 1, len(tokens)):
            found[t] = tokens[tokens[t] - (vocab - n)]
    return found


def make():
    cases = []
    for task, settings in {
            mqar: [(64, 4, 16), (64, 4, 15), (64, 4, 40), (1024, 16, 64), (512, 256, 1024), (8, 4, 9)],
            induction: [(24, 2, 3), (24, 2, 24), (96, 16, 128), (300, 100, 64)],
            copying: [(16, 4, 8), (16, 16, 256), (3, 1, 5)],
            compression: [(20, 4, 6), (48, 31, 64), (259, 128, 256)]}.items():
        for number, (vocab, n, time) in enumerate(settings):
            noise = 0.2 if number % 2 else 0.5
            place = {"split": "val" if number % 3 == 1 else "train", "seed": 5 + (number << 33),
                     "iteration": 7 * number, "sequence": number}
            out = task(Stream(task.__name__, place), vocab, n, noise, time)
            tokens, targets = [t for t, _ in out], [a for _, a in out]
            assert len(tokens) == time and targets == answers(task.__name__, tokens, vocab, n)
            assert any(a >= 0 for a in targets) and all(0 <= t < vocab for t in tokens)
            cases.append({"task": task.__name__, "vocab": vocab, "size": n, "noise": noise, **place,
                          "tokens": tokens, "targets": targets})
    return {"cases": cases}


keep("tasks", make())
