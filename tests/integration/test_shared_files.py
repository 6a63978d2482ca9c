# SPDX-License-Identifier: Apache-2.0
"""Files that all sessions read from one place: checks M01, M02 and M04 of the catalogue.

A file of `/usr` is the same file for every session. What that shows of others is written down in
docs/reference/threat-model.md, under "What sessions can tell of each other"; these tests hold the line there.
"""

import json
import os
import pathlib
import subprocess
import threading

import pytest
from boxlib import ROOT
from hostlib import until

DOC = ROOT / "docs/reference/threat-model.md"

WATCH = r"""
import ctypes, json, os, select, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init1(0o2000000 | 0o4000)
names = {}
for path in sys.argv[1:]:
    wd = libc.inotify_add_watch(fd, path.encode(), 0x33)  # access, modify, open, opened and closed
    names[wd] = path
print(json.dumps(sorted(names[w] for w in names if w >= 0)), flush=True)
open("/workspace/ready", "w").close()
seen = set()
while not os.path.exists("/workspace/stop"):
    if select.select([fd], [], [], 0.02)[0]:
        data = os.read(fd, 65536)
        while data:
            wd, mask, cookie, size = struct.unpack_from("iIII", data)
            seen.add(names.get(wd))
            data = data[16 + size:]
print(json.dumps(sorted(seen)))
"""
TOUCH = "for f in {paths}; do cat $f > /dev/null 2>&1; done; true"
SHARED = ["/usr/bin/env", "/usr/share/zoneinfo/Africa/Abidjan", "/etc/passwd", "/dev/null"]
OWN = ["/workspace/own", "/tmp/own", "/dev/shm/own", "/home/box/own", "/proc/self/status"]
MAKE = "for f in /workspace/own /tmp/own /dev/shm/own /home/box/own; do echo x > $f; done"


def documented(word):
    text = DOC.read_text()
    section = text.split("## What sessions can tell of each other")[1].split("\n## ")[0]
    assert word in section, f"docs/reference/threat-model.md does not speak of {word}"


def beside(api, daemon, session, script, *args):
    """Runs the script in the session until /workspace/stop is there; what it said."""
    result = {}
    own = daemon.client()
    t = threading.Thread(target=lambda: result.update(own.x(session, "python3", "-c", script, *args)))
    t.start()
    until(lambda: result or api.x(session, "test", "-e", "/workspace/ready")["exit_code"] == 0, what="the script")
    assert not result, result

    def stop():
        api.x(session, "touch", "/workspace/stop")
        t.join(60)
        own.close()
        assert result["exit_code"] == 0, result
        return result["stdout"].splitlines()
    return stop


def shared_still(api, session):
    """Places whose inodes all sessions have in common: with a view of the image of its own, devices alone."""
    return [p for p in SHARED if p.startswith("/dev/") or not api.receipt(session)["image_private"]]


@pytest.mark.rootless
def test_check_M01_what_is_watched_tells_of_others_only_where_it_is_written_down(boxd_shared, api, session):
    a, b = session(), session()
    for s in (a, b):
        assert api.sh(s, MAKE)["exit_code"] == 0
    stop = beside(api, boxd_shared, a, WATCH, *SHARED, *OWN)
    api.sh(b, TOUCH.format(paths=" ".join(SHARED + OWN)))
    assert api.sh(b, MAKE)["exit_code"] == 0  # and writing
    watched, seen = map(json.loads, stop())
    assert set(SHARED) & set(watched), watched  # else the test shows nothing
    assert set(seen) <= set(shared_still(api, b)), f"{seen} are a session's own"
    if seen:
        documented("inotify")


