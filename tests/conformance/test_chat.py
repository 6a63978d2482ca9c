# SPDX-License-Identifier: Apache-2.0
"""Chat sandboxes on every backend (T65 to T69, I12): one per chat, until it expires."""

import contextlib
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import tempfile
import threading
import uuid

import enginelib
import pytest
from boxlib import ApiError, Boxd
from engineproxy import Proxy, said
from hostlib import until
from rawlib import Wire

THREE = ["session_id", "chat_id", "expires_at"]
TARGETS = ["/workspace/chat", "/workspace/dependencies", "/workspace/lambda-tools"]


class Chats:
    """A boxd of the test's own with a section `sandbox`, in front of its engine where there is one."""

    def __init__(self, backend):
        self.backend, self.engine = backend, backend.engine
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="box-chats-"))
        self.top.chmod(0o755)
        for name in ("dependencies", "lambda-tools"):
            (self.top / name).mkdir()
            (self.top / name / "who").write_text(name)
        self.proxy = Proxy(self.engine) if self.engine else None
        self.daemon = None

    def start(self, **more):
        section = {"image": self.backend.image, "chats_root": f"{self.top}/made/chats",
                   "dependencies_host_path": f"{self.top}/dependencies",
                   "lambda_tools_host_path": f"{self.top}/lambda-tools", **more}
        config = self.top / "boxd.yaml"
        config.write_text(json.dumps({"sandbox": section}))
        env = {"BOX_ENGINE_SOCKET": str(self.proxy.socket)} if self.proxy else {}
        if self.daemon is None:
            state = self.top / "state"
            state.mkdir()
            self.daemon = Boxd("--backend", self.backend.name, "--config", str(config), env=env, state=state)
        else:
            self.daemon.start()
        self.api = self.daemon.client()
        return self

    def create(self, chat_id):
        return self.api.call("POST", "/api/v1/create", {"chat_id": str(chat_id)})

    def delete(self, chat_id):
        return self.api.call("DELETE", f"/api/v1/sandboxes/{chat_id}")

    def directory(self, chat_id):
        return self.top / "made" / "chats" / str(chat_id)

    def sessions(self):
        return {s["session_id"]: s for s in self.api.ps()}

    def close(self):
        if self.daemon is not None:
            self.daemon.stop()
            self.daemon.close()
        if self.engine:
            self.proxy.close()
            self.engine.remove_all()
        shutil.rmtree(self.top, ignore_errors=True)


@pytest.fixture
def stage(backend):
    made = Chats(backend)
    yield made
    made.close()


@pytest.fixture
def chats(stage):
    return stage.start()


@pytest.fixture
def chat():
    return uuid.uuid4()


def test_row_T65_a_chat_gets_its_directory_three_mounts_and_three_labels(chats, chat):
    made = chats.create(chat.hex.upper())
    created, expires = (datetime.datetime.fromisoformat(made[k]) for k in ("created_at", "expires_at"))
    assert made["chat_id"] == str(chat) and made["status"] == "running"
    assert str(uuid.UUID(made["session_id"])) == made["session_id"] != made["chat_id"]
    assert expires - created == datetime.timedelta(seconds=300) and expires.utcoffset() == datetime.timedelta(0)
    assert made["expires_at"] == expires.isoformat()
    assert chats.directory(chat).is_dir()
    labels = {"session_id": made["session_id"], "chat_id": str(chat), "expires_at": made["expires_at"]}
    session = chats.sessions()[str(chat)]
    assert session["labels"] == labels and list(session["labels"]) == THREE
    assert session["image"] == chats.backend.image
    if not chats.engine:
        return
    # Podman is asked twice when it has no init for containers.
    _, _, asked = chats.proxy.asked("POST", r"^/containers/create")[-1]
    assert asked["Image"] == chats.backend.image
    own = {k: v for k, v in asked["Labels"].items() if not k.startswith("langbot.")}
    assert own == labels, "exactly these, beside those by which boxd knows its own"
    mounts = [m for m in asked["HostConfig"]["Mounts"] if not m["Target"].startswith("/.box/")]
    sources = [chats.directory(chat), chats.top / "dependencies", chats.top / "lambda-tools"]
    assert [{k: m[k] for k in ("Target", "Source", "Type", "ReadOnly")} for m in mounts] == [
        {"Target": t, "Source": str(s.resolve()), "Type": "bind", "ReadOnly": i > 0}
        for i, (t, s) in enumerate(zip(TARGETS, sources))]
    seen = chats.engine.inspect(made["container_id"])
    assert seen["Id"] == made["container_id"] and seen["State"]["Running"]
    assert {k: seen["Config"]["Labels"][k] for k in THREE} == labels


