# SPDX-License-Identifier: Apache-2.0
"""MCP clients as bytes: lines to `box mcp serve`, and POSTs to /mcp."""

import contextlib
import http.client
import json
import os
import queue
import subprocess
import threading

from boxlib import BUILD
from hostlib import SCALE

MODERN = "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
WAIT = 60 * SCALE


def request(method, number=1, meta=None, **params):
    """One message; `meta` None: without any, as before 2026-07-28."""
    message = {"jsonrpc": "2.0", "id": number, "method": method}
    if meta is not None:
        params["_meta"] = {**META, **meta}
    if params:
        message["params"] = params
    return message


INITIALIZE = request("initialize", 0, protocolVersion="2025-11-25", capabilities={},
                     clientInfo={"name": "t", "version": "1"})


class Stdio:
    """A client of `box mcp serve`."""

    def __init__(self, sock, *args, env=None):
        env = {**{k: v for k, v in os.environ.items() if not k.startswith("BOX_")}, **(env or {})}
        env["BOX_HOST"] = f"unix://{sock}"
        self.process = subprocess.Popen([str(BUILD / "box"), "mcp", "serve", *args], env=env, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.lines = queue.Queue()
        self.notes = []
        self.number = 0
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def send(self, message):
        self.raw((message if isinstance(message, str) else json.dumps(message)).encode() + b"\n")

    def raw(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def hear(self):
        """The next message that is no notification; None: the server has ended."""
        while True:
            message = self.lines.get(timeout=WAIT)
            if message is None or "method" not in message:
                return message
            self.notes.append(message)

    def ask(self, method, meta=None, **params):
        self.number += 1
        self.send(request(method, self.number, {} if meta is None else meta, **params))
        answer = self.hear()
        assert answer["id"] == self.number, answer
        return answer

    def tool(self, tool, meta=None, **arguments):
        return self.ask("tools/call", meta, name=tool, arguments=arguments)["result"]

    def end(self):
        """Closes our side; the exit status."""
        self.process.stdin.close()
        return self.process.wait(WAIT)

    def close(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        self.reader.join(WAIT)
        self.process.stdout.close()
        self.process.stderr.close()


class Http:
    """A client of /mcp on TCP. Each POST is a connection of its own."""

    def __init__(self, port, token=None):
        self.port = port
        self.headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if token is not None:
            self.headers["Authorization"] = f"Bearer {token}"
        self.session = None

    def open(self, method, body=None, **headers):
        """(connection, response) with the body still to be read."""
        conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        merged = {**self.headers, **{k.replace("_", "-"): v for k, v in headers.items() if v is not None}}
        if self.session is not None:
            merged.setdefault("Mcp-Session-Id", self.session)
        conn.request(method, "/mcp", body if body is None or isinstance(body, str) else json.dumps(body), merged)
        return conn, conn.getresponse()

    def raw(self, method, body=None, **headers):
        """(status, headers, body as it came)"""
        conn, response = self.open(method, body, **headers)
        with contextlib.closing(conn):
            return response.status, response.headers, response.read()

    def post(self, message, **headers):
        """(status, the messages of the answer)"""
        status, got, data = self.raw("POST", message, **headers)
        if got.get("Content-Type") == "text/event-stream":
            return status, [json.loads(line[5:]) for line in data.decode().splitlines() if line.startswith("data:")]
        return status, [json.loads(data)] if data else []

    def modern(self, method, meta=None, **params):
        name = params.get("name", params.get("uri"))
        return self.post(request(method, 1, meta or {}, **params), MCP_Protocol_Version=MODERN, Mcp_Method=method,
                         Mcp_Name=name)

    def tool(self, tool, **arguments):
        status, messages = self.modern("tools/call", name=tool, arguments=arguments)
        assert status == 200, messages
        return messages[-1]["result"]

    def initialize(self):
        status, headers, data = self.raw("POST", INITIALIZE)
        assert status == 200, data
        self.session = headers["Mcp-Session-Id"]
        return json.loads(data)["result"]

    def legacy(self, method, number=1, meta=None, **params):
        if meta is not None:
            params["_meta"] = meta
        return self.post(request(method, number, None, **params))
