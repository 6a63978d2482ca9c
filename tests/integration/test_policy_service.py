# SPDX-License-Identifier: Apache-2.0
"""What the policy decides, seen over HTTP on a real boxd: rows T07 to T12, T19 to T31, T36 to T38, F22 to F24 and I04.
Where only the session's settings matter it is the fake backend, which needs no network and no kernel."""

import json
import os
import subprocess

import pytest
from boxlib import BUILD, ApiError
from hostlib import until
from policylib import Governed

MIB = 1 << 20


@pytest.fixture(scope="module")
def plain():
    """Settings only: nothing runs."""
    daemon = Governed("box: {local: {workspace_quota_mb: 32}}", "--backend", "fake")
    yield daemon
    daemon.close()


@pytest.fixture
def governed():
    made = []

    def start(*args, **kwargs):
        made.append(Governed(*args, **kwargs))
        return made[-1]

    yield start
    for daemon in made:
        daemon.close()


@pytest.fixture(scope="module")
def offline():
    daemon = Governed("box: {profile: offline_readonly, allowed_host_mount_roots: ['{top}']}", "--backend", "fake")
    yield daemon
    daemon.close()


@pytest.fixture(scope="module")
def shared():
    """The configuration of a host that names one root and nothing else."""
    daemon = Governed("box: {shared_host_root: '{top}/data'}")
    yield daemon
    daemon.close()


def refused(caller, *args, **spec):
    with pytest.raises(ApiError) as caught:
        caller.new(*args, **spec)
    return caught.value


def test_row_T08_a_directory_below_an_allowed_root_is_mounted(shared):
    (shared.top / "data/mine").mkdir()
    os.chmod(shared.top / "data/mine", 0o777)
    api = shared.client()
    made = api.new("t08", host_path=str(shared.top / "data/mine"), host_path_mode="rw")
    assert made["session_id"] == "t08"
    assert api.sh("t08", "echo hi > /workspace/out")["exit_code"] == 0
    assert (shared.top / "data/mine/out").read_text() == "hi\n"
    api.rm("t08")


def test_row_T09_row_T10_row_T11_the_default_workspace_is_made_and_used(shared):
    """Only a root was named: the workspace is below it, was made at start, and serves whoever names none."""
    workspace = shared.top / "data/default"
    assert workspace.is_dir()
    api = shared.client()
    made = api.new("t09")
    assert (made["host_path"], made["mount_path"]) == (str(workspace), "/workspace")
    assert api.sh("t09", "echo shared > file; pwd")["stdout"] == "/workspace\n"
    assert (workspace / "file").read_text() == "shared\n"
    api.rm("t09")


def test_row_T10_a_workspace_that_cannot_be_is_told_at_start():
    with pytest.raises(RuntimeError, match="default_workspace is outside allowed_mount_roots"):
        Governed("box: {local: {default_workspace: /srv/elsewhere, allowed_mount_roots: ['{top}']}}")


