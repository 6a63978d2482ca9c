# SPDX-License-Identifier: Apache-2.0
"""Bytes in and out of a running command: G03, G04, G06, G07, G08, E06, E07."""

import hashlib
import os
import socket
import threading
import time

import pytest
import wsexec
from boxlib import Boxd
from watch import MOMENT, SLOW, Victim, Watch, amount, settled, settles, wait_for

pytestmark = pytest.mark.rootless
with_groups = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user may have no cgroup: then an exec ends "
                                 "without knowing what it leaves running, and with everything else on time-out")

MIB = 1 << 20


def streamed(r):
    return r["outcome"], r["exit_code"], r["signal"]


# G03: stdin.

@pytest.mark.parametrize("chunk", [1 << 16, 1000, 3 * MIB + 1, 11 * MIB])
def test_check_G03_stdin_of_any_size_in_pieces_of_any_size(boxd_shared, sid, chunk):
    data = os.urandom(MIB) * amount(32 if chunk > 1000 else 4, 2)
    r = wsexec.run(boxd_shared, sid, "sha256sum", stdin=data, chunk=chunk)
    assert r.out.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert streamed(r) == ("exited", 0, None)


def test_check_G03_what_goes_in_comes_out_while_both_sides_are_held_back(boxd_shared, sid):
    data = os.urandom(MIB) * amount(24, 2)
    r = wsexec.run(boxd_shared, sid, "cat", stdin=data)
    assert r.out == data


def test_check_G03_a_program_that_never_reads_holds_the_client_back(boxd):
    """boxd keeps a bounded part; the kernel stops the sender; the command still ends in time."""
    api = boxd.client()
    api.new("s")
    before = boxd.rss_kb()
    with wsexec.stream(boxd, "s", "sleep", "100", stdin=True, timeout_sec=3 * MOMENT) as s:
        s.started()
        sent = []

        def push():
            try:
                for _ in range(400):
                    s.stdin(b"x" * 65536)
                    sent.append(1)
            except OSError:
                pass

        thread = threading.Thread(target=push, daemon=True)
        thread.start()
        seen = [-1]

        def stuck():
            seen.append(len(sent))
            time.sleep(0.1 * MOMENT)
            return seen[-1] == seen[-2] > 0

        wait_for(stuck, what="a sender that is held back")
        assert len(sent) < 64, "25 MiB were taken from a client whose program reads nothing"
        assert boxd.rss_kb() - before < 8 * 1024
        r = s.finish()
    thread.join(60)
    assert streamed(r) == ("timed_out", None, None)


@pytest.mark.parametrize("script", ["exec <&-; sleep 0.3; echo done", "head -c 5 >/dev/null; echo done", "echo done"])
def test_check_G03_a_program_that_closes_or_abandons_stdin(boxd_shared, sid, script):
    data = b"y" * (4 * MIB)
    r = wsexec.run(boxd_shared, sid, "sh", "-c", script, stdin=data)
    assert streamed(r) == ("exited", 0, None) and r.out == b"done\n"


def test_check_G03_the_end_of_stdin_does_not_end_stdout(boxd_shared, sid):
    with wsexec.stream(boxd_shared, sid, "sh", "-c", "cat; echo after; sleep 0.2; echo end", stdin=True) as s:
        s.started()
        s.stdin(b"one\n")
        assert s.until(b"one\n") == b"one\n"  # while stdin is still open
        s.stdin(b"two\n")
        s.eof()
        r = s.finish()
    assert r.out == b"two\nafter\nend\n" and r["exit_code"] == 0


def test_check_G03_stdin_sent_before_the_session_exists_is_not_lost(boxd_shared):
    request = {"ephemeral": True, "argv": ["cat"], "stdin": True}
    with wsexec.Stream(boxd_shared.sock) as s:
        s.say(request)
        s.stdin(b"early ")
        s.stdin(b"bird")
        s.eof()
        s.started()
        r = s.finish()
    assert r.out == b"early bird"


