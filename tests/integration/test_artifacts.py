# SPDX-License-Identifier: Apache-2.0
"""Artifacts of LangBot 4.11: verified by copy, added to a session that lives, gone with it."""

import os
import shutil
import signal
import time

import artifactlib
import pytest
from artifactlib import Artifact, Conversation
from boxlib import Boxd, scratch
from lbwire import INSTANCE, WORKSPACE, Rpc, RpcError, eventually, physical

pytestmark = pytest.mark.rootless


@pytest.fixture
def root():
    with scratch("box-artifacts-") as path:
        yield path


@pytest.fixture
def daemon():
    d = Boxd()
    yield d
    d.close()


@pytest.fixture
def rpc(daemon, root):
    with Rpc(daemon.sock) as r:
        artifactlib.configure(r, root)
        yield r


def skill(root, name, **files):
    return Artifact(root, name, {"SKILL.md": f"# {name}\n", "bin/run.sh": f"#!/bin/sh\necho {name} ran\n", **files})


def refused(conversation, *artifacts, cmd="true"):
    with pytest.raises(RpcError) as e:
        conversation.exec(cmd, *artifacts)
    return e.value.message


def test_artifacts_reach_a_living_session(rpc, root):
    """Two skills, one after the other and both at once: nothing that runs, and nothing in /tmp, is lost."""
    one, two = skill(root, "one"), skill(root, "two")
    c = Conversation(rpc)
    c.exec("echo kept > /tmp/export")
    c.run("sh", "-c", "echo alive; exec sleep 1000")
    sandbox = c.sandbox()
    assert c.out(f"cat {one.inside}/SKILL.md; {one.inside}/bin/run.sh; ls {artifactlib.ROOT}", one) == \
        f"# one\none ran\n{one.hex}"
    first, second = (c.start_exec(f"cat {a.inside}/SKILL.md", one, two) for a in (one, two))
    assert [rpc.wait(s)["stdout"] for s in (first, second)] == ["# one", "# two"]
    assert c.out(f"cat /tmp/export; ls {artifactlib.ROOT} | wc -l") == "kept\n2"
    assert c.process()["status"] == "running" and c.sandbox() == sandbox


def test_a_session_may_begin_with_some(rpc, root):
    one = skill(root, "one")
    c = Conversation(rpc)
    c.create(one)
    assert c.out(f"cat {one.inside}/SKILL.md") == "# one"


def test_they_are_read_only_and_a_copy(rpc, root):
    one = skill(root, "one")
    c = Conversation(rpc)
    script = (f"touch {one.inside}/new || echo no; echo x >> {one.inside}/SKILL.md || echo no; "
              f"mkdir {artifactlib.ROOT}/d || echo no; rm -rf {one.inside} || echo no; cat {one.inside}/SKILL.md")
    assert c.exec(script, one)["stdout"] == "no\nno\nno\nno\n# one"
    (one.tree / "SKILL.md").write_text("changed\n")
    assert c.out(f"cat {one.inside}/SKILL.md", one) == "# one"
    assert c.out("cat /proc/self/mountinfo | grep langbot-artifacts | tr ' ' '\\n' | grep -c -e ^ro, ") == "1"


def test_content_that_differs_is_refused(rpc, root):
    one, two, three = (skill(root, n) for n in ("one", "two", "three"))
    c = Conversation(rpc)
    c.exec("echo kept > /tmp/f", one)
    (two.tree / "SKILL.md").write_text("# owt\n")
    assert refused(c, one, two) == \
        "BoxError: Immutable artifact preparation failed: Artifact source changed: SKILL.md"
    three.manifest.write_text(two.manifest.read_text())
    assert refused(c, three) == \
        "BoxError: Immutable artifact preparation failed: Artifact manifest does not match content_digest"
    three.manifest.write_text("{}")
    assert refused(c, three) == \
        "BoxError: Immutable artifact preparation failed: Artifact manifest has an invalid shape"
    assert c.out(f"cat /tmp/f; ls {artifactlib.ROOT}", one) == f"kept\n{one.hex}"
    # And no session comes of it.
    other = Conversation(rpc, "other")
    refused(other, two)
    assert [s["session_id"] for s in rpc.call("box_get_sessions")["sessions"]] == ["s"]


