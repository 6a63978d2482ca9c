# SPDX-License-Identifier: Apache-2.0
"""State, time, signals, rivals and missing walls: checks J06 to J13 of the catalogue."""

import json
import mmap
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import tempfile
import threading
import time

import pytest
from boxlib import BUILD, ApiError, Boxd
from hostlib import SCALE, adopt_orphans, alive, assert_no_leak, built, need, reap_orphans, until

SEC = 1_000_000_000
STORM_SECONDS = float(os.environ.get("BOX_STORM_SECONDS", "6"))
STORM_THREADS = int(os.environ.get("BOX_STORM_THREADS", "16" if SCALE == 1 else "4"))


@pytest.fixture
def scratch():
    top = pathlib.Path(tempfile.mkdtemp(prefix="box-faults-"))
    top.chmod(0o755)
    yield top
    shutil.rmtree(top, ignore_errors=True)


def works(daemon, **spec):
    client = daemon.client()
    client.new("probe", **spec)
    assert client.sh("probe", "echo ok > f; cat f")["stdout"] == "ok\n"
    client.rm("probe")
    client.close()
    assert_no_leak(daemon)


# J06: what is on disk is not what we left there.


def test_check_J06_a_state_directory_that_is_a_link_is_refused(scratch):
    (scratch / "real").mkdir()
    (scratch / "state").symlink_to(scratch / "real")
    with pytest.raises(RuntimeError, match="state"):
        Boxd(state=scratch / "state")
    assert os.listdir(scratch / "real") == []


def test_check_J06_a_state_directory_of_somebody_else_is_refused(scratch):
    (scratch / "state").mkdir()
    os.chown(scratch / "state", 4242, 4242)
    with pytest.raises(RuntimeError, match="belongs to uid 4242"):
        Boxd(state=scratch / "state")
    assert os.listdir(scratch / "state") == []


@pytest.mark.parametrize("name", ["sessions", "trash", "templates", "etc", "etc-off"])
@pytest.mark.parametrize("kind", ["link", "file", "fifo", "link-to-file", "full"])
def test_check_J06_odd_objects_in_the_state_are_never_followed(scratch, name, kind):
    state, outside = scratch / "state", scratch / "outside"
    state.mkdir()
    (state / "box-state").touch()  # ours, whatever stands in it
    (outside / "deep").mkdir(parents=True)
    (outside / "deep/precious").write_text("precious")
    os.chmod(outside / "deep/precious", 0o640)
    place = state / name
    if kind == "link":
        place.symlink_to(outside)
    elif kind == "file":
        place.write_bytes(os.urandom(100))
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "link-to-file":
        place.symlink_to(outside / "deep/precious")
    else:
        (place / "0123456789abcdef/workspace").mkdir(parents=True)
        (place / "0123456789abcdef/workspace/link").symlink_to(outside)
        (place / "0123456789abcdef/disk.img").write_bytes(os.urandom(4096))
        os.mkfifo(place / "fifo")
        (place / "\x80\n").write_text("odd")
    before = [(p, p.lstat().st_mode, p.lstat().st_mtime_ns) for p in sorted(outside.glob("**/*"))]
    try:
        daemon = Boxd(state=state)
    except RuntimeError as error:  # refusing is fine, as long as it says what is in the way
        assert name in str(error) or "state" in str(error), error
    else:
        try:
            works(daemon, workspace_quota_mb=8)
        finally:
            daemon.close()
    assert [(p, p.lstat().st_mode, p.lstat().st_mtime_ns) for p in sorted(outside.glob("**/*"))] == before
    assert (outside / "deep/precious").read_text() == "precious"


@pytest.mark.parametrize("name", ["lock", "priv.lock", "boxd.sock", "network"])
def test_check_J06_links_in_place_of_our_own_files_are_not_followed(scratch, name):
    state = scratch / "state"
    state.mkdir()
    (state / "box-state").touch()
    (scratch / "victim").write_text("victim")
    (state / name).symlink_to(scratch / "victim")
    try:
        daemon = Boxd("--backend", "native", state=state)
    except RuntimeError:
        pass
    else:
        try:
            works(daemon)
        finally:
            daemon.close()
    assert (scratch / "victim").read_text() == "victim"


