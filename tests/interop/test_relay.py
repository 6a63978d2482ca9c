# SPDX-License-Identifier: Apache-2.0
"""The relay of managed processes, attached to as LangBot does it."""

import asyncio
import json

import pytest
import websockets
from langbot_client import Box, Link, Server, text, until
from websockets.exceptions import ConnectionClosed, InvalidStatus

LINES = "while read -r line; do echo \"got $line\"; done"


async def cat(box, **fields):
    await box.new()
    return await box.start("cat", **fields)


async def closed(ws):
    """Code and reason of the close; what comes before it is dropped."""
    with pytest.raises(ConnectionClosed):
        while True:
            await asyncio.wait_for(ws.recv(), 30)
    return ws.close_code, ws.close_reason


async def refused(box, **options):
    with pytest.raises(InvalidStatus) as caught:
        async with box.relay(**options):
            pass
    reply = caught.value.response
    return reply.status_code, reply.body.decode()


async def test_echo(box):
    await cat(box)
    async with box.relay() as ws:
        assert ws.subprotocol == "mcp"
        for word in ("hello", "世界 🎉", '{"jsonrpc":"2.0","id":1,"method":"initialize"}'):
            await ws.send(word)
            assert await text(ws) == word


async def test_a_newline_is_added_for_the_process(box):
    await box.new()
    await box.start("sh", "-c", LINES)
    async with box.relay() as ws:
        await ws.send("one")
        assert await text(ws) == "got one"


@pytest.mark.needs("boxd")
async def test_every_line_is_a_message(box):
    """LangBot parses each message as one JSON-RPC document."""
    await cat(box)
    async with box.relay() as ws:
        await ws.send("a\nb\n\nc")
        assert [await asyncio.wait_for(ws.recv(), 30) for _ in range(4)] == ["a", "b", "", "c"]


@pytest.mark.needs("boxd")
async def test_a_thousand_documents(box):
    await cat(box)
    documents = [json.dumps({"jsonrpc": "2.0", "id": i, "result": "é世🎉" * (i % 300)}, ensure_ascii=False)
                 for i in range(1000)]
    async with box.relay() as ws:
        async def send():
            for document in documents:
                await ws.send(document)

        sender = asyncio.ensure_future(send())
        for document in documents:
            assert await asyncio.wait_for(ws.recv(), 30) == document
        await sender


