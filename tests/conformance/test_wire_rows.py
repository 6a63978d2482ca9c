# SPDX-License-Identifier: Apache-2.0
"""Rows T53 to T64 over the LangBot wire, on every backend that runs programs."""

import itertools
import os
import pathlib
import shutil
import tempfile

import pytest
from boxlib import Boxd
from lbwire import Rpc, RpcError, context, eventually, namespace, physical, relay_headers, relay_path, WebSocket

pytestmark = pytest.mark.real
_workspaces = itertools.count()


class Place:
    """A workspace of its own on the shared daemon, as LangBot sees it."""

    def __init__(self, backend):
        self.backend, self.engine = backend, backend.engine
        self.workspace = f"row{os.getpid()}-{next(_workspaces)}"
        self.rpc = Rpc(backend.daemon.sock, ctx=context(self.workspace), timeout=90)

    def call(self, action, data=None, **more):
        return self.rpc.call(action, data, **more)

    def exec(self, cmd, sid="s", **spec):
        return self.rpc.exec(sid, cmd, **{"image": self.backend.image, "workdir": "/tmp", **spec})

    def new(self, sid="s", **spec):
        return self.call("box_create_session", {"session_id": sid, "cmd": "", "image": self.backend.image, **spec})

    def sessions(self):
        return [s["session_id"] for s in self.call("box_get_sessions")["sessions"]]

    def run(self, *argv, process_id="default", **spec):
        return self.call("box_start_managed_process", {"session_id": "s", "spec": {
            "process_id": process_id, "command": argv[0], "args": list(argv[1:]), **spec}})

    def process(self, process_id="default"):
        return self.call("box_get_managed_process", {"session_id": "s", "process_id": process_id})

    def relay(self):
        return WebSocket(self.backend.daemon.sock, relay_path("s", workspace=self.workspace),
                         relay_headers(workspace=self.workspace))

    def containers(self):
        """Of this workspace's sessions; none on a backend without containers."""
        whose = namespace(workspace=self.workspace)
        return [c for c in self.engine.containers() if c["Labels"].get("langbot.session_id", "").startswith(whose)]

    def close(self):
        for sid in self.sessions():
            self.call("box_delete_session", {"session_id": sid})
        self.rpc.ws.sock.close()


@pytest.fixture
def workspace():
    made = pathlib.Path(tempfile.mkdtemp(prefix="box-workspace-"))
    os.chown(made, 4321, 4321)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def place(backend):
    made = Place(backend)
    yield made
    made.close()


def test_row_T53_a_simple_command(place):
    r = place.exec("echo hello from box")
    assert (r["status"], r["exit_code"], r["ok"] if "ok" in r else True) == ("completed", 0, True)
    assert "hello from box" in r["stdout"] and r["backend_name"] == place.backend.name
    r = place.exec("echo hi; echo err >&2; exit 3")
    assert (r["status"], r["exit_code"], r["stdout"], r["stderr"]) == ("completed", 3, "hi", "err")


def test_row_T54_files_stay_from_one_command_to_the_next(place):
    place.exec("echo kept > /tmp/f")
    assert place.exec("cat /tmp/f")["stdout"] == "kept"


def test_row_T55_a_time_out_ends_the_command_and_the_session(place):
    r = place.exec("echo part; sleep 120", timeout_sec=1)
    assert (r["status"], r["exit_code"], r["stdout"]) == ("timed_out", None, "part")
    assert r["stderr"] == "Command timed out after 1 seconds."
    assert place.sessions() == [], "gone before the answer"
    assert not place.engine or place.containers() == []
    assert place.exec("echo anew; ls /tmp")["stdout"] == "anew"


def test_row_T56_without_a_network_there_is_no_network(place):
    assert place.exec("wget -T 3 -O - http://1.1.1.1/", timeout_sec=30)["exit_code"] != 0
    assert place.exec("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")["stdout"] == "lo"


@pytest.mark.engine
def test_row_T57_no_engine_is_an_error_that_the_client_understands(backend):
    daemon = Boxd("--backend", backend.name, env={"BOX_ENGINE_SOCKET": str(backend.engine.work / "nobody.sock")})
    try:
        with Rpc(daemon.sock) as rpc:
            for _ in range(2):
                with pytest.raises(RpcError, match="^BoxBackendUnavailableError: ") as caught:
                    rpc.exec("s", "true", image=backend.image)
                assert caught.value.code == "backend_unavailable"
            assert rpc.call("box_get_sessions")["sessions"] == []
    finally:
        daemon.close()


def test_row_T58_a_command_in_the_workspace_of_the_service(workspace, place):
    """The service's side, which makes "42" of a query without a launcher, is in tests/unit/test_policy_exec.c."""
    r = place.exec("echo from the service | tee result.txt", sid="42", workdir="/workspace", host_path=str(workspace))
    assert (r["status"], r["exit_code"], r["stdout"]) == ("completed", 0, "from the service")
    assert r["session_id"] == "42" and (workspace / "result.txt").read_text() == "from the service\n"
    [session] = place.call("box_get_sessions")["sessions"]
    assert session["backend_name"] == place.backend.name
    if place.engine:
        assert session["backend_session_id"].startswith("langbot-box-ws-")
        assert place.engine.inspect(session["backend_session_id"])["State"]["Running"]


