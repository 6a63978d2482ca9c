# SPDX-License-Identifier: Apache-2.0
"""HTTP and WebSocket as bytes: for what no honest client would send."""

import base64
import os
import re
import socket
import struct


class Wire:
    """One connection to boxd: a unix socket (path) or (address, port)."""

    def __init__(self, where, timeout=30.0):
        unix = isinstance(where, (str, os.PathLike))
        self.sock = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        self.sock.settimeout(timeout)
        self.sock.connect(str(where) if unix else where)
        self.host = "localhost" if unix else f"{where[0]}:{where[1]}"
        self.rest = b""

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def send(self, data):
        """What is left of a request when the peer has answered and gone is nobody's loss."""
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def until_end(self):
        """Everything until the peer closes; b"" when it just closes."""
        data = self.rest
        while True:
            try:
                part = self.sock.recv(65536)
            except ConnectionResetError:
                return data
            if not part:
                return data
            data += part

    def head(self):
        """The head of one answer; what follows stays in `rest`."""
        while b"\r\n\r\n" not in self.rest:
            part = self.sock.recv(65536)
            if not part:
                raise ConnectionError(f"closed after {self.rest!r}")
            self.rest += part
        head, self.rest = self.rest.split(b"\r\n\r\n", 1)
        return head

    def take(self, count):
        while len(self.rest) < count:
            part = self.sock.recv(65536)
            if not part:
                raise ConnectionError(f"closed after {self.rest!r}")
            self.rest += part
        data, self.rest = self.rest[:count], self.rest[count:]
        return data

    def answer(self):
        """(status, headers, body) of one answer with a Content-Length."""
        head = self.head().decode("latin-1")
        headers = dict(re.findall(r"^([^:\r\n]+): *([^\r\n]*)", head, re.M))
        body = self.take(int(headers.get("Content-Length", "0")))
        return int(head.split()[1]), headers, body

    # WebSocket.

    def upgrade(self, path="/v1/exec", headers=()):
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET {path} HTTP/1.1", f"Host: {self.host}", "Connection: Upgrade", "Upgrade: websocket",
                 "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}", *headers, "", ""]
        self.send("\r\n".join(lines).encode())
        return int(self.head().split()[1])

    def frame(self, opcode, payload=b"", fin=True, rsv=0, mask=True, length=None):
        """A frame, honest unless told otherwise; `length` may lie."""
        size = len(payload) if length is None else length
        first = (0x80 if fin else 0) | rsv << 4 | opcode
        bit = 0x80 if mask else 0
        if size < 126:
            head = struct.pack("!BB", first, bit | size)
        elif size < 65536:
            head = struct.pack("!BBH", first, bit | 126, size)
        else:
            head = struct.pack("!BBQ", first, bit | 127, size)
        if not mask:
            return head + payload
        key = os.urandom(4)
        return head + key + bytes(b ^ key[i % 4] for i, b in enumerate(payload))

    def read_frame(self):
        first, second = self.take(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", self.take(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", self.take(8))
        return first & 0x0F, self.take(size)

    def close_code(self):
        """Reads until the peer's close frame: its code; None when it just goes."""
        try:
            while True:
                opcode, payload = self.read_frame()
                if opcode == 8:
                    return struct.unpack("!H", payload[:2])[0] if len(payload) >= 2 else 1005
        except (ConnectionError, TimeoutError):
            return None


def status_of(data):
    """The status of raw bytes; None when there was no answer."""
    m = re.match(rb"HTTP/1\.1 (\d{3}) ", data)
    return int(m.group(1)) if m else None
