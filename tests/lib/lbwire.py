# SPDX-License-Identifier: Apache-2.0
"""A client of the LangBot wire: action RPC and relay, over its own few lines of RFC 6455. Nothing
happens behind a test's back: it decides what is sent, and when to read or vanish."""

import base64
import collections
import hashlib
import itertools
import json
import os
import select
import socket
import struct
import subprocess
import time

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
INSTANCE, WORKSPACE = "inst-a", "ws-1"


def namespace(instance=INSTANCE, workspace=WORKSPACE):
    return "ws-" + hashlib.sha256(f"{instance}\0{workspace}".encode()).hexdigest()[:24]


def physical(logical, workspace=WORKSPACE, generation=1, instance=INSTANCE):
    return f"{namespace(instance, workspace)}-g{generation}-{logical}"


def context(workspace=WORKSPACE, generation=1, instance=INSTANCE):
    return {"instance_uuid": instance, "workspace_uuid": workspace, "placement_generation": generation}


class Refused(Exception):
    """The upgrade was answered with something else."""

    def __init__(self, status, headers, body):
        super().__init__(f"{status}: {body!r}")
        self.status, self.headers, self.body = status, headers, body


class RpcError(Exception):
    def __init__(self, reply):
        super().__init__(reply["message"])
        self.reply, self.message, self.code = reply, reply["message"], reply.get("error_code")


class Closed(Exception):
    def __init__(self, code, reason):
        super().__init__(f"{code} {reason}")
        self.code, self.reason = code, reason


def connect(address, timeout=60):
    """A path of a unix socket, or (host, port)."""
    unix = not isinstance(address, tuple)
    sock = socket.socket(socket.AF_UNIX if unix else socket.AF_INET, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    sock.connect(str(address) if unix else address)
    return sock


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def http_get(address, path, headers=None, method="GET", host=True):
    """(status, headers, body) of a plain request."""
    with connect(address) as sock:
        lines = [f"{method} {path} HTTP/1.1", "Connection: close"] + ["Host: localhost"] * host
        lines += [f"{k}: {v}" for k, v in (headers or {}).items()]
        sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        data = b""
        while more := sock.recv(65536):
            data += more
    return split_answer(data)


def split_answer(data):
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
    return int(lines[0].split()[1]), headers, body


class WebSocket:
    def __init__(self, address, path, headers=None, timeout=60):
        self.sock = connect(address, timeout)
        self._in = b""
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade",
                 "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}",
                 "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"]
        lines += [f"{k}: {v}" for k, v in (headers or {}).items()]
        self.sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        while b"\r\n\r\n" not in self._in:
            more = self.sock.recv(4096)
            if not more:
                break
            self._in += more
        if not self._in.startswith(b"HTTP/1.1 101 "):
            self._refused()
        head, self._in = self._in.split(b"\r\n\r\n", 1)
        self.headers = split_answer(head + b"\r\n\r\n")[1]
        assert "sec-websocket-extensions" not in self.headers

    def _refused(self):
        head, _, body = self._in.partition(b"\r\n\r\n")
        headers = split_answer(head + b"\r\n\r\n")[1]
        while len(body) < int(headers.get("content-length", 0)):
            more = self.sock.recv(65536)
            if not more:
                break
            body += more
        self.sock.close()
        raise Refused(*split_answer(head + b"\r\n\r\n" + body))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.sock.close()

    def vanish(self):
        """Goes without a word, and has the other side told by a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    # The mask is all zeros, which the protocol permits and which costs nothing.
    def frame(self, opcode, data, fin=True):
        n = len(data)
        if n < 126:
            head = struct.pack("!BB", fin << 7 | opcode, 0x80 | n)
        elif n < 65536:
            head = struct.pack("!BBH", fin << 7 | opcode, 0x80 | 126, n)
        else:
            head = struct.pack("!BBQ", fin << 7 | opcode, 0x80 | 127, n)
        self.sock.sendall(head + b"\0\0\0\0" + data)

    def send(self, text, fragment=65536):
        """As LangBot's client does: large messages in fragments."""
        data = text.encode() if isinstance(text, str) else text
        pieces = [data[i:i + fragment] for i in range(0, len(data), fragment)] or [b""]
        for i, piece in enumerate(pieces):
            self.frame(TEXT if i == 0 else 0, piece, fin=i == len(pieces) - 1)

    def _exactly(self, n):
        while len(self._in) < n:
            more = self.sock.recv(max(65536, n - len(self._in)))
            if not more:
                raise Closed(1006, "")
            self._in += more
        data, self._in = self._in[:n], self._in[n:]
        return data

    def recv_frame(self):
        first, second = self._exactly(2)
        assert first & 0x80, "the server sends no fragments"
        n = second & 0x7F
        if n == 126:
            n = struct.unpack("!H", self._exactly(2))[0]
        elif n == 127:
            n = struct.unpack("!Q", self._exactly(8))[0]
        return first & 0x0F, self._exactly(n)

    def recv(self):
        """The next text message; Closed when there is none any more."""
        while True:
            opcode, data = self.recv_frame()
            if opcode == PING:
                self.frame(PONG, data)
            elif opcode == TEXT:
                return data.decode()
            elif opcode == CLOSE:
                code = struct.unpack("!H", data[:2])[0] if data else 1005
                self.frame(CLOSE, data[:2])
                raise Closed(code, data[2:].decode())

    def pending(self, seconds=0.0):
        """Whether anything has come."""
        return bool(self._in) or bool(select.select([self.sock], [], [], seconds)[0])

    def close(self, code=1000):
        """Says good-bye and waits for the answer; what comes before it is dropped."""
        self.frame(CLOSE, struct.pack("!H", code))
        while True:
            opcode, data = self.recv_frame()
            if opcode == CLOSE:
                self.sock.close()
                return struct.unpack("!H", data[:2])[0] if data else 1005


