# SPDX-License-Identifier: Apache-2.0
"""Table H, host paths and names, of the catalogue of checks.

| check | what | tests |
|---|---|---|
| H01 | places that nobody may mount | test_mounts.py |
| H02 | the same through every field and front | here; `host_path` and `extra_mounts` over HTTP also in test_mounts.py |
| H03 | odd spellings | test_mounts.py |
| H04 | links, magic links, mounts below | test_mounts.py |
| H05 | swapped paths | test_mounts.py, test_files_race.py |
| H06 | a source that is missing | test_mounts.py |
| H07 | targets | test_mounts.py |
| H08 | read-only | test_mounts.py |
| H09 | ownership | test_host_image_mounts.py |
| H10 | ids | test_mounts.py |
| H11 | text of strangers makes one record, escaped | here; what a person looks at: K09 in test_hostile_text.py |
| H12 | read-back | test_files.py |

H02 speaks of volumes and tmpfs targets: there are no such fields, as
test_check_H02_fields_of_other_runtimes_mount_nothing holds. The one
target without a source is a workspace without a host path: test_check_H07_a_mount_cannot_cover_what_is_ours.
"""

import contextlib
import json
import os
import re
import shutil

import pytest
from boxlib import ApiError, Boxd, box
from hostlib import mount_dir, until
from lbwire import Rpc, RpcError
from policylib import Governed

SYSTEM = ("/", "/etc", "/etc/shadow", "/proc", "/proc/1/root", "/sys", "/dev", "/run", "/var/run/docker.sock", "/root",
          "/home", "/usr", "/var", "/boot")


@pytest.fixture(scope="module")
def world():
    """A daemon, a directory that may be mounted and one that may not."""
    top = mount_dir("box-h02-")
    for name in ("allowed/box", "outside"):
        (top / name).mkdir(parents=True)
        (top / name).chmod(0o777)
    (top / "outside/secret").write_text("SECRET")
    daemon = Boxd(env={"BOX_ALLOWED_MOUNT_ROOTS": str(top / "allowed")})
    daemon.allowed, daemon.outside = top / "allowed", top / "outside"
    yield daemon
    daemon.close()
    shutil.rmtree(top)


def http(spec):
    def ask(world, path):
        client = world.client()
        try:
            with pytest.raises(ApiError) as caught:
                client.new("h02", **spec(path))
            assert caught.value.code in ("denied", "not_found", "invalid"), (path, caught.value)
        finally:
            client.close()
    return ask


def command_line(world, path):
    done = box("run", "--mount", f"{path}:/mnt/x:ro", "--", "true", sock=world.sock)
    assert done.returncode == 125 and len(done.stderr.splitlines()) == 1, (path, done)


def wire(action, spec):
    def ask(world, path):
        with Rpc(world.sock) as rpc:
            with pytest.raises(RpcError, match="^Box(Validation|)Error: "):
                rpc.call(action, {"session_id": "h02", "cmd": "true", **spec(path)})
            assert rpc.call("box_get_sessions")["sessions"] == []
    return ask


def one(path):
    return {"host_path": str(path)}


def more(path, **rest):
    return {"extra_mounts": [{"host_path": str(path), "mount_path": "/mnt/x", **rest}]}


def second(path):
    """A good one first: each of a list is looked at."""
    first = {"host_path": "/tmp", "mount_path": "/mnt/a", "mode": "none"}
    return {"extra_mounts": [first, *more(path)["extra_mounts"]]}


WAYS = {
    "HTTP, workspace": http(one),
    "HTTP, workspace, read-only": http(lambda path: {**one(path), "host_path_mode": "ro"}),
    "HTTP, further mount": http(more),
    "HTTP, second of two": http(second),
    "HTTP, by a profile": http(lambda path: {**more(path, mode="ro"), "profile": "network_basic"}),
    "command line": command_line,
    "LangBot, create, workspace": wire("box_create_session", one),
    "LangBot, create, further mount": wire("box_create_session", more),
    "LangBot, exec, workspace": wire("box_exec", one),
    "LangBot, exec, further mount": wire("box_exec", more),
}


@pytest.mark.parametrize("way", WAYS)
def test_check_H02_every_way_refuses_the_same_places(world, way):
    for path in (*SYSTEM, world.outside, world.state, world.state / "boxd.sock", world.outside.parent):
        WAYS[way](world, path)
    client = world.client()
    assert client.ps() == []
    client.close()
    assert os.listdir(world.outside) == ["secret"]


