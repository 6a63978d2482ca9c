# SPDX-License-Identifier: Apache-2.0
"""A boxd of root that a group of users shares: who may connect, and that no user meets another's sessions."""

import contextlib
import grp
import http.client
import json
import os
import pwd
import socket
import stat
import time

import pytest
from boxlib import ApiError, Boxd
from hostlib import until
from lbwire import Refused, Rpc, context
from peerlib import directory, elsewhere
from policylib import Governed, token
from wsexec import Stream

# Users of every Debian whose first group is the same, and one outside of it.
GROUP = "nogroup"
ALICE, BOB = (pwd.getpwnam(n).pw_uid for n in ("nobody", "sync"))
STRANGER = pwd.getpwnam("www-data").pw_uid
GID = grp.getgrnam(GROUP).gr_gid


@contextlib.contextmanager
def daemon(**env):
    d = Boxd(env={"BOX_SOCKET_GROUP": GROUP, **env})
    try:
        yield d
    finally:
        d.close()


@pytest.fixture(scope="module")
def shared():
    with daemon() as d:
        yield d


def refusal(fn):
    try:
        return ["ok", fn()]
    except ApiError as e:
        return [e.status, e.code, e.detail]


def as_user(d, uid, fn):
    """fn(client) by that user; an error of the API as [status, code, text]."""
    return elsewhere(lambda: refusal(lambda: fn(d.client())), uid=uid)


def good(d, uid, fn):
    status, answer = as_user(d, uid, fn)
    assert status == "ok"
    return answer


def names(sessions):
    return sorted(s["session_id"] for s in sessions)


def test_the_socket_is_for_the_group_and_nobody_else(shared):
    st = os.stat(shared.sock)
    assert (stat.S_IMODE(st.st_mode), st.st_gid) == (0o660, GID)
    assert good(shared, ALICE, lambda c: c.ps()) == []

    def knock():
        with socket.socket(socket.AF_UNIX) as s:
            try:
                s.connect(str(shared.sock))
            except PermissionError:
                return "refused"
        return "connected"

    assert elsewhere(knock, uid=STRANGER) == "refused"
    assert elsewhere(knock, uid=BOB) == "connected"


def test_without_a_group_the_socket_is_the_daemons_own():
    d = Boxd(env={"BOX_SOCKET_GROUP": "none"})
    try:
        assert stat.S_IMODE(os.stat(d.sock).st_mode) == 0o600
    finally:
        d.close()
    with pytest.raises(RuntimeError, match="socket_group: there is no group 'none-of-that-name'.*groupadd"):
        Boxd(env={"BOX_SOCKET_GROUP": "none-of-that-name"})


def test_each_user_sees_its_own_sessions_and_root_sees_all(shared):
    root = shared.client()
    good(shared, ALICE, lambda c: c.new("alices"))
    good(shared, BOB, lambda c: c.new("bobs"))
    root.new("roots")
    try:
        assert names(good(shared, ALICE, lambda c: c.ps())) == ["alices"]
        assert names(good(shared, BOB, lambda c: c.ps())) == ["bobs"]
        assert names(root.ps()) == ["alices", "bobs", "roots"]
        for query in ("", "?sessions=bobs,alices,roots"):
            hers = good(shared, ALICE, lambda c, query=query: c.call("GET", f"/v1/stats{query}")["stats"])
            assert names(hers) == ["alices"]
        assert names(root.call("GET", "/v1/stats")["stats"]) == ["alices", "bobs", "roots"]
        assert good(shared, ALICE, lambda c: c.call("GET", "/v1/status"))["active_sessions"] == 1
        page = elsewhere(lambda: raw(shared, "GET", "/metrics")[1], uid=ALICE)
        assert "alices" not in page and "bobs" not in page
        # Root goes where it likes, and the session stays hers.
        assert root.sh("alices", "echo $HOME > mark; echo $?")["stdout"] == "0\n"
        assert good(shared, ALICE, lambda c: c.sh("alices", "test -s mark; echo $?"))["stdout"] == "0\n"
    finally:
        for name in ("alices", "bobs", "roots"):
            root.rm(name)


def raw(d, method, path, body=None):
    conn = http.client.HTTPConnection("localhost")
    conn.sock = socket.socket(socket.AF_UNIX)
    conn.sock.connect(str(d.sock))
    conn.request(method, path, body, {"Content-Type": "application/json"} if body else {})
    answer = conn.getresponse()
    return [answer.status, answer.read().decode(errors="replace")]


