# SPDX-License-Identifier: Apache-2.0
"""Docker's words where they mean the same: options, sizes, variables, and what is said of a word that Box lacks."""

import json
import os
import pty
import re
import select
import signal
import socketserver
import subprocess
import threading
import time

import pytest
from boxlib import BUILD, box
from hostlib import mount_dir

pytestmark = pytest.mark.rootless


@pytest.fixture
def run(boxd_shared):
    def call(*args, **kwargs):
        return box(*args, sock=boxd_shared.sock, **kwargs)

    return call


@pytest.fixture
def name(api):
    """A name for a session, removed at the end."""
    sid = f"words-{os.getpid()}-{time.monotonic_ns()}"
    yield sid
    if any(s["session_id"] == sid for s in api.ps()):
        api.rm(sid)


def out(result):
    assert (result.returncode, result.stderr) == (0, ""), result
    return result.stdout


def refused(result):
    assert result.returncode == 125 and result.stdout == "" and result.stderr.count("\n") == 1, result
    return result.stderr


def test_the_dashes_before_the_command_are_optional(run, api, name):
    assert out(run("run", "echo", "-n", "--", "hi")) == "-- hi"
    assert out(run("run", "--name", name, "-e", "A=1", "sh", "-c", "echo $A >f; cat f")) == "1\n"
    assert out(run("exec", name, "cat", "f")) == "1\n"
    assert out(run("exec", "-w", "/tmp", name, "pwd")) == "/tmp\n"
    assert out(run("exec", name, "-e", "B=2", "--", "sh", "-c", "echo $B")) == "2\n"


def test_variables_come_from_options_files_and_here(run, tmp_path):
    (tmp_path / "env").write_text('# one\nA="q"\nB=file\nHERE\n')
    env = {**os.environ, "HERE": "from here"}
    got = out(run("run", "-e", "B=option", "--env-file", tmp_path / "env", "sh", "-c", 'echo "$A|$B|$HERE"', env=env))
    assert got == '"q"|option|from here\n'
    assert out(run("run", "--env", "HERE", "--", "sh", "-c", "echo $HERE", env=env)) == "from here\n"
    assert out(run("run", "-e", "NOT_SET_HERE", "sh", "-c", "echo ${NOT_SET_HERE-unset}")) == "unset\n"
    assert "No such file" in refused(run("run", "--env-file", tmp_path / "none", "true"))


def test_a_value_is_not_shown_in_the_list_of_processes(boxd_shared):
    command = [str(BUILD / "box"), "run", "-e", "KEY=hunter2", "sh", "-c", "echo go; cat"]
    p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         env={**os.environ, "BOX_HOST": f"unix://{boxd_shared.sock}"})
    try:
        assert p.stdout.readline() == b"go\n"
        with open(f"/proc/{p.pid}/cmdline", "rb") as f:
            shown = f.read()
        assert b"KEY=" in shown and b"hunter2" not in shown
    finally:
        p.communicate()


def test_sizes_and_times_are_those_people_write(run, api, name):
    # An ordinary user may have no control group: what is tested is how the sizes are read.
    r = run("run", "--name", name, "--best-effort", "-m", "96m", "--cpus", "1.5", "--pids-limit", "33", "--timeout", "1m", "true")
    assert r.returncode == 0, r.stderr
    (s,) = [s for s in api.ps() if s["session_id"] == name]
    assert (s["memory_mb"], s["cpus"], s["pids_limit"]) == (96, 1.5, 33)
    r = run("run", "--timeout", "1s", "sleep", "30")
    assert (r.returncode, r.stderr) == (124, "box: timed out after 1 s\n")
    assert "write 512m for MiB" in refused(run("run", "-m", "512", "true"))


def test_u_may_name_the_sessions_own_user_and_no_other(run, api, name):
    assert out(run("run", "--name", name, "true")) == ""
    uid, user, gid = (out(run("exec", name, "id", what)).strip() for what in ("-u", "-un", "-g"))
    for who in (uid, user, f"{uid}:{gid}"):
        assert out(run("exec", "-u", who, name, "printf", "%s|", "a b", "$x", "*")) == "a b|$x|*|"
    assert run("run", f"--user={user}", "sh", "-c", "exit 3").returncode == 3
    for who in ("root", "0", "0:0", f"{uid}:0", f"{user}x", f"{uid} ", "*"):
        said = refused(run("run", "-u", who, "echo", "ran"))
        assert said.startswith(f"box: -u {who}: every command of this session runs as its own user, {user} ({uid})")
    assert out(run("run", "--read-only-root", "off", "-u", "root", "id", "-u")) == "0\n"
    assert "--user wants" in refused(run("run", "-u", "", "true"))


def test_a_quota_is_a_size(run):
    r = run("run", "--quota", "8m", "--best-effort", "sh", "-c", "df -m /workspace | tail -1")
    assert r.returncode == 0, r
    assert "less than 1 MiB" in refused(run("run", "--quota", "8", "true"))


