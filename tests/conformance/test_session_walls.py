# SPDX-License-Identifier: Apache-2.0
"""What a session may not do and may not use up, on every backend: limits, trees, identity, the root, the network
(T55, T56 and what of tables A, B and E an engine can be asked for)."""

import time

import pytest
from watch import Watch
from wsexec import stream

pytestmark = pytest.mark.real

# Each prints "up" when its whole tree stands.
RESISTANCE = {
    "sleeps": "echo up; exec sleep 1000",
    "ignores signals": "trap '' TERM HUP INT QUIT USR1; echo up; while :; do sleep 1000; done",
    "tree": "(sleep 1000 & (sleep 1000 & sleep 1000)) & echo up; sleep 1000",
    "own session": "setsid sh -c 'trap \"\" TERM HUP; echo up; sleep 1000' & sleep 1000",
    "double fork": "(setsid sh -c 'sleep 1000 & echo up' >&1 &) ; sleep 1000",
    "stopped": "sh -c 'kill -STOP $$' & sleep 0.2; echo up; kill -STOP $$",
    "forks all the time": "echo up; f() { while :; do (sleep 0.02 &); done; }; f & f & f",
    "closed its output": "echo up; exec >&- 2>&- <&-; sleep 1000 & sleep 1000",
}


GVISOR_MEMORY = "gVisor's kernel has the memory of all its programs: out of it, the session ends (test_gvisor.py)"


def names(box, sid):
    """Of the processes that are neither ours nor this one. The native backend hides them from each other."""
    if box.name == "native":
        return Watch(box.api, sid).names()
    out = box.sh(sid, "cat /proc/[0-9]*/comm 2>/dev/null")["stdout"].split()
    return sorted(n for n in out if n not in ("sh", "cat", "box-init", "box-guest"))


@pytest.mark.parametrize("how", RESISTANCE)
def test_a_time_out_ends_the_whole_tree_and_nothing_else(box, how):
    if box.runtime and how == "stopped":
        pytest.skip("gVisor sends SIGHUP to who is stopped in a group without a parent in its session")
    sid = box.new(pids_limit=300)
    assert box.sh(sid, "setsid sleep 77777 >/dev/null 2>&1 &")["exit_code"] == 0
    r = box.sh(sid, RESISTANCE[how], timeout_sec=1)
    assert (r["outcome"], r["exit_code"], r["signal"], r["remaining"]) == ("timed_out", None, None, 0), r
    assert r["stdout"] == "up\n"
    assert names(box, sid) == ["sleep"], "survivors, or too few"


