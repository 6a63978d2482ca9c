# SPDX-License-Identifier: Apache-2.0
"""make run, with a boxd and a box that only pretend: what it starts, says, and passes on."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / "tools" / "run.py"

BOXD = """#!/usr/bin/python3
import os, signal, socket, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
print("boxd", *sys.argv[1:], flush=True)
if os.environ.get("FAKE_BOXD_STATUS"):
    sys.exit(int(os.environ["FAKE_BOXD_STATUS"]))
path = sys.argv[2] + "/boxd.sock"
s = socket.socket(socket.AF_UNIX)
s.bind(path)
s.listen()
signal.sigwait({signal.SIGTERM, signal.SIGINT})
os.unlink(path)
print("boxd ended", flush=True)
"""
BOX = """#!/bin/sh
echo "box $BOX_HOST $*"
exit "${FAKE_BOX_STATUS:-0}"
"""


@pytest.fixture
def tree(tmp_path):
    """A checkout with nothing in it but the script and two programs."""
    for name, text in (("boxd", BOXD), ("box", BOX)):
        path = tmp_path / "build" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / "tools").mkdir()
    shutil.copy(RUN, tmp_path / "tools" / "run.py")
    (tmp_path / "state").mkdir()
    return tmp_path


@pytest.fixture
def start(tree):
    started = []

    def popen(*args, **env):
        run = subprocess.Popen(
            [sys.executable, str(tree / "tools" / "run.py"), *args],
            env={**os.environ, "BOX_STATE_DIR": str(tree / "state"), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(run)
        return run

    yield popen
    for run in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.communicate()


def read_until(stream, text):
    lines = []
    for line in stream:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"no {text!r} in {lines}")


def test_serves_after_a_first_command_until_interrupted(tree, start):
    run = start("--ws-control-port", "0")
    host = f"unix://{tree}/state/boxd.sock"
    out = read_until(run.stdout, "Ctrl-C stops boxd")
    assert f"boxd --state-dir {tree}/state --ws-control-port 0\n" in out
    assert f"box {host} run -- sh -c id; echo hello from a sandbox\n" in out
    assert f"export BOX_HOST={host}\n" in out
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does
    rest, err = run.communicate(timeout=30)
    assert (run.returncode, rest, err) == (0, "boxd ended\n", "")


def test_uses_the_boxd_that_is_serving_already(start):
    first = start()
    read_until(first.stdout, "Ctrl-C stops boxd")
    out, err = start().communicate(timeout=30)
    assert "is serving on" in out and "already" in out
    assert "box unix://" in out and "boxd --state-dir" not in out and err == ""
    assert first.poll() is None
    first.terminate()
    assert first.wait(timeout=30) == 0


def test_failed_first_command_stops_boxd_and_is_the_status(start):
    run = start(FAKE_BOX_STATUS="125")
    out, err = run.communicate(timeout=30)
    assert run.returncode == 125
    assert "boxd ended" in out and "failed with status 125" in err


def test_boxd_that_cannot_start_is_the_status(start):
    run = start(FAKE_BOXD_STATUS="3")
    out, _ = run.communicate(timeout=30)
    assert run.returncode == 3
    assert "run --" not in out
