#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""make run: start boxd, run a first command in a sandbox, keep serving until Ctrl-C.

The state directory is --state-dir, $BOX_STATE_DIR or the usual place. Arguments are handed to boxd.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

BUILD = Path(__file__).resolve().parent.parent / "build"
FIRST_COMMAND = ["sh", "-c", "id; echo hello from a sandbox"]
READY_TIMEOUT = 30.0


def state_dir():
    for i, arg in enumerate(sys.argv[1:], 1):  # of boxd's own arguments the one that matters here
        if arg == "--state-dir" and i + 1 < len(sys.argv):
            return Path(sys.argv[i + 1]).absolute()
        if arg.startswith("--state-dir="):
            return Path(arg.split("=", 1)[1]).absolute()
    if os.environ.get("BOX_STATE_DIR"):
        return Path(os.environ["BOX_STATE_DIR"]).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/box")
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "box"


def is_serving(sock):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        try:
            s.connect(str(sock))
        except OSError:
            return False
    return True


def wait_ready(boxd, sock):
    """Returns once the socket accepts; False when boxd ended or the time is up."""
    deadline = time.monotonic() + READY_TIMEOUT
    while boxd.poll() is None:
        if is_serving(sock):
            return True
        if time.monotonic() > deadline:
            print(f"run: boxd did not open {sock} within {READY_TIMEOUT:.0f} s", file=sys.stderr)
            return False
        time.sleep(0.005)
    return False


def first_command(host):
    command = [str(BUILD / "box"), "run", "--", *FIRST_COMMAND]
    print(f"\n$ box run -- sh -c '{FIRST_COMMAND[-1]}'", flush=True)
    return subprocess.run(command, env={**os.environ, "BOX_HOST": host}).returncode


def print_tour(host):
    print(
        f"""
boxd is serving on {host}. In another terminal:

  export BOX_HOST={host}
  alias box={BUILD / "box"}
  box run -- python3 -c 'print(6 * 7)'           # thrown away when it ends
  box run --session work -- sh -c 'echo kept > note'
  box exec work -- cat note                      # the same files
  box ps
  box rm work
  box doctor                                     # what this host can enforce
""",
        flush=True,
    )


def stop(boxd):
    if boxd.poll() is None:
        boxd.send_signal(signal.SIGTERM)
    return boxd.wait()


def serve(sock, host, args):
    boxd = subprocess.Popen([str(BUILD / "boxd"), "--state-dir", str(sock.parent), *args])
    asked_to_stop = False

    def pass_on(signo, _frame):
        nonlocal asked_to_stop
        asked_to_stop = True
        if boxd.poll() is None:
            boxd.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGINT, pass_on)
    signal.signal(signal.SIGTERM, pass_on)

    if not wait_ready(boxd, sock):
        status = stop(boxd)
        return 0 if asked_to_stop else status or 1
    status = first_command(host)
    if status != 0 and not asked_to_stop:
        print(f"run: the first command failed with status {status}", file=sys.stderr)
        stop(boxd)
        return status
    if not asked_to_stop:
        print_tour(host)
        print("Ctrl-C stops boxd.", flush=True)
    status = boxd.wait()
    return 0 if asked_to_stop and status in (0, -signal.SIGTERM, -signal.SIGINT) else status


def main():
    sock = state_dir() / "boxd.sock"
    host = f"unix://{sock}"
    if is_serving(sock):
        print(f"boxd is serving on {host} already; using that one.")
        status = first_command(host)
        if status == 0:
            print_tour(host)
        return status
    return serve(sock, host, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
