# SPDX-License-Identifier: Apache-2.0
"""The check of duplicates finds equal blocks of six lines, and counts neither includes nor comments."""

import subprocess
import sys
from pathlib import Path

CHECK = Path(__file__).resolve().parents[2] / "tools" / "check-duplicates.py"
BODY = [f"call({i});" for i in range(6)]


def run(tmp_path, **files):
    for name, lines in files.items():
        (tmp_path / f"{name}.c").write_text("\n".join(lines) + "\n")
    done = subprocess.run([sys.executable, str(CHECK), "--list", str(tmp_path)], stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines()


def test_a_block_is_named_with_both_places(tmp_path):
    indented = ["int b;", *("    " + line for line in BODY), "done();"]
    assert run(tmp_path, a=BODY, b=indented)[:2] == ["6 a.c:1 b.c:2", "duplicates: 1 blocks of 6 or more lines, 6 lines"]


def test_a_longer_block_is_one(tmp_path):
    longer = [*BODY, "call(6);", "call(7);"]
    assert run(tmp_path, a=longer, b=longer)[:2] == ["8 a.c:1 b.c:1", "duplicates: 1 blocks of 6 or more lines, 8 lines"]


def test_a_block_twice_in_one_file_is_found(tmp_path):
    assert run(tmp_path, a=[*BODY, "other();", *BODY])[0] == "6 a.c:1 a.c:8"


def test_lines_that_do_not_count(tmp_path):
    noise = ["/* one", "   two */", "", "{", "}", '#include "x.h"', "#pragma once", "};"]
    assert run(tmp_path, a=[*BODY[:5], *noise], b=[*BODY[:5], *noise])[0].startswith("duplicates: 0 blocks")
    assert run(tmp_path, a=[*BODY[:3], *noise, *BODY[3:]], b=BODY)[0] == "6 a.c:1 b.c:1"


def test_rows_of_one_kind_do_not_repeat_themselves(tmp_path):
    """A run of equal lines is no block that stands in two places until it is twice as long."""
    assert run(tmp_path, a=["same();"] * 9)[0].startswith("duplicates: 0 blocks")
