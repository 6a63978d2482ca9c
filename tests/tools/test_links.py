# SPDX-License-Identifier: Apache-2.0
"""Every relative link of every page leads to a file of the tree and, with an anchor, to a heading of it; every page of
docs is reached from its index; every path of docs that a source names is there."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```[^\n]*$", re.S | re.M)
NAMED = re.compile(r"(?<![\w./-])docs/[\w/.-]*\w\.(?:md|json)")
INDEX = ROOT / "docs/README.md"


def tracked(*patterns):
    """Files of the tree that are not ignored, also those that are new."""
    found = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others",
                            "--exclude-standard", "--", *patterns], cwd=ROOT, capture_output=True)
    if found.returncode == 0:
        return sorted({ROOT / name for name in found.stdout.decode().split("\0") if name and (ROOT / name).is_file()})
    return sorted(path for pattern in patterns for path in ROOT.rglob(pattern)  # an archive of the tree, without git
                  if path.is_file() and not path.relative_to(ROOT).parts[0].startswith(("build", ".")))


def pages():
    return [path for path in tracked("*.md") if "corpus" not in path.parts]


def anchor(heading):
    """As GitHub makes it of a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(page):
    seen, found = {}, set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.M):
        name = anchor(heading)
        found.add(f"{name}-{seen[name]}" if name in seen else name)
        seen[name] = seen.get(name, 0) + 1
    return found


def links(page):
    """Relative links: the file and the anchor of each, or None."""
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if not re.match(r"[a-z]+:", target):
            name, _, part = target.partition("#")
            yield target, Path(os.path.normpath(page.parent / name)) if name else page, part


def test_there_are_pages_to_look_at():
    assert len(pages()) > 30 and sum(len(list(links(page))) for page in pages()) > 100


def test_every_link_leads_to_a_file_and_every_anchor_to_a_heading():
    dead = []
    for page in pages():
        for target, file, part in links(page):
            if not file.exists() or part and (file.suffix != ".md" or part not in anchors(file)):
                dead.append(f"{page.relative_to(ROOT)}: {target}")
    assert dead == []


def test_the_index_has_every_page():
    listed = {file for _, file, _ in links(INDEX)}
    assert [str(page.relative_to(ROOT)) for page in pages()
            if ROOT / "docs" in page.parents and page not in listed | {INDEX}] == []


def test_every_page_of_docs_says_first_who_it_is_for():
    wrong = []
    for page in pages():
        if ROOT / "docs" in page.parents:
            first = FENCE.sub("", page.read_text()).split("\n\n")[1]
            if not re.match(r"This page is for \w", first):
                wrong.append(str(page.relative_to(ROOT)))
    assert wrong == []


def test_every_page_that_a_source_names_is_there():
    dead = []
    for path in tracked("src", "tests", "tools", "man", "etc", "systemd", "deploy", "Makefile", "*.md", "meson.build"):
        if "corpus" in path.parts or path.stat().st_size > 1 << 20:
            continue
        for name in NAMED.findall(path.read_text(errors="replace")):
            if not (ROOT / name).exists():
                dead.append(f"{path.relative_to(ROOT)}: {name}")
    assert dead == []


def test_every_source_that_the_architecture_names_is_there():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`([a-z]\w*/[\w/]*\w\.[ch])`", text))
    assert len(named) > 40
    assert sorted(name for name in named if not (ROOT / "src" / name).is_file()) == []


def test_every_word_of_the_glossary_has_a_sentence_and_its_header():
    glossary = (ROOT / "ARCHITECTURE.md").read_text().split("## Glossary\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in glossary.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 20
    assert [row[0] for row in rows if len(row) != 3 or not row[1].endswith(".")
            or not re.fullmatch(r"`[a-z][\w/]+\.h`", row[2])] == []
