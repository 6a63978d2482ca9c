# SPDX-License-Identifier: Apache-2.0
"""Faults of the daemon, at any moment: checks J01 to J03 of the catalogue.

BOX_FAULT_POINTS=0 takes every system call of a run instead of a sample.
"""

import os
import signal
import subprocess
import threading
import time

import pytest
from boxlib import ApiError, Boxd
from faultlib import Strace, points, sample, spread
from hostlib import SCALE, adopt_orphans, alive, assert_no_leak, fd_count, leftovers, need, reap_orphans, until
from watch import Watch

POINTS = int(os.environ.get("BOX_FAULT_POINTS", "60" if SCALE == 1 else "8")) or 1_000_000
READY_SECONDS = 1.0 * SCALE * (1 + os.getloadavg()[0] / os.cpu_count())


@pytest.fixture
def daemon():
    adopt_orphans()
    d = Boxd(env={"BOX_LINGER_SEC": "0"})  # the strict way: what is left of a killed boxd goes with it
    yield d
    with_both_dead(d)
    d.start()  # whatever a test left, the next start removes
    d.close()
    reap_orphans()


@pytest.fixture
def kept():
    """The usual way: what is left of a killed boxd is the next one's."""
    adopt_orphans()
    d = Boxd()
    yield d
    d.close()
    reap_orphans()


def with_both_dead(d):
    """Ends boxd and box-priv without a word."""
    try:
        helper = d.priv_pid()
    except (FileNotFoundError, IndexError):
        helper = None
    d.process.kill()
    if helper is not None:
        try:
            os.kill(helper, signal.SIGKILL)
        except ProcessLookupError:
            pass
        until(lambda: not alive(helper), what="the end of box-priv")
    d.process.wait()


def groups_of(d):
    """The instance's own cgroups. By walk: it does not mind that those of others come and go."""
    return [root for root, _, _ in os.walk("/sys/fs/cgroup") if root.endswith("/" + d.tag())]


def start_in_time(d):
    begin = time.monotonic()
    d.start()
    took = time.monotonic() - begin
    assert took <= READY_SECONDS, f"ready after {took:.2f} s"


def restart(d):
    """Ready again within a second, with nothing left of before, and of use."""
    start_in_time(d)
    assert_no_leak(d)
    client = d.client()
    client.new("after", workspace_quota_mb=8)
    assert client.sh("after", "echo works")["stdout"] == "works\n"
    client.rm("after")
    assert_no_leak(d)
    client.close()


class Load:
    """Sessions with commands under way; what each of them came to."""

    def __init__(self, d, count):
        self.results = []
        client = d.client()
        self.pids = []
        for i in range(count):
            client.new(f"load{i}", memory_mb=32, workspace_quota_mb=8 if i % 8 == 0 else 0)
            if i % 8 == 0:
                self.pids.append(client.receipt(f"load{i}")["host_pid"])
        started = threading.Barrier(count + 1)

        def run(name):
            own = d.client(timeout=120 * SCALE)
            own._conn.connect()
            started.wait()
            try:
                r = own.call("POST", f"/v1/sessions/{name}/exec",
                             {"cmd": "yes | head -c 100000; sleep 1000", "timeout_sec": 900})
                self.results.append("lost" if r["outcome"] == "session_lost" else "answered")
            except Exception as error:  # noqa: BLE001 - each kind is counted below
                self.results.append(type(error).__name__)
            own.close()

        self._threads = [threading.Thread(target=run, args=(f"load{i}",)) for i in range(count)]
        for t in self._threads:
            t.start()
        started.wait()
        until(lambda: sum(s["execs"] for s in client.ps()) == count, what="all commands")
        client.close()

    def join(self):
        for t in self._threads:
            t.join(120 * SCALE)
        assert not any(t.is_alive() for t in self._threads)


@pytest.mark.vm
def test_check_J01_kill_of_boxd_ends_everything(daemon):
    load = Load(daemon, 50 if SCALE == 1 else 10)
    helper = daemon.priv_pid()
    daemon.process.kill()
    daemon.process.wait()
    load.join()
    assert "answered" not in load.results, "a result was made up"
    # Before anybody starts a new one: box-priv noticed, and took everything along.
    until(lambda: not alive(helper), what="the end of box-priv")
    assert_no_leak(daemon)
    assert not any(alive(pid) for pid in load.pids)
    restart(daemon)


