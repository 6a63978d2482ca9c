# SPDX-License-Identifier: Apache-2.0
"""`box mcp run`: what it adds to a tool call of real servers, and what an idle one costs."""

import contextlib
import json
import os
import pathlib
import subprocess
import time

from boxlib import BUILD
from machine import GLOBAL, KERNEL, init_kib, memory, own_anon_kib, status_kib
from stats import Bar

ROOT = pathlib.Path(__file__).resolve().parents[2]
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
MIB = 1024.0
WHAT = "tool call through `box mcp run`"
PROMISE = "≤ 1.5× the same server without a box"


class Server:
    """One on its standard streams, spoken to by line."""

    def __init__(self, command, sock, log):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                        env={**os.environ, "BOX_HOST": f"unix://{sock}"})
        self.ids = 0

    def ask(self, method, params):
        self.ids += 1
        line = json.dumps({"jsonrpc": "2.0", "id": self.ids, "method": method, "params": params}).encode()
        start = time.perf_counter_ns()
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()
        while True:
            said = self.process.stdout.readline()
            took = time.perf_counter_ns() - start
            if not said:
                raise RuntimeError(f"{method}: the server ended")
            message = json.loads(said)
            if message.get("id") == self.ids and "method" not in message:
                if "error" in message:
                    raise RuntimeError(message["error"]["message"])
                return took

    def open(self):
        self.ask("initialize", HELLO)
        self.process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        self.process.stdin.flush()
        return self

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def packages(run):
    """The reference servers, installed once; None without npm and PyPI."""
    done = subprocess.run([ROOT / "tools" / "mcp-interop.sh"], text=True, stdout=subprocess.PIPE, stderr=run.log,
                          timeout=300)
    return pathlib.Path(done.stdout.strip()) if done.returncode == 0 else None


def round_trips(run, here):
    node = here / "node" / "node_modules" / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
    python = [str(here / "python" / ".venv" / "bin" / "python"), "-m", "mcp_server_time"]
    box = [str(BUILD / "box"), "mcp", "run", "--network", "off", "--install", "off"]
    servers = (("everything", "reference server `everything` (node), echo", ["node", str(node)],
                [*box, "--host-path", str(here / "node"), "--"], {"name": "echo", "arguments": {"message": "hello"}}),
               ("time", "reference server `time` (Python), get_current_time", python, [*box, "--"],
                {"name": "get_current_time", "arguments": {"timezone": "UTC"}}))
    for key, name, command, boxed, call in servers:
        with contextlib.ExitStack() as stack:
            pair = []
            for prefix in ([], boxed):
                server = Server([*prefix, *command], run.sock, run.log)
                stack.callback(server.close)
                pair.append(server.open())
            for server in pair:
                for _ in range(20):
                    server.ask("tools/call", call)
            for _ in range(run.sizes["mcp_rounds"]):
                for suffix, title, server in (("bare", "bare", pair[0]), ("boxed", "box mcp run", pair[1])):
                    times = [server.ask("tools/call", call) for _ in range(20)]
                    run.add(f"mcp_{key}_{suffix}", f"{title}: {name}", times)
        run.ratio(f"{WHAT}, {key}", PROMISE, 1.5, f"mcp_{key}_boxed", f"mcp_{key}_bare")


def idle(run):
    """Many wrappers in front of a server that waits, and is next to nothing itself."""
    count = run.sizes["mcp_servers"]
    daemon = run.new_daemon(env={"BOX_MAX_MANAGED_PROCESSES": str(2 * count), "BOX_MAX_SESSIONS": str(2 * count)})
    wrappers, environment = [], {**os.environ, "BOX_HOST": f"unix://{daemon.sock}"}
    words = [BUILD / "box", "mcp", "run", "--network", "off", "--host-path-mode", "none"]
    try:
        before, own = memory(), own_anon_kib(daemon.pid) + own_anon_kib(daemon.priv_pid())
        for i in range(count):
            wrappers.append(subprocess.Popen([*words, "--name", f"idle{i}", "--", "cat"], stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, stderr=run.log, env=environment))
        client, end = daemon.client(), time.monotonic() + 120
        while True:
            holds = client.call("GET", "/v1/holds")["holds"]
            if sum(h["info"]["phase"] == "mcp_init" for h in holds if "info" in h) == count:
                break
            if time.monotonic() > end:
                raise RuntimeError(f"{count} servers did not start in 120 s")
            time.sleep(0.1)
        after, own_after = memory(), own_anon_kib(daemon.pid) + own_anon_kib(daemon.priv_pid())
        wrapper = sum(status_kib(w.pid, "RssAnon", "VmPTE") + 16 for w in wrappers) / count
        per = {key: (after[key] - before[key]) / count for key in GLOBAL}
        parts = {"kernel": sum(per[key] for key in KERNEL), "init": init_kib(daemon.priv_pid()), "wrapper": wrapper,
                 "daemons": (own_after - own) / count}
        run.facts["mcp_idle_kib"] = {key: round(value, 1) for key, value in {**parts, "used": per["used"]}.items()}
        run.bars.append(Bar(f"memory that `box mcp run` adds to an idle server ({count} servers)", "≤ 3 MiB",
                            sum(parts.values()) / MIB, 3.0, unit=" MiB"))
    finally:
        for w in wrappers:
            w.stdin.close()
        for w in wrappers:
            w.wait(60)
            w.stdout.close()
        daemon.stop_hard()


def mcp(run):
    here = packages(run)
    if here is None:
        run.bars.append(Bar(WHAT, PROMISE, limit=1.5, why="npm or PyPI cannot be reached, see bench.log"))
    else:
        round_trips(run, here)
    idle(run)
