# SPDX-License-Identifier: Apache-2.0
"""A disk with quotas of its file system, in a mount namespace of its own, and what the kernel says of them."""

import ctypes
import errno
import fcntl
import os
import pathlib
import shutil
import struct
import subprocess

import pytest
from hostlib import mount_dir, need

LIBC = ctypes.CDLL(None, use_errno=True)
SYS_QUOTACTL_FD = 443
PRJQUOTA, Q_XGETQUOTA, Q_XSETQLIM = 2, 0x5803, 0x5804
FSGETXATTR, FSSETXATTR, PROJINHERIT = 0x801C581F, 0x401C5820, 0x200
FIRST_ID = 0x42000000

MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-m", "0", "-O", "quota,project", "-E", "quotatype=prjquota"],
    "xfs": ["mkfs.xfs", "-q"],
    "btrfs": ["mkfs.btrfs", "-q"],
}
OPTIONS = {"ext4": "loop,prjquota", "xfs": "loop,prjquota", "btrfs": "loop"}


class Disk:
    """Mounted at `at` for `prefix` and what that starts. We ourselves see it at `seen`."""

    def __init__(self, kind, quotas=True):
        need(MAKE[kind][0], "unshare", "nsenter", "mount", *(["btrfs"] if kind == "btrfs" else []))
        if os.geteuid() != 0:
            pytest.skip("only root can mount a disk")
        self.kind, self.top = kind, mount_dir("box-quota-")
        self.at = self.top / "disk"
        self.at.mkdir()
        image = self.top / "image"
        with open(image, "wb") as f:
            f.truncate(320 << 20)
        make = MAKE[kind] if quotas else MAKE[kind][:2]
        subprocess.run([*make, image], check=True, stdout=subprocess.DEVNULL)
        options = OPTIONS[kind] if quotas else "loop"
        script = f"mount -t {kind} -o {options} {image} {self.at} && chmod 755 {self.at} && echo up && exec cat"
        self._holder = subprocess.Popen(["unshare", "-m", "--propagation", "private", "sh", "-c", script],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if self._holder.stdout.readline() != b"up\n":
            why = self._holder.stderr.read().decode()
            self.close()
            assert os.uname().nodename != "box-vm", why
            pytest.skip(f"this kernel does not mount {kind} with {options}")
        self.prefix = ["nsenter", "-t", str(self._holder.pid), "-m"]
        self.seen = pathlib.Path(f"/proc/{self._holder.pid}/root{self.at}")
        if kind == "btrfs" and quotas:
            self.run("btrfs", "quota", "enable", str(self.at))
            self.run("btrfs", "quota", "rescan", "-w", str(self.at))

    def run(self, *command):
        return subprocess.run([*self.prefix, *command], check=True, capture_output=True, text=True).stdout

    def directory(self, name):
        """A directory that a session may have, as sessions are told of it."""
        if self.kind == "btrfs":
            self.run("btrfs", "subvolume", "create", str(self.at / name))
        else:
            (self.seen / name).mkdir()
        (self.seen / name).chmod(0o755)
        return str(self.at / name)

    def limit(self, name):
        """Bytes that the kernel allows in there; 0: as much as there is."""
        if self.kind == "btrfs":
            shown = self.run("btrfs", "qgroup", "show", "-r", "--raw", "-f", str(self.at / name)).splitlines()
            value = shown[-1].split()[3]  # id, referenced, exclusive, limit of the referenced
            return 0 if value == "none" else int(value)
        return self.project_limit(project(self.seen / name))

    def project_limit(self, number):
        quota = ctypes.create_string_buffer(112)
        fd = os.open(self.seen, os.O_RDONLY)
        try:
            r = LIBC.syscall(SYS_QUOTACTL_FD, fd, Q_XGETQUOTA << 8 | PRJQUOTA, number, quota)
        finally:
            os.close(fd)
        if r < 0 and ctypes.get_errno() == errno.ENOENT:
            return 0
        assert r == 0, os.strerror(ctypes.get_errno())
        return struct.unpack_from("=Q", quota, 8)[0] * 512

    def set_project_limit(self, number, size):
        quota = struct.pack("=bbHIQ", 1, 2, 1 << 3, number, size // 512).ljust(112, b"\0")
        fd = os.open(self.seen, os.O_RDONLY)
        try:
            assert LIBC.syscall(SYS_QUOTACTL_FD, fd, Q_XSETQLIM << 8 | PRJQUOTA, number, quota) == 0
        finally:
            os.close(fd)

    def close(self):
        self._holder.stdin.close()  # nobody else is in its namespace: the disk goes
        self._holder.wait()
        self._holder.stdout.close()
        self._holder.stderr.close()
        shutil.rmtree(self.top, ignore_errors=True)


def _attributes(path, change=None):
    """The project of a file, by path or descriptor, after a change of it."""
    fd = os.dup(path) if isinstance(path, int) else os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        raw = bytearray(28)
        fcntl.ioctl(fd, FSGETXATTR, raw)
        if change is not None:
            flags = struct.unpack_from("=I", raw)[0] | (PROJINHERIT if os.path.isdir(fd) else 0)
            struct.pack_into("=I", raw, 0, flags)
            struct.pack_into("=I", raw, 12, change)
            fcntl.ioctl(fd, FSSETXATTR, raw)
        return struct.unpack_from("=I", raw, 12)[0]
    finally:
        os.close(fd)


def project(path):
    return _attributes(path)


def set_project(path, number):
    _attributes(path, number)


def is_ours(number):
    return FIRST_ID <= number < FIRST_ID + (1 << 24)
