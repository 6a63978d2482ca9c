# SPDX-License-Identifier: Apache-2.0
"""The programs we are compared with: each prints "hello" its own way, or says why it cannot here.

Engines leave traces in /run, /etc and /var/lib, and mount things. They live in a *cage*: a mount namespace where these
directories are throw-away copies. Their own files are below the work directory of the run.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

from load import Load, LoadError
from machine import CGROUPS, first_line

ECHO = ["/bin/echo", "hello"]
BWRAP = ["bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr"]
BWRAP_LINKS = [word for d in ("bin", "lib", "lib64") if os.path.isdir(f"/{d}")
               for word in (("--symlink", f"usr/{d}", f"/{d}") if os.path.islink(f"/{d}") else
                            ("--ro-bind", f"/{d}", f"/{d}"))]
BWRAP_MINIMAL = [*BWRAP, *BWRAP_LINKS, *ECHO]
BWRAP_USUAL = [*BWRAP, *BWRAP_LINKS, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--new-session",
               "--die-with-parent", *ECHO]
IMAGE = "box-bench"
HOLDER = "box-bench-holder"
READY_TIMEOUT = 40.0

CAGE = """
mount -t tmpfs tmpfs "$1"
for dir in etc var/lib; do
    mkdir -p "$1/$dir/upper" "$1/$dir/work"
    mount -t overlay -o "lowerdir=/$dir,upperdir=$1/$dir/upper,workdir=$1/$dir/work" overlay "/$dir"
