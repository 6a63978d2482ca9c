# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the interop cases. They run in the virtual environment of a LangBot release, on its pytest."""

import asyncio
import collections
import inspect
import os
import shutil
import tempfile

import langbot_client as lb
import pytest

CASE_LIMIT = 120
collect_ignore = ["mcp", "mcp_serve"]  # have an environment of their own
_loop = asyncio.new_event_loop()


def run(awaitable, limit=CASE_LIMIT):
    return _loop.run_until_complete(asyncio.wait_for(awaitable, limit))


def pytest_configure(config):
    config.addinivalue_line("markers", "needs(feature...): only with a client, or a server, that has these features")


def pytest_report_header():
    return f"langbot-plugin {lb.VERSION} against {'its own runtime' if lb.UPSTREAM else 'boxd'}: " \
           + ", ".join(sorted(lb.features()))


def pytest_collection_modifyitems(config, items):
    """What a release does not have is no case of it: nothing is skipped, and the summary says what was left out."""
    have = lb.features()
    missing = {i: {f for mark in i.iter_markers("needs") for f in mark.args} - have for i in items}
    config.hook.pytest_deselected(items=[i for i in items if missing[i]])
    config.left_out = collections.Counter(" and ".join(sorted(missing[i])) for i in items if missing[i])
    items[:] = [i for i in items if not missing[i]]


def pytest_terminal_summary(terminalreporter, config):
    for features, count in sorted(config.left_out.items()):
        terminalreporter.write_line(f"{count} cases need what langbot-plugin {lb.VERSION} does not have: {features}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(scope="session", autouse=True)
def scratch():
    """The handler of early releases keeps files under the working directory."""
    before, directory = os.getcwd(), tempfile.mkdtemp(prefix="box-interop-cwd-")
    os.chdir(directory)
    yield
    for server in list(lb.Server.made):
        server.close()
    os.chdir(before)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session", params=["ws", "stdio"])
def link(request, scratch):
    """The shared daemon of one transport, connected and initialised as LangBot does it."""
    server = lb.Server()
    if request.param == "ws":
        server.start()
    connection = lb.Link(server, request.param)
    run(connection.open())
    run(connection.client.init(server.config))
    yield connection
    status = run(connection.close())
    if request.param == "ws":
        status = server.stop()
    server.close()
    assert lb.UPSTREAM or status == 0


@pytest.fixture
def box(link):
    """A workspace of the test's own."""
    workspace = lb.Box(link)
    yield workspace
    run(workspace.clean())


@pytest.fixture
def other(link):
    workspace = lb.Box(link)
    yield workspace
    run(workspace.clean())


@pytest.fixture
def shared(link):
    """A directory of the host that may be mounted."""
    directory = tempfile.mkdtemp(prefix="mount-", dir=link.server.work)
    os.chmod(directory, 0o777)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
