# SPDX-License-Identifier: Apache-2.0
"""LangBot's own client, unmodified, connected to a server under test.

Runs in the virtual environment of one release of langbot-plugin. The server is boxd, or, with
INTEROP_SERVER=upstream, the runtime from the same package: that is how the cases are checked
against what they were written from.
"""

import asyncio
import contextlib
import functools
import importlib.metadata
import inspect
import json
import logging
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import uuid

import websockets
from boxlib import BUILD, Boxd
from langbot_plugin.box import errors, models
from langbot_plugin.box.actions import LangBotToBoxAction
from langbot_plugin.box.client import ActionRPCBoxClient
from langbot_plugin.entities.io.actions.enums import CommonAction
from langbot_plugin.runtime.io.controllers.stdio.client import StdioClientController
from langbot_plugin.runtime.io.controllers.ws.client import WebSocketClientController
from langbot_plugin.runtime.io.handler import Handler

try:
    from langbot_plugin.entities.io.context import ActionContext
except ImportError:  # before 0.5.0 there are no workspaces
    ActionContext = None

VERSION = importlib.metadata.version("langbot-plugin")
UPSTREAM = os.environ.get("INTEROP_SERVER", "boxd") == "upstream"
TOKEN = ActionContext and "interop-" + uuid.uuid4().hex * 2  # the first release sends none
DEADLINE = 30.0


def features():
    """What this release of the client can do; the cases name what they need."""
    return {name for name, there in {
        "tenancy": ActionContext is not None,
        "first": ActionContext is None,
        "skills": hasattr(ActionRPCBoxClient, "list_skills"),
        "admission": hasattr(models, "SandboxAdmissionGrant"),
        "capacity": hasattr(errors, "BoxCapacityExceededError"),
        "storage": hasattr(ActionRPCBoxClient, "get_storage_analysis"),
        "artifacts": "content_digest" in models.BoxMountSpec.model_fields,
        "skill_name": "skill_name" in models.BoxSpec.model_fields,
        "offline": "offline" in models.BUILTIN_PROFILES,
        "boxd": not UPSTREAM,
    }.items() if there}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def langbot_config(root):
    """What LangBot makes of its own defaults and sends with box_init, apart from the paths."""
    config = {
        "enabled": True,
        "backend": "host" if UPSTREAM else "local",
        "local": {"profile": "default", "image": "", "host_root": str(root), "default_workspace": "default",
                  "skills_root": "skills", "allowed_mount_roots": [str(root)], "workspace_quota_mb": None},
        "e2b": {"api_key": "", "api_url": "", "template": ""},
    }
    if ActionContext is None:
        return config
    return {
        **config,
        "limits": {"max_sessions": 64, "max_managed_processes": 64, "max_completed_processes": 256,
                   "max_workspace_entries": 100000, "max_admission_records": 100000, "max_rpc_file_bytes": 20971520},
        "admission": {"required": False, "logical_session_id": "global", "required_backend": "nsjail",
                      "max_sessions": 1, "max_managed_processes": 0, "max_grant_ttl_sec": 300, "max_timeout_sec": 120,
                      "cpus": 1.0, "memory_mb": 512, "pids_limit": 128, "read_only_rootfs": True,
                      "workspace_quota_mb": 0, "readiness_cache_sec": 15},
        "default_memory_mb": 1536,
        "docker": {"cpu_limit_enabled": True},
    }


