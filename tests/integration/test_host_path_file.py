# SPDX-License-Identifier: Apache-2.0
"""A workspace is a directory: a host_path that names a file is refused when the session is asked for, on both fronts;
as a further mount a file is as good as a directory."""

import shutil

import pytest
from boxlib import ApiError, Boxd
from hostlib import mount_dir
from lbwire import Rpc, RpcError

SAID = ("host_path must be a directory, and '{}' is a file; name the directory that holds it, or mount it by "
        "extra_mounts")


@pytest.fixture(scope="module")
def place():
    top = mount_dir("box-hostfile-")
    (top / "notes.txt").write_text("hello\n")
    (top / "hidden").mkdir()
    (top / "hidden/notes.txt").write_text("hidden\n")
    (top / "hidden").chmod(0o700)  # boxd may not look; whoever mounts may
    yield top
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture(scope="module")
def daemon(place):
    d = Boxd(env={"BOX_ALLOWED_MOUNT_ROOTS": str(place)})
    yield d
    d.close()


@pytest.mark.parametrize("where", ["notes.txt", "hidden/notes.txt"])
@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_http_refuses_a_file_at_once(daemon, place, where, mode):
    api = daemon.client()
    with pytest.raises(ApiError) as caught:
        api.new("s", host_path=str(place / where), host_path_mode=mode)
    assert (caught.value.status, caught.value.code, caught.value.detail) == (422, "invalid", SAID.format(place / where))
    assert api.ps() == []


@pytest.mark.parametrize("action", ["box_create_session", "box_exec"])
def test_the_langbot_wire_refuses_a_file_at_once(daemon, place, action):
    with Rpc(daemon.sock) as rpc:
        rpc.call("box_init", {}, ctx=None)
        with pytest.raises(RpcError) as caught:
            rpc.call(action, {"session_id": "s", "cmd": "true", "host_path": str(place / "notes.txt")})
        assert SAID.format(place / "notes.txt") in str(caught.value) and "BoxValidationError" in str(caught.value)
        assert rpc.call("box_get_sessions")["sessions"] == []
        # What is not mounted is not looked at.
        rpc.call("box_create_session", {"session_id": "t", "host_path": str(place / "notes.txt"),
                                        "host_path_mode": "none"})
        rpc.call("box_delete_session", {"session_id": "t"})


def test_further_mounts_may_be_files(daemon, place):
    api = daemon.client()
    mount = {"host_path": str(place / "notes.txt"), "mount_path": "/data/notes.txt", "mode": "ro"}
    api.new("f", host_path=str(place), extra_mounts=[mount])
    assert api.sh("f", "cat /data/notes.txt notes.txt")["stdout"] == "hello\nhello\n"
    api.rm("f")
