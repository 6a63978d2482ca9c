# SPDX-License-Identifier: Apache-2.0
"""The LangBot wire for tests that need hundreds of clients at once: asyncio and a few lines of RFC 6455."""

import asyncio
import base64
import itertools
import json
import os
import struct

TEXT, CLOSE, PING, PONG = 1, 8, 9, 10


class RpcError(Exception):
    pass


class Lost(Exception):
    """The connection is gone."""


class Ws:
    """One WebSocket over a unix socket or TCP. The mask is all zeros, which the protocol permits."""

    @classmethod
    async def open(cls, where, target, headers):
        self = cls()
        if isinstance(where, tuple):
            self.r, self.w = await asyncio.open_connection(*where, limit=32 << 20)
        else:
            self.r, self.w = await asyncio.open_unix_connection(str(where), limit=32 << 20)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET {target} HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade",
                 "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}"] + [f"{k}: {v}" for k, v in headers.items()]
        self.w.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        try:
            head = await self.r.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Lost("no answer to the upgrade") from error
        if not head.startswith(b"HTTP/1.1 101 "):
            rest = await self.r.read(4096)
            self.w.close()
            raise RpcError((head + rest).decode(errors="replace"))
        return self

    def send(self, data, opcode=TEXT):
        n = len(data)
        if n < 126:
            head = struct.pack("!BB", 0x80 | opcode, 0x80 | n)
        elif n < 65536:
            head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, n)
        else:
            head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, n)
        self.w.write(head + b"\0\0\0\0" + data)

    async def receive(self):
        """The next text message; pings are answered on the way."""
        while True:
            try:
                first, n = await self.r.readexactly(2)
                if n == 126:
                    n, = struct.unpack("!H", await self.r.readexactly(2))
                elif n == 127:
                    n, = struct.unpack("!Q", await self.r.readexactly(8))
                data = await self.r.readexactly(n)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                raise Lost("the connection is gone") from error
            opcode = first & 15
            if opcode == PING:
                self.send(data, PONG)
            elif opcode == CLOSE:
                raise Lost(f"closed with {struct.unpack('!H', data[:2])[0] if data else None}")
            elif opcode == TEXT:
                return data

    def close(self):
        self.w.close()


class Rpc:
    """Calls under way at the same time, answers in any order."""

    INSTANCE = "inst-a"

    @classmethod
    async def open(cls, where, instance=INSTANCE, token=None, workspace="ws-1", generation=1):
        self = cls()
        headers = {"X-LangBot-Instance-Id": instance} | ({"X-LangBot-Box-Control-Token": token} if token else {})
        self.ws = await Ws.open(where, "/rpc/ws", headers)
        self.context = {"instance_uuid": instance, "workspace_uuid": workspace, "placement_generation": generation}
        self._numbers = itertools.count(1)
        self._waiting = {}
        self._reader = asyncio.create_task(self._read())
        return self

    async def _read(self):
        try:
            while True:
                answer = json.loads(await self.ws.receive())
                waiting = self._waiting.pop(answer["seq_id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except (Lost, OSError, asyncio.CancelledError) as error:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(Lost(str(error)))
            self._waiting.clear()
            self.lost = True

    lost = False

    async def call(self, action, data=None, timeout=120, context=True):
        if self.lost:
            raise Lost("the connection is gone")
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"seq_id": number, "action": action, "data": data or {}}
        if context:
            message["context"] = self.context
        self.ws.send(json.dumps(message).encode())
        answer = await asyncio.wait_for(future, timeout)
        if answer["code"] != 0:
            raise RpcError(answer["message"])
        return answer["data"]

    async def exec(self, session_id, cmd, **spec):
        return await self.call("box_exec", {"session_id": session_id, "cmd": cmd, **spec})

    async def close(self):
        self._reader.cancel()
        self.ws.close()
        await asyncio.gather(self._reader, return_exceptions=True)
