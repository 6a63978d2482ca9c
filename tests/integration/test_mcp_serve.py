# SPDX-License-Identifier: Apache-2.0
"""Box as an MCP server: raw lines to `box mcp serve` and raw HTTP to /mcp, on the native backend."""

import asyncio
import base64
import contextlib
import http.client
import json
import signal

import pytest
import websockets
from boxlib import Boxd
from hostlib import until
from mcpservelib import INITIALIZE, META, MODERN, Http, Stdio, request
from policylib import Governed, token

TOOLS = {"exec", "read", "write", "edit", "glob", "grep", "list_sessions", "create_session", "delete_session",
         "start_process", "list_processes", "read_process_output", "write_stdin", "stop_process", "read_output", "list_background",
         "stop_background"}
ENTRY_A, TOKEN_A = token("alpha", profiles=["*"], tools=["*"], sessions=["alpha-*"])
ENTRY_B, TOKEN_B = token("beta", profiles=["*"], tools=["exec", "read"], sessions=["beta-*"])
# Says who it is and stays; what it started stays with it.
HANG = "echo $$ > /workspace/pid; echo started; sleep 1000 & wait"


@pytest.fixture(scope="module")
def daemon():
    """Nobody needs a token."""
    d = Governed(tcp=True)
    yield d
    d.close()


@pytest.fixture(scope="module")
def guarded():
    d = Governed(tokens=[ENTRY_A, ENTRY_B])
    yield d
    d.close()


@pytest.fixture
def api(daemon):
    client = daemon.client()
    yield client
    client.close()


@pytest.fixture
def serve(daemon):
    """serve(*options) -> a client on stdio."""
    clients = []

    def start(*args):
        clients.append(Stdio(daemon.sock, *args))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


@pytest.fixture
def mcp(daemon):
    return Http(daemon.port)


def text(result):
    return result["content"][0]["text"]


def names(api):
    return {s["session_id"] for s in api.ps()}


def runs(api, session):
    """Whether the command of HANG is still there."""
    return api.sh(session, "kill -0 $(cat /workspace/pid)")["exit_code"] == 0


# stdio


def test_stdio_speaks_both_eras_and_older_ones(serve):
    c = serve()
    assert c.ask("server/discover")["result"]["supportedVersions"][:2] == [MODERN, "2025-11-25"]
    assert {t["name"] for t in c.ask("tools/list")["result"]["tools"]} == TOOLS
    c.send(request("tools/list", 5))
    assert c.hear()["error"]["code"] == -32600
    c.send(INITIALIZE)
    assert c.hear()["result"]["protocolVersion"] == "2025-11-25"
    c.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    c.send(request("ping", 6))
    assert c.hear() == {"jsonrpc": "2.0", "id": 6, "result": {}}
    c.send(request("tools/call", 7, None, name="exec", arguments={"command": "id -u"}))
    answer = c.hear()["result"]
    assert text(answer) == "1000\n" and "resultType" not in answer
    for version in ("2025-06-18", "2025-03-26", "2024-11-05"):
        old = serve()
        old.send(request("initialize", 1, None, protocolVersion=version, capabilities={}, clientInfo={}))
        assert old.hear()["result"]["protocolVersion"] == version
        old.send(request("tools/list", 2))
        assert len(old.hear()["result"]["tools"]) == len(TOOLS)


