# SPDX-License-Identifier: Apache-2.0
"""What a command is given, what it says, and how it ends (T53, T54)."""

import base64
import threading
import time

import pytest
from boxlib import ApiError
from wsexec import run, stream


def test_a_command_says_something_and_ends(box, sid):
    r = box.sh(sid, "echo hello")
    assert (r["outcome"], r["exit_code"], r["stdout"], r["stderr"]) == ("exited", 0, "hello\n", "")


def test_exit_codes_come_back(box, sid):
    assert [box.sh(sid, f"exit {n}")["exit_code"] for n in (0, 1, 77, 255)] == [0, 1, 77, 255]


def test_a_program_that_is_not_there_is_127_with_the_reason(box, sid):
    r = box.x(sid, "no-such-program")
    assert (r["outcome"], r["exit_code"]) == ("exited", 127) and "No such file" in r["error"]


def test_a_time_out_is_an_outcome_and_the_session_goes_on(box, sid):
    begin = time.monotonic()
    r = box.sh(sid, "sleep 60000", timeout_sec=0.5)
    assert (r["outcome"], r["exit_code"]) == ("timed_out", None)
    assert time.monotonic() - begin < 20
    assert box.sh(sid, "echo still")["stdout"] == "still\n"


def test_the_environment_is_the_sessions_then_the_commands(box):
    sid = box.new(env={"A": "session", "B": "session"})
    out = box.sh(sid, "env", env={"B": "command", "C": "with = and space"})["stdout"].splitlines()
    assert {"A=session", "B=command", "C=with = and space"} <= set(out)
    assert "C=with = and space" not in box.sh(sid, "env")["stdout"]


def test_the_working_directory_is_the_workspace(box, sid):
    assert box.sh(sid, "pwd")["stdout"] == "/workspace\n"


def test_what_comes_in_goes_out(box, sid):
    data = bytes(range(256)) * 4096
    r = run(box.backend.daemon, sid, cmd="cat", stdin=data)
    assert r["outcome"] == "exited" and r.out == data


def test_a_deleted_session_is_gone(box):
    sid = box.new()
    box.rm(sid)
    with pytest.raises(ApiError) as caught:
        box.get(sid)
    assert caught.value.status == 404


@pytest.mark.real
def test_the_streams_are_apart(box, sid):
    r = box.sh(sid, "echo out; echo err >&2")
    assert (r["stdout"], r["stderr"]) == ("out\n", "err\n")


@pytest.mark.real
def test_stdout_can_be_opened_by_name(box, sid):
    assert box.sh(sid, "echo x > /dev/stdout; echo y > /dev/stderr")["stdout"] == "x\n"


@pytest.mark.real
def test_a_signal_is_told_as_such(box, sid):
    r = box.sh(sid, "kill -9 $$")
    assert (r["outcome"], r["signal"], r["exit_code"]) == ("signaled", 9, None)


@pytest.mark.real
def test_a_working_directory_that_is_not_there_is_made(box, sid):
    r = box.sh(sid, "pwd", cwd="/workspace/a/b c/d")
    assert r["stdout"] == "/workspace/a/b c/d\n"


@pytest.mark.real
def test_a_working_directory_that_cannot_be_is_126_with_the_reason(box, sid):
    r = box.sh(sid, "pwd", cwd="/proc/self/fd")
    assert (r["outcome"], r["exit_code"]) == ("exited", 126) and "working directory" in r["error"]


@pytest.mark.real
def test_files_stay_between_commands(box, sid):
    for place in ("/tmp", "/workspace"):
        assert box.sh(sid, f"echo kept > {place}/f")["exit_code"] == 0
        assert box.sh(sid, f"cat {place}/f")["stdout"] == "kept\n"


@pytest.mark.real
def test_arguments_arrive_as_they_are(box, sid):
    words = ["a b", "'", '"', "$HOME", "*", "", "\\", "new\nline", "ü"]
    r = box.x(sid, "printf", "%s|", *words)
    assert r["stdout"] == "".join(w + "|" for w in words)


@pytest.mark.real
def test_a_command_may_be_larger_than_one_argument(box, sid):
    text = "x" * (300 * 1024)
    r = box.sh(sid, f": {text}; echo end")
    assert (r["exit_code"], r["stdout"]) == (0, "end\n")


@pytest.mark.real
def test_output_is_kept_up_to_its_cap_and_counted(box, sid):
    r = box.sh(sid, "yes | head -c 3000000")
    assert r["stdout_bytes"] == 3000000
    assert len(r["stdout"]) + r["stdout_truncated_bytes"] == 3000000


@pytest.mark.real
def test_bytes_that_are_no_text_come_whole_over_a_stream(box, sid):
    r = run(box.backend.daemon, sid, cmd=r"printf '\377\000\200'; printf '\376' >&2")
    assert (r.out, r.err) == (b"\377\000\200", b"\376"), base64.b64encode(r.out)


@pytest.mark.real
def test_a_slow_reader_loses_nothing(box, sid):
    with stream(box.backend.daemon, sid, cmd="seq 1 500000") as s:
        s.started()
        time.sleep(0.5)  # nothing is read meanwhile: the program is held back
        r = s.finish()
    assert r.out == b"".join(b"%d\n" % n for n in range(1, 500001))


@pytest.mark.real
def test_what_was_written_last_comes_before_the_end(box, sid):
    """More than any buffer on the way holds; the program has ended long before its reader comes to that."""
    with stream(box.backend.daemon, sid, cmd="head -c 700000 /dev/zero; echo ended > /tmp/ended") as s:
        s.started()
        time.sleep(1)
        r = s.finish()
    assert (r["outcome"], len(r.out)) == ("exited", 700000)


