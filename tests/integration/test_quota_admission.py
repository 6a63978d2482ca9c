# SPDX-License-Identifier: Apache-2.0
"""A quota is a promise: it is given only while the host's disk can keep it."""

import os
import pathlib

import pytest

from boxlib import ApiError, Boxd, Client

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a disk quota needs boxd to be started by root")


@pytest.fixture
def small(tmp_path):
    """A boxd whose state lies on a disk of 96 MiB, in a mount namespace of its own."""
    state = tmp_path / "state"
    state.mkdir()
    tmp_path.chmod(0o755)
    script = f'mount -t tmpfs -o size=96m,mode=755 none {state} && exec "$@"'
    daemon = Boxd(state=state, prefix=["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"])
    daemon.seen = Client(pathlib.Path(f"/proc/{daemon.pid}/root{daemon.sock}"))
    yield daemon
    daemon.seen.close()
    daemon.close()


def test_check_F06_a_quota_the_disk_cannot_keep_is_refused(small):
    with pytest.raises(ApiError) as refused:
        small.seen.new("big", workspace_quota_mb=200)
    assert refused.value.status == 429 and "space" in refused.value.detail, refused.value
    assert small.seen.ps() == []
    small.seen.new("fits", workspace_quota_mb=32)
    with pytest.raises(ApiError):
        small.seen.new("too-many", workspace_quota_mb=80)  # fits alone, but not beside the first


def test_check_F06_a_promised_quota_is_there_when_the_disk_is_full(small):
    small.seen.new("a", workspace_quota_mb=32)
    state = pathlib.Path(f"/proc/{small.pid}/root{small.state}")
    try:
        with open(state / "filler", "wb") as filler:
            while True:
                filler.write(b"x" * (1 << 20))
                filler.flush()
    except OSError:
        pass
    r = small.seen.sh("a", "head -c 24M /dev/zero > /workspace/f && sync -f /workspace/f && stat -c %s /workspace/f")
    assert r["stdout"].strip() == str(24 << 20), r
    (state / "filler").unlink()


def test_check_F07_without_a_provider_a_quota_is_refused_by_its_type(tmp_path):
    """No loop devices in sight."""
    state = tmp_path / "state"
    state.mkdir()
    tmp_path.chmod(0o755)
    script = 'mount -t tmpfs none /dev/shm && mknod /dev/shm/null c 1 9 && mount --bind /dev/shm/null /dev/loop-control ' \
             '&& exec "$@"'
    daemon = Boxd(state=state, prefix=["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"])
    client = daemon.client()
    try:
        with pytest.raises(ApiError) as refused:
            client.new("q", workspace_quota_mb=16)
        assert refused.value.code in ("unsupported", "system"), refused.value
        assert client.ps() == []
        row = [c for c in client.doctor()["checks"] if c["id"] == "disk-quota"][0]
        assert row["status"] == "missing" and row["remedy"], row
        client.new("plain")
        assert client.x("plain", "true")["exit_code"] == 0
    finally:
        client.close()
        daemon.close()
