# SPDX-License-Identifier: Apache-2.0
"""`box mcp run` in front of servers that behave, and of servers that do not."""

import asyncio
import json
import os
import pathlib
import shutil
import signal
import subprocess
import zipfile

import pytest
import websockets
from boxlib import BUILD, Boxd, box
from hostlib import mount_dir, until
from mcplib import SERVER, Wrapper, write_server

PYTHON = "/usr/bin/python3"


@pytest.fixture
def project():
    """A directory that can be mounted, with the server in it."""
    top = mount_dir("box-mcp-")
    write_server(top)
    yield top
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture
def run(boxd_shared, project):
    """run(option..., argv=[...]) -> Wrapper, ended at the end."""
    started = []

    def start(*options, argv=None, sock=boxd_shared.sock, **kwargs):
        words = argv if argv is not None else [PYTHON, project / "server.py"]
        started.append(Wrapper(*options, "--", *words, sock=sock, **kwargs))
        return started[-1]

    yield start
    for wrapper in started:
        wrapper.end()


def servers(daemon):
    r = box("mcp", "ls", "--json", sock=daemon.sock)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


def session_of(daemon, wrapper):
    return next(s for s in servers(daemon) if s.get("pid") == wrapper.pid)["session_id"]


def nothing_left(daemon, session):
    until(lambda: all(s["session_id"] != session for s in daemon.client().ps()), what="the end of the session")


def kill_server(daemon, wrapper, pid):
    r = box("exec", session_of(daemon, wrapper), "--", "kill", "-9", str(pid), sock=daemon.sock)
    assert r.returncode == 0, r.stderr


# What it does.


def test_row_F01_a_server_is_boxed_without_a_word_about_boxes(run, project, boxd_shared):
    config = project / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"plain": {"command": PYTHON, "args": [str(project / "server.py")]}}}))
    w = Wrapper("--config", config, "--name", "plain", sock=boxd_shared.sock)
    with w:
        assert w.initialize()["result"]["serverInfo"]["name"] == "fake"
        facts = w.value("facts")
        assert (facts["cwd"], facts["home"]) == ("/workspace", "/home/box")
        assert w.close()[0] == 0


@pytest.fixture
def nowhere(tmp_path):
    return tmp_path / "nobody.sock"


def test_row_F02_without_a_box_it_is_refused(project, nowhere):
    with Wrapper("--", PYTHON, project / "server.py", sock=nowhere, delays=None) as w:
        w.ask("initialize")
        status, said = w.wait()
        assert status == 125 and "box_unavailable" in said and "--fallback host" in said


def test_row_F02_or_runs_on_the_host_where_that_was_asked_for(project, nowhere):
    words = ["--fallback", "host", "--env", "SEEN=by the host", "--", PYTHON, project / "server.py"]
    with Wrapper(*words, sock=nowhere) as w:
        w.initialize()
        facts = w.value("facts")
        assert facts["pid"] == w.pid and facts["cwd"] == os.getcwd()
        assert w.value("env", name="SEEN") == "by the host"
        assert w.so_far().count("WARNING") == 2 and "all of your rights" in w.so_far()
        assert w.close()[0] == 0


def what_is_asked_for(sock, *words, code="denied", phase="session_create"):
    """The message in which a session is asked for, of a boxd that grants none: so the network can be on."""
    asked = []

    async def refuse(ws):
        async for message in ws:
            if (m := json.loads(message))["type"] == "hold":
                asked.append(m)
                await ws.send(json.dumps({"type": "error", "about": "hold", "code": code, "detail": "not here"}))

    async def serve():
        async with websockets.unix_serve(refuse, str(sock)):
            w = await asyncio.to_thread(Wrapper, *words, sock=sock, network=None)
            return await asyncio.to_thread(w.wait)

    status, said = asyncio.run(serve())
    assert status == 125 and f"{phase}: not here" in said
    return asked[0]