@pytest.mark.parametrize("damage", ["truncate", "superblock", "group", "inodes", "everywhere", "empty", "directory"])
def test_check_J06_damaged_templates_of_disks_do_not_last(boxd, damage):
    """Every quota session copies one: a broken one is told of at worst once, and made anew."""
    works(boxd, workspace_quota_mb=8)
    (template,) = [p for p in (boxd.state / "templates").iterdir() if p.is_file()]
    size = template.stat().st_size
    if damage == "truncate":
        os.truncate(template, size // 2)
    elif damage == "empty":
        os.truncate(template, 0)
    elif damage == "directory":
        template.unlink()
        template.mkdir()
    else:
        start, length = {"superblock": (1024, 1024), "group": (4096, 4096), "inodes": (8192, 262144),
                         "everywhere": (0, size)}[damage]
        with open(template, "r+b") as f:
            f.seek(start)
            f.write(os.urandom(length))
    client = boxd.client()
    for attempt in range(3):
        try:
            client.new("victim", workspace_quota_mb=8)
        except ApiError as error:
            assert attempt == 0, f"still broken: {error}"
            assert error.detail
            assert_no_leak(boxd)
        else:
            r = client.sh("victim", "echo x > /workspace/f && cat /workspace/f")
            client.rm("victim")
            if r["stdout"] == "x\n":
                break
            assert attempt == 0, r
    works(boxd, workspace_quota_mb=8)


# J07: time.


class Clocks:
    """Offsets of the wall clock and of the time since boot, for a daemon that has the module preloaded."""

    def __init__(self, path):
        self.path = path
        path.write_bytes(bytes(16))
        os.chmod(path, 0o644)
        with open(path, "r+b") as f:
            self._map = mmap.mmap(f.fileno(), 16)

    def set(self, real=0.0, boot=0.0):
        self._map[:16] = struct.pack("qq", int(real * SEC), int(boot * SEC))


@pytest.fixture
def clocks(scratch):
    return Clocks(scratch / "clocks")


def with_clocks(clocks, **env):
    return Boxd(env={"LD_PRELOAD": built("integration/clockjump.so"), "CLOCKJUMP_FILE": str(clocks.path), **env})


TEN_YEARS = 10 * 365 * 86400.0


def test_check_J07_the_module_moves_the_clock_of_boxd(clocks):
    clocks.set(real=TEN_YEARS)
    daemon = with_clocks(clocks)
    try:
        client = daemon.client()
        year = int(client.new("when")["created_at"][:4])
        assert year >= time.gmtime().tm_year + 9
    finally:
        daemon.close()


def test_check_J07_steps_of_the_wall_clock_change_no_timeout_and_reap_nothing(clocks):
    daemon = with_clocks(clocks, BOX_SESSION_TTL_SEC="120")
    try:
        client = daemon.client(timeout=60 * SCALE)
        client.new("idle")
        client.new("busy")
        for jump in (TEN_YEARS, -TEN_YEARS, 3600.0, 0.0):
            result = {}

            def run(result=result):
                own = daemon.client(timeout=60 * SCALE)
                begin = time.monotonic()
                result.update(own.sh("busy", "sleep 100", timeout_sec=1.5 * SCALE))
                result["took"] = time.monotonic() - begin
                own.close()

            t = threading.Thread(target=run)
            t.start()
            until(lambda: client.ps()[1]["execs"] == 1, what="the command")
            clocks.set(real=jump)
            t.join(60 * SCALE)
            assert result["outcome"] == "timed_out", result
            assert 1.5 * SCALE <= result["took"] < 15 * SCALE, result
            assert client.sh("idle", "echo here")["stdout"] == "here\n"
        assert {s["session_id"] for s in client.ps()} == {"idle", "busy"}
    finally:
        daemon.close()


def test_check_J07_idle_sessions_go_by_the_time_since_boot(clocks):
    """A machine that slept for an hour has idle sessions; one with a command in it is not idle."""
    daemon = with_clocks(clocks, BOX_SESSION_TTL_SEC="100")
    try:
        client = daemon.client()
        client.new("idle")
        client.new("kept", persistent=True)
        client.new("busy")
        t = threading.Thread(target=lambda: daemon.client().sh("busy", "sleep 60; echo end", timeout_sec=600))
        t.daemon = True
        t.start()
        until(lambda: any(s["execs"] for s in client.ps()), what="the command")
        clocks.set(real=-TEN_YEARS)
        time.sleep(0.2)
        assert len(client.ps()) == 3
        clocks.set(boot=3600.0)
        until(lambda: {s["session_id"] for s in client.ps()} == {"kept", "busy"}, what="the end of the idle session")
    finally:
        daemon.close()


def test_check_J07_pid_1_measures_by_the_monotonic_clock():
    """The code that no preload reaches: no other clock is named in it, but for two that are only shown: when a line of a
    log was written, and how long ago a process began, which /proc tells since the boot."""
    inside = BUILD.parent / "src/inside"
    sources = {p.name: p.read_text() for p in [*inside.glob("*.c"), *(inside / "init").glob("*.c")]}
    named = [(name, clock) for name, text in sources.items() for clock in re.findall(r"CLOCK_[A-Z]+", text)]
    shown = [("ring.c", "CLOCK_REALTIME"), ("supervisor.c", "CLOCK_BOOTTIME")]
    assert sorted(use for use in named if use[1] != "CLOCK_MONOTONIC") == shown
    assert len(named) > len(shown)
    source = "".join(sources.values())
    assert not re.search(r"\b(gettimeofday|time)\(", source)


@pytest.mark.vm
@pytest.mark.skipif(os.uname().nodename != "box-vm", reason="changes the clock of the machine; only in make test-vm")
def test_check_J07_the_real_clock_of_the_machine_jumps(boxd):
    client = boxd.client()
    client.new("jump")
    before = time.clock_gettime(time.CLOCK_REALTIME)
    try:
        for jump in (TEN_YEARS, -TEN_YEARS / 2):
            result = {}
            t = threading.Thread(target=lambda r=result: r.update(boxd.client(600).sh("jump", "sleep 1000",
                                                                                     timeout_sec=20)))
            t.start()
            until(lambda: client.ps()[0]["execs"] == 1, what="the command")
            time.clock_settime(time.CLOCK_REALTIME, before + jump)
            t.join(600)
            assert result["outcome"] == "timed_out" and 19_000 <= result["duration_ms"] < 200_000, result
    finally:
        time.clock_settime(time.CLOCK_REALTIME, before)


# J08: signals.


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGHUP],
                                     [signal.SIGTERM, signal.SIGTERM], [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]])
