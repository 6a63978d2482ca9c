# SPDX-License-Identifier: Apache-2.0
"""Podman of an ordinary user, who exists only in the engine's cage."""

import os
import shutil
import subprocess

import enginelib

UID, SUBUIDS = 4711, 3000000


def missing():
    """Why it cannot be started here, or None."""
    for program in ("newuidmap", "newgidmap", "setpriv"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return enginelib.missing("podman")


AS_USER = ["setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups"]


class RootlessPodman(enginelib.Engine):
    """Its socket is where a user's own is: podman/podman.sock in $XDG_RUNTIME_DIR, here `runtime_dir`."""

    def __init__(self):
        super().__init__("podman")

    def _open_cage(self):
        self.home, self.runtime_dir = self.work / "home", self.work / "user"
        for path in (self.home, self.runtime_dir, self.runtime_dir / "podman"):
            path.mkdir(mode=0o700)
            os.chown(path, UID, UID)
        self.socket = self.runtime_dir / "podman" / "podman.sock"
        super()._open_cage()
        subprocess.run(self._enter("sh", "-ec", f"""
            echo boxuser:x:{UID}:{UID}::{self.home}:/bin/sh >> /etc/passwd
            echo boxuser:x:{UID}: >> /etc/group
            echo boxuser:{SUBUIDS}:65536 > /etc/subuid
            echo boxuser:{SUBUIDS}:65536 > /etc/subgid"""), check=True, timeout=60)

    def _command(self):
        return ["env", f"HOME={self.home}", f"XDG_RUNTIME_DIR={self.runtime_dir}", f"TMPDIR={self.home}", "USER=boxuser",
                "sh", "-c", 'cd && exec "$@"', "podman", *AS_USER, shutil.which("podman"), "--cgroup-manager", "cgroupfs",
                "--events-backend", "file", "--runtime", "runc", "system", "service", "--time", "0",
                f"unix://{self.socket}"]