def test_row_F03_what_a_server_gets_when_nothing_is_said(project, nowhere):
    asked = what_is_asked_for(nowhere, "--", PYTHON, project / "server.py")
    session = asked["session"]
    assert session.pop("session_id").startswith("mcp-") and asked["create"] is True and asked["grace_sec"] == 5
    assert session == {"workdir": "/workspace", "env": {}, "network": "on", "read_only_rootfs": False,
                       "host_path": str(project), "host_path_mode": "ro"}


@pytest.mark.parametrize("code", ["unsupported", "backend"])
def test_row_F02_a_boxd_without_a_backend_that_works_is_no_box(nowhere, code):
    assert what_is_asked_for(nowhere, "--", "cat", code=code, phase="box_unavailable")


def test_a_profile_is_passed_on(project, nowhere):
    asked = what_is_asked_for(nowhere, "--profile", "strict", "--host-path-mode", "none", "--", "cat")
    assert asked["session"]["profile"] == "strict" and "host_path" not in asked["session"]


def test_row_F03_options_say_otherwise(run, project, boxd_shared):
    w = run("--memory-mb", "300", "--pids", "40", "--host-path-mode", "rw", "--name", "mine", "--read-only-root", "on")
    w.initialize()
    session = boxd_shared.client().get(session_of(boxd_shared, w))
    assert (session["memory_mb"], session["pids_limit"], session["read_only_rootfs"]) == (300, 40, True)
    assert w.value("write", path="/workspace/made") == "written" and (project / "made").exists()


def test_row_F04_row_F05_row_F06_a_project_with_a_venv(run, project):
    """The venv's python is a link out of the project, as real ones are."""
    (project / ".venv/bin").mkdir(parents=True)
    (project / ".venv/bin/python").symlink_to(PYTHON)
    (project / "config.json").write_text("{}")
    argv = [project / ".venv/bin/python", project / "server.py", "--config", project / "config.json",
            f"--data={project}/d", f"KEY={project}", "-m", "/etc/hosts", f"{project}-other"]
    w = run("--install", "off", argv=argv)
    w.initialize()
    facts = w.value("facts")
    assert facts["argv"] == ["--config", "/workspace/config.json", "--data=/workspace/d", "KEY=/workspace", "-m",
                             "/etc/hosts", f"{project}-other"]
    assert facts["executable"].startswith(("/usr/bin/python", "/.box/bin/python")) and facts["cwd"] == "/workspace"
    assert w.value("read", path="/workspace/config.json") == "{}"


def test_row_F04_packages_of_the_venv_still_count(run, project):
    version = subprocess.run([PYTHON, "-c", "import sys; print('python%d.%d' % sys.version_info[:2])"], check=True,
                             text=True, capture_output=True).stdout.strip()
    site = project / ".venv/lib" / version / "site-packages"
    site.mkdir(parents=True)
    (site / "of_the_venv.py").write_text("VALUE = 7\n")
    (project / ".venv/bin").mkdir()
    (project / ".venv/bin/python3").symlink_to(PYTHON)
    w = run(argv=[project / ".venv/bin/python3", project / "server.py"])
    w.initialize()
    assert w.value("import", name="of_the_venv") == 7


def test_row_F05_two_directories_are_shown_and_not_what_lies_between(run, project):
    a, b, secret = project / "a", project / "b", project / "secret"
    for d in (a, b, secret):
        d.mkdir()
        (d / "file").write_text(d.name)
    w = run("--install", "off", env={"HOME": str(project)}, argv=[PYTHON, "-c", SERVER, a, b])
    w.initialize()
    inside = w.value("facts")["argv"]
    assert inside == ["/workspace/a", "/workspace/b"]
    assert [w.value("read", path=f"{d}/file") for d in inside] == ["a", "b"]
    assert "error" in w.answer(w.call("read", path="/workspace/secret/file"))
    assert "error" in w.answer(w.call("write", path="/workspace/a/new"))


