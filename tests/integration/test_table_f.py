# SPDX-License-Identifier: Apache-2.0
"""Table F, disk quota, of the catalogue of checks.

| check | what | tests |
|---|---|---|
| F01 | no way past the limit | test_quota.py, test_bombs_disk.py |
| F02 | inodes | test_quota.py, test_bombs_disk.py |
| F03 | every place that can be written | test_bombs_disk.py |
| F04 | out of the account: project ids, flags, renames | test_quota.py |
| F05 | work goes on at 100 % | test_bombs_disk.py |
| F06 | the host's disk is full | test_quota.py, test_quota_admission.py |
| F07 | no provider | test_quota.py, test_quota_admission.py |
| F08 | another size for a session that is there | here |
| F09 | many at once | test_quota.py |
| F10 | kill -9 between device, mount and record | here; at any system call: test_faults.py |
| F11 | accounts agree | test_quota.py |
| F12 | very many files | test_quota.py |

F08 asks for more than there is: no front can change the size of a disk that is in use, neither up nor down. What has to
hold until one can is here: whoever asks is told, by every front, and neither the promise nor a byte changes.
"""

import os
import signal

import pytest
from boxlib import ApiError, Boxd, box
from faultlib import Strace
from hostlib import SCALE, adopt_orphans, alive, assert_no_leak, need, reap_orphans, until
from lbwire import Rpc, RpcError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a disk quota needs boxd to be started by root")

MIB = 1 << 20
QUOTA = 24


def kept(api, name):
    """What the session has, promised and used."""
    receipt = api.receipt(name)
    assert receipt["limits"]["disk_bytes"] == {"enforced": True, "value": QUOTA * MIB}
    disk = receipt["disk"]
    return disk["bytes_total"], disk["inodes_total"], api.sh(name, "sha256sum < /workspace/f")["stdout"]


@pytest.mark.parametrize("asked", [4 * QUOTA, QUOTA + 1, QUOTA - 1, 4, 0])
def test_check_F08_another_size_is_refused_and_changes_nothing(boxd_shared, api, session, asked):
    name = session(workspace_quota_mb=QUOTA)
    assert api.sh(name, "head -c 10M /dev/urandom > /workspace/f")["exit_code"] == 0
    before = kept(api, name)
    with pytest.raises(ApiError) as caught:
        api.new(name, workspace_quota_mb=asked)
    assert (caught.value.status, caught.value.code) == (409, "conflict"), caught.value
    assert "workspace_quota_mb" in caught.value.detail and str(QUOTA) in caught.value.detail
    done = box("run", "--session", name, "--quota-mb", str(asked), "--", "true", sock=boxd_shared.sock)
    assert done.returncode == 125 and "workspace_quota_mb" in done.stderr, done
    assert kept(api, name) == before
    # The same size is the session itself, and who names none does not ask for another.
    assert api.new(name, workspace_quota_mb=QUOTA)["session_id"] == name
    assert api.new(name)["session_id"] == name and kept(api, name) == before


def test_check_F08_another_size_is_refused_on_the_langbot_wire(boxd):
    with Rpc(boxd.sock) as rpc:
        assert rpc.exec("s", "echo kept > f; stat -f -c %b /workspace", workspace_quota_mb=QUOTA)["exit_code"] == 0
        for asked in (2 * QUOTA, 4):
            for action in ("box_create_session", "box_exec"):
                with pytest.raises(RpcError, match="^BoxSessionConflictError: .*workspace_quota_mb"):
                    rpc.call(action, {"session_id": "s", "cmd": "true", "workspace_quota_mb": asked})
        assert rpc.exec("s", "cat f", workspace_quota_mb=QUOTA)["stdout"] == "kept"


@pytest.fixture(params=["0", ""], ids=["strict", "kept"])
def daemon(request):
    """What a killed boxd leaves goes with it, or is the next one's."""
    adopt_orphans()
    d = Boxd(env={"BOX_LINGER_SEC": request.param} if request.param else {})
    yield d
    d.stop(signal.SIGKILL)
    d.end_kept()
    d.start()  # whatever a test left, the next start removes
    d.close()
    reap_orphans()


def works_again(daemon):
    """Nothing is left of the half-made session, and its name can be had."""
    daemon.start()
    client = daemon.client()
    assert client.ps() == []
    assert_no_leak(daemon)
    client.new("victim", workspace_quota_mb=8)
    assert client.sh("victim", "echo ok > /workspace/f && cat /workspace/f")["stdout"] == "ok\n"
    client.rm("victim")
    client.close()
    assert_no_leak(daemon)


def killed_at(pid, daemon, call):
    """Makes a session while the process is killed as it enters the first call of that name."""
    client = daemon.client()
    client.new("warm-up", workspace_quota_mb=8)  # the template is there
    client.rm("warm-up")
    assert_no_leak(daemon)
    tracer = Strace(pid, "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when=1")
    with pytest.raises((ApiError, ConnectionError, OSError)) as caught:
        client.new("victim", workspace_quota_mb=8)
    assert not isinstance(caught.value, ApiError) or caught.value.status >= 500, caught.value
    client.close()
    until(lambda: not alive(pid), what=f"the death at {call}")
    assert call in tracer.stop()


# What box-priv does for a disk, in order: LOOP_CONFIGURE, fsopen, fsconfig, fsmount, move_mount, and then the sandbox.
@pytest.mark.parametrize("call", ["fallocate", "fsopen", "fsconfig", "fsmount", "move_mount", "socketpair"])
def test_check_F10_kill_of_box_priv_between_device_and_mount(daemon, call):
    need("strace")
    killed_at(daemon.priv_pid(), daemon, call)
    assert daemon.process.wait(60 * SCALE) == 1
    works_again(daemon)


# boxd hears that it is there (recvmsg), and writes its record (pwrite64).
@pytest.mark.parametrize("call", ["recvmsg", "pwrite64"])
def test_check_F10_kill_of_boxd_between_mount_and_record(daemon, call):
    need("strace")
    killed_at(daemon.pid, daemon, call)
    daemon.process.wait()
    works_again(daemon)
