# SPDX-License-Identifier: Apache-2.0
"""Files of a skill, and directories that change while they are used."""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import pytest

from boxlib import BUILD
from fetchlib import JobError, Store, finish, skill_md, start

pytestmark = pytest.mark.rootless

STAY = "path must stay within the skill package root"


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path, make="tenants/ws-1")
    made.create("demo", instructions="Do it")
    return made


@pytest.fixture
def package(store):
    return store.path / store.make / "demo"


def refused(store, op, sentence, **data):
    with pytest.raises(JobError) as error:
        store.call(op, **data)
    assert str(error.value) == sentence


def test_list(store, package):
    (package / "sub").mkdir()
    (package / "sub/a.txt").write_text("sechs!")
    (package / ".hidden").write_text("x")
    os.symlink("/etc/passwd", package / "link")
    listing = store.call("list_files", name="demo")
    assert listing["skill"] == {"name": "demo"} and listing["base_path"] == "." and listing["truncated"] is False
    assert [entry["name"] for entry in listing["entries"]] == ["SKILL.md", "link", "sub"]
    assert listing["entries"][2] == {"path": "sub", "name": "sub", "is_dir": True, "size": None}
    assert listing["entries"][1]["size"] == len("/etc/passwd")
    inner = store.call("list_files", name="demo", path="./sub//", max_entries="1")
    assert inner["base_path"] == "sub" and inner["truncated"] is False
    assert inner["entries"] == [{"path": "sub/a.txt", "name": "a.txt", "is_dir": False, "size": 6}]
    everything = store.call("list_files", name="demo", include_hidden=True, max_entries=3)
    assert [entry["name"] for entry in everything["entries"]] == [".hidden", "SKILL.md", "link"]
    assert everything["truncated"] is True


@pytest.mark.parametrize("value, sentence", [
    ("abc", "invalid literal for int() with base 10: 'abc'"),
    ("1.5", "invalid literal for int() with base 10: '1.5'"),
    (0, "max_entries must be a positive integer"),
    (-5, "max_entries must be a positive integer"),
    (False, "max_entries must be a positive integer"),
])
def test_max_entries(store, value, sentence):
    refused(store, "list_files", sentence, name="demo", max_entries=value)


def test_max_entries_as_python_reads_it(store, package):
    for i in range(1005):
        (package / f"f{i:04}").touch()
    for value, shown in ((" 7 ", 7), ("1_0", 10), (2.9, 2), (True, 1), (5000, 1000), ("99999999", 1000)):
        assert len(store.call("list_files", name="demo", max_entries=value)["entries"]) == shown
    assert len(store.call("list_files", name="demo")["entries"]) == 200


@pytest.mark.parametrize("op", ["list_files", "read_file", "write_file"])
def test_paths_that_leave(store, package, op):
    os.symlink("/etc", package / "out")
    os.symlink("SKILL.md", package / "in")
    for path in ("/etc/passwd", "/"):
        refused(store, op, "path must be relative to the skill package root", name="demo", path=path)
    for path in ("..", "../x", "a/../../x", "..foo", "out/passwd", "out", "in"):
        refused(store, op, STAY, name="demo", path=path)
    refused(store, op, 'Skill "no" not found', name="no", path="x")
    refused(store, op, "embedded null byte", name="demo", path="a\0b")


def test_read(store, package):
    (package / "a").mkdir()
    (package / "a/b.txt").write_bytes("ünï\r\n\0".encode())
    answer = store.call("read_file", name="demo", path="./a//b.txt")
    assert answer == {"skill": {"name": "demo"}, "path": "a/b.txt", "content": "ünï\r\n\0"}
    refused(store, "read_file", "Skill file not found: a/no", name="demo", path="a/./no")
    refused(store, "read_file", "Skill file not found: a", name="demo", path="a")
    refused(store, "read_file", "Skill file not found: a/b.txt/c", name="demo", path="a/b.txt/c")
    refused(store, "read_file", "Skill file not found: .", name="demo", path="")
    (package / "bad").write_bytes(b"\xff")
    refused(store, "read_file", "Skill file bad is not valid UTF-8 text", name="demo", path="bad")
    (package / "big").write_bytes(b"x" * (1 << 20))
    assert len(store.call("read_file", name="demo", path="big")["content"]) == 1 << 20
    (package / "big").write_bytes(b"x" * ((1 << 20) + 1))
    refused(store, "read_file", "Skill file big exceeds the 1048576-byte limit", name="demo", path="big")
    os.mkfifo(package / "fifo")
    refused(store, "read_file", "Skill file not found: fifo", name="demo", path="fifo")
    with open(package / "hole", "wb") as hole:
        hole.truncate(1 << 40)
    refused(store, "read_file", "Skill file hole exceeds the 1048576-byte limit", name="demo", path="hole")
    refused(store, "read_file", "'path'", name="demo")


