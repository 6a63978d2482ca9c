# SPDX-License-Identifier: Apache-2.0
"""Sessions: create, get, list, delete, reuse, conflicts, mounts."""

import datetime
import json
import os
import pathlib
import tempfile

import pytest
from langbot_client import UPSTREAM, errors, features, models

FIELDS = {"session_id", "backend_name", "backend_session_id", "image", "network", "host_path", "host_path_mode",
          "mount_path", "persistent", "cpus", "memory_mb", "pids_limit", "read_only_rootfs", "workspace_quota_mb",
          "created_at", "last_used_at"}


def when(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))


async def test_a_new_session_is_described(box):
    info = await box.new(cpus=0.5, memory_mb=256, pids_limit=64, env={"A": "1"})
    assert FIELDS <= set(info)
    told = {k: info[k] for k in ("session_id", "network", "host_path", "host_path_mode", "mount_path", "persistent",
                                 "cpus", "memory_mb", "pids_limit", "read_only_rootfs", "workspace_quota_mb")}
    assert told == {"session_id": "s", "network": "off", "host_path": None, "host_path_mode": "rw",
                    "mount_path": "/workspace", "persistent": False, "cpus": 0.5, "memory_mb": 256, "pids_limit": 64,
                    "read_only_rootfs": True, "workspace_quota_mb": 0}
    assert info["image"] == models.BoxSpec(session_id="s").image
    assert info["created_at"].endswith("Z")
    assert abs((datetime.datetime.now(datetime.timezone.utc) - when(info["created_at"])).total_seconds()) < 60
    models.BoxSessionInfo.model_validate(info)


async def test_creating_twice_gives_the_same_session(box):
    first = await box.new()
    second = await box.new(workdir="/tmp", timeout_sec=7, env={"B": "2"})
    assert second["backend_session_id"] == first["backend_session_id"]
    assert second["created_at"] == first["created_at"]
    assert when(second["last_used_at"]) >= when(first["last_used_at"])


async def test_a_session_can_be_got_and_listed(box):
    assert await box.get_sessions() == []
    await box.new("a")
    await box.sh("true", "b")
    one = await box.get_session("a")
    assert FIELDS <= set(one) and one["session_id"] == "a"
    assert "managed_processes" not in one and "managed_process" not in one
    listed = await box.get_sessions()
    assert {s["session_id"] for s in listed} == {"a", "b"}
    assert all(FIELDS <= set(s) and "managed_processes" not in s for s in listed)


@pytest.mark.needs("storage")
async def test_a_session_tells_whether_it_is_busy(box):
    await box.new()
    assert (await box.get_session("s"))["status"] == "idle"


async def test_a_deleted_session_is_gone(box):
    await box.sh("echo x > /workspace/f")
    await box.delete_session("s")
    assert await box.get_sessions() == []
    with pytest.raises(errors.BoxSessionNotFoundError, match=f"session {box.physical()} not found"):
        await box.get_session("s")
    with pytest.raises(errors.BoxSessionNotFoundError):
        await box.delete_session("s")
    assert (await box.sh("test -e /workspace/f || echo fresh")).stdout == "fresh"


async def test_use_is_recorded(box):
    created = await box.new()
    await box.sh("true")
    assert when((await box.get_session("s"))["last_used_at"]) > when(created["last_used_at"])


CONFLICTS = {
    "network": ("on", "off"), "image": ("other/image:1", None), "host_path": ("HERE", "None"),
    "host_path_mode": ("ro", "rw"), "mount_path": ("/data", "/workspace"), "persistent": (True, "False"),
    "cpus": (2.0, "1.0"), "memory_mb": (256, "512"), "pids_limit": (64, "128"),
    "read_only_rootfs": (False, "True"), "workspace_quota_mb": (10, "0"),
}


@pytest.mark.parametrize("field", CONFLICTS)
async def test_what_differs_conflicts(box, shared, field):
    wanted, shown = CONFLICTS[field]
    await box.new()
    change = {field: shared if wanted == "HERE" else wanted}
    shown = shown if shown is not None else models.BoxSpec(session_id="s").image
    text = f"Box session {box.physical()} already exists with {field}={shown}"
    for call in (box.sh("true", **change), box.new(**change)):
        with pytest.raises(errors.BoxSessionConflictError) as caught:
            await call
        assert str(caught.value) == f"BoxSessionConflictError: {text}"
    assert (await box.sh("echo still here")).stdout == "still here"


