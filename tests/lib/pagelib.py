# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of a page: its blocks marked `sh`, in order, in one shell. A block marked `text` is the output of the
block before it; … stands for anything there. A further one is the output that an ordinary user may see instead."""

import os
import re
import shutil
import subprocess
from collections import namedtuple

from boxlib import BUILD, ROOT
from hostlib import SCALE, mount_dir

Result = namedtuple("Result", "status out")  # what a terminal shows: both streams
# The pieces are read by one shell, so that variables and directories last; each has no input, as on a terminal where
# nothing is typed.
DRIVER = """
for piece in "$0"/*.sh; do
    . "$piece" </dev/null >"${piece%.sh}.out" 2>&1
    echo $? >"${piece%.sh}.status"
done
"""


def blocks(page):
    """(mark, text) of each fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.S | re.M)


def commands_and_outputs(page):
    """(command, outputs that are shown) of each block marked sh."""
    found = []
    for mark, text in blocks(page):
        if mark == "sh":
            found.append((text, []))
        elif mark == "text" and found:
            found[-1][1].append(text)
    return found


def shown_pattern(shown):
    """What is shown, with … for anything."""
    return re.compile(".*".join(re.escape(part) for part in shown.strip("\n").split("…")), re.S)


class Reader:
    """Someone who stands in a checkout with what was built in it, in another terminal than `make run`."""

    def __init__(self, daemon):
        self.top = mount_dir("box-reader-")  # a directory that may be mounted
        (self.top / "build").symlink_to(BUILD)
        self.env = {**{k: v for k, v in os.environ.items() if not k.startswith("BOX_")},
                    "BOX_HOST": f"unix://{daemon.sock}"}

    def type(self, pieces):
        """Runs them all; returns a Result for each."""
        notes = mount_dir("box-reader-notes-")
        try:
            for n, piece in enumerate(pieces):
                (notes / f"{n:03}.sh").write_text(piece if piece.endswith("\n") else piece + "\n")
            subprocess.run(["sh", "-c", DRIVER, str(notes)], cwd=self.top, env=self.env, stdin=subprocess.DEVNULL,
                           check=True, timeout=(60 + 30 * len(pieces)) * SCALE)
            return [self._result(notes / f"{n:03}") for n in range(len(pieces))]
        finally:
            shutil.rmtree(notes)

    @staticmethod
    def _result(stem):
        return Result(int(stem.with_suffix(".status").read_text()), stem.with_suffix(".out").read_text(errors="replace"))

    def close(self):
        shutil.rmtree(self.top)
