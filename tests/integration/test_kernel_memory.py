# SPDX-License-Identifier: Apache-2.0
"""What a session can make the kernel hold for it is bounded, by the memory limit or by a bound of its own, kind by kind:
docs/reference/limits.md. Each program here takes as much as it is given and says how much that was. It is stopped by an
error, or killed for its memory, before it has several times the limit."""

import contextlib
import os
import pathlib
import re
import subprocess

import pytest
from boxlib import ApiError, Boxd
from lbwire import eventually

pytestmark = pytest.mark.vm

MIB = 1 << 20
MEMORY = 64

# Each defines take(), which holds on to what it gets and yields what that weighs, in bytes, one piece at a time.
PROGRAM = """
import ctypes, fcntl, mmap, os, resource, select, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
keep = []
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
LIMIT = 1 << 30  # enough to prove that there is no bound

{take}

held = 0
try:
    for more in take():
        held += more
        if held > LIMIT:
            break
except (OSError, MemoryError, ValueError) as error:
    print(error, file=sys.stderr)
print(held)
"""

KINDS = {
    # kind: (what it may hold at most in a session of 64 MiB, program)
    "tcp": (96, """
def take():
    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    while True:
        a = socket.create_connection(server.getsockname())
        b = server.accept()[0]
        keep.extend((a, b))
        a.setblocking(False)
        try:
            while True:
                yield a.send(bytes(65536))
        except BlockingIOError:
            pass
"""),
    "udp": (96, """
def take():
    for _ in range(200):
        r, s = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in "rs")
        r.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        r.bind(("127.0.0.1", 0))
        keep.append(r)
        for _ in range(600):
            s.sendto(bytes(8000), r.getsockname())
        s.close()
    for r in keep:  # what was dropped on the way is not held: it is counted by taking it out
        r.setblocking(False)
        try:
            while True:
                yield len(r.recv(65536))
        except BlockingIOError:
            r.close()
"""),
    "unix-stream": (96, """
def take():
    while True:
        a, b = socket.socketpair()
        a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        a.setblocking(False)
        keep.extend((a, b))
        try:
            while True:
                yield a.send(bytes(65536))
        except BlockingIOError:
            pass
"""),
    "unix-datagram": (96, """
def take():
    while True:
        a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        a.setblocking(False)
        keep.extend((a, b))
        try:
            while True:
                yield a.send(bytes(16384))
        except BlockingIOError:
            pass
"""),
    "pipe": (96, """
def take():
    while True:
        r, w = os.pipe2(os.O_NONBLOCK)
        keep.append((r, w))
        try:
            fcntl.fcntl(w, 1031, 1 << 20)  # F_SETPIPE_SZ
        except PermissionError:
            pass
        try:
            while True:
                yield os.write(w, bytes(65536))
        except BlockingIOError:
            pass
"""),
    "memfd": (96, """
def take():
    while True:
        keep.append(os.memfd_create("x"))
        for _ in range(32):
            yield os.write(keep[-1], bytes(1 << 20))
"""),
    "tmpfs": (96, """
def take():
    with open("/dev/shm/x" if os.path.isdir("/dev/shm") else "/tmp/x", "wb", buffering=0) as f:
        while True:
            yield f.write(bytes(1 << 20))
"""),
    "page-tables": (96, """
def take():  # a page of tables for each 2 MiB, the pages themselves stay the zero page
    while True:
        m = mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
        m.madvise(15)  # MADV_NOHUGEPAGE
        keep.append(m)
        for at in range(0, 1 << 30, 1 << 21):
            m[at]
            yield 4096
"""),
    "epoll": (96, """
def take():
    ends = [os.eventfd(0) for _ in range(2000)]
    while True:
        e = select.epoll()
        keep.append(e)
        for fd in ends:
            e.register(fd)
            yield 160
"""),
    "inotify": (96, """
def take():
    os.makedirs("/tmp/i", exist_ok=True)
    for n in range(100000):
        os.close(os.open(f"/tmp/i/{n}", os.O_CREAT | os.O_WRONLY))
        if n % 20000 == 0:
            fd = libc.inotify_init1(0)
            if fd < 0:
                raise OSError(ctypes.get_errno(), "inotify_init1")
        if libc.inotify_add_watch(fd, f"/tmp/i/{n}".encode(), 2) < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch")
        yield 600
"""),
    "timers": (4, """
def take():
    timer = ctypes.c_void_p()
    while True:
        if libc.timer_create(1, None, ctypes.byref(timer)) < 0:
            raise OSError(ctypes.get_errno(), "timer_create")
        yield 400
"""),
    "posix-queues": (4, """
def take():
    rt = ctypes.CDLL("librt.so.1", use_errno=True)
    n = 0
    while True:
        n += 1
        fd = rt.mq_open(f"/q{n}".encode(), os.O_CREAT | os.O_RDWR | os.O_NONBLOCK, 0o600, None)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "mq_open")
        while rt.mq_send(fd, bytes(8000), 8000, 0) == 0:
            yield 8000
"""),
    "descriptors-in-flight": (96, """
def take():
    while True:
        a, b = socket.socketpair()
        keep.extend((a, b))
        fd = os.memfd_create("x")
        os.write(fd, bytes(65536))
        socket.send_fds(a, [b"x"], [fd])
        os.close(fd)
        yield 65536
"""),
    "open-file-locks": (0, """
def take():  # they belong to no process, so they could not be counted
    import struct
    fd = os.memfd_create("x")
    while True:
        fcntl.fcntl(fd, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0))  # F_OFD_SETLK
        yield 192
"""),
    "keyrings": (1, """
def take():
    n = 0
    while True:
        n += 1
        if libc.syscall(248, b"user", f"k{n}".encode(), bytes(4096), 4096, -2) < 0:
            raise OSError(ctypes.get_errno(), "add_key")
        yield 4096
"""),
}

