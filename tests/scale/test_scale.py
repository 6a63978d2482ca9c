# SPDX-License-Identifier: Apache-2.0
"""Many at once: sessions, clients, and a daemon that is killed under them. Sizes by environment, for small machines."""

import asyncio
import json
import os
import pathlib
import random
import time

import pytest
from boxlib import Boxd
from hostlib import SCALE, adopt_orphans, assert_no_leak, reap_orphans
from rpclib import Lost, Rpc, RpcError, Ws

SESSIONS = int(os.environ.get("BOX_SCALE_SESSIONS", "5000" if SCALE == 1 else "200"))
CLIENTS = int(os.environ.get("BOX_SCALE_CLIENTS", "200" if SCALE == 1 else "20"))
EXECS = int(os.environ.get("BOX_SCALE_EXECS", "20000" if SCALE == 1 else "200"))
KILLS = int(os.environ.get("BOX_SCALE_KILLS", "50" if SCALE == 1 else "3"))
SMALL = {"memory_mb": 32, "pids_limit": 16}
LIMITS = {"limits": {"max_sessions": 5000, "max_managed_processes": 1024}}


@pytest.fixture
def daemon():
    adopt_orphans()
    d = Boxd(env={"BOX_SESSION_TTL_SEC": "3600", "BOX_MAX_SESSIONS": "5000"})
    yield d
    d.close()
    reap_orphans()


async def connect(d):
    rpc = await Rpc.open(d.sock)
    await rpc.call("box_init", LIMITS, context=False)
    return rpc


async def each(items, width, work):
    """work(item) for all of them, so many at a time."""
    queue = list(reversed(list(items)))

    async def run():
        while queue:
            await work(queue.pop())

    await asyncio.gather(*(run() for _ in range(width)))


def test_check_E14_five_thousand_sessions_live_side_by_side(daemon):
    async def scene():
        rpc = await connect(daemon)
        names = [f"s{i}" for i in range(SESSIONS)]
        await each(names, 16, lambda n: rpc.call("box_create_session", {"session_id": n, **SMALL}))
        status = await rpc.call("box_status")
        assert status["active_sessions"] == SESSIONS
        for n in random.sample(names, min(200, SESSIONS)):
            answer = await rpc.exec(n, f"echo {n} > /tmp/name; cat /tmp/name", **SMALL)
            assert answer["stdout"] == n
        assert daemon.rss_kb() <= 16 * 1024 + 16 * SESSIONS, "16 MiB and 16 KiB for each session"
        await each(names, 16, lambda n: rpc.call("box_delete_session", {"session_id": n}))
        assert (await rpc.call("box_status"))["active_sessions"] == 0
        await rpc.close()

    asyncio.run(scene())
    assert_no_leak(daemon, 60)


def test_two_hundred_clients_and_twenty_thousand_commands(daemon):
    per_client = EXECS // CLIENTS

    async def client(number, rpc, first, last):
        for i in range(first, last):
            answer = await rpc.exec(f"c{number}", f"echo {number}.{i}", **SMALL)
            assert (answer["status"], answer["exit_code"], answer["stdout"]) == ("completed", 0, f"{number}.{i}"), answer

    async def scene():
        clients = [await connect(daemon) for _ in range(CLIENTS)]
        warm = per_client // 10
        await asyncio.gather(*(client(n, c, 0, warm) for n, c in enumerate(clients)))
        before, fds = daemon.rss_kb(), len(os.listdir(f"/proc/{daemon.pid}/fd"))
        await asyncio.gather(*(client(n, c, warm, per_client) for n, c in enumerate(clients)))
        assert daemon.rss_kb() - before < 1024, "memory is flat"
        assert len(os.listdir(f"/proc/{daemon.pid}/fd")) == fds
        for n, c in enumerate(clients):
            await c.call("box_delete_session", {"session_id": f"c{n}"})
            await c.close()

    asyncio.run(scene())
    assert_no_leak(daemon, 60)


# The daemon dies ---------------------------------------------------------------------------------

