# SPDX-License-Identifier: Apache-2.0
"""The emulated machine with systemd: packages, sessions, and what has to be the same after a boot."""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PORT = 18080
FACTS = pathlib.Path("/var/lib/vm-facts.json")  # from one boot to the next
UNITS = ("boxd.socket", "boxd.service")
# Bytes, owners, modes, links and times: what a user would notice.
FILL = ("mkdir -p d/e && head -c 300000 /dev/urandom > d/e/r && ln -s d/e/r link && ln d/e/r hard && chmod 640 d/e/r && "
        "echo x > $HOME/f && sync -f . && sync -f $HOME")
LOOK = "find . $HOME -printf '%p %u %g %m %s %l %n %TY-%Tm-%Td\\n' | sort && sha256sum d/e/r $HOME/f"


def boot(number):
    """For the module of that boot."""
    here = os.environ.get("VM_BOOT")
    return pytest.mark.skipif(here != str(number), reason=f"for boot {number} of the emulated machine (make test-packages)")


def sh(command, check=True):
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=300)
    if check and done.returncode != 0:
        journal = subprocess.run(["journalctl", "-b", "--no-pager", "-n", "40", "-u", "boxd*"], capture_output=True, text=True).stdout
        pytest.fail(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}\n{journal}")
    return done.stdout


def package(which):
    """The package under test, or the one that is the same but for a later version."""
    (found,) = (ROOT / "build/deb" / ("" if which == "now" else which)).glob("box_*.deb")
    return found


def state_of(name):
    sessions = json.loads(sh("box ps -a --json"))["sessions"]
    return next((s["state"] for s in sessions if s["session_id"] == name), None)


def look(name):
    return sh(f"box exec {name} -- sh -c '{LOOK.replace(chr(39), chr(34))}'")


def serve(name):
    """A server in the background of the session; its process, as the session numbers it."""
    return sh(f"box exec {name} -- sh -c 'echo hello from {name} > index.html; sync index.html; "
              "busybox httpd -f -p 3000 -h /workspace >/dev/null 2>&1 & echo $!'").strip()


def fetch():
    return sh(f"curl -sS --max-time 60 --retry 20 --retry-delay 1 --retry-all-errors http://127.0.0.1:{PORT}/index.html")


def traces():
    """What a machine that never had Box does not have."""
    found = sh("find /etc /var /run /usr/bin /usr/libexec /usr/lib/systemd -name 'box*' -not -path '/run/vm/*'")
    groups = sh("find /sys/fs/cgroup -maxdepth 3 -name 'box*'")
    accounts = sh("grep -h '^box:' /etc/passwd /etc/group /etc/shadow /etc/gshadow 2>/dev/null", check=False)
    return sorted((found + groups + accounts + sh("grep box /proc/mounts", check=False)).splitlines())