def test_stdio_files_from_write_to_resource(serve):
    c = serve()
    assert not c.tool("write", path="d/ä b.txt", content="one\ntwo\n")["isError"]
    assert c.tool("read", path="d/ä b.txt", offset=2)["structuredContent"]["content"] == "two"
    assert c.tool("edit", path="d/ä b.txt", old_string="two", new_string="2")["structuredContent"]["replacements"] == 1
    assert c.tool("glob", pattern="**/*.txt")["structuredContent"]["total"] == 1
    assert c.tool("grep", pattern="^2$")["structuredContent"]["matches"][0]["line"] == 2
    c.tool("exec", command="head -c 2000000 /dev/zero > big; printf '\\000\\377' > bin; : > empty; mkfifo pipe")
    (workspace,) = c.ask("resources/list")["result"]["resources"]
    assert workspace["mimeType"] == "text/uri-list"

    def read(uri):
        return c.ask("resources/read", uri=uri)

    inside = read(workspace["uri"])["result"]["contents"][0]["text"].split()
    assert inside == [f"{workspace['uri']}/{n}" for n in ("big", "bin", "d/", "empty", "pipe")]
    (file,) = read(inside[2])["result"]["contents"][0]["text"].split()
    assert file.endswith("/d/%C3%A4%20b.txt")
    result = read(file)["result"]
    assert result["contents"] == [{"uri": file, "mimeType": "text/plain", "text": "one\n2\n"}]
    assert result["ttlMs"] == 0 and result["cacheScope"] == "private"
    assert base64.b64decode(read(inside[1])["result"]["contents"][0]["blob"]) == b"\0\xff"
    assert read(inside[3])["result"]["contents"][0]["text"] == ""
    error = read(inside[0])["error"]
    assert error["code"] == -32602 and "2000000 bytes" in error["message"] and "byte_offset" in error["message"]
    assert read(workspace["uri"] + "/none")["error"]["code"] == -32602
    assert read(workspace["uri"] + "/../etc/passwd")["error"]["code"] == -32602
    assert read(inside[4])["error"]["code"] == -32602
    c.tool("exec", command="ln -s /etc/passwd out")
    assert read(workspace["uri"] + "/out")["error"]["code"] == -32602


def test_results_have_only_what_their_schema_names(serve):
    c = serve()
    listed = {t["name"]: t for t in c.ask("tools/list")["result"]["tools"]}
    calls = [("exec", {"command": "sleep 1001 >/dev/null 2>&1 & seq 50000; echo >&2"}), ("write", {"path": "f", "content": "x\ny\n"}),
             ("read", {"path": "f"}), ("read", {"path": "."}), ("read", {"path": "f", "encoding": "base64"}),
             ("edit", {"path": "f", "old_string": "x", "new_string": "z"}), ("glob", {"pattern": "*"}),
             ("grep", {"pattern": "z"}), ("list_sessions", {}), ("create_session", {"name": "n"}),
             ("start_process", {"command": "cat"}), ("list_processes", {}), ("write_stdin", {"data": "x\n"}),
             ("read_process_output", {"wait_ms": 1000}), ("stop_process", {}), ("read", {"path": "none"})]
    seen = set()
    for name, arguments in calls:
        result = c.tool(name, **arguments)
        if name == "exec":
            calls.append(("read_output", {"output_id": result["structuredContent"]["stdout_id"]}))
            calls += [("list_background", {}), ("stop_background", {"exec_id": result["structuredContent"]["exec_id"]})]
        schema = listed[name]["outputSchema"]
        assert set(result["structuredContent"]) <= set(schema["properties"]), name
        assert set(schema["required"]) <= set(result["structuredContent"]), name
        for key, value in result["structuredContent"].items():
            kinds = schema["properties"][key]["type"]
            kind = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array",
                    type(None): "null"}[type(value)]
            assert kind in kinds or (kind == "integer" and "number" in kinds), (name, key, value)
        seen.add(name)
    handle = c.tool("list_sessions")["structuredContent"]["sessions"][1]["session_id"]
    deleted = c.tool("delete_session", session_id=handle)
    assert deleted["structuredContent"] == {"deleted": True}
    assert seen | {"delete_session"} == TOOLS


def test_start_process_runs_a_shell_command_as_exec_does(serve):
    """An agent that starts `npm run dev` means what it means in a terminal."""
    c = serve()
    command = "cd sub && echo $WORD > said; echo ready; exec cat"
    started = c.tool("start_process", process_id="dev", command=f"mkdir -p sub; {command}", workdir="/workspace",
                     env={"WORD": "hello"}, description="a server")
    assert not started["isError"] and started["structuredContent"]["status"] == "running"
    assert c.tool("read_process_output", process_id="dev", wait_ms=5000)["structuredContent"]["output"] == "ready\n"
    assert text(c.tool("read", path="sub/said")).strip() == "hello"
    timed = c.tool("start_process", process_id="timed", command="sleep 1000", timeout_sec=1, wait_ms=30000)
    assert timed["isError"] and "timeout_sec" in text(timed)