def test_write(store, package):
    answer = store.call("write_file", name="demo", path="x/y/z.sh", content="äöü\0\n")
    assert answer == {"skill": {"name": "demo"}, "path": "x/y/z.sh", "bytes_written": 8}
    target = package / "x/y/z.sh"
    assert target.read_bytes() == "äöü\0\n".encode() and target.stat().st_mode & 0o777 == 0o644
    target.chmod(0o755)
    os.link(target, package / "same")
    store.call("write_file", name="demo", path="x/y/z.sh")
    assert target.read_bytes() == b"" and target.stat().st_mode & 0o777 == 0o755
    assert (package / "same").read_bytes() != b""  # another name of the old file keeps the old content
    full = "x" * (1 << 20)
    assert store.call("write_file", name="demo", path="big", content=full)["bytes_written"] == 1 << 20
    refused(store, "write_file", "Skill file big exceeds the 1048576-byte limit", name="demo", path="big",
            content=full + "x")
    for path in (".", "x"):
        with pytest.raises(JobError, match=r"^\[Errno 21\] Is a directory: "):
            store.call("write_file", name="demo", path=path, content="")
    with pytest.raises(JobError, match=r"^\[Errno 20\] Not a directory: "):
        store.call("write_file", name="demo", path="big/below", content="")
    refused(store, "write_file", "content must be a string", name="demo", path="y", content=5)
    assert sorted(os.listdir(store.root)) == ["demo"]


def test_what_a_killed_job_left_is_swept(store):
    left = store.path / store.make / ".tmp-0123456789abcdef"
    (left / "extracted/deep").mkdir(parents=True)
    (left / "extracted/SKILL.md").write_bytes(skill_md("half"))
    similar = store.path / store.make / ".tmp-mine"
    similar.mkdir()
    assert store.names() == ["demo"]
    assert not left.exists() and similar.exists()


def test_jobs_on_one_store_take_turns(store):
    """Two boxd may share a store: the second job waits until the first is done."""
    first = start(store.path, store.make)
    second = start(store.path, store.make)
    request = {"op": "list", "root": store.root, "shared": False, "data": {}}
    assert finish(second, request)["skills"]  # nobody holds the lock before its request has come
    assert finish(first, request)["skills"]
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl,os,sys\nfd=os.open(sys.argv[1],os.O_RDONLY)\nfcntl.flock(fd,2)\n"
         "print('held',flush=True)\nsys.stdin.read()", store.root],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    waiting = start(store.path, store.make)
    waiting.stdin.write(json.dumps(request).encode() + b"\n")
    waiting.stdin.close()
    waiting.stdin = None
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0.3)
    holder.communicate()
    assert json.loads(waiting.communicate(timeout=30)[0])["data"]["skills"]


def test_a_job_that_takes_too_long_dies(store):
    stuck = start(store.path, store.make, seconds=1)  # its request never comes
    assert stuck.wait(30) == -14
    stuck.communicate()


@pytest.mark.parametrize("op", ["read_file", "write_file"])
def test_swapping_links_wins_nothing(store, package, tmp_path, op):
    """A sandbox has the package mounted, and exchanges directories and links while jobs go through them."""
    secret = tmp_path / "secret"
    for base, text in ((package, "inside"), (secret, "outside")):
        (base / "a/b/c").mkdir(parents=True)
        (base / "a/b/c/marker").write_text(text)
    for level, link in (("", "a"), ("a", "b"), ("a/b", "c")):
        os.symlink(secret / level / link, package / level / (link + ".x"))
    swap = subprocess.Popen([str(BUILD / "tests/integration/swap_race"), "swap", str(package)], stdout=subprocess.PIPE)
    seen = collections.Counter()
    try:
        assert swap.stdout.readline() == b"ready\n"
        for i in range(80):
            try:
                answer = store.call(op, name="demo", path="a/b/c/marker", content="inside")
                seen[answer.get("content", "written")] += 1
            except JobError as error:
                assert str(error) == STAY or re.search("Errno|not found", str(error)), error
                seen["refused"] += 1
    finally:
        swap.kill()
        swap.communicate()
    assert set(seen) <= {"inside", "written", "refused"} and seen["refused"] and len(seen) == 2, seen
    assert (secret / "a/b/c/marker").read_text() == "outside"
    assert sum(len(files) for _, _, files in os.walk(secret)) == 1


