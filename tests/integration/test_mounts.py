# SPDX-License-Identifier: Apache-2.0
"""Host paths and names: checks H01 to H08 and H10 of the catalogue.

K03 (hostile root file systems of images) does not apply yet: there is no image store, and the only image is a
read-only view of the host's own directories, which box-priv names itself. What can be said is said in
test_check_K03_only_the_host_image_is_ever_mounted.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from boxlib import ApiError, Boxd
from hostlib import SCALE, assert_no_leak, built, mount_dir, need
from lbwire import Rpc

RACE_TRIES = int(os.environ.get("BOX_RACE_TRIES", "60000"))


class World:
    """A directory that may be mounted, one that may not, and a daemon that knows the difference."""

    def __init__(self, *prefix):
        self.top = mount_dir("box-mounts-")
        self.allowed, self.outside = self.top / "allowed", self.top / "outside"
        for base, word in ((self.allowed, "inside"), (self.outside, "SECRET")):
            (base / "a/b/c").mkdir(parents=True)
            (base / "a/b/c/marker").write_text(word)
            (base / "marker").write_text(word)
        (self.allowed / "sub").mkdir()
        (self.allowed / "file").write_text("text")
        (self.allowed / "out").symlink_to(self.outside)
        (self.allowed / "proc-root").symlink_to("/proc/self/root")
        (self.allowed / "a.x").symlink_to(self.outside / "a")
        (self.allowed / "a/b.x").symlink_to(self.outside / "a/b")
        (self.allowed / "a/b/c.x").symlink_to(self.outside / "a/b/c")
        self.daemon = Boxd(env={"BOX_ALLOWED_MOUNT_ROOTS": str(self.allowed)}, prefix=prefix)
        self.api = self.daemon.client()

    def close(self):
        self.daemon.close()
        shutil.rmtree(self.top, ignore_errors=True)


@pytest.fixture(scope="module")
def world():
    w = World()
    yield w
    w.close()


@pytest.fixture(autouse=True)
def no_session_survives(request):
    yield
    if "world" in request.fixturenames:
        w = request.getfixturevalue("world")
        for s in w.api.ps():
            w.api.rm(s["session_id"])


# The same source through every field that names one.
FIELDS = {
    "host_path": lambda path, mode: {"host_path": str(path), "host_path_mode": mode},
    "extra_mounts": lambda path, mode: {"extra_mounts": [{"host_path": str(path), "mount_path": "/mnt/x",
                                                          "mode": mode}]},
}


def refused(api, spec, *codes):
    """The create fails with one of these codes and leaves no session."""
    with pytest.raises(ApiError) as caught:
        api.new("refused", **spec)
    error = caught.value
    assert error.code in codes and 400 <= error.status < 500, error
    assert error.detail and not error.detail.startswith("sandbox step"), error
    assert all(s["session_id"] != "refused" for s in api.ps())
    return error


SYSTEM = ("/", "/etc", "/etc/shadow", "/proc", "/proc/1/root", "/sys", "/dev", "/run", "/var/run/docker.sock",
          "/run/docker.sock", "/root", "/home", "/usr", "/var", "/boot", "/tmp", "/srv")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_check_H01_check_H02_system_directories_are_refused(world, api, field, mode):
    for path in SYSTEM:
        refused(world.api, FIELDS[field](path, mode), "denied", "not_found")
        refused(api, FIELDS[field](path, mode), "denied", "not_found")  # with the built-in list


@pytest.mark.parametrize("field", FIELDS)
def test_check_H01_check_H02_the_state_of_boxd_is_refused(boxd_shared, api, sid, field):
    """It lies in a directory that may be mounted (/tmp), and is still out of reach, from above and from inside."""
    state = boxd_shared.state
    assert api.sh(sid, "echo tenant > /workspace/secret")["exit_code"] == 0
    inside = [p for p in state.glob("**/*") if p.is_dir() or p.is_file()]
    assert any(p.name == "secret" for p in inside) and any(p.name == "etc" for p in inside)
    top = {p for p in inside if len(p.relative_to(state).parts) < 3 or p.name == "secret"}
    top = {p for p in top if "spare-" not in str(p)}  # the next session takes one of these
    for path in (state, state.parent, *sorted(top), state / "boxd.sock"):
        refused(api, FIELDS[field](path, "rw"), "denied")


def test_check_H01_a_list_cannot_allow_what_nobody_may_mount():
    with pytest.raises(RuntimeError, match="whole file system"):
        Boxd(env={"BOX_ALLOWED_MOUNT_ROOTS": "/tmp,/"})
    daemon = Boxd(env={"BOX_ALLOWED_MOUNT_ROOTS": "/etc,/usr"})
    try:
        client = daemon.client()
        refused(client, {"host_path": "/etc"}, "denied")
        refused(client, {"host_path": "/etc/ssl"}, "denied")
        client.new("lib", host_path="/usr/lib", host_path_mode="ro")  # named by the operator
        assert client.sh("lib", "ls /workspace")["stdout"]
    finally:
        daemon.close()


def odd_spellings(world):
    a = str(world.allowed)
    return [
        a + "/../outside", a + "/sub/../../outside", a + "/./sub", a + "//sub", "//" + a.lstrip("/"), a + "/sub/..",
        a + "/" + "x/" * 2040 + "y", a + "/" + "n" * 300, a + "/sub\0/x", "~", "~root", "$HOME", "relative", "./x", "",
        "file:///etc", a.replace("/", "\uff0f"), "\uff0fetc", a + "\u200b", a + "\n", "C:\\Windows", "\\\\server\\x",
        a + "/sub\u0000",
    ]


@pytest.mark.parametrize("field", FIELDS)
def test_check_H03_odd_spellings_are_refused(world, field):
    for path in odd_spellings(world):
        error = refused(world.api, FIELDS[field](path, "rw"), "invalid", "denied", "not_found")
        assert "SECRET" not in error.detail


def test_check_H03_a_trailing_slash_is_the_directory_itself(world):
    world.api.new("slash", host_path=f"{world.allowed}/sub///")
    assert world.api.sh("slash", "echo x > /workspace/made")["exit_code"] == 0
    assert (world.allowed / "sub/made").read_text() == "x\n"
    (world.allowed / "sub/made").unlink()


@pytest.mark.parametrize("field", FIELDS)
def test_check_H04_links_do_not_lead_out(world, field):
    a = world.allowed
    for path in (a / "out", a / "out/a", a / "out/marker", a / "a.x", a / "a.x/b/c", a / "a/b.x/c", a / "a/b/c.x",
                 a / "proc-root", a / "proc-root/etc", a / "proc-root/root"):
        error = refused(world.api, FIELDS[field](path, "rw"), "denied")
        # Those that lead to a place nobody may have are told so.
        assert "symbolic link" in error.detail or "blocked for security" in error.detail


def test_check_H04_another_mount_below_an_allowed_directory_is_not_allowed_by_it():
    need("unshare", "mount")
    script = 'for d in bound sub; do mkdir -p "$A/$d"; mount --bind "$O" "$A/$d" || exit 1; done; exec "$@"'
    w = None
    # The mounts exist in the daemon's own mount namespace only.
    top = mount_dir("box-bind-")
    try:
        for name in ("allowed/sub", "allowed/bound", "outside"):
            (top / name).mkdir(parents=True)
        (top / "outside/secret").write_text("SECRET")
        daemon = Boxd(env={"BOX_ALLOWED_MOUNT_ROOTS": str(top / "allowed")},
                      prefix=["env", f"A={top}/allowed", f"O={top}/outside", "unshare", "-m", "--propagation",
                              "private", "sh", "-c", script, "sh"])
        try:
            w = daemon.client()
            error = refused(w, {"host_path": str(top / "allowed/bound")}, "denied")
            assert "mount point" in error.detail
            # Seen from above, what is mounted below is not there either, and stays as it was.
            w.new("above", host_path=str(top / "allowed"))
            r = w.sh("above", "ls -A /workspace/sub; echo x > /workspace/sub/new")
            assert "secret" not in r["stdout"]
            assert os.listdir(top / "outside") == ["secret"]
        finally:
            daemon.close()
    finally:
        shutil.rmtree(top, ignore_errors=True)


STORAGE = """
mount -t tmpfs -o mode=755 volume "$A/volume" || exit 1
for d in deep/er deep/etc under other; do mkdir -p "$A/volume/$d" || exit 1; done
mount -t tmpfs -o mode=755 named "$A/named" && mkdir "$A/named/sub" || exit 1
mount -t tmpfs -o mode=755 nested "$A/volume/under" && touch "$A/volume/under/secret" || exit 1
mount -t proc proc "$A/proc" && mount -t sysfs sysfs "$A/sys" && mount --bind /dev "$A/dev" || exit 1
mount --bind "$A/volume/other" "$A/volume/deep/er" && mount --bind /etc "$A/volume/deep/etc" || exit 1
exec "$@"
"""


def test_a_workspace_may_be_a_mount_of_its_own_below_an_allowed_directory():
    """Volumes and tmpfs are how people deploy. What only gives another name to a directory elsewhere, or is no
    storage, is refused as before; and what is mounted below the directory that was asked for does not come along."""
    need("unshare", "mount")
    top = mount_dir("box-volume-")
    names = ("volume", "named", "proc", "sys", "dev", "plain")
    try:
        for name in names:
            (top / "allowed" / name).mkdir(parents=True)
        daemon = Boxd(env={"BOX_ALLOWED_MOUNT_ROOTS": f"{top}/allowed,{top}/allowed/named"},
                      prefix=["env", f"A={top}/allowed", "unshare", "-m", "--propagation", "private", "sh", "-c",
                              STORAGE, "sh"])
        try:
            api = daemon.client()
            for i, path in enumerate(("volume", "volume/deep", "named", "named/sub")):
                api.new(f"s{i}", host_path=f"{top}/allowed/{path}")
                r = api.sh(f"s{i}", "echo inside > made && cat made; ls under")
                assert r["stdout"] == "inside\n", (path, r)
                inside = pathlib.Path(f"/proc/{daemon.process.pid}/root{top}/allowed/{path}/made")
                assert inside.read_text() == "inside\n" and inside.stat().st_uid == 0
                assert not (top / "allowed" / path / "made").exists(), "the mount was meant, not what it covers"
            for path in ("proc", "proc/self", "sys", "dev", "dev/shm", "volume/deep/er", "volume/deep/etc",
                         "volume/deep/etc/ssl"):
                error = refused(api, {"host_path": f"{top}/allowed/{path}"}, "denied")
                assert "mount point" in error.detail or "blocked" in error.detail, (path, error)
        finally:
            daemon.close()
    finally:
        shutil.rmtree(top, ignore_errors=True)


def test_check_H05_a_swapped_path_never_leads_out_of_the_code_that_resolves_it(world):
    """The resolver of box-priv alone: this many tries need no sandbox. BOX_RACE_TRIES=1000000 for the long one."""
    program = built("integration/swap_race")
    settle(world)
    out = subprocess.run([program, "try", str(world.allowed), str(RACE_TRIES)], text=True, capture_output=True,
                         timeout=max(120, RACE_TRIES / 500) * SCALE)
    found = {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", out.stdout)}
    assert out.returncode == 0 and found["escapes"] == 0, out
    assert found["tries"] == RACE_TRIES and min(found["mounted"], found["refused"]) > 0, found


@pytest.mark.vm
def test_check_H05_a_swapped_path_never_leads_out_of_a_session(world):
    """While creates and execs run: each session shows the inside or does not come to be."""
    settle(world)
    swapper = subprocess.Popen([built("integration/swap_race"), "swap", str(world.allowed)], stdout=subprocess.PIPE)
    source = str(world.allowed / "a/b/c")
    made = tries = 0
    try:
        swapper.stdout.readline()
        world.api.new("steady", host_path=str(world.allowed / "sub"))
        for tries in range(1, 401):
            try:
                world.api.new("racing", host_path=source, host_path_mode="ro")
            except ApiError as error:
                assert error.code in ("denied", "not_found"), error
            else:
                made += 1
                for _ in range(3):  # a mount is not resolved again
                    assert world.api.sh("racing", "cat /workspace/marker")["stdout"] == "inside"
                world.api.rm("racing")
            if made >= 20 and tries >= 100:
                break
        assert swapper.poll() is None
    finally:
        swapper.kill()
        swapper.wait()
        swapper.stdout.close()
        settle(world)
    assert made > 0, f"not one of {tries} creates hit the moment in which the path was whole"


def settle(world):
    """The attack may have stopped at any exchange."""
    d = world.allowed
    for name in ("a", "b", "c"):
        if (d / name).is_symlink():
            os.rename(d / name, d / "tmp")
            os.rename(d / (name + ".x"), d / name)
            os.rename(d / "tmp", d / (name + ".x"))
        d = d / name


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_check_H06_a_missing_source_is_not_made(world, field, mode):
    before = sorted(world.allowed.glob("**/*"))
    for path in (world.allowed / "missing", world.allowed / "missing/deep/er", world.allowed / "file/below"):
        refused(world.api, FIELDS[field](path, mode), "not_found")
    assert sorted(world.allowed.glob("**/*")) == before
    assert_no_leak(world.daemon)


@pytest.mark.parametrize("target", ["/", "/proc", "/proc/self", "/sys", "/dev", "/dev/null", "/dev/shm", "/usr",
                                    "/usr/bin", "/usr/local/x", "/etc", "/etc/passwd", "/bin", "/bin/sh", "/lib/x",
                                    "/run", "/run/x", "/boot"])
def test_check_H07_a_mount_cannot_cover_what_is_ours(world, target):
    a = str(world.allowed / "sub")
    refused(world.api, {"extra_mounts": [{"host_path": a, "mount_path": target}]}, "denied", "invalid")
    refused(world.api, {"host_path": a, "mount_path": target}, "denied", "invalid")
    refused(world.api, {"mount_path": target}, "denied", "invalid")


@pytest.mark.parametrize("target", ["../x", "x", "", "/mnt/../etc", "/mnt/./x", "/mnt//x", "/mnt/x/..", "/..", "//",
                                    "/mnt/\0x", "/mnt/" + "n" * 300, "/mnt/" + "d/" * 2100 + "x"])
def test_check_H07_odd_targets_are_refused(world, target):
    a = str(world.allowed / "sub")
    refused(world.api, {"extra_mounts": [{"host_path": a, "mount_path": target}]}, "denied", "invalid", "limit")
    if target:
        refused(world.api, {"host_path": a, "mount_path": target, "workdir": target}, "denied", "invalid", "limit")


def test_check_H07_links_of_the_image_do_not_lead_a_mount_elsewhere(world):
    a = str(world.allowed / "sub")
    refused(world.api, {"extra_mounts": [{"host_path": a, "mount_path": "/var/tmp/x"}]}, "denied", "invalid")
    # A link in a mount of the caller's own, to a place of ours.
    (world.allowed / "sub/link").symlink_to("/usr")
    try:
        refused(world.api, {"host_path": a, "extra_mounts": [{"host_path": a, "mount_path": "/workspace/link/x"}]},
                "denied", "invalid")
    finally:
        (world.allowed / "sub/link").unlink()


def test_check_H07_one_place_cannot_be_taken_twice(world):
    a = str(world.allowed / "sub")
    twice = [{"host_path": a, "mount_path": "/data"}, {"host_path": str(world.allowed / "a"), "mount_path": "/data"}]
    error = refused(world.api, {"extra_mounts": twice}, "invalid")
    assert "/data" in error.detail
    refused(world.api, {"host_path": a, "extra_mounts": [{"host_path": a, "mount_path": "/workspace"}]}, "invalid")


@pytest.mark.vm
def test_check_H07_nested_mounts_show_in_any_order(world):
    outer = {"host_path": str(world.allowed), "mount_path": "/data", "mode": "ro"}
    inner = {"host_path": str(world.allowed / "a/b/c"), "mount_path": "/data/sub", "mode": "rw"}
    for name, mounts in (("down", [outer, inner]), ("up", [inner, outer])):
        world.api.new(name, extra_mounts=mounts)
        r = world.api.sh(name, "cat /data/marker /data/sub/marker; touch /data/x; echo $?; ls /data/sub")
        assert r["stdout"].startswith("insideinside") and "1" in r["stdout"], r
    # A place that the outer directory does not have is not made in it.
    before = sorted(os.listdir(world.allowed))
    inner = dict(inner, mount_path="/data/none/deeper")
    refused_nested(world, [outer, inner])
    refused_nested(world, [inner, outer])
    refused_nested(world, [dict(outer, mode="rw"), inner])
    assert sorted(os.listdir(world.allowed)) == before


def refused_nested(world, mounts):
    with pytest.raises(ApiError) as caught:
        world.api.new("refused", extra_mounts=mounts)
    assert caught.value.code == "not_found" and "does not exist inside the mount" in caught.value.detail


def test_check_H07_a_workspace_may_hold_the_home(world):
    world.api.new("home", mount_path="/home")
    assert world.api.sh("home", "touch /home/a ~/b && ls /home ~")["exit_code"] == 0


READ_ONLY = r"""
import ctypes, errno, mmap, os, sys
top = sys.argv[1]
def must_fail(what, f, *allowed):
    try:
        f()
    except OSError as e:
        assert e.errno in allowed, (what, e)
    else:
        raise SystemExit(f"{what} was possible")
