# SPDX-License-Identifier: Apache-2.0
"""Podman and boxd of the same ordinary user: the socket is found, sessions are sessions, and what such an engine
cannot enforce is not claimed."""

import contextlib
import os
import pathlib
import shutil
import tempfile

import pytest
import rootlesslib
from boxlib import ApiError, Boxd
from enginelib import IMAGE
from hostlib import until
from rootlesslib import AS_USER, SUBUIDS, UID

if "podman" not in os.environ.get("BOX_TEST_BACKENDS", "podman").split(","):
    pytest.skip("not chosen", allow_module_level=True)


@pytest.fixture(scope="module")
def podman():
    why = rootlesslib.missing()
    if why is not None:
        pytest.skip(why)
    engine = rootlesslib.RootlessPodman()
    yield engine
    engine.close()


@pytest.fixture
def start(podman):
    daemons = []

    def begin(**env):
        state = tempfile.mkdtemp(prefix="box-test-")
        os.chown(state, UID, UID)
        # No word of where the engine is.
        daemons.append(Boxd("--backend", "podman", state=state, prefix=AS_USER,
                            env={"XDG_RUNTIME_DIR": str(podman.runtime_dir), "HOME": str(podman.home), **env}))
        return daemons[-1]

    yield begin
    for daemon in daemons:
        daemon.close()
        shutil.rmtree(daemon.state, ignore_errors=True)


def enforced():
    return pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists()


def host_uids(command_line):
    """The ids on the host of processes that have that command line."""
    found = []
    for proc in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (proc / "cmdline").read_bytes() == command_line.encode():
                found.append((proc / "status").read_text().split("\nUid:\t")[1].split()[0])
    return found


def test_a_session_of_an_ordinary_user(start, podman):
    daemon = start()
    api = daemon.client()
    checks = {c["id"]: c for c in api.doctor()["checks"]}
    assert checks["backend-podman"]["detail"].startswith("serves"), checks
    assert str(podman.socket) in checks["engine"]["detail"]
    assert checks["id-ranges"]["detail"].startswith("the engine maps ids") and checks["socket"]["status"] == "ok"
    if not enforced():
        assert all(checks[f"limit-{k}"]["status"] == "missing" for k in ("memory", "pids", "cpu"))
    api.new("a", image=IMAGE)
    out = api.sh("a", f"id -u; cat /proc/self/uid_map; echo kept > /workspace/file; cat /workspace/file; "
                      f"sleep {os.getpid()}.25 >/dev/null 2>&1 &")
    assert out["exit_code"] == 0, out
    lines = out["stdout"].splitlines()
    assert lines[0] == "1000" and lines[-1] == "kept"
    receipt = api.receipt("a")
    # box-guest's own user namespace below the engine's, where the host lets it make one.
    assert lines[1].split() in (["1000", "1000", "1"], ["0", str(UID), "1"])
    # Whose 1 is the first. The shell may have answered before its child became the program.
    until(lambda: host_uids(f"sleep\0{os.getpid()}.25\0") == [str(SUBUIDS + 999)])
    assert receipt["host_ids"] == "of the engine's own range" and receipt["runtime"] == "runc"
    assert int(receipt["payload"]["cap_bounding"], 16) == 0 and receipt["payload"]["no_new_privs"] == "1"
    if not enforced():
        assert not any(receipt["limits"][k]["enforced"] for k in ("memory_bytes", "pids"))
    api.rm("a")
    assert podman.containers() == []


def test_a_host_directory_stays_its_owners(start):
    daemon = start()
    api = daemon.client()
    shared = pathlib.Path(tempfile.mkdtemp(prefix="box-share-"))
    os.chown(shared, UID, UID)
    try:
        api.new("a", image=IMAGE, host_path=str(shared))
        assert api.sh("a", "echo theirs > /workspace/file")["exit_code"] == 0
        assert (shared / "file").stat().st_uid == UID
        api.rm("a")
    finally:
        shutil.rmtree(shared)


@pytest.mark.skipif(enforced(), reason="on cgroup v2 limits can be had")
def test_limits_that_must_be_and_cannot_be_are_refused(start):
    with pytest.raises(ApiError) as caught:
        start(BOX_REQUIRE_LIMITS="true").client().new("a", image=IMAGE)
    assert caught.value.code == "unsupported" and "podman enforces no limits" in caught.value.detail
