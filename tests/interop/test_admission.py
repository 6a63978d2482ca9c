# SPDX-License-Identifier: Apache-2.0
"""Admission: a daemon that runs nothing without a grant."""

import datetime

import pytest
from conftest import run
from langbot_client import UPSTREAM, Box, Link, Server, errors, models

pytestmark = pytest.mark.needs("admission")


def later(seconds=200):
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)


def grant(box, revision=1, **changes):
    return models.SandboxAdmissionGrant(**{
        "instance_uuid": box.server.instance, "workspace_uuid": box.workspace, "execution_generation": box.generation,
        "entitlement_revision": revision, "expires_at": later(), "max_sessions": 1, "max_managed_processes": 0,
        **changes})


def revocation(box, revision):
    return models.SandboxAdmissionRevocation(
        instance_uuid=box.server.instance, workspace_uuid=box.workspace, entitlement_revision=revision)


@pytest.fixture(scope="module", params=["ws", "stdio"])
def managed(request, scratch):
    server = Server({"backend": "local", "admission": {"required": True, "max_timeout_sec": 20, "memory_mb": 128,
                                                       "readiness_cache_sec": 0}},
                    env={"LANGBOT_BOX_ALLOW_UNSAFE_SOFT_STORAGE_LIMITS": "1"})
    if request.param == "ws":
        server.start()
    link = Link(server, request.param)
    run(link.open())
    run(link.client.init(server.config))
    yield link
    run(link.close())
    server.close()


@pytest.fixture
def box(managed):
    workspace = Box(managed)
    yield workspace
    run(managed.client.revoke_sandbox_admission_grant(revocation(workspace, 10**6)))


@pytest.fixture
def ready(managed):
    """Running something needs a backend whose isolation is proven on this machine."""
    info = run(managed.client.get_backend_info())
    if not info["available"]:
        failed = sorted(k for k, v in info["readiness"]["checks"].items() if not v)
        pytest.skip("managed isolation is not ready here: " + ", ".join(failed))


async def refused(call, text):
    with pytest.raises(errors.BoxAdmissionError) as caught:
        await call
    assert text in str(caught.value)


async def test_readiness_is_told(box):
    info = await box.get_backend_info()
    readiness = info["readiness"]
    assert readiness["mode"] == "grant_enforced" and info["available"] == readiness["ready"]
    assert readiness["ready"] == all(readiness["checks"].values())
    assert {"configuration", "required_backend", "workspace_mount", "backend_available", "cgroup_v2",
            "namespace_isolation", "mount_isolation", "network_isolation", "hard_workspace_quota",
            "bounded_ephemeral_storage", "inode_quota", "session_cap",
            "managed_process_cap"} <= set(readiness["checks"])
    assert readiness["checks"]["configuration"] and readiness["checks"]["workspace_mount"]
    if not UPSTREAM:
        assert info["name"] == "nsjail"
    if readiness["ready"]:
        await box.client.initialize()
    else:
        with pytest.raises(errors.BoxRuntimeUnavailableError, match="managed sandbox isolation is not ready"):
            await box.client.initialize()


@pytest.mark.needs("boxd")
async def test_the_status_of_a_workspace_tells_it_too(box):
    """Where nothing may run the runtime of 0.6.1 and later has no status to tell."""
    assert (await box.get_status())["backend"] == await box.get_backend_info()


async def test_nothing_runs_where_isolation_is_not_proven(box):
    info = await box.get_backend_info()
    if info["available"]:
        return
    await box.upsert_sandbox_admission_grant(grant(box))
    with pytest.raises(errors.BoxReadinessError, match=r"Managed sandbox isolation is not ready \(failed checks: "):
        await box.sh("true", "global")


async def test_a_grant_is_acknowledged(box):
    given = grant(box, 3)
    receipt = await box.upsert_sandbox_admission_grant(given)
    expires = receipt.pop("expires_at")
    assert receipt == {"installed": True, "workspace_uuid": box.workspace, "execution_generation": 1,
                       "entitlement_revision": 3, "max_sessions": 1, "max_managed_processes": 0}
    assert datetime.datetime.fromisoformat(expires) == given.expires_at
    receipt = await box.revoke_sandbox_admission_grant(revocation(box, 3))
    assert receipt == {"revoked": True, "workspace_uuid": box.workspace, "entitlement_revision": 3}


async def test_grants_that_are_refused(box):
    give = box.upsert_sandbox_admission_grant
    with pytest.raises(errors.BoxError,
                       match="PermissionError: Sandbox admission grant does not match the trusted instance"):
        await give(grant(box, instance_uuid="inst-other"))
    await refused(give(grant(box, expires_at=later(-1))), "Cannot install an expired sandbox admission grant")
    await refused(give(grant(box, expires_at=later(301 + 60))),
                  "Sandbox admission grant lifetime exceeds the configured maximum")
    await refused(give(grant(box, max_sessions=2)), "Sandbox admission grant exceeds the session cap")
    await refused(give(grant(box, max_managed_processes=1)), "Sandbox admission grant exceeds the managed-process cap")
    await give(grant(box, 5, execution_generation=2))
    await refused(give(grant(box, 4, execution_generation=2)), "Sandbox admission grant revision is stale")
    await refused(give(grant(box, 6, execution_generation=1)), "Sandbox admission execution generation is stale")
    await refused(give(grant(box, 5, execution_generation=2, max_sessions=0)),
                  "Sandbox admission limits changed without a new entitlement revision")
    await give(grant(box, 5, execution_generation=2, expires_at=later(10)))
    await box.revoke_sandbox_admission_grant(revocation(box, 7))
    await refused(give(grant(box, 7, execution_generation=2)), "Sandbox admission grant revision was revoked")
    await refused(box.revoke_sandbox_admission_grant(revocation(box, 6)), "Sandbox admission revocation is stale")


