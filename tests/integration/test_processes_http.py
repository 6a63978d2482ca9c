# SPDX-License-Identifier: Apache-2.0
"""Managed processes over HTTP, and their output by byte offset."""

import http.client
import json
import signal

import pytest
from boxlib import ROOT, ApiError, Boxd, _UnixConnection
from hostlib import until


class Processes:
    def __init__(self, api, sock, sid):
        self.api, self.sock, self.base = api, sock, f"/v1/sessions/{sid}/processes"

    def start(self, process_id, *argv, **more):
        return self.api.call("POST", self.base, {"process_id": process_id, "command": argv[0], "args": list(argv[1:]),
                                                 "cwd": "/tmp", **more})

    def get(self, process_id):
        return self.api.call("GET", f"{self.base}/{process_id}")

    def output(self, process_id, query=""):
        """(bytes, next offset, whether that is the end)."""
        conn = _UnixConnection(str(self.sock), 60)
        conn.request("GET", f"{self.base}/{process_id}/output{query}")
        r = conn.getresponse()
        data = r.read()
        conn.close()
        if r.status != 200:
            raise ApiError(r.status, json.loads(data))
        return data, int(r.headers["Box-Next-Offset"]), r.headers["Box-End"] == "true"


@pytest.fixture
def processes(api, boxd_shared, sid):
    return Processes(api, boxd_shared.sock, sid)


def ended(processes, process_id):
    until(lambda: processes.get(process_id)["status"] == "exited", what="the end of the process")
    return processes.get(process_id)


def test_started_listed_and_forgotten(api, processes, sid):
    p = processes.start("a", "cat", env={"SECRET": "value"})
    assert (p["session_id"], p["process_id"], p["status"], p["command"]) == (sid, "a", "running", "cat")
    assert "value" not in json.dumps(p)
    processes.start("b", "sleep", "1000")
    assert [x["process_id"] for x in api.call("GET", processes.base)["processes"]] == ["a", "b"]
    api.call("DELETE", f"{processes.base}/a")
    with pytest.raises(ApiError) as e:
        processes.get("a")
    assert e.value.status == 404
    assert [x["process_id"] for x in api.call("GET", processes.base)["processes"]] == ["b"]


def test_how_it_ended(processes):
    processes.start("fine", "sh", "-c", "echo out; echo err >&2; exit 7")
    p = ended(processes, "fine")
    assert (p["exit_code"], p["stderr_preview"]) == (7, "err")
    processes.start("killed", "sh", "-c", "kill -9 $$")
    assert ended(processes, "killed")["exit_code"] == -signal.SIGKILL
    # What it wrote is there as long as it is remembered.
    assert processes.output("fine") == (b"out\n", 4, True)


def test_bytes_by_offset(processes):
    processes.start("p", "sh", "-c", "printf 'one\\0\\377two'; cat")
    until(lambda: processes.get("p")["output"]["end"] == 8, what="the output")
    assert processes.output("p") == (b"one\0\xfftwo", 8, False)
    assert processes.output("p", "?from=3&max=2") == (b"\0\xff", 5, False)
    assert processes.output("p", "?from=8") == (b"", 8, False)
    assert processes.output("p", "?from=5&release=1") == (b"two", 8, False)
    assert processes.get("p")["output"] == {"begin": 5, "end": 8, "eof": False}
    for gone in ("?from=4", "?from=9", "?from=18446744073709551615"):
        with pytest.raises(ApiError) as e:
            processes.output("p", gone)
        assert e.value.status == 404 and "5 to 8" in e.value.detail


@pytest.mark.parametrize("query", ["?from=-1", "?from=x", "?max=1048577", "?wait_ms=60001", "?release=2", "?from="])
def test_odd_questions_name_the_member(processes, query):
    processes.start("p", "cat")
    with pytest.raises(ApiError) as e:
        processes.output("p", query)
    assert e.value.status == 422 and query[1:].split("=")[0] in e.value.detail


def test_waiting_ends_with_output_with_the_end_and_with_patience(processes):
    processes.start("later", "sleep", "1000")
    assert processes.output("later", "?wait_ms=50") == (b"", 0, False)
    processes.start("later", "sh", "-c", "sleep 0.2; echo now; sleep 1000")
    assert processes.output("later", "?wait_ms=60000") == (b"now\n", 4, False)
    processes.start("end", "sleep", "0.2")
    assert processes.output("end", "?wait_ms=60000") == (b"", 0, True)


def test_a_reader_that_waits_hears_that_the_process_is_stopped(api, processes):
    processes.start("p", "sleep", "1000")
    conn = _UnixConnection(str(processes.sock), 60)
    conn.request("GET", f"{processes.base}/p/output?wait_ms=60000")
    api.call("DELETE", f"{processes.base}/p")
    answer = conn.getresponse()  # its end, or that it is no more, whichever is known first
    assert answer.status == 404 or (answer.status == 200 and answer.headers["Box-End"] == "true")
    conn.close()


def test_a_full_ring_holds_the_process_back_and_nothing_is_lost(processes):
    processes.start("p", "seq", "1", "200000")
    want = "".join(f"{n}\n" for n in range(1, 200001)).encode()
    until(lambda: processes.get("p")["output"]["end"] == 256 << 10, what="a full ring")
    assert processes.get("p")["status"] == "running"
    got, at, end = b"", 0, False
    while not end:
        data, at, end = processes.output("p", f"?from={at}&release=1&max=1048576&wait_ms=60000")
        got += data
    assert got == want
    page = (ROOT / "docs/reference/http.md").read_text()
    assert "256 KiB" in page and "`release=1`" in page


def test_unknown_members_and_sessions(api, processes):
    with pytest.raises(ApiError) as e:
        processes.start("p", "cat", colour="red")
    assert e.value.status == 422 and "colour" in e.value.detail
    with pytest.raises(ApiError) as e:
        api.call("GET", "/v1/sessions/nobody/processes")
    assert e.value.status == 404


def test_offsets_outlive_a_daemon_that_is_killed():
    d = Boxd()
    try:
        client = d.client()
        client.new("s")
        p = Processes(client, d.sock, "s")
        p.start("p", "seq", "1", "200000")
        data, at, _ = p.output("p", "?max=100000&wait_ms=60000")
        d.stop(signal.SIGKILL)
        d.start()
        p.api = d.client()
        end = False
        while not end:
            more, at, end = p.output("p", f"?from={at}&release=1&max=1048576&wait_ms=60000")
            data += more
        assert data == "".join(f"{n}\n" for n in range(1, 200001)).encode()
    except http.client.HTTPException as error:
        raise AssertionError(d.log()[-2000:]) from error
    finally:
        d.close()