@pytest.mark.real
def test_what_runs_is_listed_with_what_started_it_and_what_was_left_can_be_ended(box, sid):
    call = box.backend.daemon.client().call
    r = box.sh(sid, "sleep 1001 & (setsid sleep 1002 >/dev/null 2>&1 &) ; echo done")
    other = box.sh(sid, "sleep 1003 &")
    assert (r["remaining"], other["remaining"]) == (2, 1)
    call("POST", f"/v1/sessions/{sid}/processes", {"process_id": "web", "command": "sleep", "args": ["1004"]})

    def top(query=""):
        found = call("GET", f"/v1/sessions/{sid}/top{query}")
        assert not found["truncated"]
        return {p["command"]: p for p in found["processes"]}

    while (seen := top()).keys() != {f"sleep {n}" for n in (1001, 1002, 1003, 1004)}:
        assert len(seen) == 4, seen  # web has not come to execve yet
    owners = {c: (p["exec_id"], p["process_id"], p["background"]) for c, p in seen.items()}
    assert owners == {"sleep 1001": (r["exec_id"], None, True), "sleep 1002": (r["exec_id"], None, True),
                      "sleep 1003": (other["exec_id"], None, True), "sleep 1004": (None, "web", False)}
    assert all(p["pid"] > 1 and p["parent_pid"] >= 1 and p["age_ms"] < 60000 for p in seen.values())
    call("DELETE", f"/v1/sessions/{sid}/execs/{r['exec_id']}")
    assert top("?background=1").keys() == {"sleep 1003"} and top().keys() == {"sleep 1003", "sleep 1004"}
    with pytest.raises(ApiError) as e:
        call("DELETE", f"/v1/sessions/{sid}/execs/{r['exec_id']}")
    assert e.value.status == 404 and "has left nothing" in str(e.value)


@pytest.mark.real
def test_what_a_session_uses_is_counted_and_what_is_not_known_is_null(box, sid):
    client = box.backend.daemon.client()

    def stats():
        found = client.call("GET", f"/v1/stats?sessions=nobody,{sid}")["stats"]
        assert [s["session_id"] for s in found] == [sid]
        return found[0]

    before = stats()
    assert box.sh(sid, "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done")["exit_code"] == 0
    after = stats()
    assert after["time_usec"] > before["time_usec"]
    for key in ("cpu_usec", "memory_bytes", "pids"):  # an engine may give its container no cgroup to read
        assert (before[key] is None) == (after[key] is None) and after[key] != 0 or key == "pids", (key, after)
    if after["cpu_usec"] is not None:
        assert after["cpu_usec"] > before["cpu_usec"]
    if box.backend.name == "native":
        assert after["memory_limit_bytes"] == client.get(sid)["memory_mb"] << 20
        assert (after["pids"], after["pids_limit"]) == (0, client.get(sid)["pids_limit"])
        assert after["disk_bytes"] is None and after["network_sent_bytes"] == 0


@pytest.mark.real
def test_the_end_of_stdin_is_seen_and_a_closed_reader_ends_a_writer(box, sid):
    assert run(box.backend.daemon, sid, cmd="wc -c", stdin=b"12345").out.strip() == b"5"
    assert box.sh(sid, "yes | head -1")["stdout"] == "y\n"


@pytest.mark.real
def test_processes_in_the_background_do_not_hold_the_answer(box, sid):
    begin = time.monotonic()
    r = box.sh(sid, "sleep 1000 & echo done")
    assert (r["outcome"], r["stdout"], r["remaining"]) == ("exited", "done\n", 1)
    assert time.monotonic() - begin < 20
    box.sh(sid, "(while :; do echo; sleep 0.05; done >> /tmp/beat) &")
    size = int(box.sh(sid, "wc -c < /tmp/beat")["stdout"])
    r = box.sh(sid, f"until [ $(wc -c < /tmp/beat) -gt {size} ]; do sleep 0.05; done", timeout_sec=20)
    assert r["outcome"] == "exited", "it lives on"


@pytest.mark.real
def test_commands_of_one_session_run_at_the_same_time(box, sid):
    results = []

    def run():
        client = box.backend.daemon.client()
        results.append(client.sh(sid, "until [ -e /tmp/go ]; do sleep 0.05; done; echo went", timeout_sec=60))
        client.close()

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert box.sh(sid, "touch /tmp/go")["exit_code"] == 0
    for thread in threads:
        thread.join(90)
    assert [r["stdout"] for r in results] == ["went\n"] * 8


@pytest.mark.real
def test_a_terminal_is_one(box, sid):
    command = "tty >/dev/null && echo yes; stty size; read x; echo got $x"
    with stream(box.backend.daemon, sid, cmd=command, tty=True, rows=33, cols=99) as s:
        s.started()
        s.stdin(b"word\n")
        r = s.finish()
    assert r["outcome"] == "exited"
    assert b"yes" in r.out and b"33 99" in r.out and b"got word" in r.out


@pytest.mark.real
def test_a_signal_reaches_the_main_process(box, sid):
    command = "trap 'echo caught; exit 7' TERM; echo up; while :; do sleep 0.05; done"
    with stream(box.backend.daemon, sid, cmd=command) as s:
        s.started()
        s.until(b"up\n")
        s.signal("TERM")
        r = s.finish()
    assert (r["outcome"], r["exit_code"]) == ("exited", 7) and r.out.endswith(b"caught\n")
