# SPDX-License-Identifier: Apache-2.0
"""Engines that answer badly, registries that mean harm, and what an engine must never be asked for (L02, L06, L08 to
L12). A real engine is behind each of them; where its answers have to be spoiled, a proxy does that."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

import enginelib
import pytest
from boxlib import ApiError, Boxd
from engineproxy import Proxy, reply
from enginelib import IMAGE
from registrylib import Registry

pytestmark = [pytest.mark.real, pytest.mark.engine]
BACKEND = ("backend", "unavailable")


@pytest.fixture
def spoil(backend):
    """A daemon whose engine's answers go through a proxy: spoil(*rules) -> proxy, client, daemon."""
    made = []

    def start(*rules):
        made.append(Proxy(backend.engine))
        made[0].rules += rules
        made.append(Boxd("--backend", backend.name, env={**backend.env, "BOX_ENGINE_SOCKET": str(made[0].socket)}))
        made.append(made[1].client())
        return made[0], made[2], made[1]

    yield start
    made[0].rules.clear()
    for one in reversed(made):
        one.close()


@pytest.fixture
def pulling(backend):
    """A registry, and a daemon that fetches what it does not have: (registry, client)."""
    registry = Registry()
    daemon = Boxd("--backend", backend.name, env={**backend.env, "BOX_IMAGE_PULL": "missing"})
    client = daemon.client()
    yield registry, client
    client.close()
    daemon.close()
    registry.close()


@pytest.fixture
def shared():
    made = pathlib.Path(tempfile.mkdtemp(prefix="box-shared-"))
    os.chown(made, 4321, 4321)
    made.chmod(0o755)
    yield made
    subprocess.run(["umount", "--recursive", "--lazy", str(made / "inner")], stderr=subprocess.DEVNULL, check=False)
    shutil.rmtree(made)


def until(check, seconds=30):
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def ours(engine, sid):
    return [c for c in engine.containers() if c["Labels"].get("langbot.session_id") == sid]


# L02


def test_check_L02_mounts_are_typed_private_and_exact(box, shared):
    name = "a:b,c"
    (shared / name).mkdir()
    (shared / name / "f").write_text("exact\n")
    sid = box.new(extra_mounts=[{"host_path": str(shared / name), "mount_path": "/data", "mode": "ro"}])
    assert box.sh(sid, "cat /data/f")["stdout"] == "exact\n"
    seen = box.container(sid)
    [mount] = [m for m in seen["Mounts"] if m["Destination"] == "/data"]
    binds = f"{box.backend.daemon.state}/binds/in/"
    assert mount["Source"].startswith(binds) and mount["RW"] is False and mount["Propagation"] == "rprivate"
    assert binds not in pathlib.Path(f"/proc/{box.engine.cage}/mountinfo").read_text(), "it was needed only to start"
    if box.name == "docker":
        assert not seen["HostConfig"]["Binds"]
        for asked in seen["HostConfig"]["Mounts"]:
            assert asked["BindOptions"] == {"Propagation": "rprivate", "NonRecursive": True}


def test_check_L02_a_workspace_is_a_directory(box, shared):
    (shared / "notes.txt").write_text("hello\n")
    with pytest.raises(ApiError) as caught:
        box.new(host_path=str(shared / "notes.txt"))
    assert caught.value.code == "invalid" and "host_path must be a directory" in caught.value.detail, caught.value
    mount = {"host_path": str(shared / "notes.txt"), "mount_path": "/data/notes.txt", "mode": "ro"}
    sid = box.new(extra_mounts=[mount])
    assert box.sh(sid, "cat /data/notes.txt")["stdout"] == "hello\n"