def test_check_J08_an_end_is_orderly(boxd, signals):
    client = boxd.client()
    result = {}
    for i in range(5):
        client.new(f"s{i}", memory_mb=32)

    def run():
        own = boxd.client()
        result.update(own.sh("s0", "echo begun; sleep 1000", timeout_sec=900))
        own.close()

    t = threading.Thread(target=run)
    t.start()
    until(lambda: any(s["execs"] for s in client.ps()), what="the command")
    begin = time.monotonic()
    for s in signals:
        boxd.process.send_signal(s)
    assert boxd.process.wait(60 * SCALE) == 0
    assert time.monotonic() - begin < 5 * SCALE
    t.join(60)
    assert result.get("outcome") == "session_lost", result  # not lost in silence
    assert_no_leak(boxd)
    assert not boxd.sock.exists()
    boxd.start()
    works(boxd)


def test_check_J08_a_broken_pipe_is_nothing(boxd):
    client = boxd.client()
    client.new("s")
    boxd.process.send_signal(signal.SIGPIPE)
    for _ in range(20):
        own = boxd.client()
        own._conn.request("POST", "/v1/sessions/s/exec", json.dumps({"cmd": "yes | head -c 3000000"}),
                          {"Content-Type": "application/json"})
        own.close()  # without reading a byte
    assert client.sh("s", "echo ok")["stdout"] == "ok\n"
    until(lambda: client.ps()[0]["execs"] == 0, what="the end of what nobody reads")


