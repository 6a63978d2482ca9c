# SPDX-License-Identifier: Apache-2.0
"""A load generator that is LangBot's own client. Runs on the Python of a release of langbot-plugin.

Speaks what tests/bench/load.c speaks: a command per line, words separated by tabs, answered by "ok" and times in
nanoseconds, or by "error" and the reason.

    connect NAME URL INSTANCE CONFIG     CONFIG: what LangBot sends with box_init, JSON
    exec COUNT NAME IMAGE SESSION        a warm exec each
    cycle COUNT NAME IMAGE PREFIX        a new session, its first exec and its end: the whole, then the parts
"""

import asyncio
import json
import logging
import sys
import time

from langbot_plugin.box.client import ActionRPCBoxClient
from langbot_plugin.box.models import BoxSpec
from langbot_plugin.entities.io.actions.enums import CommonAction
from langbot_plugin.entities.io.context import ActionContext
from langbot_plugin.runtime.io.controllers.ws.client import WebSocketClientController
from langbot_plugin.runtime.io.handler import Handler

COMMAND = "/bin/echo hello"
servers = {}


class Server:
    def __init__(self, instance):
        self.client = ActionRPCBoxClient(logging.getLogger("bench"))
        self.context = ActionContext(instance_uuid=instance, workspace_uuid="bench")
        self.instance, self.task, self.failure = instance, None, None
        self.up = asyncio.Event()

    async def _connected(self, connection):
        handler = Handler(connection)
        self.client.set_handler(handler)
        self.up.set()
        await handler.run()

    async def _failed(self, controller, failure):
        self.failure = failure
        self.up.set()

    async def connect(self, url, config):
        controller = WebSocketClientController(url, self._failed, {"X-LangBot-Instance-Id": self.instance})
        self.task = asyncio.ensure_future(controller.run(self._connected))
        await asyncio.wait_for(self.up.wait(), 20)
        if self.failure is not None:
            raise self.failure
        await self.client.handler.call_action(CommonAction.PING, {})
        await self.client.init(config)

    async def exec(self, image, session):
        spec = BoxSpec(session_id=session, image=image, cmd=COMMAND)
        result = await self.client.execute(spec, action_context=self.context)
        if (result.exit_code, result.stdout) != (0, "hello"):
            raise RuntimeError(f"exec answered {result.exit_code}: {result.stdout!r} {result.stderr!r}")

    async def create(self, image, session):
        await self.client.create_session(BoxSpec(session_id=session, image=image), action_context=self.context)

    async def delete(self, image, session):
        await self.client.delete_session(session, action_context=self.context)


async def connect(name, url, instance, config):
    servers[name] = Server(instance)
    await servers[name].connect(url, json.loads(config))
    return []


async def execs(count, name, image, session):
    times = []
    for _ in range(int(count)):
        start = time.perf_counter_ns()
        await servers[name].exec(image, session)
        times.append(time.perf_counter_ns() - start)
    return times


async def cycle(count, name, image, prefix):
    times, server = [], servers[name]
    for i in range(int(count)):
        at = [time.perf_counter_ns()]
        for part in (server.create, server.exec, server.delete):
            await part(image, f"{prefix}{i}")
            at.append(time.perf_counter_ns())
        times += [at[3] - at[0], *(b - a for a, b in zip(at, at[1:]))]
    return times


COMMANDS = {"connect": connect, "exec": execs, "cycle": cycle}


async def main():
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        name, *words = line.rstrip("\n").split("\t")
        try:
            answer = " ".join(["ok", *map(str, await COMMANDS[name](*words))])
        except Exception as error:  # whatever it is, it is no time
            answer = f"error {type(error).__name__}: " + " ".join(str(error).split())
        print(answer, flush=True)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    asyncio.run(main())
