# SPDX-License-Identifier: Apache-2.0
"""What is different when an engine's runtime is gVisor: a kernel of its own, which counts and numbers by itself. The
rest of what a session is (test_session_*.py) runs there, too."""

import os
import pathlib
import threading
import time

import pytest
import test_engine_answers as answers
import test_engines as engines
from boxlib import ApiError

# Collected here once more, for this runtime.
shared, spoil = answers.shared, answers.spoil
test_check_L02_exchanged = answers.test_check_L02_a_directory_that_was_exchanged_meanwhile_is_refused
test_check_L02_mounted_below = answers.test_check_L02_what_is_mounted_below_does_not_come_along
test_check_L04_nobody_above_it = engines.test_check_L04_a_program_has_nobody_above_it_but_the_first_process
test_check_L08_killed_container = engines.test_check_L08_a_container_killed_behind_our_back_is_a_lost_session
test_the_supervisor = engines.test_the_supervisor_is_not_for_programs_to_end

pytestmark = [pytest.mark.real, pytest.mark.gvisor]


def eventually(check, seconds=30):
    deadline = time.monotonic() + seconds
    while not (got := check()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)
    return got


def survivors(box, sid):
    return box.sh(sid, "cat /proc/[0-9]*/comm 2>/dev/null")["stdout"].split().count("sleep")


def test_the_kernel_is_gvisors_and_not_the_hosts(box, sid):
    release, host = box.sh(sid, "cat /proc/version")["stdout"], pathlib.Path("/proc/version").read_text()
    assert "Sun Jan 10 15:06:54 PST 2016" in release and os.uname().release not in release and release != host
    assert box.sh(sid, "cat /proc/sentry-meminfo")["exit_code"] == 0, "which only gVisor has"
    assert "Operation not permitted" in box.sh(sid, "busybox dmesg")["stderr"], "our filter holds inside, too"
    for path in ("kallsyms", "kcore", "sysrq-trigger", "modules", "keys"):
        assert box.sh(sid, f"cat /proc/{path}")["stdout"] == ""


def test_receipt_and_doctor_say_whose_kernel_it_is(box, sid):
    receipt = box.receipt(sid)
    assert (receipt["kernel"], receipt["out_of_memory_ends"]) == ("gvisor", "the session")
    assert pathlib.Path(receipt["runtime"]).name == "runsc"
    assert "times" in receipt["mounts_compared_by"] and receipt["payload"]["seccomp"] == "2"
    assert receipt["limits"]["pids"]["host_tasks"] > 10 * receipt["limits"]["pids"]["value"]
    found = {c["id"]: c for c in box.doctor()["checks"]}
    assert found["runtime-choice"]["detail"].endswith("runsc") and found["gvisor-limits"]["status"] == "warn"


def test_nobody_gets_out_of_the_tree(box, sid):
    """The first process gets all orphans, so programs carry a brand: a limit that they cannot change."""
    script = "ulimit -S -m 4; ulimit -H -m 4; ulimit -m unlimited; (setsid sleep 600 &); echo up; sleep 600"
    r = box.sh(sid, script, timeout_sec=1)
    assert (r["outcome"], r["remaining"], r["stdout"]) == ("timed_out", 0, "up\n"), r
    assert survivors(box, sid) == 0 and r["stderr"].count("not permitted") == 3


def test_an_orphan_belongs_to_its_own_command(box, sid):
    assert box.sh(sid, "(setsid sleep 600 >/dev/null 2>&1 &); (sleep 600 >/dev/null 2>&1 &); echo")["remaining"] == 2
    r = box.sh(sid, "(setsid sleep 601 &); kill -9 $PPID; sleep 601", timeout_sec=2)
    assert r["outcome"] == "timed_out"
    eventually(lambda: survivors(box, sid) == 2)
    assert box.sh(sid, "sleep 600", timeout_sec=0.5)["outcome"] == "timed_out"
    assert survivors(box, sid) == 2, "those of the first command, which is over, go on"


@pytest.mark.parametrize("spec", [{}, {"read_only_rootfs": False}])
def test_processes_are_limited_whatever_the_user_is(box, spec):
    sid = box.new(pids_limit=20, **spec)
    r = box.sh(sid, "i=0; while [ $i -lt 60 ]; do sleep 600 & i=$((i+1)); done", timeout_sec=20)
    assert "can't fork" in r["stderr"] and r["remaining"] <= 20, r
    assert box.sh(sid, "echo alive")["stdout"] == "alive\n"


def test_out_of_memory_ends_the_session_and_no_other(box, sid):
    small = box.new(memory_mb=64)
    r = box.sh(small, "dd if=/dev/zero of=/dev/null bs=300M count=1", timeout_sec=60)
    assert r["outcome"] == "session_lost", r
    eventually(lambda: small not in [s["session_id"] for s in box.ps()])
    assert box.sh(sid, "echo alive")["stdout"] == "alive\n"


def test_a_directory_that_changes_all_the_time_is_mounted(box, shared):
    """What gVisor says of it is as old as the look at it."""
    ended = threading.Event()

    def change():
        while not ended.wait(0.002):
            (shared / "f").touch()
            (shared / "f").unlink()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        sid = box.new(host_path=str(shared), host_path_mode="ro")
    finally:
        ended.set()
        thread.join()
    assert box.sh(sid, "pwd")["stdout"] == "/workspace\n"


def test_a_network_is_refused_by_a_runtime_that_has_none(box):
    """The suite's runsc has `--network=none`: a session that asks for one must not be told that it has it."""
    if box.name == "podman":
        pytest.skip("Podman does not tell what its runtimes are given")
    with pytest.raises(ApiError, match="--network=none"):
        box.new(network="on")


def test_nothing_is_left_of_a_session(box):
    sid = box.new()
    identity = box.receipt(sid)["container_id"]
    box.sh(sid, "sleep 600 >/dev/null 2>&1 &")
    sandbox = [p for p in pathlib.Path("/proc").glob("[0-9]*/cmdline") if has(p, "runsc-sandbox", identity)]
    assert sandbox
    box.rm(sid)
    eventually(lambda: not [p for p in pathlib.Path("/proc").glob("[0-9]*/cmdline") if has(p, "runsc", identity)])
    assert not [c for c in box.engine.containers() if c["Id"] == identity]
    groups = pathlib.Path("/sys/fs/cgroup")
    eventually(lambda: not [p for p in groups.rglob(identity) if p.is_dir()])


def has(cmdline, name, identity):
    try:
        text = cmdline.read_bytes()
    except OSError:
        return False
    return name.encode() in text and identity.encode() in text
