# SPDX-License-Identifier: Apache-2.0
"""What LangBot finds when it reconnects to a daemon that was killed."""

import signal

import pytest
from langbot_client import Box, Link, Server, text, until

pytestmark = pytest.mark.needs("boxd")


@pytest.fixture
def server():
    daemon = Server().start()
    yield daemon
    daemon.close()


async def connect(server, workspace=None):
    link = await Link(server, "ws").open()
    await link.client.init(server.config)
    return Box(link, workspace)


async def killed_and_back(server, box):
    server.process.stop(signal.SIGKILL)
    await box.link.close()
    server.process.start()
    return await connect(server, box.workspace)


async def test_sessions_and_their_files_are_still_there(server):
    box = await connect(server)
    before = await box.new(persistent=True)
    await box.sh("echo kept > /workspace/f", persistent=True)
    box = await killed_and_back(server, box)
    after = await box.get_session("s")
    assert [after[k] for k in ("created_at", "persistent", "memory_mb")] == [
        before[k] for k in ("created_at", "persistent", "memory_mb")]
    assert (await box.sh("cat /workspace/f", persistent=True)).stdout == "kept"
    await box.delete_session("s")
    assert await box.get_sessions() == []
    await box.link.close()


async def test_processes_run_on_and_lose_nothing(server):
    box = await connect(server)
    await box.new()
    before = await box.start("sh", "-c", "echo early; while read -r line; do echo \"got $line\"; done")
    async with box.relay() as ws:
        assert await text(ws) == "early"
        await ws.send("one")
        assert await text(ws) == "got one"
    await box.start("sh", "-c", "while [ ! -e /workspace/go ]; do sleep 0.02; done; echo late; exec cat",
                    process_id="silent")
    box = await killed_and_back(server, box)
    after = await box.get_managed_process("s")
    assert (after.status.value, after.started_at, after.command) == ("running", before.started_at, "sh")
    async with box.relay() as ws:
        await ws.send("two")
        assert await text(ws) == "got two"
    await box.sh("touch /workspace/go")
    async with box.relay("silent") as ws:
        assert await text(ws) == "late"
    await box.stop_managed_process("s")
    await box.link.close()


async def test_what_ended_meanwhile_is_told(server):
    box = await connect(server)
    await box.new()
    await box.start("sh", "-c", "echo said >&2; while [ ! -e /workspace/go ]; do sleep 0.02; done; exit 7")
    await box.sh("(sleep 0.5; touch /workspace/go) >/dev/null 2>&1 &")
    box = await killed_and_back(server, box)

    async def ended():
        info = await box.get_managed_process("s")
        return info if info.status.value == "exited" else None

    info = await until(ended)
    assert (info.exit_code, info.stderr_preview) == (7, "said")
    await box.link.close()
