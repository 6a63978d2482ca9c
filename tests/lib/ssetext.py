# SPDX-License-Identifier: Apache-2.0
"""Server-sent events over a socket of boxd, read when the test wants to."""

import base64
import json
import socket


class Events:
    """One answer of the kind text/event-stream; other answers are in `status` and `body`."""

    def __init__(self, path, method, target, body=None, headers=None, timeout=120):
        tcp = isinstance(path, tuple)
        self.sock = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(timeout)
        self.sock.connect(path if tcp else str(path))
        payload = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {target} HTTP/1.1", "Host: localhost", "Accept: text/event-stream", "Connection: close"]
        lines += [f"{k}: {v}" for k, v in (headers or {}).items()] + [f"Content-Length: {len(payload)}", "", ""]
        self.sock.sendall("\r\n".join(lines).encode() + payload)
        self.file = self.sock.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        self.headers = {}
        while (line := self.file.readline().strip()):
            name, _, value = line.decode().partition(":")
            self.headers[name.lower()] = value.strip()
        self._text = b""
        if self.headers.get("content-type") != "text/event-stream":
            self.body = self.file.read(int(self.headers.get("content-length", 0)))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        self.file.close()
        self.sock.close()

    def problem(self):
        return json.loads(self.body)

    def _chunk(self):
        size = int(self.file.readline(), 16)
        data = self.file.read(size)
        self.file.readline()
        return data

    def __iter__(self):
        return self

    def __next__(self):
        """(event, id, data)"""
        while True:
            while b"\n\n" not in self._text:
                chunk = self._chunk()
                if not chunk:
                    raise StopIteration
                self._text += chunk
            block, self._text = self._text.split(b"\n\n", 1)
            fields = dict(line.split(": ", 1) for line in block.decode().split("\n") if not line.startswith(":"))
            if fields:
                return fields["event"], fields.get("id"), json.loads(fields["data"])


def output(data):
    """The bytes of an output event."""
    return data["text"].encode() if "text" in data else base64.b64decode(data["base64"])
