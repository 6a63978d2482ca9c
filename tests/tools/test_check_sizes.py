# SPDX-License-Identifier: Apache-2.0
"""The size check counts files and functions as their readers do."""

import subprocess
import sys
from pathlib import Path

CHECK = Path(__file__).resolve().parents[2] / "tools" / "check-sizes.py"


def run(tmp_path, name, text):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, str(CHECK), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    return done.returncode, done.stdout.splitlines()


def c_function(body_lines):
    return "static int walk(int a,\n                int b)\n{\n" + "    a++;\n" * body_lines + "}\n"


def test_limits_themselves_pass(tmp_path):
    assert run(tmp_path, "src/util/a.c", c_function(80))[0] == 0
    assert run(tmp_path, "src/util/a.c", "\n" * 800)[0] == 0


def test_long_function_is_named(tmp_path):
    status, lines = run(tmp_path, "src/util/a.c", "int x;\n\n" + c_function(81))
    assert status == 1
    assert lines[0] == "src/util/a.c:5: walk() has 81 lines, at most 80"


def test_long_table_is_not_a_function(tmp_path):
    table = "static const int t[] = {\n" + "    1,\n" * 200 + "};\n"
    assert run(tmp_path, "src/util/a.c", table)[0] == 0


def test_long_file_fails(tmp_path):
    status, lines = run(tmp_path, "src/util/a.h", "\n" * 801)
    assert status == 1
    assert lines[0] == "src/util/a.h:1: 801 lines, at most 800"


def test_long_python_function_fails(tmp_path):
    status, lines = run(tmp_path, "tests/a.py", "def walk():\n" + "    pass\n" * 81)
    assert status == 1
    assert "walk() has 81 lines" in lines[0]
