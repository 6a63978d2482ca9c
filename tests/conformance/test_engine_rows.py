# SPDX-License-Identifier: Apache-2.0
"""Rows of the feature table that only containers have: F19 (mode none) and F20 (orphans)."""

import pathlib
import shutil
import signal
import tempfile

import enginelib
import pytest
from boxlib import Boxd
from hostlib import until

pytestmark = [pytest.mark.real, pytest.mark.engine]
OURS = "/.box/"


def host_mounts(seen):
    return [m for m in seen["Mounts"] if m["Type"] == "bind" and not m["Destination"].startswith(OURS)]


def test_row_F19_mode_none_mounts_nothing(box):
    shared = pathlib.Path(tempfile.mkdtemp(prefix="box-mount-"))
    shared.chmod(0o755)
    (shared / "f").write_text("secret\n")
    try:
        extra = [{"host_path": str(shared), "mount_path": "/data", "mode": "none"}]
        none = box.new(host_path=str(shared), host_path_mode="none", workdir="/", extra_mounts=extra)
        assert host_mounts(box.container(none)) == []
        assert box.sh(none, "cat /workspace/f /data/f", cwd="/")["stdout"] == ""
        some = box.new(host_path=str(shared), host_path_mode="ro")  # what the same request is with another mode
        assert [m["Destination"] for m in host_mounts(box.container(some))] == ["/workspace"]
    finally:
        shutil.rmtree(shared)


def test_row_F20_orphans_of_this_instance_are_removed_and_no_others(backend):
    engine = backend.engine
    daemon = Boxd("--backend", backend.name, env=backend.env)
    try:
        daemon.client().new("kept", image=enginelib.IMAGE)
        instance = (daemon.state / "engine" / "instance-id").read_text().strip()
        daemon.stop(signal.SIGKILL)
        for n in range(3):
            for whose in (instance, "another"):
                name = f"langbot-box-orphan{n}-{whose}"
                engine.api("POST", f"/v1.40/containers/create?name={name}", {
                    "Image": enginelib.IMAGE, "Cmd": ["sleep", "1000"], "HostConfig": {"NetworkMode": "none"},
                    "StopSignal": "SIGKILL",  # as ours have it
                    "Labels": {"langbot.box": "true", "langbot.box.instance_id": whose, "langbot.box.name": name}})
                if n > 0:  # one that never ran is an orphan too
                    engine.api("POST", f"/v1.40/containers/{name}/start")
        daemon.start()
        until(lambda: len(engine.containers(**{"langbot.box.instance_id": instance})) == 1, what="the sweep")
        assert len(engine.containers(**{"langbot.box.instance_id": "another"})) == 3
        assert daemon.client().sh("kept", "echo kept")["stdout"] == "kept\n"
    finally:
        daemon.close()
        engine.remove_all()
