# SPDX-License-Identifier: Apache-2.0
"""`box update` and PATCH /v1/sessions/ID: the limits of a session change at once, are read back from the kernel, and
stay over restarts. Also for an ordinary user to whom a cgroup was delegated; without one, an update is refused."""

import contextlib
import signal

import pytest
import wsexec
from boxlib import ApiError, Boxd, box
from hostlib import until
from policylib import Governed, token
from test_limits_receipt import FORKS, MIB, kept, limited
from watch import Watch

needs_groups = pytest.mark.skipif(not limited(), reason="no cgroup was delegated to this user")


def on_v2_too(test):
    return pytest.mark.vm(pytest.mark.vm_user(needs_groups(test)))


FIELDS = ("memory_mb", "cpus", "pids_limit")
HOLD = "import sys; x = b'x' * (96 << 20); print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def daemon():
    d = Boxd()
    yield d
    d.close()


def update(client, sid, **limits):
    return client.call("PATCH", f"/v1/sessions/{sid}", limits)


def told(client, sid):
    return tuple(client.get(sid)[f] for f in FIELDS)


@contextlib.contextmanager
def refused(status, *words):
    with pytest.raises(ApiError) as e:
        yield
    assert e.value.status == status and all(w in str(e.value) for w in words), e.value


@on_v2_too
def test_a_session_that_runs_has_new_limits_at_once(api, boxd_shared, session):
    sid = session(memory_mb=64, pids_limit=20, cpus=0.5)
    watch = Watch(api, sid)
    with wsexec.stream(boxd_shared, sid, "sh", "-c", "echo up; read line; echo $line", stdin=True) as beside:
        beside.started()
        beside.until(b"up\n")
        r = box("update", "-m", "256m", "--cpus", "1.5", "--pids", "60", sid, sock=boxd_shared.sock)
        assert (r.returncode, r.stdout, r.stderr) == (0, "", "")
        assert kept(watch) == (256 * MIB, 61, 150_000)
        beside.stdin(b"alive\n")
        beside.until(b"alive\n")
        assert beside.finish()["exit_code"] == 0
    limits = api.receipt(sid)["limits"]
    want = {"memory_bytes": 256 * MIB, "pids": 60, "cpu_quota_us_per_100ms": 150_000}
    assert {k: limits[k] for k in want} == {k: {"enforced": True, "value": v} for k, v in want.items()}
    assert api.x(sid, "python3", "-c", FORKS)["stdout"] == "EAGAIN 59\n"  # more than it was made with
    assert api.x(sid, "python3", "-c", "len(bytearray(128 << 20))")["exit_code"] == 0
    update(api, sid, pids_limit=10)
    assert told(api, sid) == (256, 1.5, 10)  # what is not given stays
    assert api.x(sid, "python3", "-c", FORKS)["stdout"] == "EAGAIN 9\n"


@on_v2_too
def test_memory_that_is_used_is_not_taken_away(api, boxd_shared, session):
    sid = session(memory_mb=256, pids_limit=20)
    watch = Watch(api, sid)
    before = kept(watch)
    with wsexec.stream(boxd_shared, sid, "python3", "-c", HOLD, stdin=True) as hog:
        hog.started()
        hog.until(b"up\n")
        r = box("update", "--memory", "64m", "--pids", "40", sid, sock=boxd_shared.sock)
        assert r.returncode == 125 and "MiB of memory" in r.stderr and "nothing was changed" in r.stderr, r
        assert kept(watch) == before and told(api, sid) == (256, 1.0, 20)
        hog.eof()
        assert hog.finish()["outcome"] == "exited"
    if api.sh(sid, "stat -f -c %T .")["stdout"] == "tmpfs\n":
        return  # files there are memory
    # Pages of files are no reason to refuse: the kernel takes them back.
    assert api.sh(sid, "head -c 100000000 /dev/zero > f && sync f && cat f > /dev/null")["exit_code"] == 0
    update(api, sid, memory_mb=64)
    assert kept(watch)[0] == 64 * MIB
    assert api.sh(sid, "cat f > /dev/null")["exit_code"] == 0


@on_v2_too
def test_new_limits_stay_over_a_killed_boxd_and_a_stop(daemon):
    client = daemon.client()
    client.new("k", durable=True, memory_mb=64)
    update(client, "k", memory_mb=96, cpus=0.3)
    client.close()
    daemon.stop(signal.SIGKILL)
    daemon.start()
    client = daemon.client()
    assert told(client, "k") == (96, 0.3, 128)
    assert kept(Watch(client, "k"))[::2] == (96 * MIB, 30_000)
    client.call("POST", "/v1/sessions/k/pause")
    update(client, "k", memory_mb=112)
    client.call("POST", "/v1/sessions/k/unpause")
    assert kept(Watch(client, "k"))[0] == 112 * MIB
    client.call("POST", "/v1/sessions/k/stop")
    update(client, "k", pids_limit=50)  # from the next start on
    assert client.sh("k", "true")["exit_code"] == 0
    assert kept(Watch(client, "k")) == (112 * MIB, 51, 30_000)
    client.rm("k")


def test_what_cannot_be_is_refused_and_changes_nothing(api, session):
    sid = session()
    before = told(api, sid)
    for body, word in (({}, "nothing to change"), ({"memory_mb": 31}, "at least 32"), ({"memory_mb": "64"}, "memory_mb"),
                       ({"pids_limit": 0}, "at least 1"), ({"pids_limit": 4194305}, "pids_limit"), ({"cpus": 0}, "cpus"),
                       ({"memory_mb": 64, "image": "x"}, "image")):
        with refused(422, word):
            update(api, sid, **body)
    with refused(501, "workspace_quota_mb"):
        update(api, sid, workspace_quota_mb=64)
    with refused(404, "not found"):
        update(api, "never-made", memory_mb=64)
    assert told(api, sid) == before


@pytest.mark.rootless
def test_without_control_groups_an_update_says_what_to_do(api, session):
    sid = session()
    with contextlib.nullcontext() if limited() else refused(501, "memory_mb cannot be enforced here", "Delegate=yes"):
        update(api, sid, memory_mb=64)
    assert api.get(sid)["memory_mb"] == (64 if limited() else 512)


A, A_TOKEN = token("alpha", profiles=["tight"], tools=["*"], sessions=["alpha-*", "free-*"])
LOOKS, LOOKS_TOKEN = token("looks", profiles=["*"], tools=["exec"], sessions=["alpha-*"])
CONFIG = "profiles:\n  tight:\n    memory_mb: 64\n    locked: [memory_mb]\n"


@needs_groups
def test_a_profile_locks_a_limit_for_good():
    d = Governed(CONFIG, tokens=[A, LOOKS])
    try:
        alpha, root = d.caller(A_TOKEN), d.client()
        alpha.call("POST", "/v1/sessions", {"session_id": "alpha-1", "profile": "tight"})
        root.new("free-1")
        for caller in (alpha, root):
            with refused(403, "locks it"):
                update(caller, "alpha-1", memory_mb=128, cpus=2)
            update(caller, "alpha-1", cpus=0.5)
        assert told(root, "alpha-1") == (64, 0.5, 128)
        with refused(403, "profile"):  # made with one that the token does not have
            update(alpha, "free-1", memory_mb=128)
        with refused(403, "session"):
            update(d.caller(LOOKS_TOKEN), "alpha-1", cpus=1)
        until(lambda: d.audit(event="session_state", outcome="updated", who="alpha"), what="the record")
        root.close()
    finally:
        d.close()