def test_links_lead_nowhere(rpc, root):
    secret = root / "secret"
    secret.write_text("# one\n")
    one = skill(root, "one")
    (one.tree / "SKILL.md").unlink()
    (one.tree / "SKILL.md").symlink_to(secret)
    c = Conversation(rpc)
    assert "Artifact source cannot be read: SKILL.md: Too many levels of symbolic links" in refused(c, one)
    (one.tree / "SKILL.md").unlink()
    os.mkfifo(one.tree / "SKILL.md")
    assert "Artifact source must be a regular file: SKILL.md" in refused(c, one)


def test_an_update_is_another_artifact(rpc, root):
    old = skill(root, "v1")
    new = skill(root, "v2")
    c = Conversation(rpc)
    assert c.out(f"cat {old.inside}/SKILL.md", old) == "# v1"
    shutil.rmtree(old.tree)  # the old one is not published any more
    assert c.out(f"cat {new.inside}/SKILL.md {old.inside}/SKILL.md", new) == "# v2\n# v1"


def test_walls_hold_for_them(daemon, rpc, root):
    one = skill(root, "one")
    c = Conversation(rpc)
    for field in ("host_path", "manifest_path"):
        message = refused(c, one.mount(**{field: "/etc/passwd"}))
        assert message.startswith("BoxValidationError: ") and message.endswith("/etc/passwd is blocked for security")
    assert refused(c, one.mount(host_path="/var/lib")).startswith(
        "BoxError: Immutable artifact preparation failed: '/var/lib' is outside the directories that boxd may touch")
    # The copies are nobody's to mount.
    for path in (".box-artifacts", ".box-artifacts/x/tree"):
        (root / path).mkdir(parents=True, exist_ok=True)
        message = refused(Conversation(rpc, "other", host_path=f"{root}/{path}"))
        assert message == f"BoxValidationError: host_path {root}/{path} is blocked for security"
    missing = f"'{root}/missing' does not exist, or is no"
    assert refused(c, one.mount(host_path=f"{root}/missing")).endswith(f"Artifact source {missing} directory")
    assert refused(c, one.mount(manifest_path=f"{root}/missing")).endswith(f"Artifact manifest {missing} file")


def test_ordinary_mounts_conflict_as_before(rpc, root):
    one = skill(root, "one")
    (root / "data").mkdir()
    c = Conversation(rpc)
    c.exec("echo kept > /tmp/f", one)
    data = {"host_path": str(root / "data"), "mount_path": "/mnt/data", "mode": "ro", "content_digest": None,
            "manifest_path": None}
    assert refused(c, one, data).startswith("BoxSessionConflictError: Box mounts differ from this session's")
    assert c.out("cat /tmp/f", one) == "kept"


def test_they_outlive_boxd(daemon, rpc, root):
    """kill -9 of boxd between two: what is there stays, more can be added, the process runs on."""
    one, two = skill(root, "one"), skill(root, "two")
    c = Conversation(rpc)
    c.exec("echo kept > /tmp/export", one)
    c.run("sleep", "1000")
    sandbox = c.sandbox()
    daemon.stop(signal.SIGKILL)
    # As if it had been in the middle of a copy, and of making a place that nobody has.
    place = next(p for p in artifactlib.places(root) if (p / "tree" / one.hex).exists())
    (place / ".tmp-0123456789abcdef").mkdir()
    (place / ".tmp-0123456789abcdef/half").write_text("x")
    (place.parent / "fedcba9876543210").mkdir()
    daemon.start()
    with Rpc(daemon.sock) as again:
        artifactlib.configure(again, root)
        c = Conversation(again)
        assert c.out(f"cat /tmp/export {one.inside}/SKILL.md {two.inside}/SKILL.md", one, two) == "kept\n# one\n# two"
        assert c.process()["status"] == "running" and c.sandbox() == sandbox
        assert daemon.client().get(physical("s"))["artifacts"] == [one.digest, two.digest]
        assert eventually(lambda: not (place.parent / "fedcba9876543210").exists(), 60)
        assert sorted(os.listdir(place)) == ["tree"]


def test_what_nobody_refers_to_goes(rpc, root):
    one = skill(root, "one")
    a, b = Conversation(rpc, "a"), Conversation(rpc, "b")
    a.exec("true", one)
    b.exec("true", one)
    assert list(artifactlib.copies(root).values()) == [{one.hex}] * 2
    rpc.call("box_delete_session", {"session_id": "a"})
    assert eventually(lambda: len(artifactlib.copies(root)) == 1, 60)
    assert b.out(f"cat {one.inside}/SKILL.md", one) == "# one"
    rpc.call("box_delete_session", {"session_id": "b"})
    assert eventually(lambda: artifactlib.copies(root) == {}, 60)