def make_wheel(directory, name, value):
    with zipfile.ZipFile(directory / f"{name}-1.0-py3-none-any.whl", "w") as z:
        z.writestr(f"{name}.py", f"VALUE = {value}\n")
        z.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        z.writestr(f"{name}-1.0.dist-info/WHEEL",
                   "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{name}-1.0.dist-info/RECORD", "")


def test_row_F07_requirements_are_installed_before_the_start(run, project):
    (project / "wheels").mkdir()
    make_wheel(project / "wheels", "needed", 42)
    (project / "requirements.txt").write_text("--no-index\n--find-links /workspace/wheels\nneeded\n")
    w = run(argv=["python", project / "server.py"])
    w.initialize()
    assert w.value("import", name="needed") == 42
    assert ".box-mcp/venv" in w.value("facts")["executable"]


def test_row_F07_what_an_installer_says_is_told(run, project):
    (project / "requirements.txt").write_text("--no-index\nthere-is-no-such-thing\n")
    w = run()
    request = w.ask("initialize")
    said = w.until_said("trying again")
    assert "dep_install: Dependency install failed (exit code 1)" in said and "there-is-no-such-thing" in said
    answer = w.answer(request)
    assert "failed after 4 attempts: dep_install" in answer["error"]["message"]


BUILDER = '''
import zipfile
def build_wheel(directory, config_settings=None, metadata_directory=None):
    open("built-here", "w").close()  # a read-only project would refuse this
    with zipfile.ZipFile(directory + "/thing-1.0-py3-none-any.whl", "w") as z:
        z.writestr("thing.py", "VALUE = 5\\n")
        z.writestr("thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: thing\\nVersion: 1.0\\n")
        z.writestr("thing-1.0.dist-info/WHEEL",
                   "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        z.writestr("thing-1.0.dist-info/RECORD", "")
    return "thing-1.0-py3-none-any.whl"
'''


def test_row_F08_a_project_is_built_from_a_copy_because_its_mount_is_read_only(run, project):
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "builder"\nbackend-path = ["."]\n'
        '[project]\nname = "thing"\nversion = "1.0"\n')
    (project / "builder.py").write_text(BUILDER)
    w = run(argv=["python", project / "server.py"])
    w.initialize()
    assert w.value("import", name="thing") == 5
    assert not (project / "built-here").exists()


def write_tool(directory, name, text):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(text)
    (directory / name).chmod(0o755)


@pytest.fixture
def own_tools(project):
    """(directory, env): a directory on the PATH of the client that is none of the system's."""
    if any(shutil.which(t, path="/usr/local/bin:/usr/bin:/bin") for t in ("uv", "uvx", "pnpm")):
        pytest.skip("this system has uv or pnpm itself, so those of a user are not looked for")
    bin_dir = project / "chain" / "bin"
    bin_dir.mkdir(parents=True)
    return bin_dir, {"PATH": f"{bin_dir}:{os.environ['PATH']}"}


def test_a_tool_of_the_users_own_is_shown_to_the_box(run, own_tools):
    """As the installer of uv leaves them in ~/.local/bin: one calls the other."""
    bin_dir, env = own_tools
    write_tool(bin_dir, "uvx", '#!/bin/sh\nexec "$(dirname "$0")/uv" tool run "$@"\n')
    write_tool(bin_dir, "uv", f"#!{PYTHON}\n{SERVER}")
    (bin_dir / "private").write_text("x")
    w = run("--host-path-mode", "rw", argv=["uvx", "some-server"], env=env)
    w.initialize()
    assert w.value("facts")["argv"] == ["tool", "run", "some-server"]
    assert "error" in w.answer(w.call("read", path="/opt/box-tools/bin/private"))
    assert "error" in w.answer(w.call("write", path="/opt/box-tools/bin/uv"))


