# SPDX-License-Identifier: Apache-2.0
"""Directories of the host inside a session: who owns what on both sides (H09), modes, nesting."""

import os
import pathlib
import shutil
import stat
import subprocess
import tempfile

import pytest
from boxlib import ApiError, Boxd

OWNERS = [(0, 0), (1234, 4321), (1000, 1000), (65534, 65534)]


def mount_base():
    """Where directories can be made that a session can mount: tmpfs maps ids from Linux 6.3 on."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", tempfile.gettempdir()], capture_output=True, text=True).stdout.strip()
    release = tuple(int(n) for n in os.uname().release.split("-")[0].split(".")[:2])
    return "/var/tmp" if kind == "tmpfs" and release < (6, 3) else None


@pytest.fixture(scope="module")
def place():
    path = pathlib.Path(tempfile.mkdtemp(prefix="box-mounts-", dir=mount_base()))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def daemon(place):
    d = Boxd(env={"BOX_ALLOWED_MOUNT_ROOTS": str(place)})
    yield d
    d.close()


@pytest.fixture
def api(daemon):
    client = daemon.client()
    yield client
    for s in client.ps():
        client.rm(s["session_id"])
    client.close()


@pytest.fixture
def host(place):
    """host(uid, gid) makes a directory that belongs to them."""
    made = []

    def make(uid=1234, gid=4321):
        d = pathlib.Path(tempfile.mkdtemp(dir=place))
        d.chmod(0o755)
        (d / "old").write_text("from the host\n")
        (d / "sub").mkdir()
        for p in (d, d / "old", d / "sub"):
            os.chown(p, uid, gid)
        made.append(d)
        return d

    yield make
    for d in made:
        shutil.rmtree(d, ignore_errors=True)


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("root", [{}, {"read_only_rootfs": False}], ids=["read-only root", "writable root"])
def test_check_H09_files_belong_to_the_owner_of_the_directory(api, host, owner, root):
    d = host(*owner)
    api.new("s", host_path=str(d), host_path_mode="rw", **root)
    r = api.sh("s", """
        cat old; echo more >> old; echo new > new; mkdir dir; echo x > dir/inner; ln -s old link; ln old hard; mkfifo fifo
        python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'
        mv sub renamed; stat -c %u:%g . old new dir/inner link fifo sock renamed | sort -u; id -u""")
    uid = 1000 if not root else 0
    assert (r["exit_code"], r["stdout"]) == (0, f"from the host\n{uid}:{uid}\n{uid}\n"), r
    names = {p.name: p.lstat() for p in d.rglob("*")}
    assert set(names) == {"old", "new", "dir", "inner", "link", "hard", "fifo", "sock", "renamed"}
    assert {(st.st_uid, st.st_gid) for st in names.values()} == {owner}
    assert (d / "old").read_text() == "from the host\nmore\n" and (d / "old").stat().st_nlink == 2


def test_check_H09_no_file_gains_power_on_the_host(api, host):
    """Set-id bits, device nodes and file capabilities cannot be made, and those that are there mean nothing."""
    d = host(0, 0)
    shutil.copy("/usr/bin/id", d / "suid")
    os.chmod(d / "suid", 0o6755)
    shutil.copy("/usr/bin/id", d / "plain")
    os.chown(d / "plain", 0, 0)
    os.chmod(d / "plain", 0o755)
    api.new("s", host_path=str(d), host_path_mode="rw")
    r = api.sh("s", """
        ./suid -u; chmod 4755 plain; chmod 2755 plain; chmod 6777 .; cp -p suid copy; install -m 4755 plain inst
        mknod null c 1 3; mknod sda b 8 0
        python3 - <<'END'
import os
for what in (lambda: os.setxattr("plain", "security.capability", b"\\1\\0\\0\\2" + b"\\xff" * 16),
             lambda: os.setxattr("plain", "trusted.x", b"1"), lambda: os.chmod("plain", 0o4755), lambda: os.chown("plain", 0, 0),
             lambda: os.close(os.open("made", os.O_CREAT | os.O_WRONLY, 0o6777)), lambda: os.mkdir("madedir", 0o6777)):
    try: what()
    except OSError: pass
