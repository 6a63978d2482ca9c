# SPDX-License-Identifier: Apache-2.0
"""The check of heads wants a sentence about the file, and takes no other comment for it."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[2] / "tools" / "check-heads.py"
LICENCE = "/* SPDX-License-Identifier: Apache-2.0 */\n"


def run(tmp_path, name, text):
    path = tmp_path / "src" / "base" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, str(CHECK), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.c", LICENCE + "\n/* Adds numbers. */\n\n#include <stdio.h>\n"),
        ("a.c", LICENCE + "\n/* Adds numbers, in an order\n * that is fixed. */\n\nint x;\n"),
        ("a.c", LICENCE + "\n/* The grammar:\n *\n *   sum := number\n */\n\nint x;\n"),
        ("a.h", LICENCE + "#pragma once\n\n/* Adds numbers. */\n\nint add(int a, int b);\n"),
    ],
)
def test_sentence_passes(tmp_path, name, text):
    assert run(tmp_path, name, text) == (0, ["heads: 1 files, 0 breaches"])


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.c", LICENCE + "#include <stdio.h>\n"),
        ("a.c", LICENCE + "#include <stdio.h>\n\n/* Adds numbers. */\n\nint x;\n"),
        ("a.c", LICENCE + "\n/* clang-format off */\n\nint x;\n"),
        ("a.h", LICENCE + "#pragma once\n\n/* Adds two numbers. */\nint add(int a, int b);\n"),
        ("a.h", LICENCE + "#pragma once\n\n#include <stdio.h>\n\n/* Adds numbers. */\n\nint x;\n"),
    ],
)
def test_file_without_a_sentence_is_named(tmp_path, name, text):
    status, lines = run(tmp_path, name, text)
    assert status == 1
    assert lines[0].startswith(f"src/base/{name}:1: ")


def test_empty_tree_is_an_error(tmp_path):
    assert run(tmp_path, "a.txt", "")[0] == 2
