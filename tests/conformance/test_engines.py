# SPDX-License-Identifier: Apache-2.0
"""Docker and Podman: table L of the test catalogue, and what containers look like from outside (F18, F20)."""

import contextlib
import hashlib
import json
import pathlib
import re
import signal
import threading
import time

import enginelib
import pytest
from boxlib import ApiError, Boxd
from wsexec import stream

pytestmark = [pytest.mark.real, pytest.mark.engine]


@pytest.fixture
def own(backend):
    """Daemons of the test's own on the shared engine: own() -> Boxd."""
    made = []

    def start(*args, **kwargs):
        env = {**backend.env, **kwargs.pop("env", {})}
        made.append(Boxd("--backend", backend.name, *args, env=env, **kwargs))
        return made[-1]

    yield start
    for daemon in made:
        daemon.close()
    backend.engine.remove_all()


def instance(daemon):
    return (daemon.state / "engine" / "instance-id").read_text().strip()


# L01, L02: what is created.


def test_check_L01_every_wall_that_an_engine_has(box):
    sid = box.new(memory_mb=100, cpus=0.5, pids_limit=60)
    seen = box.container(sid)
    host, config = seen["HostConfig"], seen["Config"]
    caps = host["CapDrop"]
    if box.name == "docker":
        assert caps == ["ALL"]
    else:  # Podman tells each that is gone
        assert len(caps) >= 10 and not host["CapAdd"]
    assert any(o.startswith("no-new-privileges") for o in host["SecurityOpt"])
    assert not host["Privileged"] and host["ReadonlyRootfs"]
    assert config["User"].split(":")[0] not in ("", "0", "root")
    assert host["Memory"] == host["MemorySwap"] == 100 << 20
    assert host["NanoCpus"] == 500000000 and 60 <= host["PidsLimit"] <= 80
    assert host["NetworkMode"] == "none" and host["IpcMode"] in ("private", "shareable")
    assert host["LogConfig"]["Type"] == "none" and host["RestartPolicy"]["Name"] in ("", "no")
    assert not host.get("Binds") or box.name == "podman"
    assert not host.get("PublishAllPorts") and not host.get("Devices")
    if box.name == "docker":
        assert "/proc/kallsyms" in host["MaskedPaths"]
        assert host["Tmpfs"]["/tmp"].endswith("size=64m")
        profile = json.loads(next(o for o in host["SecurityOpt"] if o.startswith("seccomp="))[8:])
        assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
        assert not any("mount" in rule["names"] for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW")
        for mount in host["Mounts"]:
            assert mount["Type"] == "bind" and mount["BindOptions"]["Propagation"] == "rprivate"
    assert not any("docker.sock" in m["Source"] or "podman.sock" in m["Source"] for m in seen["Mounts"])
    # The init that reaps is ours: orphans of whatever descent leave nothing behind.
    assert box.sh(sid, "cat /proc/1/comm")["stdout"] == "box-guest\n"
    box.sh(sid, "for i in 1 2 3; do (setsid sh -c 'sleep 0.01 &' &); done; sleep 0.3")
    assert "Z" not in box.sh(sid, "cat /proc/[0-9]*/stat | cut -d')' -f2 | cut -c2")["stdout"]


def test_the_name_and_the_labels_are_those_upstream_uses(box):
    sid = box.new(memory_mb=100, cpus=0.5, pids_limit=60)
    seen = box.container(sid)
    assert re.fullmatch(rf"/?langbot-box-{sid}-[0-9a-f]{{8}}", seen["Name"])
    labels = seen["Config"]["Labels"]
    assert labels["langbot.box"] == "true" and labels["langbot.session_id"] == sid
    assert labels["langbot.box.instance_id"] == instance(box.backend.daemon)
    made_from = {"image": enginelib.IMAGE, "network": "off", "host_path": None, "host_path_mode": "rw", "cpus": 0.5,
                 "memory_mb": 100, "pids_limit": 60, "read_only_rootfs": True}
    digest = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]
    assert labels["langbot.box.config_hash"] == digest


