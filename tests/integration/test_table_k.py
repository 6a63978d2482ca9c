# SPDX-License-Identifier: Apache-2.0
"""Table K, hostile content, of the catalogue of checks.

| check | what | tests |
|---|---|---|
| K01 | zip archives | here, through boxd; every field that can lie: test_skills_zip.py; fuzz_zip |
| K02 | tar archives, layers of images | here: Box reads none; what engines unpack: conformance/test_engine_images.py |
| K03 | root file systems with links in our way | test_mounts.py (native), conformance/test_engine_images.py |
| K04 | /etc/passwd of an image | here: the session's own; conformance/test_engine_images.py |
| K05 | configuration of an image | here: what a spec can say of it; conformance/test_engine_images.py |
| K06 | start-up files, hooks | test_hostile_text.py, test_files.py |
| K07 | file system images of users | here |
| K08 | answers of an engine | test_table_k_engine.py; real ones, registries: conformance/test_engine_answers.py |
| K09 | escapes in what is shown | test_hostile_text.py, test_files.py |
| K10 | preconditions of kernel exploits | test_table_k_kernel.py; every system call: escape/test_kernel.py (B20) |

Not testable yet: layers that Box itself unpacks, and 10^5 of them (K02, K05). It has no image store: engines pull and
unpack, the native backend shows the host's own directories. test_check_K02_no_program_of_ours_reads_tar fails when that
changes.
"""

import contextlib
import ctypes
import io
import os
import pathlib
import shutil
import struct
import subprocess
import tarfile
import threading

import pytest
from boxlib import BUILD, ApiError, Boxd
from faultlib import Strace
from fetchlib import Zip, skill_md
from hostlib import SCALE, mount_dir, need, until
from lbwire import Rpc, RpcError, upload

LIBC = ctypes.CDLL(None, use_errno=True)
IN_CREATE, IN_MOVED_TO = 0x100, 0x80


class Watched:
    """Names that come into being in a directory."""

    def __init__(self, path):
        self.fd = LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert LIBC.inotify_add_watch(self.fd, str(path).encode(), IN_CREATE | IN_MOVED_TO) > 0

    def names(self):
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                data = os.read(self.fd, 65536)
                while data:
                    size = struct.unpack_from("iIII", data)[3]
                    found.append(data[16:16 + size].rstrip(b"\0").decode())
                    data = data[16 + size:]
        return found

    def close(self):
        os.close(self.fd)


# K01


@pytest.fixture(scope="module")
def store():
    """A client of the LangBot wire with a store of skills, and the directory of the store."""
    top = mount_dir("box-k01-")
    daemon = Boxd(env={"BOX_ALLOWED_MOUNT_ROOTS": str(top)})
    with Rpc(daemon.sock) as rpc:
        rpc.call("box_init", {"local": {"host_root": str(top / "box")}}, ctx=None)
        made = rpc.call("box_create_skill", {"skill": {"name": "there"}})["skill"]
        rpc.root = pathlib.Path(made["package_root"]).parent
        rpc.top = top
        yield rpc
    daemon.close()
    shutil.rmtree(top)


def zipped(*entries, **lies):
    """An archive that would be fine but for these: (name, content, options)."""
    made = Zip().add("SKILL.md", skill_md("evil"))
    for name, *rest in entries:
        made.add(name, rest[0] if rest else b"x", **(rest[1] if len(rest) > 1 else {}))
    return made.bytes(**lies)


def many(count):
    """That many empty entries; Zip takes too long for so many."""
    local, central = [skill_local()], [skill_central()]
    offset = len(local[0])
    for i in range(count):
        name = b"f%06d" % i
        local.append(struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0x800, 0, 0, 0x21, 0, 0, 0, len(name), 0) + name)
        central.append(struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 0x0314, 20, 0x800, 0, 0, 0x21, 0, 0, 0, len(name),
                                   0, 0, 0, 0, 0o100644 << 16, offset) + name)
        offset += len(local[-1])
    directory = b"".join(central)
    here = offset + len(directory)
    # More than fit in 16 bits: the large format says how many.
    large = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count + 1, count + 1, len(directory), offset)
    large += struct.pack("<IIQI", 0x07064B50, 0, here, 1)
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, len(directory), offset, 0)
    return b"".join(local) + directory + large + end


