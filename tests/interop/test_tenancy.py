# SPDX-License-Identifier: Apache-2.0
"""Workspaces, generations, several connections, and who is let in."""

import asyncio
import json
import pathlib

import pytest
from langbot_client import ActionContext, Box, Link, errors, until
from websockets.exceptions import InvalidStatus

pytestmark = pytest.mark.needs("tenancy")

BEAT = "while :; do echo beat >> /workspace/beat; sleep 0.02; done"


def beats(directory):
    """A probe: the command runs."""
    async def probe():
        return pathlib.Path(directory, "beat").exists()

    return probe


def silence(directory):
    """A probe: it does not run any more."""
    async def probe():
        before = pathlib.Path(directory, "beat").stat().st_size
        await asyncio.sleep(0.3)
        return pathlib.Path(directory, "beat").stat().st_size == before

    return probe


async def test_workspaces_do_not_see_each_other(box, other):
    await box.sh("echo mine > /workspace/f")
    await other.sh("test -e /workspace/f && echo leak || echo clean")
    assert (await other.sh("ls /workspace")).stdout == ""
    assert (await box.sh("cat /workspace/f")).stdout == "mine"
    await box.new("only-here")
    assert {s["session_id"] for s in await other.get_sessions()} == {"s"}
    assert ((await box.get_status())["active_sessions"], (await other.get_status())["active_sessions"]) == (2, 1)
    with pytest.raises(errors.BoxSessionNotFoundError):
        await other.get_session("only-here")
    with pytest.raises(errors.BoxSessionNotFoundError):
        await other.delete_session("only-here")


async def test_processes_of_workspaces_are_apart(box, other):
    await box.new()
    await other.new()
    await box.start("cat")
    with pytest.raises(errors.BoxManagedProcessNotFoundError):
        await other.get_managed_process("s")
    with pytest.raises(errors.BoxManagedProcessNotFoundError):
        await other.stop_managed_process("s")


async def test_another_instance_is_refused(box):
    wrong = ActionContext(instance_uuid="inst-other", workspace_uuid=box.workspace)
    for call in (box.client.get_status(action_context=wrong),
                 box.client.execute(box.spec("true"), action_context=wrong)):
        with pytest.raises(errors.BoxError,
                           match="PermissionError: Box action context does not match the trusted instance"):
            await call


async def test_a_tenant_call_needs_a_context(box):
    for call in (box.client.get_status(), box.client.get_sessions(), box.client.execute(box.spec("true"))):
        with pytest.raises(errors.BoxError,
                           match="PermissionError: Box tenant action requires a trusted Workspace context"):
            await call


async def test_a_new_generation_starts_empty(box):
    await box.sh("echo old > /workspace/f")
    old = box.advance(2)
    assert await box.get_sessions() == []
    for call in (old.get_status(), old.sh("true"), old.get_sessions()):
        with pytest.raises(errors.BoxError, match="PermissionError: Stale Box placement generation"):
            await call
    assert (await box.sh("test -e /workspace/f || echo fresh")).stdout == "fresh"


async def test_generations_may_be_left_out(box):
    box.advance(2**31)
    assert (await box.sh("echo hi")).stdout == "hi"
    with pytest.raises(errors.BoxError, match="Stale Box placement generation"):
        await box.at(7).get_status()


async def test_a_new_generation_ends_what_the_old_one_runs(box, shared):
    await box.new(host_path=shared)
    old = asyncio.ensure_future(box.sh(BEAT, host_path=shared))
    await until(beats(shared))
    box.advance(2)
    await box.get_sessions()
    await until(silence(shared))
    done, _ = await asyncio.wait([old], timeout=1)
    if done:  # upstream does not answer at all
        assert "Stale Box placement generation" in str(old.exception())
    old.cancel()


async def connect(link, **headers):
    return await Link(link.server, "ws", **headers).open()


async def test_two_connections_share_the_sessions(box):
    if box.link.transport == "stdio":
        return  # its one connection is the pipe
    await box.sh("echo kept > /workspace/f")
    second = await connect(box.link)
    there = Box(second, box.workspace)
    assert (await there.sh("cat /workspace/f")).stdout == "kept"
    await second.close()
    assert (await box.sh("cat /workspace/f")).stdout == "kept"


async def test_the_listener_beside_the_pipe_serves_too(box):
    if box.link.transport == "ws":
        return
    await box.sh("echo kept > /workspace/f")
    second = await connect(box.link)
    assert (await Box(second, box.workspace).sh("cat /workspace/f")).stdout == "kept"
    await second.close()


@pytest.mark.needs("boxd")  # newer runtimes let it run on
async def test_losing_the_connection_ends_its_command(box, shared):
    await box.new(host_path=shared)
    second = await connect(box.link)
    there = Box(second, box.workspace)
    task = asyncio.ensure_future(there.sh(BEAT, host_path=shared))
    await until(beats(shared))
    await second.close()
    with pytest.raises(Exception):
        await task
    await until(silence(shared))
    assert (await box.sh("echo alive", host_path=shared)).stdout == "alive"


@pytest.mark.parametrize("headers", [{"instance": "inst-other"}, {"instance": "no spaces please"}, {"token": "x" * 40}],
                         ids=["instance", "malformed", "token"])
async def test_strangers_are_refused(box, headers):
    with pytest.raises(InvalidStatus) as caught:
        await connect(box.link, **headers)
    assert (caught.value.response.status_code, caught.value.response.body) == (401, b"Unauthorized")


async def test_without_headers_nobody_gets_in(box):
    import websockets

    with pytest.raises(InvalidStatus) as caught:
        async with websockets.connect(box.server.url, proxy=None):
            pass
    assert caught.value.response.status_code == 401


async def test_health_over_http(box):
    loop = asyncio.get_running_loop()
    status, body = await loop.run_in_executor(None, box.server.get, "/healthz")
    live = json.loads(body)
    assert status == 200 and live["live"] is True and isinstance(live["resources"]["sessions"], int)
    status, body = await loop.run_in_executor(None, box.server.get, "/readyz")
    ready = json.loads(body)
    assert (status, ready["ready"], ready["mode"]) == (200, True, "standard")
    assert ready["backend"]["available"] is True and ready["checks"] == {"backend_available": True}
    assert (await loop.run_in_executor(None, box.server.get, "/none"))[0] in (401, 404)