def test_node_of_a_version_manager_is_shown_with_what_belongs_to_it(run, own_tools):
    bin_dir, _ = own_tools
    package = bin_dir.parent / "lib" / "node_modules" / "pnpm"
    write_tool(bin_dir, "node", f"#!/bin/sh\nexec {PYTHON} \"$@\"\n")
    write_tool(package, "pnpm.cjs", f"#!/usr/bin/env node\n{SERVER}")
    (bin_dir / "pnpm").symlink_to("../lib/node_modules/pnpm/pnpm.cjs")
    w = run(argv=[bin_dir / "pnpm", "dlx", "some-server"], env={"PATH": "/usr/bin:/bin"})
    w.initialize()
    assert w.value("facts")["argv"] == ["dlx", "some-server"]


def test_uv_works_in_a_copy_of_a_project_because_its_mount_is_read_only(run, project, own_tools):
    bin_dir, env = own_tools
    write_tool(bin_dir, "uv", f'#!/bin/sh\ncd "$2" && mkdir .venv && : >uv.lock && exec {PYTHON} "$4"\n')
    (project / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "1"\n')
    w = run(argv=["uv", "--directory", project, "run", "server.py"], env=env)
    w.initialize()
    assert w.value("facts")["cwd"] == "/home/box/.box-mcp/project"
    assert not (project / "uv.lock").exists()


def test_a_tool_that_may_not_be_mounted_is_told_as_that(project, own_tools, tmp_path):
    bin_dir, env = own_tools
    write_tool(bin_dir, "uvx", "#!/bin/sh\n")
    daemon = Boxd(env={"BOX_ALLOWED_MOUNT_ROOTS": str(tmp_path)})
    try:
        with Wrapper("--", "uvx", "some-server", sock=daemon.sock, env=env) as w:
            status, said = w.wait()
        assert status == 125 and "session_create: " in said
        assert "install it for all users, such as in /usr/local/bin" in said, said
    finally:
        daemon.close()


def test_row_F09_retries_end_and_begin_again_slowly(run, project):
    """A server that dies at once: three quick retries, then everybody hears of it, then it is tried again for ever."""
    (project / "fails.py").write_text("import sys; sys.stderr.write('no luck\\n'); sys.exit(9)\n")
    w = run(argv=[PYTHON, project / "fails.py"])
    request = w.ask("initialize")
    message = w.answer(request)["error"]["message"]
    assert "failed after 4 attempts: " in message and "status 9: no luck" in message
    assert w.so_far().count("trying again in 0.05 s") == 3
    write_server(project, "fails.py")
    # Whoever asks meanwhile hears at once why not; after the next slow attempt it works.
    until(lambda: "result" in w.initialize(), what="the server to work")


def test_row_F10_the_end_of_a_server_is_noticed_by_itself(run, boxd_shared):
    """Nothing is asked of the server here: its end is an event."""
    w = run()
    w.initialize()
    pid = w.value("facts")["pid"]
    session = session_of(boxd_shared, w)
    kill_server(boxd_shared, w, pid)
    w.until_said("the server was killed by signal 9")
    w.until_said("runtime\n")
    facts = w.value("facts")
    assert facts["pid"] != pid and facts["inits"] == 1  # the handshake was replayed
    info = next(s for s in servers(boxd_shared) if s["session_id"] == session)
    assert (info["status"], info["restart_count"]) == ("connected", 1)


@pytest.mark.parametrize("way", ["eof", "term", "kill"])
def test_row_F11_nothing_is_left_however_it_ends(run, boxd_shared, way):
    w = run()
    w.initialize()
    assert w.value("daemon") == "forked"
    session = session_of(boxd_shared, w)
    if way == "eof":
        assert w.close()[0] == 0
    elif way == "term":
        w.kill(signal.SIGTERM)
        assert w.process.returncode == 128 + signal.SIGTERM
    else:
        w.kill(signal.SIGKILL)
    nothing_left(boxd_shared, session)


def test_row_F11_a_reader_that_is_gone_is_noticed_though_nothing_is_written(project, boxd_shared):
    ours, theirs = os.pipe()
    words = ["--network", "off", "--name", "unread", "--", PYTHON, project / "server.py"]
    p = subprocess.Popen([BUILD / "box", "mcp", "run", *words],
                         stdin=subprocess.PIPE, stdout=theirs, stderr=subprocess.DEVNULL,
                         env={**os.environ, "BOX_HOST": f"unix://{boxd_shared.sock}"})
    os.close(theirs)
    session = until(lambda: [s["session_id"] for s in servers(boxd_shared)
                             if s.get("name") == "unread" and s["phase"] == "mcp_init"])
    os.close(ours)
    assert p.wait(60) == 0
    p.stdin.close()
    nothing_left(boxd_shared, session[0])


def test_row_F11_a_client_that_dies_while_dependencies_are_installed(run, project, boxd_shared):
    (project / "requirements.txt").write_text("--no-index\n--find-links /workspace/slow\nx\n")
    os.mkfifo(project / "slow")  # pip waits for it
    w = run()
    w.ask("initialize")
    w.until_said("dep_install")
    session = session_of(boxd_shared, w)
    w.kill(signal.SIGKILL)
    nothing_left(boxd_shared, session)


def test_row_F12_initialize_is_answered_once_by_the_first_that_works(run, project):
    (project / "third.py").write_text(
        "import os, sys\nn = int(open('/workspace/n').read()) + 1\nopen('/workspace/n', 'w').write(str(n))\n"
        "if n < 3: sys.exit(1)\nexec(open('/workspace/server.py').read())\n")
    (project / "n").write_text("0")
    (project / "n").chmod(0o666)
    w = run("--host-path-mode", "rw", argv=[PYTHON, project / "third.py"])
    first = w.ask("initialize")
    message = w.next()
    assert message["id"] == first and "result" in message
    second = w.ask("ping")
    assert w.next()["id"] == second  # nothing between
    assert (project / "n").read_text() == "3"


def test_row_F13_what_is_told_of_it(run, boxd_shared):
    w = run("--env", "TOKEN=super-secret-value", "--name", "told")
    w.initialize()
    w.answer(w.ask("tools/list"))
    info = until(lambda: next((s for s in servers(boxd_shared)
                               if s.get("name") == "told" and "tool_count" in s), None))
    assert info["box_enabled"] is True and info["box_session_id"].startswith("mcp-")
    assert (info["status"], info["phase"], info["error_message"]) == ("connected", "runtime", None)
    assert info["retry_count"] == 0
    assert info["tool_count"] == 2 and info["tools"][0] == {"name": "facts", "description": "what it sees"}
    assert "super-secret" not in json.dumps(info)
    table = box("mcp", "ls", sock=boxd_shared.sock).stdout
    assert "told" in table and "connected" in table and "runtime" in table


# Secrets.


def test_secrets_reach_the_process_and_nobody_else(run, project, boxd_shared):
    env_file = project / "env"
    env_file.write_text("# a comment\nexport FROM_FILE='file-secret'\n")
    w = run("--env", "DIRECT=direct-secret", "--env", "TAKEN", "--env-file", env_file, env={"TAKEN": "taken-secret"})
    w.initialize()
    values = [w.value("env", name=n) for n in ("DIRECT", "TAKEN", "FROM_FILE")]
    assert values == ["direct-secret", "taken-secret", "file-secret"]
    session = session_of(boxd_shared, w)
    api = boxd_shared.client()
    shown = json.dumps([servers(boxd_shared), api.get(session), api.call("GET", f"/v1/sessions/{session}/processes")])
    shown += pathlib.Path(f"/proc/{w.pid}/cmdline").read_bytes().decode()
    shown += box("exec", session, "--", "env", sock=boxd_shared.sock).stdout
    shown += box("mcp", "logs", session, sock=boxd_shared.sock).stdout + w.so_far() + boxd_shared.log()
    assert not [s for s in values if s in shown]


def test_a_secret_in_an_error_is_hidden(run, project):
    (project / "leaks.py").write_text(
        "import os, sys; sys.stderr.write('bad token ' + os.environ['T'] + '\\n'); sys.exit(1)\n")
    w = run("--env", "T=hunter2hunter2", argv=[PYTHON, project / "leaks.py"])
    message = w.answer(w.ask("initialize"))["error"]["message"]
    assert "bad token ***" in message and "hunter2" not in message


# Restarts.


def test_requests_in_flight_are_answered_when_the_server_dies(run, boxd_shared):
    w = run()
    w.initialize()
    pid = w.value("facts")["pid"]
    lost = [w.call("hang"), w.call("echo")]
    while w.next().get("method") != "notifications/message":
        pass
    kill_server(boxd_shared, w, pid)
    answers = [w.next(), w.next()]
    assert [a["id"] for a in answers] == lost
    assert all("killed by signal 9" in a["error"]["message"] and a["error"]["code"] == -32000 for a in answers)
    assert w.value("facts")["inits"] == 1


def test_the_protocol_without_a_handshake_has_nothing_replayed(run):
    w = run()
    meta = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}
    assert w.answer(w.ask("server/discover", meta))["result"]["supportedVersions"] == ["2026-07-28"]
    dead = w.answer(w.call("exit", code=3))
    assert dead["error"]["code"] == -32000 and "status 3" in dead["error"]["message"]
    assert w.value("facts")["inits"] == 0