def test_check_H02_skills_are_kept_and_found_in_allowed_places_only(world):
    """The store, and a directory that is looked at for skills."""
    with Rpc(world.sock) as rpc:
        host = {"host_root": str(world.allowed / "box")}
        rpc.call("box_init", {"local": {**host, "skills_root": str(world.outside)}}, ctx=None)
        for action, data in (("box_create_skill", {"skill": {"name": "demo"}}), ("box_list_skills", {})):
            with pytest.raises(RpcError, match="Error: .*allowed_mount_roots"):
                rpc.call(action, data)
        rpc.call("box_init", {"local": host}, ctx=None)
        assert rpc.call("box_create_skill", {"skill": {"name": "demo"}})["skill"]["name"] == "demo"
        for path in (*SYSTEM, world.outside, "../../../../outside"):
            with pytest.raises(RpcError, match="^BoxValidationError: "):
                rpc.call("box_scan_skill_directory", {"path": str(path)})
        for name in ("../../../outside", "/etc", "..", "a/b"):
            with contextlib.suppress(RpcError):
                assert rpc.call("box_get_skill", {"name": name}) == {"skill": None}
            with pytest.raises(RpcError):
                rpc.call("box_exec", {"session_id": "h02", "cmd": "true", "skill_name": name})
    assert os.listdir(world.outside) == ["secret"]


def test_check_H02_a_tool_call_mounts_nothing():
    """What a model says about mounts is not obeyed, whichever tool it calls."""
    daemon = Governed("box: {shared_host_root: '{top}/data'}")
    try:
        client = daemon.client()
        query = {"query_id": 7, "launcher_type": "person", "launcher_id": "h02"}
        for given in ({"host_path": "/etc"}, more("/etc"), {"volumes": ["/etc:/mnt/x"]}, {"mount_path": "/etc"}):
            body = {"tool": "exec", "query": query, "arguments": {"command": "cat /proc/self/mountinfo", **given}}
            try:
                shown = client.call("POST", "/v1/execute-tool", body)["result"]["stdout"]
            except ApiError as refused:
                assert refused.code == "invalid", refused
                continue
            assert "/mnt/x" not in shown
        for tool, given in (("read", {"path": "/etc/shadow"}), ("read", {"path": "/workspace/../etc/shadow"}),
                            ("glob", {"pattern": "*", "path": "/etc"}), ("grep", {"pattern": "root", "path": "/etc"})):
            body = {"tool": tool, "query": query, "arguments": given}
            result = client.call("POST", "/v1/execute-tool", body)["result"]
            assert not result["ok"] and "root:" not in json.dumps(result), result
        client.close()
    finally:
        daemon.close()


OTHERS = {"volumes": ["/etc:/mnt/x"], "binds": ["/etc:/mnt/x"], "mounts": [{"source": "/etc", "target": "/mnt/x"}],
          "tmpfs": {"/mnt/x": "size=1g"}, "devices": ["/dev/mem"], "volumes_from": ["o"], "secrets": ["/etc/shadow"],
          "rootfs": "/", "privileged": True, "cap_add": ["ALL"]}


def test_check_H02_fields_of_other_runtimes_mount_nothing(world):
    """Refused where unknown members are, and without effect on the wire where LangBot's runtime ignores them."""
    client = world.client()
    for name, value in OTHERS.items():
        with pytest.raises(ApiError) as caught:
            client.new("h02", **{name: value})
        assert caught.value.code == "invalid" and name in caught.value.detail, caught.value
    client.new("h02")
    plain = client.sh("h02", "cut -d' ' -f5,6 /proc/self/mountinfo; ls /dev")["stdout"]
    client.rm("h02")
    client.close()
    with Rpc(world.sock) as rpc:
        shown = rpc.exec("h02", "cut -d' ' -f5,6 /proc/self/mountinfo; ls /dev", **OTHERS)["stdout"]
        assert shown.strip() == plain.strip()
        rpc.call("box_delete_session", {"session_id": "h02"})


CHAT = "sandbox: {image: host, chats_root: '%s', dependencies_host_path: '%s', lambda_tools_host_path: '%s'}"


@pytest.mark.parametrize("section, reason", [
    ("box: {local: {default_workspace: /etc}}", "default_workspace is outside allowed_mount_roots"),
    ("box: {local: {host_root: '{top}', default_workspace: /etc}}", "default_workspace is outside allowed_mount_roots"),
    ("box: {shared_host_root: /, allowed_host_mount_roots: [/]}", "the whole file system cannot be allowed"),
    (CHAT % ("/etc/chats", "{top}", "{top}"), "'/etc/chats' of the section sandbox is outside"),
    (CHAT % ("{top}/chats", "/etc", "{top}"), "'/etc' of the section sandbox is outside"),
    (CHAT % ("{top}/chats", "{top}", "/root"), "'/root' of the section sandbox is outside"),
])
def test_check_H02_what_the_configuration_mounts_is_held_to_the_same(section, reason):
    with pytest.raises(RuntimeError, match=reason):
        Governed(section).close()
    assert not os.path.exists("/etc/chats")


def test_check_H02_a_policy_cannot_allow_more_than_boxd_does():
    daemon = Governed("box: {local: {allowed_mount_roots: [/etc, /usr, '{top}']}}",
                      env={"BOX_ALLOWED_MOUNT_ROOTS": "/srv"})
    try:
        client = daemon.client()
        for path in ("/etc", "/usr", "/usr/share", daemon.top):
            for spec in (one(path), more(path)):
                with pytest.raises(ApiError) as caught:
                    client.new("h02", **spec)
                assert caught.value.code == "denied", (path, caught.value)
        client.close()
    finally:
        daemon.close()


