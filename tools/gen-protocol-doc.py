#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps the generated sections of docs/protocol.md in step with the tables in the source.

usage: gen-protocol-doc.py [--check] GENERATOR FILE

A section stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->` and is replaced by what
`GENERATOR NAME` prints. With --check nothing is written: exit status 1 and a diff when stale.
"""

import difflib
import re
import subprocess
import sys
from pathlib import Path

SECTION = re.compile(
    r"^(<!-- generated: (?P<name>[a-z-]+) -->\n).*?^(<!-- end: (?P=name) -->)$", re.S | re.M
)


def regenerate(generator, text):
    """The text with every section made anew."""

    def section(match):
        made = subprocess.run(
            [generator, match["name"]], check=True, stdout=subprocess.PIPE, encoding="utf-8"
        ).stdout
        return f"{match[1]}\n{made.strip()}\n\n{match[3]}"

    new, count = SECTION.subn(section, text)
    if count == 0 or count != text.count("<!-- generated: "):
        sys.exit("no generated section, or a marker without its end")
    return new


def main(args):
    check = args[:1] == ["--check"]
    if check:
        args = args[1:]
    if len(args) != 2:
        sys.exit(__doc__)
    generator, path = args[0], Path(args[1])
    old = path.read_text(encoding="utf-8")
    new = regenerate(generator, old)
    if not check:
        path.write_text(new, encoding="utf-8")
    elif new != old:
        sys.stdout.writelines(
            difflib.unified_diff(
                old.splitlines(True), new.splitlines(True), "committed", "from the tables"
            )
        )
        sys.exit(f"{path.name} is stale: run `ninja -C build protocol-doc`")


if __name__ == "__main__":
    main(sys.argv[1:])
