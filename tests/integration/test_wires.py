# SPDX-License-Identifier: Apache-2.0
"""Peers that vanish, and the wires between our own programs: checks I14, I17 and I20 of the catalogue."""

import array
import contextlib
import json
import os
import pathlib
import re
import socket
import struct
import subprocess
import tempfile
import time

import pytest
from boxlib import BUILD, ROOT, Boxd
from hostlib import SCALE, Namespace, adopt_orphans, alive, assert_no_leak, built, fd_count, need, reap_orphans, until
from lbwire import Rpc, WebSocket, physical, relay

TOKEN = "correct-horse-battery-staple-0123456789"
SERVER, CLIENT = "10.99.0.1", "10.99.0.2"


# I14: peers that are not there any more.


class Cable:
    """boxd in a network namespace of its own, with a cable to another where clients are."""

    def __init__(self):
        self.here, self.there = Namespace(), Namespace()
        self.here.ip("link", "add", "a0", "type", "veth", "peer", "name", "b0", "netns",
                     str(self.there._holder.pid))
        for ns, name, address in ((self.here, "a0", SERVER), (self.there, "b0", CLIENT)):
            ns.ip("link", "set", "lo", "up")
            ns.ip("addr", "add", f"{address}/24", "dev", name)
            ns.ip("link", "set", name, "up")
        self.token = tempfile.NamedTemporaryFile("w", prefix="box-token-")
        self.token.write(TOKEN)
        self.token.flush()
        self.daemon = Boxd("--host", SERVER, "--ws-control-port", "5410", env={"BOX_TOKEN_FILE": self.token.name},
                           prefix=self.here.enter)
        self.where = (SERVER, 5410)

    def cut(self):
        """Nothing passes any more, and nobody is told."""
        self.there.run("nft", "-f", "-", input="".join(
            f"add table inet cut\nadd chain inet cut {hook} {{ type filter hook {hook} priority 0; policy drop; }}\n"
            for hook in ("input", "output")))

    def close(self):
        self.daemon.close()
        self.token.close()
        self.here.close()
        self.there.close()


@pytest.fixture
def cable():
    need("ip", "nft", "nsenter", "unshare")
    c = Cable()
    yield c
    c.close()


class Stream:
    """A command over /v1/exec, as `box` runs one."""

    def __init__(self, where, session, cmd):
        self.ws = WebSocket(where, "/v1/exec", {"Authorization": f"Bearer {TOKEN}"}, timeout=120 * SCALE)
        self.ws.send(json.dumps({"session": {"session_id": session}, "create": False, "argv": ["sh", "-c", cmd],
                                 "timeout_sec": 900}))


def counts(client):
    return {s["session_id"]: s["execs"] for s in client.ps()}


def test_check_I14_peers_that_vanish_are_noticed_within_a_minute(cable):
    """All kinds at once, so that the minute is waited for only once. What a peer alone waited for ends with it; managed
    processes go on."""
    client = cable.daemon.client()
    for name in ("stream", "mute", "rst"):
        client.new(name)
    client.ps()
    base = fd_count(cable.daemon.pid)
    with cable.there.inside():
        idle = Rpc(cable.where, token=TOKEN)
        idle.call("box_health", ctx=None)
        busy = Rpc(cable.where, token=TOKEN)
        busy.call("box_create_session", {"session_id": "s"})
        busy.call("box_start_managed_process", {"session_id": "s", "spec": {"command": "cat"}})
        busy.start("box_exec", {"session_id": "s", "cmd": "sleep 1000", "timeout_sec": 900})
        attached = relay(cable.where, "s", token=TOKEN)
        attached.send("there")
        assert attached.recv() == "there"
        stream = Stream(cable.where, "stream", "sleep 1000")
        half = Rpc(cable.where, token=TOKEN)
        half.ws.sock.sendall(struct.pack("!BBH", 0x81, 0x80 | 126, 60000) + b"\0\0\0\0" + b"{" * 100)
        # Reads nothing: its window is zero, and stays so.
        mute = Stream(cable.where, "mute", "yes | head -c 100000000; sleep 1000")
    name = physical("s")
    until(lambda: counts(client) == {"stream": 1, "mute": 1, "rst": 0, name: 1}, what="the commands")
    # A reset in the middle of a frame is noticed at once, and so is the end of what it waited for.
    with cable.here.inside():
        rst = Stream(cable.where, "rst", "sleep 1000")
    until(lambda: counts(client)["rst"] == 1, what="the command")
    rst.ws.sock.sendall(struct.pack("!BBH", 0x82, 0x80 | 126, 60000) + b"\0\0\0\0half")
    rst.ws.vanish()
    until(lambda: counts(client)["rst"] == 0, seconds=5, what="the end of a command whose reader was reset")

    cable.cut()
    begin = time.monotonic()
    until(lambda: set(counts(client).values()) == {0}, seconds=75, what="the end of the commands")
    until(lambda: fd_count(cable.daemon.pid) <= base + 4, seconds=75, what="the end of the connections")
    assert time.monotonic() - begin < 70 * SCALE
    # The process nobody reads any more is still there, for whoever comes next.
    with cable.here.inside(), relay(cable.where, "s", token=TOKEN) as again:
        again.send("still there")
        first = again.recv()
        # A line whose acknowledgement was lost with the cable comes again.
        assert first == "still there" or (first, again.recv()) == ("there", "still there")
    for kept in (idle.ws, busy.ws, attached, stream.ws, half.ws, mute.ws):
        kept.sock.close()
    for session in counts(client):
        client.rm(session)
    assert_no_leak(cable.daemon)


