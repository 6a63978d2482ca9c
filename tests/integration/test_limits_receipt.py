# SPDX-License-Identifier: Apache-2.0
"""Limits as the receipt states them, as the kernel keeps them, and as commands meet them. Also for an ordinary user
to whom a cgroup was delegated."""

import os
import pathlib

import pytest
import wsexec
from watch import SLOW, Watch

MIB = 1 << 20
HOG = "x = []\nwhile True: x.append(bytearray(1 << 20))"
CONTROLLERS = ("cpu", "memory", "pids")


def limited():
    """Whether limits are to be had: as root, or in a group of our own."""
    if os.geteuid() == 0:
        return True
    own = pathlib.Path("/proc/self/cgroup").read_text().splitlines()[-1].partition("::")[2]
    return os.access(f"/sys/fs/cgroup{own}/cgroup.procs", os.W_OK)


pytestmark = [pytest.mark.vm, pytest.mark.vm_user,
              pytest.mark.skipif(not limited(), reason="no cgroup was delegated to this user")]


def kept(watch):
    """Bytes, processes and microseconds of each 100 ms, by whichever dialect of cgroups there is."""
    memory, pids, cpu = (watch.group(name) for name in ("memory", "pids", "cpu"))
    if (memory / "memory.max").exists():
        assert (memory / "memory.swap.max").read_text() == "0\n"
        quota, period = (cpu / "cpu.max").read_text().split()
        size = (memory / "memory.max").read_text()
    else:
        quota, period = ((cpu / f"cpu.cfs_{what}_us").read_text() for what in ("quota", "period"))
        size = (memory / "memory.limit_in_bytes").read_text()
    assert int(period) == 100_000
    return int(size), int((pids / "pids.max").read_text()), int(quota)


def test_the_receipt_says_what_the_kernel_keeps(api, session):
    sid = session(memory_mb=64, pids_limit=50, cpus=0.5)
    watch = Watch(api, sid)
    limits = watch.receipt["limits"]
    want = {"memory_bytes": 64 * MIB, "pids": 50, "cpu_quota_us_per_100ms": 50_000}
    assert {k: limits[k] for k in want} == {k: {"enforced": True, "value": v} for k, v in want.items()}
    assert kept(watch) == (64 * MIB, 50 + 1, 50_000)  # the first process is not the caller's to count
    unified = not pathlib.Path("/sys/fs/cgroup/memory").is_dir()
    assert watch.receipt["cgroup"] == "v2" or not unified


def test_doctor_is_content_with_the_limits(api):
    checks = {c["id"]: c for c in api.doctor()["checks"]}
    for name in ("kill", *(f"limit-{c}" for c in CONTROLLERS)):
        assert checks[name]["status"] == "ok", checks[name]
        assert checks[name]["remedy"] is None


def test_a_required_limit_is_there(boxd):
    boxd.stop()
    boxd.env["BOX_REQUIRE_LIMITS"] = "true"
    boxd.start()
    client = boxd.client()
    client.new("required", memory_mb=64, pids_limit=20, cpus=0.5)
    assert client.x("required", "true")["exit_code"] == 0
    client.close()


def test_memory(api, boxd_shared, session):
    """The whole command dies; one beside it stays, and one after it runs."""
    sid = session(memory_mb=64)
    with wsexec.stream(boxd_shared, sid, "sh", "-c", "echo up; read line; echo $line", stdin=True) as beside:
        beside.started()
        beside.until(b"up\n")
        r = api.sh(sid, f"sleep 1000 & python3 -c '{HOG}'; sleep 1000")
        assert (r["outcome"], r["remaining"]) == ("oom_killed", 0), r
        beside.stdin(b"alive\n")
        beside.until(b"alive\n")
        r = beside.finish()
        assert (r["outcome"], r["exit_code"]) == ("exited", 0), r
    assert api.sh(sid, "echo usable")["stdout"] == "usable\n"


FORKS = """
import os, signal, time
made = []
try:
    while len(made) < 1000:
        pid = os.fork()
        if pid == 0:
            time.sleep(1000)
        made.append(pid)
except BlockingIOError:
    print("EAGAIN", end=" ")
print(len(made))
for pid in made:
    os.kill(pid, signal.SIGKILL)
"""


def test_processes(api, session):
    sid = session(pids_limit=40)
    r = api.x(sid, "python3", "-c", FORKS)
    assert r["stdout"] == "EAGAIN 39\n", r  # and itself


def test_cpu(api, session):
    sid = session(cpus=0.2)
    spin = f"import time\nend = time.monotonic() + {min(3 * SLOW, 8)}\nwhile time.monotonic() < end: pass"
    r = api.x(sid, "python3", "-c", spin)
    assert r["exit_code"] == 0
    assert r["cpu_ms"] <= r["duration_ms"] * 0.2 * 1.15 + 100, r


TREE = "trap '' TERM; setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & sleep 1000' & echo up; sleep 1000"


def test_time(api, boxd_shared, session):
    """Of two commands only the one that took too long ends, with all its processes."""
    sid = session()
    with wsexec.stream(boxd_shared, sid, "sh", "-c", "echo up; read line; ps -e -o comm=", stdin=True) as beside:
        beside.started()
        beside.until(b"up\n")
        r = api.sh(sid, TREE, timeout_sec=min(2 * SLOW, 8))
        assert (r["outcome"], r["stdout"], r["remaining"]) == ("timed_out", "up\n", 0), r
        beside.stdin(b"\n")
        assert b"sleep" not in beside.until(b"ps\n")
        assert beside.finish()["exit_code"] == 0
