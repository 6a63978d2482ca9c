# SPDX-License-Identifier: Apache-2.0
"""execute-tool with a query, what is kept of its output, status and errors: rows I03, I06, T36, T37, T38 over HTTP."""

import socket
import threading

import pytest
from boxlib import ApiError, Boxd, _UnixConnection
from hostlib import until


def query(n=1, who="42"):
    return {"query_id": n, "launcher_type": "person", "launcher_id": who, "sender_id": "u", "variables": {"k": "v"}}


def run(api, command, q=None, **arguments):
    return api.call("POST", "/v1/execute-tool", {"tool": "exec", "arguments": {"command": command, **arguments},
                                                 "query": q or query()})


@pytest.fixture
def small(tmp_path):
    """A daemon that shows twenty characters of an output."""
    config = tmp_path / "box.yaml"
    config.write_text("box:\n  output_limit_chars: 20\n")
    daemon = Boxd("--config", str(config))
    yield daemon
    daemon.close()


def test_row_I03_the_query_names_the_session(boxd):
    api = boxd.client()
    assert run(api, "echo x > /tmp/mark")["result"]["session_id"] == "person_42"
    assert run(api, "cat /tmp/mark", query(2))["result"]["stdout"] == "x\n"
    assert run(api, "cat /tmp/mark", query(3, "43"))["result"]["ok"] is False
    assert {s["session_id"] for s in api.ps()} == {"person_42", "person_43"}
    # The same tool in a session that is there.
    r = api.call("POST", "/v1/execute-tool", {"tool": "exec", "arguments": {"command": "cat /tmp/mark"},
                                              "session_id": "person_42"})
    assert r["result"]["stdout"] == "x\n" and r["text"]
    api.close()


def test_row_I06_the_output_limit_is_configured_and_the_whole_is_addressable(small):
    api = small.client()
    result = run(api, "seq 1 1000")["result"]
    whole = "".join(f"{n}\n" for n in range(1, 1001)).encode()
    assert result["stdout_truncated"] and len(result["stdout"]) < 200
    base = f"/v1/sessions/{result['session_id']}/outputs/{result['stdout_id']}"

    def get(headers=None):
        conn = _UnixConnection(str(small.sock), 60)
        conn.request("GET", base, headers=headers or {})
        r = conn.getresponse()
        body = r.read()
        conn.close()
        return r.status, r.headers, body

    status, headers, body = get()
    assert (status, body, headers["Accept-Ranges"]) == (200, whole, "bytes")
    for text, part in (("bytes=0-3", whole[:4]), ("bytes=100-", whole[100:]), ("bytes=-5", whole[-5:])):
        status, headers, body = get({"Range": text})
        assert (status, body) == (206, part) and headers["Content-Range"].endswith(f"/{len(whole)}")
    status, headers, _ = get({"Range": f"bytes={len(whole)}-"})
    assert status == 416 and headers["Content-Range"] == f"bytes */{len(whole)}"
    assert get({"Range": "lines=1-2"})[0] == 200
    found = api.call("GET", f"{base}/grep?pattern=9$&max_matches=3")
    assert [m["text"] for m in found["matches"]] == ["9", "19", "29"]
    rest = f"offset={found['next_offset']}&line={found['next_line']}"
    more = api.call("GET", f"{base}/grep?pattern=9$&max_matches=1&{rest}")
    assert more["matches"][0] == {"line": 39, "offset": whole.index(b"\n39\n") + 1, "text": "39"}
    with pytest.raises(ApiError) as e:
        api.call("GET", f"{base}/grep?pattern=(")
    assert e.value.status == 422
    # Short output has nothing to come back for.
    assert "stdout_id" not in run(api, "echo hi")["result"]
    api.close()


def test_row_T36_row_T37_row_T38_failures_are_remembered_and_counted(boxd):
    api = boxd.client()
    for n in range(60):
        with pytest.raises(ApiError):
            run(api, "true", {**query(100 + n), "launcher_id": ""}, workdir="relative")
    errors = api.call("GET", "/v1/errors")["errors"]
    assert len(errors) == 50
    assert [e["query_id"] for e in errors] == [str(n) for n in range(110, 160)]
    assert all(e["type"] and e["message"] and e["timestamp"] for e in errors)
    status = api.call("GET", "/v1/status")
    assert (status["recent_error_count"], status["available"], status["active_sessions"]) == (50, True, 0)
    assert status["backend"] == {"name": "native", "available": True}
    api.close()


@pytest.mark.parametrize("body,status", [
    ({"tool": "exec", "arguments": {"command": "true"}}, 422),
    ({"tool": "exec", "arguments": {"command": "true"}, "query": {}, "session_id": "x"}, 422),
    ({"tool": "none", "arguments": {}, "session_id": "x"}, 404),
    ({"arguments": {}, "session_id": "x"}, 422),
    ({"tool": "exec", "arguments": [], "session_id": "x"}, 422),
    ({"tool": "exec", "arguments": {"command": "true"}, "session_id": "x", "more": 1}, 422),
    ({"tool": "exec", "arguments": {"command": "true"}, "session_id": "nowhere"}, 404),
])
def test_what_is_no_call(boxd_shared, body, status):
    api = boxd_shared.client()
    with pytest.raises(ApiError) as e:
        api.call("POST", "/v1/execute-tool", body)
    assert e.value.status == status and e.value.problem["cause"] and e.value.problem["remediation"]
    api.close()


def test_a_caller_that_leaves_takes_its_command_with_it(boxd):
    api = boxd.client()
    run(api, "true")
    body = b'{"tool":"exec","session_id":"person_42","arguments":{"command":"touch /tmp/up; sleep 1000"}}'
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(boxd.sock))
        s.sendall(b"POST /v1/execute-tool HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        until(lambda: api.x("person_42", "ls", "/tmp/up")["exit_code"] == 0, what="the command")
    until(lambda: api.x("person_42", "pgrep", "-x", "sleep")["exit_code"] != 0, what="the end of the command")
    api.close()


def test_many_at_once(boxd):
    results = []

    def work(n):
        api = boxd.client()
        results.append(run(api, f"echo {n}", query(n, str(n % 5)))["result"]["stdout"])
        api.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(40)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(int(r) for r in results) == list(range(40))