# Every way to reach a session by its name: method, path, body.
WAYS = [
    ("GET", "", None),
    ("DELETE", "", None),
    ("POST", "/exec", {"cmd": "true"}),
    ("GET", "/execs", None),
    ("GET", "/execs/mine", None),
    ("DELETE", "/execs/mine", None),
    ("GET", "/files?path=/workspace/secret", None),
    ("GET", "/files?path=/workspace&list=1", None),
    ("PUT", "/files?path=/workspace/x", "x"),
    ("GET", "/top", None),
    ("GET", "/processes", None),
    ("POST", "/processes", {"command": "sleep", "args": ["60"]}),
    ("GET", "/processes/p", None),
    ("DELETE", "/processes/p", None),
    ("GET", "/processes/p/output", None),
    ("GET", "/outputs/0123456789abcdef", None),
]


@pytest.mark.parametrize("method, path, body", WAYS, ids=[f"{w[0]}{w[1].split('?')[0]}" for w in WAYS])
def test_a_session_of_another_answers_like_one_that_is_not_there(shared, method, path, body):
    text = body if isinstance(body, str) or body is None else json.dumps(body)
    good(shared, BOB, lambda c: c.new("his"))
    try:
        good(shared, BOB, lambda c: c.sh("his", "echo hidden > secret"))
        there = elsewhere(lambda: raw(shared, method, f"/v1/sessions/his{path}", text), uid=ALICE)
        missing = elsewhere(lambda: raw(shared, method, f"/v1/sessions/her{path}", text), uid=ALICE)
        assert there[0] == 404 and "hidden" not in there[1], there
        if "outputs" not in path:  # an output may outlive its session, and then only its id counts
            drop = ("request_id", "instance")
            told, other = (json.loads(a[1].replace("his", "her")) for a in (there, missing))
            assert [{k: v for k, v in a.items() if k not in drop} for a in (told, other)] == 2 * [
                {k: v for k, v in told.items() if k not in drop}]
        assert good(shared, BOB, lambda c: c.sh("his", "cat secret"))["stdout"] == "hidden\n"
    finally:
        shared.client().rm("his")


def test_a_name_that_another_has_is_a_conflict_and_nothing_else(shared):
    good(shared, BOB, lambda c: c.new("work"))
    try:
        said = as_user(shared, ALICE, lambda c: c.new("work"))
        assert said[0] == 409 and "taken by another user; choose another name" in said[2], said
    finally:
        shared.client().rm("work")
    good(shared, ALICE, lambda c: c.new("work"))  # the name is free again
    good(shared, ALICE, lambda c: c.rm("work"))


def test_what_a_user_left_is_not_the_next_owners(shared):
    """Events, kept execs and records outlive a session; the name may be another user's by then."""
    def begin(c):
        c.new("reused")
        return c.call("POST", "/v1/sessions/reused/exec", {"cmd": "echo alices secret", "id": "mine", "keep": True})

    said = as_user(shared, ALICE, begin)
    good(shared, ALICE, lambda c: c.rm("reused"))
    good(shared, BOB, lambda c: c.new("reused"))
    try:
        for path in ("/v1/sessions/reused/execs", "/v1/sessions/reused/execs/mine", "/v1/audit?limit=1000"):
            status, text = elsewhere(lambda path=path: raw(shared, "GET", path), uid=BOB)
            assert "alices secret" not in text and "mine" not in text.replace("execs/mine", "").replace(
                "exec mine", ""), (path, status, text, said)
        own = elsewhere(lambda: raw(shared, "GET", "/v1/audit?limit=1000"), uid=ALICE)
        assert own[0] == 200 and f"uid-{ALICE}" in own[1] and f"uid-{BOB}" not in own[1]
    finally:
        shared.client().rm("reused")


@contextlib.contextmanager
def acting(uid):
    """The kernel takes this process for that user's where it connects."""
    os.setegid(GID)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@contextlib.contextmanager
def events(d, uid):
    """A stream that this user has opened: a function that reads so many events."""
    conn = http.client.HTTPConnection("localhost")
    conn.sock = socket.socket(socket.AF_UNIX)
    conn.sock.settimeout(60)
    with acting(uid):
        conn.sock.connect(str(d.sock))
    conn.request("GET", "/v1/events")
    answer = conn.getresponse()

    def read(count):
        found = []
        while len(found) < count:
            line = answer.readline()
            if line.startswith(b"data:") and b'"type"' in line:  # the stream begins with a count
                found.append(json.loads(line[5:]))
        return [(e["type"], e["session_id"]) for e in found]

    yield read
    answer.close()
    conn.close()