def skill_local():
    return Zip().add("SKILL.md", skill_md("evil")).local


def skill_central():
    return Zip().add("SKILL.md", skill_md("evil")).central


def overlapping():
    made = Zip().add("SKILL.md", skill_md("evil"))
    at = len(made.local)
    made.add("a", bytes(60000)).add("b", bytes(60000), offset=at, local_name=b"a")
    return made.bytes()


def forty_two(depth=6):
    """An archive of archives: only the outermost is ever opened. Its own bomb is refused."""
    inner = Zip().add("bomb", bytes(8 << 20), deflate=True).bytes()
    for level in range(depth):
        inner = Zip().add(f"{level}.zip", inner, deflate=True).bytes()
    return inner


LONG = "n" * 65535
LIE = struct.pack("<HHQQ", 1, 16, 1 << 62, 1)
INVALID = "must be a valid .zip archive"
REFUSED = {
    "parent": (zipped(("../evil",)), "unsafe path"),
    "parent below": (zipped(("a/../../evil",)), "unsafe path"),
    "absolute": (zipped(("/tmp/evil",)), "unsafe path"),
    "drive": (zipped(("C:\\evil",)), "unsafe path"),
    "backslash": (zipped(("..\\evil",)), "unsafe path"),
    "server": (zipped(("\\\\server\\evil",)), "unsafe path"),
    "a link": (zipped(("l", b"/etc", {"mode": 0o120777})), "symbolic link"),
    "through a link": (zipped(("l", b"/etc", {"mode": 0o120777}), ("l/evil", b"x")), "symbolic link"),
    "the same name twice": (zipped(("a",), ("a",)), "duplicate path"),
    "a file and a directory": (zipped(("a",), ("a/b",)), "duplicate path"),
    "NUL": (zipped((b"a\0b",)), "NUL path"),
    "no name": (zipped((b"",)), "empty or NUL path"),
    "a name of 64 KiB": (zipped((LONG,)), "unsafe path"),
    "encrypted": (zipped(("a", b"x", {"flags": 0x801})), "encrypted"),
    "an unknown method": (zipped(("a", b"x", {"method": 14})), "unsupported compression method"),
    "64 bits that are missing": (zipped(("a", b"x", {"size": 0xFFFFFFFF})), INVALID),
    "64 bits that lie": (zipped(("a", b"x", {"size": 0xFFFFFFFF, "compressed": 0xFFFFFFFF, "extra": LIE})),
                         "size limit|" + INVALID),
    "overlapping": (overlapping(), INVALID),
    "ratio": (zipped(("a", bytes(1 << 20), {"deflate": True})), "compression ratio"),
    "one that is too large": (zipped(("a", bytes((16 << 20) + 1), {"deflate": True})), "size limit"),
    "a size that is a lie": (zipped(("a", b"x", {"size": 60 << 20, "compressed": 1 << 20})), "size limit|" + INVALID),
    "60000 entries": (many(60000), "too many entries"),
    "a million entries, it says": (zipped(count=65535), "too many entries|" + INVALID),
    "fifo": (zipped(("p", b"", {"mode": 0o010644})), "non-regular"),
    "device": (zipped(("d", b"", {"mode": 0o060644})), "non-regular"),
    "character device": (zipped(("d", b"", {"mode": 0o020644})), "non-regular"),
    "socket": (zipped(("s", b"", {"mode": 0o140644})), "non-regular"),
    "something behind it": (zipped() + b"x", INVALID),
    "something before it": (b"#!/bin/sh\n" + zipped(), INVALID),
    "two archives": (zipped() + zipped(), INVALID),
    "a bomb of bombs": (forty_two(), "compression ratio|No SKILL.md"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_check_K01_refused_before_the_first_byte(store, what):
    data, sentence = REFUSED[what]
    watched = Watched(store.root)
    try:
        for action in ("box_preview_skill_zip", "box_install_skill_zip"):
            with pytest.raises(RpcError, match=f"^BoxValidationError: .*({sentence})"):
                store.call(action, {"file_key": upload(store, data), "filename": "evil.zip"})
        made = watched.names()
    finally:
        watched.close()
    if what == "a bomb of bombs":
        assert all(name.startswith(".tmp-") for name in made)  # an archive in an archive is a file
    else:
        assert made == []
    assert os.listdir(store.root) == ["there"]
    assert not os.path.exists("/tmp/evil") and not list(store.top.rglob("evil*"))


# What shows only when it is unpacked: in a directory of its own, which is gone afterwards.
LATE = {
    "checksum": zipped(("a", b"content", {"crc": 1})),
    "more than announced": zipped(("a", os.urandom(5000) * 2, {"deflate": True, "size": 10})),
    "less than announced": zipped(("a", os.urandom(5000), {"deflate": True, "size": 9000})),
    "no deflate": zipped(("a", b"\xff" * 100, {"method": 8, "size": 1000})),
}


@pytest.mark.parametrize("what", LATE)
def test_check_K01_what_shows_late_leaves_nothing(store, what):
    watched = Watched(store.root)
    try:
        with pytest.raises(RpcError, match="^BoxValidationError: "):
            store.call("box_install_skill_zip", {"file_key": upload(store, LATE[what]), "filename": "evil.zip"})
        assert watched.names() and all(name.startswith(".tmp-") for name in watched.names())
    finally:
        watched.close()
    assert os.listdir(store.root) == ["there"]


def test_check_K01_names_that_differ_by_case_are_two_files(store):
    """So they are here; nothing of one gets into the other."""
    data = zipped(("readme", b"small"), ("README", b"LARGE"), ("dir/x", b"1"), ("DIR/x", b"2"))
    watched = Watched(store.root)
    made = store.call("box_install_skill_zip", {"file_key": upload(store, data), "filename": "case.zip"})["skills"][0]
    root = pathlib.Path(made["package_root"])
    assert [(root / n).read_text() for n in ("readme", "README", "dir/x", "DIR/x")] == ["small", "LARGE", "1", "2"]
    # Put in its place in one step.
    names = watched.names()
    watched.close()
    assert names[-1] == root.name and names.count(root.name) == 1 and all(n.startswith(".tmp-") for n in names[:-1])
    store.call("box_delete_skill", {"name": made["name"]})


# K02


def test_check_K02_no_program_of_ours_reads_tar():
    """Neither by a library nor by another program."""
    for name in ("boxd", "box", "box-priv", "box-fetch"):
        path = BUILD / name
        wanted = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=True).stdout
        assert "libarchive" not in wanted and "libtar" not in wanted, (name, wanted)
        content = path.read_bytes()
        # `box cp -` runs the tar of the session, in the session: it reads none itself.
        assert name == "box" or b"\0tar\0" not in content, name
        assert b"/bin/tar" not in content and b"\0bsdtar\0" not in content, name


def test_check_K02_a_tar_is_no_archive_for_us(store):
    def tar(mode):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode=mode, format=tarfile.PAX_FORMAT) as made:
            for kind, link in ((tarfile.SYMTYPE, "/etc"), (tarfile.LNKTYPE, "../../etc/passwd"), (tarfile.REGTYPE, "")):
                info = tarfile.TarInfo("SKILL.md" if kind == tarfile.REGTYPE else "l")
                info.type, info.linkname = kind, link
                info.pax_headers = {"path": "../../evil", "SCHILY.xattr.trusted.overlay.redirect": "/etc"}
                made.addfile(info)
        return out.getvalue()

    watched = Watched(store.root)
    for data in (tar("w"), tar("w:gz"), tar("w") + zipped()):
        with pytest.raises(RpcError, match=INVALID):
            store.call("box_install_skill_zip", {"file_key": upload(store, data), "filename": "evil.tar"})
    assert watched.names() == []
    watched.close()


