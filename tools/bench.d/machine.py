# SPDX-License-Identifier: Apache-2.0
"""What the numbers were taken on, and the memory of it."""

import os
import pathlib
import platform
import subprocess
import time

from stats import median

CGROUPS = pathlib.Path("/sys/fs/cgroup")


def meminfo():
    """/proc/meminfo in KiB."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}


def used_kib(info):
    """Memory that is neither free nor a cache of files. Slab counts whole: what is pinned by a live session is called
    reclaimable too."""
    return info["MemTotal"] - info["MemFree"] - info["Buffers"] - (info["Cached"] - info["Shmem"])


# The kernel's own memory, which has no owner that could be asked. The rest of a session is the memory of its processes.
KERNEL = ("Slab", "Percpu", "Shmem")
GLOBAL = (*KERNEL, "SUnreclaim", "KernelStack", "PageTables", "AnonPages", "MemAvailable", "used")


def memory(settle=0.5, readings=7):
    """The median of some readings of the whole machine, in KiB."""
    seen = []
    for _ in range(readings):
        time.sleep(settle / readings)  # freed memory comes back by way of RCU: nothing tells when
        info = meminfo()
        info["used"] = used_kib(info)
        seen.append(info)
    return {key: median([s.get(key, 0) for s in seen]) for key in GLOBAL}


def status_kib(pid, *names):
    """The sum of some lines of /proc/PID/status."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.partition(":")[0] in names)


def own_anon_kib(pid):
    return status_kib(pid, "RssAnon")


def empty_group_kib(name, count=40):
    """What a memory cgroup takes that nothing is in: it depends on what this host has seen since it was booted. None: cannot
    be told here."""
    top = next((top for top in (CGROUPS / "memory", CGROUPS) if (top / "cgroup.procs").exists()), None)
    if top is None or os.geteuid() != 0:
        return None
    base = top / name
    try:
        base.mkdir()
        if (base / "cgroup.subtree_control").exists():
            (base / "cgroup.subtree_control").write_text("+memory")
        before = memory()
        for i in range(count):
            (base / str(i)).mkdir()
        after = memory()
        return round(sum(after[key] - before[key] for key in ("Slab", "Percpu")) / count, 1)
    except OSError:
        return None
    finally:
        for group in (*(base / str(i) for i in range(count)), base):
            if group.exists():
                group.rmdir()


KERNEL_STACK_KIB = 16


def init_kib(priv_pid, sample=20):
    """What PID 1 of a session takes of its own, on average: private memory, page tables, kernel stack."""
    pids = pathlib.Path(f"/proc/{priv_pid}/task/{priv_pid}/children").read_text().split()[-sample:]
    return sum(status_kib(pid, "RssAnon", "VmPTE") + KERNEL_STACK_KIB for pid in pids) / len(pids)


def cgroup_mode():
    if (CGROUPS / "cgroup.controllers").exists():
        return "v2"
    return "hybrid" if (CGROUPS / "unified" / "cgroup.controllers").exists() else "v1"


def cpu_model():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def first_line(*command):
    """What `command` prints first, or None."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else None


def distribution():
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "?")
    except OSError:
        return "?"


def facts(root):
    return {
        "kernel": platform.release(),
        "distribution": distribution(),
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": cpu_model(),
        "memory_mib": meminfo()["MemTotal"] // 1024,
        "cgroup_mode": cgroup_mode(),
        "root": os.geteuid() == 0,
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": first_line("git", "-c", "safe.directory=*", "-C", str(root), "describe", "--always", "--dirty"),
    }
