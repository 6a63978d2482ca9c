# SPDX-License-Identifier: Apache-2.0
"""Admission: sandboxes for workspaces that hold a grant, on the native backend."""

import json
import os
import pathlib
import shutil
import tempfile
import time

import pytest
from boxlib import Boxd
from lbwire import INSTANCE, WORKSPACE, Refused, Rpc, RpcError, context, http_get, namespace, relay, eventually

SOFT = {"LANGBOT_BOX_ALLOW_UNSAFE_SOFT_STORAGE_LIMITS": "yes", "BOX_REPORT_BACKEND_AS": "nsjail"}


@pytest.fixture
def root():
    path = tempfile.mkdtemp(prefix="box-cloud-", dir="/tmp")
    os.chmod(path, 0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


class Cloud:
    def __init__(self, root, env=None, **policy):
        self.root = pathlib.Path(root)
        self.daemon = Boxd(env=SOFT if env is None else env)
        self.rpc = Rpc(self.daemon.sock)
        self.rpc.call("box_init", {"local": {"host_root": root}, "admission": {"required": True, **policy}}, ctx=None)

    def grant(self, revision=1, generation=1, sessions=1, life=60, workspace=WORKSPACE, **more):
        return self.rpc.call("box_upsert_sandbox_admission_grant", {
            "instance_uuid": INSTANCE, "workspace_uuid": workspace, "execution_generation": generation,
            "entitlement_revision": revision, "expires_at": time.time() + life, "max_sessions": sessions,
            "max_managed_processes": 0, **more}, ctx=None)

    def revoke(self, revision=1):
        return self.rpc.call("box_revoke_sandbox_admission_grant", {
            "instance_uuid": INSTANCE, "workspace_uuid": WORKSPACE, "entitlement_revision": revision}, ctx=None)

    def close(self):
        self.rpc.ws.sock.close()
        self.daemon.close()


@pytest.fixture
def cloud(root):
    c = Cloud(root)
    yield c
    c.close()


def fails(match, call, *args, **kwargs):
    with pytest.raises(RpcError, match=match) as e:
        call(*args, **kwargs)
    return e.value


def test_readiness_is_what_is_enforced(cloud):
    info = cloud.rpc.call("box_get_backend_info", ctx=None)
    ready = info["readiness"]
    assert info["name"] == "nsjail" and info["available"] is True
    details = ready["backend"]["details"]
    assert details["namespace_isolation"] and details["mount_isolation"] and details["network_isolation"]
    # Bug 22 of upstream: no quota reaches the workspace, which is a directory of the host; that is said.
    assert not details["hard_workspace_quota"] and not details["inode_quota"]
    assert ready["checks"]["hard_workspace_quota"] and ready["unsafe_soft_storage_limits"] is True
    assert cloud.rpc.call("box_health", ctx=None) == ready
    status, _, body = http_get(cloud.daemon.sock, "/readyz")
    assert status == 200 and json.loads(body)["mode"] == "grant_enforced"
    assert os.listdir(cloud.root / "default") == []  # the probe left nothing
    assert cloud.daemon.client().ps() == []


def test_not_ready_without_enforced_storage(root):
    c = Cloud(root, env={})
    try:
        error = fails("^BoxReadinessError: Managed sandbox isolation is not ready ", c.rpc.exec, "s", "true")
        assert error.message.endswith("(failed checks: hard_workspace_quota, hard_skill_storage_quota, inode_quota)")
        fails("^BoxReadinessError: managed sandbox isolation is not ready$", c.rpc.call, "box_health", ctx=None)
        assert http_get(c.daemon.sock, "/readyz")[0] == 503
        assert http_get(c.daemon.sock, "/healthz")[0] == 200
        assert c.rpc.call("box_status")["active_sessions"] == 0  # no sandbox is needed for that
    finally:
        c.close()


def test_a_grant_is_needed(cloud):
    rpc = cloud.rpc
    fails("^BoxAdmissionError: Sandbox admission grant is missing$", rpc.exec, "s", "true")
    receipt = cloud.grant()
    assert receipt.pop("expires_at").endswith("+00:00")
    assert receipt == {"installed": True, "workspace_uuid": WORKSPACE, "execution_generation": 1,
                       "entitlement_revision": 1, "max_sessions": 1, "max_managed_processes": 0}
    r = rpc.exec("any name", "pwd; echo here > f; echo $$ > /dev/null; nproc > /dev/null; id -u")
    assert r["session_id"] == "global" and r["backend_name"] == "nsjail" and r["exit_code"] == 0
    assert (cloud.root / "default/tenants" / namespace() / "f").read_text() == "here\n"
    info = rpc.call("box_get_session", {"session_id": "global"})
    assert info["persistent"] is True and info["host_path"].endswith("/default/tenants/" + namespace())
    fails("^BoxAdmissionError: Managed sandbox session_id is runtime-owned$", rpc.call, "box_get_session",
          {"session_id": "any name"})
    fails("^BoxAdmissionError: Sandbox admission grant is missing$", rpc.call, "box_get_sessions",
          ctx=context("somebody else"))


@pytest.mark.parametrize("spec,text", [
    ({"network": "on"}, "Managed sandbox network access is disabled"),
    ({"extra_mounts": [{"host_path": "/tmp", "mount_path": "/x"}]},
     "Managed sandbox additional host mounts are disabled"),
    ({"mount_path": "/project"}, "Managed sandbox mount_path is runtime-owned"),
    ({"workdir": "/tmp"}, "Managed sandbox workdir must stay under /workspace"),
    ({"host_path": "/tmp/x"}, "Managed sandbox host_path is runtime-owned"),
    ({"skill_name": "none"}, "Managed sandbox skill is unavailable in this Workspace"),
])
def test_what_a_request_may_not_say(cloud, spec, text):
    cloud.grant()
    assert fails("^BoxAdmissionError: ", cloud.rpc.exec, "s", "true", **spec).message == f"BoxAdmissionError: {text}"


def test_the_native_backend_is_what_the_policy_means(root):
    """Its isolation is proven, so it goes by the name that Cloud mode asks for, without a setting."""
    c = Cloud(root, env={"LANGBOT_BOX_ALLOW_UNSAFE_SOFT_STORAGE_LIMITS": "1"})
    try:
        info = c.rpc.call("box_get_backend_info", ctx=None)
        assert (info["name"], info["available"]) == ("nsjail", True)
        assert info["readiness"]["backend"]["name"] == "nsjail" and info["readiness"]["checks"]["required_backend"]
        assert c.rpc.call("box_status")["backend"] == info
        c.grant()
        assert c.rpc.exec("s", "true")["backend_name"] == "nsjail"
        assert c.rpc.call("box_get_session", {"session_id": "global"})["backend_name"] == "nsjail"
    finally:
        c.close()


def test_a_name_of_the_operators_choice_stays(root):
    c = Cloud(root, env={"LANGBOT_BOX_ALLOW_UNSAFE_SOFT_STORAGE_LIMITS": "1", "BOX_REPORT_BACKEND_AS": "mine"})
    try:
        info = c.rpc.call("box_get_backend_info", ctx=None)
        assert (info["name"], info["available"]) == ("mine", False)
        assert [k for k, v in info["readiness"]["checks"].items() if not v] == ["required_backend"]
    finally:
        c.close()


def test_read_only_mounts_of_the_host(cloud):
    """What the newest LangBot does instead of skill_name."""
    cloud.grant()
    (cloud.root / "package/sub").mkdir(parents=True)
    (cloud.root / "package/SKILL.md").write_text("demo")
    mount = {"host_path": str(cloud.root / "package"), "mount_path": "/workspace/.skills/demo", "mode": "ro"}
    r = cloud.rpc.exec("s", "cat .skills/demo/SKILL.md; touch .skills/demo/x || echo ' ro'", extra_mounts=[mount])
    assert r["stdout"] == "demo ro"
    for change, text in (
            ({"mode": "rw"}, "Managed sandbox additional host mounts are disabled"),
            ({"host_path": "/usr"}, "Managed sandbox read-only mount source is outside allowed_mount_roots"),
            ({"host_path": mount["host_path"] + "/none"}, "Managed sandbox read-only mount source is unavailable"),
            ({"mount_path": "/mnt"}, "Managed sandbox additional mount targets must stay under /workspace")):
        message = fails("^BoxAdmissionError: ", cloud.rpc.exec, "s", "true", extra_mounts=[{**mount, **change}]).message
        assert message == f"BoxAdmissionError: {text}"


def test_a_skill_is_mounted(cloud):
    cloud.grant()
    cloud.rpc.call("box_create_skill", {"skill": {"name": "demo", "instructions": "Do it"}})
    r = cloud.rpc.exec("s", "cat /workspace/.skills/demo/SKILL.md; touch /workspace/.skills/demo/x; echo $?",
                       skill_name="demo")
    assert "Do it" in r["stdout"] and r["stdout"].endswith("1")


def test_limits_are_those_of_the_policy(root):
    c = Cloud(root, memory_mb=64, pids_limit=9, max_timeout_sec=1)
    try:
        c.grant()
        assert c.rpc.exec("s", "sleep 30", timeout_sec=60, memory_mb=4096)["status"] == "timed_out"
        info = c.rpc.call("box_create_session", {"session_id": "x"})
        assert (info["memory_mb"], info["pids_limit"]) == (64, 9)
    finally:
        c.close()


def test_grants_move_forward_only(cloud):
    cloud.grant(revision=5, generation=2)
    fails("^BoxAdmissionError: Sandbox admission grant revision is stale$", cloud.grant, 4, 2)
    fails("^BoxAdmissionError: Sandbox admission execution generation is stale$", cloud.grant, 5, 1)
    fails("^BoxAdmissionError: Sandbox admission grant exceeds the session cap$", cloud.grant, 6, 2, 2)
    fails("^BoxAdmissionError: Sandbox admission grant lifetime exceeds", cloud.grant, 6, 2, 1, 400)
    fails("^BoxAdmissionError: Cannot install an expired sandbox admission grant$", cloud.grant, 6, 2, 1, -1)
    fails("^BoxAdmissionError: Sandbox admission grant belongs to another execution generation$", cloud.rpc.exec, "s",
          "true")
    cloud.rpc.ctx = context(generation=2)
    cloud.rpc.exec("s", "touch /tmp/old")
    cloud.grant(revision=6, generation=3)  # ends what was there
    assert cloud.daemon.client().ps() == []
    cloud.rpc.ctx = context(generation=3)
    assert cloud.rpc.exec("s", "ls /tmp")["stdout"] == ""
    assert cloud.revoke(6) == {"revoked": True, "workspace_uuid": WORKSPACE, "entitlement_revision": 6}
    assert cloud.daemon.client().ps() == []
    fails("^BoxAdmissionError: Sandbox admission grant is missing$", cloud.rpc.exec, "s", "true")
    fails("^BoxAdmissionError: Sandbox admission grant revision was revoked$", cloud.grant, 6, 3)
    fails("^BoxAdmissionError: Sandbox admission revocation is stale$", cloud.revoke, 5)


def test_a_grant_runs_out(cloud):
    cloud.grant(life=2)
    cloud.rpc.exec("s", "true")

    def expired():
        try:
            cloud.rpc.call("box_get_sessions")
            return False
        except RpcError as e:
            return e.message == "BoxAdmissionError: Sandbox admission grant has expired"

    assert eventually(expired, 20)
    assert eventually(lambda: cloud.daemon.client().ps() == [], 20)


def test_processes_are_not_for_managed_sandboxes(cloud):
    cloud.grant()
    cloud.rpc.exec("s", "true")
    fails("^BoxAdmissionError: Sandbox admission grant does not permit managed processes$", cloud.rpc.call,
          "box_start_managed_process", {"session_id": "global", "spec": {"command": "cat"}})
    with pytest.raises(Refused) as e:
        relay(cloud.daemon.sock, "global")
    assert e.value.status == 400 and json.loads(e.value.body) == {"error": {
        "code": "BoxAdmissionError", "message": "Sandbox admission grant does not permit managed process relay"}}


def test_it_cannot_be_turned_off(cloud):
    cloud.rpc.call("box_init", {"admission": {"required": False}}, ctx=None)
    fails(r"^BoxReadinessError: .*\(failed checks: configuration\)$", cloud.rpc.exec, "s", "true")
    ready = cloud.rpc.call("box_get_backend_info", ctx=None)["readiness"]
    assert ready["error"] == ("Sandbox admission enforcement cannot be disabled without restarting the Box Runtime")
    fails("^BoxReadinessError: Invalid sandbox admission configuration: ", cloud.grant)


def test_a_wrong_policy_fails_closed(boxd):
    with Rpc(boxd.sock) as r:
        r.call("box_init", {"admission": {"required": False, "surprise": 1}}, ctx=None)
        fails("^BoxReadinessError: ", r.exec, "s", "true")


def test_the_shared_workspace_is_verified(cloud):
    name = ".langbot-box-volume-probe-" + "0123456789abcdef" * 2
    marker = cloud.root / "default" / name
    verify = {"marker_name": name}
    fails("^BoxReadinessError: Box Runtime cannot read the Core shared Workspace probe$", cloud.rpc.call,
          "box_verify_shared_workspace", verify, ctx=None)
    marker.write_text("hello")
    assert cloud.rpc.call("box_verify_shared_workspace", verify, ctx=None) == {
        "marker_name": name, "size": 5,
        "sha256": "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"}
    fails("^BoxReadinessError: Invalid Box shared Workspace probe basename$", cloud.rpc.call,
          "box_verify_shared_workspace", {"marker_name": "../" + name}, ctx=None)
    fails("^BoxReadinessError: 'marker_name'$", cloud.rpc.call, "box_verify_shared_workspace", {}, ctx=None)
