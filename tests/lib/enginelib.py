# SPDX-License-Identifier: Apache-2.0
"""A dockerd or a Podman service of the test's own, from Debian's packages, and a client for its API.

An engine lives in a *cage*: a mount and pid namespace where /run, /etc and /var/lib are throw-away copies. Its data is
in a directory of its own, its image is made of busybox without any registry, and it ends, with everything it ever
started, when the first process of the cage is killed.
"""

import contextlib
import http.client
import io
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
import urllib.parse

from hostlib import until

CGROUPS = pathlib.Path("/sys/fs/cgroup")
IMAGE = "box-test:latest"
READY_TIMEOUT = 120.0
STARTS = 3
APPLETS = ("sh", "ash", "ls", "cat", "echo", "sleep", "id", "env", "mkdir", "rm", "touch", "true", "false", "head",
           "yes", "wget", "ps", "kill", "dd", "wc", "seq", "stat", "mount", "chmod", "ln", "pwd", "tr", "readlink",
           "test", "printf", "setsid", "nohup", "grep", "tail", "cut", "tee", "date", "stty", "tty", "df", "mv",
           "cp", "sort", "awk", "sed", "od", "hostname", "chown", "mknod", "find", "expr", "basename", "dirname",
           "md5sum", "trap")

CAGE = r"""
mount -t tmpfs tmpfs "$1"
for dir in etc var/lib; do
    mkdir -p "$1/$dir/upper" "$1/$dir/work"
    mount -t overlay -o "lowerdir=/$dir,upperdir=$1/$dir/upper,workdir=$1/$dir/work" overlay "/$dir"
done
mount -t tmpfs tmpfs /run
mkdir -p /etc/containers/registries.conf.d
printf '[[registry]]\nprefix = "127.0.0.1"\nlocation = "127.0.0.1"\ninsecure = true\n' \
    > /etc/containers/registries.conf.d/box-test.conf
exec tini -- sleep infinity
"""


class EngineError(Exception):
    """An answer of an engine that is no success."""

    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        self.status = status


class _Connection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


# What runsc is given as a runtime. The socket where box-guest meets boxd is one of the host's; the engine's profile of
# system calls holds inside, too; a network of its own would be looked at in a way that newer kernels answer
# differently, and no session of the suite has one.
RUNSC_ARGS = ("host-uds=open", "oci-seccomp", "network=none")


def missing(kind, runtime=""):
    """Why an engine cannot be started here, or None. `runtime` is one that it has to have besides its own."""
    if os.geteuid() != 0:
        return "needs root"
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    for program in {"docker": ("dockerd", "containerd", "runc"), "podman": ("podman", "conmon", "runc")}[kind]:
        if shutil.which(program, path=path) is None:
            return f"{program} is not installed"
    if runtime and shutil.which(runtime, path=path) is None:
        return f"{runtime} is not installed (Debian: in bookworm, not in trixie)"
    for program in ("busybox", "tini", "unshare", "nsenter"):
        if shutil.which(program, path=path) is None:
            return f"{program} is not installed"
    return None


def _add(tar, name, mode, kind=tarfile.REGTYPE, data=b"", link="", device=(0, 0)):
    info = tarfile.TarInfo(name)
    info.mode, info.type, info.size, info.linkname = mode, kind, len(data), link
    info.devmajor, info.devminor = device
    tar.addfile(info, io.BytesIO(data))


def image_tar(extra=(), without=()):
    """A root file system of busybox. `extra` has more entries for _add(), `without` names to leave out."""
    out = io.BytesIO()
    busybox = pathlib.Path(shutil.which("busybox")).read_bytes()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("bin", "dev", "proc", "sys", "tmp", "etc", "home", "root", "var", "mnt", "usr", "usr/bin"):
            if name in without:
                continue
            _add(tar, name, 0o1777 if name == "tmp" else 0o755, tarfile.DIRTYPE)
        _add(tar, "bin/busybox", 0o755, data=busybox)
        for name in APPLETS:
            if f"bin/{name}" in without:
                continue
            _add(tar, f"bin/{name}", 0o777, tarfile.SYMTYPE, link="busybox")
        for name, line in (("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n"), ("etc/group", b"root:x:0:\n")):
            if name not in without:
                _add(tar, name, 0o644, data=line)
        for entry in extra:
            _add(tar, **entry)
    return out.getvalue()