def test_v_is_a_mount(run, shared_dir):
    (shared_dir / "f").write_text("host\n")
    assert out(run("run", "-v", f"{shared_dir}:/data:ro", "cat", "/data/f")) == "host\n"
    assert run("run", f"--volume={shared_dir}:/data:ro", "touch", "/data/g").returncode == 1
    out(run("run", "-v", f"{shared_dir}:/data", "touch", "/data/g"))
    assert (shared_dir / "g").exists()


@pytest.fixture
def shared_dir():
    path = mount_dir("box-words-")
    path.chmod(0o777)
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)


def test_rm_removes_a_named_session_at_the_end_and_no_other(run, api, name):
    assert out(run("run", "--rm", "--name", name, "sh", "-c", "echo made")) == "made\n"
    assert name not in [s["session_id"] for s in api.ps()]
    assert run("run", "--rm", "--name", name, "sh", "-c", "exit 7").returncode == 7
    assert name not in [s["session_id"] for s in api.ps()]
    out(run("run", "--name", name, "sh", "-c", "echo kept >note"))
    assert f"session '{name}' exists, and --rm would remove it" in refused(run("run", "--rm", "--name", name, "true"))
    assert out(run("exec", name, "cat", "note")) == "kept\n"
    out(run("run", "--rm", "true"))


def test_an_entrypoint_takes_the_command_as_arguments(run):
    assert out(run("run", "--entrypoint", "echo", "--", "-n", "a")) == "a"
    assert out(run("run", "--entrypoint", "pwd")) == "/workspace\n"


def test_a_terminal_that_is_not_there_is_refused_at_once(run, boxd_shared, tmp_path):
    for words in (["run", "-it", "bash"], ["run", "-i", "-t", "--", "bash"], ["exec", "-it", "nobody", "sh"]):
        assert refused(run(*words)).startswith("box: the input device is not a TTY; ")
    # Before a boxd is looked for.
    r = box("run", "-it", "bash", sock=tmp_path / "none.sock")
    assert r.returncode == 125 and "not a TTY" in r.stderr


def test_box_obeys_a_sigterm_that_its_command_ignores(boxd_shared):
    command = [str(BUILD / "box"), "run", "sh", "-c", "trap '' TERM; echo go; while :; do sleep 1; done"]
    p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         env={**os.environ, "BOX_HOST": f"unix://{boxd_shared.sock}"})
    try:
        assert p.stdout.readline() == b"go\n"
        p.send_signal(signal.SIGTERM)
        assert p.wait(timeout=40) == 143
    finally:
        p.kill()
        p.communicate()


def test_the_working_directory_that_cannot_be_had_says_what_to_do(run):
    r = run("run", "-w", "/nope", "true")
    assert r.returncode == 126
    assert r.stderr == ("box: true: working directory: it is not there and cannot be made; name one that exists, or "
                        "one below /workspace or /tmp: Read-only file system\n")


@pytest.mark.parametrize("words, say", [
    (["rnu"], "unknown verb 'rnu'; did you mean 'box run'?"),
    (["mcp"], "'box mcp' wants one of: "),
    (["run", "--memroy", "1g", "x"], "unknown option '--memroy' of run; did you mean '--memory'?"),
    (["pull", "alpine"], "there is no 'box pull': "),
    (["build", "."], "there is no 'box build': "),
    (["network", "ls"], "there is no 'box network': "),
    (["update", "x", "--quota", "1g"], "there is no --quota: the disk of a session has its size from the start"),
    (["update", "x"], "'box update' wants --memory, --cpus or --pids"),
])
def test_words_that_box_lacks_are_answered_with_those_it_has(run, words, say):
    assert refused(run(*words)).startswith(f"box: {say}")


# What there is: ls, inspect, events, --format.


def test_lists_can_be_read_by_programs(run, api, name):
    assert run("run", "--name", name, "--best-effort", "-m", "96m", "true").returncode == 0
    assert name in out(run("ls")) and out(run("ls")).startswith("SESSION")
    assert name in out(run("ps", "-q")).splitlines()
    lines = out(run("ps", "--format", "json")).splitlines()
    (session,) = [s for s in map(json.loads, lines) if s["session_id"] == name]
    assert session["memory_mb"] == 96
    assert f"{name} ready 96" in out(run("ps", "--format", "{{.Names}} {{.State}} {{.memory_mb}}")).splitlines()
    table = out(run("ps", "--format", r"table {{.Name}}\t{{.Image}}")).splitlines()
    assert table[0].split() == ["NAME", "IMAGE"] and [name, "host"] in [line.split() for line in table]
    assert "there is no '.Foo' here; there are .session_id" in refused(run("ps", "--format", "{{.Foo}}"))
    assert "is not understood" in refused(run("ps", "--format", "{{range .}}"))
    assert out(run("rm", "-f", name)) == ""