def test_start_process_tells_why_it_ended_at_once(serve):
    c = serve()
    missing = c.tool("start_process", command="no-such-tool run dev", wait_ms=10000)
    assert missing["isError"] and missing["structuredContent"]["exit_code"] == 127
    assert "exit code 127" in text(missing) and "no-such-tool" in text(missing) and "not found" in text(missing)
    program = c.tool("start_process", command="no-such-tool", args=["run"], wait_ms=10000)
    assert program["isError"] and "No such file" in text(program)


def test_whatever_exec_shortened_can_be_read(serve):
    c = serve()
    said = c.tool("exec", command="seq 50000; seq 50000 >&2")["structuredContent"]
    assert said["stdout_truncated"] and said["stderr_truncated"]
    for key in ("stdout_id", "stderr_id"):
        whole, at = "", 0
        while at is not None:
            part = c.tool("read_output", output_id=said[key], offset=at, max_bytes=50000)["structuredContent"]
            whole, at = whole + part["output"], part["next_offset"]
        assert whole == "".join(f"{n}\n" for n in range(1, 50001))
    other = serve()
    assert other.tool("read_output", output_id=said["stdout_id"])["isError"]


def test_stdio_shows_progress_and_kills_what_is_cancelled(serve, api):
    c = serve()
    session = c.tool("exec", command="true")["structuredContent"]["session_id"]
    c.send(request("tools/call", "long", {"progressToken": 7}, name="exec", arguments={"command": HANG}))
    until(lambda: c.lines.qsize() > 0, what="progress")
    note = c.lines.get()
    assert note["method"] == "notifications/progress" and note["params"]["progressToken"] == 7
    assert note["params"]["message"] == "started\n"
    assert runs(api, session)
    c.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "long"}})
    assert text(c.tool("exec", command="echo after")) == "after\n"  # and no answer before it
    until(lambda: not runs(api, session), what="the end of the command")


def test_stdio_a_client_that_is_killed_leaves_nothing(serve, api):
    c = serve()
    session = c.tool("exec", command="true")["structuredContent"]["session_id"]
    other = c.tool("create_session", name="kept")["structuredContent"]["session_id"]
    c.send(request("tools/call", 1, {}, name="exec", arguments={"command": HANG}))
    until(lambda: runs(api, session), what="the command")
    c.process.send_signal(signal.SIGKILL)
    until(lambda: session not in names(api), what="the end of the session")
    assert other in names(api)  # a handle outlives the process that asked for it
    api.rm(other)


def test_stdio_ends_with_its_input(serve, api):
    c = serve()
    c.send(request("tools/call", 1, {}, name="exec", arguments={"command": "sleep 0.3; echo done"}))
    assert c.end() == 0
    assert text(c.hear()["result"]) == "done\n" and c.hear() is None
    until(lambda: not [n for n in names(api) if n.startswith("mcp-")], what="the end of the session")
    assert serve().end() == 0


def test_stdio_a_named_session_stays_and_others_are_out_of_reach(serve, api):
    api.new("theirs")
    c = serve("--session", "work", "--memory-mb", "96")
    assert c.tool("exec", command="echo 1 > f")["structuredContent"]["session_id"] == "work"
    refused = c.tool("exec", command="true", session_id="theirs")
    assert refused["isError"] and "not found" in text(refused)
    assert [s["session_id"] for s in c.tool("list_sessions")["structuredContent"]["sessions"]] == ["work"]
    refused = c.tool("create_session", network="on")
    assert refused["isError"] and "--network on" in text(refused)
    assert c.end() == 0
    again = serve("--session", "work")
    assert text(again.tool("read", path="f")) == "1"
    assert api.get("work")["memory_mb"] == 96
    conflict = serve("--session", "work", "--memory-mb", "97").tool("exec", command="true")
    assert conflict["isError"]
    for name in ("work", "theirs"):
        api.rm(name)


