# SPDX-License-Identifier: Apache-2.0
"""Check K08 of table K: something that says it is Docker, and means harm. No engine is needed for that."""

import contextlib
import pathlib
import shutil
import socket
import tempfile
import threading

import pytest
from boxlib import ApiError, Boxd
from hostlib import SCALE


class Engine:
    """Something that answers like an engine until it is asked for `where`; then `evil(self, peer)` has the connection.
    It counts what it could get rid of."""

    def __init__(self, where, evil):
        self.where, self.evil, self.sent, self.hit = where, evil, 0, threading.Event()
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="box-k08-"))
        self.top.chmod(0o755)
        self.path = self.top / "engine.sock"
        self._listen = socket.socket(socket.AF_UNIX)
        self._listen.bind(str(self.path))
        self.path.chmod(0o666)
        self._listen.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._one, args=(self._listen.accept()[0],), daemon=True).start()

    def _one(self, peer):
        data = b""
        with peer, contextlib.suppress(OSError):
            while True:
                while b"\r\n\r\n" not in data:
                    more = peer.recv(65536)
                    if not more:
                        return
                    data += more
                head, _, data = data.partition(b"\r\n\r\n")
                target = head.split(b" ", 2)[1].decode()
                if self.where in target:
                    self.hit.set()
                    self.evil(self, peer)
                    return
                text = b"[]" if "/containers/json" in target else b"{}"
                peer.sendall(b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Length: 2\r\n\r\n" + text)

    def send(self, peer, data):
        peer.sendall(data)
        self.sent += len(data)

    def close(self):
        self._listen.close()
        shutil.rmtree(self.top)


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def said(data):
    """These bytes and no more."""
    return lambda engine, peer: engine.send(peer, data)


def forever(first, again):
    """As long as anybody listens, 10 GiB at most."""
    def run(engine, peer):
        engine.send(peer, first)
        while engine.sent < 10 << 30:
            engine.send(peer, again)
    return run


def body(text):
    return said(OK + b"Content-Length: %d\r\n\r\n" % len(text) + text)


EVIL = {
    "a chunk larger than numbers": said(CHUNKED + b"fffffffffffffffff\r\nx"),
    "a chunk of most of memory": said(CHUNKED + b"ffffffffffffffff\r\nx"),
    "a negative chunk": said(CHUNKED + b"-1\r\nx\r\n"),
    "a chunk without its end": said(CHUNKED + b"2\r\n{}x\r\n0\r\n\r\n"),
    "a chunk that is cut": said(CHUNKED + b"ff\r\n{}"),
    "two lengths": said(OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x"),
    "a length and chunks": said(OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "a length that is none": said(OK + b"Content-Length: 2x\r\n\r\n{}"),
    "less than announced": said(OK + b"Content-Length: 100\r\n\r\n{}"),
    "10 GiB": forever(OK + b"Content-Length: 10737418240\r\n\r\n", b" " * (1 << 20)),
    "chunks for ever": forever(CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n"),
    "a body without an end": forever(OK + b"Connection: close\r\n\r\n", b" " * (1 << 20)),
    "chunks with long remarks": forever(CHUNKED, b"1;" + b"x" * 60000 + b"\r\n \r\n"),
    "trailers for ever": forever(CHUNKED + b"2\r\n{}\r\n0\r\n", b"X-A: " + b"y" * 60000 + b"\r\n"),
    "headers for ever": forever(OK, b"X-A: " + b"y" * 60000 + b"\r\n"),
    "one header for ever": forever(OK + b"X-A: ", b"y" * 65536),
    "100,000 headers": said(OK + b"".join(b"X-%d: y\r\n" % n for n in range(100000)) + b"\r\n{}"),
    "continue for ever": forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "no status": said(b"HTTP/1.1\r\n\r\n{}"),
    "an odd status": said(b"HTTP/1.1 99999 X\r\nContent-Length: 2\r\n\r\n{}"),
    "another protocol": said(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "a protocol of the future": said(b"HTTP/3.0 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
    "an unasked upgrade": said(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n\0\1"),
    "NUL in a header": said(OK + b"X-A: a\0b\r\nContent-Length: 2\r\n\r\n{}"),
    "nothing": said(b""),
    "no JSON": body(b"{not JSON"),
    "JSON without an end": body(b'{"a":' * 50000),
    "JSON that is deep": body(b"[" * 200000 + b"]" * 200000),
    "no UTF-8": body(b'{"Id":"\xff\xfe"}'),
    "a text": body(b'"x"'),
    "a number": body(b"1e999"),
    "null": body(b"null"),
    "types that are wrong": body(b'{"Id":5,"Config":[],"Warnings":{}}'),
    "an id that is a path": body(b'{"Id":"../../../etc"}'),
}
LIMIT = 48 << 20


@pytest.mark.parametrize("how", EVIL)
def test_check_K08_an_engine_that_answers_anything(how):
    """When it is asked for a container: the request fails with a type, and boxd takes in only so much."""
    engine = Engine("/containers/create", EVIL[how])
    daemon = Boxd("--backend", "docker", env={"BOX_ENGINE_SOCKET": str(engine.path)})
    try:
        client = daemon.client(timeout=300 * SCALE)
        assert client.ps() == []
        before = daemon.rss_kb()
        with pytest.raises(ApiError) as caught:
            client.new("victim", image="x:1")
        assert caught.value.code in ("backend", "unavailable") and caught.value.detail.isprintable(), caught.value
        assert engine.hit.is_set() and engine.sent < LIMIT, engine.sent
        assert daemon.rss_kb() - before < LIMIT // 1024
        assert daemon.process.poll() is None and client.ps() == []
        client.close()
    finally:
        engine.close()
        daemon.close()


@pytest.mark.parametrize("where", ["/_ping", "/images/", "/info"])
def test_check_K08_whatever_is_asked_first(where):
    for how in ("10 GiB", "headers for ever", "JSON that is deep", "another protocol"):
        engine = Engine(where, EVIL[how])
        daemon = Boxd("--backend", "docker", env={"BOX_ENGINE_SOCKET": str(engine.path)})
        try:
            client = daemon.client(timeout=300 * SCALE)
            with pytest.raises(ApiError) as caught:
                client.new("victim", image="x:1")
            assert caught.value.code in ("backend", "unavailable"), (how, caught.value)
            assert engine.sent < LIMIT and daemon.process.poll() is None and client.ps() == []
            client.close()
        finally:
            engine.close()
            daemon.close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_check_K08_nobody_is_sent_elsewhere(status):
    """The engine is where the operator said, and nowhere else."""
    with socket.socket() as elsewhere:
        elsewhere.bind(("127.0.0.1", 0))
        elsewhere.listen(4)
        elsewhere.setblocking(False)
        place = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/x"
        engine = Engine("/containers/create", said(b"HTTP/1.1 %d X\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n"
                                                   % (status, place.encode())))
        daemon = Boxd("--backend", "docker", env={"BOX_ENGINE_SOCKET": str(engine.path)})
        try:
            client = daemon.client()
            with pytest.raises(ApiError) as caught:
                client.new("victim", image="x:1")
            assert caught.value.code in ("backend", "unavailable"), caught.value
            with pytest.raises(BlockingIOError):
                elsewhere.accept()
            client.close()
        finally:
            engine.close()
            daemon.close()


def test_check_K08_a_slow_engine_holds_nobody_else():
    """A byte now and then, for ever: that request ends in time, and others do not wait for it."""
    stop = threading.Event()

    def drip(engine, peer):
        engine.send(peer, OK)
        while not stop.wait(0.1):
            engine.send(peer, b"X")

    engine = Engine("/_ping", drip)
    daemon = Boxd("--backend", "docker", env={"BOX_ENGINE_SOCKET": str(engine.path)})
    caught = []

    def create():
        client = daemon.client(timeout=300 * SCALE)
        try:
            client.new("victim", image="x:1")
        except ApiError as error:
            caught.append(error.code)
        client.close()

    try:
        thread = threading.Thread(target=create)
        thread.start()
        assert engine.hit.wait(60 * SCALE)
        client = daemon.client(timeout=60 * SCALE)
        answered = 0
        while thread.is_alive() and answered < 50:
            assert [x["state"] for x in client.ps()] in ([], ["creating"])
            answered += 1
        assert answered > 0
        client.close()
        thread.join(120 * SCALE)
        assert caught == ["unavailable"]
    finally:
        stop.set()
        engine.close()
        daemon.close()