def test_events_are_of_ones_own_sessions_also_of_those_that_are_gone():
    with daemon() as d, events(d, ALICE) as alices, events(d, BOB) as bobs:
        good(d, ALICE, lambda c: c.new("one"))
        good(d, ALICE, lambda c: c.rm("one"))
        good(d, BOB, lambda c: c.new("one"))
        d.client().new("roots")
        good(d, BOB, lambda c: c.rm("one"))
        good(d, ALICE, lambda c: c.new("two"))
        assert bobs(2) == [("session.created", "one"), ("session.deleted", "one")]
        assert alices(3) == [("session.created", "one"), ("session.deleted", "one"), ("session.created", "two")]


def test_a_session_has_its_owner_over_a_restart():
    with daemon() as d:
        good(d, ALICE, lambda c: c.new("hers"))
        d.process.kill()
        d.process.wait()
        d.start()
        assert names(good(d, ALICE, lambda c: c.ps())) == ["hers"]
        assert good(d, BOB, lambda c: c.ps()) == []
        assert as_user(d, BOB, lambda c: c.sh("hers", "true"))[0] == 404


def test_langbots_wire_has_the_same_walls(shared):
    """A client of LangBot's protocol that is such a user neither lists nor ends what others made."""
    def call(action, data, init=None):
        with Rpc(str(shared.sock)) as r:
            if init:
                r.call("box_init", {"local": {"host_root": init}}, ctx=None)
            return r.call(action, data)

    with directory(uid=ALICE) as home:
        mine = elsewhere(lambda: call("box_create_session", {"session_id": "lb"}, home + "/box"), home, uid=ALICE)
        try:
            assert mine["session_id"] == "lb"
            for uid, seen in ((ALICE, ["lb"]), (BOB, [])):
                assert names(elsewhere(lambda: call("box_get_sessions", {})["sessions"], uid=uid)) == seen
            for action in ("box_delete_session", "box_get_session"):
                with pytest.raises(RuntimeError, match="belongs to another user"):
                    elsewhere(lambda action=action: call(action, {"session_id": "lb"}), uid=BOB)
            assert len(shared.client().ps()) == 1
        finally:
            for s in shared.client().ps():
                shared.client().rm(s["session_id"])


# What ends later than its name is given to another


def stream(d, uid, *first, target="/v1/exec"):
    with acting(uid):
        s = Stream(d.sock, target=target)
    for message in first:
        s.say(message)
    return s


def hear(s):
    kind, message = s.recv()
    assert kind == "text", (kind, message)
    return message


def changes_hands(d, name):
    """Alice's session goes, and Bob makes one of the same name."""
    good(d, ALICE, lambda c: c.rm(name))
    good(d, BOB, lambda c: c.new(name))
    good(d, BOB, lambda c: c.sh(name, "echo kept > f"))


def stays_bobs(d, name):
    try:
        assert good(d, BOB, lambda c: c.sh(name, "cat f"))["stdout"] == "kept\n"
    finally:
        with contextlib.suppress(ApiError):
            d.client().rm(name)


def test_releasing_a_hold_does_not_end_what_another_has_made_of_that_name(shared):
    with stream(shared, ALICE, {"type": "hold", "session": {"session_id": "dev"}}, target="/v1/hold") as s:
        assert hear(s)["type"] == "held"
        changes_hands(shared, "dev")
        s.say({"type": "release"})
        assert hear(s)["type"] == "released"
        stays_bobs(shared, "dev")


def connections(d):
    found = []
    for fd in os.listdir(f"/proc/{d.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{d.pid}/fd/{fd}"))
    return sum(link.startswith("socket:") for link in found)


def test_a_throw_away_run_does_not_take_what_another_has_made_of_its_name_with_it(shared):
    flood = 'while head -c 65536 /dev/zero; do echo >> n; done'
    with stream(shared, ALICE, {"session": {"session_id": "build"}, "ephemeral": True, "cmd": flood}) as s:
        s.started()
        # Nobody reads, so the command stands still, and its end cannot be told before the client has gone.
        counts = [-2, -1]
        while counts[-1] != counts[-2]:
            time.sleep(0.2)
            counts.append(int(good(shared, ALICE, lambda c: c.sh("build", "wc -l < n"))["stdout"]))
        changes_hands(shared, "build")
        before = connections(shared)
    until(lambda: connections(shared) < before, what="the end of the connection")
    stays_bobs(shared, "build")


CLIENT = "0123456789abcdef"


def mcp_line(d, uid):
    s = stream(d, uid, {"session": {}, "client": CLIENT}, {"jsonrpc": "2.0", "id": 1, "method": "ping"},
               target="/mcp/stdio")
    assert hear(s)["id"] == 1
    return s


