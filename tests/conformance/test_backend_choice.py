# SPDX-License-Identifier: Apache-2.0
"""Which backend serves: the first of native, Docker and Podman that works (T07, T57), and what follows from that for
sessions, for those who ask, and over a restart. Real engines, one of each for all tests here."""

import contextlib
import os
import shutil
import signal
import socket
import tempfile
import time

import enginelib
import pytest
from boxlib import BUILD, ApiError, Boxd
from enginelib import IMAGE
from lbwire import Rpc, RpcError, free_port
from tlslib import Authority

CHOSEN = os.environ.get("BOX_TEST_BACKENDS", "docker,podman").split(",")
NOWHERE = "/nonexistent/engine.sock"


def engine_of(kind, options=()):
    why = enginelib.missing(kind) if kind in CHOSEN else "not chosen"
    if why is not None:
        pytest.skip(why)
    return enginelib.Engine(kind, options)


class Docker:
    """With TLS on a port of its own, and a second name for its runtime."""

    def __init__(self, directory):
        authority = Authority(directory / "tls")
        cert, key = authority.issue("docker", "IP:127.0.0.1")
        self.authority, self.port, self.me = authority, free_port(), authority.issue("boxd", usage="clientAuth")
        path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        self.engine = engine_of("docker", [
            "--host", f"tcp://127.0.0.1:{self.port}", "--tlsverify", "--tlscacert", str(authority.ca), "--tlscert",
            str(cert), "--tlskey", str(key), "--add-runtime", f"runsc={shutil.which('runc', path=path)}"])
        self.env = {"BOX_ENGINE_SOCKET": str(self.engine.socket)}
        self.tls = {"BOX_ENGINE_SOCKET": f"tcp://127.0.0.1:{self.port}"}


@pytest.fixture(scope="module")
def docker(tmp_path_factory):
    made = Docker(tmp_path_factory.mktemp("docker"))
    yield made
    made.engine.close()


@pytest.fixture(scope="module")
def podman():
    made = engine_of("podman")
    yield made
    made.close()


@pytest.fixture(scope="module")
def crippled(tmp_path_factory):
    """A boxd whose native backend cannot work: its helper is not there."""
    where = tmp_path_factory.mktemp("crippled")
    where.chmod(0o755)
    for program in ("boxd", "box-fetch", "box-guest"):
        shutil.copy(BUILD / program, where / program)
    return where / "boxd"


@pytest.fixture
def start():
    daemons = []

    def begin(*args, program=None, **env):
        # The class has the program, since a daemon can be started again.
        kind = Boxd if program is None else type("Other", (Boxd,), {"program": program})
        daemons.append(kind(*args, env=env))
        return daemons[-1]

    yield begin
    for daemon in daemons:
        daemon.close()


def until(check, seconds=60):
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(ApiError, RpcError):
            value = check()
            if value:
                return value
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.1)


def ready(daemon):
    try:
        return daemon.client().call("GET", "/readyz")
    except ApiError as error:
        assert error.status == 503
        return error.problem


def rows(daemon):
    return {c["id"]: c for c in daemon.client().doctor()["checks"]}


def containers(engine):
    """Without what a dockerd that was killed cannot get rid of any more: that has no name."""
    return [c for c in engine.containers() if c["Names"]]


def refused(call):
    with pytest.raises((ApiError, RpcError)) as caught:
        call()
    return caught.value


def test_row_T07_native_comes_first_and_nobody_else_is_bothered(start, docker):
    daemon = start(**docker.env)
    assert ready(daemon)["backend"] == {"name": "native", "available": True}
    api = daemon.client()
    api.new("a")
    assert api.sh("a", "echo here")["stdout"] == "here\n" and api.get("a")["backend_name"] == "native"
    found = rows(daemon)
    assert found["backend-native"]["detail"].startswith("serves")
    assert found["backend-docker"]["detail"] == "not tried: native serves"
    assert containers(docker.engine) == []
    # And boxd cannot use it even if it wanted to.
    groups = [line for line in open(f"/proc/{daemon.pid}/status") if line.startswith("Groups:")]
    assert groups[0].split() == ["Groups:"]
    with Rpc(daemon.sock) as rpc:
        rpc.call("box_init", {"backend": "docker"})
        api.rm("a")
        rpc.call("box_init", {"backend": "docker"})
        error = refused(lambda: rpc.exec("x", "true"))
        assert error.message.startswith("BoxBackendUnavailableError: ") and "gives up the right" in error.message
        rpc.call("box_init", {"backend": "local"})
        assert rpc.exec("x", "echo again")["stdout"] == "again"


