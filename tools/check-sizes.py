#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Files and functions stay readable in one go.

usage: check-sizes.py [TREE]

Fails for a file above 800 lines or a function whose body is above 80, in C and in Python. Relies on
the formatter for C: only a function body opens with a brace alone in the first column.
"""

import ast
import re
import sys
from pathlib import Path

FILE_MAX = 800
FUNCTION_MAX = 80
PLACES = ("src", "tests", "tools")
NAME = re.compile(r"(\w+)\s*\(")


def c_functions(lines):
    """Yields (name, first line, body lines)."""
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            yield c_name(lines, start), start, number - start - 1
            start = None


def c_name(lines, start):
    """The name before the parameter list that ends above the opening brace."""
    first = start - 1
    while first > 0 and lines[first - 1] and lines[first - 1][0] not in "}#":
        first -= 1
    match = NAME.search(" ".join(lines[first : start - 1]))
    return match[1] if match else "?"


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno - node.lineno


def check_file(path, name):
    text = path.read_text(errors="replace")
    lines = text.splitlines()
    if len(lines) > FILE_MAX:
        yield f"{name}:1: {len(lines)} lines, at most {FILE_MAX}"
    functions = python_functions(text) if path.suffix == ".py" else c_functions(lines)
    for function, line, length in functions:
        if length > FUNCTION_MAX:
            yield f"{name}:{line}: {function}() has {length} lines, at most {FUNCTION_MAX}"


def main(args):
    tree = Path(args[0]) if args else Path(__file__).resolve().parent.parent
    files = sorted(
        p for place in PLACES for p in (tree / place).rglob("*") if p.suffix in (".c", ".h", ".py")
    )
    if not files:
        print(f"check-sizes: no sources below {tree}", file=sys.stderr)
        return 2
    breaches = [b for p in files for b in check_file(p, p.relative_to(tree).as_posix())]
    for breach in breaches:
        print(breach)
    print(f"sizes: {len(files)} files, {len(breaches)} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