def mcp_exec(s, command):
    s.say({"jsonrpc": "2.0", "id": 2, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}})
    assert "result" in hear(s)
    s.say({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {
        "name": "exec", "arguments": {"command": command}}})
    return hear(s)["result"]


@pytest.mark.parametrize("asks", [False, True], ids=["found", "asked for"])
def test_a_client_of_mcp_does_not_end_anothers_session_for_having_its_name(shared, asks):
    name = f"mcp-{CLIENT}"
    line = mcp_line(shared, ALICE) if asks else None
    good(shared, BOB, lambda c: c.new(name))
    good(shared, BOB, lambda c: c.sh(name, "echo kept > f"))
    with line or mcp_line(shared, ALICE) as s:
        if asks:
            told = mcp_exec(s, "cat f")
            assert told["isError"] and "taken by another user" in told["content"][0]["text"], told
        before = connections(shared)
    until(lambda: connections(shared) < before, what="the end of the connection")
    stays_bobs(shared, name)


def test_a_client_of_mcp_ends_its_own_session_and_not_the_next_of_that_name(shared):
    name = f"mcp-{CLIENT}"
    with mcp_line(shared, ALICE) as s:
        assert not mcp_exec(s, "true")["isError"]
    until(lambda: shared.client().ps() == [], what="the end of its session")
    with mcp_line(shared, ALICE) as s:
        assert not mcp_exec(s, "true")["isError"]
        changes_hands(shared, name)
        before = connections(shared)
    until(lambda: connections(shared) < before, what="the end of the connection")
    stays_bobs(shared, name)


# Names that are easy to guess


def test_root_is_not_put_into_a_session_that_a_user_has_made_of_that_name(shared):
    root = shared.client()
    good(shared, BOB, lambda c: c.new("mcp-local"))
    good(shared, BOB, lambda c: c.sh("mcp-local", "echo kept > f"))
    try:
        with pytest.raises(ApiError, match="taken by another user") as told:
            root.new("mcp-local")
        assert told.value.status == 409
        with Stream(shared.sock, {"session": {"session_id": "mcp-local"}, "argv": ["true"]}) as s:
            assert "taken by another user" in s.finish()["detail"]
        # By its name, where nothing is made, it is reached.
        assert root.sh("mcp-local", "cat f")["stdout"] == "kept\n"
        with Stream(shared.sock, {"session": {"session_id": "mcp-local"}, "create": False, "argv": ["cat", "f"]}) as s:
            s.started()
            assert s.finish().out == b"kept\n"
    finally:
        root.rm("mcp-local")


def test_a_token_has_no_session_that_a_user_has_made_of_its_name():
    ci, ci_token = token("ci", profiles=["*"], tools=["*"], sessions=["ci-*"])
    d = Governed("", "--backend", "fake", tokens=[ci], env={"BOX_SOCKET_GROUP": GROUP})
    try:
        caller = d.caller(ci_token)
        good(d, BOB, lambda c: c.new("ci-1"))
        assert caller.ps() == []
        for method, path, body in (("GET", "", None), ("POST", "/exec", {"cmd": "true"}), ("DELETE", "", None)):
            assert caller.raw(method, f"/v1/sessions/ci-1{path}", body)[0] == 404
        status, said = caller.raw("POST", "/v1/sessions", {"session_id": "ci-1"})
        assert status == 409 and b"taken by another user" in said, said
        good(d, BOB, lambda c: c.rm("ci-1"))
        assert caller.new("ci-1")["session_id"] == "ci-1" and caller.ps() == ["ci-1"]
        assert f"uid-{BOB}" not in json.dumps(caller.call("GET", "/v1/audit?limit=1000"))
    finally:
        d.close()
def test_the_first_langbot_of_a_user_is_not_that_of_root():
    """Any member of the group could shut root's LangBot out by coming first, with an instance of its own."""
    def come(instance):
        try:
            with Rpc(str(d.sock), instance=instance, ctx=context(instance=instance)) as r:
                return r.call("box_get_sessions", {})["sessions"]
        except Refused as e:
            return int(e.status)

    with daemon() as d:
        for uid, own, other in ((ALICE, "alices", "roots"), (BOB, "bobs", "alices")):
            assert elsewhere(lambda own=own: come(own), uid=uid) == []
            assert elsewhere(lambda other=other: come(other), uid=uid) == 401
        assert come("roots") == []
        assert come("alices") == 401
        assert elsewhere(lambda: come("alices"), uid=ALICE) == []
