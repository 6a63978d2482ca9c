#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Includes point down the layer list.

usage: check-layers.py [SRC]

A file includes only lower layers or its own module, `*_internal.h` never leaves its module, and a
third party's library is seen by one file or module only. Prints each breach as FILE:LINE: text.
"""

import re
import sys
from pathlib import Path

# From the bottom to the top. Modules of one layer do not see each other.
LAYERS = [
    {"util"},
    {"spec", "io", "sandbox", "files"},
    {"http", "store", "priv", "fetch"},
    {"backend"},
    {"core"},
    {"rpc"},
    {"mcp"},
    {"cmd"},
]
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}

# <header> (or <directory/>) -> the one file, or the one module, that may include it.
THIRD_PARTY = {
    "jansson.h": "base/json.c",
    "seccomp.h": "sandbox/seccomp/seccomp.c",
    "sqlite3.h": "store/",
    "openssl/": "http/",
    "curl/": "fetch/",
    "archive.h": "fetch/",
    "archive_entry.h": "fetch/",
    "zip.h": "fetch/",
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def third_party_home(header):
    for pattern, home in THIRD_PARTY.items():
        if header == pattern or (pattern.endswith("/") and header.startswith(pattern)):
            return home
    return None


def check_project_include(src, path, module, target):
    """Says what is wrong with `#include "target"` in path, or None."""
    if ".." in Path(target).parts:
        return f'"{target}": name the header from src/ on, without ".."'
    if not (src / target).is_file() and (path.parent / target).is_file():
        target = (path.parent / target).relative_to(src).as_posix()
    other = target.split("/")[0]
    if other == module:
        return None
    if other not in LEVEL:
        return f'"{target}" belongs to no module of the layer list'
    if target.endswith("_internal.h"):
        return f'"{target}" is internal to {other}'
    if LEVEL[other] >= LEVEL[module]:
        return f'{module} may not include {other} ("{target}"): includes point down'
    return None


def check_system_include(name, module, header):
    """Says what is wrong with `#include <header>` in name, or None."""
    if "/" in header and header.split("/")[0] in LEVEL:
        return f"<{header}>: project headers are included with quotes"
    home = third_party_home(header)
    if home and name != home and not (home.endswith("/") and home == module + "/"):
        return f"<{header}> may be included by {home} only"
    return None


def check_file(src, path):
    name = path.relative_to(src).as_posix()
    module = name.split("/")[0]
    if "/" not in name or module not in LEVEL:
        return [f"{name}:1: belongs to no module of the layer list"]
    breaches = []
    lines = path.read_text(errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        if match[1] == '"':
            # A library's header in quotes is that library's header all the same.
            breach = (
                check_system_include(name, module, match[2])
                if third_party_home(match[2])
                and not (src / match[2]).exists()
                and not (path.parent / match[2]).exists()
                else check_project_include(src, path, module, match[2])
            )
        else:
            breach = check_system_include(name, module, match[2])
        if breach:
            breaches.append(f"{name}:{number}: {breach}")
    return breaches


def main(args):
    src = Path(args[0]) if args else Path(__file__).resolve().parent.parent / "src"
    files = sorted(p for p in src.rglob("*") if p.suffix in (".c", ".h"))
    if not files:
        print(f"check-layers: no sources below {src}", file=sys.stderr)
        return 2
    breaches = [b for path in files for b in check_file(src, path)]
    for breach in breaches:
        print(breach)
    print(f"layers: {len(files)} files, {len(breaches)} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
