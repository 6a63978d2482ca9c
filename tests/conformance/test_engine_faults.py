# SPDX-License-Identifier: Apache-2.0
"""Engines that die, hang, come back or hold too much (L05, L06, L07, L10). Each test has an engine of its own, since it
breaks it."""

import contextlib
import os
import signal
import threading
import time

import enginelib
import pytest
from boxlib import ApiError, Boxd
from enginelib import IMAGE
from wsexec import stream

KINDS = [k for k in ("docker", "podman") if k in os.environ.get("BOX_TEST_BACKENDS", k).split(",")]


class Setup:
    def __init__(self, kind, options=(), env=None):
        self.engine = enginelib.Engine(kind, options)
        self.env = {"BOX_ENGINE_SOCKET": str(self.engine.socket), **(env or {})}
        try:
            self.daemon = Boxd("--backend", kind, env=self.env)
        except BaseException:
            self.engine.close()
            raise
        self.api = self.daemon.client()

    def close(self):
        with contextlib.suppress(Exception):
            self.api.close()
        self.daemon.stop(signal.SIGKILL)
        self.daemon.close()
        self.engine.close()


@pytest.fixture
def setup(request):
    made = []

    def make(kind, options=(), **env):
        why = enginelib.missing(kind)
        if why is not None:
            pytest.skip(why)
        made.append(Setup(kind, options, env))
        return made[-1]

    yield make
    for one in made:
        one.close()


def until(check, seconds=30):
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(ApiError, enginelib.EngineError, OSError):
            value = check()
            if value:
                return value
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.1)


def works(api, name):
    with contextlib.suppress(ApiError):
        api.rm(name)
    api.new(name, image=IMAGE)
    return api.sh(name, "echo fine")["stdout"] == "fine\n"


def test_check_L05_the_engine_is_killed_in_the_middle_and_comes_back(setup):
    s = setup("docker")
    s.api.new("a", image=IMAGE)
    with stream(s.daemon, "a", cmd="echo up; sleep 1000") as running:
        running.started()
        running.until(b"up\n")
        s.engine.kill()
        # Sessions do not need the engine to run commands.
        assert s.api.sh("a", "echo without")["stdout"] == "without\n"
        with pytest.raises(ApiError) as caught:
            s.api.new("b", image=IMAGE)
        assert caught.value.code == "unavailable" and "cannot be reached" in caught.value.detail
        s.engine.start()  # without live restore it ends what it finds
        result = running.finish()
    assert result["outcome"] == "session_lost"
    until(lambda: not any(x["session_id"] == "a" for x in s.api.ps()))
    until(lambda: works(s.api, "b"))  # within the 30 seconds of the row, once the engine is back
    until(lambda: len(s.engine.containers(**{"langbot.box": "true"})) == 1)


def test_check_L05_with_live_restore_sessions_outlive_the_engine(setup):
    s = setup("docker", ["--live-restore"])
    s.api.new("a", image=IMAGE)
    with stream(s.daemon, "a", cmd="echo up; read x; echo got $x", stdin=True) as running:
        running.started()
        running.until(b"up\n")
        s.engine.kill()
        s.engine.start()
        running.stdin(b"it\n")
        result = running.finish()
    assert result["outcome"] == "exited" and result.out == b"got it\n"
    assert s.api.sh("a", "echo fine")["stdout"] == "fine\n"
    s.api.rm("a")
    assert s.engine.containers() == []


def test_check_L05_containerd_is_killed_in_the_middle(setup):
    s = setup("docker")
    s.api.new("a", image=IMAGE)
    with stream(s.daemon, "a", cmd="echo up; read x; echo got $x", stdin=True) as running:
        running.started()
        running.until(b"up\n")
        [pid] = s.engine.pids("containerd")
        os.kill(pid, signal.SIGKILL)
        running.stdin(b"it\n")
        assert running.finish().out == b"got it\n"
    until(lambda: works(s.api, "b"))
    s.api.rm("a")
    until(lambda: len(s.engine.containers(**{"langbot.box": "true"})) == 1)


def test_check_L05_podman_without_its_service(setup):
    s = setup("podman")
    s.api.new("a", image=IMAGE)
    s.engine.kill()
    assert s.api.sh("a", "echo without")["stdout"] == "without\n"
    s.engine.start()
    assert s.api.sh("a", "echo fine")["stdout"] == "fine\n"
    s.api.rm("a")
    assert s.engine.containers() == []