def test_row_T10_a_workspace_below_a_directory_of_somebody_else_is_made_by_its_owner():
    """boxd has no right to write there; whoever owns the directory above has."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    top = Governed()
    mine = top.directory("mine", 0o700)
    os.chown(mine, 4321, 4321)
    config = top.top / "other.yaml"
    config.write_text(f"box: {{local: {{host_root: {mine}}}}}\n")
    daemon = Governed(config.read_text())
    try:
        daemon.client().new("t10")
        assert (mine / "default").stat().st_uid == 4321
        assert daemon.client().sh("t10", "echo x > f; cat f")["stdout"] == "x\n"
        assert (mine / "default/f").stat().st_uid == 4321
    finally:
        daemon.close()
        top.close()


def test_row_T12_a_directory_outside_the_roots_is_refused_and_recorded(shared):
    error = refused(shared.client(), "t12", host_path="/etc")
    assert (error.status, error.code) == (403, "denied")
    assert error.detail == f"host_path is outside allowed_mount_roots: {shared.top}/data (it is /etc)"
    assert shared.audit(event="denied", session="t12")[-1]["outcome"] == "BoxValidationError"
    assert shared.client().call("GET", "/v1/errors")["errors"][-1]["message"] == error.detail
    inside = refused(shared.client(), "t12", extra_mounts=[{"host_path": "/etc", "mount_path": "/mnt/x"}])
    assert inside.detail.startswith("extra_mounts.0: host_path is outside")


def test_row_T19_row_T26_the_default_profile_fills_what_is_open(plain):
    made = plain.client().new("t19", profile="default")
    want = {"network": "off", "cpus": 1.0, "memory_mb": 512, "pids_limit": 128, "read_only_rootfs": True,
            "image": "python:3.11-slim"}
    assert {k: made[k] for k in want} == want


def test_row_T20_what_is_not_locked_can_be_overridden(plain):
    made = plain.client().new("t20", network="on", memory_mb=64, timeout_sec=60)
    assert (made["network"], made["memory_mb"]) == ("on", 64)


def test_row_T21_row_T30_what_is_locked_cannot_be_overridden(offline):
    (offline.top / "w").mkdir()
    made = offline.client().new("t21", network="on", host_path=str(offline.top / "w"), host_path_mode="rw",
                                read_only_rootfs=False)
    assert (made["network"], made["host_path_mode"], made["read_only_rootfs"]) == ("off", "ro", True)
    record = offline.audit(event="session_create", session="t21")[-1]
    assert record["policy"] == {"profile": "offline_readonly", "clamped": False,
                                "overridden": ["network", "host_path_mode", "read_only_rootfs"]}


def test_row_T21_a_session_that_is_otherwise_is_not_handed_out(offline):
    """One that was made under another profile does not serve somebody who is bound by this one."""
    offline.client().new("t21b", profile="network_basic")
    error = refused(offline.client(), "t21b")
    assert (error.status, error.code) == (409, "conflict")


def test_row_T22_a_long_timeout_is_cut_to_the_longest_of_the_profile(offline):
    api = offline.client()
    api.new("t22")
    api.sh("t22", "true", timeout_sec=999)
    api.sh("t22", "true", timeout_sec=5)
    clamped = [r["policy"]["clamped"] for r in offline.audit(event="exec_start", session="t22")]
    assert clamped == [True, False]


def test_row_T24_an_unknown_profile_is_told_at_start_and_by_request(plain):
    with pytest.raises(RuntimeError, match="unknown box profile 'none'"):
        Governed("box: {profile: none}", "--backend", "fake")
    error = refused(plain.client(), "t24", profile="none")
    assert error.detail.startswith("unknown box profile 'none', available profiles: default, network_basic")


def test_row_T27_the_configured_quota_reaches_the_session(plain):
    assert plain.client().new("t27")["workspace_quota_mb"] == 32
    assert plain.client().new("t27b", workspace_quota_mb=7)["workspace_quota_mb"] == 7


def test_row_T31_network_extended_has_relaxed_limits(plain):
    made = plain.client().new("t31", profile="network_extended")
    want = {"network": "on", "cpus": 2.0, "memory_mb": 1024, "read_only_rootfs": False}
    assert {k: made[k] for k in want} == want


# What each profile is: whether it has a network (that of "default" is T19's), how directories are mounted, whether the
# root is read-only, its CPUs and MiB, the longest time of a command, and what of that nobody can change.
PROFILES = {
    "default": ("rw", True, 1.0, 512, 120, set()),
    "offline_readonly": ("ro", True, 0.5, 256, 60, {"network", "host_path_mode", "read_only_rootfs"}),
    "network_basic": ("rw", True, 1.0, 512, 120, set()),
    "network_extended": ("rw", False, 2.0, 1024, 300, set()),
}
NETWORKS = {"offline_readonly": "off", "network_basic": "on", "network_extended": "on"}


@pytest.mark.parametrize("name", PROFILES)
def test_row_T25_a_builtin_profile_is_what_it_says(governed, name):
    """Of a session that asks for nothing, and of one that asks for the opposite of everything."""
    mode, read_only, cpus, memory, longest, locked = PROFILES[name]
    daemon = governed(f"box: {{profile: {name}, allowed_host_mount_roots: ['{{top}}']}}", "--backend", "fake")
    api, mine = daemon.client(), daemon.directory("mine")
    made = api.new("plain", host_path=str(mine))
    assert made["network"] == NETWORKS.get(name, made["network"])
    wanted = {"host_path_mode": mode, "read_only_rootfs": read_only, "cpus": cpus, "memory_mb": memory}
    assert {k: made[k] for k in wanted} == wanted
    opposite = {"network": "off" if made["network"] == "on" else "on", "host_path_mode": "rw" if mode == "ro" else "ro",
                "read_only_rootfs": not read_only, "cpus": 0.25, "memory_mb": 128}
    asked = api.new("opposite", host_path=str(mine), **opposite)
    assert {k for k in opposite if asked[k] == made[k]} == locked
    for seconds in (longest, longest + 1):
        api.sh("plain", "true", timeout_sec=seconds)
    clamped = [r["policy"]["clamped"] for r in daemon.audit(event="exec_start", session="plain")]
    assert clamped == [False, True]


def test_a_profile_of_the_file_serves_requests():
    daemon = Governed("""
