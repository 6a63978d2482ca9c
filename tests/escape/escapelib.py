# SPDX-License-Identifier: Apache-2.0
"""The probe, what it says, and what can be seen of a session from outside."""

import asyncio
import concurrent.futures
import contextlib
import ctypes
import functools
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time

import websockets

from boxlib import ROOT

GOLDEN = ROOT / "tests" / "golden"
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
PROBE = "/probe/probe"  # inside
BLOCK = 2_000_000_000  # the first host id that can belong to a session
STRIDE = 16
IS_ROOT = os.geteuid() == 0


def host_ns():
    return {n: os.stat(f"/proc/self/ns/{n}").st_ino for n in NAMESPACES}


def probe_argv(mode, *options):
    return [PROBE, "--host-ns=" + ",".join(f"{n}={i}" for n, i in host_ns().items()), *options, mode]


class Report:
    """What one run of the probe found, by id."""

    def __init__(self, text):
        self.text = text
        self.lines = {}
        for line in text.splitlines():
            if line and line[0] != "#":
                name, state, detail = (line.split(" ", 2) + [""])[:3]
                self.lines[name] = (state, detail)
        assert re.search(r"^# \d+ checks, \d+ failed$", text, re.M), "the probe did not end:\n" + text

    def row(self, name):
        return {k: v for k, v in self.lines.items() if k == name or k.startswith(name + ".")}

    def check(self, name, least=1, na=()):
        """Every check of the row is ok; n/a only where the caller knows why."""
        found = self.row(name)
        bad = {k: v for k, v in found.items() if v[0] != "ok" and not (v[0] == "n/a" and k in na)}
        assert not bad, bad
        assert len(found) >= least, f"{name}: {len(found)} checks, not {least}"
        return found

    def detail(self, name):
        return self.lines[name][1]

    def states(self, without=()):
        return {k: v[0] for k, v in self.lines.items() if k not in without}


def ran(result):
    """A result of an exec that came to its own end."""
    assert result["outcome"] == "exited", result
    return result


def run_probe(client, session_id, mode, *options, **request):
    result = ran(client.x(session_id, *probe_argv(mode, *options), **request))
    assert result["exit_code"] in (0, 1), result
    return Report(result["stdout"])


def posture(client, session_id, path=PROBE):
    result = ran(client.x(session_id, path, *probe_argv("posture")[1:]))
    assert result["exit_code"] == 0, result
    return result["stdout"]


# The stream, where terminals are.


async def _stream(sock, request, stdin):
    out = {1: b"", 2: b""}
    async with websockets.unix_connect(str(sock), uri="ws://localhost/v1/exec", max_size=None, open_timeout=120,
                                       ping_interval=None) as ws:
        await ws.send(json.dumps(request))
        if stdin is not None:
            await ws.send(b"\0" + stdin)
            await ws.send(json.dumps({"type": "stdin_eof"}))
        async for message in ws:
            if isinstance(message, bytes):
                out[message[0]] += message[1:]
                continue
            event = json.loads(message)
            if event["type"] in ("exit", "error"):
                event["stdout"] = out[1].decode(errors="replace").replace("\r\n", "\n")
                event["stderr"] = out[2].decode(errors="replace")
                return event
    raise AssertionError("the stream ended without a last word")


def stream(sock, session_id, *argv, stdin=None, **request):
    """Runs argv over the WebSocket, with tty=True on a terminal; the last message and the output."""
    request.update(argv=list(argv), session={"session_id": session_id}, create=False)
    if stdin is not None:
        request["stdin"] = True
    return asyncio.run(_stream(sock, request, stdin))


@contextlib.contextmanager
def beside(daemon, session_id, *argv, stop=None):
    """Runs argv in the session meanwhile; yields a future of the result. stop() asks it to end, in the end."""
    client = daemon.client(timeout=1800)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.x, session_id, *argv)
        try:
            yield running
            if stop is not None:
                stop()
        except BaseException:
            other = daemon.client(timeout=1800)  # or it would be waited for forever
            other.rm(session_id)
            other.close()
            raise
    client.close()


# From outside.


def children(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [int(c) for t in os.listdir(f"/proc/{pid}/task")
                for c in pathlib.Path(f"/proc/{pid}/task/{t}/children").read_text().split()]
    return []


def init_pids(daemon):
    """PID 1 of every session."""
    return {p for p in children(daemon.priv_pid()) if is_init_program(p)}


def is_init_program(pid):
    """PID 1, or a copy of it that has not become a program yet."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() == b"box-init\0"
    return False


def status(pid, task=None):
    where = f"/proc/{pid}/status" if task is None else f"/proc/{pid}/task/{task}/status"
    return dict(line.split(":\t", 1) for line in pathlib.Path(where).read_text().splitlines() if ":\t" in line)


def uid_map(pid):
    return [tuple(map(int, line.split())) for line in pathlib.Path(f"/proc/{pid}/uid_map").read_text().splitlines()]


def wait_for(what, seconds=120, every=0.02):
    """Polls for what no event tells; the value, once it is true."""
    end = time.monotonic() + seconds
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < end, f"waited {seconds} s in vain"
        time.sleep(every)


def _mount_of(path):
    """The root, target and type of the mount that holds a path."""
    best = ("", "", "")
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ")
        root, target = left.split(" ")[3:5]
        inside = target == "/" or path == target or path.startswith(target + "/")
        if inside and len(target) >= len(best[1]):
            best = (root, target, right.split(" ")[0])
    return best


def mounts_below(path):
    targets = [line.split(" ")[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
    return [t for t in targets if t.startswith(path + "/")]


def fs_type(path):
    return _mount_of(os.path.realpath(path))[2]


def fs_path(path):
    """A path from the root of its file system, as the mount table shows it."""
    path = os.path.realpath(path)
    root, target, _ = _mount_of(path)
    return os.path.normpath("/" + root + "/" + path[len(target):]).replace("//", "/")


# What this kernel can do.


def kernel_release():
    return tuple(int(n) for n in re.match(r"(\d+)\.(\d+)", os.uname().release).groups())


def has_landlock():
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(444, None, 0, 1) > 0


def mount_base():
    """Where directories can be made that a session can mount: tmpfs maps ids from Linux 6.3 on."""
    if IS_ROOT and kernel_release() < (6, 3) and fs_type(tempfile.gettempdir()) == "tmpfs":
        return "/var/tmp"
    return None


@functools.cache
def is_slow():
    """An emulated machine, where starting a program takes tens of milliseconds."""
    start = time.monotonic()
    for _ in range(10):
        subprocess.run(["/bin/true"], check=True)
    return time.monotonic() - start > 0.5


def count(name, default, slow=None):
    """How often to repeat: from the environment, else as often as the machine can in a few seconds."""
    return int(os.environ.get(name, (slow or default // 10) if is_slow() else default))
