# SPDX-License-Identifier: Apache-2.0
"""What two sessions, or a session and the host, must not share (D01, D02, M03, M06, M07)."""

import contextlib
import ctypes
import os
import socket

import pytest

from escapelib import beside, has_landlock, ran, wait_for

# Tries to find what OTHER left. One word per finding; nothing when there is none.
FIND = r"""
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
tag, port = sys.argv[1], int(sys.argv[2])
key = int(sys.argv[3])
def tell(what): print(what)
s = socket.socket()
try:
    s.connect(("127.0.0.1", port)); tell("loopback")
except OSError as e:
    tell("" if e.errno == 111 else f"connect:{e}")
for name in ("\0" + tag, "/tmp/" + tag + ".sock", "/workspace/" + tag + ".sock"):
    u = socket.socket(socket.AF_UNIX)
    try:
        u.connect(name); tell("unix " + repr(name))
    except OSError as e:
        tell("" if e.errno in (2, 111) else f"unix:{e}")
if libc.shmget(key, 0, 0) != -1: tell("shm")
if libc.semget(key, 0, 0) != -1: tell("sem")
if libc.msgget(key, 0) != -1: tell("msg")
nr = 240 if os.uname().machine == "x86_64" else 180
if libc.syscall(nr, tag.encode(), os.O_RDWR, 0, None) != -1: tell("mq")
for d in ("/tmp", "/dev/shm", "/workspace", "/home/box", "/var/tmp"):
    if any(tag in name for name in os.listdir(d)): tell(d)
if any(tag in open("/proc/" + p + "/cmdline").read() for p in os.listdir("/proc")
       if p.isdigit() and int(p) not in (1, os.getpid(), os.getppid()) and os.path.exists("/proc/" + p + "/cmdline")):
    tell("process")
try:
    v = socket.socket(socket.AF_VSOCK); tell("vsock")
except OSError:
    pass
"""

# Leaves one of each, and stays.
LEAVE = r"""
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
tag, port, key = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
s = socket.socket(); s.bind(("0.0.0.0", port)); s.listen()
u = [socket.socket(socket.AF_UNIX) for _ in range(3)]
for one, name in zip(u, ("\0" + tag, "/tmp/" + tag + ".sock", "/workspace/" + tag + ".sock")):
    one.bind(name); one.listen()
assert libc.shmget(key, 4096, 0o1000 | 0o666) != -1
assert libc.semget(key, 1, 0o1000 | 0o666) != -1
assert libc.msgget(key, 0o1000 | 0o666) != -1
nr = 240 if os.uname().machine == "x86_64" else 180
attr = (ctypes.c_long * 8)(0, 1, 64)  # the default is larger than RLIMIT_MSGQUEUE
# Landlock refuses them: their file system has no path that a rule could name.
assert libc.syscall(nr, tag.encode(), os.O_RDWR | os.O_CREAT, 0o666, attr) != -1 or ctypes.get_errno() == 13
for d in ("/tmp", "/dev/shm", "/home/box"):
    open(f"{d}/{tag}", "w").close()
open("/workspace/ready", "w").close()
while not os.path.exists("/workspace/stop"):
    import time; time.sleep(0.02)
"""


def find(api, sid, tag, port, key):
    r = ran(api.x(sid, "python3", "-c", FIND, tag, str(port), str(key)))
    assert (r["exit_code"], r["stderr"]) == (0, ""), r
    return r["stdout"].split("\n")


@contextlib.contextmanager
def host_objects(tag, key):
    """A listener, an abstract socket, System V and POSIX objects of the host."""
    libc = ctypes.CDLL(None, use_errno=True)
    mq_open, mq_unlink = (240, 241) if os.uname().machine == "x86_64" else (180, 181)
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind("\0" + tag)
        unix.listen()
        shm, sem, msg = (libc.shmget(key, 4096, 0o1000 | 0o666), libc.semget(key, 1, 0o1000 | 0o666),
                         libc.msgget(key, 0o1000 | 0o666))
        mq = libc.syscall(mq_open, tag.encode(), os.O_RDWR | os.O_CREAT, 0o666, None)
        try:
            assert min(shm, sem, msg) >= 0
            yield tcp.getsockname()[1]
        finally:
            libc.shmctl(shm, 0, None)
            libc.semctl(sem, 0, 0)
            libc.msgctl(msg, 0, None)
            if mq >= 0:
                os.close(mq)
                libc.syscall(mq_unlink, tag.encode())


@pytest.mark.rootless
def test_check_D02_network_off_nothing_of_the_host_is_reached(api, session):
    tag = f"box-d02-{os.getpid()}"
    key = 0x62000000 + os.getpid() % 0xFFFFFF
    with host_objects(tag, key) as port:
        socket.create_connection(("127.0.0.1", port)).close()  # on the host it is there
        assert set(find(api, session(), tag, port, key)) == {""}
    r = ran(api.sh(session(), "ls /sys/class/net 2>/dev/null; tail -n +3 /proc/net/dev | cut -d: -f1; "
                              "tail -n +2 /proc/net/route; cat /proc/net/arp | tail -n +2"))
    assert r["stdout"].split() == ["lo"]


