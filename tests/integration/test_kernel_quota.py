# SPDX-License-Identifier: Apache-2.0
"""The quota of a directory of the host is the kernel's to enforce where its file system has quotas: project quotas of
ext4 and XFS, a subvolume of Btrfs. Beyond it a write fails inside, and nothing is killed. Everywhere else the directory
is counted, as ever, and the receipt says why."""

import os
import pwd
import signal
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from boxlib import Boxd
from hostlib import SCALE, need, until
from peerlib import elsewhere
from quotalib import Disk, is_ours, project, set_project

MIB = 1 << 20
ALICE = pwd.getpwnam("www-data").pw_uid
EXT4, XFS = (pytest.param(kind, marks=pytest.mark.vm) for kind in ("ext4", "xfs"))
PROJECTS = [EXT4, "xfs"]  # the emulated machine is slow: XFS has the main tests there, ext4 all
KINDS = [*PROJECTS, "btrfs"]
MAIN = [EXT4, XFS, "btrfs"]
# One file is never larger than the quota, so it takes several.
FILL = "i=0; while [ $i -lt 8 ] && head -c 2M /dev/zero > /workspace/fill.$i; do i=$((i+1)); done 2>&1; " \
       "echo $i; sync -f /workspace"


class Daemon(Boxd):
    def __init__(self, disk, *args, more="", users=()):
        self.config = disk.top / "box.yaml"
        self.config.write_text(f"box: {{local: {{allowed_mount_roots: ['{disk.top}']}}{more}}}\n")
        env = {"BOX_ALLOWED_USERS": ",".join(map(str, users))} if users else None
        super().__init__("--config", str(self.config), *args, env=env, prefix=disk.prefix)


@pytest.fixture(scope="module")
def disks():
    made = {}

    def get(kind):
        if kind not in made:
            disk = Disk(kind)
            made[kind] = disk, Daemon(disk)
        return made[kind]
    yield get
    for disk, daemon in made.values():
        daemon.close()
        disk.close()


def words(request):
    return request.node.name.replace("_", "-").replace("[", "-").strip("]")[-28:].strip("-")


@pytest.fixture
def stage(disks, kind, request):
    """A client, the disk, and a function that makes a session on a directory with 8 MiB and returns its name."""
    disk, daemon = disks(kind)
    api, made = daemon.client(), []

    def new(path, suffix="", quota=8):
        name = words(request) + suffix
        api.new(name, host_path=path, workspace_quota_mb=quota)
        made.append(name)
        return name
    yield api, disk, new
    listed = [s["session_id"] for s in api.call("GET", "/v1/sessions")["sessions"]]
    for name in made:
        if name in listed:
            api.rm(name)
    api.close()


def held(api, name):
    return api.receipt(name)["limits"]["workspace_bytes"]


def counted(api, name):
    """Why the kernel does not enforce it."""
    limit = held(api, name)
    assert limit["enforced"] is False and limit["counted"] == 8 * MIB and "counted" in limit["reason"], limit
    return limit["reason"]


@pytest.mark.parametrize("kind", MAIN)
def test_a_write_beyond_the_limit_fails_and_the_session_lives(stage, request, kind):
    api, disk, new = stage
    base = words(request)
    name, other = new(disk.directory(f"{base}-a")), new(disk.directory(f"{base}-b"), "-o")
    limit = held(api, name)
    assert limit["enforced"] is True and limit["value"] == 8 * MIB and "of the file system" in limit["how"], limit
    assert disk.limit(f"{base}-a") == disk.limit(f"{base}-b") == 8 * MIB
    api.sh(name, "echo kept > /tmp/mark")
    said = api.sh(name, FILL)
    assert "quota" in said["stdout"].lower() or "space" in said["stdout"].lower(), said
    assert int(said["stdout"].split()[-1]) in (2, 3, 4), said
    used = sum(p.stat().st_blocks * 512 for p in (disk.seen / f"{base}-a").iterdir())
    assert 4 * MIB <= used <= 8 * MIB

    # Neither files without blocks nor files without a name get it killed: the kernel knows what they take.
    said = api.sh(name, "rm -f /workspace/fill.*; for i in 1 2 3; do truncate -s 7M /workspace/sparse.$i; done; "
                        "cat /tmp/mark; echo x > /workspace/again && cat /workspace/again")
    assert said["stdout"] == "kept\nx\n" and said["exit_code"] == 0, said
    assert api.sh(name, "echo on")["stdout"] == "on\n"
    # Its neighbour has a limit of its own.
    assert api.sh(other, "head -c 5M /dev/zero > /workspace/f && echo fits")["stdout"] == "fits\n"