def test_a_line_that_never_ended_does_not_reach_the_client(run):
    w = run()
    w.initialize()
    dead = w.answer(w.call("half"))
    assert "status 4" in dead["error"]["message"]
    assert w.value("facts")["inits"] == 1  # and everything between was JSON


def test_an_answer_to_a_server_that_is_gone_is_not_given_to_the_next(run):
    w = run()
    w.initialize()
    request = w.call("ask")
    while (m := w.next()).get("method") != "roots/list":
        pass
    w.answer(request)
    w.answer(w.call("exit", code=1))
    w.send({"jsonrpc": "2.0", "id": m["id"], "result": {"roots": []}})  # the first asked, the second did not
    assert w.answer(w.ask("answers"))["result"] == []


def test_boxd_restarts_and_the_server_does_not_notice(project):
    """Killed, while a request is under way and output waits: nothing is lost, nothing comes twice."""
    daemon = Boxd()
    try:
        with Wrapper("--", PYTHON, project / "server.py", sock=daemon.sock) as w:
            w.initialize()
            pid = w.value("facts")["pid"]
            for _ in range(3):
                request = w.call("later", seconds=0.3)
                while w.next().get("method") != "notifications/message":
                    pass
                daemon.stop(signal.SIGKILL)
                queued = [w.call("echo", n=n) for n in range(5)]
                daemon.start()
                assert w.answer(request)["result"]["value"] == "done"
                got = [w.next() for _ in queued]
                assert [m["id"] for m in got] == queued
                assert [m["result"]["value"]["n"] for m in got] == list(range(5))
            facts = w.value("facts")
            assert (facts["pid"], facts["inits"]) == (pid, 1)
            assert "attached again" in w.so_far()
            session = session_of(daemon, w)
            assert w.close()[0] == 0
            nothing_left(daemon, session)
    finally:
        daemon.close()