RO = (errno.EROFS, errno.EACCES, errno.EPERM)
j = lambda *p: os.path.join(top, *p)
must_fail("write", lambda: open(j("marker"), "r+"), *RO)
must_fail("truncate", lambda: os.truncate(j("marker"), 0), *RO)
must_fail("create", lambda: open(j("new"), "x"), *RO)
must_fail("mkdir", lambda: os.mkdir(j("newdir")), *RO)
must_fail("unlink", lambda: os.unlink(j("marker")), *RO)
must_fail("rename", lambda: os.rename(j("marker"), j("marker2")), *RO)
must_fail("link", lambda: os.link(j("marker"), j("marker2")), *RO)
must_fail("symlink", lambda: os.symlink("x", j("marker2")), *RO)
must_fail("chmod", lambda: os.chmod(j("marker"), 0o777), *RO)
must_fail("chown", lambda: os.chown(j("marker"), os.getuid(), -1), *RO)
must_fail("utime", lambda: os.utime(j("marker")), *RO)
must_fail("xattr", lambda: os.setxattr(j("marker"), "user.x", b"1"), *RO, errno.EOPNOTSUPP)
must_fail("O_TMPFILE", lambda: os.open(top, os.O_TMPFILE | os.O_RDWR), *RO, errno.EISDIR, errno.EOPNOTSUPP)
fd = os.open(j("marker"), os.O_RDONLY)
must_fail("shared writable mapping", lambda: mmap.mmap(fd, 1, mmap.MAP_SHARED, mmap.PROT_WRITE), *RO)
must_fail("reopen", lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR), *RO)
libc = ctypes.CDLL(None, use_errno=True)
def remount():
    if libc.mount(None, top.encode(), None, 32, None) < 0:
        raise OSError(ctypes.get_errno(), "mount")