def test_check_G03_bytes_for_a_program_without_stdin_are_dropped(boxd_shared, sid):
    with wsexec.stream(boxd_shared, sid, "sh", "-c", "cat; sleep 0.2; echo end") as s:
        s.started()
        for _ in range(40):
            s.stdin(b"z" * MIB)
        r = s.finish()
    assert r.out == b"end\n"


# G04: background processes.

@with_groups
def test_check_G04_a_background_child_does_not_hold_the_answer(api, sid):
    """The answer comes when the main process ends and its pipes have been silent for 50 ms; the child
    lives on, and may go on writing where nobody listens."""
    begin = time.monotonic()
    r = api.sh(sid, """
        (while [ ! -e go ]; do sleep 0.02; done
         for i in 1 2 3 4; do head -c 1000000 /dev/zero || exit; done
         echo survived > mark; exec sleep 1000) &
        echo main""", cwd="/workspace")
    took = time.monotonic() - begin
    assert (r["stdout"], r["outcome"], r["exit_code"]) == ("main\n", "exited", 0)
    assert r["remaining"] >= 1
    assert took < 5 * SLOW
    watch = Watch(api, sid)
    assert "sleep" in watch.names() or "sh" in watch.names()
    api.sh(sid, "touch /workspace/go")
    wait_for(lambda: api.sh(sid, "cat /workspace/mark")["stdout"] == "survived\n", what="the child's mark")
    wait_for(lambda: "sleep" in watch.names())


def test_check_G04_output_of_the_main_process_is_complete_although_a_child_holds_the_pipe(api, sid):
    for _ in range(amount(20, 3)):
        r = api.sh(sid, "sleep 1000 & head -c 3000000 /dev/zero; echo end >&2; exit 4", capture_bytes=0)
        assert (r["stdout_bytes"], r["stderr_bytes"], r["exit_code"]) == (3000000, 4, 4)


@with_groups
def test_check_G04_a_stream_ends_too_although_a_child_holds_the_pipe(boxd_shared, sid):
    r = wsexec.run(boxd_shared, sid, "sh", "-c", "sleep 1000 & echo main")
    assert r.out == b"main\n" and r["exit_code"] == 0 and r["remaining"] == 1


# G06: whoever asked goes away.

def test_check_G06_a_client_that_leaves_takes_its_command_along(boxd_shared, api, sid):
    watch = Watch(api, sid)
    with wsexec.stream(boxd_shared, sid, "sh", "-c", "setsid sleep 1000 & (sleep 1001 &) ; echo up; exec sleep 1002") as s:
        s.started()
        s.until(b"up\n")
        wait_for(lambda: watch.names() == ["sleep"] * 3)
    wait_for(lambda: not watch.payload(), what="end of the tree")
    assert api.sh(sid, "echo usable")["stdout"] == "usable\n"


def test_check_G06_also_when_it_is_held_back_by_a_program_that_does_not_read(boxd_shared, api, sid):
    watch = Watch(api, sid)
    with wsexec.stream(boxd_shared, sid, "sleep", "1000", stdin=True) as s:
        s.started()
        s.sock.settimeout(0.3)
        with pytest.raises(socket.timeout):
            while True:
                s.stdin(b"x" * 65536)
        wait_for(lambda: watch.names() == ["sleep"])
    wait_for(lambda: not watch.payload(), what="end of the command")


def test_check_G06_also_when_it_does_not_take_the_output(boxd_shared, api, sid):
    watch = Watch(api, sid)
    with wsexec.stream(boxd_shared, sid, "yes") as s:
        s.started()
        wait_for(lambda: watch.names() == ["yes"])
    wait_for(lambda: not watch.payload(), what="end of the command")