# I17: parsers of what strangers send are fuzzed, and what was found stays found.


PARSERS = sorted(p.stem.removeprefix("fuzz_") for p in (ROOT / "tests/fuzz").glob("fuzz_*.c"))


@pytest.mark.parametrize("name", PARSERS)
def test_check_I17_seeds_of_every_parser_are_replayed(name):
    seeds = ROOT / "tests/fuzz/corpus" / name
    r = subprocess.run([built(f"fuzz/replay_{name}"), str(seeds)], text=True, capture_output=True, timeout=300 * SCALE)
    assert r.returncode == 0, r.stderr[-2000:]
    assert int(re.search(r"(\d+) inputs", r.stdout + r.stderr).group(1)) == len(list(seeds.iterdir())) > 0


def test_check_I17_no_parser_is_forgotten():
    assert set(PARSERS) >= {"dns", "http1", "init_wire", "json", "priv", "record", "rpc", "skill_md", "spec", "ws",
                            "zip"}
    assert sorted(p.name for p in (ROOT / "tests/fuzz/corpus").iterdir()) == PARSERS


# I20: the two wires between our own programs, when the other end is of another build.


def constant(header, name):
    text = (ROOT / "src" / header).read_text()
    return int(re.search(rf"#define {name} (\d+)U", text).group(1))


PRIV_VERSION = constant("priv/wire.h", "PRIV_WIRE_VERSION")
INIT_VERSION = constant("inside/init_wire.h", "INIT_WIRE_VERSION")
TEXT = int(re.search(r"char msg\[(\d+)\]", (ROOT / "src/base/err.h").read_text()).group(1))
UNION = (24 + TEXT + 7) // 8 * 8  # behind head, result and error
HELLO, CREATE, BYE, LIST, ADOPT = 1, 2, 6, 7, 8
ITEM = 24  # a name of 17 bytes, and a number


class Priv:
    """As the next boxd talks to the box-priv that the last one has left."""

    def __init__(self, daemon):
        self.owner = daemon.state.stat()
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(30 * SCALE)
        self.sock.connect(str(daemon.state / "priv.sock"))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.sock.close()

    def ask(self, kind, data=b""):
        """(result, text of the error, everything, descriptors)"""
        self.sock.sendall(struct.pack("=II", kind, 77) + data)
        fds = array.array("i")
        reply, extra, _, _ = self.sock.recvmsg(65536, socket.CMSG_SPACE(16))
        for _, _, some in extra:
            fds.frombytes(some[:len(some) - len(some) % 4])
        echoed, number, result = struct.unpack_from("=IIi", reply)
        assert (echoed, number) == (kind, 77)
        return result, reply[20:20 + TEXT].split(b"\0")[0].decode(), reply, list(fds)

    def hello(self, version=PRIV_VERSION, extra=b""):
        return self.ask(HELLO, struct.pack("=III", version, self.owner.st_uid, self.owner.st_gid) + extra)


@pytest.fixture
def left():
    """A daemon that was killed; its session and its process are still there."""
    adopt_orphans()
    d = Boxd()
    with Rpc(d.sock) as rpc:
        rpc.call("box_create_session", {"session_id": "s"})
        rpc.exec("s", "echo here > /workspace/f")
        rpc.call("box_start_managed_process", {"session_id": "s", "spec": {"command": "cat"}})
    d.helper = d.priv_pid()
    d.process.kill()
    d.process.wait()
    until(lambda: not pathlib.Path(f"/proc/{d.pid}").exists() or not alive(d.pid))
    yield d
    d.close()
    reap_orphans()


def all_is_well(d):
    d.start()
    with Rpc(d.sock) as rpc, relay(d.sock, "s") as ws:
        assert rpc.exec("s", "cat /workspace/f")["stdout"] == "here"
        assert rpc.call("box_get_managed_process", {"session_id": "s"})["status"] == "running"
        ws.send("echo")
        assert ws.recv() == "echo"
    assert d.priv_pid() == d.helper


