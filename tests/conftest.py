# SPDX-License-Identifier: Apache-2.0
import itertools
import os
import pathlib
import signal
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))

from boxlib import Boxd  # noqa: E402

_ids = itertools.count()

# nohup ignores SIGHUP, a shell ignores SIGINT and SIGQUIT in background jobs, and every program that a test starts would
# inherit that.
for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGQUIT, signal.SIG_DFL),
                        (signal.SIGINT, signal.default_int_handler)):
    signal.signal(number, handler)


@pytest.fixture(scope="session")
def boxd_shared():
    """One daemon for all tests that do not change it."""
    daemon = Boxd()
    yield daemon
    daemon.close()


@pytest.fixture
def api(boxd_shared):
    client = boxd_shared.client()
    yield client
    client.close()


@pytest.fixture
def boxd():
    """A daemon of the test's own."""
    daemon = Boxd()
    yield daemon
    daemon.close()


@pytest.fixture
def session(api):
    """Makes sessions and removes them at the end: session(memory_mb=64) -> id."""
    made = []

    def make(**spec):
        name = f"t{os.getpid()}-{next(_ids)}"
        api.new(name, **spec)
        made.append(name)
        return name

    yield make
    for name in made:
        if any(s["session_id"] == name for s in api.ps()):
            api.rm(name)


@pytest.fixture
def sid(session):
    return session()