@pytest.mark.vm
def test_check_J01_kill_of_boxd_is_survived_by_every_session(kept):
    """Commands under way are lost with the connections that waited for them; all else is as it was."""
    client = kept.client()
    load = Load(kept, 50 if SCALE == 1 else 10)
    client.new("idle", workspace_quota_mb=8)
    client.sh("idle", "echo here > /workspace/f; (sleep 1000 >/dev/null 2>&1 &)")
    before = {s["session_id"]: s["created_at"] for s in client.ps()}
    helper = kept.priv_pid()
    kept.process.kill()
    kept.process.wait()
    load.join()
    assert "answered" not in load.results, "a result was made up"
    assert alive(helper) and all(alive(pid) for pid in load.pids)
    start_in_time(kept)
    assert kept.priv_pid() == helper
    client = kept.client()
    assert {s["session_id"]: s["created_at"] for s in client.ps()} == before
    # What nobody waits for any more is ended; what ran in the background goes on.
    until(lambda: sum(s["execs"] for s in client.ps()) == 0, what="the end of the commands")
    until(lambda: Watch(client, "load0").names() == [], what="the end of the orphans")
    assert client.sh("idle", "cat /workspace/f")["stdout"] == "here\n"
    assert Watch(client, "idle").names() == ["sleep"]
    assert client.receipt("load0")["host_pid"] == load.pids[0]
    for name in before:
        client.rm(name)
    client.close()
    assert_no_leak(kept)


def test_check_J01_kill_of_box_priv_is_the_end_also_of_what_would_be_kept(kept):
    """PID 1 of each sandbox ends with it; the next boxd starts a new one and forgets the records."""
    load = Load(kept, 10 if SCALE == 1 else 3)
    os.kill(kept.priv_pid(), signal.SIGKILL)
    assert kept.process.wait(60 * SCALE) == 1
    load.join()
    assert "answered" not in load.results
    until(lambda: not any(alive(pid) for pid in load.pids), what="the end of the sandboxes")
    restart(kept)
    assert kept.client().ps() == []


def test_check_J01_kill_of_both_loses_the_sessions_and_says_so(kept):
    load = Load(kept, 5 if SCALE == 1 else 2)
    with_both_dead(kept)
    load.join()
    restart(kept)
    assert kept.log().count("cannot be taken over") >= 1 or "not alive any more" in kept.log(), kept.log()
    assert kept.client().ps() == []


def test_check_J01_without_another_boxd_a_linger_ends_what_is_left():
    """Sessions that nobody comes for go after that time, with all that belongs to them."""
    adopt_orphans()
    d = Boxd(env={"BOX_LINGER_SEC": "1", "BOX_SESSION_TTL_SEC": "0"})
    try:
        client = d.client()
        client.new("s", workspace_quota_mb=8, persistent=True)
        pid1, helper = client.receipt("s")["host_pid"], d.priv_pid()
        client.close()
        d.process.kill()
        d.process.wait()
        until(lambda: not alive(pid1) and not alive(helper), what="the end of the session and of box-priv")
        assert_no_leak(d)
        d.start()
        assert d.client().ps() == []
    finally:
        d.close()
        reap_orphans()


@pytest.mark.vm
def test_check_J01_kill_of_box_priv_ends_everything(daemon):
    load = Load(daemon, 20 if SCALE == 1 else 5)
    os.kill(daemon.priv_pid(), signal.SIGKILL)
    assert daemon.process.wait(60 * SCALE) == 1
    assert "box-priv has died" in daemon.log()
    load.join()
    assert "answered" not in load.results
    until(lambda: not any(alive(pid) for pid in load.pids), what="the end of the sandboxes")
    restart(daemon)


@pytest.mark.vm
def test_check_J01_kill_of_both_at_once(daemon):
    load = Load(daemon, 20 if SCALE == 1 else 5)
    with_both_dead(daemon)
    load.join()
    assert "answered" not in load.results
    until(lambda: not any(alive(pid) for pid in load.pids), what="the end of the sandboxes")
    restart(daemon)


def test_check_J01_a_new_daemon_at_once_is_not_disturbed_by_the_end_of_the_old(daemon):
    """The old box-priv is still ending its sandboxes while the new one wants the same names."""
    for _ in range(12):
        client = daemon.client()
        for i in range(6):
            client.new(f"old{i}", memory_mb=32, workspace_quota_mb=8)
        daemon.process.kill()
        daemon.process.wait()
        restart(daemon)
        client.close()