async def test_the_first_difference_is_told(box):
    await box.new()
    with pytest.raises(errors.BoxSessionConflictError, match="already exists with cpus=1.0"):
        await box.new(pids_limit=5, cpus=3, workspace_quota_mb=3)


async def test_a_host_directory_is_shared(box, shared):
    pathlib.Path(shared, "in").write_text("from outside")
    result = await box.sh("cat /workspace/in; echo from inside > /workspace/out", host_path=shared)
    assert (result.stdout, result.exit_code) == ("from outside", 0)
    assert pathlib.Path(shared, "out").read_text() == "from inside\n"
    assert (await box.get_session("s"))["host_path"] == shared


@pytest.mark.needs("boxd")
async def test_a_read_only_directory_cannot_be_written(box, shared):
    pathlib.Path(shared, "in").write_text("text")
    result = await box.sh("cat /workspace/in; touch /workspace/new", host_path=shared, host_path_mode="ro")
    assert result.stdout == "text" and result.exit_code != 0
    assert os.listdir(shared) == ["in"]


async def test_a_host_directory_is_made_when_it_is_missing(box, shared):
    """LangBot asks for <default workspace>/tenants/<namespace> and lets the runtime make it."""
    path = f"{shared}/tenants/ws-new"
    assert (await box.sh("echo hi > /workspace/f", host_path=path)).exit_code == 0
    assert pathlib.Path(path, "f").read_text() == "hi\n"


@pytest.mark.needs("boxd")
async def test_another_mount_path(box, shared):
    result = await box.sh("pwd; echo hi > f", host_path=shared, mount_path="/data")
    assert result.stdout == "/data"
    assert pathlib.Path(shared, "f").exists()


@pytest.mark.needs("boxd")
async def test_mode_none_mounts_nothing(box, shared):
    await box.sh("echo hi > /workspace/f", host_path=shared, host_path_mode="none")
    assert os.listdir(shared) == []


@pytest.mark.parametrize("path", ["/etc", "/etc/ssl", "/proc", "/dev", "/root", "/run/docker.sock"])
async def test_blocked_host_paths(box, path):
    with pytest.raises(errors.BoxValidationError, match=f"host_path {path} is blocked for security"):
        await box.sh("true", host_path=path)


async def test_a_link_does_not_hide_a_blocked_path(box, shared):
    os.symlink("/etc", f"{shared}/link")
    with pytest.raises(errors.BoxError):
        await box.sh("true", host_path=f"{shared}/link")


def mount(host, inside, mode="ro"):
    return {"host_path": host, "mount_path": inside, "mode": mode}


@pytest.mark.needs("boxd")
async def test_extra_mounts(box, shared):
    for name in ("one", "two"):
        pathlib.Path(shared, name).mkdir(mode=0o777)
        pathlib.Path(shared, name).chmod(0o777)
        pathlib.Path(shared, name, "SKILL.md").write_text(name)
    result = await box.sh(
        "cat .skills/one/SKILL.md .skills/two/SKILL.md; touch .skills/one/x || echo ' ro'; touch .skills/two/x",
        extra_mounts=[mount(f"{shared}/one", "/workspace/.skills/one"),
                      mount(f"{shared}/two", "/workspace/.skills/two", "rw")])
    assert result.stdout == "onetwo ro"
    assert sorted(os.listdir(f"{shared}/two")) == ["SKILL.md", "x"]


@pytest.mark.needs("boxd", "skill_name")
async def test_other_extra_mounts_are_seen_at_once(box, shared):
    """A skill that is installed, or removed, changes the mounts of a session that runs."""
    for name in ("one", "two"):
        pathlib.Path(shared, name).mkdir(mode=0o755)
    one, two = (mount(f"{shared}/{name}", f"/workspace/.skills/{name}") for name in ("one", "two"))
    look = "ls /workspace/.skills 2>/dev/null | sort | tr '\\n' ' '"
    for mounts, seen in (([one], "one"), ([one, two], "one two"), ([two, one], "one two"), ([two], "two")):
        assert (await box.sh(look, extra_mounts=mounts)).stdout == seen
    assert len(await box.get_sessions()) == 1