class Server:
    """A daemon with directories of its own. `config` is added to the box configuration it starts with, `settings` to
    the configuration file of boxd."""

    made = []  # those of cases that fail are closed at the end

    def __init__(self, config=None, token=TOKEN, env=None, settings=""):
        self.made.append(self)
        self.instance = "inst-" + uuid.uuid4().hex
        self.token = token
        self.port = free_port()
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="box-interop-"))
        self.work = self.root / "work"  # what host mounts, the default workspace and skills lie in
        for directory in (self.root, self.work, self.work / "default"):
            directory.mkdir(exist_ok=True)
            directory.chmod(0o777)
        self.config = {**langbot_config(self.work), **(config or {})}
        self.env = {"LANGBOT_BOX_CONFIG": json.dumps(self.config),
                    "LANGBOT_PLUGIN_FILE_STORAGE_DIR": str(self.root / "transfer"), **(env or {})}
        if token:
            self.env["LANGBOT_BOX_CONTROL_TOKEN"] = token
        self.boxd_config = self.root / "boxd.yaml"
        if ActionContext is None:
            settings += "legacy_protocol: true\n"
        self.boxd_config.write_text(f"allowed_mount_roots: [{self.work}]\n{settings}")
        self.process = None

    def command(self, stdio):
        tail = ["--host", "127.0.0.1", "--ws-control-port", str(self.port)] + (["-s"] if stdio else [])
        if UPSTREAM:
            return [sys.executable, "-m", "langbot_plugin.cli.__init__", "box", *tail]
        return [str(BUILD / "boxd"), "--state-dir", str(self.root / "state"), "--config", str(self.boxd_config), *tail]

    def environment(self, stdio):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("BOX_", "LANGBOT_", "INTEROP_"))}
        if stdio:
            kept["LANGBOT_BOX_TRUSTED_INSTANCE_UUID"] = self.instance
        return {**kept, "TMPDIR": str(self.root), **self.env}

    def start(self):
        """Serves WebSocket control; for stdio the client starts the command itself."""
        if not UPSTREAM:
            state = self.root / "state"
            state.mkdir()
            self.process = Boxd(*self.command(False)[3:], env=self.env, state=state)
            return self
        with open(self.root / "log", "ab") as log:
            self.process = subprocess.Popen(self.command(False), env=self.environment(False), cwd=self.root,
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    @property
    def base(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self):
        return f"ws://127.0.0.1:{self.port}/rpc/ws"

    def headers(self, instance=None, token=None):
        if ActionContext is None:
            return {}
        headers = {"X-LangBot-Instance-Id": instance or self.instance}
        if token or self.token:
            headers["X-LangBot-Box-Control-Token"] = token or self.token
        return headers

    def get(self, path):
        """Status and body of a plain GET."""
        try:
            with urllib.request.urlopen(self.base + path, timeout=DEADLINE) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()

    def stop(self):
        """The exit status."""
        if isinstance(self.process, Boxd):
            return self.process.stop()
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)  # the one that upstream ends in order on
            return self.process.wait(DEADLINE)
        return None

    def close(self):
        self.stop()
        if isinstance(self.process, Boxd):
            self.process.close()
        shutil.rmtree(self.root, ignore_errors=True)
        self.made.remove(self)


class Link:
    """One connection: transport, handler and client as LangBot's connector puts them together."""

    def __init__(self, server, transport, **headers):
        self.server, self.transport = server, transport
        self.client = ActionRPCBoxClient(logging.getLogger("interop"))
        self.handler = self.controller = self.failure = None
        self._headers = headers
        self._task = None
        self._up = asyncio.Event()

    async def _connected(self, connection):
        async def lost(handler):
            return False

        self.handler = Handler(connection, lost)
        self.client.set_handler(self.handler)
        self._up.set()
        await self.handler.run()

    async def _failed(self, controller, failure):
        self.failure = failure
        self._up.set()

    async def open(self):
        if self.transport == "ws":
            headers = self.server.headers(**self._headers)
            extra = {"additional_headers": headers} if headers else {}
            self.controller = WebSocketClientController(self.server.url, self._failed, **extra)
        else:
            command = self.server.command(True)
            self.controller = StdioClientController(command[0], command[1:], self.server.environment(True),
                                                    working_dir=str(self.server.root))
        for _ in range(200):  # upstream needs a while to listen
            self._up.clear()
            self.failure = None
            self._task = asyncio.ensure_future(self.controller.run(self._connected))
            await asyncio.wait_for(self._up.wait(), DEADLINE)
            if not isinstance(self.failure, ConnectionRefusedError):
                break
            await asyncio.sleep(0.1)
        if self.failure is not None:
            raise self.failure
        await self.ping()
        return self

    async def ping(self):
        return await self.handler.call_action(CommonAction.PING, {})

    async def close(self):
        """Ends the connection; for stdio, too, the daemon, whose exit status is returned."""
        process = getattr(self.controller, "process", None)
        if self.handler is not None:
            with contextlib.suppress(Exception):
                await self.handler.conn.close()
        if process is not None:
            with contextlib.suppress(Exception):
                process.stdin.close()
            await asyncio.wait_for(process.wait(), DEADLINE)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=DEADLINE)
        return process.returncode if process is not None else None