LOCK = r"""
import fcntl, os, struct, sys
kept = []
for path in sys.argv[1:]:
    try:
        f = open(path, "rb")
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kept.append(f)
    except OSError as e:
        pass
open("/workspace/ready", "w").close()
import time
while not os.path.exists("/workspace/stop"):
    time.sleep(0.02)
print(len(kept))
"""
TRY = r"""
import errno, fcntl, json, os, struct, sys
held = {}
for path in sys.argv[1:]:
    try:
        f = open(path, "rb")
    except OSError:
        continue
    kinds = []
    try:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(f, fcntl.LOCK_UN)
    except OSError as e:
        kinds.append("flock" if e.errno == errno.EWOULDBLOCK else f"flock {e}")
    for name, op in (("lease", fcntl.F_SETLEASE),):
        try:
            fcntl.fcntl(f, op, fcntl.F_RDLCK)
            fcntl.fcntl(f, op, fcntl.F_UNLCK)
            kinds.append(name)
        except OSError as e:
            pass
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    try:
        got = struct.unpack("hhqqi4x", fcntl.fcntl(f, fcntl.F_GETLK, lock))
        if got[0] != fcntl.F_UNLCK:
            kinds.append("record")
    except OSError:
        pass
    if kinds:
        held[path] = kinds
print(json.dumps(held))
"""


@pytest.mark.rootless
def test_check_M02_locks_of_others_are_seen_only_where_it_is_written_down(boxd_shared, api, session):
    a, b = session(), session()
    for s in (a, b):
        assert api.sh(s, MAKE)["exit_code"] == 0
    stop = beside(api, boxd_shared, a, LOCK, *SHARED, *OWN)
    before = json.loads(api.x(a, "python3", "-c", TRY, *OWN)["stdout"])
    assert "/workspace/own" in before, before  # in its own session the lock is there
    held = json.loads(api.x(b, "python3", "-c", TRY, *SHARED, *OWN)["stdout"])
    assert int(stop()[0]) >= len(SHARED)
    assert not [p for p, kinds in held.items() if p in OWN and set(kinds) - {"lease"}], held
    assert {p for p in held if p in SHARED and held[p] != ["lease"]} <= set(shared_still(api, b)), held
    shared = {(p, k) for p, kinds in held.items() if p in SHARED for k in kinds}
    # The sessions of an ordinary user have one id, whose own /etc is.
    ours = set() if api.receipt(b)["host_uid_payload"] >= 2_000_000_000 else {("/etc/passwd", "lease")}
    ours.add(("/dev/null", "record"))  # whoever may write can lock records, and so can the host
    assert {k for _, k in shared - ours} <= {"flock"}, held
    if shared:
        documented("flock")


CACHE = r"""
import ctypes, json, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
path = sys.argv[1]
fd = os.open(path, os.O_RDONLY)
size = os.fstat(fd).st_size
pages = (size + 4095) // 4096
at = libc.mmap(None, ctypes.c_size_t(size), 1, 2, fd, ctypes.c_long(0))
vector = ctypes.create_string_buffer(pages)
r = libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), vector)
out = {"pages": pages, "mincore": sum(b & 1 for b in vector.raw[:pages]) if r == 0 else -ctypes.get_errno()}
where, what = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
ctypes.set_errno(0)
r = libc.syscall(451, fd, where, what, 0)  # cachestat
out["cachestat"] = list(what) if r == 0 else -ctypes.get_errno()
print(json.dumps(out))
"""


def cold_file():
    """A file of /usr that nobody has in memory, after we have asked for it to be dropped."""
    for path in sorted(pathlib.Path("/usr/share").glob("*/*"))[:3000]:
        if not path.is_file() or path.is_symlink() or not 100_000 < path.stat().st_size < 5_000_000:
            continue
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        r = subprocess.run(["python3", "-c", CACHE, str(path)], text=True, capture_output=True, timeout=60)
        if json.loads(r.stdout)["mincore"] == 0:
            return path
    pytest.skip("no file of /usr can be dropped from memory here")


def test_check_M04_what_is_in_memory_is_not_told_by_a_call(api, sid):
    """Whether others have read a file shows in how long it takes; no call says it outright."""
    path = cold_file()
    r = api.x(sid, "python3", "-c", CACHE, str(path))
    assert r["exit_code"] == 0, r
    told = json.loads(r["stdout"])
    # For files that are not its own the kernel says "all of it", cold or not.
    assert told["mincore"] in (told["pages"], -1, -38), told
    assert isinstance(told["cachestat"], int) and told["cachestat"] in (-1, -38), told
    # Of its own it may know.
    api.sh(sid, "head -c 400000 /dev/zero > /workspace/own")
    own = json.loads(api.x(sid, "python3", "-c", CACHE, "/workspace/own")["stdout"])
    assert own["mincore"] == own["pages"] or own["mincore"] in (-1, -38), own
    documented("page cache")