LINE = 32  # bytes of each line of the two writers, so that every byte of their output is known by its offset
WRITER = "import sys\nn = 0\nwhile True:\n    sys.stdout.write(f'{n:031d}\\n')\n    n += 1\n"
ECHO = "import sys\nfor line in sys.stdin:\n    sys.stdout.write(line)\n    sys.stdout.flush()\n"


def expected(offset, size):
    first, last = offset // LINE, (offset + size) // LINE
    text = "".join(f"{n:031d}\n" for n in range(first, last + 1)).encode()
    return text[offset - first * LINE:][:size]


class World:
    """What clients know for certain: what was acknowledged to them."""

    def __init__(self, d):
        self.d = d
        self.made = set()
        self.gone = set()  # asked to be deleted: may be there or not until the answer came
        self.execs = self.lines = self.bytes = self.echoes = 0
        self.stop = False


async def again(world, work):
    """Runs work(rpc) on one connection after the other until the end, as a client that reconnects does."""
    while not world.stop:
        try:
            rpc = await connect(world.d)
        except (Lost, RpcError, OSError):
            await asyncio.sleep(0.02)
            continue
        try:
            await work(rpc)
        except (Lost, OSError, asyncio.TimeoutError):
            pass
        finally:
            await rpc.close()


def commands(world, number):
    async def work(rpc):
        name = f"x{number}"
        while not world.stop:
            answer = await rpc.exec(name, "echo here", **SMALL)
            world.made.add(name)
            assert answer["stdout"] == "here", answer
            world.execs += 1

    return work


def churn(world, number):
    """Makes and deletes; what the answers say must be true after a crash."""
    async def work(rpc):
        while not world.stop:
            name = f"n{number}-{random.randrange(1 << 40)}"
            await rpc.call("box_create_session", {"session_id": name, **SMALL})
            world.made.add(name)
            if random.random() < 0.9:
                world.made.discard(name)
                world.gone.add(name)
                await rpc.call("box_delete_session", {"session_id": name})

    return work


async def by_offset(world, path):
    """Reads a process's output through HTTP, each byte once, going on where the last answer ended."""
    at = 0
    while not world.stop:
        try:
            r, w = await asyncio.open_unix_connection(str(world.d.sock))
            try:
                while not world.stop:
                    w.write(f"GET {path}/output?from={at}&release=1&wait_ms=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                    head = (await r.readuntil(b"\r\n\r\n")).decode()
                    size = int(head.lower().split("content-length:")[1].split()[0])
                    data = await r.readexactly(size)
                    assert head.startswith("HTTP/1.1 200"), head + data.decode(errors="replace")
                    assert data == expected(at, size), f"at {at}"
                    at += size
                    world.bytes += size
            finally:
                w.close()
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.02)


RELAY = {"X-LangBot-Instance-Id": Rpc.INSTANCE, "X-LangBot-Workspace-Id": "ws-1", "X-LangBot-Placement-Generation": "1"}


async def by_line(world, path):
    """Reads a process's output through the relay: no line is missing, whatever happens."""
    want = 0
    while not world.stop:
        try:
            ws = await Ws.open(world.d.sock, path, RELAY)
            try:
                first = True
                while not world.stop:
                    line = await ws.receive()
                    assert len(line) == LINE - 1, line
                    n = int(line)
                    # After a crash what the peer may not have had comes again, from a line's beginning.
                    assert n <= want if first else n == want, (n, want)
                    first, want = False, n + 1
                    world.lines += 1
            finally:
                ws.close()
        except (Lost, OSError, RpcError):
            await asyncio.sleep(0.02)


async def by_echo(world, path):
    """Writes lines and has them back; a line whose echo was lost is sent again."""
    n = 0
    while not world.stop:
        try:
            ws = await Ws.open(world.d.sock, path, RELAY)
            try:
                while not world.stop:
                    line = f"{n} ".encode() * 2000
                    ws.send(line)
                    while True:
                        got = await ws.receive()
                        if got == line:
                            break
                        # An echo of before a crash, or of several: never two lines in one.
                        known = {str(k).encode() for k in range(max(0, n - 8), n + 1)}
                        assert set(got.split()) <= known and len(set(got.split())) <= 1, (n, got[:80])
                    n += 1
                    world.echoes += 1
            finally:
                ws.close()
        except (Lost, OSError, RpcError):
            await asyncio.sleep(0.02)


