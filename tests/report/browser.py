"""Drives a report in headless Chromium. Needs nothing but Python.

    browser.py REPORT.html FOLDER VARIANTS COLOURS

VARIANTS is how many variants the report compares and COLOURS what their curves are drawn in, with commas. The
report is opened with scripts: hover shows values and single seeds, one comparison is coloured and a click on
a name colours another, a box hides a variant in every chart, one toolbar changes what all charts draw, the
contents stay in view and open what is folded, a figure is saved as an SVG that stands alone, paper has no
controls, the keyboard reads values out, numbers on an axis do
not touch, nothing scrolls sideways from a telephone to a wall, dark is dark, nothing is loaded and no
error is logged. Then without scripts: the static pictures show every variant's colour, counted in pixels,
so that a plot whose tags are there but that shows nothing fails.

Ends on 0 when all is well, 1 with a line for each thing that is not, 77 where there is no Chromium.
"""
import os
import re
import struct
import sys
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from chromium import judge

LEAST_COLOURED = 25  # pixels
NEAR = 40  # how far a channel may be from a colour

# Texts of one row that touch: [first, second].
TOUCHING = """[...document.querySelectorAll("figure svg")].flatMap((svg) => {
  const boxes = [...svg.querySelectorAll("text")].map((t) => [t.getBoundingClientRect(), t.textContent])
    .filter((b) => b[0].width);
  const bad = [];
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
    if (a[0].left < b[0].right && b[0].left < a[0].right && a[0].top + 4 < b[0].bottom && b[0].top + 4 < a[0].bottom)
      bad.push(a[1] + " | " + b[1]);
  }));
  return bad;
})"""
# The first chart of lines: its middle on the screen.
MIDDLE = """(() => {
  const r = document.querySelector(".chart svg").getBoundingClientRect();
  return [r.left + r.width * 0.6, r.top + r.height * 0.5];
})()"""
# What a screen reader or the keyboard stumbles over: levels of headings that are left out, regions of one
# name, what scrolls and cannot be reached.
FOR_READERS = """(() => {
  const bad = [], levels = [...document.querySelectorAll("h1, h2, h3, h4, h5")];
  levels.forEach((h, i) => { if (i && +h.tagName[1] > +levels[i - 1].tagName[1] + 1) bad.push("level of " + h.textContent); });
  const names = [...document.querySelectorAll("[role=region]")].map(e => e.getAttribute("aria-label"));
  names.forEach((n, i) => { if (!n || names.indexOf(n) !== i) bad.push("region " + n); });
  document.querySelectorAll("details").forEach(d => { d.open = true; });
  document.querySelectorAll("div, pre").forEach(e => {
    if (/auto|scroll/.test(getComputedStyle(e).overflowX) && e.tabIndex < 0) bad.push("no key reaches " + e.className + e.tagName);
  });
  document.querySelectorAll("details").forEach(d => { d.open = false; });
  return bad;
})()"""
LINES = "document.querySelectorAll('.chart path.line').length"
SHOWN = "[...document.querySelectorAll('.chart path.line')].map(p => p.getAttribute('d')).join()"
LABELS = "[...document.querySelector('.chart svg').querySelectorAll('text')].map(t => t.textContent)"


