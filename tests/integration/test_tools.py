# SPDX-License-Identifier: Apache-2.0
"""The agent's tools as a host calls them, and docs/reference/tools.md against the table."""

import base64
import json
import re
import threading

import pytest
from boxlib import ROOT, ApiError, Boxd


@pytest.fixture
def tool(api, sid):
    def call(name, **arguments):
        return api.call("POST", f"/v1/sessions/{sid}/tools/{name}", arguments)

    return call


def error(answer):
    assert answer["ok"] is False and set(answer) == {"ok", "error"}, answer
    return answer["error"]


def test_exec(tool):
    r = tool("exec", command="echo $X; pwd; echo oops >&2; exit 3", env={"X": "y"}, workdir="/tmp", description="try")
    assert (r["stdout"], r["stderr"], r["exit_code"], r["ok"]) == ("y\n/tmp\n", "oops\n", 3, False)
    assert r["preview"] == "stdout:\ny\n/tmp\n\n\nstderr:\noops\n" and r["truncated"] is False
    r = tool("exec", command="sleep 100", timeout_sec=1)
    assert r["status"] == "timed_out" and r["stderr"] == "Command timed out after 1 seconds."


def test_exec_reads_a_command_as_bash_does_where_there_is_one(api, sid, tool):
    """What models write. The API's own exec stays with sh."""
    bash = 'a=(one two); [[ ${a[1]} == t* ]] && echo "${a[1]}" "$0" <(:)'
    assert tool("exec", command=bash)["stdout"].startswith("two bash /dev/fd/")
    long = tool("exec", command=f"{bash} # {'x' * (200 << 10)}")  # more than one argument can hold
    assert long["exit_code"] == 0 and long["stdout"].startswith("two /proc/self/fd/3 ")
    assert api.sh(sid, "echo $0 ${BASH_VERSION:-none}")["stdout"] == "sh none\n"


def test_exec_shows_a_part_and_keeps_the_whole(api, sid, tool):
    r = tool("exec", command="seq 100000")
    assert r["stdout_truncated"] and r["truncated"] and len(r["stdout"]) <= 4000
    assert r["stdout"].startswith("1\n2\n") and r["stdout"].endswith("100000\n") and r["stdout_id"]


def test_a_file_from_write_to_grep(tool):
    assert tool("write", path="/workspace/src/a.py", content="import os\nprint('one')\n") == {
        "ok": True, "path": "/workspace/src/a.py", "size_bytes": 23, "created": True}
    assert tool("write", path="src/a.py", content="# end", mode="append")["size_bytes"] == 28
    r = tool("read", path="/workspace/src/a.py", limit=1)
    assert (r["content"], r["truncated_by"], r["end_line"], r["next_offset"]) == ("import os", "lines", 1, 2)
    assert tool("read", path="/workspace/src/a.py", offset=2)["content"] == "print('one')\n# end"
    assert tool("edit", path="src/a.py", old_string="'one'", new_string="'two'")["replacements"] == 1
    assert tool("grep", pattern="tw[o]", include="*.py")["matches"] == [
        {"file": "/workspace/src/a.py", "line": 2, "content": "print('two')"}]
    assert tool("glob", pattern="**/*.py")["matches"] == ["/workspace/src/a.py"]
    listed = tool("read", path="/workspace")
    assert listed["content"] == "src" and listed["is_directory"]


def test_bytes_that_are_no_text(tool):
    data = bytes(range(256))
    tool("write", path="b", content=base64.b64encode(data).decode(), encoding="base64")
    got, offset = b"", 0
    while offset is not None:
        r = tool("read", path="b", encoding="base64", byte_offset=offset, max_bytes=100)
        got, offset = got + base64.b64decode(r["content"]), r["next_byte_offset"]
    assert got == data and r["size_bytes"] == 256
    assert "invalid base64" in error(tool("write", path="b", content="*", encoding="base64"))


def test_words_of_refusals(tool):
    tool("write", path="twice", content="aa")
    tool("write", path="large", content="x" * (1 << 20) + "y")
    assert error(tool("read", path="/workspace/none")) == "File not found: /workspace/none"
    assert error(tool("read", path="/etc/passwd")) == "Path must be under /workspace."
    assert error(tool("read", path="/workspacefoo")) == "Path must be under /workspace."
    assert error(tool("read", path="/workspace/../etc/passwd")) == "Path escapes the workspace boundary."
    assert error(tool("edit", path="twice", old_string="a", new_string="b")) == (
        "old_string matches 2 locations; provide a more unique string.")
    assert error(tool("edit", path="twice", old_string="z", new_string="b")) == "old_string not found in file."
    assert error(tool("edit", path="large", old_string="y", new_string="b")) == (
        "File exceeds the 1048576-byte edit limit.")
    assert error(tool("glob", pattern="*", path="twice")) == "Path is not a directory: /workspace/twice"
    assert error(tool("grep", pattern="(")).startswith("Invalid regex: ")
    assert error(tool("grep", pattern="x", path="none")) == "Path not found: /workspace/none"
    assert tool("read", path="large")["content"].startswith("[Line 1 exceeds the 50.0KB read limit.")