@pytest.mark.parametrize("kind", KINDS)
def test_what_runs_in_the_background_is_not_ended(stage, request, kind):
    """It meets the limit and goes on: the guard between commands finds a wall of the kernel's."""
    api, disk, new = stage
    name = new(disk.directory(words(request)))
    api.sh(name, "touch /workspace/met; (while :; do head -c 1M /dev/zero >> /workspace/f$((i += 1)) || "
                 "touch /workspace/met; sleep 0.05; done) </dev/null >/dev/null 2>&1 &")
    met, begun = disk.seen / words(request) / "met", time.time()
    # Long enough for the guard to have looked: it does so a second after a command.
    until(lambda: met.stat().st_mtime > begun + 4, what="a program that goes on at its limit", seconds=90)
    assert api.sh(name, "echo on")["stdout"] == "on\n"


@pytest.mark.parametrize("kind", KINDS)
def test_many_who_look_at_once_all_find_the_wall(disks, stage, request, kind):
    """box-priv looks at what a session holds for one of them at a time; the others must not count by sizes."""
    api, disk, new = stage
    name = new(disk.directory(words(request)))
    api.sh(name, "for i in 1 2 3; do truncate -s 7M /workspace/sparse.$i; done")

    def run(_):
        client = disks(kind)[1].client()
        try:
            return client.sh(name, "sleep 2.5; echo on")["stdout"]
        finally:
            client.close()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, range(16))) == ["on\n"] * 16


@pytest.mark.parametrize("kind", MAIN)
def test_what_lay_there_counts_and_the_end_of_the_session_removes_the_limit(disks, stage, request, kind):
    api, disk, new = stage
    daemon = disks(kind)[1]
    base = words(request)
    path = disk.directory(base)
    api.rm(new(path, "-0"))  # what is made ahead is made
    before = daemon.leaks()
    (disk.seen / base / "deep" / "er").mkdir(parents=True)
    for where in ("a", "deep/b", "deep/er/c"):
        (disk.seen / base / where).write_bytes(bytes(2 * MIB))
    os.sync()
    name = new(path)
    limit = held(api, name)
    assert limit["enforced"] and 6 * MIB <= limit["used"] <= 7 * MIB, limit
    assert int(api.sh(name, FILL)["stdout"].split()[-1]) <= 1
    api.rm(name)
    assert disk.limit(base) == 0 and not (daemon.state / "quotas").exists()
    until(lambda: daemon.leaks() == before, what="an end without a trace")
    (disk.seen / base / "of the host").write_bytes(bytes(16 * MIB))
    # The next session finds what the last has left, and takes it over.
    (disk.seen / base / "of the host").unlink()
    name = new(path, "-2")
    assert held(api, name)["enforced"] and disk.limit(base) == 8 * MIB


@pytest.mark.parametrize("kind", KINDS)
def test_sessions_that_share_a_directory_have_the_least_limit(stage, request, kind):
    api, disk, new = stage
    base = words(request)
    path = disk.directory(base)
    first, second = new(path, "-1", 16), new(path, "-2", 8)
    assert held(api, first)["value"] == held(api, second)["value"] == disk.limit(base) == 8 * MIB
    api.rm(second)
    assert held(api, first)["value"] == disk.limit(base) == 16 * MIB