box: {local: {profile: student}}
profiles:
  student: {extends: offline_readonly, memory_mb: 96, timeout_sec: 5, max_timeout_sec: 7, locked: [memory_mb, env]}
""", "--backend", "fake")
    try:
        api = daemon.client()
        made = api.new("s", memory_mb=4096, env={"A": "b"})
        assert (made["memory_mb"], made["network"]) == (96, "off")
        api.sh("s", "true")
        assert daemon.audit(event="exec_start")[-1]["policy"]["profile"] == "student"
        # One that says nothing may take as long as the profile says, and no longer.
        assert daemon.audit(event="exec_start")[-1]["policy"]["clamped"] is True
    finally:
        daemon.close()


LOCKED = """
box: {local: {profile: locked}}
profiles:
  locked: {locked: [env]}
  free: {}
"""


def test_a_locked_environment_binds_commands_and_processes():
    daemon = Governed(LOCKED, "--backend", "native")
    try:
        api = daemon.client()
        api.new("s", env={"MINE": "session"})
        for attempt in range(2):
            assert api.sh("s", "echo ${MINE-none}", env={"MINE": "exec"})["stdout"] == "none\n"
            assert daemon.audit(event="exec_start")[-1]["policy"]["overridden"] == ["env"]
            api.sh("s", "echo ${MINE-none} > /tmp/kept", env={"MINE": "exec"}, detach=True, exec_id=f"x{attempt}")
            until(lambda n=attempt: api.call("GET", f"/v1/sessions/s/execs/x{n}")["status"] == "ended", what="the end")
            assert api.sh("s", "cat /tmp/kept")["stdout"] == "none\n"
            tool = api.call("POST", "/v1/sessions/s/tools/exec", {"command": "echo ${MINE-none}", "env": {"MINE": "t"}})
            assert "none" in json.dumps(tool)
            api.call("POST", "/v1/sessions/s/processes", {
                "process_id": "p", "command": "sh", "args": ["-c", "echo ${MINE-none}"], "env": {"MINE": "process"}})
            until(lambda: api.call("GET", "/v1/sessions/s/processes/p")["status"] == "exited", what="the end")
            api._conn.request("GET", "/v1/sessions/s/processes/p/output")
            assert api._conn.getresponse().read() == b"none\n"
            if attempt == 0:  # the next daemon knows it, too
                daemon.process.kill()
                daemon.process.wait(60)
                daemon.start()
                api = daemon.client()
        # One that was made without the lock is not handed out under it.
        api.new("f", profile="free", env={"MINE": "session"})
        assert api.sh("f", "echo $MINE", env={"MORE": "1"})["stdout"] == "session\n"
        with pytest.raises(ApiError) as caught:
            api.new("f")
        assert caught.value.status == 409 and "environment that is not locked" in caught.value.detail
    finally:
        daemon.close()


def test_row_T28_a_full_workspace_starts_nothing(shared):
    full = shared.top / "data/full"
    full.mkdir()
    os.chmod(full, 0o777)
    (full / "big").write_bytes(bytes(2 * MIB))
    api = shared.client()
    api.new("t28", host_path=str(full), workspace_quota_mb=1)
    with pytest.raises(ApiError) as caught:
        api.sh("t28", "touch /workspace/ran")
    assert caught.value.detail == (f"workspace quota exceeded before execution: used={2 * MIB} bytes limit={MIB} bytes "
                                   f"host_path={full} session_id=t28")
    assert not (full / "ran").exists()
    # It is not bricked: a command that only makes room may run.
    assert api.sh("t28", "rm big", cleanup=True)["exit_code"] == 0
    assert api.sh("t28", "echo again")["stdout"] == "again\n"
    api.rm("t28")


def test_row_T29_a_command_over_the_quota_costs_the_session(shared):
    grown = shared.top / "data/grown"
    grown.mkdir()
    os.chmod(grown, 0o777)
    api = shared.client()
    api.new("t29", host_path=str(grown), workspace_quota_mb=1)
    with pytest.raises(ApiError) as caught:
        api.sh("t29", "head -c 700000 /dev/zero > a; head -c 700000 /dev/zero > b")
    assert caught.value.detail.startswith("workspace quota exceeded after execution: used=1400000 bytes")
    assert all(s["session_id"] != "t29" for s in api.ps())
    assert [r["outcome"] for r in shared.audit(event="exec_end", session="t29")] == ["BoxValidationError"]
    assert shared.audit(event="session_delete", session="t29")[-1]["reason"] == "over its quota"
    assert shared.audit(event="session_end", session="t29")
    api.new("t29", host_path=str(grown), workspace_quota_mb=1)
    assert api.sh("t29", "rm a b", cleanup=True)["exit_code"] == 0
    assert api.sh("t29", "ls | wc -l")["stdout"] == "0\n"
    api.rm("t29")


def test_a_cleanup_must_not_leave_more_than_it_found(shared):
    place = shared.top / "data/cleanup"
    place.mkdir()
    os.chmod(place, 0o777)
    (place / "big").write_bytes(bytes(2 * MIB))
    api = shared.client()
    api.new("cleanup", host_path=str(place), workspace_quota_mb=1)
    with pytest.raises(ApiError, match="workspace quota exceeded after execution"):
        api.sh("cleanup", "head -c 1000 /dev/zero > more", cleanup=True)


def test_a_command_that_outgrows_a_shared_workspace_is_ended_while_it_runs(shared):
    """A directory of the host has no wall of the kernel's, so it is looked at meanwhile: a command that would never end
    by itself is ended."""
    place = shared.top / "data/endless"
    place.mkdir()
    os.chmod(place, 0o777)
    api = shared.client()
    api.new("endless", host_path=str(place), workspace_quota_mb=2)
    with pytest.raises(ApiError, match="workspace quota exceeded after execution"):
        api.sh("endless", "head -c 1500000 /dev/zero > a; head -c 1500000 /dev/zero > b; sleep 1000")
    # And one file alone never grows beyond the quota: that wall is the kernel's.
    for path in place.iterdir():
        path.unlink()
    api.new("endless", host_path=str(place), workspace_quota_mb=2)
    r = api.sh("endless", "dd if=/dev/zero of=big bs=1M count=100")
    assert r["exit_code"] != 0 or r["outcome"] == "signaled"
    assert (place / "big").stat().st_size == 2 * MIB
    api.rm("endless")


def test_a_workspace_that_boxd_may_not_read_is_counted_by_its_owner(shared):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    place = shared.top / "data/private"
    place.mkdir()
    (place / "sub").mkdir()
    (place / "sub/big").write_bytes(bytes(2 * MIB))
    for path in (place, place / "sub", place / "sub/big"):
        os.chown(path, 4321, 4321)
        path.chmod(0o700)
    api = shared.client()
    api.new("private", host_path=str(place), workspace_quota_mb=1)
    with pytest.raises(ApiError, match=f"workspace quota exceeded before execution: used={2 * MIB} bytes"):
        api.sh("private", "true")
    assert api.sh("private", "rm -r sub; mkdir -m 700 own; echo x > own/x", cleanup=True)["exit_code"] == 0
    assert api.sh("private", "cat own/x")["stdout"] == "x\n"
    api.rm("private")


def test_row_T38_the_status_tells_about_both(shared):
    api = shared.client()
    api.new("t38")
    status = api.call("GET", "/v1/status")
    assert status["enabled"] and status["available"] and status["profile"] == "default"
    assert status["backend"] == {"name": "native", "available": True}
    assert status["active_sessions"] == len(api.ps()) and status["managed_processes"] == 0
    assert status["session_ttl_sec"] == 300
    assert status["recent_error_count"] == len(api.call("GET", "/v1/errors")["errors"])
    assert status["audit"]["records"] == len(shared.audit()) and status["audit"]["lost"] == 0
    api.rm("t38")


def test_row_T07_row_F22_without_a_usable_backend_boxd_serves_and_runs_nothing():
    """It starts all the same, says why, and fails closed: nothing ever runs elsewhere instead."""
    daemon = Governed("engine_socket: unix:///nonexistent/docker.sock", "--backend", "docker")
    try:
        api = daemon.client()
        status = api.call("GET", "/v1/status")
        assert (status["enabled"], status["available"]) == (True, False) and "docker" in status["connector_error"]
        assert status["backend"] == {"name": "docker", "available": False}
        body = {"tool": "exec", "query": {"query_id": 7}, "arguments": {"command": "touch /tmp/never"}}
        for call in (lambda: api.new("t07"), lambda: api.call("POST", "/v1/execute-tool", body)):
            with pytest.raises(ApiError) as caught:
                call()
            assert (caught.value.status, caught.value.code) == (503, "unavailable")
        errors = api.call("GET", "/v1/errors")["errors"]
        assert [(e["type"], e["query_id"]) for e in errors] == [("BoxBackendUnavailableError", ""),
                                                                ("BoxBackendUnavailableError", "7")]
        assert not os.path.exists("/tmp/never") and api.ps() == []
    finally:
        daemon.close()


def test_row_F22_row_F23_a_runtime_that_is_switched_off_says_why():
    """It starts, answers, and runs nothing, by no front."""
    daemon = Governed("box: {enabled: false}", "--backend", "fake")
    try:
        api = daemon.client()
        status = api.call("GET", "/v1/status")
        reason = "Box runtime is disabled in config (box.enabled = false)"
        assert (status["enabled"], status["available"], status["connector_error"]) == (False, False, reason)
        error = refused(api, "f22")
        assert (error.status, error.detail) == (409, reason)
        assert api.ps() == []
    finally:
        daemon.close()


def test_row_I04_box_config_explains_what_boxd_was_told(shared):
    r = subprocess.run([str(BUILD / "box"), "config", "--explain", "--json", "--config", str(shared.config)],
                       capture_output=True, text=True, timeout=30, check=True)
    rows = json.loads(r.stdout)
    root = rows["box.local.host_root"]
    assert (root["value"], root["source"]) == (str(shared.top / "data"), f"file {shared.config}: box.shared_host_root")
    for name in ("tokens_file", "token_file", "audit.on_full", "outputs.each_mb", "box.local.profile"):
        assert {"value", "source", "meaning"} <= rows[name].keys(), name