def test_stdio_lines_that_are_no_messages(serve):
    c = serve()
    for line, code in (("[]", -32600), ("{", -32700), ('"x"', -32600), ("[" * 5000, -32600)):
        c.send(line)
        assert c.hear()["error"]["code"] == code, line[:20]
    c.raw(b'{"jsonrpc":"2.0","id":"\xff","method":"ping"}\n')
    assert c.hear()["error"]["code"] == -32700
    c.raw(b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * (13 << 20) + b'"}\n')
    assert c.hear()["error"]["code"] == -32600
    c.raw(b"\n \r\n")
    c.raw(json.dumps(request("server/discover", 9, {})).encode() + b"\r\n")
    assert c.hear()["id"] == 9
    c.send(request("nope", 1, {}))
    assert c.hear()["error"]["code"] == -32601


def test_stdio_without_a_boxd_says_so(tmp_path):
    c = Stdio(tmp_path / "none.sock")
    assert c.process.wait(60) == 125
    assert b"cannot talk to boxd" in c.process.stderr.read()
    c.close()


# stdio, and a boxd that goes away


@pytest.fixture
def restarted():
    """(daemon, start): a daemon of the test's own, which it may kill, and start(*options) -> a client on stdio."""
    d = Boxd()
    clients = []

    def start(*args, **kwargs):
        clients.append(Stdio(d.sock, *args, **kwargs))
        return clients[-1]

    yield d, start
    for client in clients:
        client.close()
    d.close()


def restart(daemon, how=signal.SIGKILL):
    """SIGUSR2 is how systemd restarts it: both leave the sessions alone."""
    daemon.stop(how)
    daemon.start()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGUSR2])
@pytest.mark.parametrize("era", ["handshake", "modern"])
def test_stdio_finds_its_sandbox_again_when_boxd_is_restarted(restarted, era, how):
    daemon, start = restarted
    c = start()
    if era == "handshake":
        c.send(INITIALIZE)
        assert c.hear()["result"]["protocolVersion"] == "2025-11-25"
        c.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def tool(tool, /, **arguments):
        """Without _meta what was agreed on counts, also for the next boxd."""
        c.number += 1
        c.send(request("tools/call", c.number, None if era == "handshake" else {}, name=tool, arguments=arguments))
        answer = c.hear()
        assert answer["id"] == c.number, answer
        return answer["result"]

    session = tool("exec", command="echo kept > f")["structuredContent"]["session_id"]
    other = tool("create_session", name="other")["structuredContent"]["session_id"]
    tool("start_process", process_id="p", command="cat")
    for n in range(2):
        restart(daemon, how)
        assert text(tool("read", path="f")) == "kept"  # and no answer to a handshake before it
        tool("write_stdin", process_id="p", data=f"{n}\n")
        said = tool("read_process_output", process_id="p", offset=2 * n, wait_ms=30000)
        assert json.loads(text(said))["output"] == f"{n}\n"
        assert tool("exec", command="true", session_id=other)["structuredContent"]["session_id"] == other
    assert {session, other} == names(daemon.client())
    assert c.end() == 0
    said = c.process.stderr.read().decode()
    assert said.count("connecting again") == said.count("connected to boxd again") == 2, said
    until(lambda: names(daemon.client()) == {other}, what="the end of the session")


def test_stdio_ends_its_session_also_when_nothing_was_asked_after_boxd_was_killed(restarted):
    daemon, start = restarted
    c = start()
    c.tool("exec", command="true")
    restart(daemon)
    c.ask("server/discover")
    assert c.end() == 0
    until(lambda: names(daemon.client()) == set(), what="the end of the session")


def test_stdio_requests_under_way_hear_that_boxd_was_lost(restarted):
    daemon, start = restarted
    c = start()
    session = c.tool("exec", command="true")["structuredContent"]["session_id"]
    for number in ("a", 7):
        c.send(request("tools/call", number, {}, name="exec", arguments={"command": HANG}))
    until(lambda: runs(daemon.client(), session), what="the command")
    daemon.stop(signal.SIGKILL)
    for number in ("a", 7):
        lost = c.hear()
        assert lost["id"] == number and lost["error"]["code"] == -32000, lost
        assert "the connection to boxd was lost before it answered" in lost["error"]["message"]
    c.send(request("tools/call", "later", {}, name="exec", arguments={"command": "echo later"}))
    daemon.start()
    later = c.hear()
    assert later["id"] == "later" and text(later["result"]) == "later\n"


