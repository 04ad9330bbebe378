#!/usr/bin/env python3
"""tests/hostile/disorder.py [--weft PROGRAM] [--seed N] [--seconds S] [--only WAY]

What goes on around a command that writes: the disk fills up, it is killed, another process works in the
same folder, and the folder has other people's files in it. Every command that writes is run so, and then
once more, alone and with room.

  full    on a small file system, which then gets room (needs the right to mount a tmpfs)
  kill    ended by signals at random moments, one to three times, its children too or not
  race    two or three of it at a time in one folder, others reading there
  taken   a link, a pipe or a file of the user's has one of the names that it writes

Of each it wants to know: the command ended by itself, in time, with a line where it did not do its work;
what the same command makes afterwards is what it makes when it is left alone; a file that is not weft's
is as it was. Prints a row for each way and a sum; exit status 1 where there were findings."""
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import session

CONFIG = session.SMALL_MODEL + """CONFIG_STEPS=6
CONFIG_EVAL_INTERVAL=2
CONFIG_CHECKPOINT_KEEP=2
CONFIG_LR_SCHEDULE="constant"
CONFIG_SAMPLE_PROMPT="a"
CONFIG_SAMPLE_INTERVAL=2
CONFIG_SAMPLE_TOKENS=4
CONFIG_STUDY_SEEDS=1
"""
# Times, speeds and addresses are in these.
OTHERWISE = ("log", "result.json", "metrics.jsonl", "runs.db", "report.html", "report.md", "lock", "manifest.json")
ROOM = 20000  # KiB