@pytest.mark.needs("boxd")
async def test_a_line_of_five_megabytes_both_ways(box):
    await cat(box)
    line = "é世x" * (5_000_000 // 6)
    async with box.relay() as ws:
        await ws.send(line)
        assert await asyncio.wait_for(ws.recv(), 60) == line
        await ws.send("after")
        assert await text(ws) == "after"


async def test_the_rest_without_a_newline_arrives(box):
    await box.new()
    await box.start("sh", "-c", "read -r go; printf tail; exit 0")
    async with box.relay() as ws:
        await ws.send("go")
        assert await text(ws) == "tail"
        assert (await closed(ws))[0] == 1000


async def test_an_exit_closes_the_relay(box):
    await box.new()
    await box.start("sh", "-c", "read -r go; exit 3")
    async with box.relay() as ws:
        await ws.send("go")
        assert await closed(ws) == (1000, "")


async def test_detaching_leaves_the_process_alone(box):
    await box.new()
    await box.start("sh", "-c", LINES)
    for word in ("one", "two"):
        async with box.relay() as ws:
            await ws.send(word)
            assert await text(ws) == f"got {word}"
    assert (await box.get_managed_process("s")).status.value == "running"


async def test_what_was_said_meanwhile_comes_first(box):
    await box.new()
    await box.start("sh", "-c", "echo early; while [ ! -e /workspace/go ]; do sleep 0.02; done; echo late; "
                                "echo x > /workspace/done; exec cat")
    await box.sh("touch /workspace/go; while [ ! -e /workspace/done ]; do sleep 0.02; done")
    async with box.relay() as ws:
        await ws.send("mine")
        heard = ""
        while heard.count("\n") < 3:
            heard += await text(ws) + "\n"
        assert heard.splitlines() == ["early", "late", "mine"]


async def test_attached_is_told(box):
    await cat(box)

    async def attached():
        return (await box.get_managed_process("s")).attached

    async def detached():
        return not await attached()

    async with box.relay():
        await until(attached)
    await until(detached)


async def test_a_second_client_waits_for_the_first(box):
    await cat(box)
    async with box.relay() as first, box.relay() as second:
        await first.send("one")
        assert await text(first) == "one"
        await second.send("two")
        await first.send("three")
        assert await text(first) == "three"
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(second.recv(), 0.3)
        await first.close()
        assert await text(second) == "two"


@pytest.mark.needs("boxd")
async def test_a_waiting_client_gets_its_pings_answered(box):
    await cat(box)
    async with box.relay() as first, box.relay() as second:
        await first.send("x")
        assert await text(first) == "x"
        await asyncio.wait_for(await second.ping(), 30)


async def test_pings_are_answered(box):
    await cat(box)
    async with box.relay() as ws:
        await asyncio.wait_for(await ws.ping(), 30)


async def test_binary_messages_are_ignored(box):
    await cat(box)
    async with box.relay() as ws:
        await ws.send(b"\x00binary")
        await ws.send("text")
        assert await text(ws) == "text"


async def test_without_a_sub_protocol(box):
    await cat(box)
    async with box.relay(subprotocols=None) as ws:
        assert ws.subprotocol is None
        await ws.send("hi")
        assert await text(ws) == "hi"


async def test_the_path_without_a_process_is_the_default_one(box):
    await cat(box)
    url = box.get_managed_process_websocket_url("s", box.server.base).replace("/default/ws", "/ws")
    async with box.relay(url=url) as ws:
        await ws.send("hi")
        assert await text(ws) == "hi"


async def test_process_ids_of_servers(box):
    name = "6fbe1c1e-8f0c-4d8a-9d5e-3f2f6f1c0a11"
    await cat(box, process_id=name)
    async with box.relay(name) as ws:
        await ws.send("hi")
        assert await text(ws) == "hi"


async def test_stderr_is_not_relayed(box):
    await box.new()
    await box.start("sh", "-c", "echo noise >&2; exec cat")
    async with box.relay() as ws:
        await ws.send("hi")
        assert await text(ws) == "hi"


async def test_stop_replace_and_delete_close_the_relay(box):
    await cat(box)
    for change in (lambda: box.start("cat"), lambda: box.stop_managed_process("s"), lambda: box.start("cat"),
                   lambda: box.delete_session("s")):
        if "managed_process" not in await box.get_session("s"):
            await box.start("cat")
        async with box.relay() as ws:
            await ws.send("hi")
            assert await text(ws) == "hi"
            await change()
            assert (await closed(ws))[0] == 1000


@pytest.mark.parametrize("process_id, code, message", [
    ("none", "BoxManagedProcessNotFoundError", "session {} has no managed process with process_id=none"),
    ("gone", "BoxManagedProcessConflictError", "managed process gone in session {} is not running"),
])
async def test_what_cannot_be_attached_to(box, process_id, code, message):
    await cat(box)
    await box.start("true", process_id="gone")

    async def gone():
        return (await box.get_managed_process("s", "gone")).status.value == "exited"

    await until(gone)
    status, body = await refused(box, process_id=process_id)
    assert status == 400
    assert json.loads(body) == {"error": {"code": code, "message": message.format(box.physical())}}


async def test_a_session_that_is_not_there(box):
    await box.get_sessions()
    status, body = await refused(box, session_id="none")
    assert status == 400
    assert json.loads(body) == {"error": {"code": "BoxSessionNotFoundError",
                                          "message": f"session {box.physical('none')} not found"}}


WRONG = [{"Instance-Id": "inst-other"}, {"Instance-Id": None}, {"Box-Control-Token": "x" * 40},
         {"Box-Control-Token": None}, {"Workspace-Id": "ws-other"}, {"Workspace-Id": None},
         {"Placement-Generation": "2"}, {"Placement-Generation": "01"}, {"Placement-Generation": "0"},
         {"Placement-Generation": None}]


@pytest.mark.needs("tenancy")
@pytest.mark.parametrize("change", WRONG, ids=lambda c: "-".join(f"{k}={v}" for k, v in c.items())[:40])
async def test_headers_that_do_not_fit(box, change):
    await cat(box)
    assert await refused(box, headers=box.relay_headers(**change)) == (401, "Unauthorized")


@pytest.mark.needs("tenancy")
async def test_the_session_of_another_workspace(box, other):
    await cat(box)
    await other.new()
    url = box.get_managed_process_websocket_url("s", box.server.base)
    assert await refused(other, url=url) == (401, "Unauthorized")


@pytest.mark.needs("tenancy")
async def test_a_new_generation_closes_the_relay(box):
    await cat(box)
    async with box.relay() as ws:
        await ws.send("hi")
        assert await text(ws) == "hi"
        old = box.advance(2)
        await box.get_sessions()
        assert (await closed(ws))[0] == 1000
    assert await refused(old) == (401, "Unauthorized")


async def test_shutdown_says_goodbye(box):
    """Needs a daemon that ends."""
    server = Server().start()
    link = Link(server, "ws")
    await link.open()
    mine = Box(link)
    await cat(mine)
    async with mine.relay() as ws, websockets.connect(
            server.url, additional_headers=server.headers(), proxy=None) as rpc:
        await ws.send("hi")
        assert await text(ws) == "hi"
        status = asyncio.get_running_loop().run_in_executor(None, server.stop)
        assert await closed(rpc) == (1001, "Box runtime shutting down")
        assert await closed(ws) == (1001, "Box runtime shutting down")
        assert await status == 0
    await link.close()
    server.close()