# Of these no cgroup takes note. boxd counts them, and ends what runs in the session.
COUNTED = {
    # kind: (row of the receipt, program)
    "netlink": ("netlink_bytes", """
def take():  # 64 requests at a time, whose answers are never read
    request = (b"\\x20\\0\\0\\0\\x12\\0\\x01\\0" + bytes(12) + b"\\x01" + bytes(11)) * 64
    for _ in range(4000):
        s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30)
        keep.append(s)
        held, full = 0, False
        while not full:
            s.send(request)
            now, most = (int.from_bytes(s.getsockopt(socket.SOL_SOCKET, 55, 8)[i:i + 4], "little") for i in (0, 4))
            full = now + 65536 > most or now == held
            yield now - held
            held = now
"""),
    "record-locks": ("lock_bytes", """
def take():  # few on each file: the kernel compares with all that a file has
    files = [os.memfd_create("x") for _ in range(4000)]
    at = 0
    while True:
        at += 2
        for fd in files:
            fcntl.lockf(fd, fcntl.LOCK_EX, 1, at)
            yield 192
"""),
}


@pytest.fixture(scope="module")
def daemon():
    d = Boxd()
    yield d
    d.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_kernel_holds_is_bounded(daemon, kind):
    most, take = KINDS[kind]
    api = daemon.client()
    name = f"kernel-{kind}"
    api.new(name, memory_mb=MEMORY)
    try:
        limits = api.receipt(name)["limits"]
        assert limits["memory_bytes"] == {"enforced": True, "value": MEMORY * MIB}
        assert limits["socket_bytes"]["enforced"] and limits["socket_bytes"]["value"] <= MEMORY * MIB
        try:
            said = api.x(name, "python3", "-c", PROGRAM.replace("{take}", take), timeout_sec=240)
        except ApiError as error:
            assert "session" in error.detail, error  # PID 1 went with it: all that was held is gone
            return
        if said["outcome"] == "exited":
            assert said["exit_code"] == 0, said
            assert int(said["stdout"]) <= most * MIB, said
        else:
            # The last one: PID 1 went with it, and all that was held is gone.
            assert said["outcome"] in ("oom_killed", "session_lost") or said.get("signal") == 9, said
    finally:
        try:
            api.rm(name)
        except ApiError as error:
            assert error.status == 404
        api.close()


@pytest.mark.rootless
@pytest.mark.parametrize("kind", COUNTED)
def test_what_no_cgroup_charges_is_bounded(daemon, kind):
    row, take = COUNTED[kind]
    api = daemon.client()
    name = f"counted-{kind}"
    api.new(name)
    try:
        limit = api.receipt(name)["limits"][row]
        assert limit["enforced"] and limit["value"] == 16 * MIB and limit["how"]
        said = api.x(name, "python3", "-c", PROGRAM.replace("{take}", take), timeout_sec=240)
        assert said["outcome"] == "quota_exceeded", said
        held = int(re.search(rf"{row}=(\d+)", said["error"])[1])
        # What a program takes between two looks comes on top; a busy machine looks later.
        assert limit["value"] < held < 512 * MIB, said
        assert api.sh(name, "echo alive")["stdout"] == "alive\n"
    finally:
        api.rm(name)
        api.close()


