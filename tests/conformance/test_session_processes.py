# SPDX-License-Identifier: Apache-2.0
"""Managed processes on every backend, and what is still there after boxd was killed."""

import contextlib
import os
import pathlib
import signal
import threading
import time

import pytest
from boxlib import Boxd
from lbwire import Closed, Rpc, eventually, physical, relay
from wsexec import Stream

pytestmark = pytest.mark.real


class Wire:
    """A daemon of the test's own, as LangBot sees it."""

    def __init__(self, backend):
        self.backend, self.daemon = backend, None
        self.start()

    def start(self):
        if self.daemon is None:
            self.daemon = Boxd("--backend", self.backend.name, env=self.backend.env)
        else:
            self.daemon.start()
        self.rpc = Rpc(self.daemon.sock, timeout=90)

    def crash(self, asleep=0.0):
        self.daemon.stop(signal.SIGKILL)
        time.sleep(asleep)
        self.start()

    def new(self, sid="s", **spec):
        return self.rpc.call("box_create_session", {"session_id": sid, "cmd": "", "image": self.backend.image, **spec})

    def sh(self, cmd, sid="s", **spec):
        return self.rpc.exec(sid, cmd, image=self.backend.image, **spec)

    def run(self, *argv, sid="s", process_id="default", **spec):
        return self.rpc.call("box_start_managed_process", {"session_id": sid, "spec": {
            "process_id": process_id, "command": argv[0], "args": list(argv[1:]), **spec}})

    def info(self, process_id="default", sid="s"):
        return self.rpc.call("box_get_managed_process", {"session_id": sid, "process_id": process_id})

    def ended(self, process_id="default"):
        def look():
            info = self.info(process_id)
            return info if info["status"] == "exited" else None
        return eventually(look, 20)

    def relay(self, process_id="default", sid="s"):
        return relay(self.daemon.sock, sid, process_id)

    def close(self):
        self.daemon.close()


@pytest.fixture
def wire(backend):
    made = Wire(backend)
    yield made
    made.close()


def test_a_process_that_is_stopped_takes_its_tree_along(wire):
    wire.new()
    wire.run("sh", "-c", "setsid sh -c 'while :; do echo >> /tmp/beat; sleep 0.05; done' & sleep 1000")
    eventually(lambda: wire.sh("cat /tmp/beat | wc -l")["stdout"] not in ("", "0"))
    wire.rpc.call("box_stop_managed_process", {"session_id": "s"})
    before = wire.sh("wc -c < /tmp/beat")["stdout"]
    assert wire.sh("sleep 0.4; wc -c < /tmp/beat")["stdout"] == before


def test_a_reader_that_does_not_come_holds_the_process_back(wire):
    wire.new()
    wire.run("sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); echo line-$i; done; echo done > /tmp/done; cat")
    # More than is kept: it cannot have finished.
    time.sleep(1)
    assert wire.sh("cat /tmp/done")["exit_code"] != 0
    with wire.relay() as ws:
        for n in range(1, 200001):
            assert ws.recv() == f"line-{n}"
    assert eventually(lambda: wire.sh("cat /tmp/done")["stdout"] == "done", 20)


HOGS = {
    "one": "dd if=/dev/zero bs=150M count=1 | sleep 1000",
    "several together": "for i in 1 2 3 4 5; do dd if=/dev/zero bs=30M count=1 | sleep 1000 & done; wait",
}


@pytest.mark.parametrize("how", HOGS)
def test_a_process_has_a_limit_of_memory_of_its_own(wire, how):
    wire.new(memory_mb=512)
    wire.run("sleep", "1000", process_id="beside")
    wire.run("sh", "-c", HOGS[how], process_id="hog", memory_mb=100)
    info = wire.ended("hog")
    assert info["exit_code"] in (-9, 137), info
    assert wire.info("beside")["status"] == "running"
    assert wire.sh("ps | grep -c '[d]d if'; true", memory_mb=512)["stdout"] in ("", "0"), "all of it has ended"


def test_a_process_within_its_limit_is_left_alone(wire):
    wire.new(memory_mb=512)
    # Three shells that have most of their pages in common, beside others that use more than all of that.
    wire.run("sh", "-c", "dd if=/dev/zero bs=40M count=1 | (sleep 2; cat >/dev/null); echo done; sleep 1000",
             memory_mb=100)
    wire.sh("dd if=/dev/zero bs=150M count=1 | sleep 0.5", memory_mb=512)
    with wire.relay() as ws:
        assert ws.recv() == "done"
    assert wire.info()["status"] == "running"


# After kill -9.


def test_nobody_comes_back_and_everything_ends(backend):
    made = Boxd("--backend", backend.name, env={**backend.env, "BOX_LINGER_SEC": "2"})
    try:
        made.client().new("left", image=backend.image, persistent=True)
        name = made.client().receipt("left").get("container_id")
        pid = made.client().receipt("left")["host_pid"]
        made.stop(signal.SIGKILL)
        if backend.engine:
            alive = [c for c in backend.engine.containers() if c["Id"] == name]
            assert alive and alive[0]["State"] == "running"
            assert eventually(lambda: all(c["State"] != "running" for c in backend.engine.containers()
                                          if c["Id"] == name), 20)
        else:
            assert eventually(lambda: not os.path.exists(f"/proc/{pid}"), 20)
    finally:
        made.close()


