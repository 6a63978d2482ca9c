# SPDX-License-Identifier: Apache-2.0
"""The program `box` against a real boxd: statuses, streams, signals, terminals, and starting boxd itself."""

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shlex
import signal
import socket
import struct
import subprocess
import termios
import time

import pytest

from boxlib import BUILD, Boxd, box

pytestmark = pytest.mark.rootless

GO = b"go\n"


@pytest.fixture
def run(boxd_shared):
    """run("run", "--", "true") -> CompletedProcess, against the shared boxd."""

    def call(*args, **kwargs):
        return box(*args, sock=boxd_shared.sock, **kwargs)

    return call


@pytest.fixture
def start(boxd_shared):
    """The same, running: Popen with pipes."""
    started = []

    def call(*args, stdin=subprocess.DEVNULL, **kwargs):
        env = {**os.environ, "BOX_HOST": f"unix://{boxd_shared.sock}"}
        process = subprocess.Popen(
            [str(BUILD / "box"), *args], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, **kwargs
        )
        started.append(process)
        return process

    yield call
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def name(api):
    """A name for a session, removed at the end."""
    sid = f"cli-{os.getpid()}-{time.monotonic_ns()}"
    yield sid
    if any(s["session_id"] == sid for s in api.ps()):
        api.rm(sid)


def check(result, status, out="", err=""):
    assert (result.returncode, result.stdout, result.stderr) == (status, out, err)


# Statuses.


def test_the_exit_status_is_the_commands(run):
    check(run("run", "--", "sh", "-c", "echo out; echo err >&2; exit 3"), 3, "out\n", "err\n")


def test_a_signal_gives_128_and_its_number(run):
    check(run("run", "--", "sh", "-c", "kill -TERM $$"), 143)


