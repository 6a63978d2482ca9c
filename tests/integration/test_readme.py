# SPDX-License-Identifier: Apache-2.0
"""Every command of README is run as it stands there, and does what README says of it. `make run` and `make test` are not
run from here: tests/tools/test_run.py has the first, and the second runs this test."""

import subprocess

import pytest
from boxlib import ROOT
from pagelib import Reader, blocks

FIRST, FIVE_MINUTES = [text.strip("\n").split("\n") for mark, text in blocks("README.md") if mark == "sh"]


@pytest.fixture
def reader(boxd):
    someone = Reader(boxd)
    (someone.top / "file-of-the-host").touch()
    yield someone
    someone.close()


def test_readme_begins_with_the_two_commands():
    assert [line.split("  ")[0] for line in FIRST] == ["make run", "make test"]
    assert {mark for mark, _ in blocks("README.md")} == {"sh", ""}, "what is typed is marked, and the picture is not"
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90, "README fits on two screens"
    for line in FIRST:  # shown and not done: neither installs nor builds
        plan = subprocess.run(["make", "-n", *line.split("#")[0].split()[1:]], cwd=ROOT, capture_output=True, text=True)
        assert plan.returncode == 0 and "tools/" in plan.stdout, plan


@pytest.mark.rootless
def test_the_lines_of_the_first_five_minutes(boxd, reader):
    lines = [line for line in FIVE_MINUTES if line]
    done = dict(zip(lines, reader.type(lines)))
    assert len(done) >= 11

    def result(words):
        (line,) = [line for line in lines if words in line]
        return done[line]

    assert result("export PATH").status == 0
    assert result("exit 3").status == 3 and result("exit 3").out.endswith("hi\n")
    assert result("6 * 7") == (0, "42\n")
    assert result("echo kept") == (0, "") and result("cat note") == (0, "kept\n")
    assert "work" in result("box ps").out and result("box rm work").status == 0
    assert result("curl").status == 6, result("curl")  # no name is resolved, and no packet leaves the machine
    assert result("--mount") == (0, "build\nfile-of-the-host\n")
    assert "backend-native" in result("box doctor  ").out
    assert result("--attack").status == 0, result("--attack")
    assert boxd.client().ps() == []


@pytest.mark.rootless
def test_the_fork_bomb_is_one_and_is_contained(boxd, reader):
    (bomb,) = [line for line in FIVE_MINUTES if "--pids" in line]
    _, done, after = reader.type([FIVE_MINUTES[0], bomb, "box run -- echo still here"])
    # It forks until it cannot: not an error of its spelling, and no end by the clock.
    assert "fork" in done.out and "yntax" not in done.out, done
    assert done.status not in (0, 125), done
    assert boxd.client().ps() == []
    assert after.out == "still here\n"
