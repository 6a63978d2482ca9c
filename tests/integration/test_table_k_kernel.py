# SPDX-License-Identifier: Apache-2.0
"""Check K10 of table K: what known exploits of the kernel begin with, looked for from inside. Nothing is exploited."""

import json

from boxlib import ROOT

PROBE = r"""
import ctypes, errno, json, os, platform, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
number = lambda a, b: a if x86 else b
found = {}
def call(name, r):
    found[name] = errno.errorcode[ctypes.get_errno()] if r < 0 else "open"
def sys(name, nr, *args):
    ctypes.set_errno(0)
    call(name, libc.syscall(nr, *args))
def family(name, *args):
    try:
        socket.socket(*args).close()
        found[name] = "open"
    except OSError as e:
        found[name] = errno.errorcode[e.errno]
zero = ctypes.create_string_buffer(256)
sys("user namespace by unshare", number(272, 97), 0x10000000)
sys("user namespace by clone", number(56, 220), 0x10000000 | 17, 0, 0, 0, 0)
sys("user namespace by clone3", 435, zero, 88)
sys("network namespace", number(272, 97), 0x40000000)
sys("mount namespace", number(272, 97), 0x20000)
family("nf_tables", socket.AF_NETLINK, socket.SOCK_RAW, 12)
family("xfrm", socket.AF_NETLINK, socket.SOCK_RAW, 6)
family("generic netlink", socket.AF_NETLINK, socket.SOCK_RAW, 16)
family("netlink audit", socket.AF_NETLINK, socket.SOCK_RAW, 9)
family("AF_ALG", 38, socket.SOCK_SEQPACKET, 0)
family("AF_PACKET", 17, socket.SOCK_RAW, 0)
family("AF_PACKET by its old name", socket.AF_INET, 10, 0)
family("AF_VSOCK", 40, socket.SOCK_STREAM, 0)
family("AF_TIPC", 30, socket.SOCK_SEQPACKET, 0)
family("AF_RDS", 21, socket.SOCK_SEQPACKET, 0)
family("AF_KEY", 15, socket.SOCK_RAW, 2)
family("AF_CAN", 29, socket.SOCK_RAW, 1)
family("AF_XDP", 44, socket.SOCK_RAW, 0)
family("AF_BLUETOOTH", 31, socket.SOCK_RAW, 1)
family("AF_SMC", 43, socket.SOCK_STREAM, 0)
family("AF_QIPCRTR", 42, socket.SOCK_DGRAM, 0)
family("raw socket", socket.AF_INET, socket.SOCK_RAW, 1)
family("SCTP", socket.AF_INET, socket.SOCK_STREAM, 132)
family("DCCP", socket.AF_INET, 6, 33)
family("UDP-Lite", socket.AF_INET, socket.SOCK_DGRAM, 136)
family("MPTCP", socket.AF_INET, socket.SOCK_STREAM, 262)
family("L2TP", socket.AF_INET, socket.SOCK_DGRAM, 115)
s = socket.socket()
try:
    s.setsockopt(6, 31, b"tls")
    found["kernel TLS"] = "open"
except OSError as e:
    found["kernel TLS"] = errno.errorcode[e.errno]
sys("io_uring", 425, 8, zero)
sys("bpf", number(321, 280), 0, zero, 128)
sys("perf events", number(298, 241), zero, 0, -1, -1, 0)
sys("userfaultfd", number(323, 282), 0)
sys("keyrings: add_key", number(248, 217), b"user", b"k10", b"x", 1, -2)
sys("keyrings: keyctl", number(250, 219), 0, -3, 1)
sys("vmsplice", number(278, 75), -1, zero, 0, 0)
sys("fsopen", 430, b"tmpfs", 0)
sys("fsconfig", 431, 3, 0, 0, 0, 0)
sys("mount", number(165, 40), b"none", b"/tmp", b"tmpfs", 0, 0)
sys("overlay", number(165, 40), b"none", b"/tmp", b"overlay", 0, b"lowerdir=/usr,upperdir=/tmp,workdir=/tmp")
sys("ptrace", number(101, 117), 16, os.getppid(), 0, 0)
sys("process_vm_writev", number(311, 271), os.getpid(), zero, 1, zero, 1, 0)
sys("pidfd_getfd", 438, 0, 0, 0)
sys("files by handle", number(304, 265), -100, zero, 0)
sys("fanotify", number(300, 262), 0, 0)
sys("memfd_secret", 447, 0)
sys("modules", number(313, 273), 0, b"", 0)
sys("kexec", number(246, 104), 0, 0, 0, 0)
sys("personality", number(135, 92), 0x40000)
sys("memory policy", number(237, 235), 0, 0, 0, 0, 0, 0)
sys("line disciplines", number(16, 29), 0, 0x5423, zero)
sys("TIOCSTI", number(16, 29), 0, 0x5412, b"x")
sys("TIOCSTI with high bits", number(16, 29), 0, ctypes.c_ulong(0x5412 | 1 << 32), b"x")
if x86:
    sys("modify_ldt", 154, 1, zero, 16)
for path in ("/proc/self/mem", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper",
             "/sys/fs/cgroup/release_agent", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/userfaultfd", "/dev/mem"):
    try:
        os.close(os.open(path, os.O_WRONLY))
        found["write " + path] = "open"
    except OSError as e:
        found["write " + path] = errno.errorcode[e.errno]
# A page of a file that cannot be written, in a pipe.
r, w = os.pipe()
fd = os.open("/usr/bin/env", os.O_RDONLY)
try:
    assert os.splice(fd, w, 1, offset_src=0) == 1
    found["splice"] = "open"
except OSError as e:
    found["splice"] = errno.errorcode[e.errno]
family("routing netlink", socket.AF_NETLINK, socket.SOCK_RAW, 0)
family("AF_UNIX", socket.AF_UNIX, socket.SOCK_STREAM, 0)
sys("System V messages", number(68, 186), 0, 0o1600)
sys("timers", number(222, 107), 1, 0, zero)
sys("nested filters", number(317, 277), 2, 0, struct.pack("I", 0x7fff0000))
print(json.dumps(found))
"""
DOC = ROOT / "docs/reference/threat-model.md"
CLOSED = {"EPERM", "ENOSYS", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "ENOPROTOOPT"}
PATHS = {"EPERM", "EACCES", "EROFS", "ENOENT"}


def documented():
    """What the documentation says is within reach: the first column of its table."""
    section = DOC.read_text().split("## What exploits of the kernel need")[1].split("\n## ")[0]
    return {line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")} - {"what"}


def test_check_K10_what_known_exploits_need_is_closed_or_documented(api, sid):
    r = api.x(sid, "python3", "-c", PROBE)
    assert r["exit_code"] == 0, r
    found = json.loads(r["stdout"])
    assert len(found) > 60
    within_reach = {name for name, how in found.items() if how == "open"}
    assert within_reach == documented()
    for name, how in found.items():
        if name not in within_reach:
            assert how in (PATHS if name.startswith("write ") else CLOSED), (name, how)