async def prepare(world, count):
    """Sessions with two writers and an echo each; the physical id is found in the relay's own way."""
    rpc = await connect(world.d)
    tasks = []
    for i in range(count):
        name = f"p{i}"
        await rpc.call("box_create_session", {"session_id": name, "memory_mb": 128})
        for process, text in (("offset", WRITER), ("line", WRITER), ("echo", ECHO)):
            await rpc.call("box_start_managed_process", {"session_id": name, "spec": {
                "process_id": process, "command": "python3", "args": ["-u", "-c", text], "cwd": "/tmp"}})
        world.made.add(name)
        physical = next(s["session_id"] for s in world.d.client().ps() if s["session_id"].endswith(f"-{name}"))
        base = f"/v1/sessions/{physical}"
        tasks += [by_offset(world, f"{base}/processes/offset"), by_line(world, f"{base}/managed-process/line/ws"),
                  by_echo(world, f"{base}/managed-process/echo/ws")]
    await rpc.close()
    return tasks


async def check(world, processes):
    rpc = await connect(world.d)
    names = {s["session_id"] for s in (await rpc.call("box_get_sessions"))["sessions"]}
    missing = world.made - names
    assert not missing, f"acknowledged and gone: {sorted(missing)[:5]}"
    for i in range(processes):
        for process in ("offset", "line", "echo"):
            info = await rpc.call("box_get_managed_process", {"session_id": f"p{i}", "process_id": process})
            assert info["status"] == "running", info
    await rpc.close()


def restart(d):
    """kill -9, and a new one: how long until it is ready."""
    d.process.kill()
    d.process.wait()
    begin = time.monotonic()
    d.start()
    return time.monotonic() - begin


async def kills(world, processes, running):
    """So many, at any moment; then everybody gets on."""
    took, loop = [], asyncio.get_running_loop()
    for kill in range(KILLS):
        await asyncio.sleep(random.uniform(0.05, 0.6))
        assert not any(t.done() for t in running), [t.exception() for t in running if t.done()]
        took.append(await loop.run_in_executor(None, restart, world.d))
        if kill % 10 == 9 or kill == KILLS - 1:
            await check(world, processes)
    before = (world.execs, world.lines, world.bytes, world.echoes)
    for _ in range(600):
        await asyncio.sleep(0.1)
        now = (world.execs, world.lines, world.bytes, world.echoes)
        if all(a > b for a, b in zip(now, before)) or any(t.done() for t in running):
            break
    assert all(a > b for a, b in zip(now, before)), (before, now)
    took.sort()
    print(json.dumps({"ready_s": [round(took[len(took) // 2], 3), round(took[-1], 3)], "execs": world.execs,
                      "lines": world.lines, "bytes": world.bytes, "echoes": world.echoes}))
    limit = 1.0 * SCALE * (1 + os.getloadavg()[0] / os.cpu_count())
    assert took[-1] <= limit, f"ready after {took[-1]:.2f} s, mostly {took[len(took) // 2]:.2f} s"


def test_check_J01_killed_fifty_times_under_load_nothing_acknowledged_is_lost(daemon):
    async def scene():
        world, processes = World(daemon), 3
        tasks = await prepare(world, processes)
        tasks += [again(world, commands(world, n)) for n in range(20)] + [again(world, churn(world, n)) for n in range(4)]
        running = [asyncio.create_task(t) for t in tasks]
        try:
            await kills(world, processes, running)
        finally:
            world.stop = True
            results = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 120)
        assert [r for r in results if r is not None] == []
        rpc = await connect(daemon)
        for s in (await rpc.call("box_get_sessions"))["sessions"]:
            await rpc.call("box_delete_session", {"session_id": s["session_id"]})
        await rpc.close()

    asyncio.run(scene())
    assert_no_leak(daemon, 60)
    assert pathlib.Path(f"/proc/{daemon.pid}").exists()
