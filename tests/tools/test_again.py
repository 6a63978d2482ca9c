# SPDX-License-Identifier: Apache-2.0
"""A test that fails twice fails; one that fails once is named; a wall has no second chance."""

import subprocess
import sys
from pathlib import Path

import pytest

AGAIN = Path(__file__).resolve().parents[2] / "tools" / "again.py"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
ONCE = ("import pathlib\ndef test_{0}():\n    p = pathlib.Path('{0}')\n"
        "    if not p.exists():\n        p.touch()\n        assert 0\n")
TWICE = "def test_{0}():\n    assert 0\n"


@pytest.fixture
def tree(tmp_path):
    def run(**files):
        for name, text in files.items():
            path = tmp_path / "tests" / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".py").write_text(text)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        subprocess.run([*PYTEST, "tests", "--junit-xml=r.xml"], cwd=tmp_path, stdout=subprocess.DEVNULL)
        done = subprocess.run([sys.executable, str(AGAIN), "r.xml", *PYTEST], cwd=tmp_path, text=True,
                              stdout=subprocess.PIPE)
        report = (tmp_path / "r.xml").read_text()
        return done.returncode, done.stdout.count("UNSTABLE"), report.count("<failure") + report.count("<error")

    return run


def test_a_test_that_fails_once_is_named_and_passes(tree):
    assert tree(test_a=ONCE.format("a") + "def test_ok():\n    pass\n") == (0, 1, 0)


def test_a_test_that_fails_twice_fails(tree):
    assert tree(test_a=TWICE.format("a"), sub__test_b=ONCE.format("b")) == (1, 1, 1)


def test_a_wall_has_no_second_chance(tree):
    assert tree(escape__test_a=ONCE.format("a")) == (1, 0, 1)


def test_many_failures_are_no_accident(tree):
    assert tree(test_a="".join(ONCE.format(c) for c in "abcd")) == (1, 0, 4)


def test_an_end_that_fails_is_a_failure_too(tree):
    end = ("import pathlib, pytest\n@pytest.fixture\ndef f():\n    yield\n    p = pathlib.Path('x')\n"
           "    if not p.exists():\n        p.touch()\n        assert 0\ndef test_a(f):\n    pass\n")
    assert tree(test_a=end) == (0, 1, 0)