def test_a_cancelled_command_leaves_nothing_behind(box, sid):
    with stream(box.backend.daemon, sid, cmd="setsid sleep 500 & sleep 500 & echo up; sleep 500") as s:
        s.started()
        s.until(b"up\n")
    deadline = time.monotonic() + 20
    while names(box, sid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_too_many_processes_are_refused_and_the_session_lives(box):
    sid = box.new(pids_limit=40)
    r = box.sh(sid, "i=0; while [ $i -lt 100 ]; do sleep 20 & i=$((i+1)); done; wait", timeout_sec=3)
    assert r["outcome"] in ("timed_out", "exited") and r["stderr"], r
    assert box.sh(sid, "echo alive")["stdout"] == "alive\n"


def test_too_much_memory_ends_the_command_and_not_the_session(box):
    if box.runtime:
        pytest.skip(GVISOR_MEMORY)
    sid = box.new(memory_mb=64)
    r = box.sh(sid, "dd if=/dev/zero of=/dev/null bs=300M count=1; echo survived $?", timeout_sec=60)
    assert r["outcome"] == "oom_killed", r
    assert box.sh(sid, "echo alive")["stdout"] == "alive\n"


def test_the_next_command_does_not_die_for_the_last_one(box):
    """The kernel counts kills for memory, and whoever looks at the count must know since when."""
    if box.runtime:
        pytest.skip(GVISOR_MEMORY)
    sid = box.new(memory_mb=64)
    for _ in range(3):
        r = box.sh(sid, "exec dd if=/dev/zero of=/dev/null bs=300M count=1", timeout_sec=60)
        assert r["outcome"] == "oom_killed", r
        r = box.sh(sid, "sleep 0.5; echo alive")
        assert (r["outcome"], r["stdout"]) == ("exited", "alive\n"), r


def test_the_main_process_out_of_memory_is_told_as_such(box):
    if box.runtime:
        pytest.skip(GVISOR_MEMORY)
    sid = box.new(memory_mb=64)
    r = box.sh(sid, "exec dd if=/dev/zero of=/dev/null bs=300M count=1", timeout_sec=60)
    assert r["outcome"] == "oom_killed", r


def test_the_root_is_read_only(box, sid):
    r = box.sh(sid, "touch /x /usr/x /etc/x")
    assert r["exit_code"] != 0 and r["stderr"].count("Read-only") + r["stderr"].count("denied") == 3


def test_a_writable_root_can_be_written_and_is_the_sessions_own(box):
    sid, other = box.new(read_only_rootfs=False), box.new(read_only_rootfs=False)
    assert box.sh(sid, "echo mine > /usr/x && cat /usr/x")["stdout"] == "mine\n"
    assert box.sh(other, "cat /usr/x")["exit_code"] != 0


def test_no_network_is_no_network(box, sid):
    assert box.sh(sid, "cat /sys/class/net/*/address 2>/dev/null; cat /proc/net/dev | tail -n +3 | cut -d: -f1")[
        "stdout"].split()[-1] == "lo"
    r = box.sh(sid, "wget -T 2 -O /dev/null http://192.0.2.1/", timeout_sec=20)
    assert r["exit_code"] != 0


@pytest.mark.parametrize("writable", [False, True])
def test_programs_have_no_privilege(box, writable):
    sid = box.new(read_only_rootfs=not writable)
    status = dict(line.split(":\t", 1) for line in
                  box.sh(sid, "cat /proc/self/status")["stdout"].splitlines() if ":\t" in line)
    if box.runtime:  # gVisor's file does not have these
        status.update(CapAmb="0", NoNewPrivs=box.receipt(sid)["payload"]["no_new_privs"])
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    if not writable:
        assert "0" not in status["Uid"].split()
    for command in ("mount -t tmpfs x /mnt", "mknod /tmp/null c 1 3", "hostname evil", "chown 1 /tmp"):
        assert box.sh(sid, command)["exit_code"] != 0, command


def test_the_receipt_says_what_is_in_force(box):
    sid = box.new(memory_mb=96, pids_limit=50, cpus=0.5)
    receipt = box.receipt(sid)
    assert receipt["backend"] == box.name and receipt["network"] == "none" and not receipt["root_writable"]
    limits = receipt["limits"]
    assert (limits["memory_bytes"]["enforced"], limits["memory_bytes"]["value"]) == (True, 96 << 20)
    assert (limits["pids"]["enforced"], limits["pids"]["value"]) == (True, 50)
    assert limits["cpu_quota_us_per_100ms"] == {"enforced": True, "value": 50000}
    payload = receipt["payload"]
    assert payload["no_new_privs"] == "1" and payload["seccomp"] == "2" and int(payload["cap_effective"], 16) == 0


def test_the_doctor_answers(box):
    report = box.doctor()
    assert report["backend"] == box.name
    assert {c["status"] for c in report["checks"]} <= {"ok", "warn", "missing"}
    assert all(c["remedy"] for c in report["checks"] if c["status"] != "ok")


def test_a_workspace_with_a_quota_is_full_at_its_limit(box):
    sid = box.new(workspace_quota_mb=16, memory_mb=256)
    r = box.sh(sid, "dd if=/dev/zero of=/workspace/big bs=1M count=64")
    assert r["outcome"] == "quota_exceeded", r
    assert box.sh(sid, "rm /workspace/big; echo fine > /workspace/small; cat /workspace/small")["stdout"] == "fine\n"
