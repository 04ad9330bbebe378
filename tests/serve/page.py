"""Drives the server's page in headless Chromium, over the DevTools protocol. Needs nothing but Python.

    page.py URL FOLDER PROMPT SEED TEXT

Fills in the form, sends it by the keyboard, and expects PROMPT and TEXT to appear; starts a long text
and stops it; holds a conversation of two messages; looks at the page in the dark, at the width of a
telephone, for faults in its script and for what it loaded. Ends on 0 when all is well, 1 with a line
for each thing that is not, 77 where there is no Chromium.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from chromium import judge

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

    def drive(b, wrong):
        b.open(url)
        b.wait("document.getElementById('name').textContent !== 'weft'")
        check_text(b, prompt, seed, text, wrong)
        check_stop(b, wrong)
        check_chat(b, wrong)
        check_looks(b, wrong)
        check_events(b, url, wrong)

    judge(folder, drive)


if __name__ == "__main__":
    main()
