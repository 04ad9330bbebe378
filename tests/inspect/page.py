"""Looks at a page of `weft inspect` in headless Chromium, as a reader would. Needs nothing but Python.

    page.py FILE FOLDER

Expects that a token which is pointed at shows where each head looks, in the colours and in the table, by the
weights that the page holds; that heads are named by what they do; that nothing is loaded and nothing scrolls sideways,
on a wide screen and a narrow one, light and dark. Ends on 0 when all is well, 1 with a line for each thing that is
not, 77 where there is no Chromium.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from chromium import judge

DATA = "JSON.parse(document.getElementById('weft-looks').textContent)"
ROWS = "[...document.querySelector('table.looks').tBodies[0].rows].map(r => [...r.cells].map(c => c.textContent))"
PLACES = ("the previous token", "the first token", "the token itself", "the same word")


def check_names(b, wrong):
    data, rows = b.value(DATA), b.value(ROWS)
    heads = [w for layer in data["layers"] for w in layer["heads"]]
    if len(rows) != len(heads):
        wrong.append("%d rows for %d heads" % (len(rows), len(heads)))
    named = {}
    for row, head in zip(rows, heads):
        mean = sum(head[i][i - 1] for i in range(2, len(head))) / 100 / (len(head) - 2)
        if abs(mean - float(row[3])) > 0.006 * mean:
            wrong.append("head %s: %s on the previous token, not %g" % (row[0], row[3], mean))
        weights = [float(x) if x[0].isdigit() else 0 for x in row[3:7]]
        most = weights.index(max(weights))
        if max(weights) >= 0.25 and row[1] != PLACES[most] or max(weights) < 0.25 and row[1] in PLACES:
            wrong.append("head %s looks at %s with %r" % (row[0], row[1], weights))
        named[row[1]] = named.get(row[1], 0) + 1
    counted = ["%d.%d" % (layer["layer"] + 1, h + 1) for layer in data["layers"] for h in range(len(layer["heads"]))]
    if [row[0] for row in rows] != counted:
        wrong.append("heads are called %r, not %r" % ([row[0] for row in rows], counted))
    sentence = b.value("document.querySelector('.answer').textContent")
    if not sentence.startswith("Of %d heads, " % len(heads)) or not all(
            name in sentence and ("all" if count == len(heads) else str(count)) in sentence for name, count in named.items()):
        wrong.append("%r of %r" % (sentence, named))
    return data, heads


def check_pointing(b, data, heads, wrong):
    token, head = len(data["tokens"]) // 2, len(heads) - 1
    b.value("document.querySelectorAll('table.looks tbody tr')[%d].click()" % head)
    x, y = b.value("(() => { const t = document.querySelectorAll('.tk')[%d]; t.scrollIntoView({block: 'center'});"
                   "const r = t.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()" % token)
    b.move(x, y)
    b.wait("document.querySelectorAll('.tk')[%d].classList.contains('at')" % token)
    shown = b.value("[...document.querySelectorAll('.tk')].map(t => +t.style.getPropertyValue('--w'))")
    want = [w / max(heads[head][token]) for w in heads[head][token]]  # the strongest colour is the largest weight
    if shown[:len(want)] != want or any(shown[len(want):]):
        wrong.append("colours: %r, not %r" % (shown, want))
    layer = data["layers"][-1]
    told, arcs = b.value("[document.getElementById('look').textContent, document.querySelectorAll('#routes path').length]")
    if arcs != (min(8, token + 1) if "routes" in layer else 0):
        wrong.append("%d arcs of %r" % (arcs, layer.get("routes")))
    if ", token %d, head %d.%d looks at" % (token + 1, layer["layer"] + 1, len(layer["heads"])) not in told:
        wrong.append("layers, heads and tokens are counted from 1: %r" % told)
    if ("gates" in layer) != ("the gate is at " in told):
        wrong.append("gates: %r" % told)
    for row, weights in zip(b.value(ROWS), heads):
        if "%d%%" % max(weights[token]) not in row[2]:
            wrong.append("head %s from token %d: %r of %r" % (row[0], token, row[2], weights[token]))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)

    def drive(b, wrong):
        b.open("file://" + os.path.abspath(sys.argv[1]))
        data, heads = check_names(b, wrong)
        check_pointing(b, data, heads, wrong)
        for width in (1400, 390):
            b.size(width)
            for scheme in ("light", "dark"):
                b.scheme(scheme)
                if b.value("document.documentElement.scrollWidth") > width:
                    wrong.append("at %d px it scrolls sideways" % width)
                if "dark" in b.value("document.querySelector('main').innerText.toLowerCase()"):
                    wrong.append("it speaks of dark colours")
        wrong.extend(b.faults())
        wrong.extend("it loads %s" % url for url in b.requests() if not url.startswith(("file:", "data:", "about:")))

    judge(sys.argv[2], drive)


if __name__ == "__main__":
    main()