@pytest.mark.needs("boxd", "artifacts")
async def test_other_extra_mounts_are_a_conflict(box, shared):
    """Since 0.7.13: the session stays as it is, with all that runs and lies in it."""
    for name in ("one", "two"):
        pathlib.Path(shared, name).mkdir(mode=0o755)
    one, two = (mount(f"{shared}/{name}", f"/workspace/.skills/{name}") for name in ("one", "two"))
    await box.sh("echo kept > /tmp/mine", extra_mounts=[one])
    await box.start("cat")
    for mounts in ([one, two], [two], []):
        with pytest.raises(errors.BoxSessionConflictError, match="The existing session was preserved"):
            await box.sh("true", extra_mounts=mounts)
    assert (await box.sh("cat /tmp/mine", extra_mounts=[one])).stdout == "kept"
    assert (await box.get_managed_process("s")).status == models.BoxManagedProcessStatus.RUNNING


@pytest.mark.needs("boxd", "tenancy")
async def test_mounts_of_mode_none_and_their_order_change_nothing(box, shared):
    pathlib.Path(shared, "one").mkdir()
    one, none = mount(f"{shared}/one", "/workspace/one"), mount(f"{shared}/one", "/workspace/none", "none")
    first = await box.new(extra_mounts=[one])
    second = await box.new(extra_mounts=[none, one, one])
    assert first["backend_session_id"] == second["backend_session_id"]


@pytest.mark.needs("boxd")
async def test_blocked_extra_mounts(box):
    with pytest.raises(errors.BoxValidationError, match="is blocked for security"):
        await box.sh("true", extra_mounts=[mount("/etc", "/workspace/etc")])


def publish(shared, name, **files):
    """A tree, with the manifest and the digest that the release itself makes of it."""
    from langbot_plugin.artifact import build_tree_manifest
    tree = pathlib.Path(shared, name)
    tree.mkdir()
    for file, content in files.items():
        (tree / file).write_text(content)
    digest, manifest = build_tree_manifest(str(tree), max_files=2048, max_total_bytes=1 << 28)
    pathlib.Path(shared, f"{name}.json").write_text(json.dumps(manifest))
    inside = f"/opt/langbot-artifacts/{digest.removeprefix('sha256:')}"
    return inside, {**mount(str(tree), inside), "content_digest": digest, "manifest_path": f"{shared}/{name}.json"}


@pytest.mark.needs("artifacts", "boxd")
async def test_artifacts_are_added_to_a_session_that_lives(box, shared):
    """What the newest releases make of skills: read-only trees below a fixed directory, named by their digest."""
    (one, first), (two, second) = publish(shared, "one", f="1"), publish(shared, "two", f="2", g="ü")
    await box.sh("echo kept > /tmp/export")
    await box.start("sleep", "1000")
    assert (await box.sh(f"cat {one}/f; touch {one}/g || echo ' ro'", extra_mounts=[first])).stdout == "1 ro"
    result = await box.sh(f"cat {one}/f {two}/f {two}/g /tmp/export", extra_mounts=[first, second])
    assert result.stdout == "12ükept"
    assert (await box.get_managed_process("s")).status.value == "running"


@pytest.mark.needs("artifacts", "boxd")
async def test_artifacts_with_another_content_are_refused(box, shared):
    _, changed = publish(shared, "one", f="1")
    pathlib.Path(shared, "one", "f").write_text("2")
    with pytest.raises(errors.BoxError, match="Immutable artifact preparation failed: Artifact source changed: f"):
        await box.sh("true", extra_mounts=[changed])


@pytest.mark.needs("capacity")
async def test_there_is_a_limit_of_sessions(box):
    await box.configure(limits={"max_sessions": 1})
    try:
        await box.new("a")
        with pytest.raises(errors.BoxCapacityExceededError, match=r"Box session capacity reached \(1\)"):
            await box.new("b")
        await box.new("a")
        await box.delete_session("a")
        await box.new("b")
    finally:
        await box.configure(limits={"max_sessions": 64})


