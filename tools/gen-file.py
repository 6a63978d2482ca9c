#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps a committed file in step with the tables in the source that it is made from.

usage: gen-file.py [--check] TARGET FILE GENERATOR [ARG...]

FILE is what GENERATOR prints; JSON is indented for people. With --check nothing is written: exit status 1 when FILE
is stale; `ninja TARGET` writes it.
"""

import json
import subprocess
import sys
from pathlib import Path


def unique(pairs):
    names = [name for name, _ in pairs]
    if len(names) != len(set(names)):
        sys.exit(f"a name stands twice in one object: {sorted(n for n in set(names) if names.count(n) > 1)}")
    return dict(pairs)


def main(args):
    check = args[:1] == ["--check"]
    if check:
        args = args[1:]
    if len(args) < 3:
        sys.exit(__doc__)
    target, path = args[0], Path(args[1])
    text = subprocess.run(args[2:], check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    if path.suffix == ".json":
        text = json.dumps(json.loads(text, object_pairs_hook=unique), indent=1, ensure_ascii=False) + "\n"
    if not check:
        path.write_text(text, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != text:
        sys.exit(f"{path.name} is stale: run `ninja -C build {target}`")


if __name__ == "__main__":
    main(sys.argv[1:])
