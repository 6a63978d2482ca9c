# SPDX-License-Identifier: Apache-2.0
"""A client of `box mcp run`, and a small MCP server with bad habits to run in it."""

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
import weakref

from boxlib import BUILD
from hostlib import SCALE, mount_dir

# 50 ms, and a slow retry that still comes within a test.
QUICK = "0.05,0.05,0.05,0.3"

# Speaks JSON-RPC by line. What it does badly it does when it is told to.
SERVER = r'''
import json, os, signal, sys, time
sys.stderr.write("server starts\n"); sys.stderr.flush()
hello = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "fake", "version": "1"}}
inits = 0
def say(message):
    sys.stdout.write(json.dumps(message) + "\n"); sys.stdout.flush()
def facts():
    return {"pid": os.getpid(), "argv": sys.argv[1:], "cwd": os.getcwd(), "inits": inits,
            "home": os.environ.get("HOME"), "executable": sys.executable}
def call(name, a):
    if name == "facts": return facts()
    if name == "env": return os.environ.get(a["name"])
    if name == "echo": return a
    if name == "exit": os._exit(a["code"])
    if name == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if name == "half":
        sys.stdout.write('{"jsonrpc":"2.0","id":'); sys.stdout.flush(); os._exit(4)
    if name == "hang":
        say({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "hanging"}})
        while True: signal.pause()
    if name == "big": return "x" * a["bytes"]
    if name == "flood":
        block = b"e" * 4095 + b"\n"
        for i in range(a["blocks"]): os.write(2, block)
        return "flooded"
    if name == "daemon":
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(1000)
            os._exit(0)
        return "forked"
    if name == "later":
        say({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "got it"}})
        time.sleep(a["seconds"]); return "done"
    if name == "ask":
        say({"jsonrpc": "2.0", "id": 0, "method": "roots/list"}); return "asked"
    if name == "read": return open(a["path"]).read()
    if name == "write":
        open(a["path"], "w").write("x"); return "written"
    if name == "import": return __import__(a["name"]).VALUE
    raise ValueError(name)
answers = []
for line in sys.stdin:
    m = json.loads(line)
    method = m.get("method")
    if method is None:
        answers.append(m); continue
    if method == "initialize": inits += 1
    if "id" not in m: continue
    if method == "initialize": result = hello
    elif method == "server/discover": result = {"supportedVersions": ["2026-07-28"], "capabilities": {}}
    elif method == "tools/list":
        result = {"tools": [{"name": "facts", "description": "what it sees"}, {"name": "echo"}]}
    elif method == "answers": result = answers
    else:
        p = m.get("params", {})
        try: result = {"content": [], "value": call(p.get("name"), p.get("arguments", {}))}
        except Exception as e:
            say({"jsonrpc": "2.0", "id": m["id"], "error": {"code": 1, "message": repr(e)}}); continue
    say({"jsonrpc": "2.0", "id": m["id"], "result": result})
'''


def write_server(directory, name="server.py", text=SERVER):
    path = directory / name
    path.write_text(text)
    path.chmod(0o644)
    return path


class Wrapper:
    """`box mcp run ...` with pipes, and a thread for each of its outputs."""

    def __init__(self, *args, sock=None, env=None, network="off", delays=QUICK, limit=60):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("BOX_")}
        if sock is not None:
            environment["BOX_HOST"] = f"unix://{sock}"
        # A cache of its own: what one test has downloaded is not there for another.
        cache = mount_dir("box-mcp-cache-")
        weakref.finalize(self, shutil.rmtree, cache, ignore_errors=True)
        environment.update({"XDG_CACHE_HOME": str(cache), **(env or {})})
        options = [*(["--network", network] if network else []), *(["--retry-delays", delays] if delays else [])]
        self.limit = limit * SCALE
        self.process = subprocess.Popen([str(BUILD / "box"), "mcp", "run", *options, *map(str, args)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=environment)
        self.pid = self.process.pid
        self.messages, self.said = queue.Queue(), queue.Queue()
        self.stderr, self.ids = "", 0
        threading.Thread(target=self._read, args=(self.process.stdout, self.messages), daemon=True).start()
        threading.Thread(target=self._read, args=(self.process.stderr, self.said), daemon=True).start()

    @staticmethod
    def _read(stream, to):
        for line in stream:
            to.put(line)
        to.put(None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def send(self, message):
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def next(self):
        """The next message of the server; None at the end."""
        try:
            line = self.messages.get(timeout=self.limit)
        except queue.Empty:
            raise AssertionError("no message; stderr so far:\n" + self.so_far()) from None
        return None if line is None else json.loads(line)

    def ask(self, method, params=None):
        self.ids += 1
        more = {} if params is None else {"params": params}
        self.send({"jsonrpc": "2.0", "id": self.ids, "method": method, **more})
        return self.ids

    def answer(self, request):
        """The answer to that request; what comes before it is not for this test."""
        while (message := self.next()) is not None:
            if message.get("id") == request and "method" not in message:
                return message
        raise AssertionError("the end came before the answer; stderr:\n" + self.so_far())

    def initialize(self):
        who = {"name": "test", "version": "1"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": who}
        answer = self.answer(self.ask("initialize", hello))
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    def call(self, name, /, **arguments):
        return self.ask("tools/call", {"name": name, "arguments": arguments})

    def value(self, name, /, **arguments):
        answer = self.answer(self.call(name, **arguments))
        assert "result" in answer, answer
        return answer["result"]["value"]

    def so_far(self):
        with contextlib.suppress(queue.Empty):
            while (line := self.said.get_nowait()) is not None:
                self.stderr += line.decode(errors="replace")
        return self.stderr

    def until_said(self, text):
        while text not in self.stderr:
            try:
                line = self.said.get(timeout=self.limit)
            except queue.Empty:
                raise AssertionError(f"{text!r} was not said; stderr so far:\n" + self.stderr) from None
            assert line is not None, f"{text!r} was not said before the end:\n" + self.stderr
            self.stderr += line.decode(errors="replace")
        return self.stderr

    def wait(self):
        """Its exit status, and everything it said until then."""
        status = self.process.wait(self.limit)
        while True:
            line = self.said.get(timeout=self.limit)
            if line is None:
                return status, self.stderr
            self.stderr += line.decode(errors="replace")

    def close(self):
        self.process.stdin.close()
        return self.wait()

    def kill(self, sig=signal.SIGKILL):
        self.process.send_signal(sig)
        self.process.wait(self.limit)

    def end(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20 * SCALE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
