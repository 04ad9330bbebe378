#!/usr/bin/env python3
"""tests/hostile/attack.py [--weft PROGRAM] [--seed N] [--seconds S] [--only FORMAT] [--keep FOLDER]

Attacks the program from outside, as somebody who hands over files would: takes a good file of each
format, changes it at random, and gives it to the commands that read it. `make test-hostile` runs it on
a program with AddressSanitizer and UndefinedBehaviorSanitizer.

Of each command it wants to know:
- it ended by itself, in time, with exit status 0, 1 or 2, and no sanitizer said a word;
- where it refused, its last line tells what is wrong, and nothing that it wrote holds a control
  character that a terminal would obey;
- a folder that it was not told of is as it was, though links to it lie among the files.
Of the server: that it answers the next request, whatever came before, and ends well when told to.

Prints a row for each format and a sum. What breaks a rule is kept in FOLDER (build/hostile), one folder
for each, with the command and what it said. Exit status 1 where there was such a thing. A run is
determined by its seed, as far as the time allows."""
import hashlib
import json
import os
import pathlib
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tarfile
import tempfile
import time

import server
import session

EDGES = [0, -1, 1, 2, 127, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, -(2**63), 1e308, 1e-320,
         0.5, -0.0]
TEXTS = ["", "\x1b[2J\x1b]0;x\x07", "../../victim", "/etc/passwd", "%s%n%s%n", "a" * 5000, "\u202e\u2066", "nan", "\x00", "é" * 300,
         "'; DROP TABLE runs; --", "<script>alert(1)</script>", "{{", "\\", "null"]
SAID_BY_SANITIZERS = ("AddressSanitizer", "LeakSanitizer", "ThreadSanitizer", "runtime error:", "UndefinedBehaviorSanitizer",
                      "stack smashing", "malloc():", "free():", "double free", "corrupted")
CONFIG = session.SMALL_MODEL + """CONFIG_N_FFN=32
CONFIG_DATASET="embedded"
CONFIG_TOKENIZER="bytes"
CONFIG_STEPS=3
CONFIG_EVAL_INTERVAL=1
"""