@pytest.mark.parametrize("kind", MAIN)
def test_a_limit_outlives_boxd_and_ends_with_box_priv(kind):
    disk = Disk(kind)
    try:
        daemon = Daemon(disk)
        try:
            path = disk.directory("a")
            api = daemon.client()
            api.new("s", host_path=path, workspace_quota_mb=8)
            assert held(api, "s")["enforced"]
            api.close()
            daemon.stop(signal.SIGKILL)
            daemon.start()
            api = daemon.client()
            assert held(api, "s")["enforced"] and disk.limit("a") == 8 * MIB
            assert int(api.sh("s", FILL)["stdout"].split()[-1]) in (2, 3, 4)
            api.close()
            # Nothing of the sessions is left when box-priv is killed, but for the limit: the next one knows of it.
            daemon.stop(signal.SIGKILL)
            os.kill(daemon.priv_pid(), signal.SIGKILL)
            assert disk.limit("a") == 8 * MIB
            (disk.seen / "a").rename(disk.seen / "moved") if kind != "btrfs" else None
            daemon.start()
            assert disk.limit("a" if kind == "btrfs" else "moved") == 0
            assert not (daemon.state / "quotas").exists()
        finally:
            daemon.close()
    finally:
        disk.close()


MANY = 10_000 if SCALE == 1 else 300  # the walk has a limit of time, too


def fill(disk, path, number):
    disk.run("sh", "-c", f"seq -f '{path}/%.0f' {number} | xargs touch")


@pytest.mark.parametrize("kind", MAIN)
def test_a_hostile_tree_is_walked_safely(stage, request, kind):
    api, disk, new = stage
    base = words(request)
    path, top = disk.directory(base), disk.seen / base
    outside = disk.seen / f"{base}-outside"
    outside.mkdir()
    (outside / "file").write_text("not yours")
    os.symlink(f"../{outside.name}", top / "out")
    os.symlink(f"../{outside.name}/file", top / "file")
    os.symlink(".", top / "loop")
    os.symlink("/etc/passwd", top / "host")
    os.mkfifo(top / "pipe")
    os.mknod(top / "tty", stat.S_IFCHR | 0o666, os.makedev(5, 0))
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(top / "socket"))
    (top / "theirs").write_text("of another user")
    os.chown(top / "theirs", 4242, 4242)
    (top / "theirs").chmod(0)
    deep = os.open(top, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 200, dir_fd=deep)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(os.open("end", os.O_CREAT | os.O_WRONLY, dir_fd=deep))
    (top / "many").mkdir()
    fill(disk, f"{path}/many", MANY)
    # What is mounted on the host the session does not see, but what lies beneath it.
    (top / "round").mkdir()
    (top / "round" / "beneath").touch()
    disk.run("mount", "--bind", path, f"{path}/round")
    disk.run("mount", "-t", "tmpfs", "none", f"{path}/many")
    name = new(path)
    limit = held(api, name)
    disk.run("umount", f"{path}/round", f"{path}/many")
    assert limit["enforced"], limit
    if kind != "btrfs":
        number = project(top)
        assert is_ours(number)
        assert {project(top / n) for n in ("theirs", "many", "many/7", "round", "round/beneath")} == {number}
        assert project(deep) == number
        assert project(outside) == project(outside / "file") == 0
    os.close(deep)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_that_cannot_be_covered_is_counted(stage, request, kind):
    api, disk, new = stage
    base = words(request)
    path = disk.directory(base)
    if kind == "btrfs":
        disk.run("btrfs", "subvolume", "create", f"{path}/inner")
    else:
        (disk.seen / base / "inner").mkdir()
        set_project(disk.seen / base / "inner", 77)
    name = new(path)
    assert ("subvolumes" if kind == "btrfs" else "another project") in counted(api, name)
    assert disk.limit(base) == 0
    assert api.sh(name, "echo x > /workspace/f && cat /workspace/f")["stdout"] == "x\n"