@contextlib.contextmanager
def forwarding():
    """A host without a way to the internet forwards nothing, and so tracks nothing: packets get one that ends in lo."""
    route = ["8.8.8.8/32", "dev", "lo"]
    lacking = os.geteuid() == 0 and subprocess.run(["ip", "route", "get", "8.8.8.8"], capture_output=True).returncode != 0
    if lacking:
        subprocess.run(["ip", "route", "add", *route], check=True)
    try:
        yield
    finally:
        if lacking:
            subprocess.run(["ip", "route", "del", *route], check=True)


def tracked():
    count = pathlib.Path("/proc/sys/net/netfilter/nf_conntrack_count")
    return int(count.read_text()) if count.exists() else 0


@pytest.mark.rootless
def test_connections_that_a_firewall_tracks_are_bounded(daemon):
    api = daemon.client()
    network = next(c for c in api.doctor()["checks"] if c["id"] == "network")
    if network["status"] != "ok":
        pytest.skip(network["detail"])
    api.new("connected", network="on")
    try:
        limits = api.receipt("connected")["limits"]
        most, pace = (limits[k] for k in ("connections", "connections_per_sec"))
        assert most == {"enforced": True, "value": 1024} and pace == {"enforced": True, "value": 200}
        program = """
import errno, socket, time
begun, flows, started = time.monotonic(), 0, 0
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for port in range(3000, 5000):
    try:
        flows += udp.sendto(b"x", ("8.8.8.8", port))
    except OSError:
        pass
for _ in range(2000):
    with socket.socket() as s:
        s.setblocking(False)
        s.connect_ex(("8.8.8.8", 9))
        started += s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != errno.ECONNREFUSED
print(flows, started, time.monotonic() - begun)
"""
        before = tracked()
        with forwarding():
            said = api.x("connected", "python3", "-c", program, timeout_sec=240)
        flows, started, seconds = map(float, said["stdout"].split())
        new = started + (tracked() - before if os.geteuid() == 0 else flows)  # root's are refused on their way
        assert 0 < new <= most["value"] + pace["value"] * (seconds + 2), (flows, started, seconds, new)
        if os.geteuid() != 0:
            helper = next(p for p in pathlib.Path("/proc").glob("[0-9]*/cmdline")
                          if p.read_bytes().startswith(b"slirp4netns") and p.stat().st_uid == os.geteuid())
            text = helper.with_name("limits").read_text()
            assert int(re.search(r"Max open files\s+(\d+)", text)[1]) == most["value"] + 64
    finally:
        api.rm("connected")
        api.close()


def test_without_a_network_no_connection_is_tracked(daemon):
    api = daemon.client()
    api.new("tracked")
    program = """
import socket
server = socket.create_server(("127.0.0.1", 0), backlog=128)
keep = [socket.create_connection(server.getsockname()) for _ in range(100)]
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for port in range(1, 101):
    udp.sendto(b"x", ("127.0.0.1", port))
print("made")
input()
"""
    api.call("POST", "/v1/sessions/tracked/processes",
             {"command": "python3", "args": ["-c", program], "process_id": "p"})
    assert eventually(lambda: api.call("GET", "/v1/sessions/tracked/processes/p")["output"]["end"] > 0, 60)
    # The number is that of the network namespace of who reads it; without the module there is none.
    count = subprocess.run(["nsenter", "-n", "-t", str(api.receipt("tracked")["host_pid"]), "sh", "-c",
                            "cat /proc/sys/net/netfilter/nf_conntrack_count || echo 0"],
                           capture_output=True, text=True, check=True).stdout
    assert int(count) == 0
    api.rm("tracked")
    api.close()


def test_sockets_work_within_the_bound(daemon):
    """The bound is no reason for a connection to fail: a transfer of many times as much gets through."""
    api = daemon.client()
    api.new("sockets", memory_mb=MEMORY)
    program = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
def feed():
    with socket.create_connection(server.getsockname()) as s:
        for _ in range(200):
            s.sendall(bytes(1 << 20))
threading.Thread(target=feed).start()
got, c = 0, server.accept()[0]
while more := len(c.recv(1 << 20)):
    got += more
print(got)
"""
    try:
        said = api.x("sockets", "python3", "-c", program, timeout_sec=240)
        assert said["stdout"] == f"{200 * MIB}\n", said
    finally:
        api.rm("sockets")
        api.close()