async def test_grants_are_validated(box):
    data = grant(box).model_dump(mode="json")
    for change in ({"entitlement_revision": 0}, {"execution_generation": "1"}, {"max_sessions": -1}, {"extra": 1},
                   {"workspace_uuid": " "}, {"expires_at": "2030-01-01T00:00:00"}):
        with pytest.raises(errors.BoxValidationError):
            await box.raw("UPSERT_SANDBOX_ADMISSION_GRANT", {**data, **change}, action_context=None)


async def test_without_a_grant_nothing_runs(box, ready):
    for call in (box.sh("true", "global"), box.new("global"), box.get_sessions(), box.get_session("global"),
                 box.start("cat", session_id="global")):
        await refused(call, "Sandbox admission grant is missing")


async def test_with_a_grant_the_policy_rules(box, ready):
    await box.upsert_sandbox_admission_grant(grant(box))
    info = await box.new("anything", memory_mb=4096, cpus=8, persistent=False, image="other")
    assert (info["session_id"], info["memory_mb"], info["cpus"], info["persistent"]) == ("global", 128, 1.0, True)
    tenant = box.server.work / "default" / "tenants" / box.physical().split("-g1-")[0]
    assert info["host_path"] == str(tenant)
    assert (await box.sh("echo hi > f; cat f", "whatever")).stdout == "hi"
    assert (tenant / "f").read_text() == "hi\n"
    assert [s["session_id"] for s in await box.get_sessions()] == ["global"]
    await refused(box.get_session("other"), "Managed sandbox session_id is runtime-owned")
    await refused(box.sh("true", network="on"), "Managed sandbox network access is disabled")
    await refused(box.sh("true", mount_path="/data"), "Managed sandbox mount_path is runtime-owned")
    await refused(box.sh("true", workdir="/tmp"), "Managed sandbox workdir must stay under /workspace")
    await refused(box.sh("true", host_path="/tmp"), "Managed sandbox host_path is runtime-owned")
    await refused(box.start("cat", session_id="global"), "Sandbox admission grant does not permit managed processes")


@pytest.mark.needs("skill_name")
async def test_directories_of_the_host_are_not_shown(box, ready):
    await box.upsert_sandbox_admission_grant(grant(box))
    mount = {"host_path": str(box.server.work), "mount_path": "/workspace/.skills/demo", "mode": "ro"}
    await refused(box.sh("true", extra_mounts=[mount]), "Managed sandbox additional host mounts are disabled")


@pytest.mark.needs("artifacts")
async def test_directories_of_the_host_may_be_shown(box, ready):
    """The newest release mounts skills itself, read-only; before it, no mount was let through."""
    await box.upsert_sandbox_admission_grant(grant(box))
    package = box.server.work / "package"
    package.mkdir(exist_ok=True)
    (package / "SKILL.md").write_text("demo")
    mount = {"host_path": str(package), "mount_path": "/workspace/.skills/demo", "mode": "ro"}
    result = await box.sh("cat .skills/demo/SKILL.md; touch .skills/demo/x || echo ' ro'", extra_mounts=[mount])
    assert result.stdout == "demo ro"
    for change in ({"mode": "rw"}, {"mount_path": "/mnt/x"}, {"host_path": "/usr/share"},
                   {"host_path": str(package / "none")}):
        await refused(box.sh("true", extra_mounts=[{**mount, **change}]), "Managed sandbox ")
    await refused(box.sh("true", extra_mounts=[mount, mount]),
                  "Managed sandbox additional mount targets must be unique")


async def test_revoking_ends_the_session(box, ready):
    await box.upsert_sandbox_admission_grant(grant(box))
    await box.sh("echo hi", "global")
    await box.revoke_sandbox_admission_grant(revocation(box, 1))
    await refused(box.get_sessions(), "Sandbox admission grant is missing")
    await box.upsert_sandbox_admission_grant(grant(box, 2))
    assert await box.get_sessions() == []


async def test_grants_of_another_generation(box, ready):
    await box.upsert_sandbox_admission_grant(grant(box, execution_generation=2))
    await refused(box.at(3).sh("true"), "Sandbox admission grant belongs to another execution generation")
    assert (await box.at(2).sh("echo hi")).stdout == "hi"


async def test_a_grant_of_no_sessions(box, ready):
    await box.upsert_sandbox_admission_grant(grant(box, max_sessions=0))
    await refused(box.sh("true"), "Sandbox admission grant does not permit sessions")


async def test_admission_cannot_be_switched_off(box):
    await box.configure(admission={"required": False})
    readiness = (await box.get_backend_info())["readiness"]
    assert readiness["ready"] is False
    assert "Sandbox admission enforcement cannot be disabled" in readiness["error"]
    await box.configure()


@pytest.mark.needs("boxd")
async def test_without_admission_grants_are_refused():
    server = Server().start()
    link = await Link(server, "ws").open()
    box = Box(link)
    for call in (box.upsert_sandbox_admission_grant(grant(box)),
                 box.revoke_sandbox_admission_grant(revocation(box, 1))):
        await refused(call, "Sandbox admission enforcement is not enabled")
    await link.close()
    server.close()
