# SPDX-License-Identifier: Apache-2.0
"""Deployments of deploy/langbot, each with the real LangBot in a container and boxd beside it.

All of it is in a network of its own with an engine of its own: nothing of the host is in the way, or is touched. Runs on
the Python of an environment that has langbot in it, which is the application that the containers run, too."""

import ctypes
import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))

import enginelib  # noqa: E402
import images  # noqa: E402
from compose import GATEWAY  # noqa: E402

CLONE_NEWNET = 0x40000000


@pytest.fixture(scope="session")
def network():
    """One that leads nowhere, and has what a host has: loopback, a way out, an address for containers to find it at."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        pytest.fail(f"no network namespace: {os.strerror(ctypes.get_errno())}")
    for command in ("link set lo up", "link add out type veth peer name far", "addr add 11.9.0.2/24 dev out",
                    f"addr add {GATEWAY}/32 dev lo", "link set out up", "link set far up", "route add default via 11.9.0.1"):
        subprocess.run(["ip", *command.split()], check=True)


@pytest.fixture(scope="session")
def engine(network):
    why = enginelib.missing("docker")
    if why is not None:
        pytest.skip(why)
    made = enginelib.Engine("docker", ["--host-gateway-ip", GATEWAY])
    try:
        images.boxd_image(made, "boxd:latest")
        images.langbot_image(made, "rockchin/langbot:latest")
        yield made
    finally:
        made.close()
