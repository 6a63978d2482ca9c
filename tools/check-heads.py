#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Every source file begins with a sentence that says what it is for.

usage: check-heads.py [TREE]

Fails for a file below src/ in which that comment does not come first, after the licence line and, in
a header, `#pragma once`. A blank line follows it: a comment right above code is about that code.
"""

import re
import sys
from pathlib import Path

HEAD = re.compile(
    r"/\* SPDX-License-Identifier: [^\n]* \*/\n+"
    r"(?:#pragma once\n+)?"
    r"/\* (?P<text>(?:(?!\*/).)*)\*/\n\n",
    re.DOTALL,
)
SENTENCE = re.compile(r"\S.*[.:](\s|$)", re.DOTALL)


def breach(text):
    """What is wrong with the head of a file; None if nothing is."""
    match = HEAD.match(text)
    if match is None:
        return "no comment of its own, with a blank line behind it, says what this file is for"
    if not SENTENCE.match(match["text"]):
        return "the comment at the head is no sentence"
    return None


def main(args):
    tree = Path(args[0]) if args else Path(__file__).resolve().parent.parent
    files = sorted(p for p in (tree / "src").rglob("*") if p.suffix in (".c", ".h"))
    if not files:
        print(f"check-heads: no sources below {tree}", file=sys.stderr)
        return 2
    breaches = 0
    for path in files:
        why = breach(path.read_text(errors="replace"))
        if why is not None:
            print(f"{path.relative_to(tree).as_posix()}:1: {why}")
            breaches += 1
    print(f"heads: {len(files)} files, {breaches} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
