# SPDX-License-Identifier: Apache-2.0
"""The audit log that a real boxd writes: every front, every end, the chain, and a disk that is full."""

import os
import pathlib
import subprocess

import pytest
from boxlib import BUILD, ApiError, Client
from hostlib import until
from lbwire import Rpc, RpcError
from policylib import Governed


@pytest.fixture(scope="module")
def daemon():
    d = Governed("session_ttl_sec: 1\naudit: {file_mb: 1}", tcp=True)
    yield d
    d.close()


def verify(daemon, *args):
    return subprocess.run([str(BUILD / "box"), "audit", "verify", *args], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "BOX_STATE_DIR": str(daemon.state)}, check=False)


def events(daemon, session):
    return [r["event"] for r in daemon.audit(session=session)]


def test_a_session_and_its_commands_are_on_record(daemon):
    api = daemon.client()
    api.new("plain", persistent=True)
    api.sh("plain", "echo out; echo err >&2; exit 3", env={"SECRET": "hunter2"})
    api.x("plain", "printf", "%s", "it's")
    api.sh("plain", "sleep 100", timeout_sec=0.2)
    api.rm("plain")
    until(lambda: "session_end" in events(daemon, "plain"), what="the end of the session")
    assert events(daemon, "plain") == ["session_create"] + ["exec_start", "exec_end"] * 3 + ["session_delete", "session_end"]
    first, end, second, _, _, late = daemon.audit(session="plain")[1:7]
    assert (first["who"], first["via"], first["command"]) == ("local", "http", "echo out; echo err >&2; exit 3")
    assert (end["outcome"], end["exit_code"], end["stdout_bytes"], end["stderr_bytes"]) == ("exited", 3, 4, 4)
    assert second["command"] == "printf %s 'it'\\''s'"
    assert late["outcome"] == "timed_out" and "exit_code" not in late
    assert "hunter2" not in (daemon.state / "audit/audit.log").read_text()


def test_streams_are_on_record(daemon):
    env = {**os.environ, "BOX_HOST": f"unix://{daemon.sock}"}
    subprocess.run([str(BUILD / "box"), "run", "--", "sh", "-c", "echo streamed"], env=env, check=True, timeout=60,
                   capture_output=True)
    start = daemon.audit(event="exec_start", command="sh -c 'echo streamed'")[-1]
    until(lambda: "session_end" in events(daemon, start["session"]), what="the end of the session")
    assert events(daemon, start["session"])[:3] == ["session_create", "exec_start", "exec_end"]


def test_processes_are_on_record(daemon):
    api = daemon.client()
    api.new("served", persistent=True)
    api.call("POST", "/v1/sessions/served/processes", {"process_id": "p", "command": "sh", "args": ["-c", "exit 7"]})
    until(lambda: "process_end" in events(daemon, "served"), what="the end of the process")
    start, end = (daemon.audit(session="served", event=e)[-1] for e in ("process_start", "process_end"))
    assert (start["process"], start["command"], start["who"]) == ("p", "sh -c 'exit 7'", "local")
    assert (end["process"], end["exit_code"]) == ("p", 7)
    api.rm("served")


def test_idle_sessions_that_go_are_on_record(daemon):
    daemon.client().new("idle")
    until(lambda: "session_end" in events(daemon, "idle"), what="the end of the session")
    assert daemon.audit(session="idle", event="session_end")[-1]["reason"] == "idle for too long"


def test_langbot_is_on_record_too(daemon):
    """And gets what it always got: its own policy came before."""
    with Rpc(daemon.sock) as rpc:
        spec = {"session_id": "lb", "cmd": "echo from langbot", "persistent": True}
        assert rpc.call("box_exec", spec)["stdout"] == "from langbot"
        start = daemon.audit(event="exec_start", command="echo from langbot")[-1]
        assert start["via"] == "rpc" and start["session"].endswith("lb")
        assert events(daemon, start["session"])[:3] == ["session_create", "exec_start", "exec_end"]
        rpc.call("box_start_managed_process", {"session_id": "lb", "spec": {"command": "sh", "args": ["-c", "exit 0"]}})
        until(lambda: "process_end" in events(daemon, start["session"]), what="the end of the process")
        rpc.call("box_delete_session", {"session_id": "lb"})
        assert daemon.audit(event="session_delete", session=start["session"])
        with pytest.raises(RpcError):
            rpc.call("box_exec", {**spec, "host_path": "/etc"})
        assert daemon.client().call("GET", "/v1/errors")["errors"][-1]["type"] == "BoxValidationError"