# K04, K05


PASSWD = {
    "root by our name": "printf 'box:x:0:0::/root:/bin/sh\\nroot:x:1000:1000::/:/bin/sh\\n'",
    "no newline": "printf 'box:x:0:0'",
    "no numbers": "printf 'box:x:-1:99999999999999999999::/:\\nbox:x::::\\n::::::\\n'",
    "one long line": "head -c 100000000 /dev/zero | tr '\\0' 'b'",
    "many lines": "yes 'box:x:0:0::/root:/bin/sh' | head -n 500000",
    "nothing": "true",
    "a directory": None,
}


@pytest.mark.parametrize("what", PASSWD)
def test_check_K04_no_file_of_users_makes_anybody_somebody_else(api, session, what):
    """Ids come from the plan and are never looked up."""
    name = session(read_only_rootfs=False, memory_mb=512)
    who = "id -u; id -g; grep -E '^(Uid|Gid|CapEff|CapPrm|NoNewPrivs|Seccomp):' /proc/self/status"
    before = api.sh(name, who)["stdout"]
    assert "CapEff:\t0000000000000000" in before and "NoNewPrivs:\t1" in before
    change = "rm /etc/passwd /etc/group && " + (
        f"{PASSWD[what]} > /etc/passwd; cp /etc/passwd /etc/group" if PASSWD[what] else "mkdir /etc/passwd /etc/group")
    r = api.sh(name, change, timeout_sec=60 * SCALE)
    assert r["exit_code"] == 0, r
    assert api.sh(name, who)["stdout"] == before
    assert api.x(name, "cat", "/proc/self/uid_map")["exit_code"] == 0
    script = f"({who}) > /workspace/new; mv /workspace/new /workspace/who; exec sleep 1000"
    made = api.call("POST", f"/v1/sessions/{name}/processes",
                    {"process_id": "p", "command": "sh", "args": ["-c", script]})
    assert made["status"] == "running"
    until(lambda: api.x(name, "test", "-e", "/workspace/who")["exit_code"] == 0, what="the process")
    assert api.sh(name, "cat /workspace/who")["stdout"] == before