@pytest.mark.real
def test_row_T65_what_is_inside(chats, chat):
    chats.create(chat)
    r = chats.api.sh(str(chat), "pwd; cat /workspace/dependencies/who /workspace/lambda-tools/who; echo mine > note; "
                                "touch /workspace/dependencies/x || touch /workspace/lambda-tools/x")
    assert r["stdout"] == "/workspace/chat\ndependencieslambda-tools" and r["exit_code"] != 0
    assert (chats.directory(chat) / "note").read_text() == "mine\n"
    assert sorted(os.listdir(chats.top / "dependencies")) == sorted(os.listdir(chats.top / "lambda-tools")) == ["who"]
    chats.delete(chat)
    chats.create(chat)
    assert chats.api.sh(str(chat), "cat note")["stdout"] == "mine\n", "the chat keeps its files"


def test_a_chat_keeps_its_sandbox_in_any_spelling(chats, chat):
    made = chats.create(chat)
    for spelling in (str(chat).upper(), chat.hex, "{" + str(chat) + "}", chat.urn):
        assert chats.create(spelling) == made
    assert chats.create(uuid.uuid4())["session_id"] != made["session_id"]
    for wrong in ("", "no uuid", str(chat)[:-1], "../" + str(chat)):
        with pytest.raises(ApiError) as caught:
            chats.create(wrong)
        assert (caught.value.status, caught.value.code) == (422, "invalid")
    for body in ({}, {"chat_id": 7}, {"chat_id": None}, {"chat_id": str(chat), "image": "other"}):
        with pytest.raises(ApiError) as caught:
            chats.api.call("POST", "/api/v1/create", body)
        assert caught.value.status == 422, body


