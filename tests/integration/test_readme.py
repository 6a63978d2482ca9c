# SPDX-License-Identifier: Apache-2.0
"""The first lines that anybody types do what README says of them."""

import os
import re
import shutil
import subprocess

import pytest
from boxlib import BUILD, ROOT
from hostlib import SCALE, mount_dir


def five_minutes():
    """Lines of the second block of that chapter, without their comments, by their first words."""
    chapter = (ROOT / "README.md").read_text().split("## Five minutes")[1].split("\n## ")[0]
    block = re.findall(r"```\n(.*?)```", chapter, re.S)[0]
    return [re.sub(r"\s+# .*", "", line) for line in block.splitlines() if line.startswith("box ")]


@pytest.fixture
def shell(boxd):
    where = mount_dir("box-readme-")  # a directory that may be mounted, as README's reader stands in
    env = {**os.environ, "BOX_HOST": f"unix://{boxd.sock}", "PATH": f"{BUILD}:{os.environ['PATH']}"}

    def run(line):
        return subprocess.run(["sh", "-c", line], env=env, cwd=where, capture_output=True, text=True,
                              timeout=120 * SCALE)

    (where / "file-of-the-host").touch()
    yield run
    shutil.rmtree(where)


@pytest.mark.rootless
def test_the_lines_of_the_first_five_minutes(shell):
    lines = [line for line in five_minutes() if "https://" not in line]  # no packet leaves the machine
    assert len(lines) >= 9
    done = {line: shell(line) for line in lines}

    def result(words):
        (line,) = [line for line in lines if words in line]
        return done[line].returncode, done[line].stdout, done[line].stderr

    assert result("exit 3")[0] == 3 and result("exit 3")[1].endswith("hi\n")
    assert result("6 * 7")[:2] == (0, "42\n")
    assert result("echo kept")[0] == 0 and result("cat note")[:2] == (0, "kept\n")
    assert "work" in result("box ps")[1] and result("box rm work")[0] == 0
    assert result("--mount")[:2] == (0, "file-of-the-host\n")
    assert result("box doctor")[1]


@pytest.mark.rootless
def test_the_fork_bomb_is_one_and_is_contained(boxd, shell):
    (line,) = [line for line in five_minutes() if "--pids" in line]
    done = shell(line)
    # It forks until it cannot: not an error of its spelling, and no end by the clock.
    assert "fork" in done.stderr and "yntax" not in done.stderr, done.stderr
    assert done.returncode not in (0, 125), done
    assert boxd.client().ps() == []
    assert shell("box run -- echo still here").stdout == "still here\n"