done
mount -t tmpfs tmpfs /run
exec "$2"
"""


class Refused(Exception):
    """Why a peer takes no part."""


class Peer:
    """Something that can be started again and again: `argv` prints hello."""

    def __init__(self, name, load=None, argv=None, reason=None, version=None):
        self.name, self.load, self.argv, self.reason, self.version = name, load, argv, reason, version

    def measure(self, count):
        """Times of that many starts. A peer that fails is out from then on, with the reason."""
        if self.reason is not None or count == 0:
            return None
        try:
            return self.load.ask("spawn", count, *self.argv, timeout=120)
        except LoadError as error:
            self.reason = f"failed: {error}"
            return None

    def summary(self):
        return {"version": self.version, "status": "measured" if self.reason is None else self.reason}


def last_words(done):
    lines = [line.strip() for line in (done.stderr or done.stdout or "").splitlines() if line.strip()]
    return (lines[-1] if lines else f"exit status {done.returncode}")[:300]


def kill_orphans():
    """Ends and reaps what our peers left behind; it comes to us because we are a subreaper."""
    children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children")
    while pids := [int(word) for word in children.read_text().split()]:
        for pid in pids:  # its own children come to us in turn
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def remove_groups(name):
    for base in (*CGROUPS.glob(f"*/{name}"), CGROUPS / name):
        if base.is_dir():
            groups = [pathlib.Path(root) for root, _, _ in os.walk(base)]
            for group in sorted(groups, key=lambda p: len(p.parts), reverse=True):
                with contextlib.suppress(OSError):
                    group.rmdir()


class Peers:
    """Starts what is there. Attributes are Peer objects."""

    def __init__(self, work, plain, load_binary, log, engines=True):
        self.work, self.log = pathlib.Path(work), log
        self.group = f"box-bench-{os.getpid()}"
        self.libpod_was_there = any(CGROUPS.glob("*/libpod_parent")) or (CGROUPS / "libpod_parent").exists()
        self.cage = self.dockerd = None
        self.bare = Peer("bare fork+exec", plain, ECHO)
        self.bwrap = self._try("bwrap", lambda: self._simple("bwrap", plain, BWRAP_MINIMAL))
        self.bwrap_usual = self._try("bwrap + proc, dev, tmp", lambda: self._simple("bwrap", plain, BWRAP_USUAL))
        no_cage = self._open_cage(load_binary) if engines else "left out (--no-engines)"
        makers = {"runc": lambda: self._oci("runc"), "crun": lambda: self._oci("crun"),
                   "docker_exec": self._docker_exec, "docker_run": self._docker_run, "podman": self._podman}
        names = {"docker_exec": "docker exec", "docker_run": "docker run", "podman": "podman run"}
        for attribute, make in makers.items():
            name = names.get(attribute, attribute)
            setattr(self, attribute, Peer(name, reason=no_cage) if no_cage else self._try(name, make))

    def all(self):
        return [self.bare, self.bwrap, self.bwrap_usual, self.runc, self.crun, self.docker_exec, self.docker_run,
                self.podman]

    def replace_plain(self, load):
        for peer in (self.bare, self.bwrap, self.bwrap_usual):
            peer.load = load
        return load

    def _try(self, name, make):
        try:
            peer = make()
        except Refused as refusal:
            return Peer(name, reason=str(refusal))
        except subprocess.TimeoutExpired as late:
            return Peer(name, reason=f"failed: no answer within {late.timeout:.0f} s")
        except (OSError, subprocess.SubprocessError) as error:
            return Peer(name, reason=f"failed: {error}")
        peer.name = name
        return peer

    def _need(self, program):
        path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
        if path is None:
            raise Refused(f"not installed ({program})")
        return path

    def _simple(self, program, load, argv):
        self._need(program)
        self._probe(subprocess.run(argv, capture_output=True, text=True, timeout=30))
        return Peer(program, load, argv, version=first_line(program, "--version"))

    def _probe(self, done):
        if done.returncode != 0 or done.stdout != "hello\n":
            raise Refused(f"refused: {last_words(done)}")

    def _open_cage(self, load_binary):
        """Returns why there is none."""
        if os.geteuid() != 0:
            return "needs root"
        inner = self.work / "cage"
        inner.mkdir()
        env = {**os.environ, "HOME": str(self.work), "DOCKER_HOST": f"unix://{self.work}/docker.sock",
               "TMPDIR": str(self.work)}
        for name in ("XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "DOCKER_CONTEXT", "DOCKER_CONFIG"):
            env.pop(name, None)
        self.env = env
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", CAGE, "cage", str(inner),
                   str(load_binary)]
        self.cage = Load(command, self.log, env)
        try:
            self.cage.ask("spawn", 1, *ECHO)
        except LoadError as error:
            self.cage.close()
            self.cage = None
            return f"no mount namespace to keep it in ({error})"
        try:
            self._make_rootfs()
        except Refused as refusal:
            return str(refusal)
        return None

    def enter(self, *command):
        """Where the engines are; with `env`."""
        return ["nsenter", "--target", str(self.cage.pid), "--mount", "--", *command]

    def _run(self, *command, timeout=60):
        return subprocess.run(self.enter(*command), capture_output=True, text=True, timeout=timeout, env=self.env,
                              stdin=subprocess.DEVNULL)

    def _must(self, *command):
        done = self._run(*command)
        if done.returncode != 0:
            raise Refused(f"refused: {last_words(done)}")
        return done.stdout.strip()

    def _make_rootfs(self):
        busybox = self._need("busybox")
        rootfs = self.rootfs = self.work / "rootfs"
        (rootfs / "bin").mkdir(parents=True)
        for name in ("dev", "proc", "sys", "tmp", "etc", "workspace"):
            (rootfs / name).mkdir()
        shutil.copy(busybox, rootfs / "bin" / "busybox")
        for name in ("echo", "sh", "sleep", "mkdir"):
            (rootfs / "bin" / name).symlink_to("busybox")
        probe = subprocess.run(["chroot", str(rootfs), *ECHO], capture_output=True, text=True)
        if probe.stdout != "hello\n":
            raise Refused("needs a static busybox (busybox-static)")
        self.image_tar = self.work / "image.tar"
        subprocess.run(["tar", "-C", str(rootfs), "-cf", str(self.image_tar), "."], check=True)

    def _caged(self, name, argv, version):
        self._probe(self._run(*argv))
        return Peer(name, self.cage, argv, version=version)

    def _oci(self, runtime):
        path = self._need(runtime)
        bundle = self.work / f"bundle-{runtime}"
        bundle.mkdir()
        self._must(path, "spec", "--bundle", str(bundle))
        config = bundle / "config.json"
        spec = json.loads(config.read_text())
        spec["process"].update(terminal=False, args=ECHO)
        spec["root"]["path"] = str(self.rootfs)
        spec["linux"]["cgroupsPath"] = f"/{self.group}/{runtime}"
        config.write_text(json.dumps(spec))
        state = self.work / f"{runtime}-state"
        argv = [path, "--root", str(state), "run", "--bundle", str(bundle), f"{self.group}-{runtime}"]
        return self._caged(runtime, argv, first_line(path, "--version"))

    def _start_docker(self):
        self.docker, daemon = self._need("docker"), self._need("dockerd")
        self._need("containerd")
        state = self.work / "docker"
        state.mkdir()
        self.dockerd = subprocess.Popen(
            self.enter(
                daemon, "--data-root", str(state / "data"), "--exec-root", str(state / "exec"), "--host",
                self.env["DOCKER_HOST"], "--pidfile", str(state / "pid"), "--bridge=none", "--iptables=false",
                "--ip-forward=false", "--ip-masq=false", "--cgroup-parent", f"/{self.group}", "--exec-opt",
                "native.cgroupdriver=cgroupfs"),
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=self.env)
        deadline = time.monotonic() + READY_TIMEOUT
        with socket.socket(socket.AF_UNIX) as s:
            while s.connect_ex(str(self.work / "docker.sock")) != 0:
                if self.dockerd.poll() is not None:
                    raise Refused(f"refused: dockerd ended with status {self.dockerd.returncode} ({self.log.name})")
                if time.monotonic() > deadline:
                    raise Refused(f"failed: dockerd was not ready within {READY_TIMEOUT:.0f} s")
                time.sleep(0.05)
        self._must(self.docker, "import", str(self.image_tar), IMAGE)

    def _docker_version(self):
        return "server " + self._must(self.docker, "version", "--format", "{{.Server.Version}}, client {{.Client.Version}}")

    def _docker_exec(self):
        self._start_docker()
        self._must(self.docker, "run", "--detach", "--name", HOLDER, "--network", "none", IMAGE, "/bin/sleep", "100000")
        return self._caged("docker exec", [self.docker, "exec", HOLDER, *ECHO], self._docker_version())

    def _docker_run(self):
        if self.dockerd is None or self.dockerd.poll() is not None or self.docker_exec.reason is not None:
            raise Refused(self.docker_exec.reason or "failed: dockerd ended")
        argv = [self.docker, "run", "--rm", "--network", "none", IMAGE, *ECHO]
        return self._caged("docker run", argv, self._docker_version())

    def _podman(self):
        path, state = self._need("podman"), self.work / "podman"
        base = [path, "--root", str(state / "root"), "--runroot", str(state / "run"), "--tmpdir", str(state / "tmp"),
                "--cgroup-manager", "cgroupfs", "--events-backend", "none"]
        run = ["run", "--rm", "--network", "none", "--cgroup-parent", f"/{self.group}", "--ulimit", "nofile=1024:1024",
               "--ulimit", "nproc=1024:1024", IMAGE, *ECHO]
        self._must(*base, "import", "--quiet", str(self.image_tar), IMAGE)
        version = first_line(path, "--version")
        try:
            return self._caged("podman run", [*base, *run], version)
        except Refused:  # its default runtime, crun, does not run on every cgroup layout
            return self._caged("podman run", [*base, "--runtime", "runc", *run], f"{version}, with runc")

    def close(self):
        """The last thing a run does: every child that is still there ends."""
        if self.dockerd is not None and self.dockerd.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._run(self.docker, "rm", "--force", HOLDER)
            self.dockerd.terminate()
            try:
                self.dockerd.wait(30)
            except subprocess.TimeoutExpired:
                self.dockerd.kill()
                self.dockerd.wait()
        if self.cage is not None:
            self.cage.close()
        kill_orphans()
        for name in (self.group, *(() if self.libpod_was_there else ("libpod_parent",))):
            remove_groups(name)