class Calls:
    """What every carrier of messages has in common. `call` waits; `start` and `wait` do not."""

    def __init__(self, ctx=None):
        self.ctx = context() if ctx is None else ctx
        self._seq = itertools.count(41234)
        self._early = collections.OrderedDict()

    def start(self, action, data=None, ctx="own", **more):
        seq = next(self._seq)
        message = {"seq_id": seq, "action": action, "data": {} if data is None else data}
        ctx = self.ctx if ctx == "own" else ctx
        if ctx:
            message["context"] = ctx
        message.update(more)
        self.say(json.dumps(message))
        return seq

    def wait_reply(self, seq):
        while seq not in self._early:
            reply = json.loads(self.hear())
            self._early[reply["seq_id"]] = reply
        return self._early.pop(seq)

    def wait(self, seq):
        reply = self.wait_reply(seq)
        assert set(reply) >= {"seq_id", "code", "message", "data", "chunk_status"}, reply
        assert isinstance(reply["data"], dict) and reply["chunk_status"] == "continue"
        if reply["code"] != 0:
            assert reply["code"] == 1 and reply["data"] == {}, reply
            raise RpcError(reply)
        assert reply["message"] == "success"
        return reply["data"]

    def call(self, action, data=None, ctx="own", **more):
        return self.wait(self.start(action, data, ctx, **more))

    def exec(self, session_id, cmd, **spec):
        return self.call("box_exec", {"session_id": session_id, "cmd": cmd, **spec})


class Rpc(Calls):
    """Action RPC over /rpc/ws."""

    def __init__(self, address, instance=INSTANCE, ctx=None, token=None, timeout=60):
        super().__init__(ctx)
        headers = {"X-LangBot-Instance-Id": instance} if instance else {}
        if token:
            headers["X-LangBot-Box-Control-Token"] = token
        self.ws = WebSocket(address, "/rpc/ws", headers, timeout)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.ws.sock.close()

    def say(self, text):
        self.ws.send(text)

    def hear(self):
        return self.ws.recv()


def upload(rpc, data, size=16384):
    """A file in pieces, as LangBot's client sends one; the key by which an action finds it."""
    key = f"{hashlib.sha256(data).hexdigest()[:16]}-{os.urandom(16).hex()}.zip"
    pieces = [data[i:i + size] for i in range(0, len(data), size)] or [b""]
    for index, piece in enumerate(pieces):
        rpc.call("__file_chunk", {"file_key": key, "file_length": len(data), "chunk_index": index,
                                  "chunk_amount": len(pieces), "chunk_size": size,
                                  "chunk_base64": base64.b64encode(piece).decode()}, ctx=None)
    return key


class Stdio(Calls):
    """Action RPC over the pipes of a child."""

    LINE = 16384

    def __init__(self, command, ctx=None, **popen):
        super().__init__(ctx)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **popen)

    def raw(self, line):
        self.process.stdin.write(line if isinstance(line, bytes) else line.encode())
        self.process.stdin.flush()

    def say(self, text):
        data = text.encode()
        if len(data) <= self.LINE:
            self.raw(data + b"\n")
            return
        self.raw(json.dumps({"type": "chunk_start", "total_size": len(data)}) + "\n")
        offset = 0
        while offset < len(data):
            end = min(offset + self.LINE, len(data))
            while end < len(data) and data[end] & 0xC0 == 0x80:
                end -= 1
            piece = data[offset:end].decode()
            self.raw(json.dumps({"type": "chunk_data", "data": piece, "offset": offset}) + "\n")
            offset = end
        self.raw('{"type": "chunk_end"}\n')

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            raise Closed(1006, "end of stdout")
        assert len(line) < 65536, "a line that asyncio would refuse"
        return line.decode()

    def hear(self):
        line = self.line()
        message = json.loads(line)
        if message.get("type") != "chunk_start":
            assert len(line.encode()) <= self.LINE + 1
            return line
        text, total = "", message["total_size"]
        while True:
            message = json.loads(self.line())
            if message["type"] == "chunk_end":
                assert len(text.encode()) == total
                return text
            assert message["offset"] == len(text.encode()) and len(message["data"].encode()) <= self.LINE
            text += message["data"]


def relay_headers(workspace=WORKSPACE, generation=1, instance=INSTANCE, token=None, protocol="mcp"):
    headers = {"X-LangBot-Instance-Id": instance, "X-LangBot-Workspace-Id": workspace,
               "X-LangBot-Placement-Generation": str(generation)}
    if token:
        headers["X-LangBot-Box-Control-Token"] = token
    if protocol:
        headers["Sec-WebSocket-Protocol"] = protocol
    return headers


def relay_path(logical, process_id="default", **whose):
    return f"/v1/sessions/{physical(logical, **whose)}/managed-process/{process_id}/ws"


def relay(address, logical, process_id="default", timeout=60, **whose):
    return WebSocket(address, relay_path(logical, process_id), relay_headers(**whose), timeout)


def eventually(check, seconds=10):
    """Waits for something that no event tells: the state behind an answer of another process."""
    end = time.monotonic() + seconds
    while True:
        value = check()
        if value or time.monotonic() > end:
            return value
        time.sleep(0.01)