def test_stdio_a_boxd_that_ended_its_sessions_gives_new_ones(restarted):
    daemon, start = restarted
    c = start("--session", "work")
    c.tool("exec", command="true")
    restart(daemon, signal.SIGTERM)
    assert c.tool("exec", command="true")["structuredContent"]["session_id"] == "work"


def test_stdio_a_boxd_that_stays_away_is_given_up(restarted):
    daemon, start = restarted
    c = start(env={"BOX_MCP_RECONNECT_SEC": "0.5"})
    c.tool("exec", command="true")
    daemon.stop(signal.SIGKILL)
    assert c.process.wait(600) == 125
    said = c.process.stderr.read().decode()
    assert "connecting again" in said and f"no boxd answers at unix://{daemon.sock}" in said


def test_stdio_whoever_comes_again_takes_over_from_a_connection_that_is_not_known_to_be_lost(restarted):
    daemon, _ = restarted
    session = "mcp-0123456789abcdef"

    async def line(client="0123456789abcdef"):
        ws = await websockets.unix_connect(str(daemon.sock), uri="ws://localhost/mcp/stdio")
        await ws.send(json.dumps({"client": client, "session": {}}))
        return ws

    async def run(ws, command):
        await ws.send(json.dumps(request("tools/call", 1, {}, name="exec", arguments={"command": command})))
        return json.loads(await ws.recv())["result"]

    async def play():
        first = await line()
        assert (await run(first, "echo mine > f"))["structuredContent"]["session_id"] == session
        second = await line()
        assert text(await run(second, "cat f")) == "mine\n"
        await first.close()
        assert text(await run(second, "cat f")) == "mine\n"
        await second.close()
        for bad in ("0123", "0123456789ABCDEF", "../../0123456789", 7):
            with pytest.raises(websockets.ConnectionClosed):
                await (await line(bad)).recv()

    asyncio.run(play())
    until(lambda: names(daemon.client()) == set(), what="the end of the session")


# HTTP, requests that stand alone


