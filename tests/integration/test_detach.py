# SPDX-License-Identifier: Apache-2.0
"""Commands that are left and come back to: run -d, exec -d, logs, attach, wait, kill and --restart."""

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import time

import pytest
from boxlib import BUILD, ApiError, Boxd
from hostlib import SCALE, until
from wsexec import Stream

pytestmark = pytest.mark.rootless


@pytest.fixture
def daemon():
    d = Boxd()
    yield d
    d.close()


def environment(daemon):
    return {**os.environ, "BOX_HOST": f"unix://{daemon.sock}"}


def box(daemon, *args, check=True, **kwargs):
    r = subprocess.run([str(BUILD / "box"), *args], env=environment(daemon), capture_output=True, text=True, timeout=60, **kwargs)
    assert not check or r.returncode == 0, r.stderr
    return r


class Terminal:
    """box on a terminal of its own."""

    def __init__(self, daemon, *args, rows=24, cols=80):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(str(BUILD / "box"), ["box", *args], environment(daemon))
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        self.seen = b""

    def type(self, data, expect=None):
        os.write(self.fd, data)
        while expect is not None and expect not in self.seen:
            assert select.select([self.fd], [], [], 30 * SCALE)[0], (expect, self.seen)
            self.seen += os.read(self.fd, 65536)
        self.seen = self.seen.partition(expect)[2] if expect else self.seen

    def hang_up(self):
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def end(self):
        while True:
            try:
                if not os.read(self.fd, 65536):
                    break
            except OSError:  # the other end is closed
                break
        return self.hang_up()


def test_a_detached_command_outlives_kill_9_and_its_log_is_there(daemon):
    name = box(daemon, "run", "-d", "sh", "-c", "echo err >&2; sleep 0.1; echo out; read x; echo no; sleep 1000").stdout.strip()
    assert re.fullmatch("box-[0-9a-f]{8}", name)
    until(lambda: "no\n" in box(daemon, "logs", name).stdout)  # its stdin is /dev/null
    daemon.stop(signal.SIGKILL)
    daemon.start()
    logs = box(daemon, "logs", name)
    assert (logs.stdout, logs.stderr) == ("out\nno\n", "err\n")
    assert box(daemon, "logs", "-n", "1", name).stdout == "no\n"
    assert box(daemon, "logs", "--since", "2099-01-01T00:00:00Z", name).stdout == ""
    assert box(daemon, "logs", "--since", "1h", name).stdout == "out\nno\n"
    box(daemon, "kill", name)
    assert box(daemon, "wait", name).stdout == "137\n"
    assert box(daemon, "logs", "-f", name).stdout == "out\nno\n", "it ends with the command"


def test_a_second_command_is_a_process_of_its_own(daemon):
    box(daemon, "run", "-d", "--name", "work", "sleep", "1000")
    again = box(daemon, "run", "-d", "--name", "work", "true", check=False)
    assert again.returncode == 125 and "runs already" in again.stderr
    other = box(daemon, "exec", "-d", "work", "sh", "-c", "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.05; done")
    until(lambda: box(daemon, "logs", "work", other.stdout.strip()).stdout == "up\n")
    box(daemon, "kill", "-s", "SIGTERM", "work", other.stdout.strip())
    assert box(daemon, "wait", "work", other.stdout.strip()).stdout == "5\n"
    assert box(daemon, "logs", "work", other.stdout.strip()).stdout == "up\nbye\n"
    for args, words in ((("logs", "nope"), "session nope not found"), (("wait", "work", "x"), "no process x"),
                        (("kill", "-s", "FOO", "work"), "signal must be one of"),
                        (("logs", "--tail", "-1", "work"), "no number of lines"),
                        (("logs", "--since", "tomorrow", "work"), "no time such as")):
        failed = box(daemon, *args, check=False)
        assert failed.returncode == 125 and words in failed.stderr, failed.stderr


def test_a_command_that_cannot_run_says_so_and_rm_removes_its_session(daemon):
    box(daemon, "run", "-d", "--name", "bad", "/no/such")
    assert box(daemon, "wait", "bad").stdout == "127\n"
    assert "/no/such: cannot execute" in box(daemon, "logs", "bad").stderr
    box(daemon, "run", "-d", "--rm", "--name", "short", "sh", "-c", "echo bye; exit 2")
    assert box(daemon, "logs", "-f", "short").stdout == "bye\n"
    until(lambda: "short" not in box(daemon, "ps", "-aq").stdout.split())


def test_attach_is_left_by_its_keys_and_a_lost_terminal_ends_nothing(daemon):
    box(daemon, "run", "-dit", "--name", "t", "sh")
    t = Terminal(daemon, "attach", "t", rows=31, cols=101)
    t.type(b"stty size; a=left\n", b"31 101")
    t.type(b"\x10\x11")
    assert t.end() == 0
    t = Terminal(daemon, "attach", "t")
    t.type(b"echo $a-$((1+1))\n", b"left-2")
    t.hang_up()
    daemon.stop(signal.SIGKILL)
    daemon.start()
    t = Terminal(daemon, "attach", "t", rows=30, cols=90)
    t.type(b": \x10; echo $a-$((2+2)); stty size\n", b"left-4")  # the first key alone is the command's
    t.type(b"", b"30 90")
    t.type(b"exit 7\n")
    assert t.end() == 7
    box(daemon, "run", "-di", "--name", "c", "cat")
    assert box(daemon, "attach", "c", input="hello\n").stdout == "hello\n"


