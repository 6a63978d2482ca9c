# SPDX-License-Identifier: Apache-2.0
"""A host and an internet of network namespaces, for a boxd that may change the network of its host.

No packet leaves the machine, and the machine's own rules and routes are not touched. Needs root.
"""

import contextlib
import ctypes
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time

from boxlib import BUILD, Boxd

CLONE_NEWNET = 0x40000000
HOST = "11.0.0.2"
NEIGHBOUR = "11.0.0.1"  # on the same wire
INTERNET = ("8.8.8.8", "93.184.216.34")
PRIVATE = ("10.0.0.1", "100.100.100.200", "169.254.169.254", "192.168.1.1")
USER = 12345

# /dev/net/tun as a host with udev has it, a resolv.conf that names a server on this internet, and the programs where
# an ordinary user can reach them.
_MOUNTS = """
set -e
mount -t tmpfs none /mnt
mkdir /mnt/build
mount --bind "$1" /mnt/build
echo 'nameserver 8.8.8.8' >/mnt/resolv.conf
chmod 644 /mnt/resolv.conf
mount --bind /mnt/resolv.conf "$(realpath /etc/resolv.conf)"
if mknod -m 666 /mnt/tun c 10 200; then
    mkdir -p /dev/net
    [ -e /dev/net/tun ] || touch /dev/net/tun
    mount --bind /mnt/tun /dev/net/tun
fi
ip link set lo up
"""


def _setns(fd):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, CLONE_NEWNET) < 0:
        raise OSError(ctypes.get_errno(), "setns")


def wait_until(check, seconds=20):
    """What the kernel does in the background tells nobody when it is done."""
    end = time.monotonic() + seconds
    while True:
        value = check()
        if value or time.monotonic() > end:
            return value
        time.sleep(0.01)


class Namespace:
    """A process that holds namespaces open."""

    def __init__(self, *unshare, script="", args=()):
        self._process = subprocess.Popen(
            ["unshare", *unshare, "sh", "-c", script + "\necho up; exec cat", "sh", *args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        if self._process.stdout.readline() != b"up\n":
            raise RuntimeError("the namespace could not be set up")
        self.pid = self._process.pid
        self.prefix = ["nsenter", "-t", str(self.pid), *(o[:2] for o in unshare if o in ("-n", "-m")), "--"]

    def run(self, *argv, **kwargs):
        return subprocess.run([*self.prefix, *argv], check=True, text=True, capture_output=True, **kwargs).stdout

    def ip(self, text):
        self.run("ip", "-batch", "-", input=text)

    @contextlib.contextmanager
    def inside(self):
        """Sockets made in here live in the network namespace."""
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        there = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY)
        try:
            _setns(there)
            yield
        finally:
            _setns(home)
            os.close(home)
            os.close(there)

    def listen(self, port, kind=socket.SOCK_STREAM, address="0.0.0.0"):
        with self.inside():
            sock = socket.socket(socket.AF_INET, kind)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.settimeout(20)
        sock.bind((address, port))
        if kind == socket.SOCK_STREAM:
            sock.listen(512)
        return sock

    def close(self):
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


class Resolver(threading.Thread):
    """Answers every question for an A record with one address."""

    def __init__(self, sock, address):
        super().__init__(daemon=True)
        self.sock, self.address, self.asked = sock, address, 0
        sock.settimeout(None)

    def run(self):
        while True:
            question, peer = self.sock.recvfrom(2048)
            if not question:
                return
            self.asked += 1
            end = question.index(b"\0", 12) + 5
            answer = struct.pack("!HHHIH", 0xC00C, 1, 1, 60, 4) + socket.inet_aton(self.address)
            self.sock.sendto(question[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + question[12:end] + answer, peer)

    def stop(self):
        self.sock.sendto(b"", self.sock.getsockname())
        self.join(20)
        self.sock.close()


class Stage:
    def __init__(self):
        self.net = Namespace("-n")
        self.host = Namespace("-n", "-m", "--propagation=private", script=_MOUNTS, args=[str(BUILD)])
        # A new namespace starts with the settings of the machine's own.
        self.host.run("sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward")
        self.host.ip(f"link add up0 type veth peer name up1 netns {self.net.pid}\naddr add {HOST}/24 dev up0\n"
                     "link set up0 up\nroute add default via 11.0.0.1\n")
        self.net.ip("link set lo up\naddr add 11.0.0.1/24 dev up1\nlink set up1 up\n"
                    + "".join(f"addr add {a}/32 dev lo\n" for a in (*INTERNET, *PRIVATE)))
        self.resolver = Resolver(self.net.listen(53, socket.SOCK_DGRAM, INTERNET[0]), INTERNET[1])
        self.resolver.start()

    def boxd(self, *args, **kwargs):
        return Boxd(*args, prefix=self.host.prefix, **kwargs)

    def boxd_of_user(self, *args):
        """By an ordinary user, who has no account."""
        state = pathlib.Path(tempfile.mkdtemp(prefix="box-test-"))
        os.chown(state, USER, USER)
        become = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all"]
        script = ["sh", "-c", 'shift; exec "$0" "$@"', "/mnt/build/boxd"]
        daemon = Boxd(*args, state=state, prefix=[*self.host.prefix, *become, *script])
        daemon.own_state = True
        return daemon

    def interfaces(self):
        return sorted(line.split(":")[1].split("@")[0].strip()
                      for line in self.host.run("ip", "-o", "link").splitlines())

    def addresses(self):
        return sorted(line.split()[3] for line in self.host.run("ip", "-o", "-4", "addr").splitlines())

    def rules(self):
        return self.host.run("nft", "list", "ruleset")

    def close(self):
        self.resolver.stop()
        self.host.close()
        self.net.close()


def descendants(pid):
    """Every process below this one, by its arguments; zombies too."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [pathlib.Path(f"/proc/{child}/cmdline").read_bytes(), *descendants(child)]
    return found


def has_programs(*names):
    return all(shutil.which(n, path="/usr/sbin:/usr/bin:/sbin:/bin") for n in names)
