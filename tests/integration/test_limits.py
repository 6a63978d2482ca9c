# SPDX-License-Identifier: Apache-2.0
"""Limits are what was asked for, as the kernel tells it, and hold for all commands of a session together."""

import pytest
import wsexec
from boxlib import ApiError
from watch import Watch, wait_for

MIB = 1 << 20


@pytest.mark.parametrize("memory, pids, cpus", [(64, 16, 0.5), (256, 64, 1), (1000, 333, 1.5), (33, 5, 0.05)])
def test_the_kernel_has_what_was_asked_for(api, session, memory, pids, cpus):
    sid = session(memory_mb=memory, pids_limit=pids, cpus=cpus)
    limits = api.receipt(sid)["limits"]
    assert limits["memory_bytes"] == {"enforced": True, "value": memory * MIB}
    assert limits["pids"] == {"enforced": True, "value": pids}
    assert limits["cpu_quota_us_per_100ms"] == {"enforced": True, "value": int(cpus * 100000)}
    watch = Watch(api, sid)
    memory_files = [watch.group("memory") / n for n in ("memory.max", "memory.limit_in_bytes")]
    assert [int(f.read_text()) for f in memory_files if f.exists()] == [memory * MIB]
    assert int((watch.group("pids") / "pids.max").read_text()) == pids + 1  # and PID 1


def test_exactly_so_many_processes(api, session):
    for limit in (2, 10, 50):
        sid = session(pids_limit=limit)
        r = api.x(sid, "python3", "-c", """
import os, time
n = 1
try:
    while n < 200:
        if os.fork() == 0: time.sleep(1000)
        n += 1
except BlockingIOError: pass
print(n, flush=True)
os.kill(0, 9)""")
        assert r["stdout"] == f"{limit}\n"


FORKS = """
import os, time
n = 0
try:
    while n < 100:
        if os.fork() == 0: time.sleep(1000)
        n += 1
except BlockingIOError: pass
print(n, flush=True)
os.kill(0, 9)"""


def test_commands_of_a_session_share_its_processes(api, boxd_shared, session):
    sid = session(pids_limit=20)
    with wsexec.stream(boxd_shared, sid, "bash", "-c", "for i in $(seq 13); do sleep 1000 & done; echo up; wait") as s:
        s.started()
        s.until(b"up\n")
        # Of the 20, bash and its children have 14, the other program itself has one.
        assert api.x(sid, "python3", "-c", FORKS)["stdout"] == "5\n"


def test_commands_of_a_session_share_its_memory(api, boxd_shared, session):
    sid = session(memory_mb=96)
    hold = "x = bytearray(b'x') * (50 << 20); print('up', flush=True); import sys; sys.stdin.read()"
    with wsexec.stream(boxd_shared, sid, "python3", "-c", hold, stdin=True) as first:
        first.started()
        first.until(b"up\n")
        with wsexec.stream(boxd_shared, sid, "python3", "-c", "x = bytearray(b'x') * (70 << 20)") as second:
            second.started()
            outcomes = [second.finish()["outcome"]]
        if outcomes[0] == "oom_killed":
            first.eof()
        outcomes.append(first.finish()["outcome"])
    # One of them, whichever was larger at that moment, and only that one.
    assert sorted(outcomes) == ["exited", "oom_killed"]


def test_sessions_do_not_share(api, boxd_shared, session):
    a, b = session(memory_mb=64, pids_limit=10), session(memory_mb=64, pids_limit=10)
    with wsexec.stream(boxd_shared, a, "bash", "-c", "for i in $(seq 9); do sleep 1000 & done; echo up; wait") as s:
        s.started()
        s.until(b"up\n")
        assert api.x(b, "bash", "-c", "for i in $(seq 8); do sleep 0.1 & done; wait; echo ok")["stdout"] == "ok\n"


def test_places_in_memory_are_part_of_it(api, session):
    sid = session(memory_mb=100)
    sizes = api.sh(sid, "df --output=size -B1 /tmp /dev/shm | tail -2")["stdout"].split()
    assert sum(map(int, sizes)) <= 100 * MIB


@pytest.mark.parametrize("spec", [
    {"memory_mb": 3}, {"memory_mb": 0}, {"memory_mb": -1}, {"memory_mb": "lots"}, {"memory_mb": 1 << 40}, {"memory_mb": 1.5},
    {"pids_limit": 0}, {"pids_limit": -5}, {"pids_limit": 1 << 40}, {"cpus": 0}, {"cpus": -1}, {"cpus": 1e9}, {"cpus": "x"},
    {"workspace_quota_mb": -1}, {"workspace_quota_mb": 1 << 50},
])
def test_limits_that_make_no_sense_are_refused(api, spec):
    before = len(api.ps())
    with pytest.raises(ApiError) as e:
        api.new("nonsense", **spec)
    assert e.value.status == 422 and next(iter(spec)) in e.value.detail, e.value
    assert len(api.ps()) == before


def test_a_limit_is_given_back(api, session):
    sid = session(pids_limit=10)
    for _ in range(5):
        r = api.x(sid, "bash", "-c", "for i in $(seq 9); do sleep 1000 & done; kill -9 0")
        assert r["outcome"] == "signaled"
        wait_for(lambda: api.x(sid, "true")["exit_code"] == 0)
