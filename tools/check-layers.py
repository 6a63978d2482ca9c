#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Directories are the layers, and includes point down.

usage: check-layers.py [--graph] [SRC]

A file includes its own module or a lower layer. No two directories include each other, at any level
and over any way. A front includes no other front. `*_internal.h` stays in its module, or its front. A
third party's library is seen by one file or module only. A directory has at most 25 files of a kind.
Prints each breach as FILE:LINE: text; with --graph, the picture of ARCHITECTURE.md instead.
"""

import collections
import re
import sys
from pathlib import Path

# From the bottom to the top. Modules of one layer do not see each other.
LAYERS = [
    ["base"],
    ["loop", "spec", "inside"],
    ["sandbox", "http", "store"],
    ["priv", "fetch"],
    ["backend", "policy", "jobs"],
    ["session", "config"],
    ["command"],
    ["agent"],
    ["front"],
    ["daemon", "cli"],
]
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}
SHARED = "front/common"  # what fronts may include of each other
FILES_MAX = 25

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


def unit(name):
    """What keeps a file's internal headers: its module, or its front."""
    parts = name.split("/")
    return "/".join(parts[:2]) if parts[0] == "front" and len(parts) > 2 else parts[0]


def check_project_include(src, path, name, target):
    """Says what is wrong with `#include "target"` in path, or None; and the header's name from src/ on."""
    if ".." in Path(target).parts:
        return f'"{target}": name the header from src/ on, without ".."', None
    if not (src / target).is_file() and (path.parent / target).is_file():
        target = (path.parent / target).relative_to(src).as_posix()
    module, other = name.split("/")[0], target.split("/")[0]
    if other not in LEVEL:
        return f'"{target}" belongs to no module of the layer list', None
    breach = None
    if other != module and LEVEL[other] >= LEVEL[module]:
        breach = f'{module} may not include {other} ("{target}"): includes point down'
    elif unit(name) == unit(target):
        pass
    elif target.endswith("_internal.h"):
        breach = f'"{target}" is internal to {unit(target)}'
    elif module == other and unit(target) != SHARED:
        breach = f'{unit(name)} may not include {unit(target)} ("{target}"): fronts share {SHARED} only'
    return breach, target


def check_system_include(name, header):
    """Says what is wrong with `#include <header>` in name, or None."""
    if "/" in header and header.split("/")[0] in LEVEL:
        return f"<{header}>: project headers are included with quotes"
    home = third_party_home(header)
    if home and name != home and not (home.endswith("/") and name.startswith(home)):
        return f"<{header}> may be included by {home} only"
    return None


def check_file(src, path, edges):
    name = path.relative_to(src).as_posix()
    if "/" not in name or name.split("/")[0] not in LEVEL:
        return [f"{name}:1: belongs to no module of the layer list"]
    breaches = []
    where = name.rpartition("/")[0]
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match[2]
        # A library's header in quotes is that library's header all the same.
        own = (src / header).exists() or (path.parent / header).exists()
        if match[1] == '"' and (own or not third_party_home(header)):
            breach, target = check_project_include(src, path, name, header)
            if target and target.rpartition("/")[0] != where:
                edges[where].setdefault(target.rpartition("/")[0], f"{name}:{number}")
        else:
            breach = check_system_include(name, header)
        if breach:
            breaches.append(f"{name}:{number}: {breach}")
    return breaches


def reach(edges, start):
    """Directories that `start` includes, over any way."""
    seen, todo = set(), [start]
    while todo:
        for other in edges.get(todo.pop(), ()):
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return seen


def check_cycles(edges):
    below = {d: reach(edges, d) for d in edges}
    return [
        f"{place}: {a} includes {b}, which includes {a}"
        for a in sorted(edges)
        for b, place in sorted(edges[a].items())
        if a < b and a in below.get(b, ())
    ]


def check_crowds(src, files):
    counts = collections.Counter((p.parent.relative_to(src).as_posix(), p.suffix) for p in files)
    return [
        f"{where}: {n} {kind} files, at most {FILES_MAX}"
        for (where, kind), n in sorted(counts.items())
        if n > FILES_MAX
    ]


def draw(src, files, edges):
    """One line per module from the top to the bottom: its parts, and the modules that it includes."""
    parts, includes = collections.defaultdict(set), collections.defaultdict(set)
    for path in files:
        module, *rest = path.parent.relative_to(src).parts
        parts[module] |= {"/".join(rest)} - {""}
    for a, targets in edges.items():
        module = a.split("/")[0]
        includes[module] |= {b.split("/")[0] for b in targets} - {module}
    rule = "─" * 118
    for layer in reversed(LAYERS):
        for module in layer:
            name = " ".join([module + "/", *sorted(parts[module])])
            below = sorted(includes[module], key=lambda m: (-LEVEL[m], m))
            print(f"{name:<64}" + ("─► " + " ".join(below) if below else ""))
        if layer is not LAYERS[0]:
            print(rule)


def main(args):
    graph = "--graph" in args
    args = [a for a in args if a != "--graph"]
    src = Path(args[0]) if args else Path(__file__).resolve().parent.parent / "src"
    files = sorted(p for p in src.rglob("*") if p.suffix in (".c", ".h"))
    if not files:
        print(f"check-layers: no sources below {src}", file=sys.stderr)
        return 2
    edges = collections.defaultdict(dict)
    breaches = [b for path in files for b in check_file(src, path, edges)]
    if graph:
        draw(src, files, edges)
        return 0
    breaches += check_cycles(edges) + check_crowds(src, files)
    for breach in breaches:
        print(breach)
    print(f"layers: {len(files)} files, {len(breaches)} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