def test_check_J08_a_stopped_daemon_loses_nothing(boxd):
    """PID 1 keeps the time meanwhile, and the answer is there when boxd goes on."""
    client = boxd.client(timeout=120 * SCALE)
    client.new("s")
    result = {}
    t = threading.Thread(target=lambda: result.update(boxd.client(120 * SCALE).sh("s", "sleep 1000", timeout_sec=1)))
    t.start()
    until(lambda: client.ps()[0]["execs"] == 1, what="the command")
    boxd.process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(2.5)
        assert t.is_alive()
    finally:
        boxd.process.send_signal(signal.SIGCONT)
    t.join(60 * SCALE)
    assert result["outcome"] == "timed_out" and result["duration_ms"] < 2400 * SCALE, result
    assert client.sh("s", "echo ok")["stdout"] == "ok\n"


def test_check_J08_a_stopped_box_priv_holds_back_only_what_it_must(boxd):
    client = boxd.client()
    client.new("s")
    helper = boxd.priv_pid()
    os.kill(helper, signal.SIGSTOP)
    try:
        made = threading.Thread(target=lambda: boxd.client(600).new("later"))
        made.start()
        assert client.sh("s", "echo ok")["stdout"] == "ok\n"  # exec never passes it
        assert len(client.ps()) == 2
    finally:
        os.kill(helper, signal.SIGCONT)
    made.join(60)
    assert client.sh("later", "echo ok")["stdout"] == "ok\n"


# J09, J10: many hands on one name.


def storm(daemon, seconds, threads, names):
    """Random requests on a few names. Each must end in a way that makes sense."""
    failures, counts = [], {}
    end = time.monotonic() + seconds

    def hand(seed):
        rng = random.Random(seed)
        client = daemon.client(timeout=120 * SCALE)
        while time.monotonic() < end and not failures:
            name, token = rng.choice(names), f"{seed}-{rng.random()}"
            action = rng.choice(["new", "new", "exec", "exec", "exec", "rm", "get", "slow"])
            try:
                if action == "new":
                    assert client.new(name, memory_mb=64)["session_id"] == name
                elif action == "exec":
                    r = client.sh(name, f"echo {token}")
                    assert r["outcome"] in ("exited", "session_lost"), r
                    assert r["outcome"] == "session_lost" or r["stdout"] == token + "\n", r
                elif action == "slow":
                    r = client.sh(name, f"echo {token}; sleep 5", timeout_sec=0.05)
                    assert r["outcome"] in ("timed_out", "session_lost"), r
                elif action == "rm":
                    client.rm(name)
                else:
                    assert client.get(name)["session_id"] == name
                key = action, "ok"
            except ApiError as error:
                key = action, error.code
                if (error.status, error.code) not in {(404, "not_found"), (409, "state"), (502, "backend")}:
                    failures.append((action, str(error)))
            except Exception as error:  # noqa: BLE001 - told by the test
                failures.append((action, repr(error)))
                key = action, "failure"
            counts[key] = counts.get(key, 0) + 1
        client.close()

    hands = [threading.Thread(target=hand, args=(i,)) for i in range(threads)]
    for h in hands:
        h.start()
    for h in hands:
        h.join(seconds + 120 * SCALE)
        assert not h.is_alive(), "a request was never answered"
    assert not failures, failures[:5]
    return counts


def test_check_J09_many_hands_on_the_same_names(boxd):
    counts = storm(boxd, STORM_SECONDS * min(SCALE, 4), STORM_THREADS, ["one", "two", "three"])
    for action in ("new", "exec", "rm", "slow"):
        assert counts.get((action, "ok")), counts
    client = boxd.client()
    for s in client.ps():
        client.rm(s["session_id"])
    assert_no_leak(boxd)
    works(boxd)