def test_row_F20_nothing_is_swept_while_it_is_in_use(own, backend):
    """As often as a daemon starts: what it finds of its own it takes over, and nothing else goes."""
    daemon = own()
    daemon.client().new("kept", image=enginelib.IMAGE)
    name = daemon.client().receipt("kept")["container_id"]
    # Also what a command has left in the background, with its output still open.
    left = daemon.client().sh("kept", "sleep 1000 & echo $!")["stdout"].strip()
    for _ in range(2):
        daemon.stop(signal.SIGKILL)
        daemon.start()
        assert daemon.client().sh("kept", f"kill -0 {left} && echo kept")["stdout"] == "kept\n"
    assert [c["Id"] for c in backend.engine.containers(**{"langbot.box.instance_id": instance(daemon)})] == [name]


def test_no_secret_is_where_others_can_see_it(box):
    sid = box.new(env={"TOKEN": "s3cr3t-of-the-session"})
    assert box.sh(sid, "echo $TOKEN$OTHER", env={"OTHER": "s3cr3t-of-the-command"})["stdout"].count("s3cr3t") == 2
    assert "s3cr3t" not in json.dumps(box.container(sid))
    for cmdline in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            assert b"s3cr3t" not in cmdline.read_bytes(), cmdline


def test_each_session_has_a_host_id_of_its_own(box):
    uids = {box.sh(box.new(), "id -u")["stdout"].strip() for _ in range(3)}
    assert len(uids) == 3 and all(int(uid) >= 2000000000 for uid in uids)


# L03: names of images.


@pytest.mark.parametrize("image", [
    "--privileged", "-v/:/h", "a;b", "a b", "A/b", "x@sha256:123", "x@md5:" + "a" * 32, "x:" + "t" * 200, "a" * 4096,
    "../../etc", "a//b", "/a", "a/", "a:b:c", "http://x/y", "x\nFROM y", "", "-x", "x?y=1", "x#y", "x%2fy", "x/../y"])
def test_check_L03_only_a_reference_is_a_reference(box, image):
    with pytest.raises(ApiError) as caught:
        box.new(image=image)
    assert caught.value.status in (400, 422), caught.value


def test_an_image_that_is_not_there_is_a_clear_error(box):
    with pytest.raises(ApiError, match="has no image 'nowhere.invalid/x:1'") as caught:
        box.new(image="nowhere.invalid/x:1")
    assert caught.value.status == 404


def test_check_L09_a_pull_that_cannot_work_ends_with_the_reason(own):
    api = own(env={"BOX_IMAGE_PULL": "missing"}).client()
    begin = time.monotonic()
    with pytest.raises(ApiError) as caught:
        api.new("p", image="127.0.0.1:1/x:1")
    assert caught.value.code in ("backend", "not_found") and "127.0.0.1:1" in caught.value.detail
    assert time.monotonic() - begin < 60


# L04: the tree, when boxd's own word is all there is.


def test_check_L04_a_program_has_nobody_above_it_but_the_first_process(box):
    sid = box.new()
    r = box.sh(sid, "setsid sleep 600 & sleep 600 & echo $PPID; kill -9 $PPID; echo $?; exec sleep 600", timeout_sec=2)
    assert r["outcome"] == "timed_out"
    assert r["stdout"].split() == ["1", "1"], r
    assert "sleep" not in box.sh(sid, "cat /proc/[0-9]*/comm")["stdout"].split()


def test_the_supervisor_is_not_for_programs_to_end(box, sid):
    """It is the first process there, which nobody inside can kill, nor stop."""
    box.sh(sid, "for s in KILL STOP TERM SEGV; do kill -$s $(grep -l box-guest /proc/[0-9]*/comm | cut -d/ -f3); done")
    assert box.sh(sid, "echo still")["stdout"] == "still\n"


# L05 to L08: engines and containers that go away, come back, or lie.


