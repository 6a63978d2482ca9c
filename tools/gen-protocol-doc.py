#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps the generated sections of documents in step with the tables in the source.

usage: gen-protocol-doc.py [--check] TARGET GENERATOR FILE...

A section stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->` (in a manual `.\\"` stands
for the brackets, in YAML `#`) and is replaced by what `GENERATOR NAME` prints. With --check nothing
is written: exit status 1 and a diff when stale; `ninja TARGET` writes it.
"""

import difflib
import re
import subprocess
import sys
from pathlib import Path

SECTION = re.compile(
    r'^((?P<mark><!--|\.\\"|#) generated: (?P<name>[a-z-]+)(?: -->)?\n).*?^((?P=mark) end: (?P=name)(?: -->)?)$',
    re.S | re.M,
)


def regenerate(generator, text):
    """The text with every section made anew."""

    def section(match):
        made = subprocess.run(
            [generator, match["name"]], check=True, stdout=subprocess.PIPE, encoding="utf-8"
        ).stdout
        blank = "\n" if match["mark"] == "<!--" else ""
        return f"{match[1]}{blank}{made.strip()}\n{blank}{match[4]}"

    new, count = SECTION.subn(section, text)
    if count == 0 or count != text.count(" generated: "):
        sys.exit("no generated section, or a marker without its end")
    return new


def main(args):
    check = args[:1] == ["--check"]
    if check:
        args = args[1:]
    if len(args) < 3:
        sys.exit(__doc__)
    target, generator, stale = args[0], args[1], []
    for path in map(Path, args[2:]):
        old = path.read_text(encoding="utf-8")
        new = regenerate(generator, old)
        if not check:
            path.write_text(new, encoding="utf-8")
        elif new != old:
            stale.append(path.name)
            sys.stdout.writelines(
                difflib.unified_diff(
                    old.splitlines(True), new.splitlines(True), "committed", "from the tables"
                )
            )
    if stale:
        sys.exit(f"{', '.join(stale)}: stale; run `ninja -C build {target}`")


if __name__ == "__main__":
    main(sys.argv[1:])
