# SPDX-License-Identifier: Apache-2.0
"""Directories of the host in a session: what may be mounted, how, and what is refused (F19, L02, section 6.4)."""

import os
import pathlib
import shutil
import subprocess
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


@pytest.fixture
def roots():
    """What LangBot as root makes: a directory that only root may enter, with a file that only root may read."""
    if os.geteuid() != 0:
        pytest.skip("needs root, who owns them")
    made = pathlib.Path(tempfile.mkdtemp(prefix="box-mount-"))
    (made / "inner").mkdir(mode=0o700)
    (made / "inner" / "attachment").write_text("from the host\n")
    (made / "inner" / "attachment").chmod(0o600)
    (made / "single").write_text("one file\n")
    (made / "single").chmod(0o600)
    yield made / "inner"
    shutil.rmtree(made)


@pytest.mark.parametrize("root", ["read-only root", "writable root"])
def test_what_roots_0600_is_can_be_used_inside_and_stays_roots(box, roots, root):
    """Who owns a host directory is the session's user inside, on every backend."""
    sid = box.new(host_path=str(roots), read_only_rootfs=root == "read-only root",
                  extra_mounts=[{"host_path": str(roots.parent / "single"), "mount_path": "/mnt/single", "mode": "ro"}])
    r = box.sh(sid, "cat attachment /mnt/single; echo more >> attachment; echo made > made; mkdir -m 0700 dir; "
                    "echo deep > dir/f; mv made moved; ls; [ -O attachment ] && echo owner")
    assert r["stdout"] == "from the host\none file\nattachment\ndir\nmoved\nowner\n" and r["stderr"] == "", r
    assert (roots / "attachment").read_text() == "from the host\nmore\n"
    for name in ("attachment", "moved", "dir", "dir/f"):
        made = (roots / name).stat()
        assert (made.st_uid, made.st_gid) == (0, 0), name
    if box.engine:
        receipt = box.receipt(sid)
        assert receipt["mount_owners"] == {"mapped": True}
        assert receipt["uid"] >= 2000000000 or root == "writable root"


def test_directories_of_several_owners_are_all_the_sessions(box, shared, roots):
    (shared / "theirs").write_text("theirs\n")
    (shared / "theirs").chmod(0o600)
    os.chown(shared / "theirs", 4321, 4321)
    sid = box.new(host_path=str(roots), extra_mounts=[{"host_path": str(shared), "mount_path": "/data", "mode": "rw"}])
    r = box.sh(sid, "cat attachment /data/theirs; touch new /data/new")
    assert r["stdout"] == "from the host\ntheirs\n" and r["exit_code"] == 0, r
    assert (roots / "new").stat().st_uid == 0 and (shared / "new").stat().st_uid == 4321


def test_a_workspace_may_be_a_mount_of_its_own(box, shared):
    """A volume or a tmpfs below an allowed directory; what is mounted below it does not come along."""
    if os.geteuid() != 0:
        pytest.skip("needs root, who mounts")
    volume = shared / "volume"
    volume.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", "volume", str(volume)], check=True)
    try:
        (volume / "under").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=777", "nested", str(volume / "under")], check=True)
        (volume / "under" / "secret").write_text("x")
        (volume / "f").write_text("given\n")
        (volume / "f").chmod(0o600)
        sid = box.new(host_path=str(volume))
        assert box.sh(sid, "cat f; ls under; echo inside > made")["stdout"] == "given\n"
        assert (volume / "made").read_text() == "inside\n" and (volume / "made").stat().st_uid == 0
        box.rm(sid)
    finally:
        subprocess.run(["umount", "--recursive", "--lazy", str(volume)], check=True)


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
