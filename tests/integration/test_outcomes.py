# SPDX-License-Identifier: Apache-2.0
"""Every exec ends as exactly one of six outcomes, on both endpoints alike."""

import os
import signal
import threading

import pytest
import wsexec
from boxlib import ApiError
from watch import MOMENT, Watch, wait_for

pytestmark = pytest.mark.vm

OUTCOMES = {"exited", "signaled", "timed_out", "oom_killed", "quota_exceeded", "session_lost"}
HOG = "x = []\nfor i in range(1500): x.append(bytearray(1 << 20))"


def whole(daemon, sid, *argv, **request):
    client = daemon.client()
    try:
        return client.x(sid, *argv, **request)
    finally:
        client.close()


ENDPOINTS = pytest.mark.parametrize("run", [whole, wsexec.run], ids=["http", "stream"])


def check(r, outcome, exit_code=None, signo=None):
    """Code, signal and error exclude each other."""
    assert r["outcome"] in OUTCOMES
    assert (r["outcome"], r["exit_code"], r["signal"], r["error"]) == (outcome, exit_code, signo, None)
    for key in ("duration_ms", "cpu_ms", "max_rss_kb", "remaining", "stdout_bytes", "stderr_bytes"):
        assert isinstance(r[key], int) and r[key] >= 0


@ENDPOINTS
def test_exited(boxd_shared, sid, run):
    check(run(boxd_shared, sid, "true"), "exited", 0)
    check(run(boxd_shared, sid, "sh", "-c", "exit 255"), "exited", 255)


@ENDPOINTS
def test_signaled(boxd_shared, sid, run):
    check(run(boxd_shared, sid, "sh", "-c", "kill -KILL $$"), "signaled", None, 9)
    # Killed by itself while there is plenty of memory and disk: nobody else is blamed.


@ENDPOINTS
def test_timed_out(boxd_shared, sid, run):
    check(run(boxd_shared, sid, "sleep", "1000", timeout_sec=0.3 * MOMENT), "timed_out")


@ENDPOINTS
def test_oom_killed(boxd_shared, session, run):
    sid = session(memory_mb=64)
    check(run(boxd_shared, sid, "python3", "-c", HOG), "oom_killed")
    check(run(boxd_shared, sid, "true"), "exited", 0)


@ENDPOINTS
def test_quota_exceeded(boxd_shared, session, run):
    sid = session(workspace_quota_mb=16)
    check(run(boxd_shared, sid, "dd", "if=/dev/zero", "of=/workspace/f", "bs=1M"), "quota_exceeded", 1)
    check(run(boxd_shared, sid, "sh", "-c", "rm /workspace/f && echo x > /workspace/g"), "exited", 0)
    check(run(boxd_shared, sid, "sh", "-c", "head -c 5000000 /dev/zero > /workspace/f"), "exited", 0)
    check(run(boxd_shared, sid, "false"), "exited", 1)  # a failure with room left is a failure


@ENDPOINTS
def test_session_lost_when_the_first_process_dies(boxd_shared, api, session, run):
    sid = session()
    watch = Watch(api, sid)
    result = {}
    thread = threading.Thread(target=lambda: result.update(run(boxd_shared, sid, "sleep", "1000")), daemon=True)
    thread.start()
    wait_for(lambda: watch.names() == ["sleep"])
    os.kill(watch.pid1, signal.SIGKILL)
    thread.join(60)
    check(result, "session_lost")
    wait_for(lambda: all(s["session_id"] != sid for s in api.ps()), what="removal of the session")
    assert watch.payload() == []
    with pytest.raises(ApiError) as e:
        api.x(sid, "true")
    assert e.value.status == 404
    api.new(sid)  # the name can be used again
    assert api.sh(sid, "ls /workspace")["stdout"] == ""


@ENDPOINTS
def test_session_lost_when_it_is_deleted(boxd_shared, api, session, run):
    sid = session()
    watch = Watch(api, sid)
    result = {}
    thread = threading.Thread(target=lambda: result.update(run(boxd_shared, sid, "sleep", "1000")), daemon=True)
    thread.start()
    wait_for(lambda: watch.names() == ["sleep"])
    api.rm(sid)
    thread.join(60)
    check(result, "session_lost")


def test_a_session_that_died_idle_is_removed(api, session):
    sid = session()
    pid = Watch(api, sid).pid1
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: all(s["session_id"] != sid for s in api.ps()), what="removal of the session")


def test_a_stream_in_a_session_that_does_not_exist(boxd_shared):
    r = wsexec.Stream(boxd_shared.sock, {"session": {"session_id": "none"}, "create": False, "argv": ["true"]})
    message = r.finish()
    assert (message["type"], message["code"]) == ("error", "not_found")
    r.close()


def test_a_time_out_wins_over_what_the_kill_looks_like(api, session):
    """All six are told apart by cause, not by symptom: three of them end in SIGKILL."""
    sid = session(memory_mb=64, workspace_quota_mb=16)
    api.sh(sid, "dd if=/dev/zero of=/workspace/f bs=1M 2>/dev/null")
    check(api.x(sid, "sleep", "1000", timeout_sec=0.3 * MOMENT), "timed_out")
    check(api.x(sid, "python3", "-c", HOG), "oom_killed")
    check(api.sh(sid, "kill -KILL $$"), "quota_exceeded", 137)  # it failed, and the disk is full
    check(api.sh(sid, "rm /workspace/f; kill -KILL $$"), "signaled", None, 9)


def test_what_a_command_used(api, session):
    sid = session(cpus=2)
    r = api.x(sid, "python3", "-c", "x = bytearray(40 << 20)\nimport time\nt = time.process_time()\nwhile time.process_time() - t < 0.3: pass")
    assert r["max_rss_kb"] > 40 << 10
    assert 300 <= r["cpu_ms"] <= r["duration_ms"] + 50