END
        true""")
    assert r["stdout"] == "1000\n", r
    for p in [d, *d.rglob("*")]:
        st = p.lstat()
        if p.name != "suid":
            assert not st.st_mode & 0o6000, (p, oct(st.st_mode))
        assert stat.S_IFMT(st.st_mode) in (stat.S_IFREG, stat.S_IFDIR)
        assert "security.capability" not in os.listxattr(p), p


def test_check_H09_what_belongs_to_others_stays_theirs(api, host):
    d = host(1234, 4321)
    (d / "theirs").write_text("private")
    os.chown(d / "theirs", 5555, 5555)
    os.chmod(d / "theirs", 0o600)
    (d / "readable").write_text("public")
    os.chown(d / "readable", 0, 0)
    api.new("s", host_path=str(d), host_path_mode="rw")
    r = api.sh("s", "stat -c %u theirs readable; cat theirs; cat readable; echo x > readable; chmod 666 readable; chown 1000 readable; rm -f theirs; true")
    assert r["stdout"] == "65534\n65534\npublic"
    assert (d / "readable").read_text() == "public" and (d / "readable").stat().st_uid == 0
    assert (d / "theirs").read_text() == "private"  # an id that has no name inside: not even its owner's directory helps


def test_modes(api, host):
    d = host()
    api.new("ro", host_path=str(d), host_path_mode="ro")
    r = api.sh("ro", "cat old; touch x; echo y > old; rm old; mkdir z; ls")
    assert r["stdout"] == "from the host\nold\nsub\n" and r["stderr"].count("Read-only file system") == 4
    api.new("rw", host_path=str(d), host_path_mode="rw")
    api.sh("rw", "echo y > shared")
    assert api.sh("ro", "cat shared")["stdout"] == "y\n"  # one directory, two sessions
    api.new("none", host_path=str(d), host_path_mode="none")
    assert api.sh("none", "ls -A; echo private > f; cat f")["stdout"] == "private\n"
    assert sorted(p.name for p in d.iterdir()) == ["old", "shared", "sub"]
    for name in ("ro", "rw", "none"):
        api.rm(name)
    assert sorted(p.name for p in d.iterdir()) == ["old", "shared", "sub"], "a directory of the host outlives its sessions"


def test_a_mount_of_mode_none_is_not_looked_at(api):
    api.new("s", host_path="/no/such/path", host_path_mode="none",
            extra_mounts=[{"host_path": "/no/such", "mount_path": "/mnt/x", "mode": "none"}])
    assert api.sh("s", "ls /mnt")["stdout"] == ""


def test_extra_mounts_beside_below_and_within_each_other(api, host):
    a, b, c = host(1234, 4321), host(0, 0), host(1000, 1000)
    file = c / "one.conf"
    file.write_text("a single file\n")
    api.new("s", host_path=str(a), host_path_mode="rw", extra_mounts=[
        {"host_path": str(b), "mount_path": "/workspace/sub", "mode": "ro"},
        {"host_path": str(c), "mount_path": "/data/deep/place", "mode": "rw"},
        {"host_path": str(c / "sub"), "mount_path": "/data/deep/place/sub", "mode": "ro"},
        {"host_path": str(file), "mount_path": "/mnt/one.conf", "mode": "ro"},
    ])
    r = api.sh("s", """
        cat /workspace/sub/old /mnt/one.conf; echo x > /workspace/new; touch /workspace/sub/no; echo y > /data/deep/place/new
        touch /data/deep/place/sub/no; echo z > /mnt/one.conf""")
    assert r["stdout"] == "from the host\na single file\n" and r["stderr"].count("Read-only file system") == 3, r
    assert (a / "new").stat().st_uid == 1234 and (c / "new").stat().st_uid == 1000
    assert not list(b.rglob("no")) and not list(c.rglob("no")) and file.read_text() == "a single file\n"


def test_many_mounts(api, host):
    dirs = [host(1000 + n % 6, 1000 + n % 6) for n in range(40)]
    api.new("s", extra_mounts=[{"host_path": str(d), "mount_path": f"/mnt/m{n}", "mode": "rw"} for n, d in enumerate(dirs)])
    r = api.sh("s", "for n in $(seq 0 39); do echo $n > /mnt/m$n/mine || exit 1; done; ls /mnt | wc -l")
    assert (r["exit_code"], r["stdout"]) == (0, "40\n"), r
    assert [((d / "mine").stat().st_uid, (d / "mine").read_text()) for d in dirs] == \
        [(1000 + n % 6, f"{n}\n") for n in range(40)]
    with pytest.raises(ApiError) as e:
        api.new("t", extra_mounts=[{"host_path": str(host(2000 + n)), "mount_path": f"/mnt/m{n}", "mode": "rw"} for n in range(9)])
    assert e.value.code == "limit" and "owners" in e.value.detail


def test_a_file_that_is_replaced_on_the_host_is_seen(api, host):
    d = host()
    api.new("s", host_path=str(d), host_path_mode="ro")
    (d / "later").write_text("written later\n")
    os.replace(d / "later", d / "old")
    assert api.sh("s", "cat old")["stdout"] == "written later\n"


def test_a_quota_covers_what_is_private_beside_the_directory(api, host):
    d = host()
    api.new("s", host_path=str(d), host_path_mode="rw", workspace_quota_mb=16)
    r = api.sh("s", "head -c 9000000 /dev/zero > a; head -c 7000000 /dev/zero > b; ls | wc -l; dd if=/dev/zero of=/home/box/f bs=1M")
    assert r["stdout"] == "4\n" and r["outcome"] == "quota_exceeded"
    assert (d / "b").stat().st_size == 7000000
