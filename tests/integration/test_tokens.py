# SPDX-License-Identifier: Apache-2.0
"""A token is replaced while boxd serves: check I19 of the catalogue."""

import os
import pathlib
import socket
import tempfile
import threading
import time

import pytest
from boxlib import Boxd
from hostlib import SCALE, until
from lbwire import Closed, Refused, Rpc, RpcError, WebSocket, relay
from rawlib import Wire
from ssetext import Events

OLD, NEW = "the-token-of-yesterday-0123456789abcdef", "the-token-of-today-0123456789abcdefghij"


class Daemon(Boxd):
    """With a token of its own, which tests replace."""

    def __init__(self, **env):
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="box-token-"))
        self.top.chmod(0o755)
        self.token_path = self.top / "token"
        self.put(OLD)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.where = s.getsockname()
        super().__init__("--ws-control-port", str(self.where[1]), env={"BOX_TOKEN_FILE": str(self.token_path), **env})

    def put(self, text, mode=0o644):
        """As a careful person does: beside it, then in its place."""
        fresh = self.top / "token.new"
        fresh.write_text(text + "\n")
        fresh.chmod(mode)
        fresh.rename(self.token_path)

    def status(self, token):
        with Wire(self.where) as w:
            w.send(f"GET /v1/sessions HTTP/1.1\r\nHost: {w.host}\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
            return w.answer()[0]

    def rpc(self, token, **more):
        return Rpc(self.where, token=token, timeout=120 * SCALE, **more)

    def close(self):
        super().close()
        for path in self.top.iterdir():
            path.unlink()
        self.top.rmdir()


@pytest.fixture
def tcp():
    daemon = Daemon()
    yield daemon
    daemon.close()


def dies_within_a_second(daemon, token):
    begin = time.monotonic()
    until(lambda: daemon.status(token) == 401, what="the end of the token")
    assert time.monotonic() - begin < 1.0 * SCALE + 0.5 * os.getloadavg()[0] / os.cpu_count()


def refused(daemon, token):
    try:
        daemon.rpc(token).ws.sock.close()
    except Refused as error:
        return error.status
    return 101


@pytest.mark.parametrize("way", ["rename", "in place"])
def test_check_I19_the_old_token_dies_and_the_new_one_counts(tcp, way):
    assert (tcp.status(OLD), tcp.status(NEW), refused(tcp, NEW)) == (200, 401, 401)
    if way == "rename":
        tcp.put(NEW)
    else:
        tcp.token_path.write_text(NEW)
    dies_within_a_second(tcp, OLD)
    assert (tcp.status(NEW), refused(tcp, OLD), refused(tcp, NEW)) == (200, 401, 101)
    assert OLD not in tcp.log() and NEW not in tcp.log()


def test_check_I19_a_file_that_only_root_may_read_is_written_in_place():
    """boxd is root no more when it looks again; the file that it opened before serves on."""
    daemon = Daemon()
    try:
        daemon.token_path.chmod(0o600)
        daemon.token_path.write_text(NEW)
        dies_within_a_second(daemon, OLD)
        assert daemon.status(NEW) == 200
        # One that was put in its place cannot be read: nobody comes in, and the log says what to do about it.
        daemon.put(OLD, mode=0o600)
        dies_within_a_second(daemon, NEW)
        assert daemon.status(OLD) == 401 and refused(daemon, OLD) == 401
        assert "Permission denied" in daemon.log() and "no TCP client is let in" in daemon.log()
        assert daemon.client().ps() == []  # the unix socket asks for no token
        daemon.token_path.chmod(0o644)
        until(lambda: daemon.status(OLD) == 200, what="the token that can be read")
    finally:
        daemon.close()


@pytest.mark.parametrize("damage", ["missing", "empty", "short", "directory", "huge", "fifo"])
def test_check_I19_without_a_good_token_nobody_comes_in(tcp, damage):
    if damage == "missing":
        tcp.token_path.unlink()
    elif damage == "directory":
        tcp.token_path.unlink()
        tcp.token_path.mkdir()
    elif damage == "fifo":
        tcp.token_path.unlink()
        os.mkfifo(tcp.token_path)
    else:
        tcp.token_path.write_text({"empty": "", "short": "x" * 31, "huge": "x" * 5000}[damage])
    dies_within_a_second(tcp, OLD)
    for guess in ("", "x" * 31, "x" * 5000, OLD, NEW):
        assert tcp.status(guess) in (401, 431) and refused(tcp, guess or None) in (401, 431)
    assert tcp.log().count("no TCP client is let in") == 1
    if damage == "directory":
        tcp.token_path.rmdir()
    tcp.put(NEW)
    until(lambda: tcp.status(NEW) == 200, what="the new token")


def test_check_I19_no_command_is_dropped(tcp):
    """On a WebSocket that the old token opened the answers still come; then it ends, and nothing new is begun."""
    results = {}
    with tcp.rpc(OLD) as rpc, tcp.rpc(OLD) as idle:
        idle.call("box_health", ctx=None)
        rpc.call("box_init", {}, ctx=None)
        rpc.call("box_create_session", {"session_id": "s"})
        rpc.call("box_start_managed_process", {"session_id": "s", "spec": {"command": "cat"}})
        seq = rpc.start("box_exec", {"session_id": "s", "timeout_sec": 60,
                                     "cmd": "echo begun > /workspace/begun; while [ ! -e /workspace/go ]; do "
                                            "sleep 0.02; done; echo done"})
        plain = tcp.client()
        name = plain.ps()[0]["session_id"]
        until(lambda: plain.sh(name, "cat /workspace/begun")["stdout"] == "begun\n", what="the command")
        http = threading.Thread(target=over_http, args=(tcp, name, results))
        http.start()
        until(lambda: plain.ps()[0]["execs"] == 2, what="the command over HTTP")
        with relay(tcp.where, "s", token=OLD, timeout=60 * SCALE) as stream:
            stream.send("to the process")
            assert stream.recv() == "to the process"
            tcp.put(NEW)
            dies_within_a_second(tcp, OLD)
            with pytest.raises(Closed) as ended:
                stream.recv()
            assert (ended.value.code, ended.value.reason) == (1008, "the token has changed")
        with pytest.raises(Closed) as ended:
            idle.call("box_health", ctx=None)
        assert ended.value.code == 1008
        late = rpc.start("box_get_sessions")
        with pytest.raises(RpcError, match="the token has changed"):
            rpc.wait(late)
        plain.sh(name, "touch /workspace/go")
        assert rpc.wait(seq)["stdout"] == "done"
        with pytest.raises(Closed) as ended:
            rpc.hear()
        assert ended.value.code == 1008
        http.join(60 * SCALE)
        assert results["status"] == 200 and b'"stdout":"over http\\n"' in results["body"].replace(b": ", b":")
        with tcp.rpc(NEW) as again, relay(tcp.where, "s", token=NEW, timeout=60 * SCALE) as stream:
            assert [s["session_id"] for s in again.call("box_get_sessions")["sessions"]] == ["s"]
            stream.send("the process has run on")
            assert stream.recv() == "the process has run on"


def test_check_I19_streams_end_with_the_token_that_opened_them(tcp):
    plain = tcp.client()
    plain.new("s")
    auth = {"Authorization": f"Bearer {OLD}"}
    with Events(tcp.sock, "GET", "/v1/events") as local, \
            Events(tcp.where, "GET", "/v1/events", headers=auth) as events, \
            WebSocket(tcp.where, "/v1/exec", auth, timeout=60 * SCALE) as stream:
        assert next(local) and next(events)
        stream.send('{"session": {"session_id": "s"}, "create": false, "cmd": "exec sleep 100000"}')
        until(lambda: plain.get("s")["execs"] == 1, what="the command")
        tcp.put(NEW)
        with pytest.raises(Closed) as ended:
            while True:
                stream.recv()
        assert (ended.value.code, ended.value.reason) == (1008, "the token was removed, has changed or has expired")
        assert [e[0] for e in events][-1] == "revoked"
        until(lambda: plain.get("s")["execs"] == 0, what="the end of the command")
        assert next(local)[0] == "exec.ended"  # nobody asked for a token there


def over_http(daemon, name, results):
    body = b'{"cmd": "while [ ! -e /workspace/go ]; do sleep 0.02; done; echo over http", "timeout_sec": 60}'
    with Wire(daemon.where, timeout=120 * SCALE) as w:
        w.send(f"POST /v1/sessions/{name}/exec HTTP/1.1\r\nHost: {w.host}\r\nAuthorization: Bearer {OLD}\r\n"
               f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        results["status"], _, results["body"] = w.answer()


def test_check_I19_a_connection_of_the_unix_socket_stays(tcp):
    with Rpc(tcp.sock) as rpc:
        rpc.call("box_health", ctx=None)
        tcp.put(NEW)
        dies_within_a_second(tcp, OLD)
        rpc.call("box_health", ctx=None)


def test_check_I19_the_token_of_the_environment_is_another(tcp):
    """What LangBot gave its runtime by the environment does not change with the file."""
    daemon = Daemon(LANGBOT_BOX_CONTROL_TOKEN="x" * 40)
    try:
        with daemon.rpc("x" * 40) as rpc:
            rpc.call("box_health", ctx=None)
            daemon.put(NEW)
            dies_within_a_second(daemon, OLD)
            rpc.call("box_health", ctx=None)
            assert (refused(daemon, NEW), refused(daemon, "x" * 40), daemon.status(NEW)) == (401, 101, 200)
    finally:
        daemon.close()


def test_check_I19_rotation_under_load(tcp):
    """Many rotations while clients that know the newest token work: whoever is let in is answered in full."""
    stop, failures, counts = threading.Event(), [], {"ok": 0, "refused": 0}

    def client(number):
        while not stop.is_set():
            token = tcp.token_path.read_text().strip()
            try:
                with tcp.rpc(token) as rpc:
                    for i in range(3):
                        answer = rpc.exec(f"s{number}", f"echo {number}.{i}")
                        assert answer["stdout"] == f"{number}.{i}", answer
                        counts["ok"] += 1
            except (Refused, RpcError, Closed) as error:
                # Said before anything was begun, or after all that was asked for was answered.
                if "token" not in str(error) and getattr(error, "status", 0) != 401:
                    failures.append(error)
                counts["refused"] += 1
            except Exception as error:  # noqa: BLE001 - told by the test
                failures.append(error)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for i in range(6):
        before = counts["ok"]
        tcp.put(f"{i}-{NEW}")
        until(lambda i=i: tcp.status(f"{i}-{NEW}") == 200, what="the next token")
        until(lambda before=before: counts["ok"] > before or failures, what="work after it")
    stop.set()
    for t in threads:
        t.join(60 * SCALE)
    assert not failures, failures[:3]
    assert counts["ok"] > 12
