# SPDX-License-Identifier: Apache-2.0
"""A runtime with LangBot in front of it: upstream's own on Docker, boxd on its native backend, boxd on Docker."""

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import enginelib
import image
from boxlib import Boxd

HERE = pathlib.Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parents[1] / "build" / "interop"
STEP_S, READY_S = 600, 120
# LangBot's defaults but for where its runtime is; the others keep it from the internet and from ports of the host.
QUIET = {"PLUGIN__ENABLE": "false", "SPACE__DISABLE_TELEMETRY": "true", "SPACE__DISABLE_MODELS_SERVICE": "true",
         "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONUNBUFFERED": "1"}


def python_of(release):
    return ENVIRONMENTS / f"app-{release}" / "bin" / "python"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Driver:
    """A LangBot process that does steps. Ends with its world."""

    def __init__(self, release, directory, endpoint, steps="driver.py", **env):
        self.log = directory / "driver.log"
        host = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}  # it is large
        env = {**host, **QUIET, "BOX__RUNTIME__ENDPOINT": endpoint, **env}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([str(python_of(release)), str(HERE / steps)], cwd=directory, env=env,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)

    def step(self, name, *arguments):
        self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.process.stdin.flush()
        late = threading.Timer(STEP_S, self.process.kill)
        late.start()
        try:
            line = self.process.stdout.readline()
        finally:
            late.cancel()
        if not line:
            raise AssertionError(f"LangBot ended in step {name}:\n" + self.log.read_text(errors="replace")[-6000:])
        return json.loads(line)

    def end(self):
        """As LangBot ends."""
        answer = self.step("stop")
        self.process.wait(STEP_S)
        return answer

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Upstream:
    """The runtime of the langbot-plugin that this LangBot pins, on Docker, started where LangBot runs, as its relative
    directories want it."""

    def __init__(self, release, directory, engine):
        self.release, self.directory, self.engine, self.port = release, directory, engine, free_port()
        self.start()

    def start(self):
        env = {**os.environ, "DOCKER_HOST": f"unix://{self.engine.socket}"}
        with open(self.directory / "upstream.log", "ab") as log:
            self.process = subprocess.Popen(
                [str(python_of(self.release)), "-m", "langbot_plugin.cli.__init__", "box", "--host", "127.0.0.1",
                 "--ws-control-port", str(self.port)],
                cwd=self.directory, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + READY_S
        while time.monotonic() < end and self.process.poll() is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
            with contextlib.suppress(OSError), contextlib.closing(connection):
                connection.request("GET", "/healthz")
                connection.getresponse()
                return
            time.sleep(0.1)
        raise AssertionError("it did not start: " + (self.directory / "upstream.log").read_text()[-3000:])

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)


class Box:
    """boxd, started far from LangBot's directory."""

    def __init__(self, backend, engine=None, **env):
        self.port = free_port()
        if backend == "docker":
            env["BOX_ENGINE_SOCKET"] = str(engine.socket)
        self.daemon = Boxd("--backend", backend, "--ws-control-port", str(self.port), env=env)

    def start(self):
        self.daemon.start()

    def kill(self):
        self.daemon.stop(signal.SIGKILL)

    def close(self):
        self.daemon.close()


class World:
    """A runtime, a directory where LangBot lives, and LangBot."""

    def __init__(self, release, kind):
        self.release, self.kind = release, kind
        self.top = pathlib.Path(tempfile.mkdtemp(prefix=f"box-langbot-{kind}-", dir="/var/tmp"))
        self.top.chmod(0o755)
        self.langbot = self.top / "langbot"
        self.langbot.mkdir()
        self.server = self.driver = self.engine = None
        try:
            if kind != "native":  # an engine each: upstream's runtime removes containers that are not its own
                self.engine = enginelib.Engine("docker")
                self.engine.load(image.NAME, image.sandbox_tar())
            self.server = Upstream(release, self.langbot, self.engine) if kind == "upstream" else Box(kind, self.engine)
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self):
        endpoint = f"ws://127.0.0.1:{self.server.port}"
        self.driver = Driver(self.release, self.langbot, endpoint, API__PORT=str(free_port()))

    def step(self, name, *arguments):
        return self.driver.step(name, *arguments)

    def project(self):
        """A directory of the user's with an MCP server in it, below one that LangBot may mount."""
        place = self.langbot / "data" / "box" / "projects" / "counter"
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "mcp_server.py", place / "server.py")
        return str(place)

    def keep_logs(self):
        """What LangBot and the runtime had to say, for whoever asks why."""
        logs = {"langbot": self.langbot / "driver.log", "upstream": self.langbot / "upstream.log"}
        if isinstance(self.server, Box):
            logs["boxd"] = self.server.daemon.log_path
        for name, path in logs.items():
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(path, ENVIRONMENTS / f"app-{self.release}-{self.kind}-{name}.log")

    def close(self):
        self.keep_logs()
        for part in (self.driver, self.server, self.engine):
            if part is not None:
                with contextlib.suppress(Exception):
                    part.close()
        shutil.rmtree(self.top, ignore_errors=True)
