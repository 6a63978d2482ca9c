#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes files of the tree as arrays of C, for programs that print or serve them.

usage: embed.py OUTPUT NAME=FILE...

OUTPUT defines `const unsigned char NAME[]` and `const size_t NAME_len` for each FILE, without a NUL at the end. JSON is
embedded without the blanks that indent it, and with one newline at its end.
"""

import json
import sys
from pathlib import Path


def read(path):
    data = path.read_bytes()
    if path.suffix == ".json":
        data = json.dumps(json.loads(data), separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    return data


def main(args):
    if len(args) < 2:
        sys.exit(__doc__)
    out = ["#include <stddef.h>"]
    for name, _, file in (arg.partition("=") for arg in args[1:]):
        data = read(Path(file))
        out += [f"extern const unsigned char {name}[];", f"extern const size_t {name}_len;",
                f"const size_t {name}_len = {len(data)};", f"const unsigned char {name}[{len(data)}] = {{"]
        out += [",".join(map(str, data[i:i + 32])) + "," for i in range(0, len(data), 32)] + ["};"]
    Path(args[0]).write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