def test_check_J01_kill_of_boxd_during_creates(daemon):
    """What is half made goes too, without a new daemon."""
    for i in range(8 if SCALE == 1 else 2):
        helper = daemon.priv_pid()
        stop = threading.Event()

        def create(first):
            client = daemon.client(timeout=60 * SCALE)
            try:
                for n in range(first, 10_000, 4):
                    client.new(f"made{n}", memory_mb=32)
            except (OSError, ApiError):
                pass
            stop.set()

        hands = [threading.Thread(target=create, args=(k,)) for k in range(4)]
        for h in hands:
            h.start()
        stop.wait(0.15 + 0.013 * i)
        daemon.process.kill()
        daemon.process.wait()
        for h in hands:
            h.join(60 * SCALE)
        until(lambda p=helper: not alive(p), what="the end of box-priv")
        assert_no_leak(daemon)
        assert not groups_of(daemon), "it did not end in order"
        daemon.start()


def test_check_J01_kill_while_starting(daemon):
    """At no moment of its start does boxd leave a state from which another cannot start."""
    command = [str(daemon.process.args[0]), "--state-dir", str(daemon.state), "--ws-control-port", "0"]
    daemon.stop()
    for i in range(20):
        with open(os.devnull, "wb") as null:
            p = subprocess.Popen(command, stdin=null, stdout=null, stderr=null)
        time.sleep(i * 0.002 * SCALE)
        p.kill()
        p.wait()
    restart(daemon)


def record(d, follow=False, **spec):
    """The calls that box-priv makes for one session from create to delete."""
    client = d.client()
    client.new("recorded", **spec)
    client.rm("recorded")
    with Strace(d.priv_pid(), follow=follow) as tracer:
        client.new("recorded", **spec)
        client.rm("recorded")
        calls = tracer.calls()
    client.close()
    return calls


def test_check_J02_check_F10_kill_at_any_system_call(daemon):
    need("strace")
    found = points(record(daemon, workspace_quota_mb=8))
    assert len(found) > 100
    for name, nth in sample(found, POINTS):
        client = daemon.client()
        helper = daemon.priv_pid()
        tracer = Strace(helper, "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={nth}")
        try:
            client.new("victim", workspace_quota_mb=8)
            client.rm("victim")
        except (ApiError, ConnectionError, OSError) as error:
            assert not isinstance(error, ApiError) or error.status >= 500, (name, nth, error)
        tracer.stop()
        client.close()
        if alive(helper):
            continue  # a run differs a little from the next: this call did not come
        assert daemon.process.wait(60 * SCALE) == 1, (name, nth)
        daemon.start()
        assert_no_leak(daemon, what=f"{name} #{nth}")
    with_both_dead(daemon)
    restart(daemon)


# The channel to boxd itself: an error there means that box-priv is no more.
CHANNEL = {"sendmsg", "recvmsg", "epoll_pwait2", "epoll_wait", "epoll_pwait", "restart_syscall", "exit_group"}
# Nothing that could fail in life, or whose failure cannot be told from success of an ending.
UNFAILING = {"close", "getpid", "geteuid", "getegid", "brk", "munmap", "rt_sigreturn", "umask", "wait4", "waitid",
             "kill", "pidfd_send_signal", "lseek", "rt_sigprocmask",
             "setresuid", "setresgid", "prctl"}  # the way back to our own ids: box-priv does not go on with others
# Without these nothing can be taken away; then the next start does.
RELEASING = {"unlinkat", "umount2", "renameat", "renameat2"}
ERRORS = {"clone3": "EAGAIN", "mkdirat": "ENOSPC", "write": "EIO", "pwrite64": "EIO", "openat": "EMFILE",
          "openat2": "EMFILE", "fallocate": "EIO", "ioctl": "ENOMEM", "pipe2": "EMFILE", "socketpair": "EMFILE",
          "renameat": "EIO", "unlinkat": "EIO"}


