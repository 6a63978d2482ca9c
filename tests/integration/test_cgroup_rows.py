# SPDX-License-Identifier: Apache-2.0
"""Every combination of cgroups that a host can give us: v1, v2 or both, each controller there or not, handed to an
ordinary user or not. Whatever is missing, commands run; and the doctor, who runs one, and the receipt say the same.

Rows with v1 are made by taking hierarchies away in a mount namespace of boxd's own; rows with controllers on v2 run
where there are some (make test-vm)."""

import contextlib
import os
import pathlib
import tempfile

import pytest
from boxlib import ApiError, Boxd
from hostlib import SCALE, need, until
from watch import Watch

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to hand out cgroups")
USER = 12345
ALL = ("cpu", "memory", "pids")
FIELD = {"memory": "memory_mb", "cpu": "cpus", "pids": "pids_limit"}
RECEIPT = {"cpu": "cpu_quota_us_per_100ms", "memory": "memory_bytes", "pids": "pids"}


def mounts():
    """{controller: where its v1 hierarchy is}, and where the v2 tree is."""
    v1, v2 = {}, None
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ")
        root, where = left.split()[3:5]
        kind, _source, options = right.split()[:3]
        if root == "/" and kind == "cgroup2" and v2 is None:
            v2 = where
        for name in ALL:
            if root == "/" and kind == "cgroup" and name in options.split(","):
                v1.setdefault(name, where)
    return v1, v2


V1, V2 = mounts()
HYBRID = pytest.mark.skipif(sorted(V1) != sorted(ALL) or V2 is None, reason="this host has no cgroup v1 beside v2")
UNIFIED = pytest.mark.skipif(
    V2 is None or not set(ALL) <= set(pathlib.Path(V2, "cgroup.controllers").read_text().split()),
    reason="cgroup v2 has no controllers here; make test-vm runs this")


def without(*paths):
    """A prefix for boxd: the same host without these hierarchies."""
    script = "".join(f"umount -l {path}; " for path in dict.fromkeys(paths))
    return ["unshare", "-m", "--propagation", "private", "sh", "-ec", script + 'exec "$@"', "sh"]


def as_user(group=None):
    enter = f"echo $$ > {group}/cgroup.procs; " if group is not None else ""
    return ["sh", "-ec", f'{enter}exec setpriv --reuid {USER} --regid {USER} --clear-groups "$@"', "sh"]


@contextlib.contextmanager
def delegated(controllers=()):
    """A group of the v2 tree that belongs to the user, with these controllers."""
    outer = pathlib.Path(V2, f"box-row-{os.getpid()}")
    inner = outer / "user"
    inner.mkdir(parents=True)
    for name in controllers:
        (outer / "cgroup.subtree_control").write_text("+" + name)
    for name in (".", "cgroup.procs", "cgroup.subtree_control"):
        os.chown(inner / name, USER, USER)
    try:
        yield inner
    finally:
        def gone():
            for path in [*sorted((p for p in outer.rglob("*") if p.is_dir()), reverse=True), outer]:
                with contextlib.suppress(OSError):
                    path.rmdir()
            return not outer.exists()

        until(gone, what="the end of the group")


def row(prefix, enforced, user=False):
    """boxd under that prefix does everything that sessions need, and enforces exactly these."""
    state = pathlib.Path(tempfile.mkdtemp(prefix="box-test-"))
    if user:
        os.chown(state, USER, USER)
    daemon = Boxd("--backend", "native", state=state, prefix=prefix)
    daemon.own_state = True
    try:
        api = daemon.client(timeout=120 * SCALE)
        if "memory" not in enforced:
            with pytest.raises(ApiError, match="memory_mb cannot be enforced here"):
                api.new("s", memory_mb=64)
        made = api.new("s", memory_mb=64, best_effort=True)
        assert {u["field"] for u in made["unenforced"]} == {FIELD[name] for name in ALL if name not in enforced}
        for _ in range(2):  # the first group is used again, the others are made
            assert api.sh("s", "echo hi")["stdout"] == "hi\n"
        r = api.sh("s", "sleep 100000 & sleep 100000", timeout_sec=1)
        assert r["outcome"] == "timed_out", r
        api.sh("s", "sleep 100000", detach=True, exec_id="other")
        assert api.sh("s", "echo beside")["stdout"] == "beside\n"
        api.call("POST", "/v1/sessions/s/processes", {"process_id": "p", "command": "cat", "memory_mb": 32})
        assert api.call("GET", "/v1/sessions/s/processes/p")["status"] == "running"
        # What is said of it, by three, is the same.
        checks = {c["id"]: c for c in api.doctor()["checks"]}
        assert checks["backend-native"]["status"] == "ok", checks["backend-native"]
        assert "run a command" in checks["backend-native"]["detail"]
        limits = api.receipt("s")["limits"]
        for name in ALL:
            assert checks[f"limit-{name}"]["status"] == ("ok" if name in enforced else "missing"), checks
            assert limits[RECEIPT[name]]["enforced"] is (name in enforced), limits
        assert api.call("GET", "/v1/status")["available"] is True
        if "memory" in enforced:
            r = api.x("s", "python3", "-c", "x = bytearray(256 << 20); print(len(x))")
            assert r["outcome"] != "exited" or r["exit_code"] != 0, r
            assert "268435456" not in r["stdout"]
        api.rm("s")
        assert api.ps() == []
    finally:
        daemon.close()