def test_check_J10_one_wins_and_the_others_hear_of_it(boxd):
    names = [f"n{i}" for i in range(12)]
    for n in names:
        answers = []

        def call(method, path, body=None, answers=answers):
            client = boxd.client(timeout=120 * SCALE)
            try:
                client.call(method, path, body)
                answers.append((method, "ok"))
            except ApiError as error:
                answers.append((method, error.code))
            client.close()

        steps = [("POST", "/v1/sessions", {"session_id": n})] * 3 + [("DELETE", f"/v1/sessions/{n}")] * 3
        random.Random(n).shuffle(steps)
        hands = [threading.Thread(target=call, args=s) for s in steps]
        for h in hands:
            h.start()
        for h in hands:
            h.join(120 * SCALE)
        assert len(answers) == 6
        assert set(answers) <= {("POST", "ok"), ("POST", "state"), ("DELETE", "ok"), ("DELETE", "not_found")}, answers
    client = boxd.client()
    for s in client.ps():
        assert s["state"] == "ready"
        client.rm(s["session_id"])
    with pytest.raises(ApiError) as caught:
        client.rm(names[0])
    assert caught.value.code == "not_found"
    assert_no_leak(boxd)


def test_check_J10_delete_during_the_kill_of_a_timeout(boxd):
    client = boxd.client()
    for i in range(10):
        name = f"t{i}"
        client.new(name)
        result = {}
        t = threading.Thread(target=lambda n=name, r=result: r.update(
            boxd.client().sh(n, "for i in 1 2 3 4 5 6 7 8; do sleep 100 & done; wait", timeout_sec=0.2)))
        t.start()
        time.sleep(0.19 + i * 0.004)
        client.rm(name)
        t.join(60 * SCALE)
        assert result["outcome"] in ("timed_out", "session_lost"), result
        client.new(name)  # the name is free at once
        assert client.sh(name, "ls /workspace")["stdout"] == ""
        client.rm(name)
    assert_no_leak(boxd)


# J11: rivals.


def test_check_J11_a_second_daemon_on_one_state_refuses(boxd):
    client = boxd.client()
    client.new("mine")
    for _ in range(3):
        with pytest.raises(RuntimeError, match="another boxd serves"):
            Boxd(state=boxd.state)
        assert client.sh("mine", "echo here")["stdout"] == "here\n"
    twin = boxd.state.parent / (boxd.state.name + "-link")
    twin.symlink_to(boxd.state)
    try:
        with pytest.raises(RuntimeError):
            Boxd(state=twin)
    finally:
        twin.unlink()
        twin.with_name(twin.name + ".log").unlink()
    assert client.sh("mine", "echo here")["stdout"] == "here\n"


@pytest.mark.vm
@pytest.mark.parametrize("linger", ["0", "86400"], ids=["purged", "adopted"])
def test_check_J11_a_daemon_that_starts_or_crashes_leaves_others_alone(boxd, linger):
    adopt_orphans()
    client = boxd.client()
    client.new("mine", workspace_quota_mb=8)
    other = Boxd(env={"BOX_LINGER_SEC": linger})
    try:
        theirs = other.client()
        theirs.new("theirs", workspace_quota_mb=8)
        for _ in range(2):
            boxd_alive = client.sh("mine", "echo here")["stdout"]
            other.stop(signal.SIGKILL)
            other.start()  # purges what it had before, or takes it over
            assert boxd_alive == client.sh("mine", "echo here")["stdout"] == "here\n"
            theirs = other.client()
            assert [s["session_id"] for s in theirs.ps()] == ([] if linger == "0" else ["theirs"])
            theirs.new("theirs", workspace_quota_mb=8)
    finally:
        other.close()
        reap_orphans()
    assert client.sh("mine", "echo here")["stdout"] == "here\n"


# J12: the machine was switched off.


