# SPDX-License-Identifier: Apache-2.0
"""Paused, durable and updated sessions and their changes, on every backend that can have them; the others say that they
cannot."""

import os
import subprocess

import pytest
from boxlib import BUILD, ApiError


def call(box, sid, verb):
    return box.call("POST", f"/v1/sessions/{sid}/{verb}")


def test_a_paused_session_refuses_commands_until_it_goes_on(box, sid):
    box.sh(sid, "echo before")
    try:
        call(box, sid, "pause")
    except ApiError as e:
        assert e.status in (501, 502) and e.detail, e
        assert box.sh(sid, "echo on")["stdout"] == "on\n"  # and nothing has changed
        pytest.skip(f"it cannot be paused here: {e.detail}")
    with pytest.raises(ApiError) as e:
        box.sh(sid, "echo never")
    assert e.value.status == 409 and f"box unpause {sid}" in e.value.detail
    with pytest.raises(ApiError) as e:
        call(box, sid, "pause")
    assert e.value.status == 409
    call(box, sid, "unpause")
    assert box.sh(sid, "echo on")["stdout"] == "on\n"
    call(box, sid, "pause")
    box.rm(sid)  # which needs no answer of what is frozen


def test_a_session_that_cannot_be_kept_says_so(box):
    keeps = box.name in ("fake", "native")
    sid = box.new(durable=True)
    assert box.get(sid)["durable"] is keeps
    if keeps:
        call(box, sid, "stop")
        assert next(s for s in box.ps() if s["session_id"] == sid)["state"] == "stopped"
    else:
        with pytest.raises(ApiError) as e:
            call(box, sid, "stop")
        assert e.value.status == 409 and "temporary" in e.value.detail
    command = [str(BUILD / "box"), "run", "--session", sid, "--", "true"]
    environment = {**os.environ, "BOX_HOST": f"unix://{box.backend.daemon.sock}"}
    r = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert box.name == "fake" or r.returncode == 0, r.stderr
    assert ("is not kept" in r.stderr) is not keeps, r.stderr


def test_limits_change_where_the_backend_can_change_them(box):
    sid, can = box.new(memory_mb=128), box.name in ("fake", "native", "docker") and not box.runtime
    limits = {"memory_mb": 256, "pids_limit": 50, "cpus": 0.5}
    if can:
        box.call("PATCH", f"/v1/sessions/{sid}", limits)
        told = box.receipt(sid).get("limits")  # which the fake one has none of
        assert box.name == "fake" or [told[k]["value"] for k in ("memory_bytes", "pids", "cpu_quota_us_per_100ms")] == [
            256 << 20, 50, 50_000]
    else:
        with pytest.raises(ApiError) as e:
            box.call("PATCH", f"/v1/sessions/{sid}", limits)
        assert e.value.status == 501 and "make another session" in e.value.detail
    assert box.get(sid)["memory_mb"] == (256 if can else 128)
    assert box.sh(sid, "echo on")["stdout"] == "on\n"


def test_changes_of_the_image_are_listed_where_the_backend_knows_them(box):
    sid = box.new(read_only_rootfs=False)
    if box.name in ("fake", "runsc"):
        with pytest.raises(ApiError) as e:
            box.call("GET", f"/v1/sessions/{sid}/changes")
        assert e.value.status == 501 and "find" in e.value.detail
        return
    if box.runtime:
        pytest.skip("gVisor keeps the changes of a container to itself")
    assert box.sh(sid, "echo x > /etc/added && echo y > /usr/added")["exit_code"] == 0
    found = box.call("GET", f"/v1/sessions/{sid}/changes")
    assert not found["truncated"]
    assert {("added", "/etc/added"), ("added", "/usr/added")} <= {(c["kind"], c["path"]) for c in found["changes"]}
