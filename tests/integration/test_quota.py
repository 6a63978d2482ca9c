# SPDX-License-Identifier: Apache-2.0
"""Hard limits on disk: checks F01, F02, F04, F06, F07, F09, F11 and F12 of the catalogue (F10: test_faults.py)."""

import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import threading
import time

import pytest
from boxlib import ApiError, Boxd
from hostlib import SCALE, assert_no_leak, leftovers, need

MIB = 1 << 20
QUOTA = 24


@pytest.fixture
def quota(api, session):
    """A session with a quota of 24 MiB."""
    return session(workspace_quota_mb=QUOTA)


def image_of(daemon, api, name):
    """The file that holds the session's disk, on the host: found by its loop device."""
    pid = api.receipt(name)["host_pid"]
    device = next(line.split()[2] for line in pathlib.Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
                  if line.split()[4] == "/workspace")
    backing = pathlib.Path(f"/sys/dev/block/{device}/loop/backing_file").read_text().strip()
    assert backing.startswith(str(daemon.state)), backing
    return pathlib.Path(backing)


def filled(api, name):
    """Bytes that files take inside, and whether more would fit."""
    r = api.sh(name, "du -sb /workspace /home/box | awk '{n += $1} END {print n}'; df -B1 --output=size,used,avail "
                     "/workspace | tail -1")
    total, (size, used, avail) = int(r["stdout"].split()[0]), map(int, r["stdout"].split()[1:4])
    return total, size, used, avail


WAYS = {
    "dd": "dd if=/dev/zero of=/workspace/f bs=1M count=1000",
    "direct": "dd if=/dev/zero of=/workspace/f bs=1M count=1000 oflag=direct",
    "append": "while head -c 1000000 /dev/zero >> /workspace/f; do :; done; false",
    "many files": "i=0; while head -c 200000 /dev/zero > /workspace/f$i; do i=$((i+1)); done; false",
    "home": "dd if=/dev/zero of=$HOME/f bs=1M count=1000",
    "both": "dd if=/dev/zero of=$HOME/f bs=1M count=16; dd if=/dev/zero of=/workspace/f bs=1M count=1000",
    "fallocate": "fallocate -l 1G /workspace/f || { i=0; while fallocate -l 1M /workspace/f$i; do i=$((i+1)); done; false; }",
    "synced": "dd if=/dev/zero of=/workspace/f bs=1M count=1000 conv=fsync",
    "punched": "truncate -s 10G /workspace/f; dd if=/dev/zero of=/workspace/f bs=1M count=1000 conv=notrunc",
    "directories": "d=/workspace; while d=$d/" + "n" * 200 + "; mkdir $d; do :; done; dd if=/dev/zero of=/workspace/f "
                   "bs=1M count=1000",
    "python": "python3 -c \"\nimport os\nfd = os.open('/workspace/f', os.O_CREAT | os.O_WRONLY)\nwhile True: "
              "os.write(fd, bytes(1 << 20))\"",
}


@pytest.mark.parametrize("way", WAYS)
def test_check_F01_no_way_past_the_limit(boxd_shared, api, quota, way):
    image = image_of(boxd_shared, api, quota)
    reserved = image.stat()
    assert reserved.st_size == QUOTA * MIB and reserved.st_blocks * 512 >= QUOTA * MIB  # all of it promised already
    r = api.sh(quota, WAYS[way], timeout_sec=120 * SCALE)
    assert r["outcome"] in ("quota_exceeded", "exited", "signaled") and r["exit_code"] != 0, r
    total, size, used, avail = filled(api, quota)
    assert total <= QUOTA * MIB and size <= QUOTA * MIB and used <= QUOTA * MIB
    after = image.stat()
    assert (after.st_size, after.st_blocks) == (reserved.st_size, reserved.st_blocks), "the host gave more"
    # The session is not bricked.
    assert api.sh(quota, "rm -rf /workspace/* $HOME/*; echo x > /workspace/again && cat /workspace/again")["stdout"] == "x\n"


@pytest.mark.vm
def test_check_F01_the_outcome_says_so(api, quota):
    r = api.sh(quota, "dd if=/dev/zero of=/workspace/a bs=1M count=12; dd if=/dev/zero of=/workspace/b bs=1M")
    assert r["outcome"] == "quota_exceeded" and "No space left" in r["stderr"], r


def test_check_F01_a_mapping_past_the_end_of_the_disk_is_a_signal(api, quota):
    script = ("import mmap, os\nfd = os.open('/workspace/f', os.O_CREAT | os.O_RDWR)\nos.truncate(fd, 20 << 20)\n"
              "os.system('head -c 15000000 /dev/zero > /workspace/g')\nm = mmap.mmap(fd, 20 << 20)\n"
              "for i in range(0, 20 << 20, 4096): m[i] = 1\nm.flush()")
    begin = time.monotonic()
    r = api.x(quota, "python3", "-c", script, timeout_sec=60 * SCALE)
    assert r["outcome"] in ("signaled", "quota_exceeded") or r["exit_code"] != 0, r
    assert time.monotonic() - begin < 50 * SCALE
    assert api.sh(quota, "rm /workspace/*; echo ok")["stdout"] == "ok\n"


