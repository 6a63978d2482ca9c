# SPDX-License-Identifier: Apache-2.0
"""Directories of the host in a session: what may be mounted, how, and what is refused (F19, L02, section 6.4)."""

import os
import pathlib
import shutil
import tempfile

import pytest
from boxlib import ApiError

pytestmark = pytest.mark.real


@pytest.fixture
def shared():
    made = pathlib.Path(tempfile.mkdtemp(prefix="box-mount-"))
    os.chown(made, 4321, 4321)
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def test_what_is_written_there_is_on_the_host(box, shared):
    sid = box.new(host_path=str(shared))
    assert box.sh(sid, "echo inside > f && cat f")["stdout"] == "inside\n"
    assert (shared / "f").read_text() == "inside\n"
    assert (shared / "f").stat().st_uid == 4321, "it belongs to the owner of the directory"


def test_read_only_is_read_only(box, shared):
    (shared / "f").write_text("given\n")
    (shared / "f").chmod(0o666)
    shared.chmod(0o777)  # nothing else is in the way
    sid = box.new(host_path=str(shared), host_path_mode="ro")
    r = box.sh(sid, "cat f; echo x > f; touch g")
    assert r["stdout"] == "given\n" and r["stderr"].count("Read-only") == 2
    assert not (shared / "g").exists()


def test_mode_none_mounts_nothing(box, shared):
    (shared / "f").write_text("secret\n")
    sid = box.new(host_path=str(shared), host_path_mode="none", workdir="/")
    assert box.sh(sid, "cat /workspace/f", cwd="/")["exit_code"] != 0


def test_more_mounts_and_nested_ones(box, shared):
    for name in ("a", "b"):
        (shared / name).mkdir()
        os.chown(shared / name, 4321, 4321)
        (shared / name / "who").write_text(name)
    (shared / "a" / "inner").mkdir()
    sid = box.new(host_path=str(shared / "a"), extra_mounts=[
        {"host_path": str(shared / "b"), "mount_path": "/workspace/inner", "mode": "ro"},
        {"host_path": str(shared / "b"), "mount_path": "/data", "mode": "rw"},
        {"host_path": str(shared / "b"), "mount_path": "/off", "mode": "none"}])
    r = box.sh(sid, "cat /workspace/who /workspace/inner/who /data/who; echo new > /data/new; ls /off")
    assert r["stdout"] == "abb" and "off" in r["stderr"]
    assert (shared / "b" / "new").exists()


@pytest.mark.parametrize("name", ["with space", "with:colon", "with,comma", "quote'\"", "ünïcode", "back\\slash", "$x"])
def test_a_name_is_only_a_name(box, shared, name):
    (shared / name).mkdir()
    (shared / name / "f").write_text("exact\n")
    if box.name == "podman" and set(name) & set(',"'):  # it would take the name apart
        with pytest.raises(ApiError, match="podman cannot mount"):
            box.new(host_path=str(shared / name), host_path_mode="ro")
        return
    sid = box.new(host_path=str(shared / name), host_path_mode="ro")
    assert box.sh(sid, "cat f")["stdout"] == "exact\n"
    assert sorted(p.name for p in shared.iterdir()) == [name], "nothing was made on the host"


REFUSED = {
    "a blocked place": lambda d: "/etc/ssl",
    "another blocked place": lambda d: "/proc/self",
    "the whole host": lambda d: "/",
    "an ancestor of all": lambda d: "/var",
    "a link": lambda d: str(d / "link"),
    "below a link": lambda d: str(d / "link" / "x"),
    "upwards": lambda d: f"{d}/../..",
    "nothing": lambda d: str(d / "missing"),
    "a socket": lambda d: str(d / "socket"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_must_not_be_mounted_is_refused_and_nothing_is_made(box, shared, what):
    import socket
    (shared / "link").symlink_to("/etc")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(shared / "socket"))
        path = REFUSED[what](shared)
        for spec in ({"host_path": path}, {"extra_mounts": [{"host_path": path, "mount_path": "/x", "mode": "ro"}]}):
            with pytest.raises(ApiError) as caught:
                box.new(**spec)
            assert caught.value.status in (400, 403, 404, 409, 422, 500), caught.value
    assert not (shared / "missing").exists()


@pytest.mark.parametrize("target", ["/proc", "/etc/x", "/", "/dev/shm", "/usr", "/sys/fs"])
def test_reserved_places_stay_as_they_are(box, shared, target):
    with pytest.raises(ApiError):
        box.new(extra_mounts=[{"host_path": str(shared), "mount_path": target, "mode": "rw"}])


def test_a_target_inside_another_mount_is_not_made_on_the_host(box, shared):
    (shared / "a").mkdir()
    with pytest.raises(ApiError) as caught:
        box.new(host_path=str(shared), extra_mounts=[
            {"host_path": str(shared / "a"), "mount_path": "/workspace/new/deep", "mode": "ro"}])
    assert caught.value.status == 404 and not (shared / "new").exists()
