# SPDX-License-Identifier: Apache-2.0
"""Execs as server-sent events and over WebSocket, and how a client that lost its connection goes on."""

import hashlib
import os

import pytest
import wsexec
from boxlib import ApiError
from hostlib import until
from ssetext import Events, output


def start(daemon, sid, headers=None, **body):
    return Events(daemon.sock, "POST", f"/v1/sessions/{sid}/exec", body, headers)


def resume(daemon, sid, exec_id, last=None, query=""):
    return Events(daemon.sock, "GET", f"/v1/sessions/{sid}/execs/{exec_id}/stream{query}",
                  headers={} if last is None else {"Last-Event-ID": str(last)})


def read(events):
    """{stream: bytes}, bytes dropped, the data of the exit event, the last id."""
    streams, dropped, last, end = {"stdout": b"", "stderr": b""}, 0, None, None
    for kind, last, data in events:
        if kind == "output":
            streams[data["stream"]] += output(data)
        elif kind == "dropped":
            dropped += data["bytes"]
        elif kind == "exit":
            end = data
    return streams, dropped, end, last


def ended(api, sid, exec_id):
    until(lambda: api.call("GET", f"/v1/sessions/{sid}/execs/{exec_id}")["status"] == "ended", what="the end")
    return api.call("GET", f"/v1/sessions/{sid}/execs/{exec_id}")


def test_events_of_one_exec(boxd_shared, sid):
    with start(boxd_shared, sid, cmd="echo out; sleep 0.1; echo err >&2; exit 3") as events:
        kinds = list(events)
    assert [k for k, _, _ in kinds] == ["started", "output", "output", "exit"]
    assert [i for _, i, _ in kinds] == ["0", "4", "8", "9"]
    assert kinds[0][2]["session_id"] == sid and kinds[0][2]["seq"] == 0
    assert kinds[1][2] == {"stream": "stdout", "text": "out\n"}
    assert kinds[2][2] == {"stream": "stderr", "text": "err\n"}
    assert (kinds[3][2]["outcome"], kinds[3][2]["exit_code"]) == ("exited", 3)


def test_text_is_never_cut_in_a_character_and_other_bytes_are_base64(boxd_shared, sid):
    with start(boxd_shared, sid, cmd="printf '\\342\\202'; sleep 0.1; printf '\\254 \\377 '; printf '\\303'") as events:
        got = [(k, d) for k, _, d in events if k == "output"]
    assert b"".join(output(d) for _, d in got) == "€ ".encode() + b"\xff " + b"\xc3"
    assert got[0][1].get("text", "").startswith("€") or "base64" in got[0][1]
    assert "base64" in got[-1][1]


def test_all_of_a_large_output_in_order(boxd_shared, sid):
    with start(boxd_shared, sid, cmd="seq 1 200000", timeout_sec=60) as events:
        streams, dropped, end, last = read(events)
    want = "".join(f"{n}\n" for n in range(1, 200001)).encode()
    assert streams["stdout"] == want and dropped == 0
    assert int(last) == len(want) + 1 and end["stdout_bytes"] == len(want)


def test_a_client_that_vanishes_takes_its_command_with_it(boxd_shared, api, sid):
    with start(boxd_shared, sid, cmd="echo begun; sleep 1000", exec_id="gone") as events:
        assert next(events)[0] == "started" and next(events)[0] == "output"
        assert api.call("GET", f"/v1/sessions/{sid}/execs/gone")["status"] == "running"
    until(lambda: api.call("GET", f"/v1/sessions/{sid}/execs")["execs"] == [], what="nothing left of it")
    until(lambda: api.get(sid)["execs"] == 0, what="the end of the command")


