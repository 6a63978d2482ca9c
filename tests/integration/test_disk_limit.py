# SPDX-License-Identifier: Apache-2.0
"""A session that asked for no quota has a limit all the same: what it keeps on the host's disk is counted, and what
runs in it is ended with the reason. The session stays, so that its files can be removed."""

import pathlib
import shutil
import subprocess

import pytest
from boxlib import ApiError, Boxd
from hostlib import mount_dir, need, until
from policylib import Governed

LIMIT = 32 << 20
TOLD = "disk limit exceeded: used="

# Each writes until it is stopped, but never more than eight times the limit.
WRITERS = {
    "files": "for i in $(seq 64); do head -c 4M /dev/zero > /workspace/$i || exit 1; done; sleep 600",
    "home": "for i in $(seq 64); do head -c 4M /dev/zero > $HOME/$i || exit 1; done; sleep 600",
    "preallocated": "for i in $(seq 64); do : > /workspace/$i; fallocate -n -l 4M /workspace/$i || exit 1; done; sleep 600",
    "many": "cd /workspace; for i in $(seq 40); do mkdir $i; touch $i/$(seq -s ' '$i/ 100); done; "
            "head -c 20M /dev/zero > big; sleep 600",
    "unlinked": "exec python3 -c 'import os, time\nfds = []\nfor i in range(64):\n"
                "    fds.append(os.open(\"/workspace\", os.O_TMPFILE | os.O_RDWR))\n"
                "    os.write(fds[-1], bytes(4 << 20))\ntime.sleep(600)'",
}


@pytest.fixture(scope="module")
def daemon():
    d = Governed("box: {limits: {session_disk_mb: 32}}")
    yield d
    d.close()


@pytest.fixture
def session(daemon, request):
    name = request.node.name.split("_")[-1].replace("[", "-").strip("]")
    api = daemon.client()
    api.new(name)
    yield api, name
    try:
        api.rm(name)
    except ApiError as error:
        assert error.status == 404
    api.close()


@pytest.mark.parametrize("how", WRITERS)
def test_command_is_ended_at_the_limit(session, how):
    api, name = session
    assert "counted" in api.receipt(name)["limits"]["disk_bytes"]["reason"]
    api.sh(name, "echo kept > /tmp/mark")
    said = api.sh(name, WRITERS[how], timeout_sec=300)
    assert said["outcome"] == "quota_exceeded" and said["error"].startswith(TOLD), said
    assert f"limit={LIMIT} bytes" in said["error"]
    # The session can look, remove and go on.
    assert until(lambda: api.sh(name, "cat /tmp/mark; rm -rf /workspace/* $HOME/*")["stdout"], what="a command") == "kept\n"
    assert api.sh(name, "echo on")["stdout"] == "on\n"


def test_managed_process_is_ended_with_the_reason(session):
    api, name = session
    api.call("POST", f"/v1/sessions/{name}/processes",
             {"command": "sh", "process_id": "writer", "args": ["-c", WRITERS["files"]]})

    def info():
        return api.call("GET", f"/v1/sessions/{name}/processes/writer")
    until(lambda: info()["status"] == "exited", what="the end of the process", seconds=120)
    assert TOLD in info()["reason"], info()


def test_what_goes_on_growing_is_removed(session):
    api, name = session
    grow = "i=$(ls /workspace | wc -l); while :; do i=$((i+1)); head -c 4M /dev/zero > /workspace/$i; done"

    def strike():
        """One more command that only adds; 404 in the end."""
        try:
            api.sh(name, f"ulimit -f 100000; {grow}", timeout_sec=120)
        except ApiError as error:
            return error.status in (404, 409, 500, 502) or str(error)
        return False
    assert until(strike, what="the end of the session", seconds=300) is True
    until(lambda: name not in [s["session_id"] for s in api.ps()], what="that it is gone")


def test_sparse_file_counts_what_was_written_to_it(daemon, session):
    api, name = session
    api.new("sparse")
    api.call("POST", "/v1/sessions/sparse/processes",
             {"command": "sh", "process_id": "p", "args": ["-c", "truncate -s 10G /workspace/map; cat"]})
    try:
        # By the time another session is ended, this one was looked at, too.
        assert api.sh(name, WRITERS["files"], timeout_sec=300)["outcome"] == "quota_exceeded"
        assert api.call("GET", "/v1/sessions/sparse/processes/p")["status"] == "running"
    finally:
        api.rm("sparse")


def test_session_with_a_quota_has_the_wall_of_the_kernel_alone(daemon, session):
    api, name = session
    api.new("walled", workspace_quota_mb=64)
    api.call("POST", "/v1/sessions/walled/processes",
             {"command": "sh", "process_id": "p", "args": ["-c", "head -c 48M /dev/zero > /workspace/file; cat"]})
    try:
        # When others are ended for less, it was looked at, too, if it ever is.
        assert api.sh(name, WRITERS["files"], timeout_sec=300)["outcome"] == "quota_exceeded"
        assert api.call("GET", "/v1/sessions/walled/processes/p")["status"] == "running"
    finally:
        api.rm("walled")


def test_who_writes_into_the_reserve_of_the_host_is_ended():
    """On a disk of 256 MiB, of which a twentieth is the host's: the session has no limit that it could reach."""
    need("unshare", "mount", "mkfs.ext4")
    top = mount_dir("box-reserve-")
    image, state = top / "image", top / "state"
    state.mkdir()
    with open(image, "wb") as f:
        f.truncate(256 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    script = f"mount -o loop {image} {state} && chmod 755 {state} && exec \"$@\""
    try:
        daemon = Boxd(state=state, prefix=["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"])
        try:
            daemon.sock = pathlib.Path(f"/proc/{daemon.process.pid}/root{daemon.sock}")  # its disk is in its namespace
            api = daemon.client()
            api.new("greedy")
            said = api.sh("greedy", "i=0; while :; do i=$((i+1)); head -c 1M /dev/zero > /workspace/$i; sleep 0.05; done",
                          timeout_sec=300)
            assert said["outcome"] == "quota_exceeded" and "nearly full" in said["error"], said
            assert "box.limits.disk_reserve_mb" in said["error"]
            api.rm("greedy")
        finally:
            daemon.close()
    finally:
        shutil.rmtree(top, ignore_errors=True)
