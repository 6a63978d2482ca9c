# SPDX-License-Identifier: Apache-2.0
"""The shortest way through everything."""

import os

import pytest

pytestmark = [pytest.mark.vm, pytest.mark.vm_user]


def test_a_command_runs_and_its_exit_code_comes_back(api, sid):
    r = api.x(sid, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (r["outcome"], r["exit_code"], r["stdout"], r["stderr"]) == ("exited", 3, "out\n", "err\n")


def test_files_stay_between_execs_of_a_session(api, sid):
    assert api.sh(sid, "echo kept > /workspace/f; echo tmp > /tmp/g")["exit_code"] == 0
    assert api.sh(sid, "cat /workspace/f /tmp/g")["stdout"] == "kept\ntmp\n"


def test_a_removed_session_leaves_nothing(boxd):
    client = boxd.client()
    client.new("warm-up")  # groups of the instance itself exist from now on
    client.rm("warm-up")
    before = boxd.leaks()
    client.new("gone", **({"workspace_quota_mb": 8} if os.geteuid() == 0 else {}))
    assert client.sh("gone", "echo x > /workspace/f")["exit_code"] == 0
    client.rm("gone")
    assert boxd.leaks() == before