def test_the_chain_is_whole_while_boxd_writes_and_after_it_was_killed(daemon):
    api = daemon.client()
    api.new("chain", persistent=True)
    api.sh("chain", "true")
    head = api.call("GET", "/v1/status")["audit"]["head"]
    r = verify(daemon, "--head", head)
    assert (r.returncode, r.stderr) == (0, ""), r.stdout
    daemon.process.kill()
    daemon.process.wait()
    daemon.start()
    daemon.client().sh("chain", "true")
    r = verify(daemon, "--head", head)
    assert r.returncode == 0, r.stdout
    daemon.client().rm("chain")


def test_a_log_of_many_commands_is_cut_into_files_and_stays_one_chain(daemon):
    api = daemon.client()
    api.new("many", persistent=True)
    long = "true " + "x" * 1000
    until(lambda: api.sh("many", long) and list((daemon.state / "audit").glob("audit-*.log")), seconds=120, what="rotation")
    assert verify(daemon).returncode == 0
    api.rm("many")


@pytest.fixture
def small(request):
    """A boxd whose state lies on a disk of 24 MiB, in a mount namespace of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    script = 'mount -t tmpfs -o size=24m,mode=755 none "$0" && exec "$@"'

    class Small(Governed):
        def start(self):
            self.prefix = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, str(self.state)]
            super().start()

    daemon = Small(f"audit: {{on_full: {request.param}}}")
    daemon.state_seen = pathlib.Path(f"/proc/{daemon.pid}/root{daemon.state}")
    daemon.seen = Client(daemon.state_seen / "boxd.sock")
    yield daemon
    daemon.seen.close()
    daemon.close()


def fill(state):
    try:
        with open(state / "filler", "wb", buffering=0) as filler:
            for size in (1 << 20, 4096):
                try:
                    while True:
                        filler.write(b"x" * size)
                except OSError:
                    pass
    except OSError:
        pass


def log_of(daemon):
    return (daemon.state_seen / "audit/audit.log").read_text().splitlines()


@pytest.mark.parametrize("small", ["refuse"], indirect=True)
def test_on_a_full_disk_nothing_runs_that_cannot_be_recorded(small):
    small.seen.new("full", persistent=True)
    assert small.seen.sh("full", "echo before")["stdout"] == "before\n"
    fill(small.state_seen)
    ran = 0
    with pytest.raises(ApiError, match="nothing runs that cannot be recorded") as caught:
        for ran in range(2000):  # until what is reserved is used up
            small.seen.sh("full", "echo more; : " + "y" * 900)
    assert caught.value.status == 429
    # Everything that ran is on record, and its end too.
    lines = log_of(small)
    assert sum('"exec_end"' in line for line in lines) == ran + 1 == sum('"exec_start"' in line for line in lines)
    assert small.seen.call("GET", "/v1/status")["audit"]["full"] is True
    with pytest.raises(ApiError, match="the audit log has no room"):
        small.seen.new("another")
    (small.state_seen / "filler").unlink()
    assert small.seen.sh("full", "echo after")["stdout"] == "after\n"
    # What was refused meanwhile is counted, and the count is part of the chain.
    assert any('"lost":2' in line for line in log_of(small))


@pytest.mark.parametrize("small", ["continue"], indirect=True)
def test_on_a_full_disk_commands_run_and_the_gap_is_part_of_the_chain(small):
    small.seen.new("full", persistent=True)
    fill(small.state_seen)
    until(lambda: small.seen.sh("full", "echo on; : " + "y" * 900)["stdout"] == "on\n"
          and small.seen.call("GET", "/v1/status")["audit"]["lost"] > 0, what="a record that is lost")
    lost = small.seen.call("GET", "/v1/status")["audit"]["lost"]
    (small.state_seen / "filler").unlink()
    small.seen.sh("full", "echo after")
    assert any(f'"lost":{lost}' in line for line in log_of(small))