class Engine:
    """`kind` is "docker" or "podman"; `runtime` "runsc" for gVisor: one more for Docker to have, Podman's default."""

    def __init__(self, kind, options=(), runtime=""):
        self.kind, self.options = kind, list(options)
        self.work = pathlib.Path(tempfile.mkdtemp(prefix=f"box-{kind}-"))
        self.work.chmod(0o755)
        self.socket = self.work / "engine.sock"
        self.log_path = self.work / "log"
        self.group = f"box-test-{kind}-{os.getpid()}"
        self.libpod_was_there = any(CGROUPS.glob("*/libpod_parent")) or (CGROUPS / "libpod_parent").exists()
        self.daemon = self.cage = None
        if runtime and kind == "podman":
            self.options += ["--runtime", shutil.which(runtime)]
            self.options += [word for arg in RUNSC_ARGS for word in ("--runtime-flag", arg)]
        elif runtime:
            (self.work / "daemon.json").write_text(json.dumps({"runtimes": {runtime: {
                "path": shutil.which(runtime), "runtimeArgs": [f"--{arg}" for arg in RUNSC_ARGS]}}}))
            self.options += ["--config-file", str(self.work / "daemon.json")]
        try:
            self._open_cage()
            self.start()
            self.load(IMAGE, image_tar())
        except BaseException:
            self.close()
            raise

    # The cage.

    def _open_cage(self):
        inner = self.work / "cage"
        inner.mkdir()
        self.outer = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
             "--propagation", "private", "sh", "-ec", CAGE, "cage", str(inner)],
            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        children = pathlib.Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children")
        deadline = time.monotonic() + READY_TIMEOUT
        while True:
            pids = children.read_text().split()
            if pids and pathlib.Path(f"/proc/{pids[0]}/comm").read_text().strip() == "tini":
                self.cage = int(pids[0])
                return
            if self.outer.poll() is not None or time.monotonic() > deadline:
                raise EngineError(0, "no cage for the engine")
            time.sleep(0.02)

    def _enter(self, *command):
        return ["nsenter", "--target", str(self.cage), "--mount", "--pid", "--", *command]

    def _command(self):
        path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        if self.kind == "docker":
            return [shutil.which("dockerd", path=path), "--data-root", str(self.work / "data"), "--exec-root",
                    str(self.work / "exec"), "--host", f"unix://{self.socket}", "--pidfile", str(self.work / "pid"),
                    "--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false", "--cgroup-parent",
                    f"/{self.group}", "--exec-opt", "native.cgroupdriver=cgroupfs", *self.options]
        return [shutil.which("podman", path=path), "--root", str(self.work / "data"), "--runroot",
                str(self.work / "run"), "--tmpdir", str(self.work / "tmp"), "--cgroup-manager", "cgroupfs",
                "--events-backend", "file", "--runtime", "runc", *self.options, "system", "service", "--time", "0",
                f"unix://{self.socket}"]

    def _launch(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("DOCKER_", "CONTAINER_", "XDG_"))}
        env.update(HOME=str(self.work), TMPDIR=str(self.work))
        env["PATH"] = env.get("PATH", "") + ":/usr/sbin:/sbin"
        with contextlib.suppress(FileNotFoundError):
            self.socket.unlink()
        with open(self.log_path, "ab") as log:
            self.daemon = subprocess.Popen(self._enter(*self._command()), stdin=subprocess.DEVNULL, stdout=log,
                                           stderr=log, env=env)

    def start(self):
        """Starts the daemon, or starts it again. After a crash dockerd gives up when the containerd it left behind does
        not answer in time, which on a busy machine it does not; as systemd would, we start it once more."""
        self._launch()
        deadline, more = time.monotonic() + READY_TIMEOUT, STARTS
        while True:
            with contextlib.suppress(OSError, EngineError, http.client.HTTPException):
                self.api("GET", "/_ping", timeout=5)
                break
            if self.daemon.poll() is not None and (more := more - 1) > 0:
                self._launch()
            elif self.daemon.poll() is not None:
                raise EngineError(0, f"{self.kind} ended with status {self.daemon.returncode}\n{self.log()}")
            if time.monotonic() > deadline:
                raise EngineError(0, f"{self.kind} was not ready within {READY_TIMEOUT:.0f} s\n{self.log()}")
            time.sleep(0.05)
        # As the packages set it up: a group may use it.
        os.chmod(self.socket, 0o660)

    def pids(self, name):
        """Processes of that name inside the cage."""
        found = []
        for comm in pathlib.Path("/proc").glob("[0-9]*/comm"):
            with contextlib.suppress(OSError):
                if comm.read_text() == name + "\n" and os.stat(comm.parent / "ns/mnt").st_ino == os.stat(
                        f"/proc/{self.cage}/ns/mnt").st_ino:
                    found.append(int(comm.parent.name))
        return found

    def daemon_pid(self):
        """Of the daemon itself: nsenter becomes it, or is its parent when it entered a pid namespace."""
        children = pathlib.Path(f"/proc/{self.daemon.pid}/task/{self.daemon.pid}/children").read_text().split()
        return int(children[0])

    def signal(self, sig):
        pid = self.daemon_pid()
        os.kill(pid, sig)
        if sig == signal.SIGSTOP:  # one thread after the other: until then it answers
            until(lambda: all(stat.read_text().rsplit(")", 1)[1].split()[0] in "TZX"
                              for stat in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")), what="the engine's stop")
        if sig == signal.SIGCONT:  # nsenter stopped when it saw its child stop
            self.daemon.send_signal(sig)

    def kill(self):
        """As a crash would: at once, and the containers stay for a moment."""
        self.signal(signal.SIGKILL)
        self.daemon.wait(30)

    def log(self):
        return self.log_path.read_text(errors="replace")[-4000:] if self.log_path.exists() else ""

    def close(self):
        if self.cage is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.cage, signal.SIGKILL)
            self.outer.wait(60)
            if self.daemon is not None:
                self.daemon.wait(60)
        shutil.rmtree(self.work, ignore_errors=True)
        names = [self.group, *(() if self.libpod_was_there or self.kind != "podman" else ("libpod_parent",))]
        for base in [p for name in names for p in (*CGROUPS.glob(f"*/{name}"), CGROUPS / name)]:
            groups = [pathlib.Path(root) for root, _, _ in os.walk(base)] if base.is_dir() else []
            for group in sorted(groups, key=lambda p: len(p.parts), reverse=True):
                with contextlib.suppress(OSError):
                    group.rmdir()

    # The API.

    def api(self, method, path, body=None, timeout=120, raw=False):
        connection = _Connection(str(self.socket), timeout)
        try:
            data = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
            kind = "application/x-tar" if isinstance(body, bytes) else "application/json"
            connection.request(method, path, data, {"Content-Type": kind})
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        if response.status >= 400:
            raise EngineError(response.status, text.decode(errors="replace"))
        if raw or not text or "json" not in response.getheader("Content-Type", ""):
            return text
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(text)
        return text

    def load(self, image, tar, changes=()):
        repo, tag = image.rsplit(":", 1)
        changes = [("changes", c) for c in changes]
        if self.kind == "podman":  # which forgets the tag on the other way
            query = urllib.parse.urlencode([("reference", image), *changes])
            self.api("POST", "/v4.0.0/libpod/images/import?" + query, tar)
            return
        query = urllib.parse.urlencode([("fromSrc", "-"), ("repo", repo), ("tag", tag), *changes])
        self.api("POST", "/v1.40/images/create?" + query, tar)

    def containers(self, **labels):
        filters = {"label": [f"{k}={v}" for k, v in labels.items()]} if labels else {}
        return self.api("GET", "/v1.40/containers/json?" + urllib.parse.urlencode(
            {"all": "1", "filters": json.dumps(filters)}))

    def inspect(self, name):
        return self.api("GET", f"/v1.40/containers/{name}/json")

    def remove_all(self):
        for container in self.containers():
            with contextlib.suppress(EngineError):
                self.api("DELETE", f"/v1.40/containers/{container['Id']}?force=1&v=1")
