# SPDX-License-Identifier: Apache-2.0
"""How much a workspace keeps: box_get_storage_analysis on the native backend."""

import os
import shutil
import tempfile

import pytest
from boxlib import Boxd
from lbwire import Rpc, context, namespace

KIB = 1024


@pytest.fixture
def root():
    path = tempfile.mkdtemp(prefix="box-storage-", dir="/tmp")
    os.chmod(path, 0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def rpc(root):
    d = Boxd()
    with Rpc(d.sock, ctx=context("w")) as r:
        r.call("box_init", {"local": {"host_root": root}}, ctx=None)
        yield r
    d.close()


def analysis(rpc):
    data = rpc.call("box_get_storage_analysis")
    rows = {row["key"]: row for row in data["directories"]}
    assert len(rows) == len(data["directories"])
    assert data["size_bytes"] == sum(row["size_bytes"] for row in rows.values() if row["kind"] == "root")
    return data, rows


def write(path, size):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(b"x" * size)


def test_a_workspace_that_has_nothing(rpc, root):
    data, rows = analysis(rpc)
    assert (data["size_bytes"], data["active_sessions"], data["managed_processes"]) == (0, 0, 0)
    assert set(rows) == {"workspace", "mcp", "inbox", "outbox"}
    assert not any(row["exists"] or row["error_count"] for row in rows.values())
    assert os.listdir(root) == ["default"] and os.listdir(root + "/default") == []  # looking makes nothing


def test_the_directory_of_the_host_is_measured(rpc, root):
    tenant = f"{root}/default/tenants/{namespace(workspace='w')}"
    write(tenant + "/.mcp/server/a", 1000)
    write(tenant + "/inbox/b", 200)
    write(tenant + "/c", 30)
    write(f"{root}/default/tenants/other/d", 9999)
    os.symlink("/usr", tenant + "/usr")
    rpc.exec("s", "echo 1234 > made", host_path=tenant)
    _, rows = analysis(rpc)
    assert {k: (rows[k]["size_bytes"], rows[k]["file_count"]) for k in ("workspace", "mcp", "inbox", "outbox")} == {
        "workspace": (1000 + 200 + 30 + 4 + 5, 5), "mcp": (1000, 1), "inbox": (200, 1), "outbox": (0, 0)}
    # It is in the sandbox as well, but counted once.
    assert rows["session_workspaces"]["size_bytes"] == 0 and rows["session_workspaces"]["exists"] is False


def test_what_sessions_keep_is_measured_inside(rpc):
    rpc.exec("a", "head -c 300000 /dev/zero > f; mkdir -p ~/.cache/pip; head -c 50000 /dev/zero > ~/.cache/pip/x")
    rpc.exec("b", "head -c 100000 /dev/zero > /tmp/f; touch /tmp/g; ln -s /usr /tmp/usr")
    rpc.call("box_start_managed_process", {"session_id": "b", "spec": {"command": "cat"}})
    rpc.call("box_create_session", {"session_id": "stranger"}, ctx=context("other"))
    data, rows = analysis(rpc)
    assert (data["active_sessions"], data["managed_processes"]) == (2, 1)
    for key, size, files in (("session_workspaces", 300000, 1), ("session_caches", 50000, 1),
                             ("session_temp", 100000, 2)):
        row = rows[key]
        assert size <= row["size_bytes"] < size + 64 * KIB and row["file_count"] == files, row
        assert (row["exists"], row["error_count"], row["scope"]) == (True, 0, "sandbox_sessions")
        assert row["path"].endswith(" (2 sandbox sessions)")
    managed = rows["managed_process_workspaces"]
    assert (managed["kind"], managed["parent_key"]) == ("detail", "session_workspaces")
    assert managed["size_bytes"] < 64 * KIB


def test_looking_is_not_using(rpc):
    rpc.exec("s", "true")
    before = rpc.call("box_get_session", {"session_id": "s"})["last_used_at"]
    analysis(rpc)
    after = rpc.call("box_get_session", {"session_id": "s"})
    assert (after["last_used_at"], after["status"]) == (before, "idle")


def test_a_session_that_cannot_answer_is_an_error(rpc):
    rpc.call("box_create_session", {"session_id": "s", "pids_limit": 1})
    _, rows = analysis(rpc)
    assert rows["session_temp"]["error_count"] == 1 and rows["session_temp"]["path"] == "/tmp (0 sandbox sessions)"
