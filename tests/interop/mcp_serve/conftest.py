# SPDX-License-Identifier: Apache-2.0
"""boxd and `box mcp serve` as MCP servers, driven by the official clients and tools. Runs in the environment of
tools/mcp-interop.sh."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "lib"))

from boxlib import BUILD, Boxd  # noqa: E402
from policylib import free_port  # noqa: E402

CLIENTS = BUILD / "interop" / "mcp"


class Server(Boxd):
    def __init__(self):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        super().__init__("--ws-control-port", str(self.port))

    def command(self):
        """What a client is configured with, and its environment."""
        return [str(BUILD / "box"), "mcp", "serve"], {"BOX_HOST": f"unix://{self.sock}", "PATH": "/usr/bin:/bin"}


@pytest.fixture(scope="session")
def server():
    s = Server()
    yield s
    s.close()