@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"A\0B": "x"}, {"A": "x\0y"}, {"=": "x"}])
def test_check_K05_names_and_values_that_no_environment_has(api, session, env):
    for ask in (lambda: session(env=env), lambda: api.sh(session(), "env", env=env),
                lambda: api.call("POST", f"/v1/sessions/{session()}/processes", {"command": "env", "env": env})):
        with pytest.raises(ApiError) as caught:
            ask()
        assert caught.value.code == "invalid", caught.value
        assert "env" in caught.value.detail or "NUL" in caught.value.detail, caught.value


WORKDIRS = ("/proc/self/fd/8", "/proc/self/fd/3", "/proc/1/cwd", "/proc/self/cwd/../../..", "/proc/1/root")


@pytest.mark.parametrize("workdir", WORKDIRS)
def test_check_K05_a_working_directory_is_no_descriptor_of_ours(api, session, workdir):
    """As C09, for what an image or a spec would say."""
    try:
        name = session(workdir=workdir)
        r = api.sh(name, "pwd -P; ls")
    except ApiError as refused:
        assert refused.code in ("invalid", "denied", "not_found"), refused
        return
    root = api.sh(session(), "cd /; ls")["stdout"]
    shown = r["stdout"].split("\n", 1)
    assert r["exit_code"] != 0 or shown[0] != "/" or shown[1] == root, r
    assert "box-priv" not in r["stdout"] and "state.db" not in r["stdout"]