def test_inspect_tells_all_of_a_session(run, api, name):
    out(run("run", "--name", name, "true"))
    api.call("POST", f"/v1/sessions/{name}/processes", {"process_id": "p1", "command": "sleep", "args": ["60"]})
    text = out(run("inspect", name))
    (session,) = json.loads(text)
    assert text.startswith('[\n  {\n    "session_id": "'), text[:60]
    assert session["receipt"]["namespaces"]["pid"] == "private" and session["memory_mb"] == 512
    assert [p["process_id"] for p in session["processes"]] == ["p1"]
    assert isinstance(session["recent_execs"], list)
    assert out(run("inspect", "-f", "{{.receipt.namespaces.pid}}", name)) == "private\n"
    r = run("inspect", name, "nobody")
    assert r.returncode == 125 and "nobody not found" in r.stderr and len(json.loads(r.stdout)) == 1
    r = run("inspect", "nobody")
    assert r.returncode == 125 and json.loads(r.stdout) == []


def test_events_are_told_as_they_happen(boxd_shared, api, name):
    env = {**os.environ, "BOX_HOST": f"unix://{boxd_shared.sock}"}

    def first(*words):
        """The first line; sessions come and go until there is one."""
        p = subprocess.Popen([str(BUILD / "box"), "events", *words], stdout=subprocess.PIPE, text=True, env=env)
        try:
            while not select.select([p.stdout], [], [], 0.1)[0]:
                api.new(name)
                api.rm(name)
            line = p.stdout.readline()
            p.send_signal(signal.SIGTERM)
            assert p.wait(timeout=20) == 143
            return line
        finally:
            p.kill()
            p.communicate()

    assert re.fullmatch(rf"\S+T\S+ session\.(created|deleted) {name}\n", first(name))
    event = json.loads(first(name, "--json"))
    assert event["session_id"] == name and event["type"].startswith("session.")
    assert first("--format", "{{.type}}|{{.Name}}", name) in (f"session.created|{name}\n", f"session.deleted|{name}\n")
    # A reader that leaves ends it.
    p = subprocess.Popen(f"{BUILD}/box events {name} | head -n1", shell=True, stdout=subprocess.PIPE, env=env)
    while p.poll() is None:
        api.new(name)
        api.rm(name)
    assert name.encode() in p.communicate()[0]


# What is told while box waits.


class Slow(socketserver.StreamRequestHandler):
    """A boxd that reads each request to its end, and answers when it is told to."""

    def handle(self):
        body = b"chunked" in b"".join(iter(self.rfile.readline, b"\r\n"))
        while body and self.rfile.readline() != b"0\r\n":
            pass
        self.server.asked.release()
        assert self.server.go.wait(60)
        self.wfile.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")


@pytest.fixture
def slow(tmp_path):
    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "slow.sock"), Slow) as server:
        server.go, server.asked = threading.Event(), threading.Semaphore(0)
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        yield server
        server.go.set()
        server.shutdown()


def typed(sock, *args):
    """In the foreground of a terminal of its own."""
    pid, master = pty.fork()
    if pid == 0:
        os.execve(BUILD / "box", ["box", *args], {**os.environ, "BOX_HOST": f"unix://{sock}"})
    return pid, master


def shown(terminal, until=None):
    text = b""
    while until is None or until not in text:
        try:
            text += os.read(terminal[1], 4096)
        except OSError:  # the other side is closed
            assert os.waitstatus_to_exitcode(os.waitpid(terminal[0], 0)[1]) == 0
            break
    return text


def test_a_line_tells_of_a_long_wait_on_a_terminal_only(slow, tmp_path):
    (tmp_path / "f").write_bytes(bytes(3 << 20))
    sock, copy = slow.server_address, ("cp", str(tmp_path / "f"), "s:/tmp/f")
    env = {**os.environ, "BOX_HOST": f"unix://{sock}"}
    plain = subprocess.Popen([str(BUILD / "box"), "stop", "s"], env=env, stderr=subprocess.PIPE)
    quiet, copies, waits = typed(sock, copy[0], "-q", *copy[1:]), typed(sock, *copy), typed(sock, "stop", "s")
    for _ in range(4):
        assert slow.asked.acquire(timeout=60)
    seen = shown(waits, b"1 s"), shown(copies, b"1 s")
    slow.go.set()
    assert seen[0].startswith(b"\rbox: waiting for boxd, 1 s") and seen[1].startswith(b"\rbox: copying, 3.0 MiB, 1 s")
    for terminal in (waits, copies):  # it goes without a trace, and without an escape sequence
        rest = shown(terminal)
        assert re.fullmatch(rb"(\rbox: [^\r]*)*\r +\r", rest) and b"\033" not in rest, rest
    assert shown(quiet) == b"" and plain.communicate(timeout=60) == (None, b"") and plain.returncode == 0
