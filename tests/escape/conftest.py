# SPDX-License-Identifier: Apache-2.0
import pathlib
import shutil
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import escapelib  # noqa: E402
from boxlib import BUILD  # noqa: E402


def make_host_dir(prefix):
    path = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=escapelib.mount_base()))
    path.chmod(0o755)
    return path


@pytest.fixture
def host_dir():
    """An empty directory of the host that can be mounted."""
    path = make_host_dir("box-host-")
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def probe_dir():
    """A directory of the host with the probe in it."""
    path = make_host_dir("box-probe-")
    shutil.copy(BUILD / "box-attack", path / "probe")
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def probe_mount(probe_dir):
    return {"host_path": str(probe_dir), "mount_path": "/probe", "mode": "ro"}


@pytest.fixture
def psession(session, probe_mount):
    """Like session, with the probe at /probe."""
    def make(**spec):
        return session(extra_mounts=[probe_mount, *spec.pop("extra_mounts", [])], **spec)
    return make


@pytest.fixture
def psid(psession):
    return psession()


@pytest.fixture(scope="session")
def probed(boxd_shared, probe_mount):
    """One run of everything the probe has, in a session of its own."""
    client = boxd_shared.client(timeout=1200)
    client.new("probed", extra_mounts=[probe_mount])
    report = escapelib.run_probe(client, "probed", "all", f"--root-prefix={probe_mount['host_path']}")
    client.rm("probed")
    client.close()
    return report


@pytest.fixture
def long_api(boxd_shared):
    """A client that waits longer than the slowest machine takes."""
    client = boxd_shared.client(timeout=1800)
    yield client
    client.close()