@pytest.mark.parametrize("program", ["evil", "./evil", "bin/evil", "../bin/evil"])
def test_check_K05_a_relative_program_is_found_inside_or_not_at_all(api, sid, program):
    r = api.x(sid, program)
    assert r["exit_code"] in (126, 127), r
    api.sh(sid, "mkdir bin; printf '#!/bin/sh\\ncat /proc/self/uid_map\\n' > evil; chmod 755 evil; cp evil bin/")
    inside = api.x(sid, program)
    if inside["exit_code"] == 0:
        assert inside["stdout"] == api.sh(sid, "cat /proc/self/uid_map")["stdout"]
    else:
        assert inside["exit_code"] in (126, 127) and program in ("evil", "../bin/evil"), inside


# K07


def backing_files():
    found = []
    for path in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            found.append(path.read_text().strip())
    return found


@pytest.fixture
def images():
    """Images as users bring them: one that could be mounted, and two that say they can."""
    need("mkfs.ext4")
    top = mount_dir("box-k07-")
    (top / "root").mkdir()
    (top / "root/marker").write_text("EVIL")
    shape = ["-b", "4096", "-I", "256", "-O", "^metadata_csum,^has_journal"]  # as box-priv makes its own
    subprocess.run(["mkfs.ext4", "-q", "-F", *shape, "-d", str(top / "root"), str(top / "ext4.img"), "8M"], check=True,
                   stdout=subprocess.DEVNULL)
    (top / "squashfs.img").write_bytes(b"hsqs" + bytes(1 << 16))
    (top / "erofs.img").write_bytes(bytes(1024) + struct.pack("<I", 0xE0F5E1E2) + bytes(1 << 16))
    for path in top.glob("*.img"):
        path.chmod(0o666)
    yield top
    shutil.rmtree(top)


MOUNT = r"""
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
refused = (errno.EPERM, errno.ENOSYS, errno.EACCES)
def must_fail(what, r):
    assert r < 0 and ctypes.get_errno() in refused, (what, r, ctypes.get_errno())
os.makedirs("/tmp/m", exist_ok=True)
for name, kind in (("ext4.img", b"ext4"), ("squashfs.img", b"squashfs"), ("erofs.img", b"erofs")):
    path = ("/workspace/" + name).encode()
    assert os.path.isfile(path)
    must_fail("mount", libc.mount(path, b"/tmp/m", kind, 1, None))
    must_fail("fsopen", libc.syscall(430, kind, 0))
must_fail("fsmount", libc.syscall(432, 3, 0, 0))
must_fail("move_mount", libc.syscall(429, 3, b"", -100, b"/tmp/m", 4))
for node in ("/dev/loop-control", "/dev/loop0", "/dev/fuse", "/dev/nbd0", "/dev/mapper/control"):
    assert not os.path.exists(node), node
try:
    os.mknod("/tmp/loop", 0o60600, os.makedev(7, 0))
    raise SystemExit("a block device was made")
except OSError as e:
    assert e.errno in refused, e
print("none")
"""


def test_check_K07_images_of_users_are_files(api, session, images):
    """Shown, copied, deleted: never mounted, whichever field names one."""
    image = str(images / "ext4.img")
    with pytest.raises(ApiError) as caught:
        session(image=image)
    assert caught.value.code == "not_found" and "is not available" in caught.value.detail
    name = session(host_path=str(images),
                   extra_mounts=[{"host_path": image, "mount_path": "/mnt/x", "mode": "ro"}])
    assert api.receipt(name)["image"] == "host"
    r = api.x(name, "python3", "-c", MOUNT)
    assert (r["stdout"], r["exit_code"]) == ("none\n", 0), r
    assert api.sh(name, "test -f /mnt/x && cmp /mnt/x /workspace/ext4.img && echo same")["stdout"] == "same\n"
    with pytest.raises(ApiError) as caught:
        session(extra_mounts=[{"host_path": image + "/marker", "mount_path": "/mnt/x"}])
    assert caught.value.code == "not_found", caught.value
    with pytest.raises(ApiError) as caught:
        session(host_path=image)
    assert caught.value.code == "invalid", caught.value
    assert not [path for path in backing_files() if path.startswith(str(images))]
    pid = api.receipt(name)["host_pid"]
    mounts = pathlib.Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    kinds = {line.split(" - ")[1].split()[0] for line in mounts}
    assert not kinds & {"squashfs", "erofs"}