@pytest.mark.parametrize("kind", KINDS)
def test_check_L06_an_engine_that_hangs_holds_nobody_else(setup, kind):
    s = setup(kind)
    s.api.new("a", image=IMAGE)
    s.engine.signal(signal.SIGSTOP)
    failures = []

    def create():
        client = s.daemon.client()
        begin = time.monotonic()
        with pytest.raises(ApiError) as caught:
            client.new("b", image=IMAGE)
        failures.append((caught.value.code, time.monotonic() - begin))
        client.close()

    def examine():
        client = s.daemon.client()
        findings.extend(c["status"] for c in client.doctor()["checks"] if c["id"] == "engine")
        client.close()

    findings = []
    thread, doctor = threading.Thread(target=create), threading.Thread(target=examine)
    try:
        thread.start()
        doctor.start()
        for _ in range(20):
            assert s.api.sh("a", "echo still")["stdout"] == "still\n"
        thread.join(90)
        doctor.join(90)
        assert failures and failures[0][0] == "unavailable" and failures[0][1] < 60
        assert findings == ["missing"]
    finally:
        s.engine.signal(signal.SIGCONT)
    until(lambda: works(s.api, "c"))


@pytest.mark.parametrize("kind", KINDS)
def test_check_L06_a_socket_that_is_gone_or_closed(setup, kind):
    s = setup(kind)
    s.api.new("a", image=IMAGE)
    for break_it, mend in ((lambda: os.rename(s.engine.socket, f"{s.engine.socket}.away"),
                            lambda: os.rename(f"{s.engine.socket}.away", s.engine.socket)),
                           (lambda: os.chmod(s.engine.socket, 0), lambda: os.chmod(s.engine.socket, 0o660))):
        break_it()
        results = []

        def create(n):
            client = s.daemon.client()
            try:
                client.new(f"b{n}", image=IMAGE)
                client.rm(f"b{n}")
            except ApiError as error:
                results.append(error)
            client.close()

        # Connections that are open already go on working; there are not enough of them for so many.
        threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert results and {e.code for e in results} == {"unavailable"}
        assert all("cannot be reached" in e.detail for e in results)
        assert s.api.sh("a", "echo still")["stdout"] == "still\n"
        mend()
    until(lambda: works(s.api, "b"))


def test_check_L10_podman_whose_runtime_cannot_run_here(setup):
    """Its default, crun, refuses some layouts of cgroups: the reason is told, and nothing is left."""
    s = setup("podman", ["--runtime", "crun"])
    try:
        s.api.new("a", image=IMAGE)
    except ApiError as refused:
        assert "crun" in refused.detail or "cgroup" in refused.detail or "runtime" in refused.detail, refused
        until(lambda: s.engine.containers() == [])
        return
    assert s.api.sh("a", "echo fine")["stdout"] == "fine\n"


def test_a_daemon_may_start_before_its_engine(setup):
    s = setup("docker")
    s.daemon.stop()
    s.engine.kill()
    s.daemon.start()
    api = s.daemon.client()
    with pytest.raises(ApiError):
        api.new("a", image=IMAGE)
    s.engine.start()
    until(lambda: works(api, "a"))


def test_check_L07_five_hundred_containers_of_an_earlier_life(setup):
    s = setup("docker")
    instance = (s.daemon.state / "engine" / "instance-id").read_text().strip()
    s.api.new("kept", image=IMAGE)
    s.daemon.stop(signal.SIGKILL)

    def make(first):
        for n in range(first, 500, 4):
            label = {"langbot.box": "true", "langbot.box.instance_id": instance if n % 5 else "another"}
            s.engine.api("POST", f"/v1.40/containers/create?name=old{n}", {
                "Image": IMAGE, "Cmd": ["true"], "Labels": label, "HostConfig": {"NetworkMode": "none"}})

    threads = [threading.Thread(target=make, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(s.engine.containers()) == 501
    s.daemon.start()
    until(lambda: len(s.engine.containers(**{"langbot.box.instance_id": instance})) == 1, 120)
    assert len(s.engine.containers(**{"langbot.box.instance_id": "another"})) == 100
    assert s.daemon.client().sh("kept", "echo kept")["stdout"] == "kept\n"


def test_a_daemon_comes_back_while_its_engine_is_down(setup):
    s = setup("docker", ["--live-restore"])
    s.api.new("a", image=IMAGE)
    s.api.sh("a", "echo kept > /tmp/f")
    s.daemon.stop(signal.SIGKILL)
    s.engine.kill()
    s.daemon.start()
    api = s.daemon.client()
    assert api.sh("a", "cat /tmp/f")["stdout"] == "kept\n"
    s.engine.start()
    api.rm("a")
    assert s.engine.containers() == []
