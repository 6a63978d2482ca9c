# SPDX-License-Identifier: Apache-2.0
"""What a command inherits, held against one golden file: tests/golden/posture.txt is that of a command of the native
backend, started by root. Everything that may differ elsewhere is a row here, with its reason."""

import os
import re

from escapelib import GOLDEN, IS_ROOT, fs_type, kernel_release, status

FILE = GOLDEN / "posture.txt"
USER = () if IS_ROOT else ("ordinary user",)
EVERYBODY = r"(self|thread)"

def normal_mount(line, idmapped):
    """A mount as the golden file has it: without what the host or the kernel's version decides."""
    _, target, kind, root, options, *rest = line.split(" ")
    sup = rest[-1] if rest else "super="
    options = [o for o in options.split(",") if o not in ("relatime", "noatime", "strictatime", "nodiratime")]
    if target.startswith("/proc/"):
        target = "/proc/*"
    if re.match(r"/(usr|bin|sbin|lib\w*)(/|$)", target):  # what there is besides /usr is up to the host
        target, root = "/usr", "root=*"
    # Of the host, but for /etc, which is a file system of its own where the kernel can map its ids.
    if target in ("/etc", "/workspace", "/home/box", "/probe"):
        if not idmapped and kind != "overlay" and target != "/probe":
            options.append("idmapped")
        kind, root, sup = "*", "root=*", "super="
    if kind == "overlay":
        sup = "super="
    sup = ",".join(o for o in sup.split(",") if o not in ("inode64", "inode32"))
    shared = [x for x in rest if x in ("shared", "slave")]
    return " ".join(["mount", target, kind, root, ",".join(options), *shared, sup]).strip()


def normal_posture(text, state):
    # Storage on a tmpfs is not mapped before Linux 6.3, but owned by the session's id.
    idmapped = not IS_ROOT or kernel_release() >= (6, 3) or fs_type(state) != "tmpfs"
    own_filters = int(status("self").get("Seccomp_filters", "0"))
    out = set()
    for line in text.splitlines():
        if re.match(r"mount /(usr|etc|bin|sbin|lib\w*) overlay \S+ ro,", line):
            continue  # a view of its own, where nothing is mounted below; the receipt tells
        if line.startswith("mount "):
            line = normal_mount(line, idmapped)
        elif line.startswith("cgroup "):
            # One line per hierarchy. "/" is the session's group, below it the group of this exec.
            assert re.match(r"^cgroup /(s\d+)?$", line), line
            line = "cgroup of the session"
        elif m := re.match(r"^(self|thread) Seccomp_filters (\d+)$", line):
            line = f"{m[1]} Seccomp_filters {int(m[2]) - own_filters}"
        elif line.startswith("rlimit CORE "):
            assert line in ("rlimit CORE 0 0", "rlimit CORE 1 1")  # 1 where cores go to a program
            line = "rlimit CORE none"
        elif line.startswith("nice "):
            line = f"nice {int(line.split()[1]) - os.getpriority(os.PRIO_PROCESS, 0)}"
        out.add(line)
    return out



