# SPDX-License-Identifier: Apache-2.0
"""The relay to managed processes: a text message for each line, whoever comes and goes."""

import itertools
import json
import signal
import socket
import threading

import pytest
from boxlib import Boxd
from lbwire import (BINARY, PING, PONG, Closed, Refused, Rpc, WebSocket, context, eventually, free_port, http_get,
                    namespace, physical, relay_headers, relay_path)

_workspaces = itertools.count()


class Place:
    """A session `s` of a workspace of its own, and relays to its processes."""

    def __init__(self, address, ctx):
        self.address, self.rpc = address, Rpc(address, ctx=ctx)
        self.ctx = ctx
        self.rpc.call("box_create_session", {"session_id": "s"})

    def start(self, *argv, process_id="default", **spec):
        return self.rpc.call("box_start_managed_process", {"session_id": "s", "spec": {
            "process_id": process_id, "command": argv[0], "args": list(argv[1:]), **spec}})

    def python(self, text, **spec):
        return self.start("python3", "-uc", text, **spec)

    def get(self, process_id="default"):
        return self.rpc.call("box_get_managed_process", {"session_id": "s", "process_id": process_id})

    def path(self, process_id="default"):
        return relay_path("s", process_id, workspace=self.ctx["workspace_uuid"],
                          generation=self.ctx["placement_generation"])

    def headers(self, **more):
        return relay_headers(workspace=self.ctx["workspace_uuid"], generation=self.ctx["placement_generation"], **more)

    def relay(self, process_id="default", timeout=60):
        return WebSocket(self.address, self.path(process_id), self.headers(), timeout)

    def close(self):
        with Rpc(self.address, ctx=self.ctx) as r:
            for s in r.call("box_get_sessions")["sessions"]:
                r.call("box_delete_session", {"session_id": s["session_id"]})
        self.rpc.ws.sock.close()


@pytest.fixture(scope="module")
def daemon():
    port = free_port()
    d = Boxd("--ws-control-port", str(port))
    d.tcp = ("127.0.0.1", port)
    yield d
    d.close()


@pytest.fixture(params=["tcp", "unix"])
def place(daemon, request):
    address = daemon.tcp if request.param == "tcp" else daemon.sock
    p = Place(address, context(f"r{next(_workspaces)}"))
    yield p
    p.close()


@pytest.fixture
def tcp(daemon):
    p = Place(daemon.tcp, context(f"t{next(_workspaces)}"))
    yield p
    p.close()


def close_of(ws):
    with pytest.raises(Closed) as e:
        ws.recv()
    return e.value.code, e.value.reason


# Rows of the seeds.

def test_row_T60_row_I09_echo(place):
    place.start("cat")
    with place.relay() as ws:
        assert ws.headers["sec-websocket-protocol"] == "mcp"
        ws.send("hello from test")
        assert ws.recv() == "hello from test"
        assert place.get()["attached"] is True
    assert eventually(lambda: place.get()["attached"] is False)


def test_the_old_path_means_the_default_process(place):
    place.start("cat")
    path = place.path().replace("/default/ws", "/ws")
    with WebSocket(place.address, path, place.headers(protocol=None)) as ws:
        assert "sec-websocket-protocol" not in ws.headers
        ws.send("x")
        assert ws.recv() == "x"


# Lines.

def test_bug_01_a_message_is_a_line(place):
    """Upstream: raw reads of 64 KiB; two lines in one message or one in two are lost on LangBot."""
    place.python("import os, sys\n"
                 "print('one\\ntwo'); sys.stdout.write('thr'); sys.stdout.flush(); sys.stdin.readline()\n"
                 "sys.stdout.write('ee\\n\\n€'); sys.stdout.flush()\n"
                 "os.write(1, b'\\xe2\\x82'); sys.stdin.readline()\n"
                 "os.write(1, b'\\xac\\xff\\n'); print('x' * 5000000)\n"
                 "sys.stdout.write('no end'); sys.stdout.flush()\n")
    with place.relay() as ws:
        assert [ws.recv(), ws.recv()] == ["one", "two"]
        assert not ws.pending(0.2)  # half a line is no message
        ws.send("go")
        assert [ws.recv(), ws.recv()] == ["three", ""]
        ws.send("on")
        assert ws.recv() == "€€�"
        assert ws.recv() == "x" * 5000000  # far longer than the buffer in the sandbox
        assert ws.recv() == "no end"
        assert close_of(ws) == (1000, "")


def test_a_line_beyond_the_limit_is_split(tcp):
    limit = 16 * 1024 * 1024
    tcp.python(f"import sys; sys.stdout.write('y' * {limit + 5} + '\\nlast\\n')")
    with tcp.relay() as ws:
        assert [len(ws.recv()), ws.recv(), ws.recv()] == [limit, "yyyyy", "last"]
        assert close_of(ws) == (1000, "")