def test_check_F01_sparse_files_take_nothing(api, quota):
    r = api.sh(quota, "truncate -s 20M /workspace/a /workspace/b; du -s /workspace | cut -f1")
    assert int(r["stdout"]) < 100, r


def test_check_F01_deleted_files_that_are_open_still_count(api, quota):
    r = api.sh(quota, "exec 3> /workspace/f; rm /workspace/f; dd if=/dev/zero bs=1M count=1000 >&3; "
                      "df --output=avail /workspace | tail -1")
    assert int(r["stdout"].split()[-1]) < 200, r
    assert int(api.sh(quota, "df --output=avail /workspace | tail -1")["stdout"]) > 10_000


@pytest.mark.vm
def test_check_F02_inodes_are_limited(boxd_shared, api, quota):
    before = os.statvfs(boxd_shared.state)
    total = int(api.sh(quota, "df --output=itotal /workspace | tail -1")["stdout"])
    assert total <= QUOTA * MIB / 16384 * 1.1
    script = ("import os\nn = 0\ntry:\n while True:\n  os.close(os.open(f'/workspace/{n}', os.O_CREAT)); n += 1\n"
              "except OSError as e: print(n, e.strerror); raise SystemExit(1)")
    r = api.x(quota, "python3", "-c", script, timeout_sec=120 * SCALE)
    count, why = r["stdout"].split(" ", 1)
    assert int(count) <= total and why.startswith("No space left"), r
    assert r["outcome"] == "quota_exceeded", r
    after = os.statvfs(boxd_shared.state)
    assert before.f_ffree - after.f_ffree < 200, "the host paid for them"  # others are at work on it too
    assert api.sh(quota, "rm /workspace/1 && mkdir /workspace/d && rmdir /workspace/d; echo ok")["stdout"] == "ok\n"