@pytest.mark.needs("tenancy")
async def test_ids_are_cleaned(box):
    assert (await box.sh("echo hi", "a b/c")).session_id == "a-b-c"
    assert [s["session_id"] for s in await box.get_sessions()] == ["a-b-c"]
    assert (await box.get_session("a b/c"))["session_id"] == "a-b-c"
    await box.delete_session("a b/c")
    assert await box.get_sessions() == []


@pytest.mark.needs("tenancy")
async def test_an_id_of_which_nothing_is_left(box):
    with pytest.raises(errors.BoxError, match="Box session_id must contain a valid character") as caught:
        await box.sh("true", "世界")
    assert (type(caught.value) is errors.BoxValidationError) == ("artifacts" in features())


async def test_any_id_a_template_can_make(box):
    """The first protocol passes ids on as they are."""
    for name in ("person_123", "group_-100.5", "query_42", "x" * 120, "mcp-shared-0123456789ab"):
        assert (await box.sh("echo hi", name)).session_id == name


async def test_status_counts(box):
    status = await box.get_status()
    assert status["backend"]["available"] is True and status["backend"]["name"]
    assert (status["active_sessions"], status["session_ttl_sec"]) == (0, 300)
    await box.new("a")
    await box.new("b")
    await box.start("sleep", "1000", session_id="a")
    status = await box.get_status()
    assert status["active_sessions"] == 2
    if not UPSTREAM:  # counts a field that does not exist
        assert status["managed_processes"] == 1


@pytest.mark.needs("tenancy")
async def test_status_tells_the_limits(box):
    assert {k: v for k, v in (await box.get_status())["limits"].items() if k != "completed_process_retention_sec"} == {
        "max_sessions": 64, "max_managed_processes": 64, "max_completed_processes": 256,
        "max_admission_records": 100000, "max_rpc_file_bytes": 20971520}


@pytest.mark.needs("storage")
async def test_status_tells_the_capacity(box):
    await box.new()
    assert (await box.get_status())["capacity"] == {"limit": 64, "used": 1, "remaining": 63}


@pytest.mark.needs("storage")
async def test_storage_is_measured(box):
    tenant = box.server.work / "default" / "tenants" / box.physical().split("-g1-")[0]
    tenant.mkdir(parents=True)
    for directory in (tenant.parent, tenant):
        directory.chmod(0o777)
    (tenant / "f").write_bytes(b"x" * 5000)
    await box.sh("head -c 100000 /dev/zero > /workspace/f")
    report = await box.get_storage_analysis()
    found = {d["key"]: d for d in report["directories"]}
    assert {"workspace", "mcp", "inbox", "outbox", "session_workspaces", "session_caches", "session_temp"} <= set(found)
    workspace = found["workspace"]
    assert {k: workspace[k] for k in ("kind", "exists", "size_bytes", "file_count", "error_count", "scope")} == {
        "kind": "root", "exists": True, "size_bytes": 5000, "file_count": 1, "error_count": 0, "scope": "runtime_host"}
    assert workspace["path"] == str(tenant)
    assert (found["mcp"]["kind"], found["mcp"]["parent_key"], found["mcp"]["exists"]) == ("detail", "workspace", False)
    inside = found["session_workspaces"]
    assert (inside["kind"], inside["scope"], inside["exists"]) == ("root", "sandbox_sessions", True)
    if not UPSTREAM:  # the directories of the sandbox are not there on the host
        assert 100000 <= inside["size_bytes"] < 1 << 20 and inside["file_count"] >= 1
    assert report["size_bytes"] == sum(d["size_bytes"] for d in report["directories"] if d["kind"] == "root")
    assert (report["active_sessions"], report["managed_processes"]) == (1, 0)


async def test_a_persistent_session_says_so(box):
    assert (await box.new(persistent=True))["persistent"] is True


@pytest.mark.needs("boxd")
async def test_the_session_is_a_sandbox(box):
    """Not what isolation is tested by; only that the native backend is what answered."""
    with tempfile.NamedTemporaryFile(dir="/tmp") as outside:
        assert (await box.sh(f"test -e {outside.name} || echo away")).stdout == "away"
    assert (await box.sh("cat /sys/class/net/*/address /proc/net/route 2>/dev/null | grep -c :")).stdout in ("0", "1")
