"""Moves what can be moved on docs/explainer.html in headless Chromium. Needs nothing but Python.

    explainer.py FOLDER

Expects the numbers that the formulas give: W2 and dot weights, also of a Gaussian that was dragged, sizes of caches, the
contrastive loss; one path lit at a time; all of it at 1,400 px with a mouse and at 390 px with a finger; nothing loaded, no
fault, nothing that scrolls sideways, light and dark. Ends on 0 when all is well, 1 with a line for each thing that is not, 77 where there is no Chromium.
"""
import math
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from chromium import judge

PAGE = os.path.join(HERE, "..", "..", "docs", "explainer.html")


def turn(b, name, value):
    b.value("(() => { const e = document.querySelector('input[name=%s]'); e.value = %g;"
            "e.dispatchEvent(new Event('input')); })()" % (name, value))


def cells(b, part):
    return b.value("[...document.querySelectorAll('#%s tbody tr')].map(r => [...r.cells].map(c => c.textContent))" % part)


def percent(scores):
    e = [math.exp(s) for s in scores]
    return ["%d%%" % math.floor(100 * x / sum(e) + 0.5) for x in e]


def check_gaussians(b, wrong, finger):
    q, keys = (1, 0.5), ((2, 1.5), (-1, 0.5))
    for i, (m, s) in enumerate((q,) + keys):
        turn(b, "m%d" % i, m)
        turn(b, "s%d" % i, s)
    near = percent([-((q[0] - m) ** 2 + (q[1] - s) ** 2) / 2 for m, s in keys])
    dots = percent([q[0] * m for m, s in keys])
    want = [["A", "2.00", near[0], "2.00", dots[0]], ["B", "4.00", near[1], "−1.00", dots[1]]]
    if cells(b, "gauss") != want:
        wrong.append("W2 and dot: %r, not %r" % (cells(b, "gauss"), want))
    x, y, width = b.value("(() => { const r = document.querySelector('#gauss [data-i=\"1\"]').getBoundingClientRect();"
                          "return [r.x + r.width / 2, r.y + r.height / 2,"
                          "document.querySelector('#gauss svg').getBoundingClientRect().width]; })()")
    to = x - 55 * width / 480
    if finger:
        for kind, points in (("touchStart", [{"x": x, "y": y}]), ("touchMove", [{"x": to, "y": y}]), ("touchEnd", [])):
            b.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)
    else:
        b.move(x, y)
        for kind, at in (("mousePressed", x), ("mouseMoved", to), ("mouseReleased", to)):
            b.call("Input.dispatchMouseEvent", type=kind, x=at, y=y, buttons=1, button="left", clickCount=1)
    got = b.value("+document.querySelector('input[name=m1]').value")
    if abs(got - 1) > 0.06:
        wrong.append("dragged by one to the left, key A is at %g" % got)


def check_cache(b, wrong):
    for name, value in (("t", 10), ("g", 2), ("l", 64)):
        turn(b, name, value)
    got = b.value("[...document.querySelectorAll('#kv .row output')].map(e => parseFloat(e.textContent))")
    want = [n * 12 * 2 * 1024 / 2 ** 20 for n in (2 * 12 * 64, 2 * 2 * 64, 2 * 64, 64)]
    if got != want:
        wrong.append("caches: %r, not %r" % (got, want))


def check_paths(b, wrong):
    told = set()
    for name in ("gate", "cross", "latent"):
        b.value("document.querySelector('[data-path=%s]').click()" % name)
        lit, text = b.value("[document.querySelectorAll('.path.lit').length, document.querySelector('.what').textContent]")
        told.add(text)
        if lit != 1:
            wrong.append("%s: %d paths are lit" % (name, lit))
    if len(told) != 3:
        wrong.append("three paths are told in %d texts" % len(told))


def check_z(b, wrong):
    turn(b, "apart", 1)
    turn(b, "long", 1.5)
    rows = [[math.exp(math.cos(2 * math.pi * (i - j) / 6) / 0.07) for j in range(6)] for i in range(6)]
    loss = sum(math.log(sum(row)) - math.log(row[i]) for i, row in enumerate(rows)) / 6
    want = ["2.250", "%.3f" % loss, "%.3f" % math.log(6)]
    if [row[1] for row in cells(b, "z")] != want:
        wrong.append("losses of z-heads: %r, not %r" % (cells(b, "z"), want))


def main():
    def drive(b, wrong):
        b.open("file://" + os.path.abspath(PAGE))
        for width in (1400, 390):
            b.size(width, 2400)
            check_gaussians(b, wrong, finger=width == 390)
            for check in (check_cache, check_paths, check_z):
                check(b, wrong)
            if b.value("[...document.querySelectorAll('input, button, summary')].some(e => e.getBoundingClientRect().height < 16)"):
                wrong.append("at %d px something is too small to be tapped" % width)
            for scheme in ("light", "dark"):
                b.scheme(scheme)
                if b.value("document.documentElement.scrollWidth") > width:
                    wrong.append("at %d px it scrolls sideways" % width)
        wrong.extend(b.faults())
        wrong.extend("it loads %s" % url for url in b.requests() if not url.startswith(("file:", "data:", "about:")))

    judge(sys.argv[1], drive)


if __name__ == "__main__":
    main()
