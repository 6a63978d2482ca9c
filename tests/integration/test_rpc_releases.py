# SPDX-License-Identifier: Apache-2.0
"""What follows from the release of LangBot's client: each is known by its fields (docs/internals/interop.md)."""

import itertools
import os
import time

import pytest
from boxlib import Boxd, scratch
from lbwire import INSTANCE, WORKSPACE, Rpc, RpcError, context

_workspaces = itertools.count()
KEPT = ("BoxSessionConflictError: Box mounts differ from this session's immutable mount set; acquire a Box with a "
        "distinct reuse key for different host mounts. The existing session was preserved.")

# Every field, as the client writes them; `skill_name` is what came with 0.5.0 and went with 0.7.13.
ALL = {"workdir": "/workspace", "timeout_sec": 30, "network": "off", "env": {},
       "image": "rockchin/langbot-sandbox:latest", "host_path": None, "host_path_mode": "rw",
       "mount_path": "/workspace", "extra_mounts": [], "persistent": False, "cpus": 1.0, "memory_mb": 512,
       "pids_limit": 128, "read_only_rootfs": True, "workspace_quota_mb": 0}


class Peer(Rpc):
    """A client of a family, in a workspace of its own unless it is told another."""

    fields = {}
    mount_fields = {}

    def __init__(self, sock, ctx=None):
        super().__init__(sock, ctx=ctx or context(f"rel{next(_workspaces)}"))

    def sh(self, cmd, session_id="s", mounts=(), **fields):
        mounts = [{"host_path": host, "mount_path": inside, "mode": "ro", **self.mount_fields}
                  for host, inside in mounts]
        return self.exec(session_id, cmd, **{**self.fields, "extra_mounts": mounts, **fields})


class Older(Peer):
    """0.5.0 to 0.7.12."""
    fields = {**ALL, "skill_name": None}


class Newer(Peer):
    """0.7.13 and later."""
    fields = ALL
    mount_fields = {"content_digest": None, "manifest_path": None}


@pytest.fixture(scope="module")
def daemon():
    d = Boxd()
    yield d
    d.close()


@pytest.fixture
def older(daemon):
    with Older(daemon.sock) as r:
        yield r


@pytest.fixture
def newer(daemon):
    with Newer(daemon.sock) as r:
        yield r


@pytest.fixture
def directory():
    with scratch("box-rel-") as path:
        for name in ("a", "b"):
            (path / name).mkdir(mode=0o755)
            (path / name / "f").write_text(name)
        yield str(path)


def refused(call, *args, **kwargs):
    with pytest.raises(RpcError) as e:
        call(*args, **kwargs)
    return e.value.message


def test_unknown_fields_are_ignored_or_refused(older, newer):
    assert older.sh("echo hi", surprise=1)["stdout"] == "hi"
    assert newer.sh("echo hi")["stdout"] == "hi"
    assert refused(newer.sh, "echo hi", surprise=1) == (
        "BoxValidationError: 1 validation error for BoxSpec\nsurprise\n  Extra inputs are not permitted "
        "[type=extra_forbidden]")
    assert refused(newer.call, "box_create_session", {**ALL, "session_id": "t", "skill_name": None}) == (
        "BoxValidationError: 1 validation error for BoxSpec\nskill_name\n  Extra inputs are not permitted "
        "[type=extra_forbidden]")
    assert [s["session_id"] for s in newer.call("box_get_sessions")["sessions"]] == ["s"]


def test_the_first_request_is_enough(newer):
    """No matter that it is refused: it has shown who sent it."""
    assert "Extra inputs are not permitted" in refused(newer.sh, "echo hi", surprise=1)


def test_skill_calls_are_gone(older, newer, directory):
    older.call("box_init", {"local": {"host_root": directory}}, ctx=None)
    assert older.call("box_list_skills") == {"skills": []}
    newer.sh("true")
    for call in ("box_list_skills", "box_get_skill", "box_create_skill", "box_update_skill", "box_delete_skill",
                 "box_scan_skill_directory", "box_list_skill_files", "box_read_skill_file", "box_write_skill_file",
                 "box_preview_skill_zip", "box_install_skill_zip"):
        assert refused(newer.call, call, {"name": "x"}) == f"ValueError: Action {call} not found"
    older.sh("true")
    assert older.call("box_list_skills") == {"skills": []}


def test_other_mounts_make_a_session_anew_for_older_clients(older, directory):
    older.sh("touch /tmp/mine", mounts=[(directory + "/a", "/m/a")])
    both = [(directory + "/a", "/m/a"), (directory + "/b", "/m/b")]
    assert older.sh("ls /tmp; cat /m/*/f", mounts=both)["stdout"] == "ab"


def test_other_mounts_conflict_for_newer_clients_and_nothing_is_lost(newer, directory):
    one, both = [(directory + "/a", "/m/a")], [(directory + "/a", "/m/a"), (directory + "/b", "/m/b")]
    newer.sh("echo kept > /tmp/mine", mounts=one)
    newer.call("box_start_managed_process", {"session_id": "s", "spec": {"process_id": "p", "command": "cat"}})
    for mounts in (both, [], [(directory + "/b", "/m/a")], [(directory + "/a", "/m/other")]):
        assert refused(newer.sh, "true", mounts=mounts) == KEPT
    assert newer.sh("cat /tmp/mine /m/a/f", mounts=one * 2)["stdout"] == "kept\na"
    process = newer.call("box_get_managed_process", {"session_id": "s", "process_id": "p"})
    assert process["status"] == "running"