def as_boxd(daemon, script):
    """What a boxd that was taken over could do, done with its id."""
    status = pathlib.Path(f"/proc/{daemon.pid}/status").read_text()
    uid = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1]
    if uid == "0" or os.geteuid() != 0:
        pytest.skip("boxd has the ids of box-priv here")
    subprocess.run(["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "/usr/bin/python3", "-c", script],
                   check=True)


def test_check_K07_nobody_but_box_priv_chooses_what_is_mounted(images):
    """boxd owns the state directory. Taken over, it would put an image of its own among the templates."""
    daemon = Boxd()
    try:
        client = daemon.client()
        client.new("honest", workspace_quota_mb=8)
        own = daemon.state / "templates"
        [template] = [p.name for p in own.glob("ext4-8388608-*")]
        as_boxd(daemon, f"import os, shutil\nos.rename({str(own)!r}, {str(own)!r} + '.old')\nos.mkdir({str(own)!r})\n"
                        f"shutil.copy({str(images / 'ext4.img')!r}, {str(own / template)!r})\n")
        assert (own / template).stat().st_size == 8 << 20
        with pytest.raises(ApiError) as caught:
            client.new("victim", workspace_quota_mb=8)
        assert caught.value.code == "denied" and "templates" in caught.value.detail, caught.value
        assert [s["session_id"] for s in client.ps()] == ["honest"]
        assert client.sh("honest", "ls /workspace")["stdout"] == ""
        # What says whether quotas can be had says why not.
        check = {c["id"]: c for c in client.doctor()["checks"]}["disk-quota"]
        assert check["status"] != "ok", check
        shutil.rmtree(own)
        client.new("victim", workspace_quota_mb=8)
        assert client.sh("victim", "ls -A /workspace")["stdout"] == ""
        client.close()
    finally:
        daemon.close()


def test_check_K07_what_is_mounted_is_what_was_written(images):
    """The same, in the moment between the making of an image and its mounting."""
    need("strace")
    daemon = Boxd()
    try:
        client = daemon.client(timeout=120 * SCALE)
        client.new("warm-up", workspace_quota_mb=8)
        client.rm("warm-up")
        until(lambda: not list(daemon.state.glob("sessions/*/disk.img")), what="the end of the first one")
        result = []
        with Strace(daemon.priv_pid(), "-e", "trace=pwrite64", "-e", "inject=pwrite64:delay_enter=2000000:when=1"):
            thread = threading.Thread(target=lambda: result.append(client.new("victim", workspace_quota_mb=8)))
            thread.start()
            made = until(lambda: list(daemon.state.glob("sessions/*/disk.img")), what="the image")[0]
            as_boxd(daemon, f"import os, shutil\nos.rename({str(made)!r}, {str(made)!r} + '.old')\n"
                            f"shutil.copy({str(images / 'ext4.img')!r}, {str(made)!r})\n")
            thread.join(120 * SCALE)
        assert result and result[0]["state"] == "ready"
        assert [p for p in backing_files() if p.startswith(str(daemon.state))] == [str(made) + ".old"]
        client.rm("victim")
        client.close()
    finally:
        daemon.close()


def test_check_K07_the_image_of_a_session_is_out_of_its_reach(boxd_shared, api, session):
    """It is written through the file system alone: nobody inside can spoil what the kernel has to parse."""
    name = session(workspace_quota_mb=8)
    images = [p for p in boxd_shared.state.glob("sessions/*/disk.img")]
    assert images
    for path in images:
        assert path.stat().st_uid == 0 and path.stat().st_mode & 0o777 == 0o600
    r = api.sh(name, "ls /dev | grep -c loop; find / -name disk.img 2>/dev/null | wc -l; "
                     "cat /proc/partitions 2>/dev/null | wc -l")
    assert r["stdout"].split() == ["0", "0", "0"], r
