# SPDX-License-Identifier: Apache-2.0
"""Worlds are played once each, as many at the same time as there are processors; the cases look at what was seen."""

import concurrent.futures
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import enginelib  # noqa: E402
import script  # noqa: E402
import worlds  # noqa: E402

_started = {}


def chosen():
    """$LANGBOT_RELEASES names others, for a run by hand."""
    return tuple((os.environ.get("LANGBOT_RELEASES") or " ".join(script.RELEASES)).split())


def pytest_collection_finish(session):
    """Starts what the cases that were selected want to see."""
    wanted = {}
    for item in session.items:
        release = getattr(item, "callspec", None) and item.callspec.params.get("release")
        if release and "seen" in item.fixturenames:
            wanted[release] = None
    if not wanted or session.config.option.collectonly:
        return
    for release in wanted:
        if not worlds.python_of(release).exists():
            raise pytest.UsageError(f"LangBot {release} is not installed: tools/langbot.sh application {release}")
    why = enginelib.missing("docker")
    if why is not None:
        raise pytest.UsageError(f"no Docker to compare with: {why}")
    lanes = concurrent.futures.ThreadPoolExecutor(int(os.environ.get("INTEROP_JOBS") or os.cpu_count()))
    for release in wanted:
        for kind in script.KINDS:
            _started[release, kind] = lanes.submit(script.play, release, kind)
    lanes.shutdown(wait=False)


@pytest.fixture(params=chosen())
def release(request):
    return request.param


@pytest.fixture
def seen(release):
    """What LangBot of a release showed: seen("native")["files"]."""
    return lambda kind: _started[release, kind].result()


@pytest.fixture
def everything():
    """{(release, kind): what was seen} of all of them."""
    if {r for r, _ in _started} != set(script.RELEASES):
        pytest.skip("not all releases are played in this run")
    return {which: played.result() for which, played in _started.items()}


@pytest.fixture(scope="session")
def table():
    return script.rows()
