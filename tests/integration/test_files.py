# SPDX-License-Identifier: Apache-2.0
"""Files of a session: what is done, is done inside, by a process of the session's own identity."""

import base64
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time

import pytest
from boxlib import BUILD, ROOT, Boxd
from filelib import Files
from hostlib import SCALE
from ssetext import Events


@pytest.fixture
def files(boxd_shared, sid):
    return Files(boxd_shared.sock, sid)


def processes(name, **status):
    """The status of each process of the host with that name, where it says so: they cannot be seen from inside."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "status").read_text()
        except OSError:
            continue
        fields = dict(line.split(":\t", 1) for line in text.split("\n") if ":\t" in line)
        if fields["Name"] == name and all(fields[k] == v for k, v in status.items()):
            found.append(fields)
    return found


def marked(api, sid):
    """The status of an ordinary process of the session, which stays."""
    seen = {p["Pid"] for p in processes("sleep")}
    api.sh(sid, "sleep 1000 > /dev/null 2>&1 &")
    return next(p for p in processes("sleep") if p["Pid"] not in seen and p["Uid"] != "0\t0\t0\t0")


def until(condition):
    end = time.monotonic() + 60 * SCALE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def leftovers(api, sid, where="/workspace"):
    return [n for n in api.sh(sid, f"ls -A {where}")["stdout"].split("\n") if n.startswith(".box-")]


def test_what_is_written_is_read(api, files, sid):
    data = bytes(range(256)) * 1000
    made = files.put("deep/er/a.bin", data)
    assert made.status == 201 and made.json["path"] == "/workspace/deep/er/a.bin" and made.json["size"] == len(data)
    got = files.get("/workspace/deep/er/a.bin")
    assert got.status == 200 and got.body == data and got.etag == made.etag
    assert got.headers["X-Content-Type-Options"] == "nosniff"
    assert api.sh(sid, "stat -c '%U %a %s' deep/er/a.bin")["stdout"] == f"box 644 {len(data)}\n"
    head = files.ask("HEAD", path="deep/er/a.bin")
    assert head.status == 200 and head.body == b"" and int(head.headers["Content-Length"]) == len(data)
    again = files.put("deep/er/a.bin", b"x", mode="600")
    assert again.status == 200 and again.json["mode"] == "0644", "what is there keeps its mode"
    assert files.put("run.sh", b"#!/bin/sh\necho ran\n", mode="755").status == 201
    assert api.x(sid, "/workspace/run.sh")["stdout"] == "ran\n"


def test_the_empty_file(files):
    assert files.put("empty", b"").json["size"] == 0
    assert files.get("empty").body == b""
    assert files.get("empty", Range="bytes=0-").status == 416


ALL = b"0123456789"


@pytest.mark.parametrize("asked, status, want", [
    ("bytes=0-3", 206, b"0123"), ("bytes=4-", 206, b"456789"), ("bytes=-2", 206, b"89"), ("bytes=0-99", 206, ALL),
    ("bytes=0-", 206, ALL), ("bytes=10-", 416, None), ("bytes=-0", 416, None), ("bytes=5-2", 200, ALL),
    ("bytes=0-1,4-5", 200, ALL), ("lines=1-2", 200, ALL), ("bytes=18446744073709551615-", 416, None),
])
def test_ranges(files, asked, status, want):
    files.put("r", ALL)
    got = files.get("r", Range=asked)
    assert got.status == status and (want is None or got.body == want)
    if status == 206:
        assert got.headers["Content-Range"].endswith("/10")
    if status == 416:
        assert got.headers["Content-Range"] == "bytes */10"


def test_tags_make_concurrent_edits_safe(files):
    first = files.put("t", b"one").etag
    assert files.get("t", If_None_Match=first).status == 304
    assert files.get("t", If_None_Match='"other"').status == 200
    assert files.get("t", If_Match='"0-0-0-0"').status == 412
    assert files.get("t", Range="bytes=0-0", If_Range=first).status == 206
    assert files.put("t", b"no", headers={"If-None-Match": "*"}).status == 412
    second = files.put("t", b"two", headers={"If-Match": first}).etag
    assert second != first
    assert files.put("t", b"lost", headers={"If-Match": first}).status == 412
    assert files.get("t", Range="bytes=0-0", If_Range=first).body == b"two", "changed: all of it"
    assert files.remove("t", headers={"If-Match": first}).status == 412
    assert files.put("new", b"x", headers={"If-Match": "*"}).status == 412
    assert files.remove("t", headers={"If-Match": second}).status == 204
    assert files.get("t").status == 404


def test_of_many_writers_on_one_state_one_wins(files):
    tag = files.put("c", b"start").etag
    answers = []
    threads = [threading.Thread(target=lambda i=i: answers.append(
        files.put("c", b"%d" % i, headers={"If-Match": tag}).status)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(answers) == [200] + [412] * 7


def test_large_files_pass_through_and_are_not_kept(boxd_shared, files):
    """192 MiB both ways: boxd holds a few buffers of it, never the file."""
    piece = os.urandom(1 << 20)
    count = 192

    def rss():
        status = pathlib.Path(f"/proc/{boxd_shared.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0])

    pathlib.Path(f"/proc/{boxd_shared.process.pid}/clear_refs").write_text("5")
    before = rss()
    conn = files.connect()
    conn.request("PUT", files.url(path="large"), iter([piece] * count), {"Transfer-Encoding": "chunked"},
                 encode_chunked=True)
    answer = conn.getresponse()
    assert answer.status == 201, answer.read()
    answer.read()
    conn.request("GET", files.url(path="large"))
    answer = conn.getresponse()
    assert int(answer.headers["Content-Length"]) == count << 20
    for _ in range(count):
        assert answer.read(1 << 20) == piece
    assert answer.read() == b""
    conn.close()
    assert rss() - before < 64 << 10, "in KiB"


def test_a_reader_that_is_slow_holds_the_file_back(api, files, sid):
    """A reader that takes nothing: the process inside waits, and nobody else does."""
    uid = marked(api, sid)["Uid"]
    api.sh(sid, "truncate -s 10G sparse")
    conn = files.connect()
    conn.request("GET", files.url(path="sparse"))
    answer = conn.getresponse()
    assert int(answer.headers["Content-Length"]) == 10 << 30
    assert answer.read(65536) == b"\0" * 65536
    assert files.put("other", b"x").status == 201 and files.get("other").body == b"x"
    tail = files.get("sparse", Range="bytes=-5")
    assert tail.status == 206 and tail.body == b"\0" * 5
    until(lambda: len(processes("box-files", Uid=uid)) == 1)  # those that have answered may still be ending
    conn.close()
    until(lambda: not processes("box-files", Uid=uid))  # whoever leaves ends it


def test_an_upload_that_breaks_off_leaves_nothing(api, files, sid):
    files.put("keep", b"old")
    conn = files.connect()
    conn.putrequest("PUT", files.url(path="keep"))
    conn.putheader("Content-Length", "1000000")
    conn.endheaders(b"x" * 1000)
    assert api.sh(sid, "for i in $(seq 500); do ls -A | grep -q '^\\.box-' && exit 0; sleep 0.02; done; exit 1")[
        "exit_code"] == 0
    conn.close()
    assert api.sh(sid, "for i in $(seq 500); do ls -A | grep -q '^\\.box-' || exit 0; sleep 0.02; done; exit 1")[
        "exit_code"] == 0
    assert files.get("keep").body == b"old"


def test_whoever_leaves_before_the_answer_is_on_record(boxd_shared, api, sid):
    """The change may have been made: it is not to be made unseen."""
    def recorded():
        lines = (boxd_shared.state / "audit" / "audit.log").read_text().splitlines()
        return [r for r in map(json.loads, lines) if r["event"] == "file_write" and r["session"] == sid]

    api.sh(sid, "mkdir d")
    for request in ("PUT /v1/sessions/{}/files?path=x HTTP/1.1\r\nContent-Length: 1\r\nHost: x\r\n\r\ny",
                    "DELETE /v1/sessions/{}/files?path=d HTTP/1.1\r\nHost: x\r\n\r\n"):
        before = len(recorded())
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(boxd_shared.sock))
            s.sendall(request.format(sid).encode())
        until(lambda: len(recorded()) > before)
        assert recorded()[-1]["command"].split()[0] == request.split()[0]
        assert recorded()[-1]["outcome"] in ("done", "given_up")


def test_a_full_disk_is_said_and_nothing_is_half_written(boxd_shared, api, session):
    name = session(workspace_quota_mb=16)
    files = Files(boxd_shared.sock, name)
    files.put("keep", b"old")
    got = files.put("keep", b"x" * (64 << 20))
    assert got.status == 507 and got.json["code"] == "limit" and "full" in got.json["detail"], got.body
    assert files.get("keep").body == b"old" and leftovers(api, name) == []
    assert files.put("small", b"x").status == 201, "the session goes on"
    api.sh(name, "dd if=/dev/zero of=fill bs=64k")
    assert files.get("keep").body == b"old" and files.remove("fill").status == 204, "a full one can be read and cleared"


def test_check_H12_what_is_no_file_is_refused_without_waiting(api, files, sid):
    api.sh(sid, "mkfifo fifo; ln -s fifo lf; ln -s /dev/zero zero; ln -s /dev/tty tty; ln -s loop loop; mkdir d; "
                "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")' || true")
    for name in ("fifo", "lf", "zero", "tty", "/dev/zero", "/dev/random"):
        for got in (files.get(name), files.put(name, b"x")):
            assert got.status in (403, 422), (name, got.status, got.body)
    assert files.get("loop").status == 422
    assert files.get("d").status == 422 and files.put("d", b"x").status == 422
    assert api.sh(sid, "stat -c %F fifo")["stdout"] == "fifo\n"


def test_check_H12_links_lead_nowhere_that_the_session_cannot_go(api, files, sid, tmp_path):
    """Links to places of the host, through procfs, and one that was a file a moment ago."""
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    os.chmod(tmp_path, 0o755)
    shadow = pathlib.Path("/etc/shadow").read_bytes()
    api.sh(sid, f"ln -s {secret} s; ln -s /etc/shadow sh; ln -s /proc/1/root{secret} p; ln -s /proc/self/root r; "
                f"ln -s ../../../../../../../..{secret} up; ln -s /proc/self/fd/0 fd")
    names = ("s", "sh", "p", f"r{secret}", "up", "fd", f"/proc/1/root{secret}", f"/proc/self/root{secret}")
    for name in names:
        got = files.get(name)
        assert got.status >= 400 and b"of the host" not in got.body and shadow not in got.body, (name, got.body)
    for name in names:
        files.put(name, b"written")  # some of it is made, inside
    assert secret.read_text() == "of the host" and pathlib.Path("/etc/shadow").read_bytes() == shadow
    assert [e["target"] for e in files.list("/workspace").json["entries"] if e["name"] == "s"] == [str(secret)]


def test_check_H12_a_file_that_grows_ends_where_it_was(api, files, sid):
    api.sh(sid, "echo start > g; (while [ ! -e stop ]; do echo more; done >> g) > /dev/null 2>&1 &")
    for _ in range(20):
        got = files.get("g")
        assert got.status == 200 and got.body.startswith(b"start\n")
        assert len(got.body) == int(got.headers["Content-Length"])
    api.sh(sid, "touch stop")


def test_check_H12_another_sessions_files_are_not_there(boxd_shared, api, session):
    one, two = session(), session()
    Files(boxd_shared.sock, one).put("/workspace/mine", b"secret of one")
    other = Files(boxd_shared.sock, two)
    assert other.get("/workspace/mine").status == 404
    assert other.list("/workspace").json["entries"] == []


def test_check_K06_nothing_in_a_workspace_is_run_by_looking(api, files, sid):
    """Hooks and start-up files that strangers left: reading, listing and searching start nothing."""
    api.sh(sid, "mkdir -p .git/hooks; for f in .profile .bashrc .gitconfig .git/hooks/post-checkout ls; do "
                "printf '#!/bin/sh\\ntouch /workspace/ran\\n' > $f; chmod 755 $f; done")
    files.list("/workspace")
    files.get(".profile")
    for tool, arguments in (("grep", {"pattern": "touch"}), ("glob", {"pattern": "**"}), ("read", {"path": ".bashrc"})):
        assert api.call("POST", f"/v1/sessions/{sid}/tools/{tool}", arguments)["ok"]
    assert files.get("ran").status == 404


def test_check_K09_names_come_as_they_are_and_cannot_break_out(api, files, sid):
    """Newlines, escapes, quotes and bytes that are no text, in names: one entry each, and each can be had."""
    names = [b"new\nline", b"\x1b[31mred", b'quo"te', b"back\\slash", b"\xff\xfe", b"sp ace", b"%2e%2e", b"-rf",
             b"\xc3\xa9"]
    for name in names:
        got = files.ask("PUT", body=name, path=b"/workspace/" + name)
        assert got.status == 201, got.body
    entries = files.list("/workspace").json["entries"]
    seen = sorted(base64.b64decode(e["name_base64"]) if "name_base64" in e else e["name"].encode() for e in entries)
    assert seen == sorted(names)
    for name in names:
        assert files.ask("GET", path=b"/workspace/" + name).body == name
    assert files.ask("GET", path="/workspace/a\0b").status in (400, 422)


def test_lists_come_by_pages(api, files, sid):
    api.sh(sid, "mkdir many && cd many && seq -f 'f%05g' 1 2500 | xargs touch")
    seen, after = [], None
    while True:
        page = files.list("many", limit=1000, after=after).json
        seen += [e["name"] for e in page["entries"]]
        assert page["total"] == 2500
        if not page["truncated"]:
            break
        after = page["next"]
    assert seen == [f"f{i:05d}" for i in range(1, 2501)]
    assert files.list("many", limit=10001).status == 422
    assert files.list("many/f00001").status == 422


def test_changes(api, files, sid):
    assert files.change(op="mkdir", path="x/y").status == 201
    files.put("x/y/f", b"1")
    files.put("g", b"2")
    assert files.change(op="move", path="g", to="x/y/f").status == 412
    moved = files.change(op="move", path="g", to="x/y/f", replace=True)
    assert moved.status == 200 and moved.json["path"] == "/workspace/x/y/f" and files.get("x/y/f").body == b"2"
    assert files.change(op="move", path="none", to="z").status == 404
    assert files.change(op="chmod", path="x").status == 422
    assert files.remove("x").status == 409 and files.remove("x", recursive=1).status == 204
    assert files.remove("x").status == 404
    assert files.ask("GET", stat="/workspace").json["type"] == "directory"
    assert files.put("/usr/bin/x", b"x").status == 403


def test_appending(files):
    for part in (b"a", b"b"):
        files.put("log", part, append=1)
    assert files.get("log").body == b"ab"


def test_watching(boxd_shared, api, files, sid):
    api.sh(sid, "mkdir -p w/d")
    url = files.url("/watch", path="w", recursive=1)
    with Events(boxd_shared.sock, "GET", url) as events:
        assert next(events)[0] == "watching"
        files.put("w/d/f", b"x")
        seen = []
        while not any(e == "moved_to" for e, _ in seen):
            event, _, data = next(events)
            seen.append((event, data["path"]))
        assert ("moved_to", "d/f") in seen, "it is put there in one step"
        api.sh(sid, "rm -r w")
        assert any(event == "gone" for event, _, _ in events), "and the stream ends"
    assert Events(boxd_shared.sock, "GET", files.url("/watch", path="none")).status == 404


def test_who_asks_for_the_head_of_a_stream_is_answered(files, sid):
    conn = files.connect()
    for _ in range(2):  # and the next request on the same connection
        conn.request("HEAD", f"/v1/sessions/{sid}/files/watch?path=/workspace")
        answer = conn.getresponse()
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
        answer.read()
    conn.close()


def test_a_watcher_that_does_not_read_is_told_what_it_missed(boxd_shared, api, files, sid):
    files.put("swap", (BUILD / "tests/integration/swap_files").read_bytes(), mode="755")
    api.sh(sid, "mkdir -p r/a/b/c; ln -s x r/a.x; ln -s x r/a/b.x; ln -s x r/a/b/c.x")
    with Events(boxd_shared.sock, "GET", files.url("/watch", path="r")) as events:
        assert next(events)[0] == "watching"
        assert api.x(sid, "/workspace/swap", "/workspace/r", "120000", "/workspace/swap")["exit_code"] == 0
        assert any(event == "overflow" for event, _, _ in events)


def test_a_session_that_has_no_process_left_says_so(boxd_shared, api, session):
    name = session(pids_limit=16)
    files = Files(boxd_shared.sock, name)
    files.put("f", b"x")
    api.sh(name, "for i in $(seq 40); do sleep 1000 > /dev/null 2>&1 & done 2> /dev/null; true")
    got = files.get("f")
    assert got.status in (200, 429, 503), got.body
    assert got.status == 200 or "process" in got.json["detail"], got.body


def test_a_session_that_is_not_there(boxd_shared):
    assert Files(boxd_shared.sock, "nobody").get("f").status == 404
    assert Files(boxd_shared.sock, "nobody").put("f", b"x").status == 404


def test_the_process_inside_is_confined_like_every_other(api, files, sid):
    """Same ids, same filter, no capability; programs beside it do not even see it."""
    other = marked(api, sid)
    api.sh(sid, "truncate -s 3G s")
    conn = files.connect()
    conn.request("GET", files.url(path="s"))
    conn.getresponse()
    ours = processes("box-files", Uid=other["Uid"])
    assert len(ours) == 1
    for key in ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
                "Seccomp_filters"):
        assert ours[0].get(key) == other.get(key), key
    pid = ours[0]["NSpid"].split()[-1]
    r = api.sh(sid, f"ls /proc/{pid}; cat /proc/{pid}/comm; readlink /proc/{pid}/exe")
    assert r["stdout"] == "" and r["exit_code"] != 0, r
    api.sh(sid, f"kill -9 {pid}")  # it is the session's own: it harms nobody but itself
    until(lambda: not processes("box-files", Uid=other["Uid"]))
    conn.close()
    assert files.put("f", b"x").status == 201


def test_without_root():
    """One id for everything: the same walls but those that need root."""
    state = pathlib.Path(tempfile.mkdtemp(prefix="box-test-"))
    os.chown(state, 12345, 12345)
    try:
        daemon = Boxd(state=state, prefix=["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"])
        try:
            daemon.client().new("s")
            files = Files(daemon.sock, "s")
            assert files.put("d/f", b"x").status == 201 and files.get("d/f").body == b"x"
            assert files.remove("d", recursive=1).status == 204 and files.put("/usr/x", b"").status == 403
        finally:
            daemon.close()
    finally:
        shutil.rmtree(state, ignore_errors=True)


def test_the_examples_of_the_documents_work(boxd_shared, api, sid, tmp_path):
    """docs/reference/files.md and docs/reference/tools.md, as a shell runs them."""
    (tmp_path / "report.pdf").write_bytes(b"x" * 1000)
    api.sh(sid, "echo result > out.bin; echo text > a.txt")
    env = {**os.environ, "SOCK": str(boxd_shared.sock), "ID": sid}
    outputs = []
    for page in ("files", "tools"):
        script = re.search(r"```sh\n(.*?)```", (ROOT / f"docs/reference/{page}.md").read_text(), re.S).group(1)
        ran = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env=env, text=True, timeout=60,
                             capture_output=True)
        assert ran.returncode == 0, ran
        outputs.append(ran.stdout)
    assert (tmp_path / "out.bin").read_text() == "result\n"
    assert "}100\n" in outputs[0] and '"entries"' in outputs[0] and '"content":"text"' in outputs[1]
    assert "in" not in api.sh(sid, "ls")["stdout"].split("\n")
