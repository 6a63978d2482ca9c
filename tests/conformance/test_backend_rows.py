# SPDX-License-Identifier: Apache-2.0
"""Rows about what a backend is to those above it, on every backend there is: I01, I08, I13, F06, F16, F24 and T58."""

import json
import os
import pathlib
import shutil
import tempfile

import pytest
from boxlib import Boxd
from lbwire import Rpc, RpcError, eventually, relay


@pytest.fixture
def top():
    """Anybody may make directories in it: with an engine boxd is nobody in particular."""
    made = pathlib.Path(tempfile.mkdtemp(prefix="box-rows-"))
    made.chmod(0o777)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def own(backend):
    """A boxd of the test's own: what box_init says is the whole daemon's."""
    daemon = Boxd("--backend", backend.name, env=backend.env)
    try:
        with Rpc(daemon.sock, timeout=90) as rpc:
            rpc.address = daemon.sock
            yield rpc
            rpc.call("box_shutdown", ctx=None)
    finally:
        daemon.close()


def directory(top, name):
    made = top / name
    made.mkdir()
    made.chmod(0o777)
    os.chown(made, 4321, 4321)
    return made


def test_row_I01_a_backend_has_a_name_is_available_starts_runs_and_stops(own, backend):
    """`fake` too, which has neither images nor processes that outlive it: the rest of the interface is optional."""
    name = backend.daemon.client().call("GET", "/readyz")["backend"]["name"]
    assert name == backend.name
    assert own.call("box_get_backend_info") == {"name": name, "available": True}
    made = own.call("box_create_session", {"session_id": "s", "cmd": "", "image": backend.image})
    assert (made["session_id"], made["backend_name"]) == ("s", name) and made["backend_session_id"]
    for n in range(2):
        r = own.exec("s", f"echo {n}; exit {n}", image=backend.image, workdir="/tmp")
        assert (r["backend_name"], r["status"], r["exit_code"], r["stdout"]) == (name, "completed", n, str(n))
    assert [s["session_id"] for s in own.call("box_get_sessions")["sessions"]] == ["s"]
    assert own.call("box_delete_session", {"session_id": "s"}) == {"deleted": "s"}
    assert own.call("box_get_sessions") == {"sessions": []}


@pytest.mark.real
def test_row_I08_without_a_host_path_a_command_may_work_anywhere(own, backend, top):
    assert own.exec("s", "pwd", image=backend.image, workdir="/tmp")["stdout"] == "/tmp"
    with pytest.raises(RpcError, match="workdir must stay under mount_path when host_path is provided"):
        own.exec("t", "pwd", image=backend.image, workdir="/tmp", host_path=str(top))


@pytest.mark.real
def test_row_I13_a_process_has_three_pipes(own, backend):
    own.call("box_create_session", {"session_id": "s", "cmd": "", "image": backend.image})
    script = 'read line; echo "out $line"; echo "err $line" >&2; read -r rest; exit 5'
    own.call("box_start_managed_process",
             {"session_id": "s", "spec": {"process_id": "p", "command": "sh", "args": ["-c", script]}})

    def info():
        return own.call("box_get_managed_process", {"session_id": "s", "process_id": "p"})

    with relay(own.address, "s", "p", timeout=90) as wire:
        wire.send("hello")
        assert wire.recv() == "out hello"
        assert eventually(lambda: info()["stderr_preview"] == "err hello", 60)
        assert info()["status"] == "running"
        wire.send("")
    ended = eventually(lambda: info()["status"] == "exited" and info(), 60)
    assert ended and ended["exit_code"] == 5


