# SPDX-License-Identifier: Apache-2.0
"""Check K09: text of strangers in what operators look at. Nothing of it reaches a terminal as more than text, forges a
line, or makes one read as what it is not."""

import contextlib
import json
import os
import re
import shutil

import pytest
from boxlib import ApiError, Boxd, box
from hostlib import mount_dir, until
from lbwire import Rpc, RpcError
from rawlib import Wire

# Colours and titles, a line of its own, both sets of controls, text from right to left, a line separator.
HOSTILE = "x\x1b[31m\x1b]0;title\x07\r\n12:00:00 error forged\x9b2J\x7f\u202egnp.exe\u2066\u2028z"
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def harmless(text):
    found = UNSAFE.search(text)
    assert found is None, (found, text)
    assert "\nforged" not in text and not re.search(r"^12:00:00 error forged", text, re.M)
    return True


@pytest.fixture(scope="module", params=["json", "human"])
def watched(request):
    """With a log of that format, at its most talkative."""
    daemon = Boxd("--log-format", request.param, "--log-level", "debug")
    yield daemon
    daemon.close()


def test_check_K09_lists_of_sessions(watched):
    client = watched.client()
    with Rpc(watched.sock) as rpc:  # a name of an image that nothing looks at
        rpc.exec("k09", "true", image=HOSTILE, env={"A": HOSTILE})
    table = box("ps", sock=watched.sock)
    assert table.returncode == 0 and "k09" in table.stdout and harmless(table.stdout)
    assert len(table.stdout.splitlines()) == 2
    listed = box("ps", "--json", sock=watched.sock)
    assert harmless(listed.stdout)
    assert json.loads(listed.stdout)["sessions"][0]["image"] == HOSTILE
    client.rm(json.loads(listed.stdout)["sessions"][0]["session_id"])
    client.close()


def test_check_K09_messages_of_the_command_line(watched):
    for args in (["rm", HOSTILE], ["exec", HOSTILE, "--", "true"], ["run", "--session", HOSTILE, "--", "true"],
                 ["run", "--mount", f"/{HOSTILE}:/x", "--", "true"], [HOSTILE], ["run", f"--{HOSTILE}"],
                 ["completion", HOSTILE], ["audit", "verify", f"/{HOSTILE}"], ["config", "--config", f"/{HOSTILE}"]):
        done = box(*args, sock=watched.sock)
        assert done.returncode == 125 and harmless(done.stderr) and harmless(done.stdout), args
        assert len(done.stderr.splitlines()) == 1, args


def test_check_K09_names_in_the_log(watched):
    client = watched.client()
    for body in ({"session_id": HOSTILE}, {"session_id": "a", HOSTILE: 1},
                 {"session_id": "a", "host_path": f"/srv/{HOSTILE}"},
                 {"session_id": "a", "image": HOSTILE, "extra_mounts": [{"host_path": "/srv", "mount_path": HOSTILE}]}):
        with pytest.raises(ApiError):
            client.call("POST", "/v1/sessions", body)
    with pytest.raises(ApiError):
        client.new("k09b", image=HOSTILE)
    client.new("k09b")
    client.x("k09b", "printf", HOSTILE)
    client.call("POST", "/v1/sessions/k09b/processes", {"process_id": "p", "command": HOSTILE})
    client.rm("k09b")
    client.close()
    with Rpc(watched.sock) as rpc:
        for action, data in ((HOSTILE, {}), ("box_delete_session", {"session_id": HOSTILE}),
                             ("box_get_skill", {"name": HOSTILE})):
            with contextlib.suppress(RpcError):
                rpc.call(action, data)
        rpc.say(json.dumps({"action": HOSTILE, "seq_id": HOSTILE}))
    raw = HOSTILE.encode()
    with Wire(watched.sock) as w:  # in the path, as it is and escaped, and in a header
        w.send(b"GET /v1/sessions/%1b%5b31m%0d%0a%c2%9b%e2%80%ae HTTP/1.1\r\nHost: localhost\r\n"
               b"X-Request-Id: seen-k09\r\nUser-Agent: \xe2\x80\xae\xc2\x9b\r\n\r\n")
        assert w.answer()[0] == 404
    with Wire(watched.sock) as w:
        w.send(b"GET /" + raw.replace(b"\r\n", b"") + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert w.until_end().startswith(b"HTTP/1.1 400")
    text = until(lambda: "seen-k09" in (log := watched.log()) and log)
    assert harmless(text)
    for line in text.splitlines():
        assert line.startswith("{") or re.match(r"\d\d:\d\d:\d\d (error|warn |info |debug)", line), line


def test_check_K09_the_audit_log(watched):
    client = watched.client()
    with pytest.raises(ApiError):
        client.new("k09c", image=HOSTILE)
    client.new("k09c")
    client.x("k09c", "sh", "-c", f"# {HOSTILE}")
    client.sh("k09c", f"# {HOSTILE}")
    client.rm("k09c")
    client.close()
    files = sorted((watched.state / "audit").glob("*.log"))
    assert files
    commands = []
    for path in files:
        text = path.read_text()
        assert not re.search("[\x00-\x09\x0b-\x1f]", text)
        commands += [record.get("command", "") for record in map(json.loads, text.splitlines())]
    assert any(HOSTILE in command for command in commands)  # nothing is lost by it
    done = box("audit", "verify", *map(str, files))
    assert done.returncode == 0 and harmless(done.stdout)


def test_check_K09_metrics(watched):
    client = watched.client()
    client._conn.request("GET", "/metrics")
    assert harmless(client._conn.getresponse().read().decode())
    client.close()


def test_check_K09_output_of_a_command_is_its_own(watched):
    """It is what was asked for: bytes are passed on as they are, as a shell does."""
    done = box("run", "--", "printf", "%s", HOSTILE.replace("\r\n", ""), sock=watched.sock)
    assert done.stdout == HOSTILE.replace("\r\n", "")


def test_check_K06_nothing_of_a_workspace_is_run_by_the_daemon(watched):
    """Start-up files, hooks and the like of a directory that is mounted: only what runs inside reads them."""
    top = mount_dir("box-k06-")
    mark = top / "ran-outside"
    try:
        for name in (".profile", ".bashrc", ".bash_profile", ".zshenv", ".npmrc", ".gitconfig"):
            (top / name).write_text(f"touch {mark}\n")
        hooks = top / ".git" / "hooks"
        hooks.mkdir(parents=True)
        (top / ".git" / "config").write_text(f"[core]\n\tfsmonitor = touch {mark}\n\thooksPath = hooks\n")
        for name in ("post-checkout", "pre-commit"):
            (hooks / name).write_text(f"#!/bin/sh\ntouch {mark}\n")
            (hooks / name).chmod(0o755)
        for root, dirs, files in os.walk(top):
            for name in (*dirs, *files):
                os.chmod(os.path.join(root, name), 0o777)
        top.chmod(0o777)
        client = watched.client()
        client.new("k06", host_path=str(top), host_path_mode="ro")
        assert client.sh("k06", "pwd; ls -a")["exit_code"] == 0
        client.get("k06")
        client.doctor()
        client.rm("k06")
        client.close()
        assert not mark.exists()
    finally:
        shutil.rmtree(top)