def on_small_disk(size):
    """A daemon whose state is on a disk of that many MiB, in a mount namespace of its own."""
    top = pathlib.Path(tempfile.mkdtemp(prefix="box-small-"))
    image = top / "disk"
    (top / "state").mkdir()
    with open(image, "wb") as f:
        f.truncate(size * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    daemon = Boxd(state=top / "state",
                  prefix=["unshare", "-m", "--propagation", "private", "sh", "-c",
                          f'mount -o loop {image} {top}/state && chmod 755 {top}/state && exec "$@"', "sh"])
    daemon.top = top
    daemon.sock = pathlib.Path(f"/proc/{daemon.pid}/root{top}/state/boxd.sock")
    return daemon


def close_small(daemon):
    daemon.close()
    for p in sorted(daemon.top.glob("**/*"), reverse=True):
        p.rmdir() if p.is_dir() else p.unlink()
    daemon.top.rmdir()


def test_check_F06_a_full_host_refuses_and_keeps_its_promises():
    need("unshare", "mkfs.ext4", "mount")
    daemon = on_small_disk(160)
    try:
        api = daemon.client()
        made, error = [], None
        for i in range(8):
            try:
                api.new(f"s{i}", workspace_quota_mb=40)
                made.append(f"s{i}")
            except ApiError as e:
                error = e
                break
        assert made and error is not None, made
        assert error.code == "limit" and error.status == 429 and "free" in error.detail, error
        # What was promised is there, to the last byte, although the host is full.
        filler = pathlib.Path(f"/proc/{daemon.pid}/root{daemon.top}/state/filler")
        with open(filler, "wb") as f:
            try:
                while True:
                    f.write(bytes(MIB))
                    f.flush()
            except OSError:
                pass
        for name in made:
            r = api.sh(name, "dd if=/dev/zero of=/workspace/f bs=1M count=34 conv=fsync && echo complete", timeout_sec=120)
            assert r["stdout"] == "complete\n", r
        with pytest.raises(ApiError) as caught:
            api.new("more", workspace_quota_mb=1)
        assert caught.value.status >= 429, caught.value
        # Others live on, and what is given back can be promised again.
        assert api.sh(made[0], "rm /workspace/f; echo ok > /workspace/g && cat /workspace/g")["stdout"] == "ok\n"
        filler.unlink()
        api.rm(made.pop())
        api.new("again", workspace_quota_mb=30)
        assert api.sh("again", "echo ok")["stdout"] == "ok\n"
    finally:
        close_small(daemon)


def test_check_F06_a_full_host_is_told_when_no_quota_was_asked_for():
    """Without room for anything, creates fail with a type, and work again when there is."""
    need("unshare", "mkfs.ext4", "mount")
    daemon = on_small_disk(32)
    try:
        api = daemon.client()
        api.new("first")
        filler = pathlib.Path(f"/proc/{daemon.pid}/root{daemon.top}/state/filler")
        with open(filler, "wb") as f:
            try:
                while True:
                    f.write(bytes(4096))
                    f.flush()
            except OSError:
                pass
        r = api.sh("first", "head -c 1000000 /dev/zero > /workspace/f")
        assert r["exit_code"] != 0, r
        outcomes = []
        for i in range(30):
            try:
                api.new(f"s{i}")
                outcomes.append("made")
            except ApiError as e:
                assert e.detail, e
                outcomes.append(e.code)
        filler.unlink()
        for s in api.ps():
            try:
                api.rm(s["session_id"])
            except ApiError as e:  # one that could not be recorded goes by itself
                assert e.code == "not_found", e
        api.new("again")
        assert api.sh("again", "echo x > /workspace/f && cat /workspace/f")["stdout"] == "x\n", outcomes
    finally:
        close_small(daemon)


def test_check_F07_a_quota_that_cannot_be_had_is_refused():
    need("setpriv")
    with tempfile.TemporaryDirectory(prefix="box-user-") as top:
        os.chmod(top, 0o755)
        state = pathlib.Path(top) / "state"
        state.mkdir()
        os.chown(state, 12345, 12345)
        daemon = Boxd(state=state, prefix=["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"])
        try:
            api = daemon.client()
            before = leftovers(daemon)
            with pytest.raises(ApiError) as caught:
                api.new("q", workspace_quota_mb=8)
            assert caught.value.code == "unsupported" and "quota" in caught.value.detail, caught.value
            assert caught.value.problem["remediation"]
            assert api.ps() == [] and leftovers(daemon) == before
            quota = {c["id"]: c for c in api.doctor()["checks"]}["disk-quota"]
            assert quota["status"] == "missing" and quota["remedy"]
        finally:
            daemon.close()


@pytest.mark.parametrize("size,code", [(1 << 29, {"invalid", "limit"}), (1 << 30, {"invalid", "limit"})])
def test_check_F07_a_quota_larger_than_the_host_is_refused(api, size, code):
    with pytest.raises(ApiError) as caught:
        api.new("huge", workspace_quota_mb=size)
    assert caught.value.code in code and "huge" not in [s["session_id"] for s in api.ps()]


def test_check_F09_many_at_once_leave_nothing(boxd):
    """200 sessions with disks of their own, by 8 hands."""
    count, hands = (200, 8) if SCALE == 1 else (12, 3)
    boxd.client().new("warm-up", workspace_quota_mb=8)
    boxd.client().rm("warm-up")
    took, failures, lock = [], [], threading.Lock()

    def work(first):
        api = boxd.client(timeout=120 * SCALE)
        for i in range(first, count, hands):
            try:
                begin = time.monotonic()
                api.new(f"q{i}", workspace_quota_mb=8)
                with lock:
                    took.append(time.monotonic() - begin)
                if i % 4 == 0:
                    assert api.sh(f"q{i}", f"echo {i} > /workspace/f; cat /workspace/f")["stdout"] == f"{i}\n"
                api.rm(f"q{i}")
            except Exception as error:  # noqa: BLE001 - told below
                failures.append(repr(error))
        api.close()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(hands)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(300 * SCALE)
    assert not failures and len(took) == count, failures[:3]
    assert_no_leak(boxd)
    # One after the other, so that what is measured is a create and not the queue.
    api, alone = boxd.client(), []
    for i in range(20):
        begin = time.monotonic()
        api.new("one", workspace_quota_mb=8)
        alone.append(time.monotonic() - begin)
        api.rm("one")
    busy = max(1.0, os.getloadavg()[0] / os.cpu_count())
    assert statistics.median(alone) < 0.06 * SCALE * busy, alone


@pytest.mark.vm
def test_check_F11_every_account_agrees(boxd_shared, api, quota):
    image = image_of(boxd_shared, api, quota)
    for megabytes in (0, 3, 10):
        r = api.sh(quota, f"dd if=/dev/zero of=/workspace/f bs=1M count={megabytes} conv=fsync 2>/dev/null; sync; "
                          "python3 -c \"import json, os; s = os.statvfs('/workspace'); print(json.dumps([s.f_blocks * "
                          "s.f_frsize, (s.f_blocks - s.f_bfree) * s.f_frsize, s.f_files, s.f_files - s.f_ffree, "
                          "s.f_frsize]))\"")
        total, used, inodes, inodes_used, block = json.loads(r["stdout"])
        receipt = api.receipt(quota)
        disk = receipt["disk"]
        assert disk["bytes_total"] == total and disk["inodes_total"] == inodes
        assert abs(disk["bytes_used"] - used) <= block and abs(disk["inodes_used"] - inodes_used) <= 1
        assert megabytes * MIB <= used <= megabytes * MIB + MIB
        assert receipt["limits"]["disk_bytes"] == {"enforced": True, "value": QUOTA * MIB}
        assert total <= image.stat().st_size == QUOTA * MIB


def test_check_F11_no_quota_no_account(api, sid):
    receipt = api.receipt(sid)
    assert "disk" not in receipt and receipt["limits"]["disk_bytes"]["enforced"] is False


def test_check_F01_check_F02_nothing_is_overrun_while_a_session_writes_at_full_speed(boxd_shared, api, quota):
    """Bytes and files, by several writers, looked at from outside all the time. Then it deletes and goes on."""
    image = image_of(boxd_shared, api, quota)
    reserved = image.stat()
    write = ("for w in 1 2 3; do (i=0; while :; do echo $i > /workspace/$w-$i 2>/dev/null || break; i=$((i+1)); done) & "
             "(dd if=/dev/zero of=/workspace/big-$w bs=64k 2>/dev/null) & done; wait; false")
    done, writer = [], boxd_shared.client(timeout=300 * SCALE)
    thread = threading.Thread(target=lambda: done.append(writer.sh(quota, write, timeout_sec=240 * SCALE)))
    thread.start()
    looks = 0
    while thread.is_alive() or looks == 0:
        disk, now = api.receipt(quota)["disk"], image.stat()
        assert disk["bytes_used"] <= disk["bytes_total"] <= QUOTA * MIB
        assert disk["inodes_used"] <= disk["inodes_total"]
        assert (now.st_size, now.st_blocks) == (reserved.st_size, reserved.st_blocks), "the host gave more"
        looks += 1
    thread.join()
    assert done and done[0]["exit_code"] != 0, done
    after = api.receipt(quota)["disk"]
    assert after["bytes_total"] - after["bytes_used"] < MIB or after["inodes_used"] == after["inodes_total"]
    assert api.sh(quota, "rm -rf /workspace/*; echo x > /workspace/again && cat /workspace/again")["stdout"] == "x\n"


def test_check_F04_a_file_cannot_be_taken_out_of_the_account(api, quota):
    """No other project, no flag that escapes, no rename to where nothing is counted."""
    script = """
import ctypes, errno, fcntl, os, struct
fd = os.open('/workspace/f', os.O_CREAT | os.O_RDWR)
os.write(fd, bytes(4096))
FS_IOC_FSSETXATTR, FS_IOC_SETFLAGS = 0x401c5820, 0x40086602
for name, request, data in (('project', FS_IOC_FSSETXATTR, struct.pack('=IIIII8s', 0, 0, 0, 7777, 0, bytes(8))),
                            ('inherit', FS_IOC_FSSETXATTR, struct.pack('=IIIII8s', 0x200, 0, 0, 7777, 0, bytes(8))),
                            ('append-only', FS_IOC_SETFLAGS, struct.pack('=q', 0x20))):
    try:
        fcntl.ioctl(fd, request, data)
        print(name, 'was taken')
    except OSError as e:
        assert e.errno in (errno.EPERM, errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EACCES), e
for place in ('/tmp', '/dev/shm'):
    for move in (os.rename, os.link):
        try:
            move('/workspace/f', place + '/f')
            print(move.__name__, place, 'was taken')
        except OSError as e:
            assert e.errno in (errno.EXDEV, errno.EPERM), e
print('done')
"""
    r = api.x(quota, "python3", "-c", script)
    assert (r["stdout"], r["exit_code"]) == ("done\n", 0), r


def test_check_F12_a_session_with_very_many_files_goes_at_once_and_leaves_nothing(boxd):
    """What lies in an image goes with it; what lies in a directory is removed behind everybody's back."""
    count = 12000 if SCALE == 1 else 2000
    for name, spec in (("image", {"workspace_quota_mb": 64}), ("plain", {})):
        api = boxd.client(timeout=300 * SCALE)
        api.new(name, **spec)
        made = api.x(name, "python3", "-c", f"""
import os
n = 0
try:
    for d in range({count} // 1000):
        os.mkdir(f'/workspace/{{d}}')
        for f in range(1000):
            os.close(os.open(f'/workspace/{{d}}/{{f}}', os.O_CREAT | os.O_WRONLY))
            n += 1
except OSError:
    pass
print(n)""", timeout_sec=240 * SCALE)
        assert int(made["stdout"]) > 1000, made
        api.rm(name)
        assert name not in [s["session_id"] for s in api.ps()]
        api.new("next")  # nobody waits for what is being removed
        api.rm("next")
        assert_no_leak(boxd, seconds=120, what=name)
