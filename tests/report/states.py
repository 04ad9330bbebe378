"""Looks at reports in every state of a study in headless Chromium. Needs nothing but Python.

    states.py FOLDER REPORT.html... [--pictures PICTURES]

Each is opened at 1400 and 390 pixels, light and dark: it has an answer, nothing scrolls sideways, no text of a
chart touches another, rows of the forest keep to their columns, the contents lead somewhere and no error is
logged. With PICTURES, screenshots go there. Ends as browser.py does.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from browser import TOUCHING  # noqa: E402
from chromium import judge  # noqa: E402

# Cells of one row of the forest that lie on each other.
CROWDED = """[...document.querySelectorAll(".forest [data-key]")].flatMap((row) => {
  const cells = [...row.children].map((c) => { const r = document.createRange(); r.selectNodeContents(c);
    return [c.className, c.className === "track" ? c.getBoundingClientRect() : r.getBoundingClientRect()]; });
  return cells.flatMap(([a, r], i) => cells.slice(i + 1).filter(([, o]) => r.width && o.width && r.left < o.right - 1 && o.left < r.right - 1 &&
    r.top < o.bottom - 1 && o.top < r.bottom - 1).map(([b]) => row.dataset.key + ": " + a + " on " + b)); })"""
LOST = """[...document.querySelectorAll(".contents a")].filter(a => a.hash && !document.getElementById(a.hash.slice(1))).map(a => a.hash)"""


def look(b, report, pictures, wrong):
    name = os.path.basename(os.path.dirname(report)) or report
    b.call("Page.navigate", url="file://" + os.path.abspath(report))
    b.wait("document.readyState === 'complete' && location.href.includes(%r)" % name)
    if len(b.value("document.querySelector('.answer')?.textContent || ''")) < 10:
        wrong.append("%s: there is no answer" % name)
    wrong += ["%s: the contents lead to %s, which is not there" % (name, hash) for hash in b.value(LOST)]
    for width in (1400, 390):
        b.size(width)
        b.wait("innerWidth === %d" % width)
        b.value("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
        if b.value("document.documentElement.scrollWidth") > width:
            wrong.append("%s: scrolls sideways at %d" % (name, width))
        wrong += ["%s, %d: %s" % (name, width, what) for what in b.value(CROWDED) + b.value(TOUCHING)]
        for scheme in ("light", "dark") if pictures else ():
            b.scheme(scheme)
            height = min(b.value("document.documentElement.scrollHeight"), 2200)
            with open(os.path.join(pictures, "report-%s-%d-%s.png" % (name, width, scheme)), "wb") as out:
                out.write(b.picture((0, 0, width, height)))


def main():
    words = sys.argv[1:]
    pictures = words[words.index("--pictures") + 1] if "--pictures" in words else None
    if pictures:
        words = words[:words.index("--pictures")]
    if len(words) < 2:
        sys.exit(__doc__)

    def drive(b, wrong):
        b.open("about:blank")
        for report in words[1:]:
            look(b, report, pictures, wrong)
        wrong += b.faults()

    judge(words[0], drive)


if __name__ == "__main__":
    main()