def test_links_out_of_the_workspace(api, sid, tool):
    api.sh(sid, "echo secret > /tmp/s; ln -s /tmp/s abs; ln -s ../tmp/s rel; ln -s /workspace/in ok; echo fine > in; "
                "mkdir d; ln -s /tmp d/t")
    for name in ("abs", "rel", "d/t/s"):
        assert error(tool("read", path=name)) == "Path escapes the workspace boundary."
        assert error(tool("write", path=name, content="x")) == "Path escapes the workspace boundary."
    assert tool("read", path="ok")["content"] == "fine"
    assert api.sh(sid, "cat /tmp/s")["stdout"] == "secret\n"
    assert tool("grep", pattern="secret")["matches"] == [], "links are not followed"
    assert "/workspace/d/t" in tool("glob", pattern="*")["matches"]


def test_a_search_has_an_end(api, sid, tool):
    """A pattern that would keep a backtracking engine busy for ever, many matches, long lines, what is no text."""
    api.sh(sid, "head -c 200000 /dev/zero | tr '\\0' a > as; seq 1000 > many; head -c 1000 /dev/zero > zeros; "
                "mkdir node_modules; echo 1 > node_modules/x; for i in $(seq 150); do echo > f$i; done")
    assert tool("grep", pattern="(a*)*b", path="as")["matches"] == []
    r = tool("grep", pattern="[0-9]")
    assert (r["total"], r["truncated_by"]) == (200, "matches")
    assert all("node_modules" not in m["file"] for m in r["matches"])
    r = tool("grep", pattern="a$", path="as")
    assert r["matches"][0]["content"] == "a" * 500 + "... [truncated]" and r["truncated_by"] == "line"
    r = tool("glob", pattern="f*")
    assert len(r["matches"]) == 100 and r["total"] == 150 and r["truncated_by"] == "matches"


def test_the_newest_comes_first(api, sid, tool):
    api.sh(sid, "touch -d '2020-01-01' old.c; touch -d '2024-01-01' new.c; touch -d '2022-01-01' .hid.c")
    assert tool("glob", pattern="*.c")["matches"] == ["/workspace/new.c", "/workspace/.hid.c", "/workspace/old.c"]


def test_wrong_arguments(api, sid, tool):
    for name, arguments in (("read", {}), ("read", {"path": "x", "extra": 1}), ("grep", {"pattern": "x" * 1025}),
                            ("exec", {"command": "x", "timeout_sec": 0})):
        with pytest.raises(ApiError) as e:
            tool(name, **arguments)
        assert e.value.status == 422
    with pytest.raises(ApiError) as e:
        tool("rm", path="/")
    assert e.value.status == 404


def test_writes_are_on_record(tmp_path):
    daemon = Boxd()
    try:
        api = daemon.client()
        api.new("s")
        api.call("POST", "/v1/sessions/s/tools/write", {"path": "f", "content": "x"})
        api.call("POST", "/v1/sessions/s/tools/edit", {"path": "f", "old_string": "x", "new_string": "y"})
        api.call("POST", "/v1/sessions/s/tools/read", {"path": "f"})
        text = "".join(p.read_text() for p in daemon.state.rglob("audit*.log"))
        records = [json.loads(line) for line in text.splitlines()]
        writes = [r for r in records if r["event"] == "file_write"]
        assert [r["command"] for r in writes] == ["write /workspace/f", "edit /workspace/f"], records
        assert all(r["session"] == "s" and r["outcome"] == "done" for r in writes)
    finally:
        daemon.close()


def test_many_at_once(boxd_shared, sid):
    """Readers and writers of one session side by side, more than it runs processes for at a time."""
    failed = []

    def work(i):
        api = boxd_shared.client()
        for k in range(5):
            api.call("POST", f"/v1/sessions/{sid}/tools/write", {"path": f"d{i}/f{k}", "content": str(k)})
            if api.call("POST", f"/v1/sessions/{sid}/tools/read", {"path": f"d{i}/f{k}"}).get("content") != str(k):
                failed.append((i, k))
        api.close()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failed == []


def test_the_document_says_what_the_table_says(api):
    """Every tool, every parameter with its type and default, in the order of the table; nothing else."""
    text = (ROOT / "docs/reference/tools.md").read_text()
    documented = {}
    for name, body in re.findall(r"^### `(\w+)`\n(.*?)(?=^##)", text, re.M | re.S):
        documented[name] = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", body, re.M)
    tools = api.call("GET", "/v1/tools")["tools"]
    assert list(documented) == [t["name"] for t in tools]
    for t in tools:
        schema = t["parameters"]
        rows = []
        for name, p in schema["properties"].items():
            kind = p["type"] if isinstance(p.get("type"), str) else p["type"][0] if "type" in p else "string"
            default = "required" if name in schema["required"] else json.dumps(p.get("default")).replace("null", "")
            rows.append((name, kind, default.strip() or "none", p["description"]))
        assert documented[t["name"]] == rows, t["name"]