def test_check_G06_an_HTTP_client_that_leaves_takes_its_command_along(boxd_shared, api, sid):
    watch = Watch(api, sid)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(boxd_shared.sock))
        body = b'{"cmd":"setsid sleep 1000 & exec sleep 1000"}'
        sock.sendall(f"POST /v1/sessions/{sid}/exec HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_for(lambda: watch.names() == ["sleep"] * 2)
    wait_for(lambda: not watch.payload(), what="end of the tree")
    assert [s["execs"] for s in api.ps() if s["session_id"] == sid] == [0]


@with_groups
def test_check_G06_clients_that_leave_leave_nothing_behind(boxd):
    api = boxd.client()
    api.new("s")
    wsexec.run(boxd, "s", "true")
    api.rm("s")
    before = settled(boxd)
    api.new("s")
    watch = Watch(api, "s")
    wsexec.run(boxd, "s", "true")
    rss = boxd.rss_kb()
    for n in range(amount(300, 20)):
        s = wsexec.stream(boxd, "s", "sh", "-c", "yes & exec yes >&2", stdin=True)
        if n % 3 > 0:
            s.started()
        if n % 3 > 1:
            s.recv()
        s.close()
    wait_for(lambda: not watch.payload(), seconds=60, what="end of all commands")
    wait_for(lambda: api.ps()[0]["execs"] == 0, what="end of all commands")
    assert api.sh("s", "echo usable")["stdout"] == "usable\n"
    assert boxd.rss_kb() - rss < 2048
    api.rm("s")
    settles(boxd, before)


def test_a_throw_away_session_goes_with_its_client(boxd):
    with wsexec.Stream(boxd.sock, {"ephemeral": True, "argv": ["sleep", "1000"]}) as s:
        s.started()
        assert len(boxd.client().ps()) == 1
    api = boxd.client()
    wait_for(lambda: api.ps() == [], what="end of the session")
    with wsexec.Stream(boxd.sock, {"ephemeral": True, "argv": ["sleep", "1000"]}):
        pass  # gone before it is made
    wait_for(lambda: api.ps() == [], what="end of the session")


# G07: one command has one client; what is sent to two commands is never mixed.

def test_check_G07_streams_side_by_side_keep_their_bytes_apart(boxd_shared, sid):
    """There is no second attachment to a command: a connection starts its own. So two connections to
    one session never share an input, whatever the pieces."""
    streams = [wsexec.stream(boxd_shared, sid, "cat", stdin=True) for _ in range(6)]
    for s in streams:
        s.started()
    want = [b"".join(bytes([65 + i]) * (1 + (i * 7 + k) % 1000) for k in range(200)) for i in range(len(streams))]
    threads = [s.feed(data, 997) for s, data in zip(streams, want)]
    got = [s.finish() for s in streams]
    for thread in threads:
        thread.join()
    assert [r.out for r in got] == want


def test_check_G07_a_second_request_on_one_connection_starts_nothing(boxd_shared, api, sid):
    with wsexec.stream(boxd_shared, sid, "cat", stdin=True) as s:
        s.started()
        s.say({"session": {"session_id": sid}, "create": False, "argv": ["touch", "/workspace/second"]})
        s.stdin(b"x")
        s.eof()
        assert s.finish().out == b"x"
    assert api.x(sid, "ls", "/workspace")["stdout"] == ""


# G08: terminals.

@pytest.fixture
def tty(boxd_shared, sid):
    opened = []

    def make(*argv, **request):
        s = wsexec.stream(boxd_shared, sid, *argv, tty=True, **request)
        opened.append(s)
        s.started()
        return s

    yield make
    for s in opened:
        s.close()


def test_check_G08_a_terminal_of_the_size_asked_for_that_can_change(tty):
    s = tty("sh", "-c", "tty; stty size; trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done", rows=33, cols=99)
    assert s.until(b"ready\r\n").split(b"\r\n")[:2] == [b"/dev/pts/0", b"33 99"]
    s.resize(50, 132)
    s.until(b"50 132")
    s.resize(0, 70000)  # no terminal has that size
    s.resize(51, 133)
    assert b"51 133" in s.until(b"51 133")


def test_check_G08_stdin_and_stdout_are_the_terminal(tty):
    s = tty("sh", "-c", "test -t 0 && test -t 1 && test -t 2 && echo all; echo $TERM; echo to-tty > /dev/tty")
    r = s.finish()
    assert r.out == b"all\r\nxterm-256color\r\nto-tty\r\n" and r["exit_code"] == 0


def test_check_G08_control_C_interrupts(tty):
    s = tty("sh", "-c", "echo ready; exec sleep 1000")
    s.until(b"ready")
    s.stdin(b"\x03")
    assert streamed(s.finish()) == ("signaled", None, 2)
    s = tty("sh", "-c", "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done")
    s.until(b"ready")
    s.stdin(b"\x03")
    r = s.finish()
    assert b"caught" in r.out and streamed(r) == ("exited", 9, None)


def test_check_G08_control_D_ends_the_input(tty):
    s = tty("cat")
    s.stdin(b"line\n")
    s.until(b"line\r\nline\r\n")
    s.stdin(b"\x04")
    assert streamed(s.finish()) == ("exited", 0, None)
    s = tty("cat")
    s.eof()  # what the client says when its own input ends
    assert streamed(s.finish()) == ("exited", 0, None)


def press(s, key, answer):
    """Presses key until it is answered: a shell names a job before it gives it the terminal."""
    for _ in range(100):
        s.stdin(key)
        s.sock.settimeout(0.2 * MOMENT)
        try:
            return s.until(answer)
        except socket.timeout:
            continue
        finally:
            s.sock.settimeout(120)
    raise AssertionError(f"no {answer!r} after 100 times {key!r}")


def test_check_G08_control_Z_stops_a_job_of_a_shell(tty):
    s = tty("bash", "--norc", "-i", env={"PS1": "prompt> "})
    s.until(b"prompt> ")
    s.stdin(b"sleep 1000\n")
    s.until(b"sleep 1000\r\n")
    press(s, b"\x1a", b"Stopped")
    s.until(b"prompt> ")
    s.stdin(b"fg\n")
    s.until(b"sleep 1000\r\n")
    press(s, b"\x03", b"prompt> ")
    s.stdin(b"exit 6\n")
    assert s.finish()["exit_code"] == 6


def test_check_G08_hanging_up_ends_everything(tty, api, sid):
    watch = Watch(api, sid)
    s = tty("bash", "--norc", "-i", env={"PS1": "prompt> "})
    s.until(b"prompt> ")
    s.stdin(b"nohup sleep 1000 >/dev/null 2>&1 & echo st''arted\n")
    s.until(b"started")
    wait_for(lambda: "sleep" in watch.names())
    s.close()
    wait_for(lambda: not watch.payload(), what="end of the shell and its job")


def test_check_G08_a_paste_of_a_mebibyte(tty):
    """In raw mode, as an editor would take it; the terminal's own queue is 4 KiB."""
    data = os.urandom(3 * MIB // 4).hex().encode()[:MIB]
    s = tty("sh", "-c", f"stty raw -echo; echo ready; head -c {MIB} | sha256sum")
    s.until(b"ready")
    s.feed(data, 65536)
    assert hashlib.sha256(data).hexdigest().encode() in s.until(b"-")
    s.finish()


def test_check_G08_lines_of_a_paste_in_cooked_mode(tty):
    lines = b"".join(b"%07d\n" % i for i in range(amount(20000, 1000)))
    s = tty("sh", "-c", "stty -echo; echo ready; sha256sum")
    s.until(b"ready")
    s.stdin(lines)
    s.stdin(b"\x04")
    assert hashlib.sha256(lines).hexdigest().encode() in s.until(b"-")
    s.finish()


def test_check_G08_modes_last_as_long_as_their_terminal(tty):
    s = tty("sh", "-c", "stty raw -echo; stty -a | head -c 1 >/dev/null")
    s.finish()
    s = tty("sh", "-c", "stty -a")
    out = s.finish().out
    assert b" echo " in out and b"-raw" not in out and b" icanon " in out


def test_check_G08_signals_by_name(boxd_shared, sid):
    with wsexec.stream(boxd_shared, sid, "sh", "-c", "trap 'echo usr1' USR1; echo ready; while :; do sleep 0.05; done") as s:
        s.started()
        s.until(b"ready\n")
        s.signal("NONSENSE")
        s.signal("USR1")
        s.until(b"usr1\n")
        s.signal("TERM")
        assert streamed(s.finish()) == ("signaled", None, 15)
    with wsexec.stream(boxd_shared, sid, "sh", "-c", "trap '' TERM INT HUP; setsid sleep 1000 & echo ready; wait") as s:
        s.started()
        s.until(b"ready\n")
        s.signal("KILL")  # the tree
        r = s.finish()
        assert streamed(r) == ("signaled", None, 9) and r["remaining"] == 0


# E06, E07: floods.

FLOODS = {
    "a gigabyte of zeros": ("head -c {n} /dev/zero", 1.0, 0),
    "short lines": ("yes | head -c {n}", 0.25, 0),
    "both streams": ("head -c {n} /dev/zero & yes | head -c {n} >&2; wait", 0.25, 0.25),
    "empty lines": ("tr '\\0' '\\n' < /dev/zero | head -c {n}", 0.1, 0),
    "terminal garbage": ("tr '\\0' '\\033' < /dev/zero | head -c {n} >&2", 0, 0.1),
}


@pytest.mark.parametrize("name", FLOODS)
def test_check_E06_output_floods_are_drained_counted_and_bounded(name):
    cmd, out, err = FLOODS[name]
    unit = amount(1 << 30, 32 * MIB)
    n = int(unit * max(out, err))
    daemon = Boxd()
    try:
        api = daemon.client()
        api.new("flood", cpus=2)
        api.new("victim")
        api.sh("flood", "head -c 2000000 /dev/zero | tee /dev/stderr")
        before = daemon.rss_kb()
        with Victim(daemon, "victim"):
            r = api.sh("flood", cmd.format(n=n), timeout_sec=110)
        assert (r["outcome"], r["exit_code"]) == ("exited", 0), r["outcome"]
        assert (r["stdout_bytes"], r["stderr_bytes"]) == (int(unit * out), int(unit * err))
        for stream in ("stdout", "stderr"):
            kept = len(r[stream].encode())
            assert kept == min(MIB, r[f"{stream}_bytes"])
            assert kept + r[f"{stream}_truncated_bytes"] == r[f"{stream}_bytes"]
        assert daemon.rss_kb() - before < 4096
    finally:
        daemon.close()


def test_check_E06_a_reader_that_is_slow_loses_nothing_and_costs_little(boxd):
    api = boxd.client()
    api.new("s")
    api.sh("s", "true")
    before = boxd.rss_kb()
    total = amount(64, 4) * MIB
    with wsexec.stream(boxd, "s", "head", "-c", str(total), "/dev/zero") as s:
        s.started()
        time.sleep(0.5)  # nobody reads: the program has to wait
        assert boxd.rss_kb() - before < 4096
        r = s.finish()
    assert len(r.out) == total == r["stdout_bytes"]


def test_check_E07_a_trickle_is_passed_on_at_once(boxd_shared, sid):
    with wsexec.stream(boxd_shared, sid, "sh", "-c", "while read x; do printf $x; done", stdin=True) as s:
        s.started()
        for n in range(20):
            s.stdin(b"%d\n" % n)
            assert s.until(b"%d" % n) == b"%d" % n
        s.eof()
        s.finish()