def journal_naming(size, victim):
    """A hot rollback journal of a database of so many bytes that names a super-journal, which SQLite would remove."""
    magic, name = bytes.fromhex("d9d505f920a163d7"), str(victim).encode()
    head = magic + struct.pack(">5I", 0, 0, size // 4096, 512, 4096)
    return head.ljust(512, b"\0") + struct.pack(">I", 0x40000000 // 4096 + 1) + name + struct.pack(">2I", len(name), sum(name)) + magic


class Mutator:
    """Changes of bytes, of JSON, and of the formats around them."""

    def __init__(self, dice):
        self.dice = dice

    def bytes(self, data):
        data, dice = bytearray(data), self.dice
        for _ in range(dice.choice((1, 1, 2, 4, 12))):
            at = dice.randrange(len(data) + 1)
            n = dice.choice((1, 1, 2, 4, 8, 64, 1000))
            how = dice.randrange(8)
            if how == 0 and at < len(data):
                data[at] ^= 1 << dice.randrange(8)
            elif how == 1 and at < len(data):
                data[at] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, 0x1B, 0x22, 0x7B, 0x5B, 10))
            elif how == 2:
                data[at : at + n] = dice.randbytes(n)
            elif how == 3:
                del data[at : at + n]
            elif how == 4:
                data[at:at] = data[at : at + n] * dice.choice((1, 2, 50))
            elif how == 5:
                del data[at:]
            elif how == 6:
                data[at : at + 8] = struct.pack("<q", dice.choice([e for e in EDGES if isinstance(e, int)]))
            else:
                data[at:at] = dice.choice(TEXTS).encode()
        return bytes(data)

    def value(self, value):
        """One change somewhere in a JSON value."""
        dice = self.dice
        if isinstance(value, dict) and value and dice.random() < 0.9:
            key, out = dice.choice(list(value)), dict(value)
            how = dice.randrange(7)
            if how == 0:
                del out[key]
            elif how == 1:
                out[dice.choice(TEXTS)] = out.pop(key)
            elif how == 2:
                out[key + "x"] = out[key]
            else:
                out[key] = self.value(value[key])
            return out
        if isinstance(value, list) and value and dice.random() < 0.9:
            out, at = list(value), dice.randrange(len(value))
            how = dice.randrange(6)
            if how == 0:
                del out[at]
            elif how == 1:
                out[at:at] = [out[at]] * dice.choice((1, 3, 2000))
            else:
                out[at] = self.value(out[at])
            return out
        if isinstance(value, (int, float)) and not isinstance(value, bool) and dice.random() < 0.5:
            return dice.choice((value + 1, value - 1, -value, value * 2, value + 0.5))
        return dice.choice((dice.choice(EDGES), dice.choice(TEXTS), None, True, [], {}, [[[[]]]], {"a": {"b": [1]}}))

    def json(self, data):
        if self.dice.random() < 0.35:
            return self.bytes(data)
        try:
            value = json.loads(data)
        except ValueError:
            return self.bytes(data)
        for _ in range(self.dice.choice((1, 1, 1, 2, 4))):
            value = self.value(value)
        text = json.dumps(value)
        if self.dice.random() < 0.05:
            text = "[" * 3000 + text
        return text.encode()

    def json_lines(self, data):
        if self.dice.random() < 0.3:
            return self.bytes(data)
        lines = data.split(b"\n")
        at = self.dice.randrange(len(lines))
        lines[at] = self.json(lines[at])
        return b"\n".join(lines)

    def safetensors(self, data):
        if self.dice.random() < 0.3 or len(data) < 8:
            return self.bytes(data)
        n = struct.unpack("<Q", data[:8])[0]
        header = self.json(data[8 : 8 + n])
        length = len(header) if self.dice.random() < 0.9 else self.dice.choice((0, 2**32, 2**63, 2**64 - 1, len(data)))
        return struct.pack("<Q", length) + header + data[8 + n :]

    def database(self, data):
        """Values of rows, or bytes of the file."""
        dice = self.dice
        if dice.random() < 0.3:
            return self.bytes(data)
        with tempfile.NamedTemporaryFile(suffix=".db") as file:
            file.write(data)
            file.flush()
            db = sqlite3.connect(file.name)
            try:
                db.execute("PRAGMA ignore_check_constraints = ON")
                db.execute("PRAGMA journal_mode = OFF")
                tables = [r[0] for r in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
                for _ in range(dice.choice((1, 1, 2, 5))):
                    table = dice.choice(tables)
                    column = dice.choice([r[1] for r in db.execute(f"PRAGMA table_info({table})")])
                    value = dice.choice((dice.choice(EDGES), dice.choice(TEXTS), None, dice.randbytes(9)))
                    how = dice.randrange(8)
                    rows = f"rowid IN (SELECT rowid FROM {table} ORDER BY random() LIMIT {dice.choice((1, 1, 99))})"
                    if how == 0:
                        db.execute(f"DELETE FROM {table} WHERE {rows}")
                    elif how == 1:
                        db.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO other")
                    elif how == 2:
                        db.execute(f"CREATE TRIGGER t{dice.randrange(99)} AFTER UPDATE ON {table} BEGIN DELETE FROM {table}; END")
                    else:
                        db.execute(f"UPDATE OR REPLACE {table} SET {column} = ? WHERE {rows}", (value,))
                db.commit()
            except (sqlite3.Error, OverflowError, UnicodeError):
                pass
            finally:
                db.close()
            return pathlib.Path(file.name).read_bytes()

    def of(self, name):
        """What changes a file of this name."""
        if name.endswith(".safetensors"):
            return self.safetensors
        if name.endswith(".jsonl"):
            return self.json_lines
        if name.endswith(".json"):
            return self.json
        if name.endswith(".db"):
            return self.database
        return self.bytes


def is_obeyed(text):
    return any((ord(c) < 32 and c not in "\n\r\t") or 0x7F <= ord(c) < 0xA0 for c in text)


class Attack(session.Session):
    METHODS, PROGRAM = "attack_", "attack.py"
    SECRET = b"not yours"

    def __init__(self, options):
        super().__init__(options)
        self.kept, self.mutator = pathlib.Path(options.keep), Mutator(self.dice)
        self.environment = dict(os.environ, WEFT_CUDA_DEVICE="none", NO_COLOR="1", HOME=str(self.top))
        self.environment.setdefault("ASAN_OPTIONS", "allocator_may_return_null=1:detect_leaks=0:detect_stack_use_after_return=1")
        self.environment.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
        self.server = None

    # The good files.

    def good(self, *words):
        done = subprocess.run([self.weft, *map(str, words)], env=self.environment, capture_output=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            sys.exit(f"attack.py: weft {' '.join(map(str, words))} ended on {done.returncode}: {done.stderr.decode()}")

    def prepare(self):
        g = self.g = self.top / "good"
        victim = self.victim = self.top / "victim"
        (g / "text").mkdir(parents=True)
        (victim / "deep").mkdir(parents=True)
        for name in ("a.txt", "deep/b.txt", ".weft", "model.safetensors"):
            (victim / name).write_bytes(self.SECRET)
        with sqlite3.connect(victim / "other.db") as other:
            other.execute("CREATE TABLE mine(x)")
        other.close()
        (g / "config").write_text(CONFIG)
        text = "".join(f"line {i}: the quick brown fox, naïve café, {i * i}\n" for i in range(120))
        (g / "text/a.txt").write_text(text)
        (g / "text/a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in text.split("\n")))
        config = ("--config", g / "config", "--threads", 1)
        self.good("init", *config, "--out", g / "model")
        self.good("train", *config, "--out", g / "run")
        self.good("tokenizer", "train", "--vocab", 300, "--out", g / "tokenizer.json", g / "text/a.txt")
        self.good("tokenize", "--tokenizer", g / "tokenizer.json", "--val-share", 0.2, "--shard-tokens", 700, "--threads", 1, "--out", g / "shards", g / "text/a.txt")
        (g / "study-config").write_text(CONFIG + 'CONFIG_STUDY_SEEDS=2\nCONFIG_STUDY_LEARNING_RATES="1e-3"\nCONFIG_ATTENTION="mla"\n'
                                        'CONFIG_RA_MLA_LATENT_DIM=8\nCONFIG_RA_MLA_ABLATION_STEPS="0,2"\n')
        self.good("study", "--config", g / "study-config", "--threads", 1, "--out", g / "study")
        rows = [{"context": f"question {i}", "choices": [" yes", " no", " perhaps"], "answer": i % 3} for i in range(6)]
        (g / "suite.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        tokens = struct.pack("<34i", *(i % 256 for i in range(34)))
        header = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 17), }".ljust(117) + "\n"
        (g / "tokens.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + tokens)
        page = server.Server([self.weft, "watch", str(g / "run"), "--port", "0", "--json"], self.environment, self.top / "page-said", "/api/runs")
        page.need(self.PROGRAM)
        note = json.dumps({"id": 0, "note": "a note", "tags": "one, two"}).encode()
        page.ask(page.head("POST", "/api/note", len(note)) + note, 10 * self.patience)
        page.end(10 * self.patience)
        if not (g / "run/notes.db").is_file():
            sys.exit("attack.py: weft watch has kept no note")
        (g / "run/notes.db").rename(g / "notes.db")
        with tarfile.open("tests/vectors/hf.tar.xz") as models:
            models.extractall(self.top)
        for kind in ("gpt2", "llama"):
            (self.top / "hf" / kind).rename(g / f"hf-{kind}")

    # One attack.

    def change(self, folder):
        """Changes one to three files of a folder, and now and then puts something else in a file's place."""
        files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
        for path in self.dice.sample(files, min(len(files), self.dice.choice((1, 1, 1, 2, 3)))):
            how = self.dice.random()
            if how < 0.9:
                path.write_bytes(self.mutator.of(path.name)(path.read_bytes()))
                continue
            path.unlink()
            if how < 0.92:
                path.symlink_to(self.victim / "a.txt")
            elif how < 0.93:
                path.symlink_to(path.name)
            elif how < 0.945:
                os.mkfifo(path)
            elif how < 0.96:
                path.mkdir()
            elif how < 0.97:
                path.symlink_to("/dev/zero")
            elif how < 0.98:
                path.write_bytes(b"")
        if self.dice.random() < 0.08:
            name = self.dice.choice(("last.new", "best.old", "step-00000001", "measure", "report.html", "runs.db-journal", "last", "x"))
            path = folder / name
            if not path.exists() and not path.is_symlink():
                path.symlink_to(self.victim)

    def put(self, name, *changed):
        """A fresh copy of good files, with the chosen ones changed; the folder."""
        work = self.top / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        for part in {name, *changed}:
            source = self.g / part
            if source.is_dir():
                shutil.copytree(source, work / part, symlinks=True)
            else:
                shutil.copy(source, work / part)
        for part in changed:
            path = work / part
            if path.is_dir():
                self.change(path)
            else:
                path.write_bytes(self.mutator.of(path.name)(path.read_bytes()))
        return work

    def hash_of_victim(self):
        h = hashlib.sha256()
        for path in sorted(self.victim.rglob("*")):
            h.update(str(path).encode())
            if path.is_file():
                h.update(path.read_bytes())
        return h.hexdigest()

    def keep(self, kind, why, words, out, err):
        self.count_finding(kind)
        at = self.kept / f"{self.seed}-{self.findings:03d}-{kind}"
        shutil.rmtree(at, ignore_errors=True)
        at.mkdir(parents=True)
        (at / "command").write_text(f"{why}\n{' '.join(map(str, words))}\n")
        (at / "out").write_bytes(out)
        (at / "err").write_bytes(err)
        if (self.top / "work").is_dir():
            subprocess.run(["cp", "-a", self.top / "work", at / "work"], check=False, stderr=subprocess.DEVNULL)
        last = err.decode(errors="replace").strip().split("\n")[-1][:200]
        print(f"FOUND {kind}: {why}: weft {' '.join(map(str, words[1:]))}: {last!r}; {at}", flush=True)

    def run(self, kind, *words):
        words = [self.weft, *map(str, words)]
        limit = 20 * self.patience
        try:
            done = subprocess.run(words, env=self.environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=limit)
        except subprocess.TimeoutExpired as late:
            self.keep(kind, f"took more than {limit} s", words, late.stdout or b"", late.stderr or b"")
            return
        err, out = done.stderr.decode(errors="replace"), done.stdout.decode(errors="replace")
        self.counts[kind]["runs"] += 1
        self.counts[kind]["used" if done.returncode == 0 else "refused"] += 1
        why = None
        if any(word in err for word in SAID_BY_SANITIZERS):
            why = "a sanitizer spoke"
        elif done.returncode < 0:
            why = f"ended by {signal.Signals(-done.returncode).name}"
        elif done.returncode not in (0, 1, 2):
            why = f"ended on {done.returncode}"
        elif done.returncode and not err.strip().split("\n")[-1].startswith("weft"):
            why = "the last line does not tell what is wrong"
        elif is_obeyed(err) or (is_obeyed(out) and "generate" not in words):
            why = "wrote a control character"
        elif self.hash_of_victim() != self.unhurt:
            why = "another folder was changed"
        if why:
            self.keep(kind, why, words, done.stdout, done.stderr)
            if self.hash_of_victim() != self.unhurt:
                sys.exit("attack.py: the victim was hurt; see above")

    # The formats.

    def attack_checkpoint(self):
        w = self.put("model", "model")
        more = self.dice.choice(([], ["--unchecked"]))
        self.dice.choice((
            lambda: self.run("checkpoint", "generate", "--model", w / "model", "--prompt", "ab", "--max-tokens", 3, "--threads", 1, *more),
            lambda: self.run("checkpoint", "eval", "--model", w / "model", "--tokens", self.g / "tokens.npy", "--threads", 1, *more),
            lambda: self.run("checkpoint", "convert", "--model", w / "model", "--to-hf", "--out", w / "hf", *more),
            lambda: self.run("checkpoint", "convert", "--model", w / "model", "--to-mla", "--latent", 8, "--out", w / "mla", *more),
            lambda: self.run("checkpoint", "convert", "--model", w / "model", "--to-w2", "--out", w / "w2", *more),
            lambda: self.run("checkpoint", "train", "--config", self.g / "config", "--from", w / "model", "--threads", 1, "--out", w / "run", *more),
            lambda: self.run("checkpoint", "prune", "--model", w / "model", "--what", "heads", "--keep", "0.5", "--threads", 1, "--out", w / "small", *more),
            lambda: self.run("checkpoint", "inspect", "--model", w / "model", "--tokens", self.g / "tokens.npy", "--threads", 1, "--out", w / "page.html", *more),
        ))()

    def attack_run(self):
        """A run's folder: checkpoints, state.json, metrics.jsonl."""
        w = self.put("run", "run")
        self.run("run", "train", "--config", self.g / "config", "--out", w / "run", "--threads", 1, "--resume", "-o", "STEPS=4")

    def attack_state(self):
        w = self.put("run")
        path = w / "run/last" / self.dice.choice(("state.json", "state.json", "config.json"))
        path.write_bytes(self.mutator.json(path.read_bytes()))
        more = self.dice.choice(([], ["--unchecked"]))
        self.run("state.json", "eval", "--model", w / "run/last", "--tokens", self.g / "tokens.npy", "--threads", 1, *more)

    def attack_metrics(self):
        w = self.put("run")
        path = w / "run/metrics.jsonl"
        path.write_bytes(self.mutator.json_lines(path.read_bytes()))
        self.run("metrics", "train", "--config", self.g / "config", "--out", w / "run", "--threads", 1, "--resume", "-o", "STEPS=4")

    def attack_dataset(self):
        w = self.put("shards", "shards")
        self.run("dataset", "train", "--config", self.g / "config", "--threads", 1, "--out", w / "run", "-o", f"DATASET={w / 'shards'}",
                 "-o", "VOCAB_SIZE=320", "-o", "STEPS=1")

    def attack_tokens(self):
        w = self.put("tokens.npy", "tokens.npy")
        self.run("tokens", "eval", "--model", self.g / "model", "--tokens", w / "tokens.npy", "--threads", 1)

    def attack_tokenizer(self):
        w = self.put("tokenizer.json", "tokenizer.json")
        self.run("tokenizer", "tokenize", "--tokenizer", w / "tokenizer.json", "--threads", 1, "--out", w / "out", self.g / "text/a.txt")

    def attack_text(self):
        w = self.put("text", "text")
        self.dice.choice((
            lambda: self.run("text", "tokenize", "--tokenizer", self.g / "tokenizer.json", "--jsonl", "text", "--threads", 1, "--out", w / "out", w / "text/a.jsonl"),
            lambda: self.run("text", "tokenizer", "train", "--vocab", 290, "--out", w / "t.json", w / "text/a.txt"),
            lambda: self.run("text", "eval", "--model", self.g / "model", "--text", w / "text/a.txt", "--threads", 1),
            lambda: self.run("text", "inspect", "--model", self.g / "model", "--text", w / "text/a.txt", "--threads", 1, "--out", w / "page.html"),
        ))()

    def attack_config(self):
        w = self.put("study-config", "study-config")
        self.run("config", "plan", "--config", w / "study-config")

    def attack_database(self):
        w = self.put("study")
        path = w / "study/runs.db"
        path.write_bytes(self.mutator.database(path.read_bytes()))
        self.dice.choice((
            lambda: self.run("runs.db", "runs", w / "study"),
            lambda: self.run("runs.db", "runs", path, "--json"),
            lambda: self.run("runs.db", "runs", path, "--csv", "-"),
            lambda: self.run("runs.db", "runs", path, "--compare", "0", "2"),
            lambda: self.run("runs.db", "runs", "merge", path, self.g / "study/runs.db", "--out", w / "merged.db"),
            lambda: self.run("runs.db", "report", w / "study", "--out", w / "report"),
            lambda: self.run("runs.db", "report", path, "--json"),
            lambda: self.run("runs.db", "study", "--config", self.g / "study-config", "--threads", 1, "--out", w / "study"),
        ))()

    def attack_study(self):
        """Everything in a study's folder."""
        w = self.put("study", "study")
        self.dice.choice((
            lambda: self.run("study", "study", "--config", self.g / "study-config", "--threads", 1, "--out", w / "study"),
            lambda: self.run("study", "report", w / "study"),
        ))()

    def attack_suite(self):
        w = self.put("suite.jsonl", "suite.jsonl")
        self.run("suite", "eval", "--model", self.g / "model", "--suite", w / "suite.jsonl", "--threads", 1, "--json")

    def attack_hugging_face(self):
        name = self.dice.choice(("hf-gpt2", "hf-llama"))
        w = self.put(name, name)
        self.run("hugging face", "convert", "--model", w / name, "--out", w / "out")

    def attack_gathered(self):
        """Runs that no study made."""
        w = self.put("run", "run")
        self.dice.choice((
            lambda: self.run("gathered", "runs", w),
            lambda: self.run("gathered", "runs", w / "run", "--json"),
            lambda: self.run("gathered", "runs", w, "--metrics-csv", "-"),
            lambda: self.run("gathered", "report", w, "--out", w / "report"),
        ))()

    # The servers.

    def judge_server(self, kind, server, why, request):
        status, said = server.end(30 * self.patience)
        text = said.decode(errors="replace")
        if any(word in text for word in SAID_BY_SANITIZERS):
            why = "a sanitizer spoke"
        elif status == -signal.SIGKILL:
            why = why or "SIGTERM does not end it"
        elif status != 0:
            why = why or f"it ended on {status}"
        elif is_obeyed(text):
            why = why or "wrote a control character"
        if why:
            self.keep(kind, why, server.words, request, said)

    def count_answer(self, kind, answer):
        self.counts[kind]["runs"] += 1
        self.counts[kind]["used" if answer.startswith(b"HTTP/1.1 200") else "refused"] += 1

    def request(self):
        dice = self.dice
        chat = dice.random() < 0.5
        body = {"max_tokens": 3, "temperature": 0.5, "seed": 3, "stop": ["x"], "stream": dice.random() < 0.3, "n": 1, "logprobs": None if chat else 1}
        if chat:
            body["messages"] = [{"role": "system", "content": "be"}, {"role": "user", "content": "ab"}]
        else:
            body["prompt"] = "ab"
        path = "/v1/chat/completions" if chat else "/v1/completions"
        if dice.random() < 0.2:
            path = dice.choice(("/v1/models", "/metrics", "/", "/../etc/passwd", "/v1/%00"))
        return self.post(self.server, path, body)

    def post(self, server, path, body):
        """A request with a body that mostly is changed, of a length that mostly is right."""
        dice, data = self.dice, json.dumps(body).encode()
        if dice.random() < 0.8:
            data = self.mutator.json(data)
        length = len(data) if dice.random() < 0.9 else dice.choice((0, 1, 2**31, 2**63, 10**30, -1))
        head = server.head("POST", path, length)
        if dice.random() < 0.3:
            head = self.mutator.bytes(head)
        return head + data

    def attack_requests(self):
        if not self.server:
            words = [self.weft, "serve", "--model", str(self.g / "model"), "--port", "0", "--threads", "1", "--json", "--request-timeout", "2"]
            self.server = server.Server(words, self.environment, self.top / "server-said", "/health")
            self.server.need(self.PROGRAM)
        for _ in range(20):
            request = self.request()
            wait = 1 if self.dice.random() < 0.9 else 4 * self.patience
            self.count_answer("requests", self.server.ask(request, wait, self.dice.random() < 0.3))
            if self.server.has_ended():
                break
        if not self.server.is_well(10 * self.patience):
            self.end_server("it does not answer /health any more", request)

    def end_server(self, why=None, request=b""):
        if self.server:
            self.judge_server("requests", self.server, why, request)
            self.server = None

    def plant(self, w):
        """Something that leads to the victim, where the page reads or SQLite acts."""
        dice = self.dice
        path = w / dice.choice(("notes.db", "run/log", "run/samples.jsonl", "run/config", "run/result.json", "run/metrics.jsonl", "run", "study", "study/runs.db"))
        if dice.random() < 0.5:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.parent.is_dir():
                path.unlink(missing_ok=True)
            if path.parent.is_dir():
                path.symlink_to(self.victim / dice.choice(("", "a.txt", "other.db", "none")))
            return
        for path in (w / "notes.db", w / "study/runs.db"):
            if path.is_file() and not path.is_symlink():
                pathlib.Path(f"{path}-journal").write_bytes(journal_naming(path.stat().st_size, self.victim / "a.txt"))

    def attack_watch(self):
        """A page over folders that are changed, over their notes, and over what leads elsewhere; and what is sent to it."""
        w = self.put("run", "run", self.dice.choice(("study", "study", "notes.db")))
        if self.dice.random() < 0.5:
            self.plant(w)
        words = [self.weft, "watch", str(w), "--port", "0", "--json"]
        page = server.Server(words, self.environment, self.top / "page-said", "/api/runs")
        if not page.port:
            # It may refuse the notes, in a line.
            status, said = page.end(10 * self.patience)
            self.count_answer("watch", b"")
            if status not in (1, 2) or not said.strip().split(b"\n")[-1].startswith(b"weft"):
                self.keep("watch", f"did not start, and ended on {status}", words, b"", said)
            self.look_at_victim(words, b"")
            return
        request, why = b"", None
        for _ in range(6):
            number = self.dice.choice((0, 1, 2, -1, 2**63, "x", "", "%00", "1;2"))
            request = self.dice.choice((
                lambda: page.head("GET", self.dice.choice(("/", "/api/runs", "/api/events", "/../notes.db", "/api/%2e%2e"))),
                lambda: page.head("GET", f"/api/log?id={number}"),
                lambda: self.post(page, "/api/note", {"id": self.dice.choice((0, 1, 2)), "note": "n", "tags": "a, b"}),
            ))()
            answer = page.ask(request, 1)
            self.count_answer("watch", answer)
            if self.SECRET in answer:
                why = "it tells what is in another folder"
            if why or page.has_ended():
                break
        if not page.is_well(10 * self.patience):
            why = "it does not answer /api/runs any more"
        self.judge_server("watch", page, why, request)
        self.look_at_victim(words, request)

    def look_at_victim(self, words, request):
        if self.hash_of_victim() != self.unhurt:
            self.keep("watch", "another folder was changed", words, request, b"")
            sys.exit("attack.py: the victim was hurt; see above")

    def go(self, seconds, only):
        attacks = self.methods(only)
        names, start = [only] if only else list(attacks), time.monotonic()
        self.prepare()
        self.unhurt = self.hash_of_victim()
        round = 0
        try:
            while time.monotonic() - start < seconds:
                attacks[names[round % len(names)]]()
                round += 1
            self.end_server()
        finally:
            if self.server:
                self.server.process.kill()
            subprocess.run(["rm", "-rf", self.top], check=False)
        total = self.show_counts("format", "runs", "used", "refused", "findings")
        print(f"hostile: {total} inputs of {len(self.counts)} formats in {time.monotonic() - start:.0f} s, seed {self.seed}, {self.findings} findings")
        return 1 if self.findings else 0


if __name__ == "__main__":
    session.main(Attack, __doc__, "FORMAT", ("--keep", "build/hostile"))
