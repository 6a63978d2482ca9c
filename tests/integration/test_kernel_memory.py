# SPDX-License-Identifier: Apache-2.0
"""What a session can make the kernel hold for it is bounded, by the memory limit or by a bound of its own, kind by kind:
docs/reference/limits.md. Each program here takes as much as it is given and says how much that was. It is stopped by an
error, or killed for its memory, before it has several times the limit."""

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