def test_row_T57_nothing_works_and_every_call_fails_closed(start, crippled):
    daemon = start(program=crippled, BOX_ENGINE_SOCKET=NOWHERE)
    api = daemon.client()
    error = refused(lambda: api.new("a"))
    assert (error.status, error.code) == (503, "unavailable") and "box doctor" in error.problem["remediation"]
    for cause in ("(native: 'box-priv' is missing", f"; docker cannot be reached at unix://{NOWHERE}: No such file",
                  f"; podman cannot be reached at unix://{NOWHERE}: No such file or directory)"):
        assert cause in error.detail, error.detail
    answer = ready(daemon)
    assert answer["ready"] is False and answer["backend"] == {"name": "auto", "available": False}
    assert "no backend can make a sandbox" in answer["error"]
    found = rows(daemon)
    assert all(found[f"backend-{k}"]["status"] == "missing" for k in ("native", "docker", "podman"))
    assert all(found[f"backend-{k}"]["remedy"] for k in ("native", "docker", "podman"))
    with Rpc(daemon.sock) as rpc:
        assert rpc.call("box_get_backend_info") == {"name": None, "available": False}
        for call in (lambda: rpc.exec("x", "echo on the host"),
                     lambda: rpc.call("box_create_session", {"session_id": "x", "cmd": ""})):
            assert refused(call).message.startswith("BoxBackendUnavailableError: no backend can make a sandbox")
        assert rpc.call("box_get_sessions") == {"sessions": []}
    assert api.ps() == []


def test_row_T57_an_engine_of_root_alone_is_told_as_such(start, crippled):
    """A boxd that root starts gives root up: with any backend it cannot use a socket that has no group."""
    with tempfile.TemporaryDirectory(prefix="box-alone-") as top, socket.socket(socket.AF_UNIX) as listening:
        os.chmod(top, 0o755)
        path = os.path.join(top, "s")
        listening.bind(path)
        listening.listen()
        os.chmod(path, 0o600)
        daemon = start(program=crippled, CONTAINER_HOST=f"unix://{path}", DOCKER_HOST=f"unix://{NOWHERE}")
        assert "Permission denied" in rows(daemon)["backend-podman"]["detail"]
        assert "--backend podman" in rows(daemon)["backend-podman"]["remedy"]
        assert f"only uid 0 may use '{path}'" in daemon.log() and "give the socket a group" in daemon.log()


def test_row_T57_an_engine_that_comes_later_is_used_without_a_restart(start, crippled, docker):
    docker.engine.kill()
    try:
        daemon = start(program=crippled, **docker.env)
        with Rpc(daemon.sock, timeout=90) as rpc:
            error = refused(lambda: rpc.exec("x", "true", image=IMAGE))
            assert error.message.startswith("BoxBackendUnavailableError: ")
            assert ready(daemon)["ready"] is False
            docker.engine.start()
            assert until(lambda: rpc.exec("x", "echo at last", image=IMAGE))["stdout"] == "at last"
            assert rpc.call("box_get_backend_info") == {"name": "docker", "available": True}
    finally:
        with contextlib.suppress(OSError, enginelib.EngineError):
            docker.engine.api("GET", "/_ping", timeout=5)
    assert ready(daemon)["backend"] == {"name": "docker", "available": True}
    found = rows(daemon)
    assert found["backend-docker"]["status"] == "ok" and found["backend-native"]["status"] == "warn"
    assert len(containers(docker.engine)) == 1  # the one that proved it is gone
    # It goes away under a daemon that has nothing to do, and readyz knows.
    docker.engine.kill()
    until(lambda: ready(daemon)["ready"] is False)
    docker.engine.start()
    until(lambda: ready(daemon)["ready"])