# H11: the same requests twice, with plain words and with these. Each leaves as many records of the same shape.

PLAIN = "word"
HOSTILE = ('w\n{"level":"error","msg":"forged"}\r\n12:00:00 error forged\x1b[2J\x1b]0;t\x07\x7f\x9b31m\u2028'
           '","msg":"forged')
FORGED = re.compile(r'^\{"level":"error"|^12:00:00 error forged', re.M)


@pytest.fixture(scope="module", params=["json", "human"])
def watched(request):
    daemon = Boxd("--log-format", request.param, "--log-level", "debug")
    daemon.format = request.param
    yield daemon
    daemon.close()


def asks(daemon, text, mark):
    """One of everything that takes text; the last of them can be found in the log."""
    client = daemon.client()

    def call(*args):
        with contextlib.suppress(ApiError):
            client.call(*args)

    call("POST", "/v1/sessions", {"session_id": f"-{text}"})
    call("POST", "/v1/sessions", {"session_id": "h11", "image": text})  # which there is not
    call("POST", "/v1/sessions", {"session_id": "h11", "env": {"A": text.replace("\0", "")}})
    call("POST", "/v1/sessions/h11/exec", {"cmd": f"# {text}"})
    call("POST", "/v1/sessions/h11/exec", {"argv": ["printf", "%s", text]})
    call("POST", "/v1/sessions/h11/processes", {"process_id": f"-{text}", "command": "true"})
    call("POST", "/v1/sessions/h11/processes", {"process_id": "p", "command": text})
    call("POST", "/v1/sessions/h11/tools/exec", {"command": f"# {text}"})
    call("POST", "/v1/sessions/h11/tools/grep", {"pattern": text})
    call("POST", "/v1/sessions/h11/files", {"mkdir": f"/workspace/{text}"})
    call("DELETE", "/v1/sessions/h11")
    client._conn.request("GET", "/v1/health", headers={"X-Request-Id": text if text == PLAIN else 'x","msg":"forged'})
    client._conn.getresponse().read()
    client.close()
    with Rpc(daemon.sock) as rpc:
        for action, data in ((f"no-{text}", {}), ("box_get_session", {"session_id": text}),
                             ("box_get_skill", {"name": text}), ("box_exec", {"session_id": text, "cmd": f"# {text}"})):
            with contextlib.suppress(RpcError):
                rpc.call(action, data)
        with contextlib.suppress(RpcError):
            rpc.call("box_delete_session", {"session_id": text})
    client = daemon.client()
    client._conn.request("GET", "/v1/health", headers={"X-Request-Id": mark})
    client._conn.getresponse().read()
    client.close()


def shape(daemon, line):
    """A record without what differs from one time to the next."""
    if daemon.format == "json":
        record = json.loads(line)
        return tuple(sorted(record)), record["level"], record["msg"].split("'")[0] if record["msg"] else ""
    return re.match(r"\d\d:\d\d:\d\d (error|warn |info |debug)", line).group(1)


def records(daemon, text, mark):
    """(log, audit) that these requests left."""
    def audit():
        return "".join(p.read_text() for p in sorted((daemon.state / "audit").glob("*.log")))

    log_before, audit_before = len(daemon.log()), len(audit())
    asks(daemon, text, mark)
    until(lambda: mark in daemon.log(), what="the last request in the log")
    until(lambda: audit()[audit_before:].count('"session_end"') >= 2, what="the end of the sessions")
    return daemon.log()[log_before:], audit()[audit_before:]


def test_check_H11_one_request_one_record(watched):
    plain_log, plain_audit = records(watched, PLAIN, "h11-plain")
    log, audit = records(watched, HOSTILE, "h11-hostile")
    for text in (log, audit):
        assert not FORGED.search(text), text
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f]", text), text
    assert len(log.splitlines()) == len(plain_log.splitlines()), (log, plain_log)
    assert sorted(map(str, (shape(watched, x) for x in log.splitlines()))) == sorted(
        map(str, (shape(watched, x) for x in plain_log.splitlines())))
    plain_events, events = ([json.loads(x)["event"] for x in text.splitlines()] for text in (plain_audit, audit))
    assert sorted(events) == sorted(plain_events)
    # Nothing is lost by the escapes.
    assert any(json.loads(x).get("command") == f"# {HOSTILE}" for x in audit.splitlines())


def test_check_H11_errors_and_events_are_data(watched):
    """The ring of failures and the stream of events hand the words back as they were, inside of strings."""
    client = watched.client()
    client.new("h11e")
    with contextlib.suppress(ApiError):
        client.call("POST", "/v1/sessions/h11e/processes", {"process_id": "p", "command": HOSTILE})
    client._conn.request("GET", "/v1/errors")
    answer = client._conn.getresponse()
    text = answer.read().decode()
    assert answer.status == 200 and "\n{" not in text and not re.search("[\x00-\x09\x0b-\x1f]", text)
    json.loads(text)
    page = client.call("GET", "/v1/audit?session=h11e")
    assert any(HOSTILE in r.get("command", "") for r in page["records"]), page
    client.rm("h11e")
    client.close()
