# SPDX-License-Identifier: Apache-2.0
"""PID 1 of a session is out of reach of what runs in it, also where both have one id; and where it is not, its session
ends and everybody is answered."""

import shutil

import pytest
from boxlib import BUILD

pytestmark = pytest.mark.rootless


@pytest.fixture
def unruly(session, tmp_path):
    """A session that has the program."""
    tmp_path.chmod(0o755)
    shutil.copy(BUILD / "tests/escape/unruly", tmp_path / "unruly")
    return session(extra_mounts=[{"host_path": str(tmp_path), "mount_path": "/probe", "mode": "ro"}])


def test_nothing_can_be_done_to_pid_1(api, unruly):
    r = api.x(unruly, "/probe/unruly", "1")
    assert r["outcome"] == "exited", r
    did = dict(line.split() for line in r["stdout"].splitlines())
    # Of /proc a program sees itself alone.
    assert did.pop("mem") in ("EACCES", "ENOENT"), r
    assert len(did) == 10 and set(did.values()) == {"EPERM"}, r
    # It starts programs as before, with all the descriptors that takes.
    for _ in range(3):
        assert api.sh(unruly, "echo fine; echo fine >&2")["stdout"] == "fine\n"
