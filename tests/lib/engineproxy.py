# SPDX-License-Identifier: Apache-2.0
"""Stands between boxd and a real engine, and spoils what a test wants spoiled."""

import contextlib
import json
import pathlib
import re
import shutil
import socket
import tempfile
import threading
import urllib.parse


def reply(status, body=b"", **headers):
    """A whole answer; header names with '_' for '-'."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close"]
    lines.append("Content-Type: application/json")
    lines += [f"{k.replace('_', '-')}: {v}" for k, v in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def said(status, value):
    """An action: that answer, whatever the engine would say."""
    return lambda request, ask: reply(status, json.dumps(value).encode())


class Proxy:
    """`rules` is a list of (method, pattern of the target without the version, action). The first that fits acts:
    action(request, ask) gives the bytes of an answer, after which the connection is closed; ask() is what the engine
    itself answers. `seen` has (method, target) of all requests, `calls` also their bodies and no version."""

    def __init__(self, engine):
        self.engine, self.rules, self.seen, self.calls = engine, [], [], []
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="box-proxy-"))
        self.dir.chmod(0o755)
        self.socket = self.dir / "engine.sock"
        self._listen = socket.socket(socket.AF_UNIX)
        self._listen.bind(str(self.socket))
        self.socket.chmod(0o666)
        self._listen.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listen.accept()
                threading.Thread(target=self._one, args=(peer,), daemon=True).start()

    @staticmethod
    def _read(peer):
        data = b""
        while b"\r\n\r\n" not in data:
            more = peer.recv(65536)
            if not more:
                return None
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        while len(body) < int(length[1] if length else 0):
            body += peer.recv(65536)
        return head, body

    def _ask(self, head, body):
        head = re.sub(rb"(?i)\r\nconnection:[^\r]*", b"", head) + b"\r\nConnection: close\r\n\r\n"
        with socket.socket(socket.AF_UNIX) as up:
            up.connect(str(self.engine.socket))
            up.sendall(head + body)
            answer = b""
            while more := up.recv(65536):
                answer += more
        return answer

    def _one(self, peer):
        with peer, contextlib.suppress(OSError):
            request = self._read(peer)
            if request is None:
                return
            head, body = request
            method, target = head.split(b" ", 2)[:2]
            method, target = method.decode(), target.decode()
            path = re.sub(r"^/v[0-9.]+(?=/)", "", target)
            self.seen.append((method, target))
            self.calls.append((method, path, body))
            for want, pattern, action in list(self.rules):
                if want == method and re.search(pattern, path):
                    peer.sendall(action(request, lambda: self._ask(head, body)))
                    return
            peer.sendall(self._ask(head, body))

    def asked(self, method, pattern):
        """Calls of that kind so far: (path, query as a dict, body as JSON or None)."""
        found = []
        for verb, path, body in list(self.calls):
            if verb == method and re.search(pattern, path):
                place, _, query = path.partition("?")
                parsed = None
                with contextlib.suppress(ValueError):
                    parsed = json.loads(body)
                found.append((place, dict(urllib.parse.parse_qsl(query)), parsed))
        return found

    def close(self):
        self._listen.close()
        shutil.rmtree(self.dir)
