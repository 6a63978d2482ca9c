# SPDX-License-Identifier: Apache-2.0
"""The load generator, a child that measures one thing at a time."""

import os
import select
import signal
import subprocess


class LoadError(Exception):
    """A measured operation failed."""


class Load:
    def __init__(self, command, log, env=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=env,
                                        start_new_session=True)
        self._rest = b""

    @property
    def pid(self):
        return self.process.pid

    def _line(self, timeout):
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.process.stdout], [], [], timeout)
            data = os.read(self.process.stdout.fileno(), 65536) if ready else None
            if data is None:
                self.close()
                raise LoadError(f"no answer within {timeout} s")
            if data == b"":
                raise LoadError("the load generator ended")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace")

    def ask(self, *words, timeout=60):
        """Times in nanoseconds."""
        try:
            self.process.stdin.write(("\t".join(map(str, words)) + "\n").encode())
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise LoadError("the load generator is gone") from error
        status, _, rest = self._line(timeout).partition(" ")
        if status != "ok":
            raise LoadError(rest)
        return [int(word) for word in rest.split()]

    def close(self):
        """Ends it with what it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