def decode_png(data, bottom=1 << 30):
    """8-bit RGB or RGBA without interlace, as browsers write it: width, height, bytes a pixel, rows of
    bytes; rows from `bottom` on are left out."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", body)
            assert depth == 8 and colour in (2, 6) and interlace == 0
            step = 3 if colour == 2 else 4
        elif kind == b"IDAT":
            packed += body
        at += length + 12
    raw, rows, before = zlib.decompress(packed), [], bytearray(width * step)
    height = min(height, bottom)
    for y in range(height):
        start = y * (width * step + 1)
        kind, row = raw[start], bytearray(raw[start + 1:start + 1 + width * step])
        if kind == 1:
            for i in range(step, len(row)):
                row[i] = (row[i] + row[i - step]) & 255
        elif kind == 2:
            row = bytearray((a + b) & 255 for a, b in zip(row, before))
        elif kind == 3:
            for i in range(len(row)):
                left = row[i - step] if i >= step else 0
                row[i] = (row[i] + (left + before[i]) // 2) & 255
        elif kind == 4:
            for i in range(len(row)):
                a = row[i - step] if i >= step else 0
                b, c = before[i], before[i - step] if i >= step else 0
                p = a + b - c
                pa, pb, pc = abs(p - a), abs(p - b), abs(p - c)
                row[i] = (row[i] + (a if pa <= pb and pa <= pc else b if pb <= pc else c)) & 255
        rows.append(row)
        before = row
    return width, height, step, rows


def coloured(picture, colours):
    """How many pixels of a picture are near each colour."""
    _, _, step, rows = picture
    seen = {}
    for row in rows:
        for x in range(0, len(row), step):
            key = bytes(row[x:x + 3])
            seen[key] = seen.get(key, 0) + 1
    near = lambda a, b: all(abs(p - q) <= NEAR for p, q in zip(a, b))
    return [sum(n for c, n in seen.items() if near(c, colour)) for colour in colours]


def check_hover(b, steps, wrong):
    b.value("document.querySelector('.chart svg').scrollIntoView({block: 'center'})")
    b.move(*b.value(MIDDLE))
    tip = b.value("[...document.querySelectorAll('.tip')].filter(t => !t.hidden).map(t => t.textContent).join()")
    if "training step " not in tip or "seed 1" not in tip:
        wrong.append("hover shows %r" % tip)
    whose = b.value("""(() => { const on = document.querySelector('.tip:not([hidden]) .row.on');
        return [on.querySelector('span').textContent, on.nextElementSibling ? on.nextElementSibling.textContent : ""]; })()""")
    if not whose[1].startswith("its runs: seed 1: "):
        wrong.append("the values by seed do not follow the variant whose they are: %r" % whose)
    rows = b.value("document.querySelectorAll('.tip:not([hidden]) .row').length")
    if rows != steps:
        wrong.append("hover shows %d rows, not %d" % (rows, steps))
    if b.value("""(() => { const box = document.querySelector('.tip:not([hidden])').getBoundingClientRect(),
            at = document.querySelector('.chart .focus').getBoundingClientRect();
            return box.left < at.right && box.right > at.left && box.top < at.bottom && box.bottom > at.top; })()"""):
        wrong.append("the values hide the point they are of")
    if b.value("document.querySelectorAll('.chart path.run').length") < 2:
        wrong.append("hover shows no single seeds")
    b.move(2, 2)
    if b.value("document.querySelectorAll('.tip:not([hidden])').length"):
        wrong.append("the values stay when the pointer leaves")


# What the lines of the first chart are drawn in.
STROKES = "[...document.querySelectorAll('.chart')][0] && [...document.querySelector('.chart').querySelectorAll('path.line')].map(p => p.style.stroke)"


def check_colours(b, wrong):
    """One comparison is coloured: the last variant, whose gain is the largest, upon its baseline in ink."""
    b.move(2, 2)
    found = sorted(b.value(STROKES))
    if found != ["var(--c3)", "var(--faint)", "var(--faint)", "var(--ink)"]:
        wrong.append("the lines are drawn in %r" % found)
    if b.value("[...document.querySelectorAll('.forest .lit')].map(r => r.dataset.key)") != ["3"]:
        wrong.append("another row of the forest is coloured")
    b.value("document.querySelectorAll('.legend .entry button')[1].click()")
    if sorted(b.value(STROKES))[:2] != ["var(--c1)", "var(--c3)"]:
        wrong.append("a click on a name colours nothing: %r" % b.value(STROKES))
    b.value("document.querySelector('.forest [data-key=\"2\"]').click()")
    if sorted(b.value(STROKES))[:2] != ["var(--c2)", "var(--faint)"]:
        wrong.append("a row of the forest does not colour its variant: %r" % b.value(STROKES))
    b.value("document.querySelector('.legend .all').click()")
    if any("--c" not in s for s in b.value(STROKES)):
        wrong.append("not all are coloured: %r" % b.value(STROKES))


def check_contents(b, wrong):
    """They stay in view, beside the page and above it, and open what is folded."""
    for width in (1400, 390):
        b.size(width)
        b.value("scrollTo(0, 1500)")
        box = b.value("(r => [r.left, r.top, r.right, r.bottom])(document.querySelector('.contents').getBoundingClientRect())")
        if not (box[1] == 0 and box[3] > 20 and (box[2] < 400)):
            wrong.append("%d: the contents are at %r" % (width, box))
    b.size(1400)
    names = b.value("[...document.querySelectorAll('.contents a')].map(a => a.textContent)")
    parts = b.value("[...document.querySelectorAll('h2, details.fold > summary')].map(e => e.textContent)")
    if names != ["Answer"] + parts:
        wrong.append("the contents are %r, the parts %r" % (names, parts))
    b.value("[...document.querySelectorAll('.contents a')].find(a => a.textContent.includes('verdicts')).click()")
    b.wait("[...document.querySelectorAll('details')].find(d => d.textContent.includes('Holm')).open")
    b.wait("document.querySelectorAll('.contents [aria-current]').length === 1")
    if b.value("document.querySelectorAll('.tools').length") != 1 or b.value("document.querySelectorAll('.legend').length") != 1:
        wrong.append("there is not one set of controls")
    b.value("location.hash = ''; scrollTo(0, 0); document.querySelectorAll('details').forEach(d => { d.open = false; })")


def check_figure(b, wrong):
    """A figure by itself: XML with the names of what it shows, and no colour that only the page knows."""
    b.value("""{ window.saved = ""; const make = URL.createObjectURL;
        URL.createObjectURL = (blob) => { blob.text().then(t => { window.saved = t; }); return make.call(URL, blob); };
        HTMLAnchorElement.prototype.click = function () { window.named = this.download; }; }""")
    b.value("document.querySelector('.chart .head button').click()")
    b.wait("window.saved.length > 0")
    if b.value("window.named") != "held-out-loss.svg":
        wrong.append("a figure is saved as %r" % b.value("window.named"))
    told = b.value("""(() => { const doc = new DOMParser().parseFromString(window.saved, "image/svg+xml");
        return [doc.querySelectorAll("parsererror").length, window.saved.includes("var("),
          [...doc.querySelectorAll("text")].map(t => t.textContent).filter(t => t === "Baseline" || t === "All three").length,
          doc.querySelectorAll("path").length > 3]; })()""")
    if told != [0, False, 2, True]:
        wrong.append("a figure by itself: errors, colours of the page, names, lines %r" % told)


def check_print(b, wrong):
    b.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    b.value("dispatchEvent(new Event('beforeprint'))")
    if not b.value("!!document.querySelector('.legend').offsetParent"):
        wrong.append("on paper there is no legend")
    seen = b.value("[...document.querySelectorAll('.contents, .tools, .chart .head button')].filter(e => e.offsetParent).length")
    if seen or b.value("getComputedStyle(document.body).backgroundColor") != "rgb(251, 251, 250)":
        wrong.append("on paper there are %d controls, on %s" % (seen, b.value("getComputedStyle(document.body).backgroundColor")))
    b.value("dispatchEvent(new Event('afterprint')); document.querySelectorAll('details').forEach(d => { d.open = false; })")
    b.call("Emulation.setEmulatedMedia", media="", features=[])


def check_toggle(b, wrong):
    before = b.value(LINES)
    at = b.value("""(() => { const r = document.querySelectorAll('.legend .entry input')[1].getBoundingClientRect();
        return [r.left + r.width / 2, r.top + r.height / 2]; })()""")
    b.click(*at)
    b.move(2, 2)
    if not b.value(LINES) < before:
        wrong.append("a click hides nothing: %d lines" % before)
    key = b.value("document.querySelectorAll('.legend .entry button')[1].dataset.key")
    if b.value("[...document.querySelectorAll('.chart [data-series]')].some(g => g.dataset.series === %r)" % key):
        wrong.append("a hidden step is still in a chart")
    b.click(*at)
    b.move(2, 2)
    if b.value(LINES) != before:
        wrong.append("a second click does not bring it back")


def check_tools(b, wrong):
    for name, change in (("x", "select.value = 'tokens'"), ("x", "select.value = 'seconds'"),
                         ("logY", "select.checked = true"), ("logX", "select.checked = true"),
                         ("smooth", "select.value = 0.9")):
        before = b.value(SHOWN)
        b.value("""{ const select = document.querySelector(".tools [name=%s]"); %s;
            select.dispatchEvent(new Event(select.type === "range" ? "input" : "change")); }""" % (name, change))
        if name == "smooth" and b.value(SHOWN) == before:
            wrong.append("smoothing changes nothing")
        if name.startswith("log") and b.value(SHOWN) == before:
            wrong.append("%s changes nothing" % name)
        if "tokens" in change and "tokens" not in b.value(LABELS):
            wrong.append("the axis is not tokens: %s" % b.value(LABELS))
    for t in b.value(TOUCHING):
        wrong.append("texts touch with other axes: %s" % t)
    drawn = "[...document.querySelectorAll('.chart')].find(f => f.textContent.includes('against')).querySelector('svg[role]').innerHTML"
    for name in ("logX", "logY"):
        before = b.value(drawn)
        b.value("[...document.querySelectorAll('.tools [name=%s]')].pop().click()" % name)
        if b.value(drawn) == before:
            wrong.append("%s changes nothing in a chart of points" % name)


def check_keyboard(b, wrong):
    b.value("document.querySelector('.chart svg').focus()")
    b.press("ArrowLeft", 37)
    b.press("ArrowLeft", 37)
    first = b.value("document.querySelector('.chart .unseen').textContent")
    b.press("ArrowDown", 40)
    second = b.value("document.querySelector('.chart .unseen').textContent")
    if ":" not in first or first == second:
        wrong.append("the keyboard says %r and %r" % (first, second))
    b.press("Escape", 27)
    unnamed = b.value("[...document.querySelectorAll('input,select')].filter(e => !e.labels.length && !e.getAttribute('aria-label')).length +"
                      "[...document.querySelectorAll('svg[role]')].filter(e => !e.getAttribute('aria-label')).length")
    if unnamed:
        wrong.append("%d things have no name for a screen reader" % unnamed)
    for fault in b.value(FOR_READERS):
        wrong.append("for a screen reader: " + fault)


def check_widths(b, wrong):
    for width in (2560, 1400, 1280, 390):
        b.size(width)
        b.wait("Math.abs(innerWidth - %d) < 1" % width)
        b.value("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
        if b.value("document.documentElement.scrollWidth") > width:
            wrong.append("%d: the page scrolls sideways: it is %d wide" %
                         (width, b.value("document.documentElement.scrollWidth")))
        for t in b.value(TOUCHING):
            wrong.append("%d: texts touch: %s" % (width, t))
        small = b.value("[...document.querySelectorAll('.chart > svg')].filter(s => s.getBoundingClientRect().height < 150).length")
        if small:
            wrong.append("%d: %d charts are flat" % (width, small))
        wide = b.value("""(() => { const h = [...document.querySelectorAll('h2')].find(h => h.textContent === 'The variants in numbers');
          const t = [...document.querySelectorAll('table')].find(t => h.compareDocumentPosition(t) & Node.DOCUMENT_POSITION_FOLLOWING);
          return t.scrollWidth - t.parentNode.clientWidth; })()""")
        if width == 1400 and wide > 0:
            wrong.append("%d: the table of numbers is cut off by %d" % (width, wide))


def check_static(b, url, folder, steps, colours, wrong):
    """Without scripts."""
    b.call("Emulation.setScriptExecutionDisabled", value=True)
    b.size(1280)
    b.scheme("light")
    b.call("Page.navigate", url=url)
    b.wait("document.readyState === 'complete'")
    rects = b.value("""[...document.querySelectorAll("figure svg")].map((f) => {
        const r = f.getBoundingClientRect();
        return [r.left + scrollX, r.top + scrollY, r.width * 0.72, r.height]; })""")
    if len(rects) < 5:
        wrong.append("without scripts there are %d pictures" % len(rects))
    if b.value("document.querySelectorAll('.forest .step').length") != steps - 1:
        wrong.append("the forest has another number of rows")
    for i, rect in enumerate(rects[:1] + rects[-1:]):
        found = coloured(decode_png(b.picture(rect)), colours)
        print("static picture %d: pixels by colour %s" % (i, found))
        for colour, n in zip(colours, found):
            if n < LEAST_COLOURED:
                wrong.append("static picture %d: %d pixels of colour %s" % (i, n, colour.hex()))
    for t in b.value(TOUCHING):
        wrong.append("without scripts texts touch: %s" % t)
    ids = b.value("[...document.querySelectorAll('[id]')].map(e => e.id)")
    if len(ids) != len(set(ids)):
        wrong.append("ids are there twice")


def check_count(b, steps, wrong):
    """As many variants are said as are drawn, and what is not drawn is said too."""
    drawn, facts = b.value("document.querySelectorAll('.legend .entry').length"), b.value(
        "document.querySelector('.facts').textContent")
    if drawn != steps or "%d variants (and 2 repeats" % steps not in facts:
        wrong.append("%d variants are drawn, and it says %r" % (drawn, facts))
    if "Repeats are in no picture" not in b.value("document.querySelector('main').textContent"):
        wrong.append("it is not said why repeats are not drawn")


def check_units(b, wrong):
    """The answer is in percent and the axis in nats: each row has both. A band is no interval, and it says so."""
    number, share = r"[-+]\d\.\d+", r"[-+]\d+\.\d+%"
    form = r"{0} \[{0}, {0}\]\s+{1} \[{1}, {1}\]".format(number, share)
    for row in b.value("[...document.querySelectorAll('.forest .value')].map(e => e.innerText)"):
        if not re.fullmatch(form, row):
            wrong.append("a row of the forest is %r" % row)
    said = b.value("document.getElementById('how-they-learned').nextElementSibling.textContent")
    if "the band goes from the lowest seed to the highest and is no confidence interval" not in said:
        wrong.append("of bands it says %r" % said)


def check_words(b, wrong):
    """A step is one of training; what a study compares are variants."""
    text = b.value("""(() => { const page = document.body.cloneNode(true);
        page.querySelectorAll("script, pre").forEach(e => e.remove()); return page.textContent; })()""")
    for found in re.finditer(r"(?i)(\w*)\s+(steps?)\b", text):
        if found.group(1).lower() != "training":
            wrong.append("which step is meant: %r" % text[max(0, found.start() - 40):found.end() + 20])


def drive(b, url, folder, steps, colours, wrong):
    b.open(url)
    b.size(1280)
    if not b.value("document.querySelectorAll('.chart').length >= 5"):
        wrong.append("there are %d charts" % b.value("document.querySelectorAll('.chart').length"))
    check_words(b, wrong)
    check_count(b, steps, wrong)
    check_units(b, wrong)
    check_colours(b, wrong)
    check_hover(b, steps, wrong)
    check_toggle(b, wrong)
    check_contents(b, wrong)
    check_figure(b, wrong)
    check_print(b, wrong)
    check_widths(b, wrong)
    b.size(1280)
    check_tools(b, wrong)
    check_keyboard(b, wrong)
    shades = []
    for scheme in ("light", "dark"):
        b.scheme(scheme)
        shades.append(b.value("getComputedStyle(document.body).backgroundColor"))
    if shades[0] == shades[1]:
        wrong.append("light and dark are both %s" % shades[0])
    check_static(b, url, folder, steps, colours, wrong)
    wrong += b.faults()
    wrong += ["it loads %s" % asked for asked in b.requests()
              if asked != url and not asked.startswith(("data:", "about:"))]


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    report, folder, steps, colours = sys.argv[1:]
    colours = [bytes.fromhex(c.lstrip("#")) for c in colours.split(",")]
    url = "file://" + os.path.abspath(report)
    judge(folder, lambda b, wrong: drive(b, url, folder, int(steps), colours, wrong))


if __name__ == "__main__":
    main()
