# SPDX-License-Identifier: Apache-2.0
"""RFC 6455 in the order of the well-known conformance suite: framing, pings, reserved bits, opcodes, fragmentation,
UTF-8, closing, limits. Each case is bytes in and the exact events out, against an echo on the server's own code."""

import base64
import contextlib
import hashlib
import os
import pathlib
import random
import socket
import struct
import subprocess
import tempfile

import pytest
from hostlib import built

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@pytest.fixture(scope="module")
def echo():
    with tempfile.TemporaryDirectory(prefix="box-ws-") as top:
        path = pathlib.Path(top) / "sock"
        with subprocess.Popen([built("integration/ws_echo"), path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
            assert p.stdout.readline() == b"ready\n"
            yield path
            p.stdin.close()
            assert p.wait(30) == 0


def frame(opcode, data=b"", fin=True, rsv=0, mask=True, length=None):
    n = len(data) if length is None else length
    head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    bit = 0x80 if mask else 0
    if n < 126:
        head += bytes([bit | n])
    elif n < 65536:
        head += struct.pack("!BH", bit | 126, n)
    else:
        head += struct.pack("!BQ", bit | 127, n)
    if not mask:
        return head + data
    key = os.urandom(4)
    pad = (key * (len(data) // 4 + 1))[:len(data)]
    return head + key + (int.from_bytes(data, "big") ^ int.from_bytes(pad, "big")).to_bytes(len(data), "big")


def close(code=None, reason=b""):
    return frame(CLOSE, b"" if code is None else struct.pack("!H", code) + reason)


class Peer:
    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(path))
        key = base64.b64encode(os.urandom(16))
        self.sock.sendall(b"GET /echo HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                          b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + b"\r\n\r\n")
        self.have = b""
        while b"\r\n\r\n" not in self.have:
            self._more()
        head, self.have = self.have.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 101 ")
        assert base64.b64encode(hashlib.sha1(key + GUID).digest()) in head

    def _more(self):
        data = self.sock.recv(1 << 20)
        if not data:
            raise EOFError
        self.have += data

    def take(self, n):
        while len(self.have) < n:
            self._more()
        data, self.have = self.have[:n], self.have[n:]
        return data

    def next(self):
        """(opcode, payload) of one frame; the server never fragments, masks or reserves."""
        first, second = self.take(2)
        assert first & 0xF0 == 0x80 and not second & 0x80
        n = second
        if n == 126:
            n, = struct.unpack("!H", self.take(2))
            assert n >= 126
        elif n == 127:
            n, = struct.unpack("!Q", self.take(8))
            assert n >= 65536
        return first & 15, self.take(n)

    def send(self, data, chop=None):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for at in range(0, len(data), chop or len(data) or 1):
                self.sock.sendall(data[at:at + (chop or len(data))])


def talk(path, data, chop=None):
    """Everything the server says to these bytes, up to its end: a close is shown as its code."""
    peer, seen = Peer(path), []
    peer.send(data, chop)
    try:
        while True:
            opcode, payload = peer.next()
            if opcode == CLOSE:
                seen.append(("close", struct.unpack("!H", payload[:2])[0] if payload else None))
            else:
                seen.append((opcode, payload))
    except (EOFError, ConnectionResetError):
        pass
    finally:
        peer.sock.close()
    return seen


END = close(1000)
BYE = ("close", 1000)

SIZES = [0, 1, 125, 126, 127, 128, 65535, 65536, 65537, 1 << 20, 4 << 20]


@pytest.mark.parametrize("chop", [None, 997])
@pytest.mark.parametrize("opcode", [TEXT, BINARY])
@pytest.mark.parametrize("size", SIZES)
def test_check_I06_messages_of_every_size(echo, opcode, size, chop):
    data = b"*" * size if opcode == TEXT else random.Random(size).randbytes(size)
    if chop is not None and size > 1 << 16:
        chop = 65521
    assert talk(echo, frame(opcode, data) + END, chop) == [(opcode, data), BYE]


@pytest.mark.parametrize("size", [0, 1, 124, 125])
@pytest.mark.parametrize("chop", [None, 1])
def test_check_I06_pings_come_back(echo, size, chop):
    data = bytes(range(size))
    assert talk(echo, frame(PING, data) + END, chop) == [(PONG, data), BYE]


def test_check_I06_ten_pings_in_order(echo):
    data = [b"payload-%d" % i for i in range(10)]
    assert talk(echo, b"".join(frame(PING, d) for d in data) + END) == [(PONG, d) for d in data] + [BYE]


def test_check_I06_unasked_pongs_are_nothing(echo):
    assert talk(echo, frame(PONG) + frame(PONG, b"x" * 125) + frame(PING, b"p") + END) == [(PONG, b"p"), BYE]


@pytest.mark.parametrize("opcode", [PING, PONG, CLOSE])
@pytest.mark.parametrize("size", [126, 65535, 65536])
def test_check_I06_long_control_frames(echo, opcode, size):
    data = struct.pack("!H", 1000) + b"x" * (size - 2)
    assert talk(echo, frame(opcode, data)) == [("close", 1002)]


@pytest.mark.parametrize("rsv", range(1, 8))
@pytest.mark.parametrize("opcode", [TEXT, BINARY, PING, PONG, CLOSE])
def test_check_I06_reserved_bits(echo, rsv, opcode):
    first = frame(TEXT, b"before")
    assert talk(echo, first + frame(opcode, b"", rsv=rsv)) == [(TEXT, b"before"), ("close", 1002)]


@pytest.mark.parametrize("opcode", [3, 4, 5, 6, 7, 11, 12, 13, 14, 15])
@pytest.mark.parametrize("data", [b"", b"x" * 10])
@pytest.mark.parametrize("fin", [True, False])
def test_check_I06_reserved_opcodes(echo, opcode, data, fin):
    first = frame(TEXT, b"before")
    assert talk(echo, first + frame(opcode, data, fin=fin)) == [(TEXT, b"before"), ("close", 1002)]


@pytest.mark.parametrize("opcode", [TEXT, BINARY, CONT, PING, CLOSE])
def test_check_I06_unmasked_frames(echo, opcode):
    assert talk(echo, frame(opcode, b"", mask=False)) == [("close", 1002)]


@pytest.mark.parametrize("opcode", [PING, PONG, CLOSE])
def test_check_I06_fragmented_control_frames(echo, opcode):
    assert talk(echo, frame(opcode, b"", fin=False)) == [("close", 1002)]


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, (16 << 20) + 1])
def test_check_I06_lengths_nobody_means(echo, length):
    assert talk(echo, frame(BINARY, b"", length=length)) == [("close", 1002 if length >> 63 else 1009)]


def test_check_I06_a_length_that_is_not_the_shortest(echo):
    long_form = bytes([0x82, 0xFE]) + struct.pack("!H", 5) + b"\0\0\0\0hello"
    assert talk(echo, long_form + END) == [("close", 1002)]


# Fragments: the texts of the suite's fifth chapter, each cut at every place.

@pytest.mark.parametrize("between", [b"", frame(PING, b"in between"), frame(PONG)])
@pytest.mark.parametrize("opcode", [TEXT, BINARY])
@pytest.mark.parametrize("pieces", [1, 2, 3, 8, 255])
@pytest.mark.parametrize("chop", [None, 1])
def test_check_I06_fragments(echo, between, opcode, pieces, chop):
    whole = "fragment ✓ ".encode() * 16
    step = max(1, len(whole) // pieces)
    parts = [whole[i:i + step] for i in range(0, len(whole), step)]
    data = b"".join(frame(opcode if i == 0 else CONT, p, fin=i == len(parts) - 1) + (between if i < len(parts) - 1 else b"")
                    for i, p in enumerate(parts))
    pongs = [(PONG, b"in between")] * (len(parts) - 1) if between[:1] == frame(PING)[:1] else []
    assert talk(echo, data + END, chop) == pongs + [(opcode, whole), BYE]


def test_check_I06_empty_fragments(echo):
    data = frame(TEXT, b"", fin=False) + frame(CONT, b"", fin=False) + frame(CONT, b"")
    assert talk(echo, data + END) == [(TEXT, b""), BYE]


@pytest.mark.parametrize("data", [
    frame(CONT, b"x"), frame(CONT, b"x", fin=False),
    frame(TEXT, b"a") + frame(CONT, b"b"),
    frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"),
    frame(TEXT, b"a", fin=False) + frame(BINARY, b"b", fin=False),
])
def test_check_I06_fragments_out_of_place(echo, data):
    assert talk(echo, data)[-1] == ("close", 1002)


def test_check_I06_endless_continuation(echo):
    data = frame(TEXT, b"x", fin=False) + frame(CONT, b"x", fin=False) * 5000
    assert talk(echo, data) == [("close", 1009)]


# UTF-8: sixth chapter.

GOOD = ["", "κόσμε", "Hello-µ@ßöäüàá-UTF-8!!", "\x00", "\x7f", "\x80", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\ufffd",
        "\uffff", "\ufdd0", "\U00010000", "\U0010ffff", "\U0001fffe", "\U0002ffff", "𠀀" * 300]
BAD = [b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xc0\xaf", b"\xc1\xbf",
       b"\xe0\x80\xaf", b"\xe0\x9f\xbf", b"\xf0\x80\x80\xaf", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80",
       b"\xf8\x88\x80\x80\x80", b"\xfc\x84\x80\x80\x80\x80", b"\x80", b"\xbf", b"\x80\xbf", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98",
       b"\xfe", b"\xff", b"\xfe\xfe\xff\xff", b"ok\xc3(", b"\xe2(\xa1", b"\xe2\x82(", b"\xf0(\x8c\xbc", b"\xf0\x90(\xbc"]


@pytest.mark.parametrize("text", GOOD)
@pytest.mark.parametrize("cut", ["whole", "bytes"])
@pytest.mark.parametrize("chop", [None, 1])
def test_check_I06_valid_utf8(echo, text, cut, chop):
    data = text.encode("utf-8", "surrogatepass")
    if cut == "whole" or len(data) < 2:
        sent = frame(TEXT, data)
    else:
        sent = b"".join(frame(TEXT if i == 0 else CONT, data[i:i + 1], fin=i == len(data) - 1) for i in range(len(data)))
    assert talk(echo, sent + END, chop) == [(TEXT, data), BYE]


@pytest.mark.parametrize("data", BAD)
@pytest.mark.parametrize("cut", ["whole", "bytes", "tail"])
def test_check_I06_invalid_utf8(echo, data, cut):
    if cut == "tail":
        sent = frame(TEXT, b"fine so far ", fin=False) + frame(CONT, data)
    elif cut == "whole" or len(data) < 2:
        sent = frame(TEXT, data)
    else:
        sent = b"".join(frame(TEXT if i == 0 else CONT, data[i:i + 1], fin=i == len(data) - 1) for i in range(len(data)))
    assert talk(echo, sent) == [("close", 1007)]
    assert talk(echo, frame(BINARY, data) + END) == [(BINARY, data), BYE]


# Closing: seventh chapter.

@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999])
@pytest.mark.parametrize("reason", [b"", b"x" * 123, "grüße".encode()])
def test_check_I06_valid_close_codes(echo, code, reason):
    assert talk(echo, close(code, reason)) == [("close", code)]


@pytest.mark.parametrize("code", [0, 1, 999, 1004, 1005, 1006, 1012 + 4, 1100, 2000, 2999, 5000, 65535])
def test_check_I06_invalid_close_codes(echo, code):
    assert talk(echo, close(code)) == [("close", 1002)]


def test_check_I06_close_without_a_code(echo):
    assert talk(echo, close()) == [("close", None)]


def test_check_I06_close_with_half_a_code(echo):
    assert talk(echo, frame(CLOSE, b"\x03")) == [("close", 1002)]


@pytest.mark.parametrize("reason", BAD)
def test_check_I06_close_with_a_bad_reason(echo, reason):
    assert talk(echo, close(1000, reason)) == [("close", 1007)]


@pytest.mark.parametrize("after", [frame(TEXT, b"late"), frame(PING, b"late"), close(1001), b"\xff" * 100])
def test_check_I06_nothing_counts_after_a_close(echo, after):
    assert talk(echo, close(1000) + after) == [BYE]


def test_check_I06_close_in_the_middle_of_a_message(echo):
    assert talk(echo, frame(TEXT, b"half", fin=False) + close(1000)) == [BYE]


# Limits and volume: ninth and tenth chapter.

@pytest.mark.parametrize("piece", [64, 4096, 65536, 1 << 20])
def test_check_I06_a_large_message_in_pieces(echo, piece):
    whole = random.Random(piece).randbytes(min(16 << 20, piece * 4096))[:4 << 20]
    parts = [whole[i:i + piece] for i in range(0, len(whole), piece)][:4000]
    whole = b"".join(parts)
    data = b"".join(frame(BINARY if i == 0 else CONT, p, fin=i == len(parts) - 1) for i, p in enumerate(parts))
    assert talk(echo, data + END) == [(BINARY, whole), BYE]


def test_check_I06_the_largest_message_and_one_byte_more(echo):
    data = b"x" * (16 << 20)
    assert talk(echo, frame(TEXT, data) + END) == [(TEXT, data), BYE]
    assert talk(echo, frame(TEXT, data + b"x", length=len(data) + 1))[-1] == ("close", 1009)


@pytest.mark.parametrize("size", [0, 16, 1024])
def test_check_I06_many_messages_in_order(echo, size):
    data = [random.Random(i).randbytes(size) for i in range(1000)]
    assert talk(echo, b"".join(frame(BINARY, d) for d in data) + END) == [(BINARY, d) for d in data] + [BYE]