def test_mounts_that_conflict_leave_no_directories(daemon, newer, directory):
    newer.call("box_init", {"local": {"host_root": directory, "allowed_mount_roots": [directory]}}, ctx=None)
    work = directory + "/default/w"
    newer.sh("true", host_path=work, mounts=[(directory + "/a", "/workspace/a")])
    assert refused(newer.sh, "true", host_path=work, mounts=[(directory + "/b", "/workspace/b")]) == KEPT
    assert os.listdir(work) == ["a"]


def test_one_workspace_two_clients(daemon, directory):
    """While LangBot is being updated both are there; each gets the rules it knows."""
    ctx = context(f"rel{next(_workspaces)}")
    with Older(daemon.sock, ctx=ctx) as before, Newer(daemon.sock, ctx=ctx) as after:
        after.sh("true", mounts=[(directory + "/a", "/m")])
        assert refused(after.sh, "true", mounts=[(directory + "/b", "/m")]) == KEPT
        assert before.sh("cat /m/f", mounts=[(directory + "/b", "/m")])["stdout"] == "b"
        assert after.sh("cat /m/f", mounts=[(directory + "/b", "/m")])["stdout"] == "b"


def test_a_new_connection_is_a_new_client(daemon):
    ctx = context(f"rel{next(_workspaces)}")
    with Newer(daemon.sock, ctx=ctx) as r:
        r.sh("true")
        assert refused(r.call, "box_list_skills") == "ValueError: Action box_list_skills not found"
    with Older(daemon.sock, ctx=ctx) as r:
        assert r.call("box_list_skills") == {"skills": []}


def test_who_writes_by_hand_is_served_all(daemon, directory):
    with Peer(daemon.sock) as r:
        assert r.exec("s", "echo hi", surprise=1)["stdout"] == "hi"
        assert r.call("box_list_skills") == {"skills": []}
        assert "capacity" in r.call("box_status")


def test_the_class_of_an_unusable_id(older, newer):
    text = "Box session_id must contain a valid character"
    assert refused(older.sh, "true", "!!!") == "ValueError: " + text
    assert refused(newer.sh, "true", "!!!") == "BoxValidationError: " + text


def test_the_log_says_what_a_client_is():
    d = Boxd()
    try:
        with Newer(d.sock) as r:
            r.sh("true")
        assert "the client is langbot-plugin 0.7.13 and later" in d.log()
    finally:
        d.close()


# Where sandboxes need a grant.

STORAGE = ("hard_workspace_quota", "hard_skill_storage_quota", "hard_read_only_mount_quota",
           "bounded_ephemeral_storage", "inode_quota")


class Cloud:
    def __init__(self, root, **env):
        self.daemon = Boxd(env={"BOX_REPORT_BACKEND_AS": "nsjail", **env})
        with Rpc(self.daemon.sock) as r:
            r.call("box_init", {"local": {"host_root": root}, "admission": {"required": True}}, ctx=None)
            r.call("box_upsert_sandbox_admission_grant", {
                "instance_uuid": INSTANCE, "workspace_uuid": WORKSPACE, "execution_generation": 1,
                "entitlement_revision": 1, "expires_at": time.time() + 240, "max_sessions": 1,
                "max_managed_processes": 0}, ctx=None)


@pytest.fixture
def cloud(directory):
    c = Cloud(directory, LANGBOT_BOX_ALLOW_UNSAFE_SOFT_STORAGE_LIMITS="yes")
    yield c
    c.daemon.close()


def test_status_is_that_of_the_backend(cloud):
    with Newer(cloud.daemon.sock, ctx=context()) as r:
        status = r.call("box_status")
        assert status["backend"] == r.call("box_get_backend_info", ctx=None)
        assert status["backend"]["available"] is True and status["backend"]["readiness"]["ready"] is True
        assert status["capacity"] == {"limit": 1, "used": 0, "remaining": 1}
        r.sh("true", "global")
        assert r.call("box_status")["capacity"] == {"limit": 1, "used": 1, "remaining": 0}


def test_status_is_not_available_where_nothing_may_run(directory):
    c = Cloud(directory)
    try:
        with Older(c.daemon.sock, ctx=context()) as older, Newer(c.daemon.sock, ctx=context()) as newer:
            backend = newer.call("box_status")["backend"]
            assert (backend["name"], backend["available"]) == ("nsjail", False)
            assert backend["readiness"]["mode"] == "grant_enforced" and backend["readiness"]["ready"] is False
            failed = [name for name, passed in backend["readiness"]["checks"].items() if not passed]
            assert failed and set(failed) <= set(STORAGE)
            # The check has another name for each.
            text = "BoxReadinessError: Managed sandbox isolation is not ready (failed checks: "
            for peer, other in ((older, "hard_read_only_mount_quota"), (newer, "hard_skill_storage_quota")):
                names = ", ".join(name for name in failed if name != other)
                assert refused(peer.sh, "true", "global") == f"{text}{names})"
    finally:
        c.daemon.close()


def test_mounts_of_managed_sandboxes(cloud, directory):
    mounts = [(directory + "/a", "/workspace/a")]
    with Older(cloud.daemon.sock, ctx=context()) as r:
        assert refused(r.sh, "true", "global", mounts) == (
            "BoxAdmissionError: Managed sandbox additional host mounts are disabled")
    with Newer(cloud.daemon.sock, ctx=context()) as r:
        assert r.sh("cat a/f", "global", mounts)["stdout"] == "a"
