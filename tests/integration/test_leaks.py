# SPDX-License-Identifier: Apache-2.0
"""What remains when sessions are gone: nothing. LEAK=0 of the catalogue: every count as before, and the
daemon's memory within 1 MiB, after a thousand sessions."""

import os
import pathlib
import random
import signal
import threading

import pytest
import wsexec
from boxlib import ApiError
from watch import SPARES, Watch, amount, connected, settled, settles, wait_for

SESSIONS = int(os.environ.get("BOX_TEST_SESSIONS", amount(1000, 40)))


@pytest.fixture
def clean(boxd):
    """A daemon that has done everything once, so that what it keeps for good is there already."""
    api = boxd.client()
    for spec in ({}, {"workspace_quota_mb": 8}, {"read_only_rootfs": False}):
        api.new("warm", **spec)
        api.sh("warm", "echo x | tee f > /tmp/f")
        api.receipt("warm")
        wsexec.run(boxd, "warm", "cat", stdin=b"x" * 100000)
        api.rm("warm")
    return boxd


def priv_rss_kb(daemon):
    for line in pathlib.Path(f"/proc/{daemon.priv_pid()}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def test_a_thousand_sessions_leave_nothing_behind(clean):
    api = connected(clean)
    before, rss, priv_rss = settled(clean), clean.rss_kb(), priv_rss_kb(clean)
    for n in range(SESSIONS):
        spec = {"workspace_quota_mb": 8} if n % 20 == 0 else {"read_only_rootfs": False} if n % 20 == 7 else {}
        name = f"s{n % 37}"
        api.new(name, **spec)
        r = api.sh(name, f"echo {n} > /workspace/f; echo x > /tmp/g; cat /workspace/f")
        assert (r["exit_code"], r["stdout"]) == (0, f"{n}\n")
        api.rm(name)
        if n % 100 == 0:
            settles(clean, before)
    settles(clean, before)
    assert clean.rss_kb() - rss < 1024
    assert priv_rss_kb(clean) - priv_rss < 1024


def test_sessions_that_die_in_every_way_leave_nothing_behind(clean):
    """Deleted while commands run, killed from outside, abandoned by their clients, and all at once."""
    api = connected(clean)
    before, rss = settled(clean), clean.rss_kb()
    rng = random.Random(1)
    for n in range(amount(30, 5)):
        names = [f"d{n}-{i}" for i in range(3)]
        for name in names:
            api.new(name, pids_limit=64, **({"workspace_quota_mb": 8} if rng.random() < 0.2 else {}))
        watches = [Watch(api, name) for name in names]
        streams = [wsexec.stream(clean, name, "sh", "-c", "yes & setsid yes >&2 & (sleep 1000 &); exec cat", stdin=True)
                   for name in names for _ in range(2)]
        for s in streams[::2]:
            s.started()
        answers = []

        def ask(name):
            client = clean.client()
            try:
                answers.append(client.sh(name, "sleep 1000 & cat /dev/zero | head -c 10000000; sleep 1000")["outcome"])
            except ApiError as e:
                answers.append(e.status)
            client.close()

        threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in names]
        for t in threads:
            t.start()
        for s in streams:
            if rng.random() < 0.5:
                s.close()
        api.rm(names[0])
        os.kill(watches[1].pid1, signal.SIGKILL)
        rest = list(names[2:])
        if rng.random() < 0.5:
            os.kill(watches[2].pid1, signal.SIGSTOP)
        for name in rest:
            api.rm(name)
        for t in threads:
            t.join(60)
        for s in streams:
            s.close()
        assert len(answers) == 3 and set(answers) <= {"session_lost", 404, 409}, answers
        wait_for(lambda: api.ps() == [], what="end of all sessions")
        assert [w.payload() for w in watches] == [[], [], []]
    settles(clean, before)
    assert clean.rss_kb() - rss < 2048


def test_sessions_at_once_leave_nothing_behind(clean):
    before = settled(clean)
    errors = []

    def work(k):
        client = clean.client()
        try:
            for n in range(amount(20, 3)):
                name = f"p{k}-{n}"
                client.new(name, **({"workspace_quota_mb": 8} if n % 5 == 0 else {}))
                assert client.sh(name, f"echo {name}")["stdout"] == f"{name}\n"
                client.rm(name)
        except Exception as error:
            errors.append(error)
        client.close()

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(300)
    assert not errors, errors
    settles(clean, before)


@pytest.mark.parametrize("spec, status", [
    ({"host_path": "/no/such/directory", "host_path_mode": "ro"}, (403, 404, 422)),
    ({"host_path": "/etc", "host_path_mode": "ro"}, (403,)),
    ({"memory_mb": 3}, (422,)),
    ({"mount_path": "/proc/x"}, (403, 422)),
    ({"workspace_quota_mb": 1 << 29}, (413, 422, 429, 500, 501, 507)),
    ({"extra_mounts": [{"host_path": "/root", "mount_path": "/x", "mode": "ro"}]}, (403,)),
])
def test_sessions_that_cannot_be_made_leave_nothing_behind(clean, spec, status):
    api = connected(clean)
    before = settled(clean)
    for _ in range(10):
        with pytest.raises(ApiError) as e:
            api.new("never", **spec)
        assert e.value.status in status, e.value
    assert api.ps() == []
    settles(clean, before)


def test_throw_away_sessions_leave_nothing_behind(clean):
    api = connected(clean)
    before, rss = settled(clean), clean.rss_kb()
    for n in range(amount(100, 10)):
        s = wsexec.Stream(clean.sock, {"ephemeral": True, "argv": ["sh", "-c", f"cat; exit {n % 9}"], "stdin": True})
        if n % 4 == 0:
            s.close()  # perhaps before the session exists
        elif n % 4 == 1:
            s.started()
            s.close()
        else:
            s.stdin(b"x")
            s.eof()
            s.started()
            r = s.finish()
            assert (r.out, r["exit_code"]) == (b"x", n % 9)
            s.close()
    wait_for(lambda: api.ps() == [], what="end of all sessions")
    settles(clean, before)
    assert clean.rss_kb() - rss < 1024


def test_the_daemon_that_ends_leaves_nothing_behind(clean):
    api = connected(clean)
    for n in range(5):
        api.new(f"s{n}", **({"workspace_quota_mb": 8} if n == 0 else {}))
    watches = [Watch(api, f"s{n}") for n in range(5)]
    streams = [wsexec.stream(clean, f"s{n}", "sh", "-c", "setsid sleep 1000 & exec sleep 1000") for n in range(5)]
    for s in streams:
        s.started()
    tag = clean.tag()
    assert clean.stop() == 0
    for s in streams:
        s.close()
    assert [w.payload() for w in watches] == [[]] * 5
    assert not [w for w in watches if os.path.exists(f"/proc/{w.pid1}")]
    assert not list(clean.state.glob("sessions/*"))
    left = list(clean.state.glob("trash/*"))
    assert len(left) <= SPARES and all(p.name.startswith("spare-") for p in left)
    # os.walk() passes over what others take away meanwhile.
    assert not [top for top, dirs, _ in os.walk("/sys/fs/cgroup") if tag in dirs]
    assert str(clean.state) not in pathlib.Path("/proc/self/mountinfo").read_text()
    clean.start()  # what close() expects
