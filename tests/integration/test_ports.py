# SPDX-License-Identifier: Apache-2.0
"""Servers inside a session, reached through boxd: by HTTP, by WebSocket, and by published ports."""

import http.client
import json
import os
import signal
import socket
import subprocess
import threading
from contextlib import closing

import pytest
from boxlib import BUILD, ApiError, Boxd, _UnixConnection, box
from hostlib import fd_count, until

pytestmark = pytest.mark.rootless

SERVER = r"""
import base64, hashlib, http.server, json, os, socket, sys

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    chunks = 0

    def log_message(self, *args):
        pass

    def body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while True:
                self.chunks += 1
                n = int(self.rfile.readline(), 16)
                data += self.rfile.read(n)
                self.rfile.readline()
                if n == 0:
                    return data
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def say(self, data, status=200, *headers):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_GET(self):
        if self.path == "/ws":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
            self.end_headers()
            while data := self.connection.recv(65536):
                self.connection.sendall(data)
            self.connection.sendall(b"bye")
            self.close_connection = True
        elif self.path == "/moved":
            self.say(b"", 302, ("Location", "/there"))
        elif self.path == "/cookie":
            self.say(b"", 200, ("Set-Cookie", "a=1; Path=/; HttpOnly; Domain=x"), ("Clear-Site-Data", '"*"'))
        elif self.path == "/large":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for i in range(512):
                self.wfile.write(b"10000\r\n" + bytes([i & 255]) * 65536 + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        elif self.path.startswith("/raw/"):
            self.raw()
        elif self.path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"part")
            self.close_connection = True
        elif self.path == "/garbage":
            self.connection.sendall(b"SSH-2.0-none\r\n\r\n")
            self.close_connection = True
        else:
            self.do_POST()

    def raw(self):
        self.connection.sendall(bytes.fromhex(self.path[5:]))
        self.close_connection = True

    def do_POST(self):
        data = self.body()
        if self.path.startswith("/raw/"):
            return self.raw()
        self.say(json.dumps({"method": self.command, "path": self.path, "headers": self.headers.items(),
                             "len": len(data), "chunks": self.chunks, "sha": hashlib.sha256(data).hexdigest()}).encode())

    do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST

class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET

Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""


def serve(api, sid, port=3000, address="127.0.0.1", managed=True):
    """Starts the server in the session and waits until it answers."""
    if managed:
        api.call("POST", f"/v1/sessions/{sid}/processes", {"process_id": f"web{port}", "command": "python3",
                                                           "args": ["-c", SERVER, address, str(port)], "cwd": "/tmp"})
    else:
        api.x(sid, "sh", "-c", f'python3 -c "$0" {address} {port} </dev/null >/dev/null 2>&1 &', SERVER)

    def answers():
        try:
            api.call("GET", f"/v1/sessions/{sid}/ports/{port}/")
            return True
        except ApiError as e:
            assert e.status == 502
            return False
    until(answers, what="the server in the session")


def connect(sock):
    return _UnixConnection(str(sock), 60)


def ask(sock, method, path, body=None, headers=None, chunked=False):
    conn = connect(sock)
    conn.request(method, path, body, headers or {}, encode_chunked=chunked)
    r = conn.getresponse()
    data = r.read()
    conn.close()
    return r, data


@pytest.fixture
def web(api, boxd_shared, sid):
    serve(api, sid)
    return lambda method, path, *args, **more: ask(boxd_shared.sock, method, f"/v1/sessions/{sid}/ports/3000{path}", *args,
                                                   **more)


def test_a_server_is_reached_without_a_network(api, web, sid):
    assert api.get(sid)["network"] == "off"
    r, data = web("GET", "/a%2Fb/c?x=1&y=%20")
    seen = json.loads(data)
    assert r.status == 200
    assert (seen["method"], seen["path"]) == ("GET", "/a%2Fb/c?x=1&y=%20")


def test_a_server_on_ipv6_only_is_reached(api, boxd_shared, sid):
    serve(api, sid, 3001, "::1")
    r, _ = ask(boxd_shared.sock, "GET", f"/v1/sessions/{sid}/ports/3001/")
    assert r.status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_methods_and_bodies_are_passed_on(web, method):
    r, data = web(method, "/x", b"z" * 3_000_000)
    seen = json.loads(data)
    assert (r.status, seen["method"], seen["len"]) == (200, method, 3_000_000)


def test_a_chunked_body_stays_chunked(web):
    r, data = web("POST", "/x", iter([b"one", b"two" * 50_000]), {"Transfer-Encoding": "chunked"}, chunked=True)
    seen = json.loads(data)
    assert (r.status, seen["len"]) == (200, 150_003)


def test_small_chunks_are_passed_on_together(boxd_shared, web, sid):
    """Each would be a write of its own, and one read has thousands of them."""
    small = b"1\r\nx\r\n" * 500 + b"0\r\n\r\n"
    conn = connect(boxd_shared.sock)
    conn.request("POST", f"/v1/sessions/{sid}/ports/3000/x", iter([small]), {"Transfer-Encoding": "chunked"})
    seen = json.loads(conn.getresponse().read())
    conn.close()
    assert seen["len"] == 500 and seen["chunks"] < 100

    conn = connect(boxd_shared.sock)
    path = "/raw/" + (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + small).hex()
    conn.request("GET", f"/v1/sessions/{sid}/ports/3000{path}", headers={"Connection": "close"})
    answer = read_all(conn.sock).partition(b"\r\n\r\n")[2]
    conn.close()
    assert answer.count(b"x") == 500 and answer.count(b"\r\n") < 100


def test_head_has_the_length_and_no_body(web):
    r, data = web("HEAD", "/x")
    assert (r.status, data) == (200, b"")
    assert int(r.headers["Content-Length"]) > 10


def test_headers_of_hops_and_tokens_are_not_passed_on(web):
    _, data = web("GET", "/", None, {"Authorization": "Bearer secret", "X-Mine": "1", "X-Drop": "2", "TE": "trailers",
                                     "Connection": "X-Drop", "X-Forwarded-For": "6.6.6.6", "Cookie": "k=v"})
    names = {name.lower(): value for name, value in json.loads(data)["headers"]}
    assert names["x-mine"] == "1" and names["cookie"] == "k=v"
    assert not {"authorization", "x-drop", "te"} & set(names)
    assert "secret" not in data.decode()
    assert names.get("x-forwarded-for") != "6.6.6.6"
    assert names["x-forwarded-proto"] == "http"
    assert names["x-forwarded-prefix"].endswith("/ports/3000")


def test_another_scheme_of_authorization_is_the_servers(web):
    _, data = web("GET", "/", None, {"Authorization": "Basic dTpw"})
    assert ["Authorization", "Basic dTpw"] in json.loads(data)["headers"]


def test_redirects_and_cookies_stay_below_the_prefix(web, sid):
    prefix = f"/v1/sessions/{sid}/ports/3000"
    r, _ = web("GET", "/moved")
    assert (r.status, r.headers["Location"]) == (302, prefix + "/there")
    r, _ = web("GET", "/cookie")
    assert r.headers["Set-Cookie"] == f"a=1; HttpOnly; Path={prefix}/"
    assert r.headers["Clear-Site-Data"] is None


def raw(head, body=b""):
    """The path at which the server sends just that."""
    return "/raw/" + (b"HTTP/1.1 " + head.encode() + b"\r\n\r\n" + body).hex()


@pytest.mark.parametrize("value, passed", [(";", ";"), (";Path=/", ""), ("", ""), ("=;;;", "=;;;"), ("a=1;", "a=1;"),
                                           ("a=1;path=/;;DOMAIN=x; Secure", "a=1;; Secure")])
def test_cookies_that_make_no_sense_are_bound_all_the_same(web, sid, value, passed):
    r, _ = web("GET", raw(f"200 OK\r\nContent-Length: 0\r\nSet-Cookie: {value}"))
    assert r.headers["Set-Cookie"] == f"{passed}; Path=/v1/sessions/{sid}/ports/3000/"


# Where it leads for GET and for DELETE: "…" stands for the prefix, None for no header.
@pytest.mark.parametrize("value, read, change", [
    ("/there?to=/../x#/..", "…/there?to=/../x#/..", "…/there?to=/../x#/.."),
    ("there", "there", "there"), ("?a=b:c", "?a=b:c", "?a=b:c"), ("/a..b/...", "…/a..b/...", "…/a..b/..."),
    ("http://localhost/there", "…/there", "…/there"), ("HTTPS://LOCALHOST?x", "…/?x", "…/?x"), ("//localhost", "…/", "…/"),
    ("http://elsewhere.example/x", "http://elsewhere.example/x", None), ("//elsewhere.example", "//elsewhere.example", None),
    ("/../../../../../v1/sessions/victim", None, None), ("../../../victim", None, None), ("..", None, None), (".", None, None),
    ("/a/%2e%2E/x", None, None), ("/.%2e/x", None, None), ("/a/..?x", None, None), ("/a/..#x", None, None),
    ("http://localhost/../v1/sessions/victim", None, None), ("//localhost//victim", None, None),
    ("/\\elsewhere.example", None, None), ("\\\\localhost/v1", None, None), ("/\t/localhost/v1", None, None),
    ("http:/v1/sessions/victim", None, None), ("http:v1", None, None), ("http:///v1/sessions/victim", None, None),
    ("javascript:x", None, None), ("http://me@localhost/v1/sessions/victim", None, None),
    ("http://elsewhere.example\\@localhost/v1", None, None)])
def test_redirects_do_not_lead_to_the_rest_of_the_api(web, sid, value, read, change):
    for method, expected in [("GET", read), ("DELETE", change), ("POST", change)]:
        r, _ = web(method, raw(f"307 Moved\r\nContent-Length: 0\r\nLocation: {value}"), None, {"Host": "localhost"})
        prefix = f"/v1/sessions/{sid}/ports/3000"
        assert (r.status, r.headers["Location"]) == (307, expected and expected.replace("…", prefix)), method


def test_pages_get_an_origin_of_their_own(web):
    r, _ = web("GET", "/")
    policy = r.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox ") and "allow-same-origin" not in policy


def test_a_large_answer_waits_for_a_slow_reader(boxd_shared, web, sid):
    before = boxd_shared.rss_kb()
    conn = connect(boxd_shared.sock)
    conn.request("GET", f"/v1/sessions/{sid}/ports/3000/large")
    r = conn.getresponse()
    first = r.read(65536)
    # The server has 32 MiB to send; boxd may not take them while nobody reads.
    until(lambda: boxd_shared.rss_kb() - before < 16 * 1024, what="a bounded buffer")
    rest = r.read()
    conn.close()
    assert first == bytes(65536) and len(rest) == 511 * 65536 and rest[-1] == 255


def test_a_cut_answer_is_seen_as_cut(web):
    with pytest.raises(http.client.IncompleteRead):
        web("GET", "/cut")


def test_what_is_no_http_is_a_bad_gateway(web):
    r, data = web("GET", "/garbage")
    assert (r.status, json.loads(data)["code"]) == (502, "bad_gateway")


def test_no_server_is_a_bad_gateway_that_says_so(api, sid):
    with pytest.raises(ApiError) as e:
        api.call("GET", f"/v1/sessions/{sid}/ports/9/")
    assert (e.value.status, e.value.problem["code"]) == (502, "bad_gateway")
    assert "port 9" in e.value.problem["detail"]


@pytest.mark.parametrize("port", ["0", "65536", "x", "-1"])
def test_what_is_no_port_is_refused(api, sid, port):
    with pytest.raises(ApiError) as e:
        api.call("GET", f"/v1/sessions/{sid}/ports/{port}/")
    assert e.value.status == 422


def test_a_session_that_is_not_there_is_not_found(api):
    with pytest.raises(ApiError) as e:
        api.call("GET", "/v1/sessions/none/ports/80/")
    assert e.value.status == 404


def upgrade(sock, sid, port=3000, more=""):
    conn = socket.socket(socket.AF_UNIX)
    conn.settimeout(60)
    conn.connect(str(sock))
    conn.sendall((f"GET /v1/sessions/{sid}/ports/{port}/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
                  "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                  f"{more}\r\n").encode())
    head = b""
    while b"\r\n\r\n" not in head:
        data = conn.recv(4096)
        assert data, head
        head += data
    return conn, head


def read_all(conn):
    data = b""
    while piece := conn.recv(65536):
        data += piece
    return data


def test_a_websocket_is_raw_after_the_upgrade(boxd_shared, web, sid):
    conn, head = upgrade(boxd_shared.sock, sid)
    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in head.lower()
    text = os.urandom(1_000_000)
    sender = threading.Thread(target=lambda: (conn.sendall(text), conn.shutdown(socket.SHUT_WR)))
    sender.start()
    data = read_all(conn)
    sender.join()
    conn.close()
    # What was sent before the end came back, and so did what the server said after it.
    assert data == text + b"bye"


def test_nothing_of_http_comes_behind_the_upgrade(boxd_shared, web, sid):
    conn, head = upgrade(boxd_shared.sock, sid, more="Expect: 100-continue\r\n")
    assert head.startswith(b"HTTP/1.1 101 ") and head.count(b"HTTP/1.1 ") == 1
    conn.sendall(b"ping")
    conn.shutdown(socket.SHUT_WR)
    assert read_all(conn) == b"pingbye"
    conn.close()


def test_a_websocket_ends_with_its_session(api, boxd_shared, session):
    s = session()
    serve(api, s)
    conn, _ = upgrade(boxd_shared.sock, s)
    api.rm(s)
    assert read_all(conn) == b""
    conn.close()


def test_a_client_that_leaves_leaves_nothing(api, boxd_shared, web, sid):
    if os.geteuid() != 0:
        pytest.skip("only root may count the descriptors of boxd")
    before = fd_count(boxd_shared.pid)
    conns = [upgrade(boxd_shared.sock, sid)[0] for _ in range(20)]
    assert fd_count(boxd_shared.pid) >= before + 40
    for c in conns:
        c.close()
    until(lambda: fd_count(boxd_shared.pid) <= before, what="closed descriptors")


def test_an_open_connection_keeps_the_session(tmp_path):
    config = tmp_path / "boxd.yaml"
    config.write_text("session_ttl_sec: 1\n")
    with closing(Boxd("--config", str(config))) as boxd:
        api = boxd.client()
        api.new("kept")
        serve(api, "kept", managed=False)
        conn, _ = upgrade(boxd.sock, "kept")
        api.new("idle")
        until(lambda: [s["session_id"] for s in api.ps()] == ["kept"], what="the end of the idle session")
        conn.sendall(b"ping")
        assert conn.recv(4) == b"ping"
        conn.close()


# Published ports.

def publish(api, sid, **want):
    return api.call("POST", f"/v1/sessions/{sid}/ports", want)


def fetch(port, path="/", host="127.0.0.1"):
    conn = http.client.HTTPConnection(host, port, timeout=60)
    conn.request("GET", path)
    r = conn.getresponse()
    data = r.read()
    conn.close()
    return r.status, data


def closed(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) != 0


def test_a_published_port_leads_to_the_server(api, web, sid):
    p = publish(api, sid, port=3000)
    assert (p["host"], p["port"], p["listening"]) == ("127.0.0.1", 3000, True)
    status, data = fetch(p["host_port"], "/x?y")
    assert (status, json.loads(data)["path"]) == (200, "/x?y")
    assert fetch(p["host_port"], "/large")[1][-1] == 255
    assert [x["host_port"] for x in api.call("GET", f"/v1/sessions/{sid}/ports")["ports"]] == [p["host_port"]]
    # The same again is the same, also for one that names no port of the host.
    assert publish(api, sid, port=3000)["host_port"] == p["host_port"]
    api.call("DELETE", f"/v1/sessions/{sid}/ports/3000")
    assert closed(p["host_port"])
    assert api.call("GET", f"/v1/sessions/{sid}/ports")["ports"] == []
    with pytest.raises(ApiError) as e:
        api.call("DELETE", f"/v1/sessions/{sid}/ports/3000")
    assert e.value.status == 404


def test_half_closed_connections_and_large_streams(api, boxd_shared, web, sid):
    p = publish(api, sid, port=3000)
    conn = socket.create_connection(("127.0.0.1", p["host_port"]), 60)
    conn.sendall(b"GET /ws HTTP/1.1\r\nHost: x\r\nSec-WebSocket-Key: a\r\n\r\n")
    head = b""
    while b"\r\n\r\n" not in head:
        head += conn.recv(1)
    text = os.urandom(3_000_000)
    sender = threading.Thread(target=lambda: (conn.sendall(text), conn.shutdown(socket.SHUT_WR)))
    sender.start()
    assert read_all(conn) == text + b"bye"
    sender.join()
    conn.close()
    until(lambda: api.call("GET", f"/v1/sessions/{sid}/ports")["ports"][0]["connections"] == 0, what="closed connections")


def test_a_port_without_a_server_closes_the_connection(api, sid):
    p = publish(api, sid, port=9)
    with socket.create_connection(("127.0.0.1", p["host_port"]), 60) as conn:
        assert conn.recv(1) == b""


def test_published_ports_end_with_the_session(api, session):
    s = session()
    serve(api, s)
    p = publish(api, s, port=3000)
    conn = socket.create_connection(("127.0.0.1", p["host_port"]), 60)
    until(lambda: api.call("GET", f"/v1/sessions/{s}/ports")["ports"][0]["connections"] == 1, what="the connection")
    api.rm(s)
    assert conn.recv(1) == b""
    conn.close()
    assert closed(p["host_port"])


def test_a_busy_port_of_the_host_is_a_conflict(api, sid):
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(ApiError) as e:
            publish(api, sid, port=80, host_port=other.getsockname()[1])
    assert (e.value.status, e.value.problem["code"]) == (409, "conflict")
    assert "in use by another program" in e.value.problem["detail"]


@pytest.mark.parametrize("want, status", [
    ({}, 422), ({"port": 0}, 422), ({"port": 65536}, 422), ({"port": "80"}, 422), ({"port": 80, "host_port": 65536}, 422),
    ({"port": 80, "host": "localhost"}, 403), ({"port": 80, "protocol": "udp"}, 501), ({"port": 80, "more": 1}, 422)])
def test_what_cannot_be_published_is_refused(api, sid, want, status):
    with pytest.raises(ApiError) as e:
        publish(api, sid, **want)
    assert e.value.status == status


def test_a_session_has_so_many_published_ports(api, sid):
    for i in range(32):
        publish(api, sid, port=1000 + i)
    with pytest.raises(ApiError) as e:
        publish(api, sid, port=2000)
    assert e.value.status == 429


def test_other_addresses_need_the_operators_word(tmp_path):
    config = tmp_path / "boxd.yaml"
    config.write_text("ports: {publish_addresses: [0.0.0.0]}\n")
    with closing(Boxd()) as strict, closing(Boxd("--config", str(config))) as open_:
        strict.client().new("s")
        with pytest.raises(ApiError) as e:
            publish(strict.client(), "s", port=80, host="0.0.0.0")
        assert e.value.status == 403 and "ports.publish_addresses" in e.value.problem["detail"]
        open_.client().new("s")
        assert publish(open_.client(), "s", port=80, host="0.0.0.0")["host"] == "0.0.0.0"


def test_a_restart_asks_the_operator_again(tmp_path):
    config = tmp_path / "boxd.yaml"
    config.write_text("ports: {publish_addresses: [0.0.0.0]}\n")
    with closing(Boxd("--config", str(config))) as boxd:
        boxd.client().new("s")
        p = publish(boxd.client(), "s", port=80, host="0.0.0.0")
        assert not closed(p["host_port"])
        boxd.stop(signal.SIGKILL)
        config.write_text("ports: {publish_addresses: []}\n")
        boxd.start()
        assert closed(p["host_port"])
        assert boxd.client().call("GET", "/v1/sessions/s/ports")["ports"] == [{**p, "listening": False}]
        assert "add '0.0.0.0' to ports.publish_addresses" in boxd.log()


def test_published_ports_are_there_again_after_a_restart():
    with closing(Boxd()) as boxd:
        api = boxd.client()
        api.new("s")
        serve(api, "s")
        p = publish(api, "s", port=3000)
        taken = publish(api, "s", port=3001)
        boxd.stop(signal.SIGKILL)
        with socket.create_server(("127.0.0.1", taken["host_port"])):
            boxd.start()
            api = boxd.client()
            assert fetch(p["host_port"])[0] == 200
            states = {x["port"]: x["listening"] for x in api.call("GET", "/v1/sessions/s/ports")["ports"]}
            assert states == {3000: True, 3001: False}
        # The port is free again: what could not listen is replaced.
        publish(api, "s", port=3001, host_port=taken["host_port"])
        states = [(x["port"], x["listening"]) for x in api.call("GET", "/v1/sessions/s/ports")["ports"]]
        assert states == [(3000, True), (3001, True)]


def test_many_connections_at_once(api, web, sid):
    p = publish(api, sid, port=3000)
    results = []

    def one():
        results.append(fetch(p["host_port"])[0])
    threads = [threading.Thread(target=one) for _ in range(100)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [200] * 100


def test_idle_clients_of_a_published_port_leave_room_for_requests(api, web, sid):
    # A server that takes no connection off its queue: the parent ends when it listens.
    api.x(sid, "sh", "-c", 'exec python3 -c "$0" </dev/null >/dev/null 2>&1',
          "import os, socket, time\ns = socket.create_server(('127.0.0.1', 3002), backlog=512)\n"
          "if os.fork() == 0: time.sleep(100000)")
    p = publish(api, sid, port=3002)
    conns = [socket.create_connection(("127.0.0.1", p["host_port"]), 60) for _ in range(260)]

    def taken():
        return api.call("GET", f"/v1/sessions/{sid}/ports")["ports"][0]["connections"]
    try:
        until(lambda: taken() >= 192, what="connections up to the cap")
        for _ in range(20):
            assert web("GET", "/")[0].status == 200
        assert taken() == 192
    finally:
        for c in conns:
            c.close()


# The command line.

def test_box_run_publishes_and_tells_the_port(boxd_shared):
    with subprocess.Popen([str(BUILD / "box"), "run", "-p", "3000", "--", "python3", "-c", SERVER, "127.0.0.1", "3000"],
                          env={**os.environ, "BOX_HOST": f"unix://{boxd_shared.sock}"}, stdin=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True) as run:
        line = run.stderr.readline()
        assert line.startswith("box: port 3000 of the session is at 127.0.0.1:"), line
        port = int(line.rsplit(":", 1)[1])

        def answers():
            try:
                return fetch(port)[0] == 200
            except OSError:
                return False
            except http.client.HTTPException:
                return False
        until(answers, what="the server")
        run.terminate()
    assert closed(port)


def test_box_port_lists_adds_and_removes(boxd_shared, web, sid):
    def port(*args, **more):
        return box("port", sid, *args, sock=boxd_shared.sock, **more)
    r = port("add", "127.0.0.1::3000")
    assert r.returncode == 0, r.stderr
    address = r.stdout.strip()
    assert fetch(int(address.rsplit(":", 1)[1]))[0] == 200
    assert ["3000", address, "listening", "0"] in [line.split() for line in port().stdout.splitlines()]
    assert json.loads(port("--json").stdout)["ports"][0]["port"] == 3000
    assert port("rm", "3000").returncode == 0
    assert port("rm", "3000").returncode == 125


@pytest.mark.parametrize("text, word", [("80/udp", "only TCP"), ("x", "must be"), ("0", "must be"), ("1:2:3", "must be"),
                                        ("127.0.0.1:1:2:3", "must be"), ("65536", "must be"), (":80", "must be")])
def test_ports_that_make_no_sense_are_explained(boxd_shared, text, word):
    r = box("run", "-p", text, "--", "true", sock=boxd_shared.sock)
    assert r.returncode == 125 and word in r.stderr


def test_a_published_port_of_a_kept_session_waits_for_its_server():
    """While the session is stopped its port is still its own; connections are cut, and new ones closed at once."""
    with closing(Boxd()) as daemon:
        api = daemon.client()
        api.new("kept", durable=True)
        serve(api, "kept")
        p = publish(api, "kept", port=3000)
        publish(api, "kept", port=3001)
        assert fetch(p["host_port"])[0] == 200
        with socket.create_connection(("127.0.0.1", p["host_port"]), 60) as conn:
            conn.sendall(b"GET / HTTP/1.1\r\n")
            until(lambda: api.call("GET", "/v1/sessions/kept/ports")["ports"][0]["connections"] == 1, what="a connection")
            api.call("POST", "/v1/sessions/kept/stop")
            assert conn.recv(1) == b""
        with socket.create_connection(("127.0.0.1", p["host_port"]), 60) as conn:
            assert conn.recv(1) == b""
        # Looking does not start it, whoever looks.
        assert [x["port"] for x in api.call("GET", "/v1/sessions/kept/ports")["ports"]] == [3000, 3001]
        api.call("DELETE", "/v1/sessions/kept/ports/3001")
        with pytest.raises(ApiError) as e:
            api.call("GET", "/v1/sessions/kept/ports/3000/")
        assert e.value.status == 409 and "box start" in e.value.problem["detail"]
        assert api.get("kept")["state"] == "stopped"
        api.call("POST", "/v1/sessions/kept/start")
        assert [x["port"] for x in api.call("GET", "/v1/sessions/kept/ports")["ports"]] == [3000]
        serve(api, "kept")
        assert fetch(p["host_port"])[0] == 200


def test_a_server_of_a_paused_session_is_not_waited_for(api, session):
    s = session()
    serve(api, s)
    p = publish(api, s, port=3000)
    try:
        api.call("POST", f"/v1/sessions/{s}/pause")
    except ApiError as e:
        assert e.status == 501 and os.geteuid() != 0
        pytest.skip(f"without root: {e}")
    with pytest.raises(ApiError) as e:
        api.call("GET", f"/v1/sessions/{s}/ports/3000/")
    assert e.value.status == 409 and "box unpause" in e.value.problem["detail"]
    with socket.create_connection(("127.0.0.1", p["host_port"]), 60) as conn:
        assert conn.recv(1) == b""
    assert api.call("GET", f"/v1/sessions/{s}/ports")["ports"][0]["listening"]
    api.call("POST", f"/v1/sessions/{s}/unpause")
    assert fetch(p["host_port"])[0] == 200
