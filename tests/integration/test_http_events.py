# SPDX-License-Identifier: Apache-2.0
"""What happens, told as it happens; and the audit log over HTTP."""

import json
import socket
import threading

import pytest
from boxlib import ApiError, Boxd
from hostlib import until
from ssetext import Events

TOKEN = "0123456789abcdef0123456789abcdef"


def watch(daemon, query="", last=None, **more):
    return Events(daemon.sock, "GET", f"/v1/events{query}", headers={} if last is None else {"Last-Event-ID": last},
                  **more)


def take(events, n):
    return [next(events) for _ in range(n)]


def test_sessions_processes_and_execs(boxd):
    api = boxd.client()
    with watch(boxd) as events:
        kind, first, data = next(events)
        assert (kind, data["seq"]) == ("ready", 0)
        api.new("s")
        api.x("s", "sh", "-c", "exit 4")
        api.call("POST", "/v1/sessions/s/processes", {"process_id": "p", "command": "sleep", "args": ["1000"],
                                                      "cwd": "/tmp"})
        api.call("DELETE", "/v1/sessions/s/processes/p")
        api.rm("s")
        got = take(events, 5)
    assert [k for k, _, _ in got] == ["session.created", "exec.ended", "process.started", "process.exited",
                                      "session.deleted"]
    assert [d["seq"] for _, _, d in got] == [1, 2, 3, 4, 5]
    assert all(d["session_id"] == "s" and d["type"] == k and d["time"] for k, _, d in got)
    assert (got[1][2]["outcome"], got[1][2]["exit_code"]) == ("exited", 4)
    assert got[2][2]["process_id"] == got[3][2]["process_id"] == "p"
    # Back with the id of any of them: what followed, once.
    with watch(boxd, last=got[2][1]) as events:
        assert next(events)[0] == "ready"
        assert [d["seq"] for _, _, d in take(events, 2)] == [4, 5]
    with watch(boxd, last=first) as events:
        assert next(events)[0] == "ready" and [d["seq"] for _, _, d in take(events, 5)] == [1, 2, 3, 4, 5]
    api.close()


def test_filters_and_what_is_no_filter(boxd_shared, api, session):
    a, b = session(), session()
    with watch(boxd_shared, f"?session_id={a}&type=exec.ended,session.deleted") as events:
        assert next(events)[0] == "ready"
        api.x(b, "true")
        api.call("POST", f"/v1/sessions/{a}/processes", {"process_id": "p", "command": "true", "cwd": "/tmp"})
        made = api.sh(a, "exit 3", detach=True)["exec_id"]
        kind, _, data = next(events)
        assert (kind, data["session_id"], data["exec_id"], data["exit_code"]) == ("exec.ended", a, made, 3)
        api.rm(a)
        assert next(events)[0] == "session.deleted"
    for bad in ("?type=session", "?type=session.created,,", "?type=" + "x" * 600):
        assert watch(boxd_shared, bad).status == 422
    assert watch(boxd_shared, last="nonsense").status == 422


def test_idle_sessions_expire():
    daemon = Boxd(env={"BOX_SESSION_TTL_SEC": "1"})
    api = daemon.client()
    with watch(daemon, "?type=session.expired,session.lost") as events:
        assert next(events)[0] == "ready"
        api.new("idle")
        assert next(events)[0] == "session.expired"
    api.close()
    daemon.close()


def test_ids_of_an_earlier_boxd_are_not_taken_for_ours(boxd):
    api = boxd.client()
    with watch(boxd) as events:
        next(events)
        api.new("s")
        _, last, _ = next(events)
    api.close()
    boxd.stop()
    boxd.start()
    api = boxd.client()
    with watch(boxd, last=last) as events:
        assert next(events)[0] == "restarted"
        api.new("t")
        assert next(events)[2]["session_id"] == "t"
    api.close()


