# SPDX-License-Identifier: Apache-2.0
"""Requests that are repeated, refused, or come from where they should not: Idempotency-Key, problem documents, Host and
Origin on every kind of route; security.md checks I02, I04, I10, I11 for what this API added."""

import json
import signal
import socket
import threading

import pytest
from boxlib import Boxd, _UnixConnection
from hostlib import until
from rawlib import Wire

CODES = {"invalid", "not_found", "conflict", "state", "limit", "denied"}


def ask(daemon, method, path, body=None, **headers):
    """(status, headers, decoded body)"""
    conn = _UnixConnection(str(daemon.sock), 120)
    payload = None if body is None else body if isinstance(body, (str, bytes)) else json.dumps(body)
    conn.request(method, path, payload, {k.replace("_", "-"): v for k, v in headers.items()})
    r = conn.getresponse()
    data = r.read()
    conn.close()
    return r.status, r.headers, json.loads(data) if data else None


def create(daemon, key, name, **spec):
    return ask(daemon, "POST", "/v1/sessions", {"session_id": name, **spec}, Idempotency_Key=key)


# Idempotency-Key.

def test_check_I11_the_same_key_and_body_is_the_same_answer(boxd):
    first = create(boxd, "k1", "s")
    again = create(boxd, "k1", "s")
    assert first[0] == again[0] == 201 and first[2] == again[2]
    assert first[1]["Idempotency-Replayed"] is None and again[1]["Idempotency-Replayed"] == "true"
    # Also after the session has gone: the request was served, and is not served twice.
    assert ask(boxd, "DELETE", "/v1/sessions/s")[0] == 204
    assert create(boxd, "k1", "s")[2] == first[2]
    assert ask(boxd, "GET", "/v1/sessions/s")[0] == 404


def test_check_I11_the_same_key_with_another_body_is_refused(boxd):
    assert create(boxd, "k", "s")[0] == 201
    status, _, problem = create(boxd, "k", "t")
    assert (status, problem["code"]) == (422, "key_reused") and "new key" in problem["remediation"]
    assert ask(boxd, "GET", "/v1/sessions/t")[0] == 404
    # On another path it is another key.
    body = {"process_id": "p", "command": "sleep", "args": ["1000"], "cwd": "/tmp"}
    assert ask(boxd, "POST", "/v1/sessions/s/processes", body, Idempotency_Key="k")[0] == 201


def test_check_I11_a_failure_may_be_tried_again(boxd):
    assert create(boxd, "k", "s", memory_mb=-1)[0] == 422
    assert create(boxd, "k", "s")[0] == 201


@pytest.mark.parametrize("key", ["", "x" * 256, "with blank", "tab\tinside"])
def test_a_key_that_is_none(boxd_shared, key):
    assert create(boxd_shared, key, "never")[0] == 422


