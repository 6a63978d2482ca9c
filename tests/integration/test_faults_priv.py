# SPDX-License-Identifier: Apache-2.0
"""box-priv against a boxd that was taken over: check I18 of the catalogue.

BOX_LIVE_SECONDS and BOX_LIVE_SEED make the flood longer or repeat one.
"""

import hashlib
import os
import pathlib
import random
import shutil
import subprocess
import time

import pytest
from boxlib import BUILD
from hostlib import SCALE, adopt_orphans, alive, assert_no_leak, built, mount_dir, need, reap_orphans, until

SECONDS = float(os.environ.get("BOX_LIVE_SECONDS", "8"))
# Where a program of the sandbox could leave something if it got out: what everybody may write, and what is ours.
WATCHED = ["/tmp", "/var/tmp", "/dev/shm", "/run", "/etc", "/usr/local", "/usr/bin", "/opt", "/srv", "/home", "/root",
           "/mnt", "/var/lib"]


def fingerprint(top):
    """Names, owners, modes and contents below a directory."""
    h = hashlib.sha256()
    for path in sorted(top.glob("**/*")):
        st = path.lstat()
        h.update(f"{path} {st.st_mode} {st.st_uid} {st.st_gid}\n".encode())
        if path.is_file() and not path.is_symlink():
            h.update(path.read_bytes())
    return h.hexdigest()


def of_sessions(since, inside):
    """Files that a session's own ids own, made since then, outside of one directory."""
    found = []
    for top in WATCHED:
        out = subprocess.run(["find", top, "-xdev", "-maxdepth", "4", "-path", str(inside), "-prune", "-o", "-path", "*/box-test-*", "-prune",
                              "-o", "-path", "*/box-live-*", "-prune", "-o", "-uid", "+1999999999", "-newermt", since,
                              "-print"], text=True, capture_output=True, env={"LC_ALL": "C", "PATH": os.environ["PATH"]})
        found += out.stdout.split("\n")[:-1]
    return found


class Instance:
    """What hostlib needs to know of a daemon that is none."""

    def __init__(self, state, tag):
        self.state, self._tag = state, tag

    def tag(self):
        return self._tag


@pytest.fixture
def world():
    adopt_orphans()
    top = mount_dir("box-live-")
    for name in ("state", "allowed/sub", "outside"):
        (top / name).mkdir(parents=True)
    (top / "allowed/sub/file").write_text("allowed")
    (top / "outside/secret").write_text("SECRET")
    (top / "allowed/out").symlink_to(top / "outside")
    os.chown(top / "state", 1_999_999_999, 1_999_999_999)
    yield top
    shutil.rmtree(top, ignore_errors=True)
    reap_orphans()


def run_live(world, seconds, seed, tag):
    command = ["unshare", "-n", built("fuzz/live_priv"), str(BUILD / "box-priv"), str(BUILD / "box-init"),
               str(world / "state"), tag, str(world / "allowed"), str(seconds), str(seed)]
    return subprocess.run(command, text=True, capture_output=True, timeout=seconds + 300 * SCALE)


# These could only be refused; the rest may run, in a sandbox that holds them.
MUST_REFUSE = {"writable_usr", "writable_etc", "other_host_directory", "host_by_dots", "overlay_on_etc", "overlay_on_allowed",
               "link_out", "dir_by_link", "mount_by_link", "own_usr", "made_in_usr", "outside_the_list", "absolute_source",
               "link_in_the_list", "root_not_there", "root_far_away", "covers_proc", "private_by_dots", "private_by_path",
               "name_is_a_path", "range_of_others", "both_are_one", "no_limits", "endless_disk", "odd_disk",
               "too_many_operations", "unknown_operation", "string_outside", "setuid_mode"}


def test_check_I18_a_taken_over_boxd_gains_nothing(world):
    need("unshare", "find")
    seed = int(os.environ.get("BOX_LIVE_SEED", random.SystemRandom().randrange(1 << 31)))
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    before = fingerprint(world / "outside")
    mounts = len(pathlib.Path("/proc/self/mountinfo").read_text().splitlines())
    instance = Instance(world / "state", f"box-{random.SystemRandom().randrange(1 << 44):011x}")
    out = run_live(world, SECONDS, seed, instance.tag())
    assert out.returncode == 0, f"seed {seed}: {out.stdout}\n{out.stderr}"
    lines = dict(line.split(": ", 1) for line in out.stdout.splitlines() if ": " in line)
    for name in MUST_REFUSE:
        assert lines[name].startswith("refused: "), f"{name}: {lines.get(name)}"
        assert len(lines[name]) > len("refused: "), f"{name} was refused without a word"
    counts = dict(word.split("=") for word in out.stdout.splitlines()[-1].split() if "=" in word)
    assert int(counts["created"]) > 10 / SCALE and int(counts["refused"]) > 50 / SCALE, counts
    assert counts["created"] == counts["destroyed"], counts
    # Nothing of it is left, and nothing became of the host.
    assert_no_leak(instance)
    assert fingerprint(world / "outside") == before
    assert of_sessions(since, world) == []
    assert abs(len(pathlib.Path("/proc/self/mountinfo").read_text().splitlines()) - mounts) < 50  # others mount too
    assert not [line for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines() if str(world) in line]


def test_check_I18_box_priv_ends_with_whoever_has_taken_it_over(world):
    """Killed in the middle of the flood: box-priv takes everything along."""
    need("unshare", "pgrep")
    instance = Instance(world / "state", f"box-{random.SystemRandom().randrange(1 << 44):011x}")
    command = ["unshare", "-n", built("fuzz/live_priv"), str(BUILD / "box-priv"), str(BUILD / "box-init"),
               str(world / "state"), instance.tag(), str(world / "allowed"), "600", "7"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flood:
        for line in flood.stdout:  # the hostile plans are over
            if line.startswith("no_root_at_all"):
                break
        children = pathlib.Path(f"/proc/{flood.pid}/task/{flood.pid}/children").read_text().split()
        flood.kill()
    for pid in map(int, children):
        until(lambda p=pid: not alive(p), what="the end of box-priv")
    assert_no_leak(instance)


def test_check_I18_box_priv_by_hand_is_refused():
    r = subprocess.run([str(BUILD / "box-priv")], text=True, capture_output=True, timeout=60 * SCALE)
    assert r.returncode == 1 and "started by boxd" in r.stderr