def test_check_L08_a_container_killed_behind_our_back_is_a_lost_session(box, sid):
    results = []
    with stream(box.backend.daemon, sid, cmd="echo up; sleep 1000") as s:
        s.started()
        s.until(b"up\n")
        box.engine.api("POST", f"/v1.40/containers/{box.receipt(sid)['container_id']}/kill")
        results.append(s.finish())
    assert results[0]["outcome"] == "session_lost"
    deadline = time.monotonic() + 20
    while any(s["session_id"] == sid for s in box.ps()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    box.api.new(sid, image=enginelib.IMAGE)
    assert box.sh(sid, "echo new")["stdout"] == "new\n"


def test_check_L08_a_container_removed_or_renamed_behind_our_back(box):
    gone, renamed = box.new(), box.new()
    box.engine.api("DELETE", f"/v1.40/containers/{box.receipt(gone)['container_id']}?force=1")
    box.engine.api("POST", f"/v1.40/containers/{box.receipt(renamed)['container_id']}/rename?name=other-{renamed}")
    assert box.sh(renamed, "echo fine")["stdout"] == "fine\n"
    box.rm(renamed)
    deadline = time.monotonic() + 20
    while any(s["session_id"] == gone for s in box.ps()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not [c for c in box.engine.containers() if c["Labels"].get("langbot.session_id") in (gone, renamed)]


def test_check_L08_a_frozen_container_times_out_all_the_same(box):
    sid = box.new()
    results = []

    def run():
        client = box.backend.daemon.client()
        with contextlib.suppress(ApiError):
            results.append(client.sh(sid, "echo up > /tmp/up; sleep 1000", timeout_sec=2))
        client.close()

    thread = threading.Thread(target=run)
    thread.start()
    box.sh(sid, "until [ -e /tmp/up ]; do sleep 0.02; done", timeout_sec=20)
    box.engine.api("POST", f"/v1.40/containers/{box.receipt(sid)['container_id']}/pause")
    thread.join(60)
    assert results and results[0]["outcome"] == "timed_out"


def test_a_process_that_its_supervisor_does_not_end_is_an_error_and_its_container_goes(box):
    sid = box.new()
    box.call("POST", f"/v1/sessions/{sid}/processes", {"command": "sleep", "args": ["1000"], "process_id": "p"})
    container = box.receipt(sid)["container_id"]
    box.engine.api("POST", f"/v1.40/containers/{container}/pause")
    with pytest.raises(ApiError, match="does not end") as caught:
        box.call("DELETE", f"/v1/sessions/{sid}/processes/p")
    assert (caught.value.status, caught.value.code) == (502, "backend")
    deadline = time.monotonic() + 60
    while any(s["session_id"] == sid for s in box.ps()):
        assert time.monotonic() < deadline, "the session goes with it"
        time.sleep(0.05)
    with pytest.raises(enginelib.EngineError):
        box.engine.inspect(container)


def test_row_F20_check_L07_only_what_is_ours_and_dead_is_swept(own, backend):
    engine = backend.engine
    alive, dead = own(), own()
    alive.client().new("mine", image=enginelib.IMAGE)
    dead.client().new("mine", image=enginelib.IMAGE)
    engine.api("POST", "/v1.40/containers/create?name=foreign", {
        "Image": enginelib.IMAGE, "Cmd": ["sleep", "1000"], "Labels": {"langbot.box": "true"},
        "HostConfig": {"NetworkMode": "none"}})
    dead.stop(signal.SIGKILL)
    ours, others = instance(dead), instance(alive)
    assert ours != others
    # It comes back without its records, so it can adopt nothing: what is left is ended by the sweep at its start.
    for record in dead.state.glob("state.db*"):
        record.unlink()
    dead.start()
    deadline = time.monotonic() + 30
    while engine.containers(**{"langbot.box.instance_id": ours}):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert len(engine.containers(**{"langbot.box.instance_id": others})) == 1
    assert [c for c in engine.containers() if any("foreign" in n for n in c["Names"])]
    assert alive.client().sh("mine", "echo alive")["stdout"] == "alive\n"