@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_goes_although_the_directory_is_over_it(stage, request, kind):
    api, disk, new = stage
    base = words(request)
    path = disk.directory(base)
    for n in range(10):
        (disk.seen / base / str(n)).write_bytes(bytes(2 * MIB))
    os.sync()
    name = new(path)
    limit = held(api, name)
    assert limit["enforced"] and limit["used"] > 16 * MIB, limit
    assert api.sh(name, "head -c 2M /dev/zero > /workspace/more", cleanup=True)["exit_code"] != 0
    api.rm(name)
    assert disk.limit(base) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_administrator_has_set_stays(stage, request, kind):
    api, disk, new = stage
    base = words(request)
    path = disk.directory(base)
    if kind == "btrfs":
        disk.run("btrfs", "qgroup", "limit", "100M", path)
    else:
        set_project(disk.seen / base, 78)
        disk.set_project_limit(78, 100 * MIB)
    name = new(path)
    assert ("a limit already" if kind == "btrfs" else "project id 78") in counted(api, name)
    api.rm(name)
    assert disk.limit(base) == 100 * MIB and (kind == "btrfs" or project(disk.seen / base) == 78)


@pytest.mark.parametrize("kind", PROJECTS)
def test_a_directory_within_a_limited_one_is_counted(stage, request, kind):
    api, disk, new = stage
    base = words(request)
    path = disk.directory(base)
    (disk.seen / base / "in").mkdir()
    outer, inner = new(path, "-o", 16), new(f"{path}/in", "-i")
    assert held(api, outer)["value"] == 16 * MIB and "a limit already" in counted(api, inner)
    api.rm(inner)
    assert disk.limit(base) == 16 * MIB
    api.rm(outer)
    # The other way round: a limit stays the one that it was.
    inner = new(f"{path}/in", "-j")
    assert held(api, inner)["value"] == 8 * MIB
    outer = new(path, "-p")
    assert "another session" in counted(api, outer) and disk.limit(f"{base}/in") == 8 * MIB


CHANGE = """
import fcntl, os, struct
def attempt(path, request, raw):
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, request, raw)
        return 'done'
    except OSError as e:
        return e.errno
    finally:
        os.close(fd)
open('/workspace/mine', 'w').close()
for path in ('/workspace', '/workspace/mine'):
    print(attempt(path, 0x401c5820, bytes(28)), attempt(path, 0x40086602, struct.pack('q', 0)))
"""


@pytest.mark.parametrize("kind", PROJECTS)
def test_a_program_cannot_leave_its_project(stage, request, kind):
    api, disk, new = stage
    base = words(request)
    name = new(disk.directory(base))
    said = api.x(name, argv=["python3", "-c", CHANGE])
    assert "done" not in said["stdout"] and len(said["stdout"].split()) == 4, said
    assert project(disk.seen / base) == project(disk.seen / base / "mine") and is_ours(project(disk.seen / base))
    # What it makes stays in there, links out and in are not possible, and `df` shows the limit.
    (disk.seen / f"{base}-beside").mkdir()
    (disk.seen / f"{base}-beside" / "f").touch()
    with pytest.raises(OSError, match="Invalid cross-device link"):
        os.link(disk.seen / f"{base}-beside" / "f", disk.seen / base / "f")
    size = int(api.sh(name, "df -B1 --output=size /workspace | tail -1")["stdout"])
    assert size == 8 * MIB


LEAVE = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
raw = bytearray(28)
fcntl.ioctl(fd, 0x801c581f, raw)
raw[0:4] = raw[12:16] = bytes(4)
fcntl.ioctl(fd, 0x401c5820, raw)
"""


@pytest.mark.parametrize("kind", PROJECTS)
def test_the_kernel_lets_owners_leave_a_project_but_not_in_a_user_namespace(disks, request, kind):
    """Without any filter: why sandboxes of boxd's own are limited, and containers without a namespace counted."""
    need("setpriv")
    disk, _ = disks(kind)
    path = disk.directory(words(request))
    os.chown(disk.seen / words(request), ALICE, ALICE)
    set_project(disk.seen / words(request), 79)
    owner = [*disk.prefix, "setpriv", "--reuid", str(ALICE), "--regid", str(ALICE), "--clear-groups"]
    leave = [sys.executable, "-c", LEAVE, path]
    said = subprocess.run([*owner, "unshare", "-r", *leave], capture_output=True, text=True)
    assert said.returncode != 0 and "Invalid argument" in said.stderr, said
    assert project(disk.seen / words(request)) == 79
    subprocess.run([*owner, *leave], check=True)
    assert project(disk.seen / words(request)) == 0


