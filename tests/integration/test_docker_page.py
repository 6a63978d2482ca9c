# SPDX-License-Identifier: Apache-2.0
"""Every Box command of docs/reference/docker.md is run as it stands there, in the order of the page. What is for a
terminal gets one."""

import os
import pty
import re
import select
import subprocess

import pytest
from boxlib import ROOT
from hostlib import SCALE
from pagelib import Reader

PAGE = "docs/reference/docker.md"
ROWS = re.findall(r"^\| `((?:timeout \d+ )?docker [^`]*)` \| `(box [^`]*)` \|", (ROOT / PAGE).read_text(), re.M)
COMMANDS = [ours for _, ours in ROWS]


@pytest.fixture
def reader(boxd):
    someone = Reader(boxd)
    (someone.top / "report.txt").write_text("report\n")
    (someone.top / "vars").write_text("# of the page\nB=2\n")
    someone.env["PATH"] = f"{someone.top}/build:{someone.env['PATH']}"
    yield someone
    someone.close()


def on_terminal(command, reader):
    """Types `exit` when the shell inside has written something."""
    master, slave = pty.openpty()
    p = subprocess.Popen(["sh", "-c", command], cwd=reader.top, env=reader.env, stdin=slave, stdout=slave, stderr=slave,
                         start_new_session=True)
    os.close(slave)
    try:
        assert select.select([master], [], [], 60 * SCALE)[0], "no prompt"
        os.write(master, b"exit\n")
        assert p.wait(timeout=60 * SCALE) == 0, command
    finally:
        p.kill()
        p.wait()
        os.close(master)


def as_stream(command, reader, api):
    """Until its first line."""
    p = subprocess.Popen(["sh", "-c", f"exec {command}"], cwd=reader.top, env=reader.env, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, text=True)
    try:
        while not select.select([p.stdout], [], [], 0.2)[0]:
            api.sh("work", "true")
        return p.stdout.readline()
    finally:
        p.terminate()
        p.communicate()


def plainly(command, reader):
    done = subprocess.run(["sh", "-c", command], cwd=reader.top, env=reader.env, stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, timeout=120 * SCALE)
    # `box doctor` tells with 1 that this host lacks something.
    assert done.returncode == 0 or (command == "box doctor" and done.returncode == 1), (command, done)
    return done.stdout


def test_the_page_has_a_command_for_each_habit():
    assert len(ROWS) >= 24 and len(set(COMMANDS)) == len(COMMANDS)
    verbs = {ours.split()[1] for ours in COMMANDS}
    assert verbs >= {"run", "exec", "ps", "inspect", "cp", "events", "rm", "doctor"}
    # No Box command of the table escapes the pattern above.
    assert len(re.findall(r"^\|[^|]*\| `box ", (ROOT / PAGE).read_text(), re.M)) == len(ROWS)


def test_every_command_of_the_page_does_what_it_says(boxd, reader):
    api = boxd.client()
    said = {}
    for command in COMMANDS:
        if re.search(r" -it ", command):
            on_terminal(command, reader)
        elif command == "box events":
            said[command] = as_stream(command, reader, api)
        else:
            said[command] = plainly(command, reader)
    assert said["box run echo hi"] == "hi\n"
    assert said["box exec work cat note"] == "kept\n" and (reader.top / "copy").read_text() == "kept\n"
    assert "A=1\n" in said["box run -e A=1 -e HOME env"] and "B=2\n" in said["box run --env-file vars env"]
    assert "report.txt" in said['box run -v "$PWD":/src:ro -w /src ls']
    assert said["box ps -q"] == said["box ps --format '{{.Names}}'"] == "work\n"
    assert " work " in said["box events"]
    assert api.ps() == [], "the page leaves nothing behind"