def test_many_at_once_get_one_sandbox(chats, chat):
    answers = []

    def create(spelling):
        client = chats.daemon.client()
        answers.append(client.call("POST", "/api/v1/create", {"chat_id": spelling}))
        client.close()

    threads = [threading.Thread(target=create, args=(s,)) for s in (str(chat), chat.hex, str(chat).upper(), chat.urn) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(answers) == len(threads) and all(a == answers[0] for a in answers)
    assert list(chats.sessions()) == [str(chat)]


def test_row_T66_what_is_missing_is_a_start_error_and_is_not_made(chats, chat):
    shutil.rmtree(chats.top / "lambda-tools")
    with pytest.raises(ApiError) as caught:
        chats.create(chat.hex)
    assert (caught.value.code, caught.value.problem["chat_id"]) == ("sandbox_start_failed", str(chat))
    assert "lambda-tools" in caught.value.detail
    assert not (chats.top / "lambda-tools").exists() and chats.sessions() == {}
    (chats.top / "lambda-tools").mkdir()
    assert chats.create(chat)["status"] == "running"


@pytest.mark.engine
def test_row_T66_a_container_without_an_id_is_a_start_error(chats, chat):
    chats.proxy.rules.append(("POST", r"^/containers/create", said(201, {"Id": "", "Warnings": []})))
    with pytest.raises(ApiError) as caught:
        chats.create(chat)
    assert (caught.value.status, caught.value.code) == (502, "sandbox_start_failed")
    assert caught.value.problem["chat_id"] == str(chat)
    chats.proxy.rules.clear()
    assert chats.create(chat)["status"] == "running"


def test_row_T67_stop_ignores_what_is_not_there(chats, chat):
    assert chats.delete(chat) == {"chat_id": str(chat), "result": "not_found"}
    chats.create(chat)
    assert chats.delete(chat.hex.upper()) == {"chat_id": str(chat), "result": "deleted"}
    assert chats.delete(chat)["result"] == "not_found"
    assert chats.sessions() == {} and chats.directory(chat).is_dir()


@pytest.mark.engine
def test_row_T67_a_container_that_is_gone_is_looked_for_once(chats, chat):
    made = chats.create(chat)
    chats.proxy.rules.append(("DELETE", r"^/containers/", said(404, {"message": "missing"})))
    assert chats.delete(chat)["result"] == "deleted"
    assert [place for place, _, _ in chats.proxy.asked("DELETE", "^/containers/")] == [
        f"/containers/{made['container_id']}"]


@pytest.mark.engine
def test_row_T68_an_engine_that_cannot_stop_it_is_a_stop_error(chats, chat):
    made = chats.create(chat)
    chats.proxy.rules.append(("DELETE", r"^/containers/", said(500, {"message": "boom"})))
    with pytest.raises(ApiError, match="boom") as caught:
        chats.delete(chat)
    assert (caught.value.status, caught.value.code) == (502, "sandbox_stop_failed")
    assert caught.value.problem["chat_id"] == str(chat)
    # It still runs: nothing is started beside it, and the next stop finds it.
    with pytest.raises(ApiError) as caught:
        chats.create(chat)
    assert caught.value.code == "sandbox_start_failed"
    assert chats.engine.inspect(made["container_id"])["State"]["Running"]
    chats.proxy.rules.clear()
    assert chats.delete(chat)["result"] == "deleted"
    assert chats.engine.containers(chat_id=str(chat)) == []


@pytest.mark.engine
def test_row_T66_an_engine_that_is_away_is_no_fault_of_the_section(chats, chat):
    away = chats.proxy.socket.with_suffix(".away")
    chats.proxy.socket.rename(away)
    with pytest.raises(ApiError, match="cannot be reached") as caught:
        chats.create(chat)
    assert (caught.value.status, caught.value.code) == (503, "sandbox_start_failed")
    assert "box doctor" in caught.value.problem["remediation"]
    away.rename(chats.proxy.socket)
    assert chats.create(chat)["status"] == "running"


@pytest.mark.engine
def test_row_T69_found_again_by_labels_alone(chats, chat):
    made, ordinary = chats.create(chat), "ordinary"
    chats.api.new(ordinary, image=enginelib.IMAGE)
    instance = (chats.daemon.state / "engine" / "instance-id").read_text().strip()
    chats.daemon.stop(signal.SIGKILL)
    for record in chats.daemon.state.glob("state.db*"):
        record.unlink()
    expires = made["expires_at"]
    odd = {"bad-time": {"session_id": str(uuid.uuid4()), "chat_id": str(uuid.uuid4()), "expires_at": "soon"},
           "bad-chat": {"session_id": str(uuid.uuid4()), "chat_id": "x", "expires_at": expires},
           "no-session": {"chat_id": str(chat), "expires_at": expires}}
    for name, labels in odd.items():
        for whose in (instance, "another"):
            chats.engine.api("POST", f"/v1.40/containers/create?name={name}-{whose}", {
                "Image": enginelib.IMAGE, "Cmd": ["sleep", "1000"], "HostConfig": {"NetworkMode": "none"},
                "StopSignal": "SIGKILL",  # as ours have it
                "Labels": {**labels, "langbot.box.instance_id": whose, "langbot.box.name": name,
                           "langbot.box.labels": ",".join(THREE)}})
            chats.engine.api("POST", f"/v1.40/containers/{name}-{whose}/start")
    chats.proxy.calls.clear()
    chats.start()
    listed = [json.loads(query["filters"]) for _, query, _ in chats.proxy.asked("GET", "^/containers/json")]
    assert listed[0] == {"label": THREE}, "the filter is just this"
    again = chats.create(chat)
    seen = chats.engine.inspect(made["container_id"])
    created = datetime.datetime.fromisoformat(re.sub(r"(\.\d{6})\d*Z?", r"\1", seen["Created"]).replace("Z", ""))
    assert {k: again[k] for k in again if k != "created_at"} == {k: made[k] for k in made if k != "created_at"}
    got = datetime.datetime.fromisoformat(again["created_at"])
    if created.tzinfo is None:
        created = created.replace(tzinfo=datetime.timezone.utc)
    assert got == created, "as the engine says it"
    assert list(chats.sessions()) == [str(chat)]
    until(lambda: len(chats.engine.containers(**{"langbot.box.instance_id": instance})) == 1, what="the sweep")
    assert len(chats.engine.containers(**{"langbot.box.instance_id": "another"})) == 3, "what is not ours is left alone"
    assert chats.daemon.log().count("make no sense; skipping") == 2


@pytest.mark.engine
def test_row_T69_an_image_cannot_pass_itself_off_as_a_chat(chats, chat):
    """A container has the labels of its image, too: of an ordinary session they say nothing."""
    made, victim, ordinary = chats.create(chat), uuid.uuid4(), uuid.uuid4()
    for n, (name, claimed) in enumerate((("one", victim), ("two", chat), (str(ordinary), ordinary))):
        image = f"box-forged{n}:latest"
        labels = {"session_id": str(uuid.uuid4()), "chat_id": str(claimed), "expires_at": made["expires_at"],
                  "langbot.box.labels": ",".join(THREE)}
        chats.engine.load(image, enginelib.image_tar(), [f"LABEL {k}={v}" for k, v in labels.items()])
        chats.api.new(name, image=image)
        seen = chats.engine.inspect(chats.api.receipt(name)["container_id"])
        assert seen["Config"]["Labels"]["chat_id"] == str(claimed)
    chats.daemon.stop(signal.SIGKILL)
    chats.start()
    assert set(chats.sessions()) == {str(chat), "one", "two", str(ordinary)}
    assert chats.create(chat) == made
    assert chats.delete(victim)["result"] == "not_found"
    # Without records there is even less to go by.
    chats.daemon.stop(signal.SIGKILL)
    for record in chats.daemon.state.glob("state.db*"):
        record.unlink()
    chats.start()
    assert list(chats.sessions()) == [str(chat)]
    assert chats.create(chat)["session_id"] == made["session_id"]


@pytest.mark.engine
def test_row_T69_the_newest_of_a_chat_wins(chats, chat):
    older = chats.create(chat)
    # A daemon that has lost its record, and its engine's word for a while, makes another.
    chats.daemon.stop(signal.SIGKILL)
    for record in chats.daemon.state.glob("state.db*"):
        record.unlink()
    chats.proxy.rules += [("GET", "^/containers/json", said(200, []))]
    chats.start()
    newer = chats.create(chat)
    assert newer["session_id"] != older["session_id"] and len(chats.engine.containers(chat_id=str(chat))) == 2
    chats.daemon.stop(signal.SIGKILL)
    chats.proxy.rules.clear()
    chats.start()
    assert chats.create(chat) == newer
    until(lambda: len(chats.engine.containers(chat_id=str(chat))) == 1)


@pytest.mark.engine
def test_row_T69_a_long_list_is_read_to_its_end(chats, chat):
    made = chats.create(chat)
    instance = (chats.daemon.state / "engine" / "instance-id").read_text().strip()
    chats.daemon.stop(signal.SIGKILL)
    for record in chats.daemon.state.glob("state.db*"):
        record.unlink()

    def fill(first):
        for n in range(first, 110, 4):  # all newer, so that the one that runs is on the second page
            labels = {"session_id": str(uuid.uuid4()), "chat_id": str(uuid.uuid4()), "expires_at": made["expires_at"]}
            chats.engine.api("POST", f"/v1.40/containers/create?name=old{n}", {
                "Image": enginelib.IMAGE, "Cmd": ["true"], "HostConfig": {"NetworkMode": "none"},
                "Labels": {**labels, "langbot.box.instance_id": instance if n % 10 == 0 else "another"}})

    threads = [threading.Thread(target=fill, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    chats.proxy.calls.clear()
    chats.start()
    assert chats.create(chat)["session_id"] == made["session_id"]
    assert list(chats.sessions()) == [str(chat)]
    pages = [json.loads(q["filters"]) for _, q, _ in chats.proxy.asked("GET", "^/containers/json")]
    pages = [sorted(p) for p in pages if p["label"] == THREE]
    assert pages[0] == ["label"] and pages[1:] and all(p == ["before", "label"] for p in pages[1:])


@pytest.mark.real
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR2])
def test_the_next_daemon_finds_it(chats, chat, sig):
    made = chats.create(chat)
    chats.api.new("ordinary", image=chats.backend.image)
    chats.api.sh(str(chat), "echo kept > /tmp/f")
    chats.daemon.stop(sig)
    chats.start()
    assert chats.create(chat) == made
    assert chats.api.sh(str(chat), "cat /tmp/f")["stdout"] == "kept\n"
    assert ("ordinary" in chats.sessions()) == (sig != signal.SIGTERM)
    assert chats.delete(chat)["result"] == "deleted"


def gone(chats, made):
    """Whether nothing of the sandbox is left, by whoever kept it."""
    if chats.engine:
        return chats.engine.containers(chat_id=made["chat_id"]) == []
    with contextlib.suppress(IndexError):
        chats.daemon.priv_pid()  # which keeps sandboxes, and ends with the last
        return False
    return True


@pytest.mark.real
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_at_its_expiry_while_no_daemon_is_there(stage, chat, sig):
    chats = stage.start(ttl_seconds=5)
    made = chats.create(chat)
    expires = datetime.datetime.fromisoformat(made["expires_at"])
    chats.daemon.stop(sig)
    until(lambda: gone(chats, made), what="its end")
    now = datetime.datetime.now(datetime.timezone.utc)
    assert now >= expires - datetime.timedelta(seconds=1), "it outlives its daemon, until then"
    chats.start()
    assert chats.create(chat)["session_id"] != made["session_id"]


def test_it_is_replaced_or_cleaned_once_it_has_expired(stage, chat):
    chats = stage.start(ttl_seconds=1, cleanup_interval_seconds=1)
    made, other = chats.create(chat), uuid.uuid4()
    chats.create(other)
    until(lambda: str(other) not in chats.sessions(), what="the cleanup")
    assert chats.create(chat)["session_id"] != made["session_id"]
    assert f"sandbox_cleaned name=usecase.cleanup_sandbox backend={chats.backend.name} chat.id={other}" in (
        chats.daemon.log())


@pytest.mark.engine
def test_an_engine_that_cannot_be_listed_is_no_engine_to_serve_on(stage, chat):
    stage.proxy.rules.append(("GET", "^/containers/json", said(500, {"message": "boom"})))
    with pytest.raises(RuntimeError, match="chat sandboxes cannot be listed: .*boom"):
        stage.start()


def test_another_kind_of_session_keeps_its_name(chats, chat):
    chats.api.new(str(chat), image=chats.backend.image)
    with pytest.raises(ApiError) as caught:
        chats.create(chat)
    assert (caught.value.status, caught.value.code) == (409, "sandbox_start_failed")
    assert chats.delete(chat)["result"] == "not_found"
    chats.api.rm(str(chat))
    assert chats.create(chat)["status"] == "running"


# What does not depend on the backend.


def test_without_a_section_there_are_no_chat_sandboxes():
    daemon = Boxd("--backend", "fake")
    try:
        api = daemon.client()
        assert api.call("GET", "/api/v1/health") == {"status": "ok"}
        with pytest.raises(ApiError, match="not configured") as caught:
            api.call("POST", "/api/v1/create", {"chat_id": str(uuid.uuid4())})
        assert caught.value.status == 501
    finally:
        daemon.close()


def test_row_I12_the_section_comes_from_the_environment_too():
    top = pathlib.Path(tempfile.mkdtemp(prefix="box-chats-"))
    top.chmod(0o755)
    for name in ("d", "l"):
        (top / name).mkdir()
    token = top / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        where = s.getsockname()
    daemon = None
    try:
        daemon = Boxd("--backend", "fake", "--ws-control-port", str(where[1]), env={
            "APP_SANDBOX_IMAGE": "any:1", "APP_SANDBOX_TTL_SECONDS": "77", "APP_SANDBOX_CHATS_ROOT": f"{top}/c",
            "APP_SANDBOX_DEPENDENCIES_HOST_PATH": f"{top}/d", "APP_SANDBOX_LAMBDA_TOOLS_HOST_PATH": f"{top}/l",
            "BOX_TOKEN_FILE": str(token)})
        made = daemon.client().call("POST", "/api/v1/create", {"chat_id": str(uuid.uuid4())})
        created, expires = (datetime.datetime.fromisoformat(made[k]) for k in ("created_at", "expires_at"))
        assert expires - created == datetime.timedelta(seconds=77)

        def status(head, token=None):
            with Wire(where) as w:
                auth = f"Authorization: Bearer {token}\r\n" if token else ""
                w.send(f"{head} HTTP/1.1\r\nHost: {w.host}\r\n{auth}Content-Length: 0\r\n\r\n".encode())
                return w.answer()[0]

        # The same authorisation as every other route.
        assert status("GET /api/v1/health") == 200
        assert status("POST /api/v1/create") == 401
        assert status(f"DELETE /api/v1/sandboxes/{made['chat_id']}") == 401
        assert status(f"DELETE /api/v1/sandboxes/{made['chat_id']}", token.read_text().strip()) == 200
    finally:
        if daemon is not None:
            daemon.close()
        shutil.rmtree(top, ignore_errors=True)


def test_scopes_and_the_audit_log_hold_here_too():
    mine, other = uuid.uuid4(), uuid.uuid4()
    top = pathlib.Path(tempfile.mkdtemp(prefix="box-chats-"))
    top.chmod(0o755)
    for name in ("d", "l", "state"):
        (top / name).mkdir()
    secrets = {name: f"the-token-of-{name}-0123456789abcdef" for name in ("chats", "reader")}
    tokens = top / "tokens.yaml"
    tokens.write_text(json.dumps({"tokens": [
        {"name": "chats", "token": secrets["chats"], "tools": ["session"], "sessions": [str(mine)]},
        {"name": "reader", "token": secrets["reader"], "tools": ["read"], "sessions": ["*"]}]}))
    tokens.chmod(0o600)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        where = s.getsockname()
    daemon = None
    try:
        daemon = Boxd("--backend", "fake", "--ws-control-port", str(where[1]), state=top / "state", env={
            "APP_SANDBOX_IMAGE": "any:1", "APP_SANDBOX_CHATS_ROOT": f"{top}/c", "BOX_TOKENS_FILE": str(tokens),
            "APP_SANDBOX_DEPENDENCIES_HOST_PATH": f"{top}/d", "APP_SANDBOX_LAMBDA_TOOLS_HOST_PATH": f"{top}/l"})

        def call(name, method, path, chat_id=None):
            body = json.dumps({"chat_id": str(chat_id)}) if chat_id else ""
            with Wire(where) as w:
                w.send(f"{method} {path} HTTP/1.1\r\nHost: {w.host}\r\nAuthorization: Bearer {secrets[name]}\r\n"
                       f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
                return w.answer()[0]

        assert call("reader", "POST", "/api/v1/create", mine) == 403
        assert call("chats", "POST", "/api/v1/create", other) == 404, "a name that is not the token's"
        assert call("chats", "POST", "/api/v1/create", mine.hex) == 201
        assert call("reader", "DELETE", f"/api/v1/sandboxes/{mine}") == 403
        assert call("chats", "DELETE", f"/api/v1/sandboxes/{other}") == 404
        assert call("chats", "DELETE", f"/api/v1/sandboxes/{mine}") == 200
        records = [json.loads(line) for line in (top / "state" / "audit" / "audit.log").read_text().splitlines()]
        seen = [(r["event"], r["who"], r.get("session")) for r in records if r.get("session")]
        assert ("session_create", "chats", str(mine)) in seen and ("session_delete", "chats", str(mine)) in seen
        assert ("denied", "reader", str(mine)) in seen and ("denied", "chats", str(other)) in seen
    finally:
        if daemon is not None:
            daemon.close()
        shutil.rmtree(top, ignore_errors=True)


@pytest.mark.parametrize("env, message", [
    ({}, "sandbox.chats_root is missing, while sandbox.image is given"),
    ({"CHATS_ROOT": "/tmp/c", "DEPENDENCIES_HOST_PATH": "/usr/d", "LAMBDA_TOOLS_HOST_PATH": "/tmp/l"},
     "'/usr/d' of the section sandbox is outside the directories that may be mounted; add it to allowed_mount_roots")])
def test_row_I12_a_section_that_cannot_work_is_refused(env, message):
    with tempfile.TemporaryDirectory(prefix="box-chats-") as top:
        state = pathlib.Path(top) / "state"
        state.mkdir()
        env = {"APP_SANDBOX_IMAGE": "any:1", **{f"APP_SANDBOX_{k}": v for k, v in env.items()}}
        with pytest.raises(RuntimeError, match=message):
            Boxd("--backend", "fake", env=env, state=state)