def test_tmux_shows_an_attached_command_again(daemon):
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    socket = daemon.state / "tmux"

    def tmux(*args):
        return subprocess.run(["tmux", "-S", str(socket), "-f", "/dev/null", *args], env=environment(daemon),
                              capture_output=True, text=True, timeout=30)

    box(daemon, "run", "-dit", "--name", "t", "sh", "-c", "while read x; do echo got-$x; done")
    try:
        for word in ("one", "two"):  # the second time in a new window, after the first was killed
            assert tmux("new-session", "-d", "-s", word, f"{BUILD}/box attach t").returncode == 0
            tmux("send-keys", "-t", word, word, "Enter")
            until(lambda w=word: f"got-{w}" in tmux("capture-pane", "-p", "-t", w).stdout)
            if word == "one":
                tmux("kill-session", "-t", word)
            else:
                tmux("send-keys", "-t", word, "C-p", "C-q")
            until(lambda: tmux("list-sessions").returncode != 0)  # with the last one its server ends
    finally:
        tmux("kill-server")
    assert "got-one" in box(daemon, "logs", "t").stdout


RUNS = "echo x >> /workspace/runs"


def runs(daemon, name):
    return int(box(daemon, "exec", name, "sh", "-c", "wc -l < runs").stdout)


def test_a_start_command_runs_again_as_its_policy_says(daemon):
    box(daemon, "run", "-d", "--restart", "always", "--name", "a", "sh", "-c", f"{RUNS}; exec sleep 1000")
    box(daemon, "run", "-d", "--restart", "on-failure", "--name", "f", "sh", "-c", f"{RUNS}; [ $(wc -l < runs) = 3 ]")
    box(daemon, "run", "-d", "--name", "n", "sh", "-c", f"{RUNS}; exec sleep 1000")
    until(lambda: runs(daemon, "f") == 3 and box(daemon, "wait", "f").stdout == "0\n")
    box(daemon, "kill", "a")
    until(lambda: runs(daemon, "a") == 2)
    daemon.stop()  # as with the host: nothing runs, files and records stay
    daemon.start()
    client = daemon.client()
    until(lambda: {s["session_id"]: s["state"] for s in client.ps()} == {"a": "ready", "f": "stopped", "n": "stopped"})
    until(lambda: runs(daemon, "a") == 3)
    assert (runs(daemon, "n"), runs(daemon, "f")) == (1, 3), "started by exec, without its command"
    box(daemon, "stop", "a")
    assert client.get("a")["start"]["wanted"] is False
    daemon.stop(signal.SIGKILL)
    daemon.start()
    client = daemon.client()
    assert client.get("a")["state"] == "stopped"
    assert runs(daemon, "a") == 3, "stopped until it is started"
    box(daemon, "start", "a", "n")
    until(lambda: runs(daemon, "a") == 4 and runs(daemon, "n") == 2)
    box(daemon, "start", "a")
    assert runs(daemon, "a") == 4, "it runs already"
    assert client.get("a")["start"] == {"process_id": "main", "command": "sh", "args": ["-c", f"{RUNS}; exec sleep 1000"],
                                        "restart": "always", "remove": False, "wanted": True}
    client.call("DELETE", "/v1/sessions/a/processes/main")
    assert client.get("a")["start"]["wanted"] is False, "a client has ended it"


def test_a_start_is_checked_before_anything_is_made(daemon):
    client = daemon.client()
    start = {"command": "true"}
    for want, words in (({"start": "true"}, "start must be an object"), ({"restart": "always"}, "start, which is missing"),
                        ({"start": start, "restart": "often"}, "no, on-failure or always"),
                        ({"start": start, "restart": "always"}, "wants a durable session"),
                        ({"start": start, "restart": "always", "durable": True, "remove": True}, "wants a durable session"),
                        ({"start": {"command": "true", "process_id": "x"}}, "without process_id"),
                        ({"start": {"command": "true", "rows": 4097}}, "rows must be"),
                        ({"start": {"command": "true", "nope": 1}}, "nope"),
                        ({"start": start, "ports": [{"port": 0}]}, "port")):
        with pytest.raises(ApiError, match=words):
            client.new("s", **want)
    assert client.ps() == []


def test_a_log_is_no_output_and_output_no_log(daemon):
    client = daemon.client()
    client.new("s")
    path = "/v1/sessions/s/processes"
    client.call("POST", path, {"process_id": "log", "command": "sleep", "args": ["1000"], "log": True})
    client.call("POST", path, {"process_id": "out", "command": "sh", "args": ["-c", "echo a; echo b >&2; exec cat"]})
    with pytest.raises(ApiError, match="keeps a log"):
        client.call("GET", f"{path}/log/output")
    with pytest.raises(ApiError, match="keeps no times"):
        client.call("GET", f"{path}/out/log?since_ms=1")
    with Stream(daemon.sock, target=f"{path}/out/log?follow=1") as ws:
        ws.started()
        assert sorted(ws.recv() for _ in "ab") == [(1, b"a\n"), (2, b"b\n")]
        ws.signal("KILL")  # one that only looks changes nothing
        time.sleep(0.1)
        assert client.call("GET", f"{path}/out")["status"] == "running"
        client.call("POST", f"{path}/out/signal", {"signal": "TERM"})
        assert ws.finish()["signal"] == 15
    with pytest.raises(ApiError, match="does not run"):
        client.call("POST", f"{path}/out/signal", {"signal": "TERM"})
