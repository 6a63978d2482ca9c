# SPDX-License-Identifier: Apache-2.0
"""What tests about mounts, networks and faults need of the host: leftovers of one instance, namespaces, waiting."""

import contextlib
import ctypes
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import pytest
from boxlib import BUILD, CGROUPS

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
PR_SET_CHILD_SUBREAPER = 36
SCALE = float(os.environ.get("BOX_TEST_SLOW", "30" if os.uname().nodename == "box-vm" else "1"))


def need(*programs):
    """Skips when a program of Debian's is not there; tools/setup.sh test installs them."""
    missing = [p for p in programs if shutil.which(p) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (tools/setup.sh test)")


def built(name):
    """A helper program of the build tree."""
    path = BUILD / "tests" / name
    if not path.exists():
        pytest.skip(f"{path} is not built (configure with -Dtests=enabled)")
    return str(path)


def mount_dir(prefix):
    """A directory that sessions can mount: tmpfs, which /tmp may be, maps no ids before Linux 6.3."""
    top = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir="/var/tmp"))
    top.chmod(0o755)
    return top


def until(condition, seconds=60, what="it"):
    """Waits for something that tells nobody when it happens."""
    end = time.monotonic() + seconds * SCALE
    while not (result := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen in {seconds * SCALE} s")
        time.sleep(0.01)
    return result


def alive(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def adopt_orphans():
    """What a killed daemon leaves comes to us, whatever the first process of this machine does about orphans."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans():
    """The dead among them; never a process that somebody here started and will ask for."""
    for pid in pathlib.Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ChildProcessError):
            name = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
            if name in ("box-priv", "box-init", "memfd:box-init") and not alive(int(pid)):
                os.waitpid(int(pid), os.WNOHANG)


def _cgroups(tag):
    found = []
    for root, dirs, _ in os.walk(CGROUPS):  # other instances come and go meanwhile
        if f"/{tag}" in root:
            # Kept for the next sessions, empty.
            found += [os.path.join(root, d) for d in dirs if d != "spare" and not d.startswith("used-")]
    return found


def processes(tag):
    """Processes in a cgroup of the instance."""
    found = []
    for p in pathlib.Path("/proc").iterdir():
        if p.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if f"/{tag}/" in (p / "cgroup").read_text() and alive(int(p.name)):
                    found.append(int(p.name))
    return found


def _files(state):
    """What sessions left on disk. Empty directories that are kept for the next session do not count."""
    found = []
    for top in ("sessions", "trash"):
        # Not glob(): it raises when a directory goes while it looks.
        for directory, below, names in os.walk(state / top):
            for path in (pathlib.Path(directory, name).relative_to(state) for name in below + names):
                spare = path.parts[1].startswith("spare-") and path.parts[2:] in ((), ("workspace",), ("home",))
                if not spare:
                    found.append(str(path))
    return sorted(found)


def leftovers(daemon):
    """Objects of this instance that exist now, whether the daemon lives or not. Empty: no leak."""
    tag, state = daemon.tag(), daemon.state
    mounts = [m for m in pathlib.Path("/proc/self/mountinfo").read_text().splitlines() if str(state) in m]
    loops = []
    for b in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if str(state) in b.read_text():
                loops.append(str(b))
    kinds = {"cgroups": _cgroups(tag), "processes": processes(tag), "mounts": mounts, "loops": loops,
             "files": _files(state)}
    return {kind: found for kind, found in kinds.items() if found}


def assert_no_leak(daemon, seconds=20, what="all"):
    """Nothing of a session is left, or what is left is going: a moment is granted to the kernel."""
    end = time.monotonic() + seconds * SCALE
    while left := leftovers(daemon):
        if time.monotonic() > end:
            raise AssertionError(f"left behind after {what}: {left}")
        time.sleep(0.02)


def fd_count(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Namespace:
    """A network namespace, held by a process that ends with us."""

    def __init__(self):
        self._holder = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        self._holder.stdout.readline()
        self.path = f"/proc/{self._holder.pid}/ns/net"
        self.fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self.enter = ("nsenter", f"--net={self.path}", "--")

    def run(self, *argv, check=True, **kwargs):
        return subprocess.run([*self.enter, *argv], check=check, text=True, capture_output=True, timeout=60 * SCALE,
                              **kwargs)

    def ip(self, *args):
        return self.run("ip", *args).stdout

    @contextlib.contextmanager
    def inside(self):
        """Sockets made in here belong to the namespace."""
        home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            set_netns(self.fd)
            yield
        finally:
            set_netns(home)
            os.close(home)

    def close(self):
        os.close(self.fd)
        self._holder.stdin.close()
        self._holder.wait()
        self._holder.stdout.close()


def set_netns(fd):
    if LIBC.setns(fd, CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
