# SPDX-License-Identifier: Apache-2.0
"""Action RPC over the pipes of a boxd that its host started for itself (boxd -s)."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile

import pytest
from boxlib import BUILD, Boxd
from lbwire import INSTANCE, Closed, Rpc, RpcError, Stdio, WebSocket, free_port, http_get, relay_headers, relay_path


@contextlib.contextmanager
def hosted(*args, port=None, env=None, **popen):
    """A boxd of our own, as LangBot starts its runtime."""
    state = pathlib.Path(tempfile.mkdtemp(prefix="box-stdio-", dir="/tmp"))
    state.chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("BOX_", "LANGBOT_"))}
    environment.update({"LANGBOT_BOX_TRUSTED_INSTANCE_UUID": INSTANCE, **(env or {})})
    log = open(state.with_suffix(".log"), "wb")
    command = [str(BUILD / "boxd"), "-s", "--state-dir", str(state), "--ws-control-port", str(port or 0), *args]
    host = Stdio(command, env=environment, stderr=log, **popen)
    host.state, host.log = state, state.with_suffix(".log")
    try:
        yield host
    finally:
        with contextlib.suppress(OSError):
            host.process.stdin.close()
        try:
            host.process.wait(30)
        except subprocess.TimeoutExpired:
            host.process.kill()
            host.process.wait()
        log.close()
        shutil.rmtree(state, ignore_errors=True)
        host.log.unlink()


@pytest.fixture
def host():
    with hosted() as h:
        yield h


def test_row_I05_commands_over_pipes(host):
    assert host.call("__ping", ctx=None) == {}
    assert host.call("box_init", {"limits": {"max_sessions": 5}}, ctx=None) == {"initialized": True}
    assert host.exec("s", "echo hi")["stdout"] == "hi"
    with pytest.raises(RpcError, match="^BoxSessionNotFoundError"):
        host.call("box_get_session", {"session_id": "none"})


def test_the_end_of_stdin_ends_everything(host):
    host.call("box_create_session", {"session_id": "s", "persistent": True})
    host.start("box_exec", {"session_id": "s", "cmd": "sleep 600", "timeout_sec": 600})
    host.call("__ping", ctx=None)
    host.process.stdin.close()
    with pytest.raises(Closed):
        host.hear()
    assert host.process.wait(30) == 0
    assert not list((host.state / "sessions").glob("*"))


def test_nothing_else_is_on_stdout(host):
    """Bug 15 of upstream: what it started shared its pipes."""
    host.exec("s", "echo nothing > /proc/self/fd/1; ls -l /proc/self/fd")
    host.call("__ping", ctx=None)
    for pid in [host.process.pid, *children(host.process.pid)]:
        targets = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1)]
        assert targets == ["/dev/null", "/dev/null"], (pid, targets)
    pipe = os.readlink(f"/proc/{os.getpid()}/fd/{host.process.stdout.fileno()}")
    for pid in children(host.process.pid):
        held = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        assert pipe not in held
    host.process.stdin.close()
    rest = host.process.stdout.read()
    assert rest == b""


def children(pid):
    return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_large_messages_go_in_pieces(host):
    text = "€\"\\" * 200_000
    r = host.exec("s", f"cat <<'END'\n{text}\nEND")
    assert r["stdout"] == text  # both ways, far above one line
    r = host.exec("s", "head -c 3000000 /dev/zero | tr '\\0' '\\1'")
    assert r["stdout"].startswith("\x01" * 1000)


def test_lines_that_are_no_messages_are_skipped(host):
    for line in ("\n", "hello\n", "{half\n", "  \r\n", '{"type": "chunk_end"}\n', '{"type":"chunk_data","data":"x"}\n',
                 "[1]\n", "\xff\n".encode("latin-1")):
        host.raw(line)
    host.raw('   {"seq_id": 9, "action": "__ping", "data": {}}   \n')
    assert json.loads(host.hear())["seq_id"] == 9


@pytest.mark.parametrize("lines", [
    ['{"type": "chunk_start", "total_size": 16777217}'],
    ['{"type": "chunk_start", "total_size": 3}', '{"type": "chunk_data", "data": "a", "offset": 1}'],
    ['{"type": "chunk_start", "total_size": 3}', '{"type": "chunk_end"}'],
    ['{"type": "chunk_start", "total_size": 1}', '{"type": "chunk_data", "data": "ab", "offset": 0}'],
])
def test_a_broken_message_ends_it(host, lines):
    for line in lines:
        host.raw(line + "\n")
    with pytest.raises(Closed):
        host.hear()
    assert host.process.wait(30) == 0


def test_an_instance_is_required():
    with hosted(env={"LANGBOT_BOX_TRUSTED_INSTANCE_UUID": ""}) as h:
        with pytest.raises(Closed):
            h.hear()
        assert h.process.wait(30) == 1
        assert b"LANGBOT_BOX_TRUSTED_INSTANCE_UUID is required for stdio Box control" in h.log.read_bytes()


def test_the_relay_is_there_as_well():
    port, token = free_port(), "0123456789abcdef0123456789abcdef"
    with hosted(port=port, env={"LANGBOT_BOX_CONTROL_TOKEN": token}) as h:
        h.call("box_create_session", {"session_id": "s"})
        h.call("box_start_managed_process", {"session_id": "s", "spec": {"command": "cat"}})
        with WebSocket(("127.0.0.1", port), relay_path("s"), relay_headers(token=token)) as ws:
            ws.send("over the pipe's other half")
            assert ws.recv() == "over the pipe's other half"
        with Rpc(("127.0.0.1", port), token=token) as r:  # and even this
            assert [s["session_id"] for s in r.call("box_get_sessions")["sessions"]] == ["s"]
        assert http_get(("127.0.0.1", port), "/healthz")[0] == 200


def test_a_port_that_is_taken_is_only_a_warning():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with hosted(port=port) as h:
            assert h.exec("s", "echo all the same")["stdout"] == "all the same"
            assert b"Managed process WebSocket attach will be unavailable." in h.log.read_bytes()
        with pytest.raises(RuntimeError):  # elsewhere it is fatal
            Boxd("--ws-control-port", str(port))


def test_sigterm_ends_it_as_well(host):
    host.call("box_create_session", {"session_id": "s"})
    host.process.send_signal(signal.SIGTERM)
    assert host.process.wait(30) == 0


def test_a_socket_is_a_pipe_too():
    """asyncio gives its children a socket for stdin."""
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as stack:
        h = stack.enter_context(hosted())
        h.call("__ping", ctx=None)
    state = tempfile.mkdtemp(prefix="box-stdio-", dir="/tmp")
    env = {**os.environ, "LANGBOT_BOX_TRUSTED_INSTANCE_UUID": INSTANCE}
    p = subprocess.Popen([str(BUILD / "boxd"), "-s", "--state-dir", state, "--ws-control-port", "0"], stdin=theirs,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env)
    theirs.close()
    try:
        ours.sendall(b'{"seq_id": 1, "action": "__ping", "data": {}}\n')
        assert json.loads(p.stdout.readline())["seq_id"] == 1
        ours.close()
        assert p.wait(30) == 0
    finally:
        p.kill()
        p.wait()
        p.stdout.close()
        shutil.rmtree(state, ignore_errors=True)


def test_a_file_is_read_to_its_end():
    state = tempfile.mkdtemp(prefix="box-stdio-", dir="/tmp")
    env = {**os.environ, "LANGBOT_BOX_TRUSTED_INSTANCE_UUID": INSTANCE}
    try:
        with tempfile.TemporaryFile() as f:
            f.write(b'{"seq_id": 1, "action": "__ping", "data": {}}\n' * 3)
            f.seek(0)
            done = subprocess.run([str(BUILD / "boxd"), "-s", "--state-dir", state, "--ws-control-port", "0"], stdin=f,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, timeout=60, check=False)
        assert done.returncode == 0 and len(done.stdout.splitlines()) == 3
    finally:
        shutil.rmtree(state, ignore_errors=True)
