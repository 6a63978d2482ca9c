# SPDX-License-Identifier: Apache-2.0
"""What one token uses is not what others need: caps on sessions, commands, managed processes and kept outputs, each of
its own; typed refusals; counted for whoever watches; and the owner, on the unix socket, has none."""

import json
import signal
import subprocess
import threading

import pytest
from boxlib import BUILD, ApiError
from hostlib import until
from policylib import Governed, token
from ssetext import Events

OPEN = {"tools": ["*"], "profiles": ["*"], "networks": ["*"]}
SMALL, SMALL_TOKEN = token("small", sessions=["small-*", "common"], max_sessions=2, max_execs=2, max_processes=1,
                           max_output_mb=1, **OPEN)
PLAIN, PLAIN_TOKEN = token("plain", sessions=["*"], **OPEN)


@pytest.fixture(scope="module")
def daemon():
    d = Governed("", "--backend", "fake", tokens=[SMALL, PLAIN])
    yield d
    d.close()


@pytest.fixture
def small(daemon):
    caller = daemon.caller(SMALL_TOKEN)
    yield caller
    for name in caller.ps():
        caller.rm(name)
    caller.close()


def limited(call, *args, **kwargs):
    with pytest.raises(ApiError) as caught:
        call(*args, **kwargs)
    assert caught.value.status == 429, caught.value
    assert caught.value.code == "limit" and caught.value.problem["remediation"], caught.value
    return caught.value.detail


def metric(daemon, line):
    caller = daemon.caller(PLAIN_TOKEN)
    status, text = caller.raw("GET", "/metrics")
    caller.close()
    found = [row for row in text.decode().splitlines() if row.startswith(line + " ")]
    assert status == 200
    return int(found[0].split()[-1]) if found else None


def test_sessions(daemon, small):
    plain, local = daemon.caller(PLAIN_TOKEN), daemon.client()
    before = metric(daemon, 'box_share_refusals_total{cap="max_sessions"}')
    small.new("small-1")
    small.new("small-2")
    assert metric(daemon, 'box_token_sessions{token="small"}') == 2
    said = limited(small.new, "small-3")
    assert said == ("token 'small' has 2 sessions and may have 2 (max_sessions); delete one, or have its share raised")
    assert metric(daemon, 'box_share_refusals_total{cap="max_sessions"}') == before + 1
    assert daemon.audit(event="denied", who="small")[-1]["reason"] == said
    small.new("small-2")  # it has that one already
    # Others have theirs, and so has the owner.
    plain.new("other")
    local.new("common")
    assert small.sh("common", "echo hi")["outcome"] == "exited"  # one of somebody else's counts to them
    small.rm("small-1")
    small.new("small-3")
    for name in ("other", "common"):
        local.rm(name)


def test_sessions_count_after_a_restart():
    d = Governed("", tokens=[SMALL])
    try:
        caller = d.caller(SMALL_TOKEN)
        caller.new("small-1")
        caller.new("small-2")
        caller.call("POST", "/v1/sessions/small-1/processes", {"command": "cat", "process_id": "one"})
        d.stop(signal.SIGUSR2)
        d.start()
        assert sorted(caller.ps()) == ["small-1", "small-2"]
        assert "max_sessions" in limited(caller.new, "small-3")
        assert "max_processes" in limited(caller.call, "POST", "/v1/sessions/small-2/processes", {"command": "cat"})
    finally:
        d.close()


def test_boxd_ends_well_while_somebody_uses_a_share():
    d = Governed("", tokens=[SMALL])
    try:
        d.caller(SMALL_TOKEN).new("small-1")
        d.caller(SMALL_TOKEN).call("POST", "/v1/sessions/small-1/processes", {"command": "cat", "process_id": "one"})
        waiting = d.caller(SMALL_TOKEN)
        waiting._conn.request("POST", "/v1/sessions/small-1/exec", json.dumps({"cmd": "exec sleep 100000"}),
                              waiting._headers)
        waiting_too = Events(("127.0.0.1", d.port), "POST", "/v1/sessions/small-1/exec", {"cmd": "exec sleep 100000"},
                             {"Authorization": f"Bearer {SMALL_TOKEN}"})
        until(lambda: d.client().get("small-1")["execs"] == 2, what="two commands")
        process = d.process
        d.stop(signal.SIGUSR2)
        assert process.returncode == 0, d.log()
        waiting.close()
        waiting_too.close()
        d.start()
    finally:
        d.close()