def test_every_message_gets_a_newline(place):
    place.python("import sys\nfor line in sys.stdin.buffer:\n    print(repr(line))")
    with place.relay() as ws:
        ws.send("a")
        ws.frame(BINARY, b"ignored")
        ws.send("b\nc")
        ws.send("")
        ws.send("é\r")
        assert [ws.recv() for _ in range(5)] == [r"b'a\n'", r"b'b\n'", r"b'c\n'", r"b'\n'", r"b'\xc3\xa9\r\n'"]


def test_large_messages_arrive_whole(tcp):
    tcp.python("import sys\nfor line in sys.stdin:\n    print(len(line), line == 'z' * (len(line) - 1) + '\\n')")
    with tcp.relay() as ws:
        for size in (65535, 65536, 1_000_000, 16 * 1024 * 1024 - 1):
            ws.send("z" * size)
            assert ws.recv() == f"{size + 1} True"
        ws.sock.sendall(b"\x81\xff\0\0\0\0\1\0\0\1" + b"\0" * 4)
        assert close_of(ws)[0] == 1009


def test_json_rpc_lines_in_bulk(place):
    place.start("cat")
    count = 3000
    with place.relay() as ws:
        thread = threading.Thread(target=lambda: [ws.send(json.dumps({"id": i, "x": "é" * 50})) for i in range(count)])
        thread.start()
        for i in range(count):
            assert json.loads(ws.recv()) == {"id": i, "x": "é" * 50}
        thread.join()


# Refusals, before the upgrade.

def refusal(place, path=None, **headers):
    with pytest.raises(Refused) as e:
        WebSocket(place.address, path or place.path(), {**place.headers(), **headers})
    return e.value.status, e.value.body


def test_refusals_of_strangers(tcp):
    tcp.start("cat")
    for headers in ({"X-LangBot-Instance-Id": "other"}, {"X-LangBot-Workspace-Id": "other"},
                    {"X-LangBot-Workspace-Id": " "}, {"X-LangBot-Workspace-Id": "w" * 257},
                    {"X-LangBot-Placement-Generation": "2"}, {"X-LangBot-Placement-Generation": "01"},
                    {"X-LangBot-Placement-Generation": "+1"}, {"X-LangBot-Placement-Generation": "0"},
                    {"X-LangBot-Placement-Generation": "x"}, {"X-LangBot-Placement-Generation": ""}):
        assert refusal(tcp, **headers) == (401, b"Unauthorized"), headers
    for path in (relay_path("s", workspace="other"), tcp.path().replace("-g1-s/", "-g2-s/"),
                 tcp.path().replace("-g1-s/", "-g1-/"), "/v1/sessions/s/managed-process/default/ws"):
        assert refusal(tcp, path) == (401, b"Unauthorized"), path
    assert http_get(tcp.address, tcp.path(), tcp.headers())[0] == 400  # no upgrade


def test_refusals_say_what_is_missing(tcp):
    name = physical("s", tcp.ctx["workspace_uuid"])
    status, body = refusal(tcp)
    assert status == 400 and json.loads(body) == {"error": {
        "code": "BoxManagedProcessNotFoundError",
        "message": f"session {name} has no managed process with process_id=default"}}
    tcp.start("true")
    assert eventually(lambda: tcp.get()["status"] == "exited")
    assert json.loads(refusal(tcp)[1]) == {"error": {
        "code": "BoxManagedProcessConflictError",
        "message": f"managed process default in session {name} is not running"}}
    path = tcp.path().replace(name, name[:-1] + "none")
    assert json.loads(refusal(tcp, path)[1]) == {"error": {
        "code": "BoxSessionNotFoundError", "message": f"session {name[:-1]}none not found"}}


def test_names_in_the_path_are_decoded(tcp):
    tcp.start("cat", process_id="a b/c")
    with WebSocket(tcp.address, tcp.path("a%20b%2Fc"), tcp.headers()) as ws:
        ws.send("x")
        assert ws.recv() == "x"


# One reader at a time.

def test_bug_20_the_second_reader_waits_and_is_kept_alive(place):
    """Upstream: nobody answered the pings of a client that waits."""
    place.start("cat")
    with place.relay() as first, place.relay() as second, place.relay() as third:
        first.send("1")
        assert first.recv() == "1"
        second.send("early")
        third.send("later")
        for ws in (second, third):
            ws.frame(PING, b"hi")
            assert ws.recv_frame() == (PONG, b"hi")
        assert not second.pending(0.1)
        first.send("2")
        assert first.recv() == "2"
        first.close()
        assert second.recv() == "early"
        second.send("mine")
        assert second.recv() == "mine"
        second.close()
        assert third.recv() == "later"


def test_a_waiting_reader_that_leaves_is_forgotten(place):
    place.start("cat")
    with place.relay() as first:
        for _ in range(5):
            place.relay().vanish()
        first.send("still")
        assert first.recv() == "still"
        first.close()
    with place.relay() as ws:
        ws.send("x")
        assert ws.recv() == "x"