def test_a_timeout_gives_124_and_says_so(run):
    check(run("run", "--timeout", "1", "--", "sleep", "30"), 124, "", "box: timed out after 1 s\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="memory limits need cgroups, which an ordinary user may not have")
def test_out_of_memory_gives_137_and_the_limit(run):
    hog = ["python3", "-c", "x = bytearray(900 << 20)"]
    check(run("run", "--memory-mb", "64", "--", *hog), 137, "", "box: killed: out of memory (limit 64 MiB)\n")
    check(run("run", "--", *hog), 137, "", "box: killed: out of memory (limit 512 MiB)\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="hard quotas need loop devices, which an ordinary user may not have")
def test_a_full_disk_keeps_the_status_and_says_so(run):
    r = run("run", "--quota-mb", "8", "--", "sh", "-c", "head -c 20000000 /dev/zero > f || exit 9")
    assert r.returncode == 9
    assert r.stderr.endswith("box: the disk of the session is full (see --quota)\n")


def test_commands_that_cannot_run_have_the_shells_statuses(run):
    check(run("run", "--", "no-such"), 127, "", "box: no-such: cannot execute: No such file or directory\n")
    check(run("run", "--", "/etc/passwd"), 126, "", "box: /etc/passwd: cannot execute: Permission denied\n")


@pytest.mark.parametrize(
    "args, message",
    [
        (["run", "--bogus", "--", "x"], "unknown option '--bogus' of 'run', see 'box help run'"),
        (["run"], "no command: box run [OPTION...] [--] CMD [ARG...]"),
        (["run", "--workdir", "x", "--", "true"], "workdir must be an absolute path inside the sandbox"),
        (["run", "--memory-mb", "3", "--", "true"], "memory_mb must be at least 32"),
        (["run", "--env", "=X", "--", "true"], "env entries must be NAME=value"),
        (["run", "--mount", "/no/such:/x", "--", "true"], "mount source '/no/such' does not exist"),
        (["walk"], "unknown verb 'walk', see 'box --help'"),
    ],
)
def test_bad_input_is_one_clear_line_and_125(run, args, message):
    check(run(*args), 125, "", f"box: {message}\n")


def test_what_boxd_refuses_is_125_as_well(run, tmp_path):
    secret = "/etc/ssl" if os.path.isdir("/etc/ssl") else "/etc"
    r = run("run", "--mount", f"{secret}:/x", "--", "true")
    assert r.returncode == 125
    assert r.stderr.startswith("box: ") and r.stderr.count("\n") == 1
    (tmp_path / "link").symlink_to("/etc")
    assert run("run", "--mount", f"{tmp_path}/link:/x", "--", "true").returncode == 125


def test_an_environment_of_ten_megabytes_is_refused(run):
    env = [word for i in range(100) for word in ("--env", f"N{i}=" + "x" * 100_000)]
    with contextlib.suppress(OSError):  # the kernel's own limit on arguments may come first
        check(run("run", *env, "--", "true"), 125, "", "box: env must be at most 1048576 bytes in all\n")


def test_a_boxd_that_is_not_there_is_explained(tmp_path):
    r = box("run", "--", "true", sock=tmp_path / "none.sock")
    assert r.returncode == 125
    assert "cannot talk to boxd at unix://" in r.stderr and "BOX_HOST" in r.stderr
    r = box("ps", env={"BOX_HOST": "ftp://x"})
    assert (r.returncode, "must be unix:///path/boxd.sock or http://host:port" in r.stderr) == (125, True)


def test_over_tcp_a_token_is_sent(tmp_path):
    token = tmp_path / "token"
    token.write_text("t" * 40 + "\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    daemon = Boxd("--ws-control-port", str(port), env={"BOX_TOKEN_FILE": str(token)})
    host = {"BOX_HOST": f"http://127.0.0.1:{port}"}
    try:
        check(box("run", "--", "echo", "hi", env={**host, "BOX_TOKEN_FILE": str(token)}), 0, "hi\n")
        assert box("ps", env={**host, "BOX_TOKEN_FILE": str(token)}).returncode == 0
        for verb in (["ps"], ["run", "--", "true"]):
            r = box(*verb, env=host)
            assert (r.returncode, "BOX_TOKEN_FILE" in r.stderr) == (125, True)
    finally:
        daemon.close()
    r = box("ps", env={**host, "BOX_TOKEN_FILE": str(tmp_path / "none")})
    assert (r.returncode, "read the token" in r.stderr) == (125, True)


# Sessions.


def test_a_session_keeps_its_files_until_it_is_removed(run, name):
    check(run("run", "--session", name, "--", "sh", "-c", "echo kept > note"), 0)
    check(run("exec", name, "--", "cat", "note"), 0, "kept\n")
    check(run("exec", name, "--env", "A=1", "--workdir", "/tmp", "--", "sh", "-c", "echo $A; pwd"), 0, "1\n/tmp\n")
    check(run("run", "--session", name, "--env", "A=2", "--", "sh", "-c", "echo $A; cat note"), 0, "2\nkept\n")
    check(run("rm", name), 0)
    r = run("exec", name, "--", "true")
    assert r.returncode == 125 and f"session {name} not found" in r.stderr
    r = run("rm", name)
    assert r.returncode == 125 and f"session {name} not found" in r.stderr


def test_other_limits_for_the_same_session_are_a_conflict(run, name):
    check(run("run", "--session", name, "--", "true"), 0)
    r = run("run", "--session", name, "--memory-mb", "64", "--", "true")
    assert r.returncode == 125 and "memory_mb=512" in r.stderr


def test_a_run_without_a_name_leaves_no_session(run, api):
    before = api.ps()
    check(run("run", "--", "true"), 0)
    assert api.ps() == before


def test_ps_lists_sessions_for_people_and_programs(run, name):
    run("run", "--session", name, "--memory-mb", "64", "--best-effort", "--", "true")
    lines = run("ps").stdout.splitlines()
    assert lines[0].split() == ["SESSION", "STATE", "IMAGE", "NETWORK", "MEMORY", "CPUS", "AGE", "EXECS"]
    row = next(line for line in lines if line.startswith(name))
    assert re.fullmatch(rf"{name} +running +host +off +64 MiB +1 +\d+ s +\d+", row)
    sessions = json.loads(run("ps", "--json").stdout)["sessions"]
    assert next(s for s in sessions if s["session_id"] == name)["memory_mb"] == 64


def test_rm_all_removes_every_session(boxd):
    for sid in ("a", "b"):
        box("run", "--session", sid, "--", "true", sock=boxd.sock)
    check(box("rm", "--all", sock=boxd.sock), 0)
    assert boxd.client().ps() == []


def test_rm_goes_on_after_a_name_that_is_not_there(run, name, api):
    run("run", "--session", name, "--", "true")
    assert run("rm", "no-such", name).returncode == 125
    assert all(s["session_id"] != name for s in api.ps())


def test_doctor_tells_every_check(run):
    r = run("doctor")
    checks = json.loads(run("doctor", "--json").stdout)["checks"]
    assert all(any(line.startswith(c["id"]) for line in r.stdout.splitlines()) for c in checks)
    assert r.returncode == (1 if any(c["status"] == "missing" for c in checks) else 0)


def test_mounts_of_the_host_are_shown(run, tmp_path):
    (tmp_path / "f").write_text("hello")
    tmp_path.chmod(0o755)
    r = run("run", "--mount", f"{tmp_path}:/m:ro", "--", "sh", "-c", "cat /m/f; touch /m/g")
    assert (r.returncode, r.stdout) == (1, "hello")


# Streams.


@pytest.mark.parametrize("size", [0, 1, 40_000, 5_000_000])
def test_standard_input_reaches_the_command_whole(run, tmp_path, size):
    data = bytes(i % 251 for i in range(1000)) * (size // 1000 + 1)
    (tmp_path / "in").write_bytes(data[:size])
    with open(tmp_path / "in", "rb") as file:
        check(run("run", "--", "wc", "-c", stdin=file), 0, f"{size}\n")
    assert run("run", "--", "cat", stdin=subprocess.DEVNULL).stdout == ""


def test_output_of_any_bytes_and_size_comes_out_whole(start):
    p = start("run", "--", "sh", "-c", "head -c 20000000 /dev/zero; printf '\\377\\000\\033[m'; echo e >&2")
    out, err = p.communicate(timeout=60)
    assert (p.returncode, len(out), out[-5:], err) == (0, 20_000_005, b"\xff\0\x1b[m", b"e\n")


def test_output_is_live(start):
    p = start("run", "--", "sh", "-c", "echo go; read x; echo end", stdin=subprocess.PIPE)
    assert p.stdout.read(3) == GO
    out, _ = p.communicate(b"x\n", timeout=20)
    assert (p.returncode, out) == (0, b"end\n")


def test_input_that_never_ends_does_not_keep_us(start):
    read_end, write_end = os.pipe()
    p = start("run", "--", "echo", "done", stdin=read_end)
    out, _ = p.communicate(timeout=20)
    assert (p.returncode, out) == (0, b"done\n")
    os.close(read_end)
    os.close(write_end)


def test_a_reader_that_goes_ends_the_command_quietly(start, api):
    before = api.ps()
    p = start("run", "--", "yes")
    assert p.stdout.read(2) == b"y\n"
    p.stdout.close()
    assert p.wait(timeout=20) == 128 + signal.SIGPIPE
    assert p.stderr.read() == b""
    deadline = time.monotonic() + 20
    while api.ps() != before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_full_disk_behind_our_output_is_an_error_of_ours(start, boxd_shared):
    env = {**os.environ, "BOX_HOST": f"unix://{boxd_shared.sock}"}
    with open("/dev/full", "wb") as full:
        p = subprocess.run([str(BUILD / "box"), "run", "--", "yes"], env=env, stdin=subprocess.DEVNULL, stdout=full,
                           stderr=subprocess.PIPE, timeout=20)
    assert (p.returncode, p.stderr) == (125, b"box: write to standard output: No space left on device\n")


# Signals.

TRAP = "trap 'echo got; exit 7' {0}; echo go; while :; do sleep 0.05; done"


@pytest.mark.parametrize("name_of", ["INT", "TERM", "HUP", "QUIT"])
def test_signals_are_the_commands(start, name_of):
    p = start("run", "--", "sh", "-c", TRAP.format(name_of))
    assert p.stdout.read(3) == GO
    p.send_signal(getattr(signal, f"SIG{name_of}"))
    out, _ = p.communicate(timeout=20)
    assert (p.returncode, out) == (7, b"got\n")


def test_a_second_ctrl_c_ends_a_command_that_ignores_the_first(start):
    p = start("run", "--", "sh", "-c", "trap '' INT; echo go; sleep 60")
    assert p.stdout.read(3) == GO
    p.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert p.poll() is None
    p.send_signal(signal.SIGINT)
    assert p.wait(timeout=20) == 130


def test_a_signal_arrives_although_the_command_does_not_read_its_input(start):
    yes = subprocess.Popen(["yes"], stdout=subprocess.PIPE)
    p = start("run", "--", "sh", "-c", TRAP.format("TERM"), stdin=yes.stdout)
    yes.stdout.close()
    assert p.stdout.read(3) == GO
    time.sleep(0.5)  # until every buffer on the way is full
    p.send_signal(signal.SIGTERM)
    out, _ = p.communicate(timeout=20)
    assert (p.returncode, out) == (7, b"got\n")
    assert yes.wait(timeout=20) == -signal.SIGPIPE


# Terminals.


class Terminal:
    """box on a terminal of its own."""

    def __init__(self, sock, *args):
        self.master, self.slave = pty.openpty()
        self.resize(30, 100)
        self.before = termios.tcgetattr(self.slave)
        env = {**os.environ, "BOX_HOST": f"unix://{sock}"}

        def own():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen([str(BUILD / "box"), *args], stdin=self.slave, stdout=self.slave,
                                        stderr=self.slave, env=env, preexec_fn=own)
        self.text = b""

    def resize(self, rows, cols):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, data):
        os.write(self.master, data)

    def expect(self, data):
        deadline = time.monotonic() + 20
        while data not in self.text:
            assert time.monotonic() < deadline, self.text
            if select.select([self.master], [], [], 0.1)[0]:
                self.text += os.read(self.master, 4096)
        self.text = self.text.split(data, 1)[1]

    def end(self):
        status = self.process.wait(timeout=20)
        assert termios.tcgetattr(self.slave) == self.before
        return status

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(boxd_shared):
    made = []

    def make(*args):
        made.append(Terminal(boxd_shared.sock, *args))
        return made[-1]

    yield make
    for t in made:
        t.close()


def test_a_terminal_has_a_size_keys_and_an_end(terminal):
    t = terminal("run", "-t", "--", "sh")
    t.expect(b"$ ")
    t.type(b"test -t 0 && stty size\n")
    t.expect(b"30 100")
    t.resize(40, 120)
    t.type(b"sleep 0.2; stty size\n")
    t.expect(b"40 120")
    t.type(b"sh -c 'echo n\"\"ow; exec sleep 60'\n")
    t.expect(b"now")  # by the process that the key goes to
    t.type(b"\x03")
    t.expect(b"^C")
    t.type(b"exit 9\n")
    assert t.end() == 9


def test_the_terminal_is_restored_when_signals_end_us(terminal):
    t = terminal("run", "-t", "--", "sh", "-c", "trap '' INT TERM; echo go; sleep 60")
    t.expect(b"go")
    t.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    t.process.send_signal(signal.SIGINT)
    assert t.end() == 130


def test_a_shell_on_a_terminal_ends_when_box_is_told_to(terminal):
    t = terminal("run", "-it", "bash", "--norc", "-i")
    t.expect(b"$ ")
    t.type(b"kill -TERM $$; echo al''ive\n")
    t.expect(b"alive")  # it ignores TERM, as shells on a terminal do
    t.expect(b"$ ")
    start = time.monotonic()
    t.process.send_signal(signal.SIGTERM)
    # box sends TERM and HUP. Which of them bash says it died of, when both are there at once, is bash's own race.
    assert t.end() in (128 + signal.SIGHUP, 128 + signal.SIGTERM)
    assert time.monotonic() - start < 8, "it was not killed after ten seconds, it obeyed"


def test_a_terminal_that_was_not_offered_is_not_read(terminal):
    t = terminal("run", "--", "sh", "-c", "cat; echo end")
    t.expect(b"end")
    assert t.end() == 0


def test_an_offered_terminal_is_read_line_by_line(terminal):
    t = terminal("run", "-i", "--", "cat")
    t.type(b"hello\n")
    t.expect(b"hello\r\nhello")
    t.type(b"\x04")
    assert t.end() == 0


def test_ctrl_c_without_a_terminal_inside_ends_the_command(terminal):
    t = terminal("run", "--", "sh", "-c", "echo go; exec sleep 60")
    t.expect(b"go")
    t.type(b"\x03")
    assert t.end() == 130


# A boxd of our own.


class Alone:
    """A place where no boxd listens: the usual directories are empty ones of this test."""

    def __init__(self, path):
        self.path = path
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("BOX_")}
        self.env["TMPDIR"] = str(path / "tmp")
        for directory in ("tmp", "runtime", "state"):
            (path / directory).mkdir()
        (path / "tmp").chmod(0o755)
        self.env["XDG_RUNTIME_DIR"] = str(path / "runtime")
        self.env["XDG_STATE_HOME"] = str(path / "state")

    def box(self, *args, **kwargs):
        command = [str(BUILD / "box"), *args]
        if os.geteuid() == 0:  # root's directories are fixed: others are mounted over them
            mounts = f"mount -t tmpfs run /run && mount --bind {self.path}/state /var/lib"
            command = ["unshare", "-m", "sh", "-c", f"{mounts} && exec {shlex.join(command)}"]
        kwargs.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(command, env=self.env, text=True, capture_output=True, timeout=120, **kwargs)

    def leftovers(self):
        return sorted(os.listdir(self.path / "tmp"))


@pytest.fixture
def alone():
    # Short, because the name of a socket is; and where everybody may go.
    path = subprocess.check_output(["mktemp", "-d", "/tmp/box-cli-XXXXXX"], text=True).strip()
    os.chmod(path, 0o755)
    place = Alone(pathlib.Path(path))
    yield place
    deadline = time.monotonic() + 20
    while subprocess.run(["rm", "-rf", path], stderr=subprocess.DEVNULL).returncode != 0:
        assert time.monotonic() < deadline  # box-priv may still be sweeping up behind a boxd
        time.sleep(0.05)


def test_a_private_boxd_is_started_and_leaves_nothing(alone):
    check(alone.box("run", "--", "sh", "-c", "echo hi; exit 3"), 3, "hi\n")
    assert alone.leftovers() == []
    assert json.loads(alone.box("ps", "--json").stdout) == {"sessions": []}
    assert alone.box("doctor", "--json").stdout.startswith("{")
    assert alone.leftovers() == []


def test_verbs_that_need_a_session_start_nothing(alone):
    for args in (["exec", "a", "--", "true"], ["rm", "a"], ["rm", "--all"]):
        r = alone.box(*args)
        assert r.returncode == 125 and "no boxd is running" in r.stderr


def test_a_named_session_outlives_us_in_a_boxd_that_stays(alone):
    r = alone.box("run", "--session", "s", "--", "sh", "-c", "echo kept > note")
    found = re.match(r"box: started boxd \(pid (\d+)\), which keeps the sessions; stop it with 'kill \1'\n", r.stderr)
    assert found, r
    pid = int(found[1])
    try:
        assert (r.returncode, r.stdout, r.stderr) == (0, "", found[0])
        assert os.getsid(pid) == pid
    finally:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 30
        while os.path.exists(f"/proc/{pid}/exe"):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_an_interrupted_start_leaves_nothing(alone):
    command = [str(BUILD / "box"), "run", "--", "sleep", "60"]
    if os.geteuid() == 0:
        command = ["unshare", "-m", "sh", "-c", f"mount -t tmpfs t /run && exec {shlex.join(command)}"]
    p = subprocess.Popen(command, env=alone.env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 20
    while not alone.leftovers():
        assert time.monotonic() < deadline
        time.sleep(0.002)
    p.send_signal(signal.SIGINT)
    assert p.wait(timeout=60) == 130
    p.stderr.close()
    assert alone.leftovers() == []
