"""The documentation's site, as scripts/site stages it and, where MkDocs is there, as it opens from its folder.

    site.py WEFT FOLDER

Without MkDocs (the variable MKDOCS, or what `make site` installed) a stand-in takes its place: what is staged is looked
at all the same. With it the site is built, and its search is used in headless Chromium, which may load nothing from
elsewhere. Ends on 0 when all is well, 1 with a line for each thing that is not.
"""
import glob
import os
import re
import sqlite3
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from chromium import find_browser, judge

STAND_IN = """#!/bin/sh
for site; do :; done
mkdir -p "$site/assets" "$site/docs"
touch "$site/404.html"
echo '<script src="https://unpkg.com/iframe-worker/shim"></script>' >"$site/docs/index.html"
"""


def check_stage(pages, wrong):
    with open("docs/site.yml", encoding="utf-8") as file:
        nav = re.findall(r"(?m)^ +- [^:]+: (\S+\.(?:md|html))$", file.read())
    for page in nav:
        if not os.path.exists(os.path.join(pages, page)):
            wrong.append("docs/site.yml names %s, which is not staged" % page)
    for page in glob.glob("docs/**/*.md", recursive=True):
        if page not in nav and not page.startswith("docs/notes/"):
            wrong.append("docs/site.yml does not name %s" % page)
    for name in ("performance", "decoding", "scaling"):
        with open("docs/results/%s.md" % name, encoding="utf-8") as file:
            if not re.match(r"# .+\n\n[A-Z].+\.\n\n!\[.+\]\(.+\)\n\n\| .+\n\| -", file.read()):
                wrong.append("docs/results/%s.md does not open with a sentence, a picture and a table" % name)
    with open(os.path.join(pages, "reference", "commands.md"), encoding="utf-8") as file:
        text = file.read()
    for word in ("\n## train\n", "\n## runs\n", "--minutes M"):
        if word not in text:
            wrong.append("reference/commands.md lacks %r" % word)
    if not os.path.exists(os.path.join(pages, "include", "weft", "weft.h")):
        wrong.append("a file that a page links to is not staged")


def check_gallery(docs, wrong):
    """Every study whose database is kept has its question, a picture that is there and a report that is whole."""
    with open(os.path.join(docs, "gallery.md"), encoding="utf-8") as file:
        text = file.read()
    studies = [path.replace("docs/results/data", "build/results")[:-3] for path in glob.glob("docs/results/data/*.db.xz")]
    if not studies or text.count("\n## ") != len(studies) or "scripts/site puts" in text:
        wrong.append("docs/gallery.md has %d headings, for %d studies" % (text.count("\n## "), len(studies)))
    for path in studies:
        name = os.path.splitext(os.path.basename(path))[0]
        with sqlite3.connect("file:%s?immutable=1" % os.path.abspath(path), uri=True) as db:
            config = db.execute("SELECT config FROM study").fetchone()[0]
        question = re.search(r"(?m)^STUDY_QUESTION=(.+)$", config).group(1)
        shown = re.search(r"## %s\n\n`%s`: \*\*.+\*\*\n\n(?:\w.+\n\n)*\[!\[.+\]\((\S+)\)\]\((\S+)\)\n" % (re.escape(question), name), text)
        if not shown:
            wrong.append("docs/gallery.md does not show %s: %s" % (name, question))
            continue
        for file, end in zip(shown.groups(), ("</svg>", "</html>")):
            with open(os.path.join(docs, file), encoding="utf-8") as made:
                if not made.read().rstrip().endswith(end):
                    wrong.append("docs/%s does not end on %s" % (file, end))
        if sorted(os.listdir(os.path.join(docs, "gallery", name))) != sorted(os.path.basename(f) for f in shown.groups()):
            wrong.append("docs/gallery/%s holds what its page does not show" % name)


def search(site):
    def drive(b, wrong):
        b.open("file://%s/docs/guide/first-finding.html" % site)
        b.value("document.querySelector('[data-md-toggle=search]').click();"
                "document.querySelector('.md-search__input').focus()")
        b.wait("!document.querySelector('.md-search-result__meta').textContent.includes('Initializing')")
        b.call("Input.insertText", text="temperature")
        b.value("document.querySelector('.md-search__input').dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}))")
        b.wait("document.querySelectorAll('.md-search-result__item').length > 3")
        wrong.extend(b.faults())
        wrong.extend("it loads %s" % url for url in b.requests()
                     if not url.startswith(("file:", "data:", "about:", "blob:")))
    return drive


def main():
    weft, folder = sys.argv[1], os.path.abspath(sys.argv[2])
    mkdocs = os.environ.get("MKDOCS") or "build/site-venv/bin/mkdocs"
    real = os.access(mkdocs, os.X_OK)
    if not real:
        mkdocs = os.path.join(folder, "mkdocs")
        with open(mkdocs, "w", encoding="utf-8") as file:
            file.write(STAND_IN)
        os.chmod(mkdocs, 0o755)
    stage, site, wrong = os.path.join(folder, "stage"), os.path.join(folder, "site"), []
    done = subprocess.run(["scripts/site", weft, stage, site, os.path.abspath(mkdocs)], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        wrong.append("scripts/site ended on %d: %s" % (done.returncode, done.stdout[-2000:]))
    else:
        check_stage(os.path.join(stage, "pages"), wrong)
        check_gallery(os.path.join(stage, "pages", "docs"), wrong)
        with open(os.path.join(site, "docs", "index.html"), encoding="utf-8") as file:
            text = file.read()
        if "unpkg.com" in text or "../assets/site.js" not in text:
            wrong.append("the site's pages load a script from elsewhere")
    if wrong:
        print("\n".join(wrong))
        sys.exit(1)
    if real and find_browser():
        judge(folder, search(site))


if __name__ == "__main__":
    main()
