# SPDX-License-Identifier: Apache-2.0
"""A real boxd on a state directory of its own, and a client for its HTTP API over the unix socket."""

import atexit
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
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("BOX_BUILD", ROOT / "build"))
CGROUPS = pathlib.Path("/sys/fs/cgroup")


def _stat(pid):
    """What follows the name in /proc/PID/stat; of one that has gone, what sorts last."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X"] + [str(1 << 62)] * 50


@contextlib.contextmanager
def scratch(prefix, mode=0o755):
    """A directory that a daemon is told of. One that outlives the test may make things there again: what it makes goes
    when the tests are over."""
    path = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    path.chmod(mode)
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    yield path
    shutil.rmtree(path, ignore_errors=True)


class ApiError(Exception):
    """A problem document."""

    def __init__(self, status, problem):
        super().__init__(f"{status}: {problem.get('code')}: {problem.get('detail')}")
        self.status = status
        self.problem = problem
        self.code = problem.get("code")
        self.detail = problem.get("detail", "")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Client:
    """One keep-alive connection; use one per thread."""

    def __init__(self, path, timeout=120):
        self._conn = _UnixConnection(str(path), timeout)

    def close(self):
        self._conn.close()

    def call(self, method, path, body=None):
        payload = None if body is None else body if isinstance(body, (bytes, str)) else json.dumps(body)
        for attempt in (0, 1):
            try:
                self._conn.request(method, path, payload, {"Content-Type": "application/json"})
                response = self._conn.getresponse()
                data = response.read()
                break
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self._conn.close()  # the server may close an idle connection at any time
                if attempt:
                    raise
        if response.status >= 400:
            raise ApiError(response.status, json.loads(data) if data else {})
        return json.loads(data) if data else None

    def new(self, session_id, **spec):
        if os.geteuid() != 0:  # most hosts give an ordinary user no control group; what is tested is something else
            spec.setdefault("best_effort", True)
        return self.call("POST", "/v1/sessions", {"session_id": session_id, **spec})

    def x(self, session_id, *argv, **request):
        """Runs argv, or cmd="shell text"; the decoded result."""
        if argv:
            request["argv"] = list(argv)
        return self.call("POST", f"/v1/sessions/{session_id}/exec", request)

    def sh(self, session_id, cmd, **request):
        return self.x(session_id, cmd=cmd, **request)

    def rm(self, session_id):
        return self.call("DELETE", f"/v1/sessions/{session_id}")

    def get(self, session_id):
        return self.call("GET", f"/v1/sessions/{session_id}")

    def receipt(self, session_id):
        return self.get(session_id)["receipt"]

    def ps(self):
        return self.call("GET", "/v1/sessions")["sessions"]

    def doctor(self):
        return self.call("GET", "/v1/doctor")


def program_for(args):
    """boxd; or, for the backend that is in the tests only, boxd with that."""
    return BUILD / ("boxd-fake" if ("--backend", "fake") in zip(args, args[1:]) else "boxd")


class Boxd:
    """The daemon under test. `state` is removed at the end."""

    program = None  # of program_for(), unless a subclass has its own

    def __init__(self, *args, env=None, state=None, prefix=()):
        self.own_state = state is None
        self.state = pathlib.Path(state or tempfile.mkdtemp(prefix="box-test-"))
        self.state.chmod(0o755)
        self.sock = self.state / "boxd.sock"
        self.args, self.env, self.prefix = list(args), env or {}, list(prefix)
        self.program = self.program or program_for(self.args)
        self.log_path = self.state.parent / (self.state.name + ".log")
        self.process = None
        try:
            self.start()
        except RuntimeError:
            if self.own_state:  # nobody has it to close; the log is part of the error
                shutil.rmtree(self.state, ignore_errors=True)
                self.log_path.unlink()
            raise

    def start(self):
        ready, ready_child = os.pipe()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("BOX_")}
        environment.update(self.env, BOX_LOG_FORMAT="json")
        command = [*self.prefix, str(self.program), "--state-dir", str(self.state), "--ready-fd", str(ready_child)]
        if "--ws-control-port" not in self.args:
            command += ["--ws-control-port", "0"]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                command + self.args, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[ready_child],
                env=environment,
            )
        os.close(ready_child)
        byte = os.read(ready, 1)
        os.close(ready)
        if not byte:
            self.process.wait()
            raise RuntimeError("boxd did not start:\n" + self.log())

    def client(self, timeout=120):
        return Client(self.sock, timeout)

    def log(self):
        return self.log_path.read_text(errors="replace")

    @property
    def pid(self):
        return self.process.pid

    def priv_pid(self):
        """The box-priv of this state directory, whichever daemon started it; IndexError without one."""
        found = []
        for p in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (p / "cmdline").read_bytes().split(b"\0") if p.name.isdigit() else []
                at = words.index(b"--state") + 1 if words[:1] == [b"box-priv"] and b"--state" in words else None
                if at is not None and words[at] == str(self.state).encode():
                    found.append(int(p.name))
        # Of several the oldest: what it has cloned looks like it until it has become something else.
        return sorted(found, key=lambda pid: int(_stat(pid)[19]))[0]

    def stop(self, sig=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(sig)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:  # a failure of the test, which leaves nothing behind all the same
                self.process.kill()
                self.process.wait()
                raise
        return self.process.returncode

    def end_kept(self):
        """Sessions outlive a daemon that was killed: whoever does not start another ends them here."""
        with contextlib.suppress(IndexError, ProcessLookupError, FileNotFoundError):
            pid = self.priv_pid()
            os.kill(pid, signal.SIGTERM)
            end = time.monotonic() + 60
            # It is gone, or a zombie that no process has reaped yet.
            while pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() and time.monotonic() < end:
                time.sleep(0.01)

    def close(self):
        self.stop()
        self.end_kept()
        if self.own_state:
            shutil.rmtree(self.state, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            self.log_path.unlink()

    # What must not grow.

    def tag(self):
        # FNV-1a of the state directory, as boxd computes it.
        h = 0xCBF29CE484222325
        for byte in str(self.state).encode():
            h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        return f"box-{h & 0xFFFFFFFFFFF:011x}"

    def leaks(self):
        """Objects of this instance that exist now, by kind."""
        tag = self.tag()
        # By walk: it does not mind that groups of other instances come and go.
        groups = [d for root, dirs, _ in os.walk(CGROUPS) if f"/{tag}" in root for d in dirs]
        ahead = [d for d in groups if d == "spare" or d.startswith("used-")]  # empty, for coming sessions
        assert len(ahead) <= 16 + 3
        mounts = [m for m in pathlib.Path("/proc/self/mountinfo").read_text().splitlines() if str(self.state) in m]
        loops = []
        for backing in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
            with contextlib.suppress(FileNotFoundError):
                loops += [backing] if str(self.state) in backing.read_text() else []
        priv = self.priv_pid()
        owned = [pid for pid in pathlib.Path(f"/proc/{priv}/task/{priv}/children").read_text().split()
                 if pathlib.Path(f"/proc/{pid}/comm").read_text() != "box-maker\n"]
        # Empty directories made ahead for coming sessions are refilled when nobody waits.
        files = sorted(str(p.relative_to(self.state)) for d in ("sessions", "trash")
                       for p in (self.state / d).glob("**/*")
                       if not str(p.relative_to(self.state)).startswith("trash/spare-"))
        fds = {who: len(os.listdir(f"/proc/{pid}/fd")) for who, pid in (("boxd", self.pid), ("priv", self.priv_pid()))}
        return {"cgroups": len(groups) - len(ahead), "mounts": len(mounts), "loops": len(loops), "processes": len(owned),
                "files": files, "fds": fds}

    def rss_kb(self):
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        raise AssertionError("no VmRSS")


def box(*args, sock=None, **kwargs):
    """Runs the command line client; returns CompletedProcess with text output."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("BOX_")}
    env.update(kwargs.pop("env", {}))
    if sock is not None:
        env["BOX_HOST"] = f"unix://{sock}"
    kwargs.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run([str(BUILD / "box"), *args], env=env, text=True, capture_output=True, timeout=120, **kwargs)