def test_check_I11_concurrent_duplicates_wait_and_one_takes_effect(boxd):
    api = boxd.client()
    api.new("s")
    answers = []
    body = {"process_id": "p", "command": "sh", "args": ["-c", "echo $$; exec sleep 1000"], "cwd": "/tmp"}

    def start():
        answers.append(ask(boxd, "POST", "/v1/sessions/s/processes", body, Idempotency_Key="one"))

    threads = [threading.Thread(target=start) for _ in range(20)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert {a[0] for a in answers} == {201} and len({json.dumps(a[2]) for a in answers}) == 1
    assert sum(a[1]["Idempotency-Replayed"] is None for a in answers) == 1
    page = api.call("GET", "/v1/audit?limit=1000")["records"]
    assert sum(r["event"] == "process_start" for r in page) == 1
    api.close()


def test_check_I11_a_detached_command_runs_once(boxd):
    api = boxd.client()
    api.new("s")
    ids = [ask(boxd, "POST", "/v1/sessions/s/exec", {"cmd": "echo x >> /tmp/n", "detach": True},
               Idempotency_Key="d")[2]["exec_id"] for _ in range(5)]
    assert len(set(ids)) == 1
    until(lambda: api.call("GET", f"/v1/sessions/s/execs/{ids[0]}")["status"] == "ended", what="the end")
    assert api.sh("s", "cat /tmp/n")["stdout"] == "x\n"
    api.close()


def test_check_I11_a_key_is_known_after_a_crash(boxd):
    body = {"process_id": "p", "command": "sleep", "args": ["1000"], "cwd": "/tmp"}
    create(boxd, "s", "s")
    first = ask(boxd, "POST", "/v1/sessions/s/processes", body, Idempotency_Key="p")
    boxd.stop(signal.SIGKILL)
    boxd.start()
    again = ask(boxd, "POST", "/v1/sessions/s/processes", body, Idempotency_Key="p")
    assert again[2] == first[2] and again[1]["Idempotency-Replayed"] == "true"
    assert create(boxd, "s", "s")[1]["Idempotency-Replayed"] == "true"


def test_waiters_that_leave_leave_nothing_behind(boxd):
    """The first is at work for long, the others give up."""
    api = boxd.client()
    api.new("s")
    for i in range(3):
        api.call("POST", "/v1/sessions/s/processes", {"process_id": "p", "command": "sh", "args": [
            "-c", "trap '' TERM; echo up; while :; do sleep 1; done"], "cwd": "/tmp"}) if i == 0 else None
    until(lambda: api.call("GET", "/v1/sessions/s/processes/p")["output"]["end"] > 0, what="the trap")
    payload = json.dumps({"process_id": "p", "command": "sleep", "args": ["1000"], "cwd": "/tmp"}).encode()
    head = (b"POST /v1/sessions/s/processes HTTP/1.1\r\nHost: x\r\nIdempotency-Key: w\r\n"
            b"Content-Length: %d\r\n\r\n" % len(payload))
    fds = boxd.leaks()["fds"]["boxd"]
    gone = []
    for _ in range(20):  # replaces a process that does not want to go: seconds of work
        s = socket.socket(socket.AF_UNIX)
        s.connect(str(boxd.sock))
        s.sendall(head + payload)
        gone.append(s)
    for s in gone:
        s.close()
    until(lambda: boxd.leaks()["fds"]["boxd"] <= fds, what="connections that are gone")
    status, _, answer = ask(boxd, "POST", "/v1/sessions/s/processes", payload, Idempotency_Key="w")
    assert status == 201 and answer["status"] == "running"
    api.close()


# Problem documents.

@pytest.fixture(scope="module")
def tcp():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        where = s.getsockname()
    daemon = Boxd("--ws-control-port", str(where[1]))
    daemon.where = where
    yield daemon
    daemon.close()


RAW = {
    400: b"GET / HTTP/1.1\r\nHost: {host}\r\nbad header\r\n\r\n",
    403: b"GET /v1/health HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    404: b"GET /nothing HTTP/1.1\r\nHost: {host}\r\n\r\n",
    405: b"PUT /v1/sessions HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n",
    413: b"POST /v1/sessions HTTP/1.1\r\nHost: {host}\r\nContent-Length: 999999999\r\n\r\n",
    417: b"POST /v1/sessions HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\nExpect: gold\r\n\r\n",
    426: b"GET /v1/exec HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
         b"Sec-WebSocket-Version: 8\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
    431: b"GET / HTTP/1.1\r\nHost: {host}\r\nx: " + b"y" * 9000 + b"\r\n\r\n",
    501: b"POST /v1/sessions HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: gzip\r\n\r\n",
    505: b"GET / HTTP/3.0\r\nHost: {host}\r\n\r\n",
}


@pytest.mark.parametrize("status", sorted(RAW))
def test_check_I10_every_refusal_is_a_problem_document(tcp, status):
    with Wire(tcp.where) as w:
        w.send(RAW[status].replace(b"{host}", w.host.encode()))
        got, headers, body = w.answer()
    problem = json.loads(body)
    assert got == problem["status"] == status, (got, body)
    assert headers["Content-Type"] == "application/problem+json"
    for member in ("type", "title", "detail", "code", "cause", "remediation"):
        assert isinstance(problem[member], str) and problem[member], member


@pytest.mark.parametrize("method,path,body,status,code", [
    ("GET", "/v1/sessions/none", None, 404, "not_found"),
    ("POST", "/v1/sessions", {"session_id": "../x"}, 422, "invalid"),
    ("POST", "/v1/sessions", "not json", 400, "invalid"),
    ("POST", "/v1/sessions", {"session_id": "x", "nonsense": 1}, 422, "invalid"),
    ("POST", "/v1/sessions/none/exec", {"cmd": "true"}, 404, "not_found"),
    ("GET", "/v1/sessions/none/execs", None, 404, "not_found"),
    ("GET", "/v1/sessions/none/outputs/none", None, 404, "not_found"),
    ("GET", "/v1/audit?limit=0x", None, 422, "invalid"),
    ("GET", "/v1/events?type=none", None, 422, "invalid"),
])
def test_failures_say_what_why_and_what_to_do(boxd_shared, method, path, body, status, code):
    got, headers, problem = ask(boxd_shared, method, path, body)
    assert (got, problem["status"], problem["code"]) == (status, status, code)
    assert headers["Content-Type"] == "application/problem+json"
    assert problem["detail"] and problem["cause"] and problem["remediation"] and problem["title"]


def test_what_to_do_fits_the_kind_of_thing_that_is_not_there(boxd_shared, session):
    sid = session()
    exec_path, gone = f"/v1/sessions/{sid}/execs/none", [{"host_path": "/tmp/none", "mount_path": "/x", "mode": "ro"}]
    for method, path, body, want in (
            ("GET", "/v1/sessions/none", None, "`box ps`"),
            ("DELETE", "/v1/sessions/none", None, "`box ps`"),
            ("GET", exec_path, None, "/execs lists"),
            ("DELETE", exec_path, None, "/execs lists"),
            ("GET", f"/v1/sessions/{sid}/processes/none", None, "/processes lists"),
            ("DELETE", f"/v1/sessions/{sid}/processes/none", None, "/processes lists"),
            ("GET", f"/v1/sessions/{sid}/outputs/0123456789abcdef", None, "run the command again"),
            ("GET", f"/v1/sessions/{sid}/files?path=none", None, "check the path"),
            ("POST", f"/v1/sessions/{sid}/tools/none", {}, "GET /v1/tools"),
            ("POST", "/v1/sessions", {"session_id": "y", "image": "none:1"}, "name an image"),
            ("POST", "/v1/sessions", {"session_id": "y", "extra_mounts": gone}, "correct the path of the mount")):
        status, _, problem = ask(boxd_shared, method, path, body)
        assert status == 404 and want in problem["remediation"], (path, problem)
        assert ("box ps" in problem["remediation"]) == (want == "`box ps`"), problem


# Host and Origin, on every route there is.

def routes(daemon):
    paths = ask(daemon, "GET", "/v1/openapi.json")[2]["paths"]
    return [(method.upper(), path) for path, item in paths.items() for method in item]


def raw(tcp, method, path, *headers):
    target = path.replace("{", "").replace("}", "")
    with Wire(tcp.where) as w:
        lines = [f"{method} {target} HTTP/1.1", *(h.replace("HOST", w.host) for h in headers),
                 "Connection: close", "Content-Length: 0", "", ""]
        w.send("\r\n".join(lines).encode())
        return w.answer()[0]


def test_check_I04_host_and_origin_are_checked_on_every_route(tcp):
    found = routes(tcp)
    assert len(found) > 15
    for method, path in found:
        assert raw(tcp, method, path, "Host: HOST", "Origin: http://evil.example") == 403, (method, path)
        assert raw(tcp, method, path, "Host: evil.example") == 403, (method, path)
        assert raw(tcp, method, path, "Host: HOST", "Origin: null", "Upgrade: websocket", "Connection: Upgrade",
                   "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==") == 403, (method, path)


def test_check_I04_the_origin_of_the_own_address_is_served(tcp):
    """As docs/reference/http.md says."""
    port = tcp.where[1]
    for host, origin, want in (("HOST", "http://HOST", 200), (f"localhost:{port}", f"http://localhost:{port}", 200),
                               ("HOST", f"http://localhost:{port}", 403), ("HOST", "https://HOST", 403),
                               ("HOST", "http://HOST/", 403), ("HOST", f"http://127.0.0.1:{port + 1}", 403)):
        assert raw(tcp, "GET", "/v1/health", f"Host: {host}", f"Origin: {origin}") == want, (host, origin)
    with Wire(tcp.sock) as w:
        w.send(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\r\n")
        assert w.answer()[0] == 403


def test_check_I02_without_a_token_every_route_but_health_is_closed(tmp_path):
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        where = s.getsockname()
    daemon = Boxd("--ws-control-port", str(where[1]), env={"BOX_TOKEN_FILE": str(token)})
    daemon.where = where
    try:
        for method, path in routes(daemon):
            want = 200 if path in ("/v1/health", "/api/v1/health") else 401
            assert raw(daemon, method, path, "Host: HOST") == want, (method, path)
            assert raw(daemon, method, path, "Host: HOST", "Authorization: Bearer 0123") == want, (method, path)
    finally:
        daemon.close()
