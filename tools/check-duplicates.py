#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Counts blocks of lines that src/ holds twice, and fails when the count grows.

usage: check-duplicates.py [--list] [SRC]

A block is six or more consecutive lines that stand in two places. Comments, blank lines, includes and lines
of braces alone do not count; neither does indentation. --list prints the places, the longest block first.
"""

import re
import sys
from pathlib import Path

# The count may not grow past this; lower it with the count.
BLOCKS_MAX = 0
LINES = 6

COMMENT = re.compile(r"'(?:\\.|[^'\\])'|\"(?:\\.|[^\"\\])*\"|/\*.*?\*/", re.S)
SKIPPED = re.compile(r"[{}();,\s]*$|#\s*(include|pragma)\b")


def blank_comment(match):
    return "\n" * match[0].count("\n") if match[0].startswith("/*") else match[0]


def lines_of(path):
    """[(number, line)] of what counts, without the blanks that only format it."""
    text = COMMENT.sub(blank_comment, path.read_text(errors="replace"))
    return [(n, " ".join(line.split())) for n, line in enumerate(text.split("\n"), 1) if not SKIPPED.match(line.strip())]


def find_blocks(files):
    """[[lines, (path, index), (path, index)]], the longest first: each block is compared with its first place."""
    first, blocks, growing = {}, [], {}
    for path, lines in files.items():
        for i in range(len(lines) - LINES + 1):
            there, at = first.setdefault(tuple(line for _, line in lines[i:i + LINES]), (path, i))
            if there == path and i - at < LINES:
                continue
            pair = (path, there, i - at)
            if pair in growing and growing[pair][2][1] + growing[pair][0] - LINES + 1 == i:
                growing[pair][0] += 1
            else:
                growing[pair] = [LINES, (there, at), (path, i)]
                blocks.append(growing[pair])
    return sorted(blocks, key=lambda block: -block[0])


def main(args):
    listing = "--list" in args
    args = [a for a in args if a != "--list"]
    src = Path(args[0]) if args else Path(__file__).resolve().parent.parent / "src"
    files = {p: lines_of(p) for p in sorted(src.rglob("*.[ch]"))}
    blocks = find_blocks(files)
    if listing:
        for length, *places in blocks:
            print(length, *(f"{p.relative_to(src)}:{files[p][i][0]}" for p, i in places))
    print(f"duplicates: {len(blocks)} blocks of {LINES} or more lines, {sum(b[0] for b in blocks)} lines")
    if len(blocks) > BLOCKS_MAX:
        print("duplicates: more blocks than before; --list names them")
    return 1 if len(blocks) > BLOCKS_MAX else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
