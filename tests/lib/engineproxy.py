# SPDX-License-Identifier: Apache-2.0
"""Stands between boxd and a real engine, and spoils what a test wants spoiled."""

import contextlib
import itertools
import pathlib
import re
import shutil
import socket
import tempfile
import threading

_numbers = itertools.count()


def reply(status, body=b"", **headers):
    """A whole answer; header names with '_' for '-'."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close", "Content-Type: application/json"]
    lines += [f"{k.replace('_', '-')}: {v}" for k, v in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Proxy:
    """`rules` is a list of (method, pattern of the target, action). The first that fits acts: action(request, ask) gives
    the bytes of an answer, after which the connection is closed; ask() is what the engine itself answers. `seen` has
    (method, target) of all requests."""

    def __init__(self, engine):
        self.engine, self.rules, self.seen = engine, [], []
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
            self.seen.append((method, target))
            for want, pattern, action in list(self.rules):
                if want == method and re.search(pattern, target):
                    peer.sendall(action(request, lambda: self._ask(head, body)))
                    return
            peer.sendall(self._ask(head, body))

    def close(self):
        self._listen.close()
        shutil.rmtree(self.dir)
