#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps docs/api/openapi.json in step with the tables in the source.

usage: gen-openapi.py [--check] GENERATOR FILE

FILE is what GENERATOR prints, indented for people. With --check nothing is written: exit status 1 when it is stale.
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
    if len(args) != 2:
        sys.exit(__doc__)
    made = subprocess.run([args[0]], check=True, stdout=subprocess.PIPE).stdout
    text = json.dumps(json.loads(made, object_pairs_hook=unique), indent=1, ensure_ascii=False) + "\n"
    path = Path(args[1])
    if not check:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != text:
        sys.exit(f"{path.name} is stale: run `ninja -C build openapi`")


if __name__ == "__main__":
    main(sys.argv[1:])
