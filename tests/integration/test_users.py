# SPDX-License-Identifier: Apache-2.0
"""Who is served without a token, over TCP on loopback as on the unix socket, and what of the host such a user may
mount: what it could itself open."""

import contextlib
import http.client
import json
import os
import pwd
import socket

import pytest
from boxlib import ApiError, Boxd, Client
from lbwire import Rpc, free_port
from peerlib import directory, elsewhere

# Users that every Debian has, each with a group of its own; and one that has no entry anywhere.
ALICE, BOB, STRANGER = (pwd.getpwnam(n).pw_uid for n in ("www-data", "backup", "games"))
NAMELESS = 61001


class Tcp(Client):
    def __init__(self, port, timeout=60):
        self._conn = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)


@contextlib.contextmanager
def daemon(**env):
    port = free_port()
    d = Boxd("--ws-control-port", str(port), env=env)
    d.port = port
    try:
        yield d
    finally:
        d.close()


@pytest.fixture(scope="module")
def stock():
    with daemon() as d:
        yield d


@pytest.fixture(scope="module")
def alices():
    with daemon(BOX_ALLOWED_USERS=str(ALICE)) as d:
        yield d


@pytest.fixture
def homes():
    """Alice's, Bob's, neither open to others; and one of Bob's that is, with a file in it that is not."""
    with directory() as top, contextlib.ExitStack() as stack:
        found = {n: stack.enter_context(directory(top, uid, mode))
                 for n, uid, mode in (("alice", ALICE, 0o700), ("bob", BOB, 0o700), ("open", BOB, 0o755))}
        for name, uid in (("alice", ALICE), ("bob", BOB), ("open", BOB)):
            path = found[name] + "/secret"
            with open(path, "w") as f:
                f.write(name)
            os.chown(path, uid, uid)
            os.chmod(path, 0o600)
        os.mkdir(found["bob"] + "/inner", 0o777)
        os.chmod(found["bob"] + "/inner", 0o777)
        yield found


def problem(fn):
    try:
        return ["ok", fn()]
    except ApiError as e:
        return [e.status, e.code, e.detail, e.problem.get("remediation", ""), e.problem.get("cause", "")]
    except Exception as e:  # noqa: B902
        return [type(e).__name__, str(e)]


def test_another_user_is_refused_over_tcp_and_told_what_to_set(stock):
    """The hole: everybody who could connect was served, and saw what root sees."""
    said = elsewhere(lambda: problem(lambda: Tcp(stock.port).ps()), uid=ALICE)
    assert said[:2] == [403, "user_not_served"]
    assert "allowed_users" in said[3] and "allowed_groups" in said[3] and "token_file" in said[3]

    def langbot():
        with Rpc(("127.0.0.1", stock.port)):
            return "served"

    said = elsewhere(lambda: problem(langbot), uid=ALICE)
    assert said[0] == "Refused" and "403" in said[1] and "allowed_users" in said[1], said
    assert f"uid {ALICE} is refused" in stock.log()
    assert Tcp(stock.port).ps() == []  # root is served


def test_health_is_everybodys(stock):
    assert elsewhere(lambda: Tcp(stock.port).call("GET", "/v1/health"), uid=ALICE) == {"status": "ok"}