def test_a_client_that_dies_while_boxd_is_away_leaves_nothing(project):
    daemon = Boxd()
    try:
        with Wrapper("--", PYTHON, project / "server.py", sock=daemon.sock) as w:
            w.initialize()
            session = session_of(daemon, w)
            daemon.stop(signal.SIGKILL)
            w.kill(signal.SIGKILL)
            daemon.start()
            assert [s["session_id"] for s in daemon.client().ps()] == [session]
            nothing_left(daemon, session)
    finally:
        daemon.close()


def test_a_session_that_was_removed_is_made_again(run, boxd_shared):
    w = run()
    w.initialize()
    assert box("rm", session_of(boxd_shared, w), sock=boxd_shared.sock).returncode == 0
    w.until_said("trying again")
    assert w.value("facts")["inits"] == 1


# Bad servers and bad commands.


def test_a_missing_command_is_told_as_that(run):
    w = run(argv=["no-such-command", "x"])
    w.ask("initialize")
    status, said = w.wait()
    assert status == 127
    assert "process_start: command 'no-such-command' was not found inside the box (image 'host')" in said


def test_a_server_that_hangs_is_tried_again_and_told_of(run, project):
    (project / "hangs.py").write_text("import signal\nwhile True: signal.pause()\n")
    w = run("--startup-timeout", "1", argv=[PYTHON, project / "hangs.py"], delays="0.05,0.05")
    message = w.answer(w.ask("initialize"))["error"]["message"]
    assert "failed after 2 attempts" in message and "has not answered within 1 s" in message


