# SPDX-License-Identifier: Apache-2.0
"""Artifacts of LangBot 4.11 on every backend that runs programs: whatever a session is made of, more of them reach it
while it lives."""

import itertools
import os
import signal

import artifactlib
import pytest
from artifactlib import Artifact, Conversation
from boxlib import scratch
from lbwire import Rpc, RpcError, context, eventually, physical

pytestmark = pytest.mark.real
_workspaces = itertools.count()


@pytest.fixture
def root():
    with scratch("box-artifacts-", 0o777) as path:  # whoever boxd is
        yield path


@pytest.fixture
def talk(box, root):
    whose = context(f"artifacts{os.getpid()}-{next(_workspaces)}")
    with Rpc(box.backend.daemon.sock, ctx=whose, timeout=90) as rpc:
        artifactlib.configure(rpc, root)
        yield Conversation(rpc, image=box.backend.image, workdir="/tmp")
    with Rpc(box.backend.daemon.sock, ctx=whose, timeout=90) as rpc:  # it may be another daemon
        for s in rpc.call("box_get_sessions")["sessions"]:
            rpc.call("box_delete_session", {"session_id": s["session_id"]})


def test_added_to_a_session_that_lives(box, talk, root):
    one, two = (Artifact(root, n, {"SKILL.md": n, "bin/run": f"#!/bin/sh\necho {n} ran\n"}) for n in ("one", "two"))
    talk.exec("echo kept > /tmp/export")
    talk.run("sleep", "1000")
    sandbox = talk.sandbox()
    assert talk.out(f"cat {one.inside}/SKILL.md; echo; {one.inside}/bin/run", one) == "one\none ran"
    assert talk.out(f"cat {one.inside}/SKILL.md {two.inside}/SKILL.md /tmp/export", one, two) == "onetwokept"
    assert talk.exec(f"touch {one.inside}/new {artifactlib.ROOT}/new")["exit_code"] != 0
    assert talk.process()["status"] == "running" and talk.sandbox() == sandbox
    session = physical("s", talk.rpc.ctx["workspace_uuid"])
    assert box.get(session)["artifacts"] == [one.digest, two.digest]
    talk.rpc.call("box_delete_session", {"session_id": "s"})
    assert eventually(lambda: artifactlib.copies(root) == {}, seconds=60)


def test_changed_content_is_refused(talk, root):
    one = Artifact(root, "one", {"SKILL.md": "one"})
    talk.exec("echo kept > /tmp/export")
    (one.tree / "SKILL.md").write_text("eno")
    with pytest.raises(RpcError) as e:
        talk.exec("true", one)
    assert e.value.message == "BoxError: Immutable artifact preparation failed: Artifact source changed: SKILL.md"
    assert talk.out(f"cat /tmp/export; echo {artifactlib.ROOT}/*") == f"kept\n{artifactlib.ROOT}/*"  # the shell finds none


def test_more_come_after_boxd_was_killed(box, talk, root):
    one, two = (Artifact(root, n, {"SKILL.md": n}) for n in ("one", "two"))
    talk.exec("echo kept > /tmp/export", one)
    talk.run("sleep", "1000")
    sandbox = talk.sandbox()
    box.backend.daemon.stop(signal.SIGKILL)
    box.backend.daemon.start()
    box.api.close()
    with Rpc(box.backend.daemon.sock, ctx=talk.rpc.ctx, timeout=90) as talk.rpc:
        artifactlib.configure(talk.rpc, root)
        assert talk.out(f"cat {one.inside}/SKILL.md {two.inside}/SKILL.md /tmp/export", one, two) == "onetwokept"
        assert talk.process()["status"] == "running" and talk.sandbox() == sandbox
        talk.rpc.call("box_delete_session", {"session_id": "s"})
        assert eventually(lambda: artifactlib.copies(root) == {}, seconds=60)