def test_resumed_by_last_event_id_without_gap_or_repeat(boxd_shared, api, sid):
    """Cut off again and again, at whatever event; in the end every byte was seen exactly once."""
    script = ("for i in $(seq 1 400); do echo line $i; echo err $i >&2; [ $((i % 20)) != 0 ] || sleep 0.02; done; "
              "read x; echo last")
    cmd = f"mkfifo /tmp/f; exec 3<>/tmp/f; ({script}) <&3"
    with start(boxd_shared, sid, cmd=cmd, on_disconnect="keep", exec_id="kept", timeout_sec=100) as events:
        assert next(events)[0] == "started"
    seen, last, cuts = {"stdout": b"", "stderr": b""}, 0, 0
    while seen["stderr"].count(b"\n") < 400 or seen["stdout"].count(b"\n") < 400:
        with resume(boxd_shared, sid, "kept", last) as events:
            kind, _, data = next(events)
            assert kind == "started" and data["seq"] == last
            kind, last, data = next(events)
            assert kind == "output"
            last = int(last)
            seen[data["stream"]] += output(data)
        cuts += 1
    assert cuts >= 2
    api.sh(sid, "echo > /tmp/f")
    with resume(boxd_shared, sid, "kept", last) as events:
        streams, dropped, end, final = read(events)
    assert streams["stdout"] == b"last\n" and dropped == 0 and end["outcome"] == "exited"
    assert seen["stdout"] == "".join(f"line {i}\n" for i in range(1, 401)).encode()
    assert seen["stderr"] == "".join(f"err {i}\n" for i in range(1, 401)).encode()
    # Whoever has the end needs nothing more; an EventSource stops at this status.
    assert resume(boxd_shared, sid, "kept", final).status == 204
    # It can all be had again, and is kept only as long as it is wanted.
    with resume(boxd_shared, sid, "kept") as events:
        assert read(events)[0]["stdout"].endswith(b"last\n")
    api.call("DELETE", f"/v1/sessions/{sid}/execs/kept")
    until(lambda: resume(boxd_shared, sid, "kept").status == 404, what="nothing left of it")


def test_detached_and_what_was_dropped_is_counted(boxd_shared, api, sid):
    size = 300_000
    made = api.sh(sid, f"head -c {size} /dev/zero | tr '\\0' x; echo; exit 5", detach=True, exec_id="d",
                  capture_bytes=65536)
    assert (made["status"], made["exec_id"], made["on_disconnect"]) == ("running", "d", "keep")
    done = ended(api, sid, "d")
    assert (done["outcome"], done["exit_code"], done["stdout_bytes"]) == ("exited", 5, size + 1)
    kept = done["output"]["end"] - done["output"]["begin"]
    assert done["output"]["end"] == size + 1 and 0 < kept <= 65536 + 32768
    with resume(boxd_shared, sid, "d") as events:
        streams, dropped, end, _ = read(events)
    assert dropped == done["output"]["begin"] and dropped + len(streams["stdout"]) == size + 1
    assert end["exit_code"] == 5
    with resume(boxd_shared, sid, "d", query=f"?from={size}") as events:
        assert read(events)[0]["stdout"] == b"\n"
    for bad in (f"?from={size + 3}", "?from=x", "?from=-1"):
        r = resume(boxd_shared, sid, "d", query=bad)
        assert r.status == 422 and r.problem()["code"] == "invalid"
    assert resume(boxd_shared, sid, "d", last="nonsense").status == 422


def test_a_detached_command_obeys_its_timeout(api, sid):
    api.sh(sid, "sleep 1000", detach=True, exec_id="t", timeout_sec=0.2)
    assert ended(api, sid, "t")["outcome"] == "timed_out"


def test_listed_signalled_and_dismissed(api, sid):
    first = api.sh(sid, "trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done", detach=True)
    api.sh(sid, "sleep 1000", detach=True, exec_id="second")
    assert [x["exec_id"] for x in api.call("GET", f"/v1/sessions/{sid}/execs")["execs"]] == [first["exec_id"], "second"]
    path = f"/v1/sessions/{sid}/execs/{first['exec_id']}"
    until(lambda: api.call("GET", path)["output"]["end"] == 3, what="the trap")
    api.call("POST", f"{path}/signal", {"signal": "TERM"})
    assert ended(api, sid, first["exec_id"])["exit_code"] == 9
    with pytest.raises(ApiError) as e:
        api.call("POST", f"{path}/signal", {"signal": "TERM"})
    assert (e.value.status, e.value.code) == (409, "state")
    with pytest.raises(ApiError) as e:
        api.call("POST", f"/v1/sessions/{sid}/execs/second/signal", {"signal": "NONE"})
    assert e.value.status == 422
    with pytest.raises(ApiError) as e:
        api.sh(sid, "true", detach=True, exec_id="second")
    assert (e.value.status, e.value.code) == (409, "conflict")
    api.call("DELETE", f"/v1/sessions/{sid}/execs/second")
    until(lambda: [x["exec_id"] for x in api.call("GET", f"/v1/sessions/{sid}/execs")["execs"]] == [first["exec_id"]],
          what="the end of the second")


@pytest.mark.parametrize("body", [{"exec_id": "x"}, {"on_disconnect": "keep"}, {"on_disconnect": "ask"},
                                  {"exec_id": "../x", "detach": True}, {"exec_id": "", "detach": True},
                                  {"detach": True, "tty": True}, {"detach": 1}])