def test_a_job_sees_nothing_but_its_directory(store, tmp_path):
    """What the kernel says about a job that waits for its request."""
    job = start(store.path, store.make)
    # It has closed descriptor 3 and everything above before it is confined, and then it reads.
    status = wait_until_confined(job.pid)
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    for key in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[key], 16) == 0
    limits = open(f"/proc/{job.pid}/limits").read()
    assert "Max core file size        0" in limits
    request = {"op": "list", "root": store.root, "shared": False, "data": {}}
    assert [skill["name"] for skill in finish(job, request)["skills"]] == ["demo"]


def wait_until_confined(pid):
    while True:
        status = dict(line.split(":\t", 1) for line in open(f"/proc/{pid}/status").read().splitlines() if ":\t" in line)
        if status.get("Seccomp") == "2":
            return status
        assert status["State"][0] != "Z", "the job ended"


def test_hands_of_a_stranger(tmp_path):
    """Requests that boxd would never send."""
    for line in (b"", b"{}", b"[]", b"nonsense", b'{"op":"list"}', b'{"op":"list","root":"relative","data":{}}',
                 b'{"op":"nothing","root":"/x","data":{}}', b'{"op":"list","root":"/x","data":[]}', b"[" * 100):
        with pytest.raises(JobError):
            finish(start(tmp_path), line)
    assert os.listdir(tmp_path) == []
    with pytest.raises(JobError, match="started by boxd"):
        finish(start(tmp_path, seconds=1000), b"{}")
    for make in ("..", "a/../b"):
        with pytest.raises(JobError, match="^directory "):
            finish(start(tmp_path, make), b"{}")
    os.symlink("/tmp", tmp_path / "link")
    with pytest.raises(JobError, match="Not a directory"):
        finish(start(tmp_path, "link/x"), b"{}")


def test_directories_are_made_and_markers_read(tmp_path):
    where = Store(tmp_path, make="a/b c/ü")
    assert where.call("make_dir") == {}
    assert (tmp_path / "a/b c/ü").stat().st_mode & 0o777 == 0o755
    name = ".langbot-box-volume-probe-" + "0123456789abcdef" * 2
    marker = tmp_path / "a/b c/ü" / name
    unreadable = "Box Runtime cannot read the Core shared Workspace probe"
    for bad in ("x", name[:-1], name + "0", name.upper(), "../" + name, 5):
        refused(where, "read_marker", "Invalid Box shared Workspace probe basename", marker_name=bad)
    refused(where, "read_marker", unreadable, marker_name=name)
    marker.write_bytes(b"hello")
    assert bytes.fromhex(where.call("read_marker", marker_name=name)["content"]) == b"hello"
    for content in (b"", b"x" * 1025):
        marker.write_bytes(content)
        refused(where, "read_marker", "Box shared Workspace probe has an invalid size", marker_name=name)
    marker.write_bytes(b"x" * 1024)
    assert len(where.call("read_marker", marker_name=name)["content"]) == 2048
    marker.unlink()
    os.symlink("/etc/passwd", marker)
    refused(where, "read_marker", unreadable, marker_name=name)
    marker.unlink()
    marker.mkdir()
    refused(where, "read_marker", "Box shared Workspace probe is not a regular file", marker_name=name)
    marker.rmdir()
    os.mkfifo(marker)
    refused(where, "read_marker", "Box shared Workspace probe is not a regular file", marker_name=name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave its id")
def test_a_read_only_directory_in_a_package():
    """As an ordinary owner: the skill is gone at once, whatever becomes of its files."""
    with tempfile.TemporaryDirectory(prefix="box-skills-") as path:
        os.chown(path, 65534, 65534)
        store = Store(pathlib.Path(path), make="t", user=65534, group=65534, extra_groups=[])
        store.create("demo")
        store.call("write_file", name="demo", path="d/f", content="x")
        (store.path / "t/demo/d").chmod(0o555)
        assert store.call("delete", name="demo") == {"deleted": "demo"}
        assert store.names() == []
        (store.path / "t").chmod(0)
        with pytest.raises(JobError, match="Permission denied"):
            store.call("list")
        (store.path / "t").chmod(0o755)


@pytest.mark.skipif(os.geteuid() == 0, reason="as root it runs by itself")
def test_jobs_of_a_boxd_that_an_ordinary_user_started():
    """box-priv is root of a user namespace then, and jobs run as the user."""
    done = subprocess.run([str(BUILD / "tests/integration/test_job_module"), "--rootless", str(BUILD)],
                          capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