def test_what_a_command_left_running_is_held_to_the_quota(box, shared):
    """It is killed with everything else that runs, and the session goes on."""
    (shared / "quota").mkdir()
    (shared / "quota").chmod(0o777)
    sid = box.new(host_path=str(shared / "quota"), workspace_quota_mb=4)
    limit = box.receipt(sid)["limits"]["workspace_bytes"]
    assert limit["enforced"] is False and limit["counted"] == 4 << 20 and "containers of an engine" in limit["reason"]
    box.sh(sid, "(i=0; while :; do i=$((i+1)); head -c 1000000 /dev/zero > /workspace/f.$i; sleep 0.05; done) "
                "</dev/null >/dev/null 2>&1 & echo left")
    until(lambda: any("between executions" in e["message"] and sid in e["message"]
                      for e in box.api.call("GET", "/v1/errors")["errors"]))
    until(lambda: box.api.sh(sid, "rm -f /workspace/f.*", cleanup=True)["exit_code"] == 0)
    assert box.sh(sid, "ls /workspace; echo on")["stdout"] == "on\n"


def test_check_L02_what_is_mounted_below_does_not_come_along(box, shared):
    """It would be writable where what holds it is not."""
    (shared / "inner").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(shared / "inner")], check=True)
    (shared / "inner" / "secret").write_text("x")
    (shared / "inner").chmod(0o777)
    sid = box.new(host_path=str(shared), host_path_mode="ro")
    assert box.sh(sid, "ls /workspace/inner; touch /workspace/inner/x")["stdout"] == ""
    assert sorted(p.name for p in (shared / "inner").iterdir()) == ["secret"]


def test_check_L02_a_directory_that_was_exchanged_meanwhile_is_refused(spoil, shared):
    """After boxd has looked at it and before the engine mounts its name: both are directories of the same owner."""
    for name in ("mine", "other"):
        (shared / name).mkdir()
        os.chown(shared / name, 4321, 4321)

    def exchange(request, ask):
        (shared / "mine").rename(shared / "was")
        (shared / "mine").symlink_to(shared / "other")
        return ask()

    proxy, api, _ = spoil()
    # The first one finds out that the engine does not see mounts of box-priv's, and is given names.
    api.new("first", image=enginelib.IMAGE, host_path=str(shared / "other"))
    api.rm("first")
    proxy.rules.append(("POST", "/containers/create", exchange))
    with pytest.raises(ApiError, match="was exchanged") as caught:
        api.new("x", image=enginelib.IMAGE, host_path=str(shared / "mine"))
    assert caught.value.status == 403 and not api.ps()


def test_a_proxy_in_front_of_the_engine_leaves_owners_as_they_are_and_says_so(spoil, shared):
    """Mounts that box-priv makes where the proxy is do not reach the engine."""
    _, api, daemon = spoil()
    api.new("x", image=enginelib.IMAGE, host_path=str(shared))
    owners = api.receipt("x")["mount_owners"]
    assert owners["mapped"] is False and "does not see mounts" in owners["reason"]
    assert api.sh("x", "id -u; touch made")["stdout"] == "4321\n" and (shared / "made").stat().st_uid == 4321
    assert not (daemon.state / "binds").exists()
    doctor = {c["id"]: c for c in api.call("GET", "/v1/doctor")["checks"]}
    assert doctor["mount-owners"]["status"] == "warn"


def test_root_without_the_right_to_mount_leaves_owners_as_they_are_and_says_so(backend, shared):
    """boxd in a container of its own, with the engine's socket and nothing else."""
    daemon = Boxd("--backend", backend.name, env=backend.env,
                  prefix=["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", "--"])
    try:
        api = daemon.client()
        api.new("x", image=enginelib.IMAGE, host_path=str(shared))
        owners = api.receipt("x")["mount_owners"]
        assert owners["mapped"] is False and "box-priv did not start" in owners["reason"]
        assert api.sh("x", "id -u; touch made")["stdout"] == "4321\n" and (shared / "made").stat().st_uid == 4321
        shared.chmod(0o700)  # boxd's own user cannot look inside
        (shared / "inner").mkdir()
        with pytest.raises(ApiError) as caught:
            api.new("y", image=enginelib.IMAGE, host_path=str(shared / "inner"))
        assert caught.value.code == "denied" and "start boxd as root" in caught.value.detail
    finally:
        daemon.close()


