# SPDX-License-Identifier: Apache-2.0
"""One suite for every backend: a session is a session, whatever it is made of.

A test that takes `box` runs once per backend. Marked `real` it needs programs that run, which `fake` has none of;
marked `engine` it is about Docker and Podman alone. What a session is to its user (test_session_*.py) also runs on
`docker-runsc`, Docker with gVisor as its runtime; marked `gvisor` it runs there, and on `podman-runsc`, alone.
$BOX_TEST_BACKENDS chooses among them."""

import itertools
import os

import enginelib
import pytest
from boxlib import Boxd

ALL = ("fake", "native", "docker", "podman")
ENGINES = ("docker", "podman")
RUNTIMES = ("docker-runsc",)
GVISOR = ("docker-runsc", "podman-runsc")
_ids = itertools.count()


def pytest_generate_tests(metafunc):
    if "backend" not in metafunc.fixturenames:
        return
    names = ENGINES if metafunc.definition.get_closest_marker("engine") else ALL
    if metafunc.definition.get_closest_marker("gvisor"):
        names = GVISOR
    elif metafunc.module.__name__.startswith("test_session_"):
        names = (*names, *RUNTIMES)
    if metafunc.definition.get_closest_marker("real"):
        names = [n for n in names if n != "fake"]
    chosen = os.environ.get("BOX_TEST_BACKENDS")
    if chosen:
        names = [n for n in names if n in chosen.split(",")]
    metafunc.parametrize("backend", names, indirect=True, scope="session")


class Backend:
    """A boxd on one backend, with its engine where it has one."""

    def __init__(self, name, **env):
        self.name, _, self.runtime = name.partition("-")
        self.engine = enginelib.Engine(self.name, runtime=self.runtime) if self.name in ENGINES else None
        self.image = enginelib.IMAGE if self.engine else "host"
        self.env = env
        if self.engine:
            self.env["BOX_ENGINE_SOCKET"] = str(self.engine.socket)
        if self.runtime and self.name == "docker":  # Podman's is its default
            self.env["BOX_ENGINE_RUNTIME"] = self.runtime
        self.daemon = None

    def start(self, *args, **kwargs):
        self.daemon = Boxd("--backend", self.name, *args, env=self.env, **kwargs)
        return self.daemon

    def close(self):
        if self.daemon is not None:
            self.daemon.close()
        if self.engine:
            self.engine.close()


@pytest.fixture(scope="session")
def backend(request):
    name, _, runtime = request.param.partition("-")
    why = enginelib.missing(name, runtime) if name in ENGINES else None
    if why is not None:
        pytest.skip(why)
    made = Backend(request.param)
    try:
        made.start()
        yield made
    finally:
        made.close()


class Box:
    """A client that makes sessions of the backend's image, and removes them at the end."""

    def __init__(self, backend):
        self.backend, self.api, self.made = backend, backend.daemon.client(), []
        self.engine, self.name, self.runtime = backend.engine, backend.name, backend.runtime

    def new(self, **spec):
        name = f"c{os.getpid()}-{next(_ids)}"
        self.api.new(name, **{"image": self.backend.image, **spec})
        self.made.append(name)
        return name

    def __getattr__(self, name):
        return getattr(self.api, name)

    def container(self, sid):
        """What the engine says about a session's container."""
        return self.engine.inspect(self.receipt(sid)["container_id"])

    def close(self):
        for session in self.api.ps():
            if session["session_id"] in self.made:
                self.api.rm(session["session_id"])
        self.api.close()


@pytest.fixture
def box(backend):
    made = Box(backend)
    yield made
    made.close()


@pytest.fixture
def sid(box):
    return box.new()