@pytest.mark.parametrize("kind", PROJECTS)
def test_files_are_limited_in_number(kind):
    disk = Disk(kind)
    try:
        daemon = Daemon(disk, more=", limits: {max_workspace_entries: 100}")
        try:
            path = disk.directory("a")
            api = daemon.client()
            api.new("s", host_path=path, workspace_quota_mb=8)
            assert api.receipt("s")["limits"]["workspace_inodes"]["value"] == 101
            said = api.sh("s", "i=0; while [ $i -lt 300 ] && true > /workspace/$i; do i=$((i+1)); done 2>&1; ls /workspace | wc -l")
            assert said["stdout"].split()[-1] == "100", said
            assert api.sh("s", "echo on")["stdout"] == "on\n"
            api.close()
        finally:
            daemon.close()
    finally:
        disk.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_user_sets_no_limit_on_others(kind):
    """The limit holds for everybody who writes there: a caller that is only a user has to own all of it."""
    disk = Disk(kind)
    try:
        daemon = Daemon(disk, users=[ALICE])
        try:
            def ask(name):
                def run():
                    api = daemon.client()
                    api.new(name, host_path=str(disk.at / name), workspace_quota_mb=8)
                    return held(api, name)
                return elsewhere(run, uid=ALICE)
            for name, owner in (("own", ALICE), ("open", 0), ("mixed", ALICE)):
                disk.directory(name)
                os.chown(disk.seen / name, owner, ALICE)  # whose group it has to be, to be mounted
                (disk.seen / name).chmod(0o777)
            (disk.seen / "mixed" / "of root").touch()
            assert ask("own")["enforced"] is True
            assert "files of other users" in ask("mixed")["reason"] and disk.limit("mixed") == 0
            assert not ask("open")["enforced"] and disk.limit("open") == 0
        finally:
            daemon.close()
    finally:
        disk.close()


def test_programs_in_gvisor_meet_the_same_limit():
    need("runsc")
    disk = Disk("btrfs")
    try:
        daemon = Daemon(disk, "--backend", "runsc")
        try:
            path = disk.directory("a")
            api = daemon.client()
            api.new("s", host_path=path, workspace_quota_mb=8)
            assert held(api, "s")["enforced"] and disk.limit("a") == 8 * MIB
            said = api.sh("s", FILL)
            assert "quota exceeded" in said["stdout"] and int(said["stdout"].split()[-1]) in (2, 3, 4), said
            assert api.sh("s", "rm /workspace/fill.* && echo on")["stdout"] == "on\n"
            api.rm("s")
            assert disk.limit("a") == 0
            api.close()
        finally:
            daemon.close()
    finally:
        disk.close()


@pytest.mark.parametrize("kind", ["btrfs"])
def test_a_directory_of_btrfs_that_is_no_subvolume_is_counted(stage, request, kind):
    api, disk, new = stage
    (disk.seen / words(request)).mkdir()
    assert "this directory is none" in counted(api, new(str(disk.at / words(request))))


@pytest.mark.parametrize("kind, reason", [("ext4", "not mounted with project quotas"), ("btrfs", "quotas are not on")])
def test_without_quotas_of_the_file_system_it_is_counted(kind, reason):
    disk = Disk(kind, quotas=False)
    try:
        daemon = Daemon(disk)
        try:
            path = disk.directory("a")
            api = daemon.client()
            api.new("s", host_path=path, workspace_quota_mb=8)
            assert reason in counted(api, "s")
            assert api.sh("s", "echo on > /workspace/f && cat /workspace/f")["stdout"] == "on\n"
            api.close()
        finally:
            daemon.close()
    finally:
        disk.close()
