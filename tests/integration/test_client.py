# SPDX-License-Identifier: Apache-2.0
"""The client that is ours is `box`: it finds a boxd or starts one of its own, asks, and puts away what it started. Rows
T01 to T04, which upstream's service says of its connector, are what `box` does with a boxd of its own."""

import http.server
import json
import os
import pathlib
import shlex
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading

import pytest
from boxlib import BUILD
from hostlib import alive, until

# Stands in for boxd: writes down when it is started, each signal it gets, and its end.
STAND_IN = """#!{python}
import os, signal, subprocess, sys
def note(text):
    with open({log!r}, "a") as log:
        log.write(text + "\\n")
ready = int(sys.argv[sys.argv.index("--ready-fd") + 1]) if "--ready-fd" in sys.argv else None
child = subprocess.Popen([{boxd!r}, *sys.argv[1:]], pass_fds=[ready] if ready is not None else [])
note(f"start {{child.pid}}")
def forward(signo, frame):
    note(f"signal {{signo}}")
    child.send_signal(signo)
for signo in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(signo, forward)
if ready is not None:
    os.close(ready)
while True:
    try:
        status = child.wait()
        break
    except InterruptedError:
        pass
note("end")
sys.exit(status)
"""


class Alone:
    """A place where no boxd listens, with a `box` whose boxd is watched."""

    def __init__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="box-client-", dir="/tmp"))
        self.path.chmod(0o755)
        for name in ("bin", "tmp", "runtime", "state"):
            (self.path / name).mkdir()
            (self.path / name).chmod(0o755)
        self.log = self.path / "log"
        (self.path / "bin/box").write_bytes((BUILD / "box").read_bytes())
        stand_in = self.path / "bin/boxd"
        stand_in.write_text(STAND_IN.format(python=sys.executable, log=str(self.log), boxd=str(BUILD / "boxd")))
        for name in ("box", "boxd"):
            (self.path / "bin" / name).chmod(0o755)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("BOX_")}
        self.env.update(TMPDIR=str(self.path / "tmp"), XDG_RUNTIME_DIR=str(self.path / "runtime"),
                        XDG_STATE_HOME=str(self.path / "state"))

    def start(self, *args):
        command = [str(self.path / "bin/box"), *args]
        if os.geteuid() == 0:  # root's directories are fixed: others are mounted over them
            mounts = f"mount -t tmpfs run /run && mount --bind {self.path}/state /var/lib"
            command = ["unshare", "-m", "sh", "-c", f"{mounts} && exec {shlex.join(command)}"]
        return subprocess.Popen(command, env=self.env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def box(self, *args):
        process = self.start(*args)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def notes(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    def kinds(self):
        return [line.split()[0] for line in self.notes()]


@pytest.fixture
def alone():
    place = Alone()
    yield place
    until(lambda: subprocess.run(["rm", "-rf", str(place.path)], stderr=subprocess.DEVNULL, check=False).returncode == 0,
          what="the end of what box-priv sweeps up")


def test_row_T01_box_builds_its_own_connection_and_starts_boxd_exactly_once(alone):
    """No service was named: `box` starts a boxd of its own, waits until it serves, once, and uses it."""
    assert alone.box("run", "--", "echo", "hi") == (0, "hi\n", "")
    assert alone.kinds().count("start") == 1
    # A verb that only asks does the same, and each for itself.
    code, out, _ = alone.box("ps", "--json")
    assert (code, json.loads(out)) == (0, {"sessions": []})
    assert alone.kinds().count("start") == 2


def test_row_T01_a_boxd_that_is_named_is_used_and_none_is_started(alone, boxd_shared):
    alone.env["BOX_HOST"] = f"unix://{boxd_shared.sock}"
    assert alone.box("run", "--", "echo", "hi")[:2] == (0, "hi\n")
    assert alone.notes() == []


class Canned:
    """Answers one list, and counts who asks."""

    def __init__(self, path, sessions):
        canned = self
        self.asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                canned.asked.append(self.path)
                body = json.dumps({"sessions": sessions}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def address_string(self):
                return "unix"

            def log_message(self, *args):
                pass

        self.server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def test_row_T02_the_list_of_sessions_is_passed_on_unchanged_by_one_call(alone):
    """Nothing else is asked before, and what `box` does not know stays in the list."""
    sessions = [{"session_id": "b", "state": "ready", "image": "x", "something": {"new": [1, 2]}, "execs": 0},
                {"session_id": "a", "state": "ready", "image": "y", "execs": 3}]
    canned = Canned(alone.path / "canned.sock", sessions)
    alone.env["BOX_HOST"] = f"unix://{alone.path}/canned.sock"
    try:
        code, out, err = alone.box("ps", "--json")
        assert (code, err) == (0, "") and json.loads(out) == {"sessions": sessions}
        assert canned.asked == ["/v1/sessions?running=1"]
    finally:
        canned.close()


def test_row_T03_what_was_started_is_ended_exactly_once(alone):
    """Nobody else waits for anything: `box` ends its boxd and is gone itself."""
    assert alone.box("run", "--", "sh", "-c", "exit 3")[0] == 3
    assert alone.kinds() == ["start", "signal", "end"]
    assert os.listdir(alone.path / "tmp") == []


def test_row_T04_an_end_in_the_middle_of_something_ends_what_was_started_exactly_once(alone):
    """A command runs and a loop turns: the end is part of it, and comes once whatever else is asked meanwhile."""
    process = alone.start("run", "--", "sh", "-c", "echo on; sleep 1000")
    assert process.stdout.readline() == "on\n"
    boxd = int(alone.notes()[0].split()[1])
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    until(lambda: not alive(boxd), what="the end of boxd")
    until(lambda: alone.kinds()[-1] == "end", what="the note of it")
    assert alone.kinds().count("start") == 1 and alone.kinds().count("end") == 1
    assert alone.kinds().count("signal") == 1
    assert os.listdir(alone.path / "tmp") == []
