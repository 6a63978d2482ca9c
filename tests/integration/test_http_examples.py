# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/reference/http.md are run, in order, in one shell, and come out as they are shown."""

import re
import shlex
import subprocess

import pytest
from boxlib import ROOT, Boxd

END = "--- end of an example ---"


def examples():
    """(command, what is shown)"""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", (ROOT / "docs/reference/http.md").read_text(), re.S | re.M):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            lines = part.split("\n")
            n = 1
            while lines[:n] and shell_open("\n".join(lines[:n])):
                n += 1
            found.append(("\n".join(lines[:n]), "\n".join(lines[n:])))
    return found


def shell_open(text):
    """Whether a quote is still open."""
    try:
        shlex.split(text, comments=False)
    except ValueError:
        return True
    return False


def pattern(shown):
    """What is shown, with … for anything."""
    parts = [re.escape(p) for p in shown.strip("\n").split("…")]
    return re.compile(".*".join(parts), re.S)


@pytest.fixture(scope="module")
def shell():
    daemon = Boxd()
    process = subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True)
    process.stdin.write(f'SOCK={daemon.sock}\nbox() {{ curl -sS --unix-socket "$SOCK" "$@"; }}\n')

    def run(command):
        for name in ("answer", "events"):
            command = command.replace(f"/tmp/{name}", f"{daemon.state}/{name}")
        process.stdin.write(command + f"\necho; echo '{END}'\n")
        process.stdin.flush()
        lines = []
        for line in process.stdout:
            if line.rstrip("\n") == END:
                return "".join(lines)
            lines.append(line)
        raise AssertionError("the shell has ended:\n" + "".join(lines))

    yield run
    process.stdin.close()
    process.wait(60)
    daemon.close()


def test_there_are_examples_for_every_part_of_the_page():
    text = (ROOT / "docs/reference/http.md").read_text()
    assert len(examples()) > 40
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        assert "```console" in section, section.split("\n")[0]


def test_the_examples_of_the_page_come_out_as_shown(shell):
    for command, shown in examples():
        got = shell(command).replace("\r\n", "\n").strip("\n")
        if shown.strip("\n") == "":
            assert got == "", (command, got)
        else:
            assert pattern(shown).fullmatch(got), f"\n$ {command}\n{got}\n--- shown:\n{shown}"
