# SPDX-License-Identifier: Apache-2.0
"""Programs that take all they can get, while a neighbour goes on working: E01 to E05, E08, E09, E13, E16, E17."""

import os
import pathlib
import threading
import time

import pytest
import wsexec
from watch import MOMENT, SLOW, Victim, Watch, amount, wait_for

MIB = 1 << 20
MEMORY_MB = 64


@pytest.fixture
def victim(boxd_shared, session):
    with Victim(boxd_shared, session()) as v:
        yield v
    v.check()


# E01: processes.

@pytest.mark.parametrize("limit", [64, 400])
def test_check_E01_fork_bomb(api, boxd_shared, session, victim, limit):
    sid = session(pids_limit=limit)
    watch = Watch(api, sid)
    r = {}
    client = boxd_shared.client()
    thread = threading.Thread(target=lambda: r.update(client.x(
        sid, "bash", "-c", ":(){ :|:& };: ; sleep 1000", timeout_sec=3 * MOMENT, capture_bytes=1000)), daemon=True)
    thread.start()
    seen = 0
    while thread.is_alive():
        seen = max(seen, len(watch.payload()))
        time.sleep(0.02)
    assert limit // 4 < seen <= limit, seen
    assert r["outcome"] == "timed_out" and r["remaining"] == 0
    assert watch.payload() == []
    assert api.sh(sid, "echo usable")["stdout"] == "usable\n"


@pytest.mark.vm
def test_check_E01_a_fork_bomb_is_deleted_quickly(api, boxd_shared, session, victim):
    sid = session(pids_limit=400)
    watch = Watch(api, sid)
    stream = wsexec.stream(boxd_shared, sid, "bash", "-c", ":(){ :|:& };: ; sleep 1000")
    stream.started()
    wait_for(lambda: len(watch.payload()) > 200, what="a bomb of some size")
    begin = time.monotonic()
    api.rm(sid)
    took = time.monotonic() - begin
    stream.close()
    assert watch.payload() == [] and not os.path.exists(f"/proc/{watch.pid1}")
    assert took < 5 * SLOW  # 0.05 s on a quiet machine


@pytest.mark.vm
def test_check_E01_a_full_session_says_so(api, boxd_shared, session):
    """No process is left for another command: that is an answer, not a hang, and it passes."""
    sid = session(pids_limit=16)
    with wsexec.stream(boxd_shared, sid, "bash", "-c", """
        for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do sleep 1000 & done; echo full; wait""") as s:
        s.started()
        s.until(b"full\n")
        r = api.x(sid, "true")
        assert (r["outcome"], r["exit_code"]) == ("exited", 126)
        assert r["error"].startswith("no process could be started")
    wait_for(lambda: api.x(sid, "true")["exit_code"] == 0, what="room for a process")


def test_check_E01_threads_count_as_processes(api, session):
    sid = session(pids_limit=32)
    r = api.x(sid, "python3", "-c", """
import threading, time
n = 0
try:
    while n < 1000:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        n += 1
except RuntimeError:
    pass
print(n, flush=True)
import os
os._exit(0)""")
    assert 20 < int(r["stdout"]) < 32


# E02: memory.

HOG = "x = []\nfor i in range(1500): x.append(bytearray(1 << 20))"


@pytest.mark.vm
def test_check_E02_memory_bomb(api, session, victim):
    sid = session(memory_mb=MEMORY_MB)
    for _ in range(amount(5, 2)):
        r = api.x(sid, "python3", "-c", HOG)
        assert (r["outcome"], r["exit_code"], r["signal"], r["remaining"]) == ("oom_killed", None, None, 0)
        assert r["max_rss_kb"] < (MEMORY_MB + 16) << 10  # shared libraries are nobody's
    assert api.sh(sid, "echo usable")["stdout"] == "usable\n"


