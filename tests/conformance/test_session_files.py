# SPDX-License-Identifier: Apache-2.0
"""Files are the same on every backend; the one that has none says so."""

import os

import pytest
from boxlib import ApiError
from filelib import Files


@pytest.fixture
def files(box, sid):
    return Files(box.backend.daemon.sock, sid)


@pytest.fixture
def tool(box, sid):
    return lambda name, **arguments: box.call("POST", f"/v1/sessions/{sid}/tools/{name}", arguments)


def test_exec_is_a_tool_everywhere(tool):
    assert tool("exec", command="echo hi")["stdout"] == "hi\n"


def test_a_backend_without_files_says_so(box, files, tool):
    if box.name != "fake":
        pytest.skip("it has files")
    got = files.get("x")
    assert got.status == 501 and got.json["code"] == "unsupported", got.body
    with pytest.raises(ApiError) as e:
        tool("read", path="x")
    assert e.value.code == "unsupported"


@pytest.mark.real
def test_content_both_ways(box, files, sid):
    data = os.urandom(3 << 20)
    assert files.put("/tmp/d/f", data).status == 201
    assert files.get("/tmp/d/f").body == data
    assert files.get("/tmp/d/f", Range="bytes=5-9").body == data[5:10]
    assert box.sh(sid, "wc -c < /tmp/d/f")["stdout"].strip() == str(len(data))
    tag = files.put("/tmp/d/f", b"new").etag
    assert files.put("/tmp/d/f", b"x", headers={"If-Match": '"0-0-0-0"'}).status == 412
    assert files.put("/tmp/d/f", b"newer", headers={"If-Match": tag}).status == 200
    assert [e["name"] for e in files.list("/tmp/d").json["entries"]] == ["f"]
    assert files.remove("/tmp/d", recursive=1).status == 204


@pytest.mark.real
def test_traps_do_not_hold(box, files, sid):
    box.sh(sid, "cd /tmp; mkfifo fifo; ln -s /dev/zero zero; ln -s /proc/self/exe exe; ln -s loop loop")
    for name in ("fifo", "zero", "loop"):
        assert files.get(f"/tmp/{name}").status in (403, 422), name
    assert files.put("/tmp/fifo", b"x").status == 422


@pytest.mark.real
def test_tools_in_the_workspace(box, sid, tool):
    if box.sh(sid, "mkdir -p /workspace && touch /workspace/t")["exit_code"] != 0:
        pytest.skip("this session has no workspace to write to")
    assert tool("write", path="/workspace/s/a.c", content="int main;\n")["ok"]
    assert tool("edit", path="/workspace/s/a.c", old_string="main", new_string="x")["ok"]
    assert tool("read", path="/workspace/s/a.c")["content"] == "int x;"
    assert tool("glob", pattern="*.c")["matches"] == ["/workspace/s/a.c"]
    assert tool("grep", pattern="^int")["matches"][0]["line"] == 1