@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_row_I07_engines_are_found_by_asking_them_and_serve_until_shutdown(start, crippled, request, kind):
    """Nobody chose a backend. Of each engine its socket is asked, as `docker info` and `podman info` would."""
    engine = request.getfixturevalue(kind)
    engine = engine if kind == "podman" else engine.engine
    variable, other = ("CONTAINER_HOST", "DOCKER_HOST") if kind == "podman" else ("DOCKER_HOST", "CONTAINER_HOST")
    daemon = start(program=crippled, **{variable: f"unix://{engine.socket}", other: f"unix://{NOWHERE}"})
    with Rpc(daemon.sock, timeout=90) as rpc:
        until(lambda: rpc.call("box_get_backend_info") == {"name": kind, "available": True})
        assert rpc.call("box_status")["backend"]["name"] == kind
        r = rpc.exec("int", "echo hello-box", image=IMAGE, workdir="/tmp")
        assert (r["backend_name"], r["status"], r["exit_code"], r["stdout"]) == (kind, "completed", 0, "hello-box")
        assert len(containers(engine)) == 1
        assert rpc.call("box_shutdown", ctx=None) == {}
        assert rpc.call("box_get_sessions") == {"sessions": []}
    until(lambda: containers(engine) == [])


def test_sessions_stay_with_the_backend_that_made_them(start, crippled, docker):
    daemon = start(program=crippled, **docker.env)
    api = daemon.client()
    until(lambda: api.new("old", image=IMAGE))
    assert api.get("old")["backend_name"] == "docker"
    api.sh("old", "echo kept > /tmp/file")
    daemon.stop(signal.SIGKILL)
    daemon.program = BUILD / "boxd"
    daemon.start()
    api = daemon.client()
    assert api.get("old")["backend_name"] == "docker" and ready(daemon)["backend"]["name"] == "native"
    assert api.sh("old", "cat /tmp/file")["stdout"] == "kept\n"
    api.new("new")
    assert api.get("new")["backend_name"] == "native"
    names = {s["session_id"]: s["backend_name"] for s in api.ps()}
    assert names == {"old": "docker", "new": "native"}
    api.rm("old")
    assert containers(docker.engine) == []


def test_two_engines_tell_each_other_apart(start, crippled, podman):
    daemon = start(program=crippled, BOX_ENGINE_SOCKET=str(podman.socket))
    api = daemon.client()
    until(lambda: api.new("a", image=IMAGE))
    assert api.get("a")["backend_name"] == "podman" and api.sh("a", "echo here")["stdout"] == "here\n"
    found = rows(daemon)
    assert "it is Podman that listens" in found["backend-docker"]["detail"]
    assert "use backend: podman" in found["backend-docker"]["detail"]
    api.rm("a")
    assert containers(podman) == []


# TLS.


def test_a_session_over_tls_is_a_session(start, docker):
    daemon = start("--backend", "docker", **docker.tls, **docker.authority.environment(docker.me))
    assert ready(daemon)["ready"]
    api = daemon.client()
    api.new("a", image=IMAGE)
    assert api.sh("a", "head -c 3000000 /dev/zero | wc -c")["stdout"] == "3000000\n"
    assert api.receipt("a")["runtime"] == "runc"
    # Over a restart, too.
    daemon.stop(signal.SIGKILL)
    daemon.start()
    api = daemon.client()
    assert api.sh("a", "echo still")["stdout"] == "still\n"
    api.rm("a")
    assert containers(docker.engine) == []


def test_docker_lets_nobody_in_without_a_certificate(start, docker):
    daemon = start("--backend", "docker", **docker.tls, **docker.authority.environment())
    error = refused(lambda: daemon.client().new("a", image=IMAGE))
    assert (error.status, error.code) == (503, "unavailable") and "TLS with 127.0.0.1" in error.detail


# Another runtime.


def test_a_runtime_by_name_is_used_and_told(start, docker):
    daemon = start("--backend", "docker", **docker.env, BOX_ENGINE_RUNTIME="runsc")
    api = daemon.client()
    api.new("a", image=IMAGE)
    assert api.receipt("a")["runtime"] == "runsc" and api.sh("a", "echo here")["stdout"] == "here\n"
    found = rows(daemon)
    assert (found["runtime-choice"]["status"], found["runtime-choice"]["detail"]) == ("ok", "runsc")
    api.rm("a")


def test_a_runtime_that_the_engine_does_not_know_is_told(start, docker):
    daemon = start("--backend", "docker", **docker.env, BOX_ENGINE_RUNTIME="kata")
    error = refused(lambda: daemon.client().new("a", image=IMAGE))
    assert error.code == "unavailable" and "docker has no runtime 'kata'" in error.detail and "runsc" in error.detail
    assert ready(daemon)["ready"] is False
    assert rows(daemon)["runtime-choice"]["status"] == "missing"