def test_http_modern(mcp, daemon):
    status, (answer,) = mcp.modern("server/discover")
    assert status == 200 and answer["result"]["resultType"] == "complete"
    assert answer["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "box"
    status, (answer,) = mcp.modern("tools/list")
    assert {t["name"] for t in answer["result"]["tools"]} == TOOLS and answer["result"]["ttlMs"] > 0
    result = mcp.tool("exec", command="echo one; exit 4")
    assert not result["isError"] and result["structuredContent"]["session_id"] == "mcp-local"
    assert mcp.tool("exec", command="cat nope")["structuredContent"]["exit_code"] == 1
    assert mcp.tool("read", path="nope")["isError"]
    assert daemon.audit(via="mcp", event="exec_start")
    status, messages = mcp.modern("tools/call", {"progressToken": "t"}, name="exec",
                                  arguments={"command": "echo a; sleep 1.2; echo b"})
    assert status == 200 and messages[0]["params"]["message"] == "a\n"
    assert text(messages[-1]["result"]) == "a\nb\n"


def test_http_modern_statuses(mcp):
    good = request("tools/call", 1, {}, name="exec", arguments={"command": "true"})
    headers = {"MCP_Protocol_Version": MODERN, "Mcp_Method": "tools/call", "Mcp_Name": "exec"}

    def status(body=good, **changed):
        code, answer = mcp.post(body, **{**headers, **changed})
        return code, answer[0]["error"]["code"] if answer and "error" in answer[0] else None

    assert status() == (200, None)
    assert status(Mcp_Name="=?base64?ZXhlYw==?=") == (200, None)
    for wrong in ({"Mcp_Method": None}, {"Mcp_Method": "tools/list"}, {"Mcp_Name": None}, {"Mcp_Name": "read"},
                  {"MCP_Protocol_Version": None}, {"MCP_Protocol_Version": "2025-11-25"}):
        assert status(**wrong) == (400, -32020), wrong
    unknown = {"_meta": {**META, "io.modelcontextprotocol/protocolVersion": "1900-01-01"}}
    assert status({**good, "params": unknown}, MCP_Protocol_Version="1900-01-01") == (400, -32022)
    assert status({**good, "params": unknown}) == (400, -32020)
    assert status({**good, "params": {"name": "exec"}}) == (400, -32602)
    assert status(request("nope", 1, {}), Mcp_Method="nope") == (404, -32601)
    assert status(request("initialize", 1, {}), Mcp_Method="initialize") == (404, -32601)
    assert status("{") == (400, -32700)
    assert status([good]) == (400, -32600)
    assert status({"jsonrpc": "2.0", "id": 1, "result": {}}) == (400, -32600)
    assert status({"jsonrpc": "2.0", "method": "notifications/x"}, Mcp_Method="notifications/x") == (202, None)
    assert status(Accept="text/html") == (406, -32600)
    assert status(Accept="text/event-stream") == (200, None)
    assert mcp.raw("GET")[0] == 405 and mcp.raw("DELETE")[0] == 405
    assert mcp.raw("PUT", "{}")[0] == 405


def test_http_modern_whoever_hangs_up_ends_the_command(mcp, api):
    mcp.tool("exec", command="true")
    conn, response = mcp.open("POST", request("tools/call", 1, {"progressToken": 1}, name="exec",
                                              arguments={"command": HANG, "timeout_sec": 600}),
                              MCP_Protocol_Version=MODERN, Mcp_Method="tools/call", Mcp_Name="exec")
    assert response.getheader("Content-Type") == "text/event-stream"
    assert runs(api, "mcp-local")
    response.close()
    conn.close()
    until(lambda: not runs(api, "mcp-local"), what="the end of the command")


def test_http_handles_are_for_whoever_was_given_them(mcp, api):
    api.new("private")
    handle = mcp.tool("create_session", name="h")["structuredContent"]["session_id"]
    assert handle == "mcp-local-h"
    assert text(mcp.tool("exec", command="echo x > f; cat f", session_id=handle)) == "x\n"
    assert mcp.tool("read", path="f")["isError"]  # the default session is another one
    assert mcp.tool("exec", command="true", session_id="private")["isError"]
    assert mcp.tool("delete_session", session_id="private")["isError"]
    assert not mcp.tool("delete_session", session_id=handle)["isError"]
    assert "private" in names(api) and handle not in names(api)
    api.rm("private")


# HTTP with a handshake


def test_http_legacy(mcp, api):
    assert mcp.initialize()["protocolVersion"] == "2025-11-25"
    assert mcp.post({"jsonrpc": "2.0", "method": "notifications/initialized"}) == (202, [])
    assert mcp.legacy("ping") == (200, [{"jsonrpc": "2.0", "id": 1, "result": {}}])
    status, (answer,) = mcp.legacy("tools/call", name="exec", arguments={"command": "echo hi"})
    session = answer["result"]["structuredContent"]["session_id"]
    assert status == 200 and text(answer["result"]) == "hi\n" and "resultType" not in answer["result"]
    other = Http(mcp.port)
    other.initialize()
    _, (answer,) = other.legacy("tools/call", name="exec", arguments={"command": "true"})
    assert answer["result"]["structuredContent"]["session_id"] != session
    assert mcp.legacy("nope")[1][0]["error"]["code"] == -32601
    assert mcp.post(request("ping"), MCP_Protocol_Version="2025-11-25")[0] == 200
    assert mcp.post(request("ping"), MCP_Protocol_Version="1999-01-01")[0] == 400
    assert mcp.post(request("ping"), Mcp_Session_Id="0" * 32)[0] == 404
    lost = Http(mcp.port)
    assert lost.legacy("tools/list")[0] == 400
    assert mcp.raw("DELETE")[0] == 204
    until(lambda: session not in names(api), what="the end of the session")
    assert mcp.legacy("ping")[0] == 404
    assert mcp.raw("DELETE")[0] == 404
    other.raw("DELETE")


def test_http_legacy_a_lost_connection_is_no_cancellation(mcp, api):
    mcp.initialize()
    _, (answer,) = mcp.legacy("tools/call", name="exec", arguments={"command": "true"})
    session = answer["result"]["structuredContent"]["session_id"]
    body = request("tools/call", "long", None, name="exec", arguments={"command": HANG, "timeout_sec": 600},
                   _meta={"progressToken": 1})
    conn, response = mcp.open("POST", body)
    assert response.getheader("Content-Type") == "text/event-stream"
    conn.sock.close() if conn.sock is not None else None
    response.close()
    assert mcp.legacy("ping")[0] == 200
    assert runs(api, session)
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "long"}}
    assert mcp.post(cancelled)[0] == 202
    until(lambda: not runs(api, session), what="the end of the command")
    mcp.raw("DELETE")


