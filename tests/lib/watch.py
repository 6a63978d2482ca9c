# SPDX-License-Identifier: Apache-2.0
"""Looking at a session from outside: its processes, its groups, and a neighbour that must not suffer."""

import contextlib
import os
import pathlib
import statistics
import threading
import time

from hostlib import SCALE

# Emulated processors are some thirty times slower: every bound in seconds is multiplied by this, and
# what tests wait for on purpose lasts MOMENT seconds.
SLOW = SCALE
MOMENT = min(SLOW, 8.0)


def amount(usual, slow=None):
    """How many times to do something."""
    return usual if SLOW <= 1 else slow if slow is not None else max(1, int(usual / SLOW))


def wait_for(condition, seconds=20, what="the condition"):
    """Returns the first true value of condition()."""
    end = time.monotonic() + seconds * SLOW
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what} did not come true within {seconds * SLOW:.0f} s"
        time.sleep(0.01)


def pids_of_uid(uid):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if entry.stat().st_uid == uid and "State:\tZ" not in (entry / "status").read_text():
                    found.append(int(entry.name))
    return found


def descendants(pid):
    """Of the first process of a namespace these are all its processes: orphans are its children."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
                if state not in "ZX":
                    parents.setdefault(int(parent), []).append(int(entry.name))
    found = list(parents.get(pid, []))
    for child in found:
        found += parents.get(child, [])
    return found


class Watch:
    """One session, seen from the host."""

    def __init__(self, api, session_id):
        self.receipt = api.receipt(session_id)
        self.pid1 = self.receipt["host_pid"]
        self.uid = self.receipt["host_uid_payload"]
        self.groups = {}
        for line in pathlib.Path(f"/proc/{self.pid1}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for name in controllers.split(",") if controllers else ["v2"]:
                self.groups[name] = path

    def payload(self):
        """Processes of the session, but PID 1. An ordinary user's sessions share one id with everything."""
        own_id = self.uid >= 2_000_000_000
        return pids_of_uid(self.uid) if own_id else descendants(self.pid1)

    def names(self):
        names = []
        for pid in self.payload():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                names.append(pathlib.Path(f"/proc/{pid}/comm").read_text().strip())
        return sorted(names)

    def group(self, controller):
        """The session's directory for that controller, in whichever hierarchy has it."""
        root = pathlib.Path("/sys/fs/cgroup")
        if controller in self.groups and (root / controller).is_dir():
            return root / controller / self.groups[controller].lstrip("/")
        base = root / "unified" if (root / "unified").is_dir() else root
        path = base / self.groups["v2"].lstrip("/")
        return path.parent if path.name == "init" else path

    def memory_now(self):
        group = self.group("memory")
        for name in ("memory.current", "memory.usage_in_bytes"):
            if (group / name).exists():
                return int((group / name).read_text())
        raise AssertionError(f"no memory accounting in {group}")


SPARES = 16  # directories made ahead for coming sessions; empty, and never more than these


def object_counts(daemon):
    """Boxd.leaks(), and what the kernel counts by itself."""
    while True:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # something went away meanwhile
            counts = daemon.leaks()
            for name, pid in (("boxd", daemon.pid), ("priv", daemon.priv_pid())):
                counts[f"{name} threads"] = len(os.listdir(f"/proc/{pid}/task"))
                counts[f"{name} mounts"] = len(pathlib.Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
            break
    assert len(list((daemon.state / "trash").glob("spare-*"))) <= SPARES
    return counts


def connected(daemon):
    """A client whose connection is there already, and counted."""
    client = daemon.client()
    client.ps()
    return client


def settled(daemon):
    """object_counts() once no session is left and nothing is being cleaned up any more."""
    def quiet():
        counts = object_counts(daemon)
        return counts if counts["processes"] == 0 and counts["files"] == [] else None
    return wait_for(quiet, seconds=30, what="an idle daemon without sessions")


def settles(daemon, before):
    """The daemon comes back to that."""
    last = []

    def same():
        last[:] = [object_counts(daemon)]
        return last[0] == before
    try:
        wait_for(same, seconds=15)
    except AssertionError:
        odd = {k: (before.get(k), v) for k, v in last[0].items() if before.get(k) != v}
        raise AssertionError(f"before and after: {odd}") from None


class Victim:
    """Runs small commands in a session of its own while the block runs: each must be right, and none
    may take longer than `bound` seconds."""

    def __init__(self, daemon, session_id, bound=5.0):
        self.client, self.session_id, self.bound = daemon.client(), session_id, bound * SLOW
        self.times, self.error = [], None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        n = 0
        try:
            while not self._stop.is_set():
                n += 1
                begin = time.monotonic()
                r = self.client.sh(self.session_id, f"echo {n} > f && cat f && exit {n % 7}")
                self.times.append(time.monotonic() - begin)
                assert (r["outcome"], r["exit_code"], r["stdout"]) == ("exited", n % 7, f"{n}\n"), r
                time.sleep(0.005)
        except Exception as error:  # told by the main thread
            self.error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, *rest):
        self._stop.set()
        self._thread.join(120)
        self.client.close()
        if kind is None:
            self.check()

    def check(self):
        if self.error is not None:
            raise self.error
        assert self.times, "the neighbour never got an answer"
        worst = max(self.times)
        assert worst < self.bound, f"worst {worst:.2f} s, median {statistics.median(self.times):.3f} s"
