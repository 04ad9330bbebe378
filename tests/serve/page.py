"""Drives the server's page in headless Chromium, over the DevTools protocol. Needs nothing but Python.

    page.py URL FOLDER PROMPT SEED TEXT

Fills in the form, sends it by the keyboard, and expects PROMPT and TEXT to appear; starts a long text
and stops it; holds a conversation of two messages; looks at the page in the dark, at the width of a
telephone, for faults in its script and for what it loaded. Ends on 0 when all is well, 1 with a line
for each thing that is not, 77 where there is no Chromium.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Browser:
    """Chromium with its protocol on descriptors 3 and 4: JSON texts, each ended by a zero."""

    def __init__(self, program, folder):
        to, self.write_end = os.pipe()
        self.read_end, back = os.pipe()
        words = [program, "--headless", "--disable-gpu", "--no-first-run", "--disable-extensions",
                 "--disable-background-networking", "--disable-dev-shm-usage",
                 "--remote-debugging-pipe", "--user-data-dir=" + folder, "about:blank"]
        if os.getuid() == 0:
            words.insert(1, "--no-sandbox")

        def place():
            low, high = os.dup(to), os.dup(back)
            os.dup2(low, 3)
            os.dup2(high, 4)

        self.process = subprocess.Popen(words, preexec_fn=place, close_fds=False,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to)
        os.close(back)
        self.held, self.number, self.session, self.events = b"", 0, None, []

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.held:
                more = os.read(self.read_end, 65536)
                if not more:
                    raise RuntimeError("Chromium ended")
                self.held += more
            text, self.held = self.held.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("id") != self.number:
                self.events.append(answer)
                continue
            if "error" in answer:
                raise RuntimeError("%s: %s" % (method, answer["error"]))
            return answer["result"]

    def open(self, url):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Network", "Log"):
            self.call(part + ".enable")
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def value(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError("%s: %s" % (script, result["exceptionDetails"]))
        return result["result"].get("value")

    def wait(self, script, seconds=60):
        end = time.time() + seconds
        while not self.value(script):
            if time.time() > end:
                raise RuntimeError("never: " + script)
            time.sleep(0.02)

    def press(self, key, code, modifiers=0):
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, modifiers=modifiers,
                      windowsVirtualKeyCode=code, nativeVirtualKeyCode=code)

    def write(self, field, text):
        self.value("document.getElementById('%s').value = ''; document.getElementById('%s').focus()"
                   % (field, field))
        self.call("Input.insertText", text=text)


OUT = "document.getElementById('out').textContent"
STATUS = "document.getElementById('status').textContent"
IDLE = "!document.getElementById('send').disabled && " + STATUS + ".includes(';')"


def check_text(b, prompt, seed, text, wrong):
    b.write("seed", seed)
    b.write("max", "24")
    b.write("temperature", "1")
    b.write("top_p", "1")
    b.write("prompt", prompt)
    b.press("Enter", 13, modifiers=2)
    b.wait(IDLE)
    shown = b.value(OUT)
    if shown != prompt + text:
        wrong.append("shown: %r, not %r" % (shown, prompt + text))
    status = b.value(STATUS)
    if not status.startswith("24 tokens, ") or "tokens/s" not in status:
        wrong.append("status: %r" % status)


def check_stop(b, wrong):
    b.write("max", "100000")
    b.write("prompt", "x")
    b.press("Enter", 13, modifiers=2)
    b.wait(OUT + ".length > 50")
    if not b.value("document.getElementById('send').disabled"):
        wrong.append("it can be sent twice")
    b.press("Escape", 27)
    b.wait(STATUS + ".includes('stopped')", 5)
    b.press("Enter", 13, modifiers=2)
    b.wait(OUT + ".length > 50")
    b.value("document.getElementById('stop').click()")
    b.wait(STATUS + ".includes('stopped')", 5)


def check_chat(b, wrong):
    b.value("document.getElementById('mode').value = 'chat';"
            "document.getElementById('mode').dispatchEvent(new Event('change'))")
    b.write("max", "5")
    for i in range(2):
        b.write("prompt", "hello %d" % i)
        b.press("Enter", 13, modifiers=2)
        b.wait("messages.length === %d" % (2 * i + 2))
    shown = b.value(OUT)
    if "hello 0" not in shown or "hello 1" not in shown:
        wrong.append("a conversation: %r" % shown)
    b.write("max", "0")
    b.write("prompt", "x")
    b.press("Enter", 13, modifiers=2)
    b.wait("document.getElementById('status').className === 'bad'")
    if "max_tokens" not in b.value(STATUS):
        wrong.append("an error: %r" % b.value(STATUS))


def check_looks(b, wrong):
    colours = []
    for scheme in ("light", "dark"):
        b.call("Emulation.setEmulatedMedia",
               features=[{"name": "prefers-color-scheme", "value": scheme}])
        colours.append(b.value("getComputedStyle(document.body).backgroundColor"))
    if colours[0] == colours[1]:
        wrong.append("light and dark are both %s" % colours[0])
    b.call("Emulation.setDeviceMetricsOverride", width=360, height=700, deviceScaleFactor=1,
           mobile=True)
    if b.value("document.documentElement.scrollWidth") > 360:
        wrong.append("the page scrolls sideways")
    unnamed = b.value("[...document.querySelectorAll('input,select,textarea')]"
                      ".filter(e => !e.labels.length).length")
    if unnamed:
        wrong.append("%d fields have no label" % unnamed)


def check_events(b, url, wrong):
    for e in b.events:
        if e.get("method") == "Runtime.exceptionThrown":
            wrong.append("a fault: %s" % e["params"]["exceptionDetails"])
        if e.get("method") == "Network.requestWillBeSent":
            asked = e["params"]["request"]["url"]
            if not asked.startswith((url, "data:", "about:")):
                wrong.append("it loads %s" % asked)


def main():
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    url, folder, prompt, seed, text = sys.argv[1:]
    program = next((shutil.which(name) for name in BROWSERS if shutil.which(name)), None)
    if not program:
        print("none of %s is installed" % ", ".join(BROWSERS))
        sys.exit(77)
    wrong = []
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as profile:
        b = Browser(program, profile)
        try:
            b.open(url)
            b.wait("document.getElementById('name').textContent !== 'weft'")
            check_text(b, prompt, seed, text, wrong)
            check_stop(b, wrong)
            check_chat(b, wrong)
            check_looks(b, wrong)
            check_events(b, url, wrong)
        except RuntimeError as error:
            wrong.append(str(error))
        b.process.terminate()
        b.process.wait()
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