class Disorder(session.Session):
    METHODS, PROGRAM = "disorder_", "disorder.py"

    def __init__(self, options):
        super().__init__(options)
        self.work = self.top / "work"
        self.mounted = False
        config, study, text, ref = (str(self.top / n) for n in ("config", "study", "text", "ref"))
        pathlib.Path(config).write_text(CONFIG)
        with tarfile.open("tests/vectors/hf.tar.xz") as models:
            models.extractall(self.top)
        pathlib.Path(study).write_text(CONFIG.replace("ITERS=6", "ITERS=2") + 'CONFIG_STUDY_VARIANTS="a; b: ATTENTION=w2"\n')
        pathlib.Path(text).write_text("".join(chr(97 + i * i * 7 % 26) + ("\n" if i % 50 == 0 else " " if i % 5 == 0 else "") for i in range(20000)))
        out = str(self.work / "out")
        one = ["--threads", "1"]
        # The command, and what is added when it is given again.
        self.commands = {
            "train": (["train", "--config", config, *one, "--peak-flops", "0", "--out", out], ["--resume"]),
            "study": (["study", "--config", study, *one, "--out", out], []),
            "tokenize": (["tokenize", *one, "--shard-tokens", "3000", "--out", out, text], []),
            "tokenizer": (["tokenizer", "train", "--vocab", "300", "--out", out, text], ["--force"]),
            "init": (["init", "--config", config, "--out", out], ["--force"]),
            "convert": (["convert", "--model", str(self.top / "hf/gpt2"), "--out", out], ["--force"]),
            "convert-back": (["convert", "--model", ref + "/last", "--to-hf", "--out", out], ["--force"]),
            "prune": (["prune", "--model", ref + "/last", *one, "--what", "heads", "--keep", "0.5", "--out", out], ["--force"]),
        }
        self.ref = ref
        self.right, self.took, self.names, self.size = {}, {}, {}, {}

    def start(self, words):
        return subprocess.Popen([self.weft, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)

    def end(self, process):
        """The exit status and what was said; 99 where it did not end."""
        try:
            _, said = process.communicate(timeout=60 * self.patience)
            return process.returncode, said.decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return 99, "did not end"

    def run(self, words):
        return self.end(self.start(words))

    def clear(self, kib=0):
        if self.mounted:
            subprocess.run(["umount", self.work], check=True)
            self.mounted = False
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        if kib:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", self.work], check=True, stderr=subprocess.DEVNULL)
            self.mounted = True

    def bits(self):
        found = {}
        for path in self.work.rglob("*"):
            if path.is_file() and path.name not in OTHERWISE and not path.name.startswith("events.") and path.suffix != ".svg":
                found[str(path.relative_to(self.work))] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found

    def found(self, way, name, why, said=""):
        self.count_finding(way)
        print(f"FOUND {way} {name}: {why}: {said.strip().splitlines()[-1][:200] if said.strip() else ''}", flush=True)

    def prepare(self):
        status, said = self.run(["train", "--config", str(self.top / "config"), "--threads", "1", "--out", self.ref])
        if status:
            sys.exit(f"disorder.py: {said}")
        for name, (words, _) in self.commands.items():
            self.clear()
            start = time.monotonic()
            status, said = self.run(words)
            if status:
                sys.exit(f"disorder.py: {name}: {said}")
            self.took[name] = time.monotonic() - start
            self.right[name] = self.bits()
            files = [p for p in self.work.rglob("*") if p.is_file()]
            self.size[name] = sum((p.stat().st_size + 4095) // 4096 * 4 for p in files) + 8
            out = self.work / "out"
            self.names[name] = sorted(p.name for p in out.iterdir()) if out.is_dir() else []

    def afterwards(self, way, name, before):
        words, again = self.commands[name]
        status, said = self.run(words + again)
        if name == "tokenize" and "has shards already" in said:
            status = 0
        if status:
            return self.found(way, name, f"cannot go on after {before}", said)
        now, right = self.bits(), self.right[name]
        wrong = sorted(p for p in set(now) | set(right) if now.get(p) != right.get(p))
        if wrong:
            self.found(way, name, f"after {before} these are wrong: {wrong[:5]}", said)

    def check(self, way, name, status, said):
        if status not in (0, 1, 2):
            self.found(way, name, f"ended on {status}", said)
        elif status and "weft" not in said:
            self.found(way, name, f"ended on {status} without a line", said)

    def disorder_full(self, name):
        need = self.size[name]
        self.clear(max(4, self.dice.choice((self.dice.randint(4, need), self.dice.randint(need // 2, need + 8))) // 4 * 4))
        status, said = self.run(self.commands[name][0])
        self.check("full", name, status, said)
        subprocess.run(["mount", "-o", f"remount,size={ROOM}k", self.work], check=True)
        if status:
            self.afterwards("full", name, "a full disk")
        elif self.bits() != self.right[name]:
            self.found("full", name, "ended on 0 without all of its files", said)
        self.clear()

    def disorder_kill(self, name):
        self.clear()
        words, again = self.commands[name]
        for i in range(self.dice.choice((1, 1, 2, 3))):
            process = self.start(words + again if i else words)
            time.sleep(self.dice.random() * self.took[name] * 1.1)
            number = self.dice.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT))
            (os.killpg if self.dice.random() < 0.5 else os.kill)(process.pid, number)
            status, said = self.end(process)
            if status >= 0:
                self.check("kill", name, status, said)
        time.sleep(0.1)  # a child of the killed one may be on its way out
        self.afterwards("kill", name, "kills")

    def disorder_race(self, name):
        self.clear()
        words, again = self.commands[name]
        out = words[-1] if words[-2] == "--out" else str(self.work / "out")
        all_of = []
        for _ in range(self.dice.choice((2, 2, 3))):
            all_of.append(self.start(words + again if self.dice.random() < 0.3 else words))
            time.sleep(self.dice.random() * self.dice.choice((0, 0.02, self.took[name])))
        readers = {"study": (["runs", out], ["report", out]), "train": (["generate", "--model", out, "--prompt", "x", "--max-tokens", "2"],)}
        all_of += [self.start(r) for r in readers.get(name, ())]
        for process in all_of:
            self.check("race", name, *self.end(process))
        self.afterwards("race", name, "a race")

    def disorder_taken(self, name):
        if not self.names[name]:
            return
        self.clear()
        out, victim = self.work / "out", self.top / "victim"
        out.mkdir()
        shutil.rmtree(victim, ignore_errors=True)
        victim.mkdir()
        (victim / "precious").write_text("precious")
        path, kind = out / self.dice.choice(self.names[name]), self.dice.choice(("link", "folder", "dangling", "pipe", "file"))
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "file":
            path.write_text("precious")
        else:
            path.symlink_to(victim / {"link": "precious", "folder": "", "dangling": "absent"}[kind])
        status, said = self.run(self.commands[name][0])
        self.check("taken", name, status, said)
        if [p.name for p in victim.iterdir()] != ["precious"] or (victim / "precious").read_text() != "precious":
            self.found("taken", name, f"what {path.name}, a {kind}, leads to is changed", said)

    def go(self, seconds, only):
        ways = self.methods(only)
        try:
            self.prepare()
            try:
                self.clear(64)
            except subprocess.CalledProcessError:
                print("full: left out: a tmpfs cannot be mounted here")
                del ways["full"]
            self.clear()
            start = time.monotonic()
            while time.monotonic() - start < seconds:
                way = only or self.dice.choice(list(ways))
                if way not in ways:
                    break
                self.counts[way]["runs"] += 1
                ways[way](self.dice.choice(list(self.commands)))
            total = self.show_counts("way", "runs", "findings")
            print(f"disorder: {total} cases of {len(self.commands)} commands in {time.monotonic() - start:.0f} s, seed {self.seed}, {self.findings} findings")
        finally:
            if self.mounted:
                subprocess.run(["umount", self.work], check=False)
            shutil.rmtree(self.top, ignore_errors=True)
        return 1 if self.findings else 0


if __name__ == "__main__":
    session.main(Disorder, __doc__, "WAY")