def test_a_root_that_was_tidied_up(rpc, root):
    """Whoever removes what was made ahead costs nobody a session."""
    one = skill(root, "one")
    Conversation(rpc, "a").exec("true")
    assert eventually(lambda: len(artifactlib.places(root)) == 2, 60)
    rpc.call("box_delete_session", {"session_id": "a"})
    assert eventually(lambda: len(artifactlib.places(root)) == 1, 60)
    shutil.rmtree(root / ".box-artifacts")
    b = Conversation(rpc, "b")
    b.exec("true")
    assert b.out(f"cat {one.inside}/SKILL.md", one) == "# one"


def test_sessions_do_not_see_each_others(rpc, root):
    one, two = skill(root, "one"), skill(root, "two")
    a, b = Conversation(rpc, "a"), Conversation(rpc, "b")
    a.exec("true", one)
    assert b.out(f"ls {artifactlib.ROOT}", two) == two.hex


def test_without_a_root_there_are_none(daemon, root):
    one = skill(root, "one")
    with Rpc(daemon.sock) as rpc:
        c = Conversation(rpc)
        c.exec("echo kept > /tmp/f")
        why = "BoxError: Immutable artifact cache is unavailable: box.local.host_root is not set"
        assert refused(c, one) == why + "; acquire a new Box"
        assert refused(Conversation(rpc, "n"), one) == why
        assert c.out("cat /tmp/f") == "kept"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to somebody else")
def test_a_root_that_boxd_may_not_look_into(daemon, root):
    """LangBot's own user has it all, for itself alone."""
    home = root / "home"
    place = home / "data"
    place.mkdir(parents=True)
    one, two = skill(place, "one"), skill(place, "two")
    for path in (home, *home.rglob("*")):
        os.chown(path, 61234, 61234)
        path.chmod(0o700 if path.is_dir() else 0o600)
    (one.tree / "bin/run.sh").chmod(0o700)
    with Rpc(daemon.sock) as rpc:
        artifactlib.configure(rpc, place)
        c = Conversation(rpc)
        c.exec("echo kept > /tmp/f", one)
        assert c.out(f"cat /tmp/f {two.inside}/SKILL.md; {one.inside}/bin/run.sh", one, two) == "kept\n# two\none ran"
    owners = {(p.stat().st_uid, p.stat().st_gid) for p in (place / ".box-artifacts").rglob("*")}
    assert owners == {(61234, 61234)}


@pytest.mark.skipif(os.geteuid() != 0, reason="admission asks for limits, which an ordinary user may not have")
def test_managed_sandboxes_have_them_too(root):
    daemon = Boxd(env={"LANGBOT_BOX_ALLOW_UNSAFE_SOFT_STORAGE_LIMITS": "yes"})
    try:
        with Rpc(daemon.sock) as rpc:
            rpc.call("box_init", {"local": {"host_root": str(root)}, "admission": {"required": True}}, ctx=None)
            rpc.call("box_upsert_sandbox_admission_grant", {
                "instance_uuid": INSTANCE, "workspace_uuid": WORKSPACE, "execution_generation": 1,
                "entitlement_revision": 1, "expires_at": time.time() + 250, "max_sessions": 1,
                "max_managed_processes": 0}, ctx=None)
            one, two = skill(root, "one"), skill(root, "two")
            c = Conversation(rpc, "global")
            c.exec("echo kept > /tmp/f", one)
            assert c.out(f"cat /tmp/f {one.inside}/SKILL.md {two.inside}/SKILL.md", one, two) == "kept\n# one\n# two"
            assert refused(c, one.mount(manifest_path="/var/lib/x")).startswith("BoxAdmissionError: Managed sandbox")
    finally:
        daemon.close()


def test_many_at_once_share_the_work(daemon, rpc, root):
    """Eight requests for the same of one session, on connections of their own."""
    one = skill(root, "one", **{f"f{i}": "x" * 1000 for i in range(200)})
    Conversation(rpc).exec("true")
    clients = [Rpc(daemon.sock) for _ in range(8)]
    try:
        asked = [(r, Conversation(r).start_exec(f"ls {one.inside} | wc -l", one)) for r in clients]
        assert [r.wait(seq)["stdout"] for r, seq in asked] == ["202"] * 8
    finally:
        for r in clients:
            r.ws.sock.close()
    assert list(artifactlib.copies(root).values()) == [{one.hex}]