class Box:
    """The calls of the client, each made for one workspace where the release knows workspaces."""

    def __init__(self, link, workspace=None, generation=1):
        self.link, self.client, self.handler, self.server = link, link.client, link.handler, link.server
        self.workspace = workspace or "ws-" + uuid.uuid4().hex
        self.generation = generation
        self.context = ActionContext and ActionContext(
            instance_uuid=self.server.instance, workspace_uuid=self.workspace, placement_generation=generation)

    def __getattr__(self, name):
        method = getattr(self.client, name)
        if "action_context" in inspect.signature(method).parameters:
            return functools.partial(method, action_context=self.context)
        return method

    def at(self, generation):
        return Box(self.link, self.workspace, generation)

    def advance(self, generation):
        """Moves on to a later generation; what is returned has been left behind."""
        old, new = self.at(self.generation), self.at(generation)
        self.generation, self.context = new.generation, new.context
        return old

    def spec(self, cmd="", session_id="s", **fields):
        return models.BoxSpec(cmd=cmd, session_id=session_id, **fields)

    async def sh(self, cmd, session_id="s", **fields):
        return await self.execute(self.spec(cmd, session_id, **fields))

    async def new(self, session_id="s", **fields):
        return await self.create_session(self.spec("", session_id, **fields))

    async def start(self, command, *args, process_id="default", session_id="s", **fields):
        return await self.start_managed_process(
            session_id, models.BoxManagedProcessSpec(process_id=process_id, command=command, args=list(args), **fields))

    async def raw(self, action, data, **kwargs):
        """An action with data the client's models would refuse."""
        kwargs.setdefault("action_context", self.context)
        if ActionContext is None:
            kwargs.pop("action_context")
        return await self.client._call(getattr(LangBotToBoxAction, action), data, **kwargs)

    async def configure(self, **config):
        await self.client.init({**self.server.config, **config})

    def physical(self, session_id="s"):
        if ActionContext is None:
            return session_id
        from langbot_plugin.box.tenancy import namespace_session_id

        return namespace_session_id(self.context, session_id)

    def relay_headers(self, **changes):
        if ActionContext is None:
            return {}
        headers = {**self.server.headers(), "X-LangBot-Workspace-Id": self.workspace,
                   "X-LangBot-Placement-Generation": str(self.generation)}
        headers.update({f"X-LangBot-{k}": v for k, v in changes.items() if v is not None})
        return {k: v for k, v in headers.items() if k.removeprefix("X-LangBot-") not in changes
                or changes[k.removeprefix("X-LangBot-")] is not None}

    def relay(self, process_id="default", session_id="s", url=None, headers=None, **options):
        """As LangBot attaches: its URL, its headers, the mcp sub-protocol."""
        options.setdefault("subprotocols", ["mcp"])
        return websockets.connect(
            url or self.get_managed_process_websocket_url(session_id, self.server.base, process_id),
            additional_headers=self.relay_headers() if headers is None else headers, max_size=None, proxy=None,
            **options)

    async def clean(self):
        for session in await self.get_sessions():
            with contextlib.suppress(errors.BoxSessionNotFoundError):
                await self.delete_session(session["session_id"])


async def until(probe, deadline=DEADLINE):
    """The first true answer of an async probe."""
    end = asyncio.get_running_loop().time() + deadline
    while not (answer := await probe()):
        assert asyncio.get_running_loop().time() < end, "nothing happened in time"
        await asyncio.sleep(0.01)
    return answer


async def text(ws):
    """One message; the raw-chunk relays since 0.5.0 leave the newline on."""
    return (await asyncio.wait_for(ws.recv(), DEADLINE)).rstrip("\n")