def test_whoever_has_gone_is_not_taken_for_root(stock):
    """The kernel says uid 0 of a socket that its process has closed."""
    def hit_and_run():
        for _ in range(50):
            s = socket.create_connection(("127.0.0.1", stock.port))
            body = json.dumps({"session_id": "ghost"})
            s.sendall(f"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                      f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
            s.close()
    elsewhere(hit_and_run, uid=ALICE)
    api = Tcp(stock.port)
    assert api.ps() == []  # it comes after them in the same queue


@pytest.mark.parametrize("wire", ["tcp", "unix"])
def test_a_user_who_is_named_mounts_what_it_can_open_and_nothing_else(alices, homes, wire):
    def client():
        return Tcp(alices.port) if wire == "tcp" else alices.client()

    def mount(path, mode="rw", cmd="cat secret; id -u > made; ls -ln", name="a"):
        api = client()
        api.new(name, host_path=path, host_path_mode=mode)
        try:
            return api.sh(name, cmd)
        finally:
            api.rm(name)

    own = elsewhere(lambda: mount(homes["alice"]), uid=ALICE)
    assert own["exit_code"] == 0 and own["stdout"].startswith("alice"), own
    assert os.stat(homes["alice"] + "/made").st_uid == ALICE
    for path, mode in ((homes["bob"], "rw"), (homes["bob"], "ro"), (homes["bob"] + "/inner", "rw"),
                       (homes["open"], "rw")):
        said = elsewhere(lambda path=path, mode=mode: problem(lambda: mount(path, mode)), uid=ALICE)
        assert said[0] in (400, 403) and f"uid {ALICE} may not mount '{path}'" in said[2], said
    extra = elsewhere(lambda: problem(lambda: client().new("b", extra_mounts=[
        {"host_path": homes["bob"], "mount_path": "/m", "mode": "ro"}])), uid=ALICE)
    assert f"uid {ALICE} may not mount '{homes['bob']}'" in extra[2]
    # What others may read is there, as it is for her: the owner's private file is not.
    seen = elsewhere(lambda: mount(homes["open"], "ro", "ls; cat secret"), uid=ALICE)
    assert seen["stdout"].split() == ["secret"] and "denied" in seen["stderr"].lower(), seen
    with pytest.raises(RuntimeError, match="user_not_served"):
        elsewhere(lambda: client().ps(), uid=BOB)


def test_a_user_without_an_entry_has_no_group():
    """What it may write is not to be guessed: the message says what is missing."""
    with daemon(BOX_ALLOWED_USERS=str(NAMELESS)) as d, directory(uid=NAMELESS, mode=0o700) as home:
        said = elsewhere(lambda: problem(lambda: Tcp(d.port).new("n", host_path=home)), uid=NAMELESS)
        assert f"belongs to gid {NAMELESS}, and that user is no member" in said[2], said
        elsewhere(lambda: Tcp(d.port).new("n", host_path=home, host_path_mode="ro"), uid=NAMELESS)


def test_sessions_of_others_are_out_of_reach(alices, homes):
    root = alices.client()
    root.new("roots", host_path=homes["bob"])
    root.new("plain")
    try:
        said = elsewhere(lambda: problem(lambda: Tcp(alices.port).sh("roots", "cat secret")), uid=ALICE)
        assert said[0] == 404, said
        said = elsewhere(lambda: problem(
            lambda: Tcp(alices.port).call("GET", "/v1/sessions/roots/files?path=/workspace/secret")), uid=ALICE)
        assert said[0] == 404, said
        assert elsewhere(lambda: problem(lambda: Tcp(alices.port).sh("plain", "echo hi")), uid=ALICE)[0] == 404
    finally:
        root.rm("roots")
        root.rm("plain")


def test_langbot_of_a_user_who_is_named(homes):
    """Its default configuration works; the directories of others do not, as mounts or as a skill store."""
    def own():
        with Rpc(("127.0.0.1", d.port)) as r:
            r.call("box_init", {"local": {"host_root": "./data/box"}}, ctx=None)
            place = os.path.realpath("data/box/default")
            r.call("box_create_session", {"session_id": "s", "host_path": place})
            out = r.call("box_exec", {"session_id": "s", "host_path": place, "cmd": "touch made; echo $?"})
            return [out["stdout"], os.stat(place + "/made").st_uid]

    def others():
        said = []
        with Rpc(("127.0.0.1", d.port)) as r:
            for action, data in (
                    ("box_create_session", {"session_id": "t", "host_path": homes["bob"]}),
                    ("box_init", {"local": {"host_root": homes["bob"] + "/box"}}),
                    ("box_init", {"local": {"host_root": os.getcwd(), "skills_root": homes["bob"]}}),
                    ("box_create_skill", {"name": "x", "description": "d", "instructions": "i"})):
                said.append(problem(lambda a=action, x=data: r.call(a, x, ctx=None if a == "box_init" else "own")))
        return said

    with daemon(BOX_ALLOWED_USERS=str(ALICE)) as d:
        assert elsewhere(own, homes["alice"], uid=ALICE) == ["0", ALICE]
        mounted, init, _, skill = elsewhere(others, homes["alice"], uid=ALICE)
        assert f"uid {ALICE} may not mount" in mounted[1], mounted
        assert f"belongs to uid {BOB}" in init[1], init
        assert skill[0] == "RpcError" and f"belongs to uid {BOB}" in skill[1], skill
        assert sorted(os.listdir(homes["bob"])) == ["inner", "secret"]


def test_groups_are_named_too():
    with open("/etc/group") as f:
        row = next((r for r in (line.split(":") for line in f) if r[3].strip()), None)
    if row is None:
        pytest.skip("no group of this machine has a member")
    member = pwd.getpwnam(row[3].strip().split(",")[0])
    with daemon(BOX_ALLOWED_GROUPS=row[0]) as d:
        if member.pw_uid != 0:
            assert elsewhere(lambda: Tcp(d.port).ps(), uid=member.pw_uid) == []
        with pytest.raises(RuntimeError, match="user_not_served"):
            elsewhere(lambda: Tcp(d.port).ps(), uid=ALICE)


def test_names_that_are_not_there_are_an_error():
    with pytest.raises(RuntimeError, match="there is no user 'nobody-of-that-name'"):
        Boxd(env={"BOX_ALLOWED_USERS": "nobody-of-that-name"})
    with pytest.raises(RuntimeError, match="there is no group 'none-of-that-name'"):
        Boxd(env={"BOX_ALLOWED_GROUPS": "0, none-of-that-name"})


def test_a_session_remembers_whose_it_is(homes):
    """Also over a restart: what root has mounted is not the user's, what the user has mounted is."""
    with daemon(BOX_ALLOWED_USERS=str(ALICE)) as d:
        d.client().new("roots", host_path=homes["bob"])
        elsewhere(lambda: Tcp(d.port).new("hers", host_path=homes["alice"]), uid=ALICE)
        d.process.kill()
        d.process.wait()
        d.start()
        assert elsewhere(lambda: Tcp(d.port).sh("hers", "cat secret"), uid=ALICE)["stdout"] == "alice"
        said = elsewhere(lambda: problem(lambda: Tcp(d.port).sh("roots", "cat secret")), uid=ALICE)
        assert said[0] == 404, said


@pytest.mark.rootless
def test_without_root_boxd_serves_itself(tmp_path):
    with daemon() as d:
        assert Tcp(d.port).ps() == []
        assert Tcp(d.port).new("s")["session_id"] == "s"


def test_an_unprivileged_boxd_serves_itself_and_root_and_mounts_nothing_for_others(homes):
    """As another user: one who is named is served, but nobody could look with that user's rights."""
    port = free_port()
    with directory(uid=BOB, mode=0o755) as state:
        d = Boxd("--ws-control-port", str(port), state=state, env={"BOX_ALLOWED_USERS": str(ALICE)},
                 prefix=["setpriv", "--reuid", str(BOB), "--regid", str(BOB), "--clear-groups"])
        try:
            assert elsewhere(lambda: Tcp(port).ps(), uid=BOB) == Tcp(port).ps() == []
            with pytest.raises(RuntimeError, match="user_not_served"):
                elsewhere(lambda: Tcp(port).ps(), uid=STRANGER)
            said = elsewhere(lambda: problem(lambda: Tcp(port).new("a", host_path=homes["bob"])), uid=ALICE)
            assert said[0] == 403 and f"cannot be mounted for uid {ALICE}" in said[2], said
            assert elsewhere(lambda: Tcp(port).new("b"), uid=ALICE)["session_id"] == "b"
            assert elsewhere(lambda: Tcp(port).new("c", host_path=homes["bob"]), uid=BOB)["session_id"] == "c"
        finally:
            d.close()
