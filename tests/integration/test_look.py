# SPDX-License-Identifier: Apache-2.0
"""Looking into a session that runs: `box top`, `box stats`, and what commands have left in the background. What each
backend lists is in tests/conformance/test_session_commands.py."""

import json
import os
import pty
import re
import select
import signal
import subprocess

import pytest
from boxlib import BUILD, ApiError, box
from hostlib import SCALE
from mcpservelib import Stdio

pytestmark = pytest.mark.rootless
LEAVE = "sleep 1001 >/dev/null 2>&1 & until grep -q sleep /proc/$!/comm; do :; done; "  # it has come to execve


def top(api, name, query=""):
    return {p["command"]: p for p in api.call("GET", f"/v1/sessions/{name}/top{query}")["processes"]}


def test_what_was_left_outlives_boxd_and_is_ended_by_its_old_name(boxd):
    with_id = {"exec_id": "build", "on_disconnect": "keep", "detach": True}
    api = boxd.client()
    api.new("t", durable=True)
    left = api.sh("t", LEAVE)
    assert left["remaining"] == 1
    api.call("POST", "/v1/sessions/t/exec", {"cmd": LEAVE.replace("1001", "1002"), **with_id})
    while (run := api.call("GET", "/v1/sessions/t/execs/build"))["status"] != "ended":
        pass
    assert run["remaining"] == 1
    boxd.stop(signal.SIGKILL)
    boxd.start()
    api = boxd.client()
    seen = top(api, "t")
    assert (seen["sleep 1001"]["exec_id"], seen["sleep 1002"]["exec_id"]) == (left["exec_id"], "build")
    api.call("DELETE", "/v1/sessions/t/execs/build")
    assert top(api, "t").keys() == {"sleep 1001"}
    api.call("DELETE", f"/v1/sessions/t/execs/{left['exec_id']}")
    assert top(api, "t") == {}
    with pytest.raises(ApiError) as e:
        api.call("DELETE", "/v1/sessions/t/execs/build")
    assert e.value.status == 404


def test_what_an_exec_runs_is_not_left_until_it_ends_and_goes_with_it(api, session):
    name = session()
    api.sh(name, LEAVE, exec_id="job", detach=True)
    while api.call("GET", f"/v1/sessions/{name}/execs/job")["status"] != "ended":
        pass
    api.call("DELETE", f"/v1/sessions/{name}/execs/job")
    assert top(api, name) == {}
    api.sh(name, "sleep 1002 & wait", exec_id="job", detach=True)
    while "sleep 1002" not in (seen := top(api, name)):
        pass
    assert not any(p["background"] for p in seen.values()) and top(api, name, "?background=1") == {}
    api.call("DELETE", f"/v1/sessions/{name}/execs/job")
    assert top(api, name) == {}


def test_a_session_without_a_free_process_is_listed(boxd_shared, api, session):
    """The supervisor answers itself. The words of a process do not drive the terminal that shows them."""
    name = session(pids_limit=20)
    r = api.x(name, "python3", "-c", r"""
import os
try:
    for i in range(40):
        if os.fork() == 0:
            os.execv("/bin/sleep", ["\x1b]0;owned\x07" + "x" * 500, "1001"])
except OSError:
    pass
""")
    assert r["remaining"] >= 10, r
    while not all("owned" in command for command in top(api, name)):
        pass
    shown = box("top", name, sock=boxd_shared.sock)
    assert shown.returncode == 0, shown
    assert "\x1b" not in shown.stdout and "\\x1b]0;owned\\x07xxx" in shown.stdout
    listed = box("top", name, "--format", "json", sock=boxd_shared.sock).stdout.splitlines()
    assert len(listed) >= 10 and max(len(json.loads(p)["command"]) for p in listed) == 191
    assert {json.loads(p)["exec_id"] for p in listed} == {r["exec_id"]}


def test_stats_are_live_on_a_terminal_and_shown_once_elsewhere(boxd_shared, api, session):
    name = session()
    table = box("stats", sock=boxd_shared.sock).stdout.splitlines()
    assert table[0].split()[:3] == ["SESSION", "CPU", "MEMORY"] and any(line.startswith(name) for line in table)
    row = next(line for line in table if line.startswith(name))
    known = api.call("GET", f"/v1/stats?sessions={name}")["stats"][0]["memory_bytes"] is not None
    assert re.match(rf"{name} +[0-9.]+% +[0-9.]+ [KM]iB" if known else rf"{name} +- +- +- +- +-", row), row
    wrong = box("stats", "nobody", sock=boxd_shared.sock)
    assert (wrong.returncode, wrong.stderr) == (125, "box: session nobody not found, see 'box ps'\n")

    master, slave = pty.openpty()
    env = {**os.environ, "BOX_HOST": f"unix://{boxd_shared.sock}"}
    p = subprocess.Popen([str(BUILD / "box"), "stats", name], stdin=slave, stdout=slave, stderr=slave, env=env)
    os.close(slave)
    try:
        text = b""
        while text.count(name.encode()) < 2:
            assert select.select([master], [], [], 30 * SCALE)[0], text
            text += os.read(master, 65536)
        p.send_signal(signal.SIGINT)
        assert p.wait(30 * SCALE) == 128 + signal.SIGINT and text.count(b"\x1b[2J\x1b[H") >= 2
    finally:
        p.kill()
        p.wait()
        os.close(master)


def test_a_stopped_and_a_paused_session_cannot_be_looked_into(boxd_shared, api):
    api.new("look-kept", durable=True)
    try:
        if os.geteuid() == 0:  # freezing needs a control group
            left = api.sh("look-kept", LEAVE)["exec_id"]
            api.call("POST", "/v1/sessions/look-kept/pause")
            for method, path in (("GET", "top"), ("DELETE", f"execs/{left}")):
                with pytest.raises(ApiError) as e:
                    api.call(method, f"/v1/sessions/look-kept/{path}")
                assert e.value.status == 409 and "paused" in str(e.value)
        api.call("POST", "/v1/sessions/look-kept/stop")
        with pytest.raises(ApiError) as e:
            api.call("GET", "/v1/sessions/look-kept/top")
        assert e.value.status == 409 and "it is stopped" in str(e.value)
        stats = api.call("GET", "/v1/stats?sessions=look-kept")["stats"]
        assert [(s["state"], s["memory_bytes"]) for s in stats] == [("stopped", None)]
        assert api.get("look-kept")["state"] == "stopped"  # looking starts nothing
    finally:
        api.rm("look-kept")


def test_an_agent_lists_and_ends_what_its_commands_left(boxd_shared):
    client = Stdio(boxd_shared.sock)

    def tool(name, **arguments):
        return client.tool(name, **arguments)["structuredContent"]

    try:
        left = tool("exec", command=LEAVE + "echo up")
        assert left["remaining"] == 1
        tool("start_process", process_id="web", command="sleep 1002", wait_ms=0)
        listed = tool("list_background")["processes"]
        assert [(p["command"], p["exec_id"]) for p in listed] == [("sleep 1001", left["exec_id"])]
        assert tool("stop_background", exec_id=left["exec_id"]) == {"stopped": True}
        assert tool("list_background")["processes"] == []
        refused = client.tool("stop_background", exec_id=left["exec_id"])
        assert refused["isError"] and "has left nothing" in refused["content"][0]["text"]
    finally:
        client.close()
