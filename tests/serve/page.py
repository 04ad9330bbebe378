"""Drives the server's page in headless Chromium, over the DevTools protocol. Needs nothing but Python.

    page.py URL FOLDER PROMPT SEED TEXT [TEXT_2]

Writes PROMPT into the page, sends it by the keyboard, and expects TEXT to appear behind it; goes on from another
token than the one that was drawn, and back; runs what it offers to copy; starts a long text and stops it; holds a
conversation of two messages; looks at the page in the dark, at the width of a telephone, for faults in its script
and for what it loaded. With TEXT_2, that of a second model, expects the two side by side in place of all but the
looks. Ends on 0 when all is well, 1 with a line for each thing that is not, 77 where there is no Chromium.
"""
import json
import os
import subprocess
import sys
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from chromium import judge

OUT = "panes[0].paper.textContent"
STATUS = "document.getElementById('status').textContent"
IDLE = "!document.getElementById('send').disabled && " + STATUS + ".includes(';')"


def begin(b, prompt):
    """Replaces the first pane's text as a reader would."""
    b.value("document.getElementById('clear').click(); panes[0].paper.focus()")
    b.call("Input.insertText", text=prompt)


def check_text(b, prompt, seed, text, wrong):
    for field, value in (("seed", seed), ("max", "24"), ("temperature", "1"), ("top_p", "1")):
        b.write(field, value)
    begin(b, prompt)
    b.press("Enter", 13, modifiers=2)
    b.wait(IDLE)
    shown = b.value(OUT)
    if shown != prompt + text:
        wrong.append("shown: %r, not %r" % (shown, prompt + text))
    status = b.value(STATUS)
    if "tokens/s" not in status or "seed " + seed not in status:
        wrong.append("status: %r" % status)
    tints = b.value("panes[0].tokens.map(t => [t.p, +t.node.style.getPropertyValue('--u'),"
                    "t.tops.reduce((s, a) => s + a.p, 0), t.tops.length])")
    if len(tints) != 24 or any(abs(1 - p - u) > 1e-3 or not 0 < s < 1.0001 or n != 8 for p, u, s, n in tints):
        wrong.append("probabilities: %r" % tints)


def check_code(b, text, wrong):
    for kind, program in (("curl", ["bash", "-c"]), ("python", [sys.executable, "-c"])):
        out = subprocess.run(program + [b.value("program('%s')" % kind)], capture_output=True, check=False)
        got = out.stdout.decode()
        got = json.loads(got)["choices"][0]["text"] if kind == "curl" and got else got[:-1]
        if got != text:
            wrong.append("%s writes %r and %s" % (kind, got, out.stderr.decode()[-300:]))


def check_branch(b, url, seed, wrong):
    """The second of a token's alternatives in its place, and what the server makes of these tokens."""
    before = b.value(OUT)
    ids = b.value("panes[0].ids")
    if ids != list(before[:len(ids)].encode()):  # tokens are bytes
        wrong.append("the prompt's tokens: %r" % ids)
    place, x, y = b.value("(() => { const i = panes[0].tokens.findIndex((t, k) => k > 1 && /[!-~]/.test(t.text));"
                          "const r = panes[0].tokens[i].node.getBoundingClientRect();"
                          "return [i, r.x + r.width / 2, r.y + r.height / 2]; })()")
    b.click(x, y)
    rows = b.value("[...document.querySelectorAll('#alternatives button')].map(e => [e.innerText, e.ariaCurrent])")
    if len(rows) < 8 or sum(row[1] == "true" for row in rows) != 1 or not all("%" in row[0] for row in rows):
        wrong.append("alternatives: %r" % rows)
    shares = b.value("[1, 0.5, 0.0999, 0.0985, 0.0949, 0.012, 0.00123, 0.00096, 0.0009, 1e-9].map(percent)")
    if shares != ["100%", "50%", "10%", "10%", "9%", "1%", "0.1%", "0.1%", "<0.1%", "<0.1%"]:
        wrong.append("shares in percent: %r" % shares)
    other = b.value("(() => { const t = panes[0].tokens[%d]; return t.tops.find(a => a.id !== t.id).id; })()" % place)
    tokens = b.value("panes[0].ids.concat(panes[0].tokens.slice(0, %d).map(t => t.id))" % place) + [other]
    b.value("document.querySelector('#alternatives button:not([aria-current])').click()")
    b.wait(IDLE)
    body = {"prompt": tokens, "max_tokens": 24, "temperature": 1, "top_p": 1, "seed": int(seed)}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    want = json.load(urllib.request.urlopen(request))["choices"][0]["text"]
    got = b.value("panes[0].tokens.slice(%d).map(t => t.text).join('')" % (place + 1))
    if got != want:
        wrong.append("a branch goes on with %r, not %r" % (got, want))
    b.value("document.querySelector('#branches button').click()")
    if b.value(OUT) != before:
        wrong.append("the text before the branch: %r, not %r" % (b.value(OUT), before))