OUTSIDE = """
import socket, time
for family, kind, to in ((socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80)),
                         (socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53)),
                         (socket.AF_INET6, socket.SOCK_STREAM, ("2001:db8::1", 80))):
    s = socket.socket(family, kind); s.settimeout(60)
    try:
        s.connect(to); print("connected", to)
    except OSError as e:
        print(e.errno)
"""


@pytest.mark.rootless
def test_check_D01_network_off_is_unreachable_at_once(api, sid):
    r = ran(api.x(sid, "python3", "-c", OUTSIDE))
    assert r["stdout"].split() == ["101"] * 3, r  # ENETUNREACH


@pytest.mark.rootless
def test_check_M03_sessions_share_nothing(boxd_shared, api, session):
    a, b = session(), session()
    tag, port, key = "m03-of-a", 4711, 0x6D3
    with beside(boxd_shared, a, "python3", "-c", LEAVE, tag, str(port), str(key),
                stop=lambda: api.x(a, "touch", "/workspace/stop")) as left:
        wait_for(lambda: left.done() or api.x(a, "test", "-e", "/workspace/ready")["exit_code"] == 0)
        assert not left.done(), left.result()
        assert set(find(api, b, tag, port, key)) == {""}
        # The search is one that finds things: in the same session it does.
        found = set(find(api, a, tag, port, key))
        if not has_landlock():
            assert "mq" in found
        assert {"loopback", "shm", "sem", "msg", "/tmp", "/dev/shm", "/workspace", "/home/box"} <= found, found
    assert ran(left.result())["exit_code"] == 0


EXHAUST = r"""
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
kept = []
def until_refused(make, most):
    n = 0
    while n < most:
        try:
            kept.append(make()); n += 1
        except OSError:
            break
    return n
def inotify():
    fd = libc.inotify_init1(0o2000000)
    if fd < 0: raise OSError(ctypes.get_errno(), "inotify")
    return fd
def pipe():
    r, w = os.pipe()
    import fcntl; fcntl.fcntl(w, 1031, 1 << 20)  # F_SETPIPE_SZ
    return r, w
n = until_refused(inotify, 2000)
m = until_refused(pipe, 500)
pid = os.getpid()
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
def queue():
    if libc.sigqueue(pid, int(signal.SIGRTMIN), None) < 0: raise OSError(ctypes.get_errno(), "sigqueue")
q = until_refused(queue, 5000)
open("/workspace/ready", "w").write(f"{n} {m} {q}")
import time
while not os.path.exists("/workspace/stop"): time.sleep(0.02)
"""
MODEST = r"""
import ctypes, fcntl, os, signal
libc = ctypes.CDLL(None, use_errno=True)
assert all(libc.inotify_init1(0) >= 0 for _ in range(8)), os.strerror(ctypes.get_errno())
for _ in range(4):
    r, w = os.pipe(); fcntl.fcntl(w, 1031, 1 << 20)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
assert all(libc.sigqueue(os.getpid(), int(signal.SIGRTMIN), None) == 0 for _ in range(64))
print("fine")
"""


def test_check_M06_budgets_of_a_user_are_a_sessions_own(boxd_shared, api, session):
    a, b = session(), session()
    with beside(boxd_shared, a, "python3", "-c", EXHAUST,
                stop=lambda: api.x(a, "touch", "/workspace/stop")) as hog:
        wait_for(lambda: hog.done() or api.x(a, "test", "-e", "/workspace/ready")["exit_code"] == 0)
        assert not hog.done(), hog.result()
        inotify, pipes, signals = map(int, ran(api.x(a, "cat", "/workspace/ready"))["stdout"].split())
        assert 0 < inotify < 2000 and 0 < signals < 5000 and pipes > 0
        r = ran(api.x(b, "python3", "-c", MODEST))
        assert (r["stdout"], r["stderr"]) == ("fine\n", "")
    assert ran(hog.result())["exit_code"] == 0


REMEMBER = """
import os
for d in ("/workspace", "/home/box"):
    os.chdir(d)
    for i in range(500):
        open(f"{'x' * 200}{i}", "w").close()
    for name in os.listdir("."):
        os.unlink(name)
    if d == "/home/box" or KEEP_SMALL:
        os.utime(d, ns=(1_234_567_890_123_456_789,) * 2)
    os.chmod(d, 0o755)
"""


@pytest.mark.rootless
@pytest.mark.parametrize("small", [True, False])
def test_check_M07_a_new_session_finds_nothing_of_an_old_one(boxd, small):
    """Storage is used again: names, sizes, times and modes of directories must not tell of the one before."""
    api = boxd.client()
    api.new("fresh")
    ask = "stat -c '%n %s %a %h' /workspace /home/box; ls -A /workspace /home/box /tmp /dev/shm; "
    want = ran(api.sh("fresh", ask))["stdout"]
    for i in range(4):
        script = REMEMBER.replace("KEEP_SMALL", str(small)).replace("500", "2" if small else "500")
        assert ran(api.x("fresh", "python3", "-c", script))["exit_code"] == 0
        api.rm("fresh")
        api.new("fresh")
        assert ran(api.sh("fresh", ask))["stdout"] == want
        times = ran(api.sh("fresh", "stat -c '%Y %X' /workspace /home/box"))["stdout"].split()
        assert min(map(int, times)) > 1_700_000_000, (i, times)
    api.close()
