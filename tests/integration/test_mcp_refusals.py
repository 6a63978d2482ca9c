# SPDX-License-Identifier: Apache-2.0
"""Why a boxed server died, and what a box has to do with an error: both are told with what helps."""

import shutil
import socket
import threading

import pytest
from boxlib import box
from hostlib import mount_dir
from mcplib import SERVER, Wrapper, write_server

PYTHON = "/usr/bin/python3"

# Dies as servers do: an exception, and then what exit handlers and loggers still say.
DIES = """
import atexit, sys
atexit.register(lambda: sys.stderr.write("closing the log\\n"))
def connect():
    raise ConnectionError("no database at DSN")
connect()
"""

# One tool more: a word to a service, at an address or at a unix socket.
TALKS = SERVER.replace('    if name == "echo": return a\n', '''    if name == "echo": return a
    if name == "talk":
        import socket
        s = socket.socket(socket.AF_UNIX if "path" in a else socket.AF_INET)
        s.connect(a["path"] if "path" in a else (a["host"], a["port"]))
        s.sendall(b"PING\\n"); return s.recv(100).decode()
    if name in ("marked", "unmarked"): return None
''').replace('result = {"content": [], "value":',
           'result = {"isError": p.get("name") == "marked", "content": texts(p), "value":')
TALKS = """
def texts(p):
    text = p.get("arguments", {}).get("text")
    return [{"type": "text", "text": text}] if text else []
""" + TALKS


@pytest.fixture
def boxed(boxd_shared):
    """boxed(text, *options) -> a server with that source, and its directory."""
    top, wrappers = mount_dir("box-mcp-refusal-"), []

    def start(text=TALKS, *options, **kwargs):
        program = write_server(top, text=text)
        wrappers.append(Wrapper(*options, "--", PYTHON, program, sock=boxd_shared.sock, **kwargs))
        return wrappers[-1], top

    yield start
    for wrapper in wrappers:
        wrapper.end()
    shutil.rmtree(top, ignore_errors=True)


def refusal(wrapper, tool, **arguments):
    return wrapper.answer(wrapper.call(tool, **arguments))["error"]["message"]


def test_a_server_that_dies_is_told_by_its_error_and_not_by_its_last_line(boxed):
    w, _ = boxed(DIES)
    message = w.answer(w.ask("initialize"))["error"]["message"]
    assert "exited with status 1: ConnectionError: no database at DSN" in message
    assert "closing the log" not in message


def test_a_path_of_the_host_in_a_tool_call_is_told_with_the_mount_that_shows_it(boxed):
    w, _ = boxed()
    w.initialize()
    other = mount_dir("box-mcp-other-")
    try:
        (other / "data.txt").write_text("of the host")
        message = refusal(w, "read", path=str(other / "data.txt"))
        assert "No such file" in message
        mount = f"{other}/data.txt:/mnt/data.txt:ro"
        assert f"box: '{other}/data.txt' of this host is not in the box: '--mount {mount}' shows it" in message
        assert "not in the box" in w.until_said("not in the box")
        seen, _ = boxed(TALKS, "--mount", mount)
        seen.initialize()
        assert seen.value("read", path="/mnt/data.txt") == "of the host"
        assert "is called '/mnt/data.txt' in the box" in refusal(seen, "read", path=str(other / "data.txt"))
    finally:
        shutil.rmtree(other, ignore_errors=True)


def test_a_path_that_has_another_name_inside_is_told_by_that_name(boxed):
    w, top = boxed()
    w.initialize()
    message = refusal(w, "read", path=str(top / "server.py"))
    assert f"'{top}/server.py' of this host is called '/workspace/server.py' in the box" in message


def test_a_path_that_is_nowhere_is_the_servers_own_affair(boxed):
    w, _ = boxed()
    w.initialize()
    assert "box:" not in refusal(w, "read", path="/var/tmp/no-such-file-at-all")
    # An answer that is marked as an error and has nothing to do with the box stays as it is.
    assert w.answer(w.call("marked"))["result"] == {"isError": True, "content": [], "value": None}


def test_a_file_that_cannot_be_written_is_told_with_the_option_that_allows_it(boxed):
    w, _ = boxed()
    w.initialize()
    message = refusal(w, "write", path="/workspace/new")
    assert "Read-only file system" in message and "'--host-path-mode rw'" in message
    w, top = boxed(TALKS, "--host-path-mode", "rw")
    w.initialize()
    assert w.value("write", path="/workspace/new") == "written"
    assert (top / "new").read_text() == "x"


@pytest.mark.parametrize("tool", ["marked", "unmarked"])
def test_the_text_of_a_tool_that_failed_is_followed_by_what_helps(boxed, tool):
    w, _ = boxed()
    w.initialize()
    said = "Database error: attempt to write a readonly database"
    content = w.answer(w.call(tool, text=said))["result"]["content"]
    assert content[0] == {"type": "text", "text": said} and len(content) == 2
    assert content[1]["text"].startswith("box: ") and "'--mount HOST:BOX:rw'" in content[1]["text"]
    # The same words in a text that is about something else are none of our business.
    answer = w.answer(w.call("unmarked", text="This page is about SQLite, which says: readonly database, error"))
    assert len(answer["result"]["content"]) == 1


def serve_once(listener):
    connection, _ = listener.accept()
    with connection:
        connection.recv(100)
        connection.sendall(b"+PONG\n")


def test_a_service_on_the_hosts_loopback_is_told_with_the_option_that_allows_it(boxed):
    """A box has a loopback of its own. The directory of a unix socket can be mounted, too."""
    services = mount_dir("box-mcp-service-")
    try:
        with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
            unix.bind(str(services / "s"))
            (services / "s").chmod(0o777)
            unix.listen()
            port = tcp.getsockname()[1]
            options = ["--mount", f"{services}:/mnt/service:rw", "--env", f"REDIS=redis://127.0.0.1:{port}"]
            w, _ = boxed(TALKS, *options)
            w.initialize()
            message = refusal(w, "talk", host="127.0.0.1", port=port)
            allow = f"--allow-host 127.0.0.1:{port}"
            assert "refused" in message and f"'{allow}'" in message
            w, _ = boxed(TALKS, *options, *allow.split())
            w.initialize()
            for listener, place in ((unix, {"path": "/mnt/service/s"}), (tcp, {"host": "127.0.0.1", "port": port})):
                thread = threading.Thread(target=serve_once, args=(listener,))
                thread.start()
                assert w.value("talk", **place) == "+PONG\n"
                thread.join()
    finally:
        shutil.rmtree(services, ignore_errors=True)


def test_mcp_without_a_verb_names_the_verbs():
    r = box("mcp")
    assert r.returncode == 125 and "'box mcp' wants one of: run, ls, logs, serve" in r.stderr
    r = box("mcp", "dance")
    assert r.returncode == 125 and "unknown verb 'mcp dance'; 'box mcp' has: run, ls, logs, serve" in r.stderr