def check_stop(b, wrong):
    b.write("max", "100000")
    begin(b, "x")
    b.press("Enter", 13, modifiers=2)
    b.wait(OUT + ".length > 50")
    if not b.value("document.getElementById('send').disabled"):
        wrong.append("it can be sent twice")
    b.press("Escape", 27)
    b.wait(STATUS + ".includes('stopped')")
    begin(b, "y")
    b.press("Enter", 13, modifiers=2)
    b.wait(OUT + ".length > 50")
    b.value("document.getElementById('stop').click()")
    b.wait(STATUS + ".includes('stopped')")


def check_chat(b, wrong):
    b.value("document.getElementById('mode').value = 'chat';"
            "document.getElementById('mode').dispatchEvent(new Event('change'))")
    b.write("max", "5")
    for i in range(2):
        b.write("say", "hello %d" % i)
        b.press("Enter", 13, modifiers=2)
        b.wait("messages.length === %d" % (2 * i + 2))
    shown = b.value("document.getElementById('talk').textContent")
    if "hello 0" not in shown or "hello 1" not in shown:
        wrong.append("a conversation: %r" % shown)
    b.write("temperature", "-1")
    b.write("say", "x")
    b.press("Enter", 13, modifiers=2)
    b.wait("document.getElementById('status').className === 'bad'")
    if "temperature" not in b.value(STATUS):
        wrong.append("an error: %r" % b.value(STATUS))
    b.value("document.getElementById('mode').value = 'text';"
            "document.getElementById('mode').dispatchEvent(new Event('change'))")


def check_pair(b, prompt, seed, texts, wrong):
    """Two models with a small context: the page's own limits work at once, and one seed makes both texts."""
    begin(b, prompt)
    b.press("Enter", 13, modifiers=2)
    b.wait(IDLE)
    if b.value("document.getElementById('status').className") == "bad":
        wrong.append("with what the page proposes: %s" % b.value(STATUS))
    b.write("max", "100000")
    b.value("panes.forEach(p => { p.stood = p.tokens.length; })")
    b.press("Enter", 13, modifiers=2)
    b.wait(IDLE)
    full = b.value("panes.map(p => [p.ids.length + p.tokens.length, p.model.context, p.note.textContent])")
    if any(used != most or "the context is full" not in note for used, most, note in full):
        wrong.append("a full context: %r" % full)
    for field, value in (("seed", seed), ("max", "24"), ("temperature", "1"), ("top_p", "1")):
        b.write(field, value)
    begin(b, prompt)
    b.press("Enter", 13, modifiers=2)
    b.wait(IDLE)
    shown = b.value("panes.map(p => p.paper.textContent)")
    if shown != [prompt + text for text in texts]:
        wrong.append("side by side: %r, not %r" % (shown, texts))


def check_looks(b, wrong):
    colours = []
    for width in (1400, 390):
        b.size(width)
        for scheme in ("light", "dark"):
            b.scheme(scheme)
            colours.append(b.value("getComputedStyle(document.body).backgroundColor"))
            if b.value("document.documentElement.scrollWidth") > width:
                wrong.append("at %d px the page scrolls sideways" % width)
    if colours[0] == colours[1]:
        wrong.append("light and dark are both %s" % colours[0])
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
    if len(sys.argv) not in (6, 7):
        sys.exit(__doc__)
    url, folder, prompt, seed, *texts = sys.argv[1:]

    def drive(b, wrong):
        b.open(url)
        b.wait("panes.length === %d" % len(texts))
        if len(texts) > 1:
            check_pair(b, prompt, seed, texts, wrong)
        else:
            check_text(b, prompt, seed, texts[0], wrong)
            check_code(b, texts[0], wrong)
            check_branch(b, url, seed, wrong)
            check_stop(b, wrong)
            check_chat(b, wrong)
        check_looks(b, wrong)
        check_events(b, url, wrong)

    judge(folder, drive)


if __name__ == "__main__":
    main()