SERVER = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"said": line.strip(), "python": sys.version_info[0], "file": __file__}), flush=True)
"""


@pytest.mark.real
def test_row_F06_python_stands_in_for_the_interpreter_of_a_venv(own, backend, top):
    """As LangBot sends an MCP server of a project with a venv: its interpreter, a link that leads out of the project, has
    become `python`, and its paths those inside."""
    if backend.engine:
        pytest.skip("which python an image has is the image's own; that of the tests has none")
    project = directory(top, "project")
    (project / ".venv/bin").mkdir(parents=True)
    (project / ".venv/bin/python").symlink_to("/opt/nowhere/bin/python3")
    (project / "server.py").write_text(SERVER)
    spec = {"session_id": "mcp-shared", "cmd": "", "image": backend.image, "host_path": str(project), "host_path_mode": "ro",
            "workdir": "/workspace", "persistent": True}
    own.call("box_create_session", spec)
    own.call("box_start_managed_process", {"session_id": "mcp-shared", "spec": {
        "process_id": "p", "command": "python", "args": ["/workspace/server.py"], "env": {}, "cwd": "/workspace"}})
    with relay(own.address, "mcp-shared", "p", timeout=90) as wire:
        wire.send("hello")
        assert json.loads(wire.recv()) == {"said": "hello", "python": 3, "file": "/workspace/server.py"}


@pytest.mark.real
def test_row_F16_mode_none_mounts_nothing_at_all(own, backend, top):
    """Neither what is there is seen, nor does anything that is written get there, on any path."""
    shared = directory(top, "shared")
    (shared / "secret").write_text("secret\n")
    (shared / "secret").chmod(0o644)
    look = "cat /workspace/secret /data/secret; grep -c box-rows- /proc/self/mountinfo; " \
           "mkdir -p /workspace && echo x > /workspace/new; echo done"
    extra = [{"host_path": str(shared), "mount_path": "/data", "mode": "none"}]
    r = own.exec("none", look, image=backend.image, workdir="/", host_path=str(shared), host_path_mode="none",
                 extra_mounts=extra)
    assert r["stdout"].split() == ["0", "done"], r
    assert [p.name for p in shared.iterdir()] == ["secret"]
    # What the same request is with another mode.
    r = own.exec("rw", look, image=backend.image, workdir="/workspace", host_path=str(shared), host_path_mode="rw")
    assert r["stdout"].split()[0] == "secret" and (shared / "new").read_text() == "x\n"


@pytest.mark.real
def test_row_F24_a_mount_that_its_host_answers_for_is_not_checked_again(own, backend, top):
    """LangBot asks its own roots, or does not for what an administrator wrote into the settings of an MCP server
    (skip_host_mount_validation). What it then sends is held to boxd's own walls and not to LangBot's roots."""
    root, server = directory(top, "root"), directory(top, "server")
    (server / "who").write_text("server\n")
    (server / "who").chmod(0o644)
    own.call("box_init", {"local": {"host_root": str(root), "allowed_mount_roots": [str(root)]}}, ctx=None)
    spec = {"image": backend.image, "host_path": str(server), "host_path_mode": "ro"}
    assert own.call("box_create_session", {"session_id": "mcp", "cmd": "", **spec})["host_path"] == str(server)
    assert own.exec("mcp", "cat who", workdir="/workspace", **spec)["stdout"] == "server"
    for blocked in ("/etc", "/proc/self", "/run"):
        with pytest.raises(RpcError, match="^BoxValidationError: .*blocked for security"):
            own.call("box_create_session", {"session_id": "b", "cmd": "", "image": backend.image, "host_path": blocked})


@pytest.mark.real
def test_row_T58_the_default_workspace_is_made_although_nothing_was_there(own, backend, top):
    """From the service's settings to a file on the host. Neither the root nor the workspace is there beforehand."""
    root = top / "made" / "box"
    own.call("box_init", {"profile": "default", "local": {
        "host_root": str(root), "allowed_mount_roots": [str(top)], "default_workspace": ""}}, ctx=None)
    workspace = root / "default"
    assert workspace.is_dir()
    for where in (workspace, root / "tenants" / "a" / "b"):  # the second one LangBot expects of an acquire
        r = own.exec("42", "echo service-path | tee result", image=backend.image, workdir="/workspace",
                     host_path=str(where))
        assert (r["session_id"], r["status"], r["exit_code"], r["stdout"]) == ("42", "completed", 0, "service-path")
        assert (where / "result").read_text() == "service-path\n"
        own.call("box_delete_session", {"session_id": "42"})
