# SPDX-License-Identifier: Apache-2.0
"""LangBot's cloud mode against boxd, with the application's code: readiness, admission, tenants, hard quotas."""

import shutil

import pytest
import worlds
from hostlib import mount_dir

RELEASE = "4.11.2"
TOKEN = "a-cloud-has-a-secret-of-its-own--"


class Cloud:
    def __init__(self, **env):
        self.top = mount_dir("box-cloud-")
        # The roots of the cloud are absolute, and named to boxd; its quota is LangBot's, which measures.
        self.box = worlds.Box("native", LANGBOT_BOX_CONTROL_TOKEN=TOKEN, BOX_ALLOWED_MOUNT_ROOTS=str(self.top), **env)
        self.driver = worlds.Driver(RELEASE, self.top, f"ws://127.0.0.1:{self.box.port}", "cloud.py",
                                    BOX__ENABLED="false", LANGBOT_BOX_CONTROL_TOKEN=TOKEN)

    def close(self):
        self.driver.close()
        self.box.close()
        shutil.rmtree(self.top, ignore_errors=True)


@pytest.fixture(scope="module")
def cloud():
    made = Cloud(LANGBOT_BOX_ALLOW_UNSAFE_SOFT_STORAGE_LIMITS="1")
    try:
        made.boot = made.driver.step("cloud_boot")
        yield made
        made.driver.step("cloud_stop")
        made.driver.end()
    finally:
        made.close()


def test_langbot_finds_the_runtime_ready(cloud):
    assert cloud.boot == {"available": True, "refused": None}
    assert cloud.driver.step("cloud_readiness") == {"name": "nsjail", "mode": "grant_enforced", "ready": True}


def test_each_tenant_has_one_sandbox_of_its_own(cloud):
    seen = cloud.driver.step("cloud_tenants")
    assert [s["out"].splitlines()[0] for s in seen["both"]] == ["one", "two"]
    assert seen["again"]["out"] == "one" and seen["sessions"] == [1, 1]
    for what in ("another session", "network", "forged", "elsewhere"):
        assert "BoxAdmissionError" in seen[what], what


def test_the_policy_is_the_operators(cloud):
    assert cloud.driver.step("cloud_policy") == {
        "memory_mb": 256, "pids_limit": 64, "cpus": 1.0, "network": "off", "persistent": True, "read_only_rootfs": True,
        "workspace_quota_mb": 16}


def test_tenants_start_no_processes(cloud):
    assert "BoxAdmissionError" in cloud.driver.step("cloud_processes")


def test_a_quota_is_hard_for_its_workspace_only(cloud):
    assert cloud.driver.step("cloud_quota") == {"much": True, "then": True, "the other": {"exit": 0, "out": "fine"}}


def test_an_entitlement_that_ends_ends_the_sandbox(cloud):
    seen = cloud.driver.step("cloud_revoked")
    assert all("Entitlement" in seen[what] for what in ("without", "suspended", "rolled back")), seen
    assert seen["the other"]["out"] == "fine" and seen["back"]["out"] == "one"


def test_the_status_says_so(cloud):
    assert cloud.driver.step("cloud_status") == {"available": True, "backend": "nsjail", "tools": True}


def test_langbot_does_not_start_on_soft_limits():
    """Without storage whose limits are hard, and without being told to do without, boxd is not ready, and says so."""
    strict = Cloud()
    try:
        boot = strict.driver.step("cloud_boot")
        assert boot["available"] is False and "readiness failed" in boot["refused"]["error"]
    finally:
        strict.close()