# By who runs boxd, how the command is started, and what it runs on: (reason, lines that go, lines that come).
# `<id>` is the number that a session's programs have where it differs from session to session.
DIFFERENCES = {
    "ordinary user": [
        ("PID 1 has the same id, and tests/integration/test_pid1.py looks at it", r"init .*", ()),
        ("a user can map one id, its own, which a user namespace between calls 0", r"[ug]id_map .*",
         ("gid_map 1000 -> 0 1", "uid_map 1000 -> 0 1")),
        ("a user cannot map the ids of a mount", r"mount (/etc|/home/box|/probe|/usr|/workspace) .*",
         ("mount /etc * root=* ro,nosuid,nodev super=", "mount /home/box * root=* rw,nosuid,nodev super=",
          "mount /probe * root=* ro,nosuid,nodev super=", "mount /usr * root=* ro,nosuid,nodev super=",
          "mount /workspace * root=* rw,nosuid,nodev super=")),
    ],
    "terminal": [
        ("the terminal is all three", r"fd [012] .*", tuple(f"fd {n} /dev/pts/0 write" for n in range(3))),
        ("a program has to know which", r"", ("env TERM",)),
        ("it has one", r"terminal no", ("terminal yes",)),
    ],
    "writable root": [
        ("programs are root", EVERYBODY + r" [UG]id .*",
         tuple(f"{who} {kind} 0 0 0 0" for who in ("self", "thread") for kind in ("Uid", "Gid"))),
        ("the root", r"mount / .*",
         ("mount / tmpfs root=/ rw,nosuid,nodev super=rw,size=262144k,nr_inodes=65536,mode=755,uid=*,gid=*",)),
        ("changes lie over the image", r"",
         ("mount /etc * root=* rw,nosuid,nodev super=", "mount /usr overlay root=* rw,nosuid,nodev super=")),
    ],
    "writable root of root": [
        ("PID 1 needs another id", r"[ug]id_map 1000 .*", ("gid_map 999 -> private 1", "uid_map 999 -> private 1")),
    ],
    "writable root of an ordinary user": [
        ("the one id is called 0", r"[ug]id_map 1000 .*", ("gid_map 0 -> 0 1", "uid_map 0 -> 0 1")),
    ],
    "engine": [
        ("the environment is the image's and the engine's", r"env (LC_CTYPE|LOGNAME|SHELL|USER)",
         ("env HOSTNAME", "env LANG")),
        ("each session has an id of its own, mapped to itself alone", r"[ug]id_map .*",
         ("gid_map <id> -> private 1", "uid_map <id> -> private 1")),
        ("and the engine lists the group once more, which no process without capabilities can undo",
         EVERYBODY + r" (Uid|Gid|Groups)( .*)?",
         tuple(f"{who} {kind} {' '.join(['<id>'] * n)}" for who in ("self", "thread")
               for kind, n in (("Uid", 4), ("Gid", 4), ("Groups", 1)))),
        ("no engine is asked for a domain name, and the kernel calls it so", r"hostname .*",
         ("hostname box domain (none)",)),
        ("the engine's filter, the programs', and that of the mark which takes the place of a kill group",
         EVERYBODY + r" Seccomp_filters .*", ("self Seccomp_filters 3", "thread Seccomp_filters 3")),
    ],
    "podman": [
        ("Podman adds two", r"", ("env TERM", "env container")),
    ],
    "gvisor": [
        ("it shows no groups: those of the host are around all of it", r"cgroup .*", ()),
        ("it has one user namespace, the session's", r"[ug]id_map .*",
         ("gid_map 0 -> 0 4294967295", "uid_map 0 -> 0 4294967295")),
        ("no file in its /proc", r"setgroups .*", ("setgroups ENOENT",)),
        ("its name is its domain", r"hostname .*", ("hostname box domain box",)),
        ("it has no personalities", r"personality .*", ("personality 0xffffffff",)),
        ("it has no securebits: no uid has capabilities that its set does not have", r"securebits .*",
         ("securebits 0xffffffff",)),
        ("it has no queues of messages and signals but in its own memory, and lets nobody set their limits",
         r"rlimit (MSGQUEUE|SIGPENDING) .*", ("rlimit MSGQUEUE 819200 819200", "rlimit SIGPENDING 0 0")),
        ("without a user namespace of the programs' own, box-guest is counted as well", r"rlimit NPROC .*",
         ("rlimit NPROC 129 129",)),
        ("its status has no such lines; the lines that begin with `asked` have the same from system calls",
         EVERYBODY + r" (CapAmb|NoNewPrivs|Seccomp_filters|SigBlk|SigIgn|Umask) .*",
         tuple(f"{who} {key}" for who in ("self", "thread")
               for key in ("CapAmb", "NoNewPrivs", "Seccomp_filters", "SigBlk", "SigIgn", "Umask"))),
    ],
    "gvisor of an engine": [
        ("the environment is the image's and the engine's", r"env (LC_CTYPE|LOGNAME|SHELL|USER)",
         ("env HOSTNAME", "env LANG")),
        ("each session has an id of its own, and the engine lists the group once more",
         EVERYBODY + r" (Uid|Gid|Groups)( .*)?",
         tuple(f"{who} {kind} {' '.join(['<id>'] * n)}" for who in ("self", "thread")
               for kind, n in (("Uid", 4), ("Gid", 4), ("Groups", 1)))),
    ],
    "gvisor of ours": [
        ("box-guest sets it for images that set nothing", r"", ("env LANG",)),
    ],
}


def want(variants, part):
    """The golden lines, as the rows change them. A row that changes nothing is out of date."""
    lines = {line for line in FILE.read_text().splitlines() if part is None or part(line)}
    for variant in variants:
        for reason, gone, new in DIFFERENCES[variant]:
            before, lines = lines, {line for line in lines if not re.fullmatch(gone, line)} | set(new)
            assert before != lines, f"{variant}: no longer a difference: {reason}"
    return lines


def check_posture(lines, *variants, part=None):
    """All lines, or that part of them, are the golden ones but for the rows of these variants."""
    have = {line.rstrip() for line in lines if part is None or part(line)}
    if os.environ.get("UPDATE_GOLDEN") and not variants and part is None:
        FILE.write_text("".join(line + "\n" for line in sorted(have)))
    wanted = want(variants, part)
    new, gone = sorted(have - wanted), sorted(wanted - have)
    assert have == wanted, f"{variants}: new {new}, gone {gone}; a row of DIFFERENCES, or UPDATE_GOLDEN=1"
