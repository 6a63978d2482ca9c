# SPDX-License-Identifier: Apache-2.0
"""A tool call with a query, from what a model says to what it is shown, on a real boxd: rows T06, T15 to T18, T22, T23,
T36, T37, T58 and I03."""

import pytest
from boxlib import ApiError
from policylib import Governed

# As the seeds' make_query writes it: ids, and variables as text.
QUERY = {"query_id": 7, "launcher_type": "person", "launcher_id": "test_user", "sender_id": "test_user",
         "variables": {"launcher_type": "person", "launcher_id": "test_user", "sender_id": "test_user", "query_id": "7"}}
NOTICE = "characters truncated"


@pytest.fixture(scope="module")
def daemon():
    d = Governed("box: {shared_host_root: '{top}/data', output_limit_chars: 100}")
    yield d
    d.close()


@pytest.fixture
def api(daemon):
    client = daemon.client()
    yield client
    client.close()


def tool(api, command, query=QUERY, **arguments):
    body = {"tool": "exec", "query": query, "arguments": {"command": command, **arguments}}
    return api.call("POST", "/v1/execute-tool", body)["result"]


def test_row_T06_row_I03_a_tool_call_runs_in_the_session_of_its_query(api):
    first = tool(api, "echo one > /tmp/kept; echo hi")
    assert first["session_id"] == "person_test_user" and first["ok"] and first["stdout"] == "hi\n"
    assert {"backend", "status", "exit_code", "stderr", "stdout_truncated", "stderr_truncated", "duration_ms"} <= first.keys()
    assert tool(api, "cat /tmp/kept")["stdout"] == "one\n"
    assert [s["session_id"] for s in api.ps()].count("person_test_user") == 1


def test_row_I03_variables_of_the_query_name_the_session(api):
    query = {"query_id": 8, "variables": {"launcher_type": "group", "launcher_id": "g1"}}
    assert tool(api, "true", query)["session_id"] == "group_g1"


def test_row_T58_a_query_without_a_launcher_runs_by_its_id_in_the_default_workspace(api, daemon):
    r = tool(api, "pwd; echo x > made", {"query_id": 42})
    assert (r["session_id"], r["status"], r["ok"], r["stdout"]) == ("42", "completed", True, "/workspace\n")
    assert (daemon.top / "data/default/made").read_text() == "x\n"


def test_what_a_model_may_not_decide_is_not_up_to_it(api):
    """Its command, directory, time and variables are its own; nothing else of what it sends is obeyed."""
    r = tool(api, "echo $WHO; pwd", workdir="/workspace", env={"WHO": "me"})
    assert (r["session_id"], r["stdout"]) == ("person_test_user", "me\n/workspace\n")
    for more in ({"network": "on"}, {"image": "x"}, {"session_id": "other"}, {"host_path": "/etc"}, {"memory_mb": 99999}):
        try:
            assert tool(api, "true", **more)["session_id"] == "person_test_user"
        except ApiError as error:
            assert error.status == 422
    made = api.get("person_test_user")
    assert (made["network"], made["memory_mb"], made["image"]) == ("off", 512, "python:3.11-slim")
    assert [s["session_id"] for s in api.ps() if s["session_id"] == "other"] == []


def test_row_T15_row_T17_output_up_to_the_limit_is_unchanged(api):
    for n in (1, 99, 100):
        r = tool(api, f"printf 'é%.0s' $(seq {n})")
        assert (r["stdout"], r["stdout_truncated"]) == ("é" * n, False) and "stdout_id" not in r


def test_row_T16_head_and_tail_are_kept_and_the_whole_has_an_id(api):
    r = tool(api, "printf 'HEAD%0512dTAIL' 0")
    out = r["stdout"]
    assert r["stdout_truncated"] and len(out) == 100
    assert out.startswith("HEAD") and out.endswith("TAIL") and f"... [458 {NOTICE}] ..." in out
    api._conn.request("GET", f"/v1/sessions/person_test_user/outputs/{r['stdout_id']}")
    assert api._conn.getresponse().read() == b"HEAD" + b"0" * 512 + b"TAIL"


def test_row_T18_streams_are_cut_each_for_itself(api):
    r = tool(api, "echo short; printf '%0300d' 1 >&2")
    assert (r["stdout"], r["stdout_truncated"], r["stderr_truncated"]) == ("short\n", False, True)
    assert len(r["stderr"]) == 100 and f"[238 {NOTICE}]" in r["stderr"]


@pytest.mark.parametrize("given", [999, "999", 999.0, " 999 ", "1_000"])
def test_row_T22_row_T23_a_long_timeout_is_clamped_whatever_it_is_written_as(api, daemon, given):
    tool(api, f"echo {given!r}", timeout_sec=given)
    start = daemon.audit(event="exec_start", command=f"echo {given!r}")[-1]
    assert start["policy"]["clamped"] is True


def test_row_T23_what_is_no_number_is_refused(api):
    for bad in ("12.5", "abc", 999.5, "", [1]):
        with pytest.raises(ApiError) as caught:
            tool(api, "true", timeout_sec=bad)
        assert caught.value.status == 422, bad


def test_a_command_that_takes_too_long_says_so(api):
    r = tool(api, "sleep 100", timeout_sec=1)
    assert (r["status"], r["ok"], r["exit_code"], r["stderr"]) == ("timed_out", False, None,
                                                                  "Command timed out after 1 seconds.")


def test_row_T36_row_T37_failures_are_remembered_by_query_and_the_newest_fifty_stay():
    daemon = Governed("", "--backend", "fake")
    try:
        api = daemon.client()
        for query_id in range(100, 160):
            with pytest.raises(ApiError):
                tool(api, "x", {"query_id": query_id}, timeout_sec=-1)
        errors = api.call("GET", "/v1/errors")["errors"]
        assert [e["query_id"] for e in errors] == [str(i) for i in range(110, 160)]
        assert {e["type"] for e in errors} == {"BoxValidationError"}
        assert all(e["timestamp"].endswith("+00:00") and e["message"] for e in errors)
        assert api.call("GET", "/v1/status")["recent_error_count"] == 50
    finally:
        daemon.close()