def test_commands_at_once(daemon, small):
    small.new("small-1")
    others = [daemon.caller(SMALL_TOKEN) for _ in range(2)]
    threads = [threading.Thread(target=other.sh, args=("small-1", "sleep 100000")) for other in others]
    for t in threads:
        t.start()
    until(lambda: metric(daemon, 'box_token_execs{token="small"}') == 2, what="two commands")
    assert limited(small.sh, "small-1", "true") == (
        "token 'small' has 2 commands running and may have 2 (max_execs); wait for one to end, or have its share "
        "raised")
    # However it is asked for.
    limited(small.sh, "small-1", "true", detach=True)
    assert "max_execs" in limited(small.call, "POST", "/v1/sessions/small-1/tools/exec", {"command": "true"})
    query = {"query_id": 1, "launcher_type": "small-1", "launcher_id": "1"}
    tool = {"tool": "exec", "arguments": {"command": "true"}, "query": query}
    assert "max_execs" in limited(small.call, "POST", "/v1/execute-tool", tool)
    # The owner, and other tokens, run theirs.
    assert daemon.client().sh("small-1", "echo hi")["outcome"] == "exited"
    assert daemon.caller(PLAIN_TOKEN).sh("small-1", "echo hi")["outcome"] == "exited"
    small.rm("small-1")
    for t in threads:
        t.join(60)
    until(lambda: not metric(daemon, 'box_token_execs{token="small"}'), what="their end")
    small.new("small-1")
    assert small.sh("small-1", "echo hi")["outcome"] == "exited"


def test_managed_processes(daemon, small):
    small.new("small-1")
    start = {"command": "cat", "process_id": "one"}
    small.call("POST", "/v1/sessions/small-1/processes", start)
    assert limited(small.call, "POST", "/v1/sessions/small-1/processes", {**start, "process_id": "two"}) == (
        "token 'small' has 1 managed processes running and may have 1 (max_processes); stop one, or have its share "
        "raised")
    small.call("POST", "/v1/sessions/small-1/processes", start)  # in the place of the first
    daemon.client().call("POST", "/v1/sessions/small-1/processes", {**start, "process_id": "owners"})
    small.call("DELETE", "/v1/sessions/small-1/processes/one")
    small.call("POST", "/v1/sessions/small-1/processes", {**start, "process_id": "two"})


def test_kept_outputs(tmp_path):
    """Beyond its share a token loses its own, and nobody else does. On the backend that runs commands."""
    d = Governed("", tokens=[SMALL, PLAIN])
    try:
        small, plain = d.caller(SMALL_TOKEN), d.caller(PLAIN_TOKEN)
        small.new("small-1")
        plain.new("other")
        write = "head -c 700000 /dev/zero | tr '\\0' x"
        theirs = plain.sh("other", write, capture_bytes=0)["stdout_id"]
        first = small.sh("small-1", write, capture_bytes=0)["stdout_id"]
        assert small.raw("GET", f"/v1/sessions/small-1/outputs/{first}")[0] in (200, 206)
        second = small.sh("small-1", write, capture_bytes=0)["stdout_id"]
        assert small.raw("GET", f"/v1/sessions/small-1/outputs/{first}")[0] == 404
        assert small.raw("GET", f"/v1/sessions/small-1/outputs/{second}")[0] in (200, 206)
        assert plain.raw("GET", f"/v1/sessions/other/outputs/{theirs}")[0] in (200, 206)
        assert metric(d, 'box_token_output_bytes{token="small"}') == 700000
    finally:
        d.close()


def test_a_cap_that_changes_holds_at_once():
    d = Governed("", "--backend", "fake", tokens=[{**SMALL, "max_sessions": 1}])
    try:
        caller = d.caller(SMALL_TOKEN)
        caller.new("small-1")
        limited(caller.new, "small-2")
        d.put_tokens([{**SMALL, "max_sessions": 2}])
        until(lambda: caller.raw("POST", "/v1/sessions", {"session_id": "small-2"})[0] == 201, what="the new cap")
    finally:
        d.close()


def test_tokens_that_name_none_have_a_share():
    """As configured, and never more than half of what there is; the owner has it all."""
    d = Governed("tokens: {max_sessions: 3}\nmax_sessions: 4", "--backend", "fake", tokens=[PLAIN])
    try:
        caller, local = d.caller(PLAIN_TOKEN), d.client()
        caller.new("a")
        caller.new("b")
        assert "may have 2 (max_sessions)" in limited(caller.new, "c")
        local.new("c")
        local.new("d")
    finally:
        d.close()


def test_box_config_explains_them(tmp_path):
    config = tmp_path / "box.yaml"
    config.write_text("tokens: {max_execs: 5}\n")
    command = [str(BUILD / "box"), "config", "--explain", "--json", "--config", str(config)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    settings = json.loads(said.stdout)
    assert settings["tokens.max_execs"]["value"] == "5" and "tokens.max_execs" in settings["tokens.max_execs"]["source"]
    assert {k: v["value"] for k, v in settings.items() if k.startswith("tokens.")} == {
        "tokens.max_sessions": "1000", "tokens.max_execs": "5", "tokens.max_processes": "256",
        "tokens.max_output_mb": "64"}