def test_check_J12_only_the_state_directory_is_left(boxd):
    adopt_orphans()
    client = boxd.client()
    for i in range(3):
        client.new(f"s{i}", workspace_quota_mb=8)
        client.sh(f"s{i}", "echo x > /workspace/f")
    helper = boxd.priv_pid()
    boxd.process.kill()
    os.kill(helper, signal.SIGKILL)
    boxd.process.wait()
    until(lambda: not alive(helper), what="the end of box-priv")
    # No cgroup, no mount, no process: what a boot leaves of them.
    def no_groups():
        left = [d for d, _, _ in os.walk("/sys/fs/cgroup", topdown=False) if f"/{boxd.tag()}" in d]
        for d in left:
            try:
                os.rmdir(d)
            except OSError:
                pass
        return not left
    until(no_groups, what="the end of the groups")
    assert any((boxd.state / "sessions").iterdir())
    boxd.start()
    client = boxd.client()
    assert client.ps() == []
    with pytest.raises(ApiError) as caught:
        client.sh("s0", "true")
    assert caught.value.code == "not_found"
    assert_no_leak(boxd)
    works(boxd)
    reap_orphans()


# J13: walls that are not there.


def checks(client):
    return {c["id"]: c for c in client.doctor()["checks"]}


def assert_honest(client, limits_enforced):
    """doctor, the receipt and the kernel say the same."""
    found = checks(client)
    client.new("honest", memory_mb=64, pids_limit=20, best_effort=True)
    receipt = client.receipt("honest")
    for check, limit in (("limit-memory", "memory_bytes"), ("limit-pids", "pids"),
                         ("limit-cpu", "cpu_quota_us_per_100ms")):
        assert (found[check]["status"] == "ok") == limits_enforced, found[check]
        assert receipt["limits"][limit]["enforced"] == limits_enforced, receipt["limits"]
        if not limits_enforced:
            assert found[check]["detail"] and found[check]["remedy"], found[check]
            assert receipt["limits"][limit]["reason"], receipt["limits"]
    status = pathlib.Path(f"/proc/{receipt['host_pid']}/status").read_text()
    real = int(re.search(r"^Uid:\t(\d+)", status, re.M).group(1))
    assert receipt["host_uid_init"] == real, (receipt["host_uid_init"], real)
    assert (found["id-ranges"]["status"] == "ok") == (2_000_000_000 <= real), found["id-ranges"]
    for wall in ("cap_permitted", "cap_effective", "cap_bounding", "cap_inheritable", "cap_ambient"):
        assert int(receipt["payload"][wall], 16) == 0
    assert (receipt["payload"]["no_new_privs"], receipt["payload"]["seccomp"]) == ("1", "2")
    assert set(receipt["namespaces"].values()) == {"private"}
    client.rm("honest")


def assert_refused(client, spec, word):
    with pytest.raises(ApiError) as caught:
        client.new("refused", **spec)
    assert caught.value.code == "unsupported" and word in caught.value.detail, caught.value
    assert caught.value.problem.get("remediation")
    assert all(s["session_id"] != "refused" for s in client.ps())


READ_ONLY_GROUPS = """
awk '$3 ~ /^cgroup/ {print $2}' /proc/mounts | while read -r m; do mount -o remount,bind,ro "$m" || exit 1; done
exec "$@"
"""
NO_GROUPS = """
awk '$3 ~ /^cgroup/ {print $2}' /proc/mounts | sort -r | while read -r m; do umount -l "$m" || exit 1; done
exec "$@"
"""