@HYBRID
def test_v1_beside_v2():
    row(without(), ALL)


@HYBRID
@pytest.mark.parametrize("missing", [(c,) for c in ALL] + [("cpu", "memory"), ("cpu", "pids"), ("memory", "pids")],
                         ids="-".join)
def test_v1_beside_v2_without(missing):
    need("unshare")
    taken = [V1[c] for c in missing]
    row(without(*taken), [c for c in ALL if V1[c] not in taken])


@HYBRID
@pytest.mark.parametrize("missing", [(), *((c,) for c in ALL)], ids=lambda m: "-".join(m) or "nothing")
def test_v1_alone_without(missing):
    need("unshare")
    taken = [V1[c] for c in missing]
    row(without(V2, *taken), [c for c in ALL if V1[c] not in taken])


@HYBRID
def test_v2_alone_without_controllers():
    need("unshare")
    row(without(*V1.values()), ())


@HYBRID
def test_no_cgroup_at_all():
    need("unshare")
    row(without(V2, *V1.values()), ())


@HYBRID
def test_an_ordinary_user_has_none():
    need("setpriv")
    row(as_user(), (), user=True)


@HYBRID
@pytest.mark.parametrize("v1", ["beside", "gone"])
def test_an_ordinary_user_with_a_group_without_controllers(v1):
    """Every command failed there: the controllers are on v1, which is not the user's."""
    need("setpriv")
    with delegated() as group:
        row([*(without(*V1.values()) if v1 == "gone" else ()), *as_user(group)], (), user=True)


@UNIFIED
@pytest.mark.vm
def test_v2_alone():
    row(without(), ALL)


@UNIFIED
@pytest.mark.vm
def test_an_ordinary_user_has_none_on_v2():
    row(as_user(), (), user=True)


@UNIFIED
@pytest.mark.vm
@pytest.mark.parametrize("given", [(), *((c,) for c in ALL), ("memory", "pids"), ("cpu", "pids"), ("cpu", "memory"), ALL],
                         ids=lambda m: "-".join(m) or "nothing")
def test_an_ordinary_user_with_a_group_with(given):
    with delegated(given) as group:
        row(as_user(group), given, user=True)


@HYBRID
def test_a_memory_group_that_is_used_again_has_nothing_of_its_last_session():
    """With thousands of sessions the kernel takes milliseconds to end one, so the next session gets it. A session
    that leaves much memory behind, or had groups of its own in it, does not hand its group on."""
    hog = "x = bytearray(100 << 20)"
    with contextlib.closing(Boxd()) as boxd:
        api = boxd.client()

        def group(sid):
            return Watch(api, sid).group("memory")

        api.new("first", memory_mb=32)
        was = group("first")
        inode = was.stat().st_ino
        assert api.x("first", "python3", "-c", hog)["outcome"] == "oom_killed"
        api.rm("first")
        assert not was.exists() and (was.parent / "used-0").stat().st_ino == inode
        for n in range(5):  # the spare one that is there comes first
            sid = f"next{n}"
            api.new(sid, memory_mb=256)
            here = group(sid)
            if here.stat().st_ino == inode:
                break
        else:
            pytest.fail("the group was not used again")
        assert int((here / "memory.max_usage_in_bytes").read_text()) < 16 << 20
        assert int((here / "memory.limit_in_bytes").read_text()) == 256 << 20
        assert int((here / "memory.kmem.tcp.limit_in_bytes").read_text()) == 64 << 20
        assert api.x(sid, "python3", "-c", hog)["outcome"] == "exited"
        assert api.sh(sid, "kill -9 $$")["outcome"] == "signaled"  # no blame for the kill of before
        top = here.parent
        (here / "own").mkdir()
        api.rm(sid)
        assert inode not in {p.stat().st_ino for p in top.iterdir()}
        boxd.stop()
        assert not top.exists()
