# SPDX-License-Identifier: Apache-2.0
"""One command over /v1/exec. Its own few lines of RFC 6455, because tests must decide when to read
and when to vanish; nothing happens behind their back."""

import base64
import json
import os
import socket
import struct
import threading

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class Result(dict):
    """The exit message, with what came before it as `out` and `err`."""

    def __init__(self, message, out, err):
        super().__init__(message)
        self.out, self.err = out, err


class Stream:
    def __init__(self, path, request=None, timeout=120, target="/v1/exec"):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(timeout)
        self.sock.connect(str(path))
        key = base64.b64encode(os.urandom(16)).decode()
        self.sock.sendall((
            f"GET {target} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n").encode())
        self._in = self._seen = b""
        while b"\r\n\r\n" not in self._in:
            more = self.sock.recv(4096)
            assert more, "no answer to the upgrade"
            self._in += more
        head, self._in = self._in.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 101 "), head
        if request is not None:
            self.say(request)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        """Vanishes without a word."""
        self.sock.close()

    # To the server. The mask is all zeros, which the protocol permits and which costs nothing.

    def _frame(self, opcode, data):
        n = len(data)
        if n < 126:
            head = struct.pack("!BB", 0x80 | opcode, 0x80 | n)
        elif n < 65536:
            head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, n)
        else:
            head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, n)
        self.sock.sendall(head + b"\0\0\0\0" + data)

    def say(self, message):
        self._frame(TEXT, (message if isinstance(message, str) else json.dumps(message)).encode())

    def stdin(self, data):
        self._frame(BINARY, b"\0" + data)

    def eof(self):
        self.say({"type": "stdin_eof"})

    def signal(self, name):
        self.say({"type": "signal", "signal": name})

    def resize(self, rows, cols):
        self.say({"type": "resize", "rows": rows, "cols": cols})

    def feed(self, data, chunk=65536):
        """Sends all of data and the end of it, from a thread: back-pressure blocks only that."""

        def run():
            try:
                for at in range(0, len(data), chunk):
                    self.stdin(data[at:at + chunk])
                self.eof()
            except OSError:
                pass  # the command ended before it read everything

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    # From the server.

    def _exactly(self, n):
        while len(self._in) < n:
            more = self.sock.recv(max(65536, n - len(self._in)))
            if not more:
                raise EOFError("the server closed the connection")
            self._in += more
        data, self._in = self._in[:n], self._in[n:]
        return data

    def recv(self):
        """(1, bytes) of stdout, (2, bytes) of stderr, ("text", message) or ("close", code)."""
        while True:
            first, second = self._exactly(2)
            assert first & 0x80, "the server sends no fragments"
            n = second & 0x7F
            if n == 126:
                n = struct.unpack("!H", self._exactly(2))[0]
            elif n == 127:
                n = struct.unpack("!Q", self._exactly(8))[0]
            data = self._exactly(n)
            opcode = first & 0x0F
            if opcode == PING:
                self._frame(PONG, data)
            elif opcode == TEXT:
                return "text", json.loads(data)
            elif opcode == BINARY:
                return data[0], data[1:]
            elif opcode == CLOSE:
                return "close", struct.unpack("!H", data[:2])[0] if data else None

    def started(self):
        kind, message = self.recv()
        assert kind == "text" and message["type"] == "started", message
        return message

    def until(self, text):
        """Reads output up to the end of text, and returns it; what follows it is kept."""
        while text not in self._seen:
            kind, data = self.recv()
            assert kind in (1, 2), (kind, data, self._seen)
            self._seen += data
        end = self._seen.index(text) + len(text)
        seen, self._seen = self._seen[:end], self._seen[end:]
        return seen

    def finish(self):
        """Reads up to the end of the command."""
        out, err = [self._seen], []
        while True:
            kind, data = self.recv()
            if kind == 1:
                out.append(data)
            elif kind == 2:
                err.append(data)
            elif kind == "text" and data["type"] in ("exit", "error"):
                return Result(data, b"".join(out), b"".join(err))
            else:
                assert kind == "text", (kind, data)


def stream(daemon, session_id, *argv, **request):
    """Starts argv, or cmd="…", in an existing session."""
    if argv:
        request["argv"] = list(argv)
    return Stream(daemon.sock, {"session": {"session_id": session_id}, "create": False, **request})


def run(daemon, session_id, *argv, stdin=None, chunk=65536, **request):
    with stream(daemon, session_id, *argv, stdin=stdin is not None, **request) as s:
        s.started()
        thread = s.feed(stdin, chunk) if stdin is not None else None
        result = s.finish()
    if thread is not None:
        thread.join(60)
    return result