def torture(daemon, found, spec, follow):
    """Each call fails once. The request fails with a type or succeeds; nothing stays; the next one works."""
    client = daemon.client(timeout=120 * SCALE)
    helper = daemon.priv_pid()
    fds = None
    outcomes = {"failed": 0, "succeeded": 0}
    for name, nth in found:
        error = ERRORS.get(name, "ENOMEM")
        where = f"{name} #{nth} = {error}"
        with Strace(helper, "-e", f"trace={name}", "-e", f"inject={name}:error={error}:when={nth}", follow=follow):
            try:
                client.new("victim", **spec)
                outcomes["succeeded"] += 1
            except ApiError as e:
                assert e.code and e.detail, (where, e)
                outcomes["failed"] += 1
            else:
                client.rm("victim")
        assert daemon.process.poll() is None and alive(helper) and daemon.priv_pid() == helper, where
        client.new("next", **spec)
        r = client.sh("next", "echo ok")
        assert r["stdout"] == "ok\n", (where, r)
        client.rm("next")
        assert_no_leak(daemon, what=where)
        now = (fd_count(daemon.pid), fd_count(helper))
        fds = fds or now
        assert now == fds, f"descriptors of boxd and box-priv after {where}: {now}, before {fds}"
    assert outcomes["failed"] > 0, outcomes
    return outcomes


@pytest.mark.parametrize("spec", [{}, {"workspace_quota_mb": 8}], ids=["plain", "quota"])
def test_check_J03_a_call_that_fails_in_box_priv(daemon, spec):
    need("strace")
    found = points(record(daemon, **spec), ignore=CHANNEL | UNFAILING | RELEASING)
    torture(daemon, spread(found, POINTS * 2), spec, follow=False)


def test_check_J03_a_call_that_fails_in_the_child(daemon):
    need("strace")
    calls = record(daemon, follow=True)
    # Counted per process by strace: the kinds that only the child uses, each at its first and second call.
    kinds = ["unshare", "sethostname", "setresgid", "setresuid", "pivot_root", "umount2", "fchdir", "chdir", "mount",
             "fsopen", "fsconfig", "fsmount", "move_mount", "openat2", "symlinkat", "mknodat", "capset",
             "landlock_create_ruleset", "landlock_add_rule", "memfd_create", "dup3", "execveat", "socket"]
    found = [(k, n) for k in kinds if k in calls for n in ((1,) if k in UNFAILING else (1, 2, 5))
             if calls.count(k) >= n]
    outcomes = torture(daemon, found if SCALE == 1 else found[::6], {}, follow=True)
    assert outcomes["failed"] > outcomes["succeeded"] / 4, outcomes


def test_check_J03_what_cannot_be_removed_goes_at_the_next_start(daemon):
    need("strace")
    client = daemon.client()
    for name in sorted(RELEASING & set(record(daemon, workspace_quota_mb=8))):
        with Strace(daemon.priv_pid(), "-e", f"trace={name}", "-e", f"inject={name}:error=EIO:when=1+"):
            try:
                client.new("victim", workspace_quota_mb=8)
                client.rm("victim")
            except ApiError as error:
                assert error.status >= 500, error
        client.new("next", workspace_quota_mb=8)
        client.rm("next")
    client.close()
    with_both_dead(daemon)
    restart(daemon)


def test_check_J03_what_failed_is_said_in_the_answer(daemon):
    need("strace")
    client = daemon.client()
    with Strace(daemon.priv_pid(), "-e", "trace=clone3", "-e", "inject=clone3:error=EAGAIN:when=1+"):
        with pytest.raises(ApiError) as caught:
            client.new("victim", workspace_quota_mb=8)
    assert "Resource temporarily unavailable" in caught.value.detail, caught.value
    assert_no_leak(daemon)


def test_check_J03_what_cannot_be_watched_is_not_kept(daemon):
    """The event queue of box-priv refuses the new sandbox."""
    need("strace")
    client = daemon.client()
    for nth in (1, 2):
        with Strace(daemon.priv_pid(), "-e", "trace=epoll_ctl", "-e", f"inject=epoll_ctl:error=ENOSPC:when={nth}"):
            with pytest.raises(ApiError):
                client.new("victim")
        assert_no_leak(daemon)


def test_check_J01_many_sessions_end_together(daemon):
    """More than fit into the socket between boxd and box-priv at once."""
    client = daemon.client()
    count = 500 if SCALE == 1 else 40
    for i in range(count):
        client.new(f"s{i}", memory_mb=32)
    client.close()
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(60 * SCALE) == 0
    assert not leftovers(daemon)
    assert not groups_of(daemon)
    daemon.start()