def test_binds_of_a_daemon_that_was_killed_are_taken_away(backend):
    """Those that a kill -9 of boxd and box-priv left behind in the engine's mount namespace."""
    with tempfile.TemporaryDirectory(prefix="box-state-") as state:
        binds = pathlib.Path(state) / "binds"
        inside = ["nsenter", "--target", str(backend.engine.cage), "--mount", "--"]
        binds.mkdir()
        (pathlib.Path(state) / "box-state").touch()
        for _ in range(2):
            subprocess.run([*inside, "mount", "-t", "tmpfs", "tmpfs", str(binds)], check=True)
        subprocess.run([*inside, "mkdir", f"{binds}/0"], check=True)
        subprocess.run([*inside, "mount", "--bind", "/mnt", f"{binds}/0"], check=True)
        daemon = Boxd("--backend", backend.name, state=pathlib.Path(state), env=backend.env)
        try:
            assert str(binds) not in pathlib.Path(f"/proc/{backend.engine.cage}/mountinfo").read_text()
            assert not binds.exists()
        finally:
            daemon.close()


# L06


def nonsense(status=200, text=b"<html>no JSON</html>"):
    return lambda request, ask: reply(status, text)


def cut(request, ask):
    answer = ask()
    return answer[:len(answer) * 2 // 3]


def version(number):
    return lambda request, ask: reply(200, b"OK", Api_Version=number)


BAD = {
    "500": ("GET", "/images/", nonsense(500, b'{"message": "something is broken"}')),
    "no JSON": ("GET", "/images/", nonsense(200, b"{ this is no JSON")),
    "not HTTP": ("GET", "/images/", lambda request, ask: b"\0\1\2 nonsense\r\n\r\n"),
    "EOF in the middle": ("POST", "/containers/create", cut),
    "nothing at all": ("POST", "/start", lambda request, ask: b""),
    "a container without an id": ("POST", "/containers/create", nonsense(201, b'{"Warnings": []}')),
    "an id that is none": ("POST", "/containers/create", nonsense(201, b'{"Id": "../../../x"}')),
    "too much": ("GET", "/images/", lambda request, ask: reply(200, b" " * (9 << 20))),
    "too deep": ("GET", "/images/", nonsense(200, b"[" * 100000)),
    "too many headers": ("GET", "/images/", lambda request, ask: reply(200, **{f"X_{n}": "y" * 99 for n in range(999)})),
    "a name that is taken": ("POST", "/containers/create", nonsense(409, b'{"message": "the name is already in use"}')),
}


@pytest.mark.parametrize("how", BAD)
def test_check_L06_check_L08_answers_that_cannot_be_used(spoil, backend, how):
    proxy, api, _ = spoil(BAD[how])
    begin = time.monotonic()
    with pytest.raises(ApiError) as caught:
        api.new("bad", image=IMAGE)
    assert caught.value.code in (*BACKEND, "conflict"), caught.value
    assert backend.name in caught.value.detail and time.monotonic() - begin < 60
    assert not any(s["session_id"] == "bad" for s in api.ps())
    proxy.rules.clear()
    until(lambda: ours(backend.engine, "bad") == [])
    if how in ("EOF in the middle", "nothing at all"):
        assert any(method == "DELETE" for method, _ in proxy.seen), "it may have been made all the same"
    if how == "a name that is taken":
        assert not any(method == "DELETE" for method, _ in proxy.seen), "that is somebody else's"
    api.new("good", image=IMAGE)
    assert api.sh("good", "echo fine")["stdout"] == "fine\n"


@pytest.mark.parametrize("number", ["1.24", "1.39", "2.0", "x", ""])
def test_check_L06_an_api_that_is_too_old_or_none(spoil, number):
    _, api, _ = spoil(("GET", "/_ping", version(number)))
    with pytest.raises(ApiError) as caught:
        api.new("v", image=IMAGE)
    assert caught.value.code in BACKEND and "version" in caught.value.detail


def test_check_L06_an_api_that_is_newer_is_spoken_to_in_our_version(spoil):
    proxy, api, _ = spoil(("GET", "/_ping", version("1.999")))
    with contextlib.suppress(ApiError):  # the engine behind it need not have that one
        api.new("v", image=IMAGE)
    assert {t.split("/")[1] for m, t in proxy.seen if t.startswith("/v")} == {"v1.47"}


def test_check_L06_a_session_that_ends_while_it_is_looked_at(spoil):
    proxy, api, daemon = spoil()
    api.new("gone", image=IMAGE)
    asked, go, result = threading.Event(), threading.Event(), []

    def late(request, ask):
        answer = ask()
        asked.set()
        go.wait(60)
        return answer

    proxy.rules.append(("GET", "/containers/[0-9a-f]+/json", late))

    def look():
        client = daemon.client()
        try:
            result.append(client.get("gone"))
        except ApiError as error:
            result.append(error.code)
        client.close()

    thread = threading.Thread(target=look)
    thread.start()
    assert asked.wait(30)
    api.rm("gone")
    go.set()
    thread.join(60)
    assert result == ["not_found"]
    assert api.ps() == []


def test_check_L08_a_session_that_is_given_up_while_it_is_made(spoil, backend):
    """Hanging up on an engine does not stop it: what it makes is removed once it has an id."""
    proxy, api, daemon = spoil()
    asked, go = threading.Event(), threading.Event()

    def late(request, ask):
        asked.set()
        go.wait(60)
        return ask()

    proxy.rules.append(("POST", "/containers/create", late))

    def make():
        client = daemon.client()
        with pytest.raises(ApiError):
            client.new("given-up", image=IMAGE)
        client.close()

    def drop():
        client = daemon.client()
        client.rm("given-up")
        client.close()

    threads = [threading.Thread(target=make), threading.Thread(target=drop)]
    threads[0].start()
    assert asked.wait(30)
    threads[1].start()
    time.sleep(0.3)  # whichever comes first, nothing is left
    go.set()
    for thread in threads:
        thread.join(60)
    until(lambda: ours(backend.engine, "given-up") == [])
    assert any(m == "POST" and "create" in t for m, t in proxy.seen) and api.ps() == []


# L09


def tar(name):
    """Each its own: what an engine has already it does not fetch."""
    return enginelib.image_tar([{"name": "etc/name", "mode": 0o644, "data": name.encode()}])


def test_check_L09_a_missing_image_is_fetched(pulling):
    registry, api = pulling
    pinned = registry.add("good", tar(f"good-{registry.host}"))
    api.new("p", image=f"{registry.host}/good:1")
    assert api.sh("p", "echo fetched")["stdout"] == "fetched\n"
    api.new("q", image=f"{registry.host}/good@{pinned}")
    assert api.sh("q", "echo pinned")["stdout"] == "pinned\n"


def limited(handler, what, data):
    handler.extra["Retry-After"] = "0"
    handler.give(json.dumps({"errors": [{"code": "TOOMANYREQUESTS", "message": "too many requests, pay us"}]}).encode(),
                 "application/json", 429)
    return True


def corrupt(handler, what, data):
    handler.give(data[:-1] + bytes([data[-1] ^ 1]) if what == "blob" else data, "application/octet-stream"
                 if what == "blob" else "application/vnd.docker.distribution.manifest.v2+json")
    return True


def other_manifest(handler, what, data):
    if what != "manifest":
        return False
    handler.give(data.replace(b'"schemaVersion": 2', b'"schemaVersion":  2'),
                 "application/vnd.docker.distribution.manifest.v2+json")
    return True


@pytest.mark.parametrize("how", [limited, corrupt])
def test_check_L09_what_a_registry_refuses_or_corrupts(pulling, backend, how):
    registry, api = pulling
    name = f"{how.__name__}-{backend.name}"
    registry.add(name, tar(name))
    registry.spoil[name] = how
    with pytest.raises(ApiError) as caught:
        api.new("p", image=f"{registry.host}/{name}:1")
    assert caught.value.code in ("backend", "not_found", "denied", "invalid", "limit"), caught.value
    assert registry.host in caught.value.detail or name in caught.value.detail or "digest" in caught.value.detail
    assert api.ps() == []


def test_check_L09_a_digest_is_what_one_gets_or_nothing(pulling, backend):
    registry, api = pulling
    name = f"other-{backend.name}"
    pinned = registry.add(name, tar(name))
    registry.spoil[name] = other_manifest
    with pytest.raises(ApiError) as caught:
        api.new("p", image=f"{registry.host}/{name}@{pinned}")
    assert caught.value.code in ("backend", "not_found", "invalid"), caught.value


def endless(released):
    def spoil(handler, what, data):
        if what == "manifest" or len(data) < 4096:
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", str(20 << 30))
        handler.end_headers()
        at = 0  # ever more, and nothing that an engine could find wrong until it is all there
        while not released.wait(0.02):
            handler.wfile.write(data[at:at + 4096] or b"\0")
            at += 4096
        return True
    return spoil


def test_check_L09_an_image_of_twenty_gibibytes_is_too_large(pulling, backend):
    registry, api = pulling
    name, released = f"huge-{backend.name}", threading.Event()
    registry.add(name, tar(name), layer_size=20 << 30)
    registry.spoil[name] = endless(released)
    try:
        with pytest.raises(ApiError) as caught:
            api.new("p", image=f"{registry.host}/{name}:1")
        assert "larger than 16 GiB" in caught.value.detail, caught.value
    finally:
        released.set()


def test_check_L09_a_pull_can_be_given_up(pulling, backend):
    registry, api = pulling
    name, released = f"slow-{backend.name}", threading.Event()
    registry.add(name, tar(name))
    registry.spoil[name] = endless(released)
    failed = []

    def make():
        with pytest.raises(ApiError) as caught:
            api.new("p", image=f"{registry.host}/{name}:1")
        failed.append(caught.value.code)

    thread = threading.Thread(target=make)
    thread.start()
    try:
        until(lambda: any("/blobs/" in path for path in registry.asked))
        other = type(api)(api._conn._path)
        other.rm("p")
        assert other.ps() == []
        other.close()
        thread.join(30)
        assert not released.is_set() and failed == ["state"]
    finally:
        released.set()


# L11, L12


def test_check_L11_no_session_reaches_the_engine(box):
    sid = box.new()
    sockets = box.sh(sid, "find / -xdev -type s 2>/dev/null; find /run /var/run /.box -type s 2>/dev/null")["stdout"]
    assert set(sockets.split()) <= {"/.box/run/s"}
    place = str(box.engine.socket)
    for path in (place, os.path.dirname(place), str(box.backend.daemon.state), f"{box.backend.daemon.state}/engine"):
        for spec in ({"host_path": path}, {"extra_mounts": [{"host_path": path, "mount_path": "/x", "mode": "ro"}]}):
            with pytest.raises(ApiError) as caught:
                box.new(**spec)
            assert caught.value.code == "denied", caught.value
    assert not any(place.startswith(m["Source"]) for m in box.container(sid)["Mounts"])


def test_check_L12_runtimes_are_named_and_old_ones_are_a_finding(box):
    found = [c for c in box.doctor()["checks"] if c["id"] == "runtime"]
    text = subprocess.run(["runc", "--version"], capture_output=True, text=True, check=True).stdout
    number = text.split()[2].split("+")[0]
    assert any(number in c["detail"] for c in found), found
    old = tuple(int(n) for n in number.split("-")[0].split(".")[:2]) < (1, 3)
    assert any(c["status"] == ("warn" if old else "ok") for c in found)
    assert not old or any("CVE-2025-31133" in c["detail"] for c in found)


def test_check_L06_what_is_made_after_nobody_waits_for_it_goes_with_the_next(spoil, backend):
    """An engine that takes its time makes a container that was not there yet when it was to be removed."""
    asked = []

    def later(request, ask):
        asked.append(ask)
        return b""

    proxy, client, _ = spoil(("POST", "^/containers/create", later))
    with pytest.raises(ApiError) as caught:
        client.new("slow", image=IMAGE)
    assert caught.value.code == "unavailable"
    proxy.rules.clear()
    asked[0]()
    assert ours(backend.engine, "slow") or backend.name == "docker"  # which misses the session's directory by then
    client.new("next", image=IMAGE)
    until(lambda: not ours(backend.engine, "slow"))
    assert client.sh("next", "echo fine")["stdout"] == "fine\n"
    client.rm("next")