def test_relays_end_with_the_process(place):
    place.start("cat")
    with place.relay() as ws, place.relay() as waiting:
        ws.send("x")
        assert ws.recv() == "x"
        place.start("cat")  # replaced
        assert close_of(ws) == (1000, "") and close_of(waiting) == (1000, "")
    with place.relay() as ws:
        place.rpc.call("box_stop_managed_process", {"session_id": "s"})
        assert close_of(ws) == (1000, "")
    place.start("cat")
    with place.relay() as ws:
        place.rpc.call("box_delete_session", {"session_id": "s"})
        assert close_of(ws) == (1000, "")


def test_a_newer_generation_closes_relays(tcp):
    tcp.start("cat")
    with tcp.relay() as ws:
        ws.send("x")
        assert ws.recv() == "x"
        tcp.ctx = {**tcp.ctx, "placement_generation": 2}
        tcp.rpc.call("box_status", ctx=tcp.ctx)
        assert close_of(ws) == (1000, "")


def test_the_daemon_says_good_bye():
    d = Boxd()
    try:
        place = Place(d.sock, context())
        place.start("cat")
        with place.relay() as ws:
            d.process.send_signal(signal.SIGTERM)
            assert close_of(ws) == (1001, "Box runtime shutting down")
    finally:
        d.close()


# Back-pressure, and who has what.

def test_a_reader_that_does_not_read_holds_the_process_back(place):
    place.python("import sys\nfor i in range(200000):\n    print(i, 'x' * 100)\n    "
                 "(i % 100) or (sys.stderr.write('\\r%d' % i), sys.stderr.flush())\n")
    with place.relay() as ws:
        assert ws.recv().startswith("0 ")

        def standing():
            before = place.get()["stderr_preview"]
            eventually(lambda: place.get()["stderr_preview"] != before, 0.5)
            return place.get()["stderr_preview"] == before

        assert eventually(standing, 30)
        assert place.get()["status"] == "running"
        for i in range(1, 200000):
            assert ws.recv().startswith(f"{i} ")
        assert close_of(ws) == (1000, "")


def test_a_process_that_does_not_read_holds_its_client_back(place):
    place.python("import sys\nsys.stdout.write('ready\\n')\nimport time\n"
                 "while not __import__('os').path.exists('/tmp/go'): time.sleep(0.01)\n"
                 "print(sum(len(line) for line in sys.stdin))")
    with place.relay() as ws:
        assert ws.recv() == "ready"
        ws.sock.settimeout(1)
        sent = 0
        with pytest.raises((socket.timeout, BlockingIOError)):
            while sent < 200:
                ws.send("b" * 999_999)
                sent += 1
        assert 0 < sent < 200  # far less than all of it fits in between
    assert place.rpc.exec("s", "touch /tmp/go")["exit_code"] == 0
    assert place.get()["status"] == "running"  # leaving closes nothing


def test_output_waits_for_a_reader(place):
    place.python("for i in range(50): print('line', i)\nimport time\ntime.sleep(600)")
    with place.relay() as ws:
        assert [ws.recv() for _ in range(50)] == [f"line {i}" for i in range(50)]
        ws.close()
    with place.relay() as ws:
        assert not ws.pending(0.2)  # nothing is told twice


def test_a_reader_that_vanishes_loses_no_line(tcp):
    """What the kernel at the other end has not acknowledged is told again to the next."""
    tcp.python("import sys\nfor i in range(100000): print(i)\nsys.stdin.read()")
    seen = []
    while not seen or seen[-1] != 99999:
        ws = tcp.relay(timeout=10)
        before = len(seen)
        while len(seen) < before + 7000 and (len(seen) == before or seen[-1] != 99999):
            seen.append(int(ws.recv()))
        ws.sock.shutdown(socket.SHUT_WR)  # gone without a word; what has arrived here is still read
        try:
            while True:
                seen.append(int(ws.recv()))
        except (Closed, OSError):
            ws.sock.close()
    assert set(seen) == set(range(100000)), "a line was lost"


def test_a_killed_daemon_loses_no_line():
    d = Boxd()
    try:
        place = Place(d.sock, context())
        place.python("import sys\nfor i in range(60000): print('n', i)\nsys.stdin.read()")
        seen, ws = [], place.relay()
        for _ in range(5000):
            seen.append(int(ws.recv().split()[1]))
        d.stop(signal.SIGKILL)
        try:
            while True:
                seen.append(int(ws.recv().split()[1]))
        except (Closed, OSError):
            pass
        d.start()
        place = Place(d.sock, context())
        with place.relay() as ws:
            while seen[-1] != 59999:
                seen.append(int(ws.recv().split()[1]))
        assert sorted(set(seen)) == list(range(60000)), "a line was lost"
    finally:
        d.close()


def test_namespaces_are_as_the_client_computes_them():
    assert namespace() == "ws-5ae072b797fd533f5dc5cc63"