# Each has a process that is killed for memory and others that would survive it.
FAMILIES = {
    "a child is killed": "sleep 1000 & python3 -c '{hog}'; sleep 1000",
    "a grandchild in its own session": "setsid sh -c \"python3 -c '{hog}'; sleep 1000\" & sleep 1000",
    "many share the guilt": "for i in 1 2 3 4 5 6; do python3 -c '{slow}' & done; sleep 1000",
    "the main process is killed": "sleep 1000 & setsid sleep 1000 & exec python3 -c '{hog}'",
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cell", ["first", "later"])
def test_check_E02_the_whole_exec_dies_and_no_other(api, boxd_shared, session, victim, family, cell):
    """Whoever the kernel picks, all of that exec goes, and a second exec of the same session stays. The
    first of a session's execs shares its group of memory with nobody; later ones have one of their own."""
    sid = session(memory_mb=MEMORY_MB, pids_limit=100)
    watch = Watch(api, sid)
    slow = "import time; x = bytearray(12 << 20); [x.__setitem__(i, 1) for i in range(0, len(x), 4096)]; time.sleep(1000)"
    script = FAMILIES[family].format(hog=HOG, slow=slow)
    bystander = "echo up; while read line; do echo $line; done"
    if cell == "first":  # the bomb comes first
        starter = wsexec.stream(boxd_shared, sid, "sh", "-c", "read x; " + script, stdin=True)
        starter.started()
    with wsexec.stream(boxd_shared, sid, "sh", "-c", bystander, stdin=True) as other:
        other.started()
        other.until(b"up\n")
        if cell == "later":
            starter = wsexec.stream(boxd_shared, sid, "sh", "-c", "read x; " + script, stdin=True)
            starter.started()
        with starter as bomb:
            bomb.stdin(b"go\n")
            r = bomb.finish()
        assert (r["outcome"], r["exit_code"], r["signal"], r["remaining"]) == ("oom_killed", None, None, 0), r
        assert watch.names() == ["sh"], "only the bystander is left"
        other.stdin(b"alive\n")
        other.until(b"alive\n")
        other.eof()
        r = other.finish()
        assert (r["outcome"], r["exit_code"]) == ("exited", 0)
    assert api.sh(sid, "echo usable")["stdout"] == "usable\n"


@pytest.mark.vm
def test_check_E02_an_exec_after_the_bomb_is_not_blamed(api, session):
    sid = session(memory_mb=MEMORY_MB)
    for n in range(amount(10, 3)):
        assert api.x(sid, "python3", "-c", HOG)["outcome"] == "oom_killed"
        r = api.sh(sid, f"exit {n}")
        assert (r["outcome"], r["exit_code"]) == ("exited", n)
        assert api.sh(sid, "kill -9 $$")["outcome"] == "signaled"


# E03: memory that is not a process's own.

HOLD = """
import ctypes, fcntl, mmap, os, socket, sys
kind, want = sys.argv[1], int(sys.argv[2]) << 20
keep, done, block = [], 0, b"x" * 65536
try:
    if kind == "tmpfs":
        with open("/tmp/fill", "wb", 0) as f:
            while done < want: done += f.write(block)
    elif kind == "shm":
        with open("/dev/shm/fill", "wb", 0) as f:
            while done < want: done += f.write(block)
    elif kind == "memfd":
        fd = os.memfd_create("fill")
        while done < want: done += os.write(fd, block)
    elif kind == "pipe":
        while done < want:
            r, w = os.pipe()
            keep.append((r, w))
            try: fcntl.fcntl(w, 1031, 1 << 20)
            except PermissionError: pass
            os.set_blocking(w, False)
            try:
                while True: done += os.write(w, block)
            except BlockingIOError: pass
    elif kind == "socketpair":
        while done < want:
            a, b = socket.socketpair()
            keep.append((a, b))
            a.setblocking(False)
            try:
                while True: done += a.send(block)
            except BlockingIOError: pass
    elif kind == "mmap-shared":
        m = mmap.mmap(-1, want)
        while done < want:
            m[done:done + 65536] = block
            done += 65536
    elif kind == "sysv-shm":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.shmat.restype = ctypes.c_void_p
        while done < want:
            i = libc.shmget(0, 1 << 20, 0o600)
            if i < 0: raise OSError(ctypes.get_errno(), "shmget")
            at = libc.shmat(i, None, 0)
            ctypes.memset(at, 1, 1 << 20)
            done += 1 << 20
except OSError as e:
    print(e.strerror, end=" ")
print(done >> 20, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["tmpfs", "memfd", "pipe", "socketpair", "mmap-shared", "shm", "sysv-shm"])
def test_check_E03_memory_of_every_kind_is_charged_to_the_session(api, boxd_shared, session, kind):
    sid = session(memory_mb=128)
    watch = Watch(api, sid)
    base = watch.memory_now()
    with wsexec.stream(boxd_shared, sid, "python3", "-c", HOLD, kind, "16", stdin=True) as s:
        s.started()
        assert s.until(b"\n") == b"16\n"
        assert watch.memory_now() - base > 15 * MIB
        s.eof()
        assert s.finish()["exit_code"] == 0


@pytest.mark.parametrize("kind", ["tmpfs", "memfd", "pipe", "socketpair", "mmap-shared", "shm", "sysv-shm"])
def test_check_E03_a_bomb_of_that_kind_ends_inside_its_limit(api, boxd_shared, session, victim, kind):
    """Killed, or told by the kernel that there is no more; never more than the limit; and the session
    goes on. The files that remain are the session's own to remove."""
    sid = session(memory_mb=MEMORY_MB)
    watch = Watch(api, sid)
    peak = 0
    with wsexec.stream(boxd_shared, sid, "python3", "-c", HOLD, kind, "400", stdin=True) as s:
        s.started()
        s.eof()
        done = {}
        thread = threading.Thread(target=lambda: done.update(s.finish()), daemon=True)
        thread.start()
        while thread.is_alive():
            peak = max(peak, watch.memory_now())
            time.sleep(0.005)
    assert done["outcome"] == "oom_killed" or (done["outcome"], done["exit_code"]) == ("exited", 0), done
    assert peak <= MEMORY_MB * MIB
    r = api.sh(sid, "rm -f /tmp/fill /dev/shm/fill; ipcs -m | awk '$2 ~ /^[0-9]+$/ {print $2}' | xargs -r -n1 ipcrm -m; echo usable")
    assert (r["outcome"], r["stdout"]) == ("exited", "usable\n"), r
    wait_for(lambda: watch.memory_now() < 24 * MIB, what="memory given back")


def test_check_E03_all_places_in_memory_filled_at_once_leave_room_for_a_process(api, session, victim):
    """What files in memory can hold stays below the limit on memory, also with a writable root."""
    for spec in ({}, {"read_only_rootfs": False}):
        sid = session(memory_mb=MEMORY_MB, **spec)
        fill = "for d in /tmp /dev/shm /var /run /opt /srv /mnt /var/tmp /home; do dd if=/dev/zero of=$d/fill bs=64k; done 2>/dev/null; echo end"
        assert api.sh(sid, fill)["stdout"] == "end\n"
        assert api.sh(sid, "echo usable; rm -f /tmp/fill")["stdout"] == "usable\n"


# E04, E05, E08, E09, E13, E16, E17.

def test_check_E04_a_small_limit_on_memory(api, session):
    for mb in (32, 40):
        sid = session(memory_mb=mb)
        r = api.x(sid, "python3", "-c", "print('ran')")
        assert (r["outcome"], r["stdout"]) == ("exited", "ran\n") or r["outcome"] == "oom_killed"
        assert api.sh(sid, "echo ok")["stdout"] == "ok\n"


@pytest.mark.vm
def test_check_E05_cpu_is_shared_as_agreed(api, session, victim):
    sid = session(cpus=0.2, pids_limit=100)
    seconds = 4 * MOMENT
    r = api.x(sid, "python3", "-c", f"""
import os, time
end = time.monotonic() + {seconds}
for i in range(32):
    if os.fork() == 0:
        while time.monotonic() < end: pass
        os._exit(0)
for i in range(32): os.wait()""")
    assert r["exit_code"] == 0
    assert r["cpu_ms"] <= r["duration_ms"] * 0.2 * 1.15 + 100, r


def test_check_E08_descriptors_are_limited_to_the_session(api, session, victim):
    def host():
        return int(pathlib.Path("/proc/sys/fs/file-nr").read_text().split()[0])
    sid = session()
    before = host()
    r = api.x(sid, "python3", "-c", """
import errno, os, resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
n = 0
try:
    while n < 1000000:
        os.open("/dev/null", 0)
        n += 1
except OSError as e:
    print(errno.errorcode[e.errno], n + 3 <= hard, hard)""")
    assert r["stdout"] == "EMFILE True 4096\n"
    assert host() - before < 3000
    assert api.x(sid, "true")["exit_code"] == 0


STORMS = {
    "a loop of programs": "import subprocess\nwhile time.monotonic() < end: subprocess.run(['/bin/true'])",
    "vfork": "while time.monotonic() < end: os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)",
    "threads": """
import threading
def idle(): pass
while time.monotonic() < end:
    some = [threading.Thread(target=idle) for _ in range(20)]
    for t in some: t.start()
    for t in some: t.join()""",
}


@pytest.mark.parametrize("how", STORMS)
def test_check_E09_storms_of_short_lives_stay_inside_their_share(api, session, victim, how):
    sid = session(cpus=0.2, pids_limit=64)
    r = api.x(sid, "python3", "-c", f"import os, time\nend = time.monotonic() + {3 * MOMENT}\n{STORMS[how]}")
    assert r["exit_code"] == 0, r
    assert r["cpu_ms"] <= r["duration_ms"] * 0.2 * 1.15 + 100, r


def test_check_E13_storms_of_syncs_and_holes_disturb_nobody(api, session, victim):
    """What they do to the host's caches is their own; those of the whole host cannot be dropped."""
    sid = session()
    r = api.x(sid, "python3", "-c", f"""
import ctypes, mmap, os, time
end = time.monotonic() + {2 * MOMENT}
libc = ctypes.CDLL(None, use_errno=True)
f = os.open("/tmp/f", os.O_CREAT | os.O_RDWR)
area = mmap.mmap(-1, 1 << 20)
while time.monotonic() < end:
    os.sync(); libc.syncfs(f)
    os.posix_fallocate(f, 0, 1 << 20)
    libc.fallocate(f, 3, ctypes.c_long(0), ctypes.c_long(1 << 20))  # a hole, and the size stays
    area[:] = bytes(1 << 20)
    area.madvise(mmap.MADV_DONTNEED)
try:
    open("/proc/sys/vm/drop_caches", "w").write("3")
except OSError as e:
    print("refused", e.errno in (1, 13, 2, 30))""")
    assert (r["exit_code"], r["stdout"]) == (0, "refused True\n"), r


def test_check_E17_timers_are_limited_and_disturb_nobody(api, session, victim):
    sid = session(cpus=0.2)
    r = api.x(sid, "python3", "-c", f"""
import ctypes, errno, os, time
libc = ctypes.CDLL(None, use_errno=True)
n, timer, why = 0, ctypes.c_void_p(), 0
while n < 100000:
    if libc.timer_create(1, None, ctypes.byref(timer)) < 0:
        why = ctypes.get_errno()
        break
    n += 1
print(errno.errorcode.get(why), n <= 1024)
f = libc.timerfd_create(1, 0)
spec = (ctypes.c_long * 4)(0, 1, 0, 1)  # every nanosecond
libc.timerfd_settime(f, 0, spec, None)
end = time.monotonic() + {2 * MOMENT}
while time.monotonic() < end: os.read(f, 8)""")
    assert (r["exit_code"], r["stdout"]) == (0, "EAGAIN True\n"), r
    assert r["cpu_ms"] <= r["duration_ms"] * 0.2 * 1.15 + 100, r


def test_check_E16_limits_cannot_be_raised(api, session):
    sid = session(pids_limit=64, workspace_quota_mb=16)
    r = api.x(sid, "python3", "-c", """
import resource as R
for name in dir(R):
    if not name.startswith("RLIMIT_") or name in ("RLIMIT_OFILE",): continue
    which = getattr(R, name)
    soft, hard = R.getrlimit(which)
    if hard == R.RLIM_INFINITY: continue
    for new in ((hard, hard + 1), (R.RLIM_INFINITY, R.RLIM_INFINITY)):
        try:
            R.setrlimit(which, new)
            print("raised", name)
        except (ValueError, OSError): pass
print("end")""")
    assert r["stdout"] == "end\n", r
    r = api.x(sid, "bash", "-c", "ulimit -u 100000; ulimit -n 100000; ulimit -f unlimited; ulimit -Hu; ulimit -Hn; ulimit -Hf")
    assert r["stdout"].split() == ["64", "4096", str(16 * 1024)]
    # A limit of its own making ends it with that signal and harms nobody else.
    r = api.x(sid, "bash", "-c", "ulimit -t 1; while :; do :; done", timeout_sec=60 * SLOW)
    assert (r["outcome"], r["signal"]) in (("signaled", 24), ("signaled", 9))
    assert api.x(sid, "bash", "-c", "ulimit -Ht")["stdout"] == "unlimited\n"


def test_check_E16_priority_cannot_be_gained(api, sid):
    r = api.x(sid, "python3", "-c", """
import os
for what in (lambda: os.nice(-1), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
             lambda: open("/proc/self/oom_score_adj", "w").write("-1000")):
    try:
        what()
        print("gained")
    except (PermissionError, OSError): print("refused")""")
    assert r["stdout"] == "refused\n" * 3