def test_sessions_files_and_processes_are_still_there(wire):
    before = wire.new(persistent=True)
    wire.sh("echo kept > /workspace/f; echo too > /tmp/f", persistent=True)
    wire.run("sh", "-c", "echo early; while read -r line; do echo \"got $line\"; done")
    with wire.relay() as ws:
        assert ws.recv() == "early"
        ws.send("one")
        assert ws.recv() == "got one"
    started = wire.info()["started_at"]
    wire.crash()
    after = wire.rpc.call("box_get_session", {"session_id": "s"})
    assert [after[k] for k in ("created_at", "backend_session_id")] == [
        before[k] for k in ("created_at", "backend_session_id")]
    assert wire.sh("cat /workspace/f /tmp/f", persistent=True)["stdout"] == "kept\ntoo"
    assert wire.info()["started_at"] == started
    with wire.relay() as ws:
        ws.send("two")
        said = ws.recv()
        assert (ws.recv() if said == "got one" else said) == "got two", "the last may come again, and nothing else"


def test_no_byte_of_output_is_lost(wire):
    """A process writes all the time; the daemon is killed again and again; a reader goes on where it was."""
    wire.new()
    total = 60000
    wire.run("sh", "-c", f"i=0; while [ $i -lt {total} ]; do i=$((i+1)); echo line-$i; done; exec cat")
    expected, kill_at = 1, [2000, 17000, 31000]
    while expected <= total:
        try:
            with wire.relay() as ws:
                while expected <= total:
                    n = int(ws.recv().split("-")[1])
                    # What was under way to a relay that died with the daemon may come again.
                    assert n <= expected, f"a gap before {n}"
                    expected = max(expected, n + 1)
                    if kill_at and expected >= kill_at[0]:
                        kill_at.pop(0)
                        threading.Thread(target=wire.daemon.process.kill).start()
        except (Closed, ConnectionError):
            wire.daemon.process.wait(20)
            wire.start()
            assert wire.info()["status"] == "running"


def test_what_ended_meanwhile_is_told(wire):
    wire.new()
    wire.run("sh", "-c", "echo said >&2; while [ ! -e /tmp/go ]; do sleep 0.02; done; echo last; exit 7")
    wire.sh("(sleep 0.5; touch /tmp/go) >/dev/null 2>&1 &")
    wire.crash(asleep=1.0)
    info = wire.ended()
    assert (info["exit_code"], info["stderr_preview"]) == (7, "said")


def test_commands_of_the_old_daemon_are_ended(wire):
    wire.new()
    wire.rpc.start("box_exec", {"session_id": "s", "image": wire.backend.image, "timeout_sec": 600,
                                "cmd": "while :; do echo >> /tmp/beat; sleep 0.05; done"})
    second = Rpc(wire.daemon.sock)
    assert eventually(lambda: wire.daemon.client().sh(physical("s"), "cat /tmp/beat")["stdout"] != "", 20)
    second.ws.sock.close()
    wire.crash()
    before = wire.sh("wc -c < /tmp/beat")["stdout"]
    assert wire.sh("sleep 0.4; wc -c < /tmp/beat")["stdout"] == before


def test_a_session_that_died_meanwhile_is_gone(wire):
    info = wire.new()
    wire.daemon.stop(signal.SIGKILL)
    if wire.backend.engine:
        wire.backend.engine.api("DELETE", f"/v1.40/containers/{info['backend_session_id']}?force=1")
    else:
        for cmdline in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = cmdline.read_bytes().split(b"\0")
                if words[0].endswith(b"box-priv") and str(wire.daemon.state).encode() in words:
                    os.kill(int(cmdline.parent.name), signal.SIGKILL)
    wire.start()
    assert eventually(lambda: wire.rpc.call("box_get_sessions")["sessions"] == [], 20)
    assert wire.sh("echo new")["stdout"] == "new"


# Detached commands: their output is a log, which no reader has to come for.


def test_a_detached_command_is_never_held_back_and_comes_back_after_a_crash(wire):
    client = wire.daemon.client()
    client.new("s", image=wire.backend.image)
    client.call("POST", "/v1/sessions/s/processes", {
        "process_id": "d", "command": "sh", "log": True, "stdin": True, "cwd": "/tmp", "args": [
            "-c", "yes 0123456789abcde | head -n 131072; echo oops >&2; sleep 0.1; echo done; read x; echo got $x; exit 3"]})
    follow = "/v1/sessions/s/processes/d/log?follow=1"
    with Stream(wire.daemon.sock, target=follow) as ws:  # 2 MiB, more than any backend keeps
        ws.started()
        assert b"oops\n" in ws.until(b"done\n")
    wire.crash()
    with Stream(wire.daemon.sock, target=follow + "&tail=2&stdin=1") as ws:
        ws.started()
        ws.stdin(b"you\n")
        result = ws.finish()
    assert (result.out, result.err, result["exit_code"]) == (b"done\ngot you\n", b"oops\n", 3)
    with Stream(wire.daemon.sock, target="/v1/sessions/s/processes/d/log") as ws:
        ws.started()
        assert len(ws.finish().out) > 200 << 10


def test_a_detached_terminal_has_a_size_and_outlives_its_client(wire):
    client = wire.daemon.client()
    client.new("s", image=wire.backend.image)
    client.call("POST", "/v1/sessions/s/processes", {
        "process_id": "t", "command": "sh", "tty": True, "rows": 33, "cols": 99, "cwd": "/tmp",
        "args": ["-c", "stty size; read x; stty size; read x; exit 4"]})
    target = "/v1/sessions/s/processes/t/log?follow=1&stdin=1"
    with Stream(wire.daemon.sock, target=target) as ws:
        ws.started()
        ws.until(b"33 99\r\n")
        ws.resize(11, 22)
        ws.stdin(b"\n")
        ws.until(b"11 22\r\n")
    with Stream(wire.daemon.sock, target=target + "&tail=0") as ws:
        ws.started()
        ws.stdin(b"\n")
        assert ws.finish()["exit_code"] == 4