def test_a_slow_start_is_no_failure(run, project):
    """Nothing is answered before a file is there: that is a cold start, whatever the retries are."""
    (project / "slow.py").write_text("import os, time\nwhile not os.path.exists('/workspace/go'): time.sleep(0.01)\n"
                                     "exec(open('/workspace/server.py').read())\n")
    w = run(argv=[PYTHON, project / "slow.py"])
    request = w.ask("initialize")
    w.until_said("mcp_init\n")
    (project / "go").touch()
    assert "result" in w.answer(request)
    assert "trying again" not in w.so_far()


def test_a_flood_of_stderr_holds_nobody_up(run):
    w = run()
    w.initialize()
    assert w.value("flood", blocks=5000) == "flooded"  # 20 MB, of which the client may see a part
    assert w.value("echo", a=1) == {"a": 1}


def test_lines_of_50_mb_pass(run):
    w = run("--memory-mb", "512")
    w.initialize()
    assert len(w.value("big", bytes=50_000_000)) == 50_000_000
    assert w.value("echo", a=1) == {"a": 1}


def test_a_request_above_16_mib_is_refused_and_the_next_is_not(run):
    w = run()
    w.initialize()
    answer = w.answer(w.call("echo", text="y" * (17 << 20)))
    assert "16 MiB" in answer["error"]["message"]
    large = "z" * (4 << 20)
    assert w.value("echo", text=large) == {"text": large}


def test_a_server_that_does_its_work_and_ends(run):
    w = run(argv=["sh", "-c", "echo '{}'; exit 0"])
    assert w.wait()[0] == 0
    assert w.next() == {} and w.next() is None


def test_logs(run, boxd_shared):
    w = run("--name", "wordy")
    w.initialize()
    w.until_said("server starts")
    r = until(lambda: box("mcp", "logs", "wordy", sock=boxd_shared.sock), what="logs")
    assert (r.returncode, r.stdout) == (0, "server starts\n")
    assert box("mcp", "logs", "nobody", sock=boxd_shared.sock).returncode == 125


def test_logs_follow_from_one_server_to_the_next(run, boxd_shared, project):
    w = run("--name", "followed")
    w.initialize()
    p = subprocess.Popen([str(BUILD / "box"), "mcp", "logs", "-f", "followed"], stdout=subprocess.PIPE,
                         env={**os.environ, "BOX_HOST": f"unix://{boxd_shared.sock}"})
    try:
        assert p.stdout.readline() == b"server starts\n"
        w.answer(w.call("exit", code=1))
        assert p.stdout.readline() == b"server starts\n"
        w.close()
        assert p.stdout.read() == b"" and p.wait(60) == 0
    finally:
        p.kill()
        p.wait()


def test_help_and_mistakes():
    assert "--host-path" in box("help", "mcp", "run").stdout
    for words, text in ((["mcp", "run"], "no command"), (["mcp"], "wants one of"), (["mcp", "dance"], "unknown verb"),
                        (["mcp", "run", "--fallback", "maybe", "--", "x"], "refuse, host"),
                        (["mcp", "run", "--env", "=x", "--", "x"], "NAME=value"),
                        (["mcp", "run", "--host-path", "/nonexistent", "--", "x"], "/nonexistent")):
        r = box(*words)
        assert r.returncode == 125 and text in r.stderr, (words, r.stderr)