@pytest.mark.vm
@pytest.mark.parametrize("script", [READ_ONLY_GROUPS, NO_GROUPS], ids=["read-only", "absent"])
@pytest.mark.parametrize("require", ["false", "true"])
def test_check_J13_without_cgroups(script, require):
    need("unshare", "awk", "mount")
    daemon = Boxd("--backend", "native", env={"BOX_REQUIRE_LIMITS": require},
                  prefix=["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"])
    try:
        client = daemon.client()
        if require == "true":
            assert all(checks(client)[c]["status"] == "missing" for c in ("limit-memory", "limit-pids", "limit-cpu"))
            assert_refused(client, {}, "limits are required")
            return
        assert_honest(client, limits_enforced=False)
        assert checks(client)["kill"]["status"] != "ok"
        # A timeout still leaves nobody alive.
        client.new("timeout")
        r = client.sh("timeout", "sleep 1000 & (setsid sleep 1000 &) ; sleep 1000", timeout_sec=0.5)
        assert r["outcome"] == "timed_out"
        r = client.sh("timeout", "ls -d /proc/[0-9]* | wc -l")
        assert int(r["stdout"]) <= 5, r
    finally:
        daemon.close()


def as_user(scratch, uid, *prefix, **kwargs):
    state = scratch / f"state-{uid}"
    state.mkdir(exist_ok=True)
    os.chown(state, uid, uid)
    return Boxd("--backend", "native", state=state, prefix=prefix, **kwargs)


@pytest.mark.vm
def test_check_J13_as_an_ordinary_user(scratch):
    need("setpriv")
    prefix = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"]
    daemon = as_user(scratch, 12345, *prefix)
    try:
        client = daemon.client()
        found = checks(client)
        limits = found["limit-memory"]["status"] == "ok"  # where somebody delegated a group to that user
        assert_honest(client, limits_enforced=limits)
        assert found["id-ranges"]["status"] == "warn"
        assert found["disk-quota"]["status"] == "missing"
        assert_refused(client, {"workspace_quota_mb": 8}, "quota")
        if found["network"]["status"] != "ok":
            assert_refused(client, {"network": "on"}, "network")
        if limits:
            return
    finally:
        daemon.close()
    daemon = as_user(scratch, 12345, *prefix, env={"BOX_REQUIRE_LIMITS": "true"})
    try:
        assert_refused(daemon.client(), {}, "limits are required")
    finally:
        daemon.close()


@pytest.mark.vm
def test_check_J13_as_root_of_a_user_namespace(scratch):
    """`unshare -r` of an ordinary user, and of root, which is no real root there."""
    need("unshare", "setpriv")
    for uid, prefix in ((12345, ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"]), (0, [])):
        daemon = as_user(scratch, uid, *prefix, "unshare", "-r", "--")
        try:
            client = daemon.client()
            os.seteuid(uid)  # others have no number in there, and are not let in
            client._conn.connect()
            os.seteuid(0)
            assert client.doctor()["rootful"] is False
            found = checks(client)
            assert_honest(client, limits_enforced=found["limit-memory"]["status"] == "ok")
            assert found["id-ranges"]["status"] == ("missing" if uid == 0 else "warn")
        finally:
            daemon.close()


def test_check_J13_where_there_are_no_user_namespaces(scratch):
    """The wall that everything stands on: boxd says so and, where no other backend may serve, does not start."""
    need("unshare")
    (scratch / "state").mkdir()
    # The limit holds for the namespace it is written in: one of our own.
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    with pytest.raises(RuntimeError, match="user namespace"):
        Boxd("--backend", "native", state=scratch / "state", prefix=["unshare", "-r", "sh", "-c", script, "sh"])


def test_check_J13_without_loop_devices(scratch):
    """A disk quota that cannot be had is refused, and the rest works."""
    need("unshare", "mount")
    (scratch / "dev").mkdir()
    # A /dev without them.
    script = f"""d={scratch}/dev; mount -t tmpfs -o mode=755 dev $d || exit 1
for n in null zero full random urandom tty; do cp -a /dev/$n $d/ || exit 1; done
mkdir $d/pts $d/shm; mount --move $d /dev || exit 1; exec "$@\""""
    daemon = Boxd(prefix=["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"])
    try:
        client = daemon.client()
        assert checks(client)["disk-quota"]["status"] == "missing"
        assert_refused(client, {"workspace_quota_mb": 8}, "quota")
        works(daemon)
    finally:
        daemon.close()


