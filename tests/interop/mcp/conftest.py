# SPDX-License-Identifier: Apache-2.0
"""Real MCP servers in boxes, driven by the official clients. Runs in the environment of tools/mcp-interop.sh."""

import pathlib
import shutil
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "lib"))

from boxlib import BUILD, Boxd  # noqa: E402
from hostlib import mount_dir  # noqa: E402

HERE = BUILD / "interop" / "mcp"


@pytest.fixture(scope="session")
def daemon():
    """The packages lie in the build directory, wherever that is."""
    d = Boxd(env={"BOX_ALLOWED_MOUNT_ROOTS": f"{HERE},/var/tmp"})
    yield d
    d.close()


@pytest.fixture
def files():
    top = mount_dir("box-mcp-interop-")
    (top / "hello.txt").write_text("hello from the host\n")
    yield top
    shutil.rmtree(top, ignore_errors=True)
