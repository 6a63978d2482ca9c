# SPDX-License-Identifier: Apache-2.0
"""Disks that are filled by every means, while a neighbour goes on working: checks F01, F02, F03, F05."""

import pathlib

import pytest
from watch import SLOW, Victim, Watch, amount, settled, settles

MIB = 1 << 20
QUOTA_MB = 16
QUOTA = QUOTA_MB * MIB


@pytest.fixture
def victim(boxd_shared, session):
    with Victim(boxd_shared, session()) as v:
        yield v
    v.check()


class Disk:
    """A session under quota, and the image it lives in."""

    def __init__(self, daemon, api, sid):
        self.api, self.sid, self.state = api, sid, daemon.state
        before = set(self.images())
        self.image = None
        for image in before:
            if self._backs(image, Watch(api, sid).pid1):
                self.image = image

    def images(self):
        return list(self.state.glob("sessions/*/disk.img"))

    @staticmethod
    def _backs(image, pid1):
        mounts = pathlib.Path(f"/proc/{pid1}/mountinfo").read_text()
        for loop in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
            if loop.read_text().strip() == str(image):
                return f" /dev/{loop.parents[1].name} " in mounts
        return False

    def check(self):
        """Not one byte more on the host (its own map of the image apart), and not one file."""
        st = self.image.stat()
        assert st.st_size <= QUOTA and st.st_blocks * 512 <= QUOTA + 65536
        names = {p.name for p in self.image.parent.rglob("*")}
        assert names <= {"disk.img", "disk", "init.sock"}, names

    def recovers(self):
        """F05: at 100 %, unlink, rename and another command still work."""
        r = self.api.sh(self.sid, """
            cd /workspace && first=$(find /workspace /home/box ! -type d | head -1)
            mv "$first" "$first.renamed" && rm "$first.renamed" && echo renamed
            find /workspace /home/box -mindepth 1 -delete && echo again > again && cat again""")
        assert (r["outcome"], r["exit_code"], r["stdout"]) == ("exited", 0, "renamed\nagain\n"), r
        r = self.api.sh(self.sid, "head -c 10000000 /dev/zero > /workspace/f")
        assert (r["outcome"], r["exit_code"]) == ("exited", 0)
        assert self.api.sh(self.sid, "exit 3")["outcome"] == "exited"


@pytest.fixture
def disk(boxd_shared, api, session):
    return Disk(boxd_shared, api, session(workspace_quota_mb=QUOTA_MB, memory_mb=256))


# Each exits with an error when the kernel says that there is no more.
FILLERS = {
    "dd": "dd if=/dev/zero of=/workspace/f bs=1M",
    "dd in small pieces": "dd if=/dev/zero of=/workspace/f bs=4k",
    "dd in large pieces": "dd if=/dev/zero of=/workspace/f bs=8M",
    "direct": "dd if=/dev/zero of=/workspace/f bs=64k oflag=direct || exit 1",
    "fallocate step by step": "i=0; while fallocate -o $((i * 65536)) -l 65536 /workspace/f; do i=$((i + 1)); done; exit 1",
    "many files": "i=0; while head -c 200000 /dev/zero > /workspace/f$i; do i=$((i + 1)); done; exit 1",
    "home": "dd if=/dev/zero of=/home/box/f bs=1M",
    "deleted but open": "exec 9>/workspace/gone && rm /workspace/gone && echo x > /workspace/x && cat /dev/zero >&9",
    "symbolic link targets": """python3 -c '
import os
for i in range(100000): os.symlink("t" * 4000, "/workspace/l%d" % i)'""",
    "extended attributes": """python3 -c '
import os
for i in range(100000):
    p = "/workspace/x%d" % i
    open(p, "w").close()
    os.setxattr(p, "user.a", b"v" * 3000)'""",
    "copied without reading": """python3 -c '
import os
with open("/workspace/src", "wb") as f: f.write(b"x" * 4000000)
a = os.open("/workspace/src", os.O_RDONLY)
for i in range(100):
    b = os.open("/workspace/c%d" % i, os.O_RDWR | os.O_CREAT)
    left = 4000000
    while left: left -= os.copy_file_range(a, b, left, 4000000 - left, 4000000 - left)'""",
    "holes filled later": """python3 -c '
import os
fd = os.open("/workspace/h", os.O_RDWR | os.O_CREAT)
os.truncate(fd, 16000000)
for i in range(200):
    g = os.open("/workspace/g%d" % i, os.O_RDWR | os.O_CREAT)
    os.truncate(g, 15000000)
    os.pwrite(g, b"x" * 200000, 7000000)'""",
    "synchronous": "dd if=/dev/zero of=/workspace/f bs=1M conv=fsync",
}


@pytest.mark.parametrize("how", [pytest.param(how, marks=pytest.mark.vm) if how == "dd" else how for how in FILLERS])
def test_check_F01_check_F03_no_way_leads_past_the_quota(api, disk, victim, how):
    r = api.sh(disk.sid, FILLERS[how], timeout_sec=100)
    # The last one to hold a deleted file frees it, and with it the disk, before anybody can look.
    assert r["outcome"] == "quota_exceeded" or (how, r["outcome"]) == ("deleted but open", "exited"), r
    assert r["exit_code"] not in (0, None)
    used = api.sh(disk.sid, "df --output=used,size -B1 /workspace | tail -1; sync")["stdout"].split()
    assert int(used[0]) <= int(used[1]) <= QUOTA
    disk.check()
    disk.recovers()
    disk.check()


