# SPDX-License-Identifier: Apache-2.0
"""boxd as a service manager starts it: listening sockets from descriptor 3 on, NOTIFY_SOCKET, WATCHDOG_USEC."""

import os
import pathlib
import resource
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from boxlib import Boxd
from hostlib import SCALE

# Between fork and exec: LISTEN_PID is that of the program itself.
LAUNCHER = """
import fcntl, os, sys
pid, fds, command = sys.argv[1], [int(n) for n in sys.argv[2].split(",") if n], sys.argv[3:]
high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 40) for fd in fds]
for n, fd in enumerate(high):
    os.dup2(fd, 3 + n)
os.closerange(3 + len(fds), 200)
if fds:
    os.environ.update(LISTEN_FDS=str(len(fds)), LISTEN_PID=pid or str(os.getpid()))
os.execv(command[0], command)
"""


class Manager:
    """The service manager's side: sockets that outlive the service, and what it hears."""

    def __init__(self):
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="box-service-"))
        self.top.chmod(0o755)
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(self.top / "notify"))
        (self.top / "notify").chmod(0o777)
        self.sockets = []
        self.heard = []

    def listen_unix(self, name="boxd.sock"):
        s = socket.socket(socket.AF_UNIX)
        s.bind(str(self.top / name))
        s.listen(64)
        self.sockets.append(s)
        return self.top / name

    def listen_tcp(self, address="127.0.0.1"):
        s = socket.socket()
        s.bind((address, 0))
        s.listen(64)
        self.sockets.append(s)
        return s.getsockname()

    def hear(self, seconds):
        """One message, or None."""
        if not select.select([self.notify], [], [], seconds)[0]:
            return None
        self.heard.append(self.notify.recv(4096).decode())
        return self.heard[-1]

    def wait(self, want, seconds=60, process=None):
        """Until a message has that line; not longer than the process lives."""
        end = time.monotonic() + seconds * SCALE
        while time.monotonic() < end:
            message = self.hear(0.1)
            if message is not None and want in message.split("\n"):
                return message
            if message is None and process is not None and process.poll() is not None:
                break
        raise AssertionError(f"{want} was not heard, only {self.heard}")

    def silence(self):
        """Forgets what was said up to now."""
        while self.hear(0) is not None:
            pass
        self.heard.clear()

    def close(self):
        for s in [self.notify, *self.sockets]:
            s.close()
        shutil.rmtree(self.top, ignore_errors=True)


class Service(Boxd):
    """READY=1 is waited for, unless `ready` is False."""

    def __init__(self, manager, *args, pid="", names=None, ready=True, max_fds=None, **more):
        self.manager, self.pid_said, self.names, self.ready, self.max_fds = manager, pid, names, ready, max_fds
        super().__init__(*args, **more)

    def start(self):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("BOX_")}
        environment.update(self.env, BOX_LOG_FORMAT="json", NOTIFY_SOCKET=str(self.manager.top / "notify"))
        if self.names is not None:
            environment["LISTEN_FDNAMES"] = ":".join(self.names)
        command = [*self.prefix, str(self.program), "--state-dir", str(self.state)]
        if "--ws-control-port" not in self.args:
            command += ["--ws-control-port", "0"]
        fds = [s.fileno() for s in self.manager.sockets]

        def limit():
            if self.max_fds:
                resource.setrlimit(resource.RLIMIT_NOFILE, (self.max_fds, self.max_fds))

        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", LAUNCHER, self.pid_said, ",".join(map(str, fds)), *command, *self.args],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=fds, env=environment, preexec_fn=limit)
        if self.ready:
            self.manager.wait("READY=1", 120, self.process)