def test_what_is_not_for_a_plain_exec_is_refused(api, sid, body):
    with pytest.raises(ApiError) as e:
        api.sh(sid, "true", **body)
    assert e.value.status == 422 and e.value.problem["remediation"]


def test_an_exec_goes_with_its_session(api, session):
    sid = session()
    api.sh(sid, "sleep 1000", detach=True, exec_id="x")
    api.rm(sid)
    assert ended(api, sid, "x")["outcome"] == "session_lost"


# Over WebSocket.

def attach(daemon, sid, exec_id, query=""):
    return wsexec.Stream(daemon.sock, target=f"/v1/sessions/{sid}/execs/{exec_id}/stream{query}")


def test_websocket_resumed_with_stdin_signals_and_resize(boxd_shared, api, sid):
    # Of a SIGINT that comes while it waits for stty bash takes no notice: "next" says that it does not any more.
    script = "trap 'echo caught' INT; while read -r x; do echo got $x; stty size; echo next; done; echo bye"
    with wsexec.stream(boxd_shared, sid, "bash", "-c", script, stdin=True, tty=True, rows=10, cols=20,
                       on_disconnect="keep", exec_id="ws") as s:
        assert s.started()["exec_id"] == "ws"
        s.stdin(b"one\n")
        had = s.until(b"10 20\r\nnext\r\n")
    assert api.call("GET", f"/v1/sessions/{sid}/execs/ws")["status"] == "running"
    with attach(boxd_shared, sid, "ws", f"?from={len(had)}") as s:
        started = s.started()
        assert (started["seq"], started["stdin_bytes"]) == (len(had), 4)
        s.resize(30, 40)
        s.stdin(b"two\n")
        more = s.until(b"30 40\r\nnext\r\n")
        assert b"one" not in more
        s.signal("INT")
        s.until(b"caught")
        s.stdin(b"\x04")
        result = s.finish()
    assert result["type"] == "exit" and result["outcome"] == "exited"
    # The same again from the beginning, after its end.
    with attach(boxd_shared, sid, "ws") as s:
        s.started()
        again = s.finish()
    assert again.out.startswith(had + more) and again["seq"] == len(again.out)


def test_websocket_cut_at_any_byte_goes_on_there(boxd_shared, sid):
    data = os.urandom(200_000)
    with wsexec.stream(boxd_shared, sid, "cat", stdin=True, on_disconnect="keep", exec_id="cut") as s:
        s.started()
        s.feed(data).join(60)
        got = s.recv()[1]
    want = hashlib.sha256(data).hexdigest()
    for _ in range(20):
        with attach(boxd_shared, sid, "cut", f"?from={len(got)}") as s:
            assert s.started()["seq"] == len(got)
            kind, piece = s.recv()
            if kind == 1:
                got += piece[: max(1, len(piece) // 3)]
    with attach(boxd_shared, sid, "cut", f"?from={len(got)}") as s:
        s.started()
        result = s.finish()
    assert hashlib.sha256(got + result.out).hexdigest() == want and result["seq"] == len(data)


def test_two_readers_see_the_same(boxd_shared, sid):
    with wsexec.stream(boxd_shared, sid, "cat", stdin=True, exec_id="both") as a:
        a.started()
        with attach(boxd_shared, sid, "both") as b, resume(boxd_shared, sid, "both") as c:
            b.started()
            assert next(c)[0] == "started"
            a.stdin(b"from a\n")
            a.until(b"from a\n")
            b.until(b"from a\n")
            b.stdin(b"from b\n")
            b.eof()
            assert a.finish().out == b"from b\n"
            b.finish()
            assert read(c)[0]["stdout"] == b"from a\nfrom b\n"


def test_a_slow_reader_holds_the_program_back_in_constant_memory(boxd, session):
    api = boxd.client()
    api.new("s")
    before = boxd.rss_kb()
    with start(boxd, "s", cmd="yes", exec_id="slow") as events:
        next(events)

        def still():
            end = api.call("GET", "/v1/sessions/s/execs/slow")["output"]["end"]
            return end if end == api.call("GET", "/v1/sessions/s/execs/slow")["output"]["end"] > 0 else None

        until(still, what="a program that is held back")
        assert boxd.rss_kb() - before < 8 * 1024
    until(lambda: api.get("s")["execs"] == 0, what="the end of the command")
    api.close()