must_fail("remount", remount, errno.EPERM, errno.ENOSYS)
print("sealed")
"""


@pytest.mark.vm
@pytest.mark.parametrize("owner", [0, 12345])
def test_check_H08_read_only_means_read_only(world, owner):
    d = world.allowed / "a/b/c"
    os.chown(d, owner, owner)
    os.chown(d / "marker", owner, owner)
    before = (d / "marker").stat()
    world.api.new("ro", host_path=str(d), host_path_mode="ro",
                  extra_mounts=[{"host_path": str(d), "mount_path": "/mnt/x", "mode": "ro"},
                                {"host_path": str(d / "marker"), "mount_path": "/mnt/one", "mode": "ro"}])
    for top in ("/workspace", "/mnt/x"):
        r = world.api.x("ro", "python3", "-c", READ_ONLY, top)
        assert r["stdout"] == "sealed\n", r
    assert world.api.sh("ro", "echo x > /mnt/one")["exit_code"] != 0
    after = (d / "marker").stat()
    assert (after.st_mtime_ns, after.st_mode, after.st_uid) == (before.st_mtime_ns, before.st_mode, before.st_uid)
    assert (d / "marker").read_text() == "inside" and sorted(os.listdir(d)) == ["marker"]


def test_check_H08_mounts_below_a_read_only_one_are_no_way_to_write():
    """A submount of the host is either not there or read-only too."""
    need("unshare", "mount")
    top = mount_dir("box-sub-")
    try:
        (top / "allowed/below").mkdir(parents=True)
        daemon = Boxd(env={"BOX_ALLOWED_MOUNT_ROOTS": str(top / "allowed")},
                      prefix=["env", f"A={top}/allowed", "unshare", "-m", "--propagation", "private", "sh", "-c",
                              'mount -t tmpfs -o mode=777 t "$A/below" && exec "$@"', "sh"])
        try:
            client = daemon.client()
            client.new("ro", host_path=str(top / "allowed"), host_path_mode="ro")
            r = client.sh("ro", "touch /workspace/below/x && echo written")
            assert r["stdout"] == "" and r["exit_code"] != 0, r
        finally:
            daemon.close()
    finally:
        shutil.rmtree(top, ignore_errors=True)


BAD_IDS = ["../../x", "a/b", "/etc", ".", "..", "", " ", "a b", "a\n", "\na", "a\0b", "%2e%2e", "a%2fb", "-x", "_x",
           "a.b", "a:b", "é", "e\u0301", "\uff41", "a" * 65, "x" * (1 << 20), "a\x1b[31m", '"', "\\", "\u202e"]


def test_check_H10_ids_are_refused_never_repaired(api):
    for bad in BAD_IDS:
        with pytest.raises(ApiError) as caught:
            api.new(bad)
        assert caught.value.code == "invalid" and caught.value.status == 422, (bad, caught.value)
    assert not any(s["session_id"] in [b.strip() for b in BAD_IDS] for s in api.ps())


@pytest.mark.parametrize("bad", [5, 1.5, True, None, [], {}, ["a"]])
def test_check_H10_ids_are_text(api, bad):
    with pytest.raises(ApiError) as caught:
        api.call("POST", "/v1/sessions", {"session_id": bad})
    assert caught.value.code == "invalid" and "session_id" in caught.value.detail


def test_check_H10_names_in_paths_find_only_themselves(api, session):
    name = session()
    for path in ("%2e%2e", "..%2f..%2fx", name + "%00", name + "%20", name.upper(), "%2e", name + "%2f"):
        for method, suffix in (("GET", ""), ("DELETE", ""), ("POST", "/exec")):
            with pytest.raises(ApiError) as caught:
                api.call(method, f"/v1/sessions/{path}{suffix}", {"cmd": "true"} if suffix else None)
            assert caught.value.status in (400, 404), caught.value
    assert api.get(name)["session_id"] == name


def test_check_H10_two_names_never_meet(api):
    names = ["case-twin", "Case-Twin", "CASE-TWIN", "case_twin", "case-twin-", "casetwin"]
    try:
        for n in names:
            api.new(n)
            assert api.sh(n, f"echo {n} > /workspace/who")["exit_code"] == 0
        for n in names:
            assert api.sh(n, "cat /workspace/who")["stdout"] == n + "\n"
    finally:
        for n in names:
            api.rm(n)


def test_check_K03_only_the_host_image_is_ever_mounted(boxd_shared, api, session):
    with pytest.raises(ApiError) as caught:
        session(image="docker.io/evil/../../image:latest")
    assert caught.value.status == 404 and "native has no images, only the host's own files" in caught.value.detail
    with Rpc(boxd_shared.sock) as rpc:  # LangBot's clients name an image with every request
        rpc.exec("k03", "true", image="docker.io/evil/../../image:latest")
        (name,) = [s["session_id"] for s in api.ps() if "k03" in s["session_id"]]
        try:
            receipt = api.receipt(name)
            assert (receipt["image"], receipt["image_substituted"]) == ("host", True)
            sources = {line.split()[3] for line in api.sh(name, "cat /proc/self/mountinfo")["stdout"].splitlines()}
            assert not any("evil" in s for s in sources), json.dumps(sorted(sources))
        finally:
            api.rm(name)


def test_without_the_right_to_change_the_root_mounts_go_on():
    """A container may have all that sandboxes need, and not CAP_SYS_CHROOT."""
    need("setpriv")
    top = mount_dir("box-caps-")
    try:
        (top / "work").mkdir()
        daemon = Boxd(env={"BOX_ALLOWED_MOUNT_ROOTS": str(top)},
                      prefix=["setpriv", "--bounding-set=-sys_chroot", "--inh-caps=-sys_chroot", "--"])
        try:
            api = daemon.client()
            api.new("s", host_path=f"{top}/work")
            assert api.sh("s", "echo inside > made && cat made")["stdout"] == "inside\n"
        finally:
            daemon.close()
    finally:
        shutil.rmtree(top, ignore_errors=True)


def test_an_allowed_directory_that_is_another_one_by_now_is_told():
    """Not what it was when boxd started, and not quietly what lies below a mount."""
    need("unshare", "nsenter", "mount")
    top = mount_dir("box-anew-")
    try:
        for name in ("anew", "over"):
            (top / name / "work").mkdir(parents=True)
        daemon = Boxd(env={"BOX_ALLOWED_MOUNT_ROOTS": f"{top}/anew,{top}/over"},
                      prefix=["unshare", "-m", "--propagation", "private"])
        try:
            api = daemon.client()
            api.new("before", host_path=f"{top}/anew/work")
            (top / "anew").rename(top / "was")
            (top / "anew/work").mkdir(parents=True)
            subprocess.run(["nsenter", "-t", str(daemon.process.pid), "-m", "--", "sh", "-c",
                            f"mount -t tmpfs over {top}/over && mkdir {top}/over/work"], check=True)
            for name in ("anew", "over"):
                with pytest.raises(ApiError, match="another directory than when boxd started") as caught:
                    api.new("after", host_path=f"{top}/{name}/work")
                assert f"{top}/{name}" in caught.value.detail and "start boxd again" in caught.value.detail
            assert api.sh("before", "touch f")["exit_code"] == 0 and (top / "was" / "work" / "f").exists()
        finally:
            daemon.close()
    finally:
        shutil.rmtree(top, ignore_errors=True)


@pytest.mark.rootless
def test_without_root_a_workspace_may_be_a_mount_of_its_own_too():
    """In a mount namespace of an ordinary user. There the kernel does not leave behind what is mounted below."""
    need("unshare", "mount")
    top = mount_dir("box-volume-")
    try:
        (top / "volume").mkdir()
        script = 'mount -t tmpfs -o mode=755 volume "$A/volume" && mkdir "$A/volume/sub" && exec "$@"'
        daemon = Boxd(env={"BOX_ALLOWED_MOUNT_ROOTS": str(top)},
                      prefix=["env", f"A={top}", "unshare", "-r", "-m", "--propagation", "private", "sh", "-c", script,
                              "sh"])
        try:
            api = daemon.client()
            api.new("s", host_path=f"{top}/volume/sub")
            assert api.sh("s", "echo inside > made && cat made")["stdout"] == "inside\n"
            assert not (top / "volume/sub").exists(), "the mount was meant, not what it covers"
        finally:
            daemon.close()
    finally:
        shutil.rmtree(top, ignore_errors=True)
