# SPDX-License-Identifier: Apache-2.0
"""strace as an injector: the nth call of a kind kills its caller, or fails."""

import collections
import pathlib
import re
import signal
import subprocess
import tempfile

from hostlib import SCALE

# "12:00:00 openat(AT_FDCWD…" or "[pid 12] openat(…"; resumed and signal lines are no calls of their own.
_CALL = re.compile(r"^(?:\[pid +\d+\] |\d+ +)?([a-z_0-9]+)\(")


class Strace:
    """Attached to a running process, not to its children unless `follow`."""

    def __init__(self, pid, *options, follow=False):
        self._out = tempfile.NamedTemporaryFile(prefix="box-strace-", suffix=".log")
        command = ["strace", "-o", self._out.name, *(["-f"] if follow else []), *options, "-p", str(pid)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        line = self._process.stderr.readline()
        if "attached" not in line:
            self.stop()
            raise RuntimeError("strace: " + line)

    def calls(self):
        """Names of the calls so far, in order."""
        text = pathlib.Path(self._out.name).read_text(errors="replace")
        return [m.group(1) for m in map(_CALL.match, text.splitlines()) if m]

    def stop(self):
        """Detaches; the traced process goes on."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        self._process.wait(60 * SCALE)
        self._process.stderr.close()
        calls = self.calls()
        self._out.close()
        return calls

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()


def points(calls, ignore=()):
    """Every call of a recorded run as (name, which of that name), in order."""
    seen = collections.Counter()
    found = []
    for name in calls:
        seen[name] += 1
        if name not in ignore:
            found.append((name, seen[name]))
    return found


def sample(found, count):
    """Evenly spread over the run, the first and the last among them."""
    if len(found) <= count:
        return found
    return [found[round(i * (len(found) - 1) / (count - 1))] for i in range(count)]


def spread(found, count):
    """So that each kind of call comes up before any comes up again."""
    by_name = collections.defaultdict(list)
    for point in found:
        by_name[point[0]].append(point)
    picked, rank = [], 0
    while len(picked) < min(count, len(found)):
        for group in by_name.values():
            # First, last, middle, quarters…
            order = sorted(range(len(group)), key=lambda i, n=len(group): (_bits(i, n), i))
            if rank < len(group) and len(picked) < count:
                picked.append(group[order[rank]])
        rank += 1
    return picked


def _bits(i, n):
    if i in (0, n - 1):
        return 0
    step, depth = n, 1
    while step > 1:
        step //= 2
        if step and i % step == 0:
            return depth
        depth += 1
    return depth
