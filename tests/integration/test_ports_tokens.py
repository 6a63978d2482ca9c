# SPDX-License-Identifier: Apache-2.0
"""Ports of sessions and who may use them: tokens, origins, and the end of a token."""

import http.client
import json
import socket

import pytest
from hostlib import until
from lbwire import WebSocket
from policylib import Governed, token
from test_ports import SERVER, read_all

ALL, ALL_TOKEN = token("all", tools=["*"], profiles=["*"], sessions=["*"])
PORT, PORT_TOKEN = token("port", tools=["port", "exec", "session"], profiles=["*"], sessions=["a*"])
NONE, NONE_TOKEN = token("none", tools=["exec", "session"], profiles=["*"], sessions=["*"])
UP, UP_TOKEN = token("up", tools=["port"], profiles=["*"], sessions=["a*"])
NO_EXEC, NO_EXEC_TOKEN = token("no-exec", tools=["port"], profiles=["*"], sessions=["a*"])


@pytest.fixture(scope="module")
def daemon():
    d = Governed("", tokens=[ALL, PORT, NONE, UP, NO_EXEC])
    local = d.client()
    for name in ("a", "b"):
        local.new(name)
        local.call("POST", f"/v1/sessions/{name}/processes",
                   {"process_id": "web", "command": "python3", "args": ["-c", SERVER, "127.0.0.1", "3000"], "cwd": "/tmp"})
        until(lambda n=name: ask(d, ALL_TOKEN, n)[0] == 200, what="the server")
    yield d
    d.close()


def ask(daemon, text, session, method="GET", path="/3000/", body=None, **headers):
    conn = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)
    conn.request(method, f"/v1/sessions/{session}/ports{path}", body, {"Authorization": f"Bearer {text}", **headers})
    r = conn.getresponse()
    data = r.read()
    conn.close()
    return r.status, data


def test_no_port_stays_published_for_a_command_that_may_not_run(daemon):
    ws = WebSocket(("127.0.0.1", daemon.port), "/v1/exec", {"Authorization": f"Bearer {NO_EXEC_TOKEN}"})
    ws.send(json.dumps({"session": {"session_id": "a"}, "create": False, "argv": ["true"], "ports": [{"port": 80}]}))
    answer = json.loads(ws.recv_frame()[-1])
    ws.close()
    assert answer["type"] == "error" and "may not use 'exec'" in answer["detail"], answer
    assert daemon.client().call("GET", "/v1/sessions/a/ports")["ports"] == []


def test_the_server_does_not_see_the_token(daemon):
    status, data = ask(daemon, PORT_TOKEN, "a")
    assert status == 200 and PORT_TOKEN.encode() not in data
    names = dict(json.loads(data)["headers"])
    assert "Authorization" not in names
    assert names["X-Forwarded-For"] == "127.0.0.1" and names["X-Forwarded-Host"] == f"127.0.0.1:{daemon.port}"


@pytest.mark.parametrize("method, path, body", [("GET", "/3000/", None), ("GET", "", None), ("POST", "", '{"port": 80}'),
                                                ("DELETE", "/3000", None)])
def test_a_token_needs_the_call_and_the_session(daemon, method, path, body):
    assert ask(daemon, NONE_TOKEN, "a", method, path, body)[0] == 403
    assert ask(daemon, PORT_TOKEN, "b", method, path, body)[0] == 404


def test_a_page_from_elsewhere_reaches_no_server(daemon):
    assert ask(daemon, ALL_TOKEN, "a", Origin="http://evil.example")[0] == 403
    assert ask(daemon, ALL_TOKEN, "a", Origin="null")[0] == 403
    assert ask(daemon, ALL_TOKEN, "a", Host="evil.example")[0] == 403


def test_an_upload_ends_with_its_token(daemon):
    with socket.create_connection(("127.0.0.1", daemon.port), 15) as conn:  # one that stalls is dropped after 30 s
        conn.sendall((f"POST /v1/sessions/a/ports/3000/x HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\n"
                      f"Authorization: Bearer {UP_TOKEN}\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n").encode())
        assert conn.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        conn.sendall(b"3\r\nabc\r\n")
        daemon.put_tokens([ALL, PORT, NONE])
        assert read_all(conn) == b""


def test_a_websocket_ends_with_its_token(daemon):
    conn = socket.create_connection(("127.0.0.1", daemon.port), 60)
    conn.sendall((f"GET /v1/sessions/a/ports/3000/ws HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\nConnection: Upgrade\r\n"
                  f"Authorization: Bearer {PORT_TOKEN}\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                  "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nearly").encode())
    head = b""
    while not head.endswith(b"early"):  # sent before the upgrade was answered, and echoed
        piece = conn.recv(4096)
        assert piece, head
        head += piece
    assert head.startswith(b"HTTP/1.1 101 ")
    daemon.put_tokens([ALL, NONE])
    assert read_all(conn) == b""
    conn.close()