def test_check_I20_box_priv_and_a_boxd_of_another_version(left):
    for version, extra in ((PRIV_VERSION + 1, b""), (PRIV_VERSION - 1, b""), (0xFFFFFFFF, b""),
                           (PRIV_VERSION, b"more")):
        with Priv(left) as other:
            result, text, _, fds = other.hello(version, extra)
            assert result < 0 and "not of the same version" in text and fds == []
            # It may not do anything but greet, or say good-bye.
            result, text, _, fds = other.ask(LIST)
            assert result < 0 and "wrong state" in text and fds == []
    assert alive(left.helper)
    all_is_well(left)


def test_check_I20_box_priv_and_requests_that_it_does_not_know(left):
    with Priv(left) as other:
        for kind in (0, 40, 99, 0xFFFFFFFF):
            result, text, _, fds = other.ask(kind, b"\0" * 64)
            assert result < 0 and "unknown privileged request" in text and fds == [], (kind, text)
        assert other.hello()[0] == 0
        for kind in (40, 0x80000001):
            assert "unknown" in other.ask(kind)[1]
        assert other.hello()[0] < 0  # once is enough
        assert other.ask(CREATE, b"short")[0] < 0
        assert other.ask(ADOPT, b"x" * 20)[0] < 0
        assert other.ask(LIST, b"more")[0] < 0
    for junk in (b"", b"x", b"\1\0\0\0\0\0\0"):
        with Priv(left) as other:
            with contextlib.suppress(OSError):
                other.sock.send(junk)
                other.sock.recv(10)
    assert alive(left.helper)
    all_is_well(left)


def test_check_I20_a_boxd_that_box_priv_does_not_understand_ends_it_and_begins_anew(left):
    """What a boxd of a later build does when it finds an older box-priv: good-bye means the same for ever."""
    with Priv(left) as other:
        assert other.hello(PRIV_VERSION + 1)[0] < 0
        other.sock.sendall(struct.pack("=II", BYE, 1))
        until(lambda: not alive(left.helper), what="the end of box-priv")
    assert_no_leak(left)
    left.start()
    assert left.client().ps() == []
    assert "cannot be taken over" in left.log() or "no such sandbox" in left.log()
    left.client().new("fresh")


def control_socket(priv):
    """The sandbox's own wire, as box-priv hands it over."""
    _, _, reply, fds = priv.ask(LIST)
    n = struct.unpack_from("=I", reply, UNION)[0]
    items = os.pread(fds[0], n * ITEM, 0)
    os.close(fds[0])
    assert n == 1
    result, text, _, fds = priv.ask(ADOPT, items[:17] + b"\0" * 3)
    assert result == 0, text
    os.close(fds[0])
    return socket.socket(fileno=fds[1])


def test_check_I20_pid_1_and_a_boxd_of_another_version(left):
    with Priv(left) as other:
        assert other.hello()[0] == 0
        with control_socket(other) as pid1:
            pid1.settimeout(0.3)
            with contextlib.suppress(TimeoutError):
                while pid1.recv(1000):  # what was meant for the boxd before
                    pass
            for message in (struct.pack("=IIQ", 1, INIT_VERSION + 1, 7), struct.pack("=IIQ", 1, 0, 7),
                            struct.pack("=IIQ", 1, INIT_VERSION, 7) + b"more", b"\1", struct.pack("=I", 1),
                            struct.pack("=II", 99, 1), struct.pack("=II", 2, 1), b"\xff" * 4000):
                pid1.send(message)
                with pytest.raises(TimeoutError):
                    pid1.recv(1000)  # it waits for a greeting that makes sense
            # After one there is an answer; what makes no sense then is the end of the talk, and of nothing else.
            pid1.settimeout(30 * SCALE)
            pid1.send(struct.pack("=IIQ", 1, INIT_VERSION, 4711))
            assert struct.unpack("=IIQ", pid1.recv(16)) == (1, INIT_VERSION, 4711)
            pid1.send(struct.pack("=II", 99, 1))
    assert alive(left.helper)
    all_is_well(left)


def test_check_I20_programs_tell_their_version():
    for program in ("boxd", "box"):
        r = subprocess.run([str(BUILD / program), "--version"], text=True, capture_output=True, timeout=60 * SCALE)
        assert r.returncode == 0 and re.search(r"\d+\.\d+", r.stdout), r
    r = subprocess.run([str(BUILD / "boxd"), "--of-tomorrow"], capture_output=True, timeout=60 * SCALE)
    assert r.returncode == 1
