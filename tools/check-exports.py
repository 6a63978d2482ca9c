#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what the headers of src/ export, and fails when a count grows.

usage: check-exports.py [--list] [SRC]

An exported function that no other file calls is dead, or is there for tests alone. One whose only other
caller is a file of its own directory may be a seam that only the length of a file made; one with a single
caller in another directory is the interface between two layers. A struct tag that two files define means
two things. --list prints their names.
"""

import collections
import re
import sys
from pathlib import Path

# No count may grow past these; lower them with the count.
UNUSED_MAX = 7
SINGLE_PERCENT_MAX = 53
SEAM_PERCENT_MAX = 26
TAGS_MAX = 0

COMMENT = re.compile(r"'(?:\\.|[^'\\])'|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"", re.S)
PROTOTYPE = re.compile(r"^(?!static|typedef|extern \"|#)[a-z][\w\s*]*?[\s*](\w+)\((?:[^;{}]*)\)[^;{}]*;", re.M)
TAG = re.compile(r"^(?:static )?(?:const )?struct (\w+) \{", re.M)
CLEANUP = re.compile(r"^DEFINE_CLEANUP(_DONE)?\((\w+)\)", re.M)
WORD = re.compile(r"\b[a-z_]\w+\b")


def plain(path):
    return COMMENT.sub(" ", path.read_text(errors="replace"))


def main(args):
    listing = "--list" in args
    args = [a for a in args if a != "--list"]
    src = Path(args[0]) if args else Path(__file__).resolve().parent.parent / "src"
    text = {p: plain(p) for p in sorted(src.rglob("*.[ch]"))}
    exports = {name for p, t in text.items() if p.suffix == ".h" for name in PROTOTYPE.findall(t)}
    # AUTO() and AUTO_DONE() call these.
    exports -= {n + ("_done" if done else "_free") for t in text.values() for done, n in CLEANUP.findall(t)}
    users, tags = collections.defaultdict(set), collections.defaultdict(set)
    for path, t in text.items():
        for tag in TAG.findall(t):
            tags[tag].add(path)
        if path.suffix == ".c":
            for word in exports.intersection(WORD.findall(t)):
                users[word].add(path)
    # The file that defines a function is one of its users.
    unused = sorted(n for n in exports if len(users[n]) <= 1)
    single = sorted(n for n in exports if len(users[n]) == 2)
    twice = sorted(t for t, where in tags.items() if len(where) > 1)
    seams = [n for n in single if len({p.parent for p in users[n]}) == 1]
    percent, seam_percent = (100 * len(names) // max(len(exports), 1) for names in (single, seams))
    if listing:
        for name in unused:
            print("unused", name)
        for name in single:
            print("seam" if name in seams else "single", name)
        for name in twice:
            print("twice", name, *(p.relative_to(src) for p in sorted(tags[name])))
    print(f"exports: {len(exports)} functions; {len(unused)} that no other file calls, {len(single)} ({percent} %) "
          f"that one does, {len(seams)} ({seam_percent} %) of these from its own directory; "
          f"{len(twice)} struct tags defined twice")
    worse = [what for what, n, most in (("functions that no other file calls", len(unused), UNUSED_MAX),
                                        ("percent that one other file calls", percent, SINGLE_PERCENT_MAX),
                                        ("percent that one other file of the directory calls", seam_percent, SEAM_PERCENT_MAX),
                                        ("struct tags defined twice", len(twice), TAGS_MAX)) if n > most]
    for what in worse:
        print(f"exports: more {what} than before; --list names them")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