def test_check_F01_a_single_request_for_too_much(api, disk, victim):
    for cmd in ("fallocate -l 1G /workspace/f", f"truncate -s {QUOTA + 1} /workspace/f"):
        r = api.sh(disk.sid, cmd)
        assert r["exit_code"] != 0 and r["outcome"] in ("exited", "quota_exceeded"), r
    r = api.x(disk.sid, "fallocate", "-l", str(QUOTA), "/workspace/f")
    assert r["exit_code"] != 0
    r = api.x(disk.sid, "truncate", "-s", "1T", "/workspace/sparse")  # a file larger than the disk, by signal
    assert r["outcome"] == "quota_exceeded" and r["exit_code"] == 128 + 25
    disk.check()


def test_check_F01_a_mapping_that_outgrows_the_disk_is_a_signal_not_a_hang(api, disk, victim):
    r = api.x(disk.sid, "python3", "-c", """
import mmap, os
maps = []
for i in range(4):
    fd = os.open("/workspace/m%d" % i, os.O_RDWR | os.O_CREAT)
    os.truncate(fd, 15000000)
    m = mmap.mmap(fd, 15000000)
    for at in range(0, len(m), 4096): m[at] = 1
    maps.append(m)""", timeout_sec=60 * SLOW)
    assert (r["outcome"], r["exit_code"]) in (("quota_exceeded", 128 + 7), ("signaled", None)), r
    disk.check()
    disk.recovers()


@pytest.mark.vm
def test_check_F02_inode_bomb(api, disk, victim, boxd_shared):
    files = len(list(boxd_shared.state.rglob("*")))
    r = api.x(disk.sid, "python3", "-c", """
import os
n = 0
try:
    while True:
        os.close(os.open("/workspace/i%d" % n, os.O_CREAT))
        n += 1
except OSError as e:
    print(n, e.errno)
    raise SystemExit(1)""")
    made, why = map(int, r["stdout"].split())
    assert (r["outcome"], r["exit_code"], why) == ("quota_exceeded", 1, 28)
    assert 100 < made <= QUOTA // 4096
    assert len(list(boxd_shared.state.rglob("*"))) <= files + 8
    disk.check()
    r = api.sh(disk.sid, "cd /workspace; rm i0 && mv i1 i2 && echo x > new && find . -name 'i*' -delete && ls")
    assert (r["outcome"], r["stdout"]) == ("exited", "new\n")


def test_check_F05_git_works_its_way_out_of_a_full_disk(api, disk):
    git = "cd /workspace && git -c user.name=a -c user.email=a@b"
    r = api.sh(disk.sid, f"""{git} init -q . && for i in 1 2 3; do head -c 1000000 /dev/urandom > f; git add f;
        git -c user.name=a -c user.email=a@b commit -qm c$i; done; dd if=/dev/zero of=fill bs=4k 2>/dev/null; git --no-optional-locks status --short""")
    assert r["stdout"] == "?? fill\n", r
    r = api.sh(disk.sid, "cd /workspace && rm fill && git gc -q && git fsck && git log --oneline | wc -l")
    assert (r["outcome"], r["stdout"]) == ("exited", "3\n"), r


@pytest.mark.vm
def test_check_F05_a_full_session_can_be_deleted(boxd):
    api = boxd.client()
    api.new("warm", workspace_quota_mb=QUOTA_MB)
    api.rm("warm")
    before = settled(boxd)
    for n in range(amount(5, 2)):
        api.new("full", workspace_quota_mb=QUOTA_MB)
        assert api.sh("full", FILLERS["dd"])["outcome"] == "quota_exceeded"
        api.rm("full")
    settles(boxd, before)


def test_check_F03_places_in_memory_are_bounded_too(api, session, victim):
    """Whatever is writable has a size, with and without a quota."""
    for spec in ({"workspace_quota_mb": QUOTA_MB}, {"workspace_quota_mb": QUOTA_MB, "read_only_rootfs": False}):
        sid = session(memory_mb=128, **spec)
        r = api.sh(sid, """
            for d in /tmp /dev/shm /var/tmp /home/box /workspace /usr /etc /var /run /opt /root /; do
                [ -w $d ] || continue
                dd if=/dev/zero of=$d/fill bs=64k 2>/dev/null
                echo $d $(stat -c %s $d/fill); rm -f $d/fill
            done""", timeout_sec=100)
        sizes = {d: int(n) for d, n in (line.split() for line in r["stdout"].splitlines())}
        assert set(sizes) >= {"/tmp", "/dev/shm", "/home/box", "/workspace"}
        if not spec.get("read_only_rootfs", True):
            assert set(sizes) >= {"/usr", "/etc", "/var", "/opt"}
        assert all(n <= 128 * MIB for n in sizes.values()), sizes
        for d in ("/workspace", "/home/box", "/usr", "/etc"):
            assert sizes.get(d, 0) <= QUOTA
        if "read_only_rootfs" in spec:
            continue
        # Inodes as well.
        r = api.x(sid, "python3", "-c", """
import os
for d in ("/tmp", "/dev/shm"):
    n = 0
    try:
        while n < 300000:
            os.close(os.open("%s/i%d" % (d, n), os.O_CREAT))
            n += 1
    except OSError as e: pass
    print(n)
    for i in range(n): os.unlink("%s/i%d" % (d, i))""", timeout_sec=100)
        assert r["outcome"] == "oom_killed" or all(int(n) < 100000 for n in r["stdout"].split()), r


@pytest.mark.vm
def test_the_quota_is_what_df_says(api, session):
    for mb in (8, 64, 300):
        sid = session(workspace_quota_mb=mb)
        size, inodes = map(int, api.sh(sid, "df --output=size,itotal -B1 /workspace | tail -1")["stdout"].split())
        assert 0.85 * mb * MIB < size <= mb * MIB
        assert inodes >= 400
        assert api.receipt(sid)["limits"]["disk_bytes"] == {"enforced": True, "value": mb * MIB}