def test_http_legacy_the_stream_of_a_cancelled_request_ends(mcp, api):
    mcp.initialize()
    body = request("tools/call", 5, None, name="exec", arguments={"command": HANG, "timeout_sec": 600},
                   _meta={"progressToken": 1})
    conn, response = mcp.open("POST", body)
    mcp.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}})
    events = [line for line in response.read().decode().splitlines() if line.startswith("data:")]
    assert all("notifications/progress" in line for line in events)
    conn.close()
    mcp.raw("DELETE")


def test_http_legacy_a_stream_by_get(mcp):
    mcp.initialize()
    conn, response = mcp.open("GET", Accept="text/event-stream")
    assert response.status == 200 and response.getheader("Content-Type") == "text/event-stream"
    assert mcp.raw("GET", Accept="text/event-stream")[0] == 409
    assert mcp.raw("GET", Accept="application/json")[0] == 406
    assert mcp.raw("DELETE")[0] == 204
    assert response.read() == b""  # it ends with the session
    conn.close()


# Who is let in


def test_only_pages_of_our_own_may_ask(mcp):
    here = f"http://127.0.0.1:{mcp.port}"

    def status(**headers):
        return mcp.raw("POST", INITIALIZE, **headers)[0]

    assert status(Origin=here) == 200
    assert status(Host=f"localhost:{mcp.port}", Origin=f"http://localhost:{mcp.port}") == 200
    assert status(Origin=f"http://127.0.0.1:{mcp.port + 1}") == 403
    assert status(Origin=f"http://localhost:{mcp.port}") == 403  # another name than it was asked by
    assert status(Origin="http://evil.example") == 403
    assert status(Origin="null") == 403
    assert status(Host="evil.example", Origin="http://evil.example") == 403


def test_scopes_hold_as_for_http(guarded):
    a, b = Http(guarded.port, TOKEN_A), Http(guarded.port, TOKEN_B)
    assert Http(guarded.port).raw("POST", INITIALIZE)[0] == 401
    assert a.tool("exec", command="true")["structuredContent"]["session_id"] == "alpha-mcp-alpha"
    assert b.tool("exec", command="true")["structuredContent"]["session_id"] == "beta-mcp-beta"
    refused = b.tool("exec", command="true", session_id="alpha-mcp-alpha")
    assert refused["isError"] and "not found" in text(refused)
    for tool, arguments in (("write", {"path": "x", "content": ""}), ("create_session", {}),
                            ("start_process", {"command": "cat"})):
        refused = b.tool(tool, **arguments)
        assert refused["isError"] and "may not" in text(refused), tool
    assert guarded.audit(via="mcp", event="denied", who="beta")
    assert [s["session_id"] for s in b.tool("list_sessions")["structuredContent"]["sessions"]] == ["beta-mcp-beta"]
    # A session of the protocol is its caller's, too.
    a.initialize()
    b.session = a.session
    assert b.legacy("ping")[0] == 404 and a.legacy("ping")[0] == 200
    b.session = None
    uri = "box://sessions/alpha-mcp-alpha/files/workspace"
    assert a.modern("resources/read", uri=uri)[1][0]["result"]
    assert b.modern("resources/read", uri=uri)[1][0]["error"]["code"] == -32602
    a.raw("DELETE")


def test_the_clients_of_one_caller_are_bounded(daemon):
    clients = [Http(daemon.port) for _ in range(66)]
    for c in clients:
        c.initialize()
    assert clients[0].legacy("ping")[0] == 404  # those that were idle for longest have gone
    assert clients[-1].legacy("ping")[0] == 200
    for c in clients:
        c.raw("DELETE")


def test_a_body_that_is_too_large_is_refused(daemon):
    conn = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)
    with contextlib.closing(conn):
        conn.putrequest("POST", "/mcp")
        conn.putheader("Content-Length", str(13 << 20))
        conn.endheaders()
        assert conn.getresponse().status == 413