def test_row_T59_a_process_starts_and_can_be_asked_about(place):
    place.new()
    info = place.run("cat", "-u", env={"Z": "secret", "A": "1"}, cwd="/tmp")
    expected = {"session_id": "s", "process_id": "default", "status": "running", "command": "cat", "args": ["-u"],
                "cwd": "/tmp", "env_keys": ["A", "Z"], "attached": False, "exited_at": None, "exit_code": None,
                "stderr_preview": "", "started_at": info["started_at"]}
    assert info == expected and place.process() == expected


def test_row_T60_lines_go_in_and_come_out(place):
    place.new()
    place.run("cat")
    with place.relay() as ws:
        assert ws.headers["sec-websocket-protocol"] == "mcp"
        for line in ("hello from test", "x" * 100000, "ünïcode"):
            ws.send(line)
            assert ws.recv() == line
        assert place.process()["attached"] is True
    assert eventually(lambda: place.process()["attached"] is False)


def test_row_T61_deleting_a_session_ends_all_of_it(place):
    place.new()
    place.run("sleep", "600")
    assert place.call("box_delete_session", {"session_id": "s"}) == {"deleted": "s"}
    with pytest.raises(RpcError) as caught:
        place.call("box_get_session", {"session_id": "s"})
    name = physical("s", place.workspace)
    assert caught.value.message == f"BoxSessionNotFoundError: session {name} not found"
    assert not place.engine or place.containers() == []


def test_row_T62_a_session_shows_its_processes(place):
    place.new()
    before = place.call("box_get_session", {"session_id": "s"})
    assert (before["session_id"], before["image"]) == ("s", place.backend.image) and "managed_process" not in before
    place.run("sleep", "600", process_id="other")
    place.run("sleep", "600")
    after = place.call("box_get_session", {"session_id": "s"})
    assert after["managed_process"]["status"] == "running"
    assert set(after["managed_processes"]) == {"other", "default"}


def test_row_T63_the_end_of_a_process_is_noticed(place):
    place.new()
    for argv, code in ((("true",), 0), (("sh", "-c", "kill -9 $$"), -9), (("sh", "-c", "exit 7"), 7),
                       (("no-such-program",), 127)):
        place.run(*argv)
        info = eventually(lambda: place.process()["status"] == "exited" and place.process(), 20)
        assert info and info["exit_code"] == code and info["exited_at"] >= info["started_at"], argv
    place.run("sh", "-c", "echo said >&2; exit 1")
    assert eventually(lambda: place.process()["stderr_preview"] == "said", 20)


def test_row_T64_what_is_ours_is_never_cleaned_up(place):
    place.new()
    place.run("sleep", "600")
    for _ in range(3):
        place.call("box_status")
        place.call("box_init", {}, ctx=None)
    assert place.process()["status"] == "running"
    assert place.exec("echo still", workdir="/workspace")["stdout"] == "still"
    assert not place.engine or len(place.containers()) == 1


def test_a_host_root_of_roots_own_is_used_as_LangBot_uses_it(backend):
    """LangBot as root: it names a directory that only root can enter, has the workspace made there, and writes
    attachments that only root can read."""
    if os.geteuid() != 0:
        pytest.skip("needs root, whose directory it is")
    top = pathlib.Path(tempfile.mkdtemp(prefix="box-root-"))
    daemon = Boxd("--backend", backend.name, env=backend.env)
    try:
        with Rpc(daemon.sock) as rpc:
            rpc.call("box_init", {"local": {"host_root": str(top / "box"), "default_workspace": "default"}}, ctx=None)
            made = top / "box" / "default"
            eventually(made.is_dir)
            assert made.stat().st_uid == 0
            (made / "attachment").write_text("attached\n")
            (made / "attachment").chmod(0o600)
            r = rpc.exec("s", "cat attachment; echo result > out", image=backend.image, workdir="/workspace",
                         host_path=str(made))
            assert (r["exit_code"], r["stdout"]) == (0, "attached"), r
            assert (made / "out").read_text() == "result\n" and (made / "out").stat().st_uid == 0
            rpc.call("box_delete_session", {"session_id": "s"})
    finally:
        daemon.close()
        shutil.rmtree(top)


def test_very_many_skills_of_roots_own(place):
    """LangBot mounts every skill that is visible, each as a mount of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root, whose directories they are")
    if place.backend.name == "runsc":
        pytest.skip("this gVisor does not start with so many mounts")
    top = pathlib.Path(tempfile.mkdtemp(prefix="box-skills-"))
    try:
        mounts = []
        for i in range(256):
            (top / f"skills/skill-{i}").mkdir(parents=True, mode=0o700)
            (top / f"work/.skills/skill-{i}").mkdir(parents=True)
            mounts.append({"host_path": f"{top}/skills/skill-{i}", "mode": "rw",
                           "mount_path": f"/workspace/.skills/skill-{i}"})
        r = place.exec("ls .skills | wc -l; touch .skills/skill-255/made", workdir="/workspace", extra_mounts=mounts,
                       host_path=f"{top}/work")
        assert r["exit_code"] == 0 and r["stdout"].strip() == "256", r
        assert (top / "skills/skill-255/made").stat().st_uid == 0
    finally:
        shutil.rmtree(top)
