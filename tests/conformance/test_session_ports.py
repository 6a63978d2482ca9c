# SPDX-License-Identifier: Apache-2.0
"""Servers in a session without a network, reached through boxd on every backend, and services of the host that a
session reaches."""

import hashlib
import http.client
import json
import signal
import socket
import threading
from contextlib import closing

import pytest
from boxlib import Boxd, _UnixConnection
from hostlib import until

pytestmark = pytest.mark.real


def serve(api, sid):
    api.call("POST", f"/v1/sessions/{sid}/processes", {"process_id": "web", "command": "busybox", "cwd": "/tmp",
                                                       "args": ["httpd", "-f", "-p", "127.0.0.1:3000", "-h", "/tmp"]})


def ask(sock, path, method="GET"):
    conn = _UnixConnection(str(sock), 60)
    conn.request(method, path)
    r = conn.getresponse()
    data = r.read()
    conn.close()
    return r.status, data


def fetch(port, path):
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as conn:
        conn.request("GET", path)
        return conn.getresponse().read()


def test_a_server_is_reached_by_http_and_by_a_published_port(box, sid):
    sock, base = box.backend.daemon.sock, f"/v1/sessions/{sid}/ports"
    want = box.sh(sid, "dd if=/dev/urandom of=/tmp/big bs=65536 count=64 2>/dev/null; sha256sum </tmp/big")["stdout"].split()[0]
    status, data = ask(sock, f"{base}/3000/big")
    assert status == 502 and json.loads(data)["code"] == "bad_gateway", data
    serve(box, sid)
    until(lambda: ask(sock, f"{base}/3000/big", "HEAD")[0] == 200, what="the server")
    status, data = ask(sock, f"{base}/3000/big")
    assert (status, hashlib.sha256(data).hexdigest()) == (200, want)
    port = box.call("POST", base, {"port": 3000})["host_port"]
    got = []
    threads = [threading.Thread(target=lambda: got.append(hashlib.sha256(fetch(port, "/big")).hexdigest())) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [want] * 8


def test_a_published_port_outlives_boxd(backend):
    with closing(Boxd("--backend", backend.name, env=backend.env)) as daemon:
        api = daemon.client()
        api.new("p", image=backend.image)
        api.sh("p", "echo hello >/tmp/file")
        serve(api, "p")
        port = api.call("POST", "/v1/sessions/p/ports", {"port": 3000})["host_port"]
        until(lambda: ask(daemon.sock, "/v1/sessions/p/ports/3000/file")[0] == 200, what="the server")
        daemon.stop(signal.SIGKILL)
        daemon.start()
        assert fetch(port, "/file") == b"hello\n"
        daemon.client().rm("p")
        with socket.socket() as s:
            assert s.connect_ex(("127.0.0.1", port)) != 0


def greet(listener, n):
    for _ in range(n):
        with listener.accept()[0] as conn:
            conn.sendall(b"you said " + conn.recv(100))


def test_a_service_of_the_host_is_reached_by_one_session_also_after_a_restart(backend):
    with closing(Boxd("--backend", backend.name, env=backend.env)) as daemon, socket.create_server(("127.0.0.1", 0)) as host:
        port = host.getsockname()[1]
        thread = threading.Thread(target=greet, args=(host, 2))
        thread.start()

        def say(sid):
            return daemon.client().sh(sid, f"echo hi | busybox nc 127.0.0.1 {port}", timeout_sec=20)
        api = daemon.client()
        api.new("h", image=backend.image, allow_hosts=[f"127.0.0.1:{port}"])
        api.new("other", image=backend.image)
        assert say("h")["stdout"] == "you said hi\n"
        daemon.stop(signal.SIGKILL)
        daemon.start()
        assert say("h")["stdout"] == "you said hi\n"
        assert daemon.client().receipt("h")["allow_hosts"][0]["listening"] is True
        thread.join()
        assert say("other")["exit_code"] != 0
        daemon.client().rm("h")
        daemon.client().rm("other")