def test_a_slow_reader_is_told_how_many_it_missed(boxd):
    """It takes nothing while more happens than its connection and the ring hold."""
    api = boxd.client()
    api.new("s")
    many = 4000
    with watch(boxd, timeout=300) as events:
        assert next(events)[0] == "ready"
        before = boxd.rss_kb()

        def work(n):
            client = boxd.client()
            for _ in range(n):
                client.x("s", "true")
            client.close()

        threads = [threading.Thread(target=work, args=(many // 4,)) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert boxd.rss_kb() - before < 16 * 1024
        seen = missed = last = 0
        while last < many + 1:
            kind, _, data = next(events)
            if kind == "missed":
                missed += data["events"]
            else:
                seen, last = seen + 1, data["seq"]
    assert seen + missed == many and missed > 0
    api.close()


def test_readers_that_leave_leave_nothing_behind(boxd):
    api = boxd.client()
    api.new("s")
    fds = boxd.leaks()["fds"]["boxd"]
    for _ in range(50):
        with watch(boxd) as events:
            next(events)
            api.x("s", "true")
    until(lambda: boxd.leaks()["fds"]["boxd"] == fds, what="connections that are gone")
    api.close()


# The audit log.

def test_audit_in_pages(boxd):
    api = boxd.client()
    api.new("s")
    for i in range(30):
        api.x("s", "echo", str(i))
    records, after = [], 0
    while True:
        page = api.call("GET", f"/v1/audit?after={after}&limit=7")
        if not page["records"]:
            break
        assert len(page["records"]) <= 7
        records += page["records"]
        after = page["next_after"]
    numbers = [r["seq"] for r in records]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) >= 61
    commands = [r["command"] for r in records if r["event"] == "exec_start"]
    assert commands == [f"echo {i}" for i in range(30)]
    assert page["log"]["records"] == numbers[-1] and page["log"]["head"]
    assert api.call("GET", "/v1/audit?after=999999999")["records"] == []
    for bad in ("after=x", "limit=1001", "after=-1"):
        with pytest.raises(ApiError) as e:
            api.call("GET", f"/v1/audit?{bad}")
        assert e.value.status == 422
    api.close()


def test_audit_over_many_files(tmp_path):
    config = tmp_path / "box.yaml"
    config.write_text("audit:\n  file_mb: 1\n")
    daemon = Boxd("--config", str(config))
    api = daemon.client()
    api.new("s")
    text = "x" * 900
    while len(list((daemon.state / "audit").glob("audit-*.log"))) < 2:
        for _ in range(50):
            api.x("s", "true", text)
    records, after = 0, 0
    while (page := api.call("GET", f"/v1/audit?after={after}&limit=1000"))["records"]:
        assert page["records"][0]["seq"] == after + 1
        records, after = records + len(page["records"]), page["next_after"]
    assert records == after == page["log"]["records"]
    for number in range(1, records, 97):
        assert api.call("GET", f"/v1/audit?after={number - 1}&limit=1")["records"][0]["seq"] == number
    # Somebody has been at it: said, not guessed around.
    current = daemon.state / "audit" / "audit.log"
    current.write_bytes(current.read_bytes().replace(b'"seq":', b'"sqe":'))
    with pytest.raises(ApiError) as e:
        api.call("GET", f"/v1/audit?after={records - 1}")
    assert e.value.status == 409 and "audit verify" in e.value.problem["remediation"]
    api.close()
    daemon.close()


@pytest.fixture
def scoped(tmp_path):
    """A daemon on TCP with one token, which may see the sessions a-*."""
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({"tokens": [
        {"name": "a", "token": TOKEN, "sessions": ["a-*"], "tools": ["exec", "events", "session"],
         "profiles": ["default"]}]}))
    tokens.chmod(0o600)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        where = s.getsockname()
    daemon = Boxd("--ws-control-port", str(where[1]), env={"BOX_TOKENS_FILE": str(tokens)})
    daemon.where = where
    yield daemon
    daemon.close()


def test_a_scope_sees_its_own_events_only(scoped):
    api = scoped.client()
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    with Events(scoped.where, "GET", "/v1/events", headers=bearer) as events:
        assert events.status == 200 and next(events)[0] == "ready"
        api.new("b-1")
        api.new("a-1")
        api.sh("b-1", "true")
        api.sh("b-1", "sleep 1000", detach=True, exec_id="x")
        api.sh("a-1", "true")
        assert [(k, d["session_id"]) for k, _, d in take(events, 2)] == [("session.created", "a-1"),
                                                                        ("exec.ended", "a-1")]
    for target in ("/v1/sessions/b-1/execs", "/v1/sessions/b-1/execs/x", "/v1/sessions/b-1/execs/x/stream",
                   "/v1/sessions/none/execs/x"):
        with Events(scoped.where, "GET", target, headers=bearer) as r:
            assert r.status == 404 and r.problem()["code"] == "not_found"
    for target, status in (("/v1/audit", 403), ("/v1/events", 200), ("/v1/sessions/a-1/execs", 200)):
        with Events(scoped.where, "GET", target, headers=bearer) as r:
            assert r.status == status
        with Events(scoped.where, "GET", target) as r:
            assert r.status == 401
    api.close()


def test_a_scope_learns_nothing_of_others_from_numbers(scoped):
    """Neither from what it is told nor from the ids, which bring it back where it was all the same."""
    api = scoped.client()
    bearer = {"Authorization": f"Bearer {TOKEN}"}

    def listen(last=None):
        more = {"Last-Event-ID": last} if last else {}
        return Events(scoped.where, "GET", "/v1/events", headers={**bearer, **more})

    def others(n):
        for i in range(n):
            api.new(f"b-{i}")
            api.rm(f"b-{i}")

    api.new("a-0")
    others(3)
    with listen() as events, listen() as beside:
        _, first, said = next(events)
        assert said == {"seq": 0} and next(beside)[1] != first  # the same moment, another id
        others(3)
        api.new("a-1")
        others(2)
        api.new("a-2")
        told = take(events, 2)
        assert [(d["session_id"], d["seq"]) for _, _, d in told] == [("a-1", 1), ("a-2", 2)]
    # It comes back behind the first of them, and gets the second again.
    with listen(told[0][1]) as events:
        assert next(events)[0] == "ready"
        assert next(events)[2]["session_id"] == "a-2"
    # Numbers of the owner are no ids here, and neither is what was made up.
    with Events(scoped.sock, "GET", "/v1/events") as local:
        _, plain, said = next(local)
        assert said["seq"] > 10 and plain.endswith(f"-{said['seq']}")
    epoch = plain.split("-")[0]
    for wrong in (plain, f"{epoch}-{'0' * 32}", f"{epoch}-{'f' * 32}"):
        with listen(wrong) as r:
            assert r.status == 422 and "that was sent here" in r.problem()["detail"], wrong
    # Away for too long: that something is missing is told, how much there was is not.
    others(600)
    with listen(told[0][1]) as events:
        assert next(events)[0] == "ready"
        kind, _, said = next(events)
        assert (kind, said) == ("missed", {"events": None})
        api.new("a-3")
        assert next(events)[2]["session_id"] == "a-3"
    api.close()
