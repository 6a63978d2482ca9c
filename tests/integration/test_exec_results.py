# SPDX-License-Identifier: Apache-2.0
"""How a command ended, what it wrote, and what it was given: G01, G02, G11, G12, E18."""

import errno
import os
import signal

import pytest
import wsexec
from boxlib import ApiError

pytestmark = pytest.mark.rootless

FATAL = [s for s in signal.Signals if s.name not in
         ("SIGCHLD", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGWINCH", "SIGRTMIN", "SIGRTMAX")]


def ended(r):
    return r["outcome"], r["exit_code"], r["signal"], r["error"]


def test_check_G01_every_exit_code(api, sid):
    for code in range(256):
        assert ended(api.x(sid, "sh", "-c", f"exit {code}")) == ("exited", code, None, None)


def test_check_G01_every_fatal_signal(api, sid):
    for signo in [int(s) for s in FATAL] + [34, 35, 63, 64]:
        assert ended(api.x(sid, "sh", "-c", f"kill -{signo} $$")) == ("signaled", None, signo, None)
    # A program that exits with 128 + n was not killed.
    assert ended(api.x(sid, "sh", "-c", "exit 137")) == ("exited", 137, None, None)


def test_check_G01_a_crash_leaves_no_core_file(api, sid):
    r = api.sh(sid, "ulimit -c; ulimit -c unlimited 2>/dev/null; kill -SEGV $$")
    assert ended(r) == ("signaled", None, signal.SIGSEGV, None)
    assert api.sh(sid, "ls -A /workspace /tmp /home/box")["stdout"].split() == [
        "/home/box:", "/tmp:", "/workspace:"]


@pytest.mark.parametrize("prepare, argv, code, why", [
    ("", ["no-such-program"], 127, errno.ENOENT),
    ("", ["/no/such/program"], 127, errno.ENOENT),
    ("", ["/etc/passwd/x"], 126, errno.ENOTDIR),
    ("", ["/etc/passwd"], 126, errno.EACCES),
    ("", ["/tmp"], 126, errno.EACCES),
    ("printf x > d; chmod 755 d", ["/workspace/d"], 126, errno.ENOEXEC),
    ("printf '\\177ELF' > d; chmod 755 d", ["/workspace/d"], 126, errno.ENOEXEC),
    ("printf '#!/no/such/interpreter\\n' > d; chmod 755 d", ["/workspace/d"], 127, errno.ENOENT),
    ("printf '#!/tmp\\n' > d; chmod 755 d", ["/workspace/d"], 126, errno.EACCES),
    ("ln -s d d", ["/workspace/d"], 126, errno.ELOOP),
    ("", ["/" + "x" * 300], 126, errno.ENAMETOOLONG),
])
def test_check_G01_a_program_that_cannot_be_executed(api, sid, prepare, argv, code, why):
    """126 and 127 as shells mean them; `error` tells that the program never ran."""
    api.sh(sid, f"cd /workspace; {prepare}")
    assert ended(api.x(sid, *argv)) == ("exited", code, None, f"cannot execute: {os.strerror(why)}")
    # The same numbers from a program that did run have no error.
    assert ended(api.x(sid, "sh", "-c", f"exit {code}")) == ("exited", code, None, None)


def test_check_G01_working_directory_that_cannot_be_entered(api, sid):
    for cwd, why in (("/etc/passwd", errno.ENOTDIR), ("/usr/new", errno.EROFS), ("/proc", errno.EACCES),
                     ("/proc/self/fd", errno.EACCES), ("/proc/1/root", errno.EACCES), ("/proc/self/cwd", None)):
        r = api.x(sid, "pwd", cwd=cwd)
        if why is None:  # a way back to where it was anyway
            assert r["stdout"] in ("/workspace\n", "/\n") or r["exit_code"] == 126
            continue
        assert (r["exit_code"], r["outcome"]) == (126, "exited") and r["error"].startswith("working directory: "), r
        assert cwd.startswith("/proc") or r["error"].endswith(os.strerror(why)), r


def test_a_missing_working_directory_is_made(api, sid):
    assert api.x(sid, "pwd", cwd="/workspace/new/deep/er")["stdout"] == "/workspace/new/deep/er\n"
    assert api.sh(sid, "stat -c '%U %a' /workspace/new/deep")["stdout"] == "box 755\n"
    assert api.x(sid, "pwd", cwd="/tmp/t/")["stdout"] == "/tmp/t\n"
    assert api.x(sid, "pwd", cwd="/workspace/process")["stdout"] == "/workspace/process\n"


def test_check_G02_binary_output_arrives_as_it_was_written(boxd_shared, sid):
    """The stream carries bytes: all 256 of them, NULs, and whatever else is not text."""
    script = "import sys; w=sys.stdout.buffer.write; w(bytes(range(256))*300); w(b'\\0'*70000); w(b'\\xff\\xfe\\x80')"
    r = wsexec.run(boxd_shared, sid, "python3", "-c", script)
    assert (r["outcome"], r["exit_code"]) == ("exited", 0)
    assert r.out == bytes(range(256)) * 300 + b"\0" * 70000 + b"\xff\xfe\x80"
    assert r["stdout_bytes"] == len(r.out)


def test_check_G02_text_output_is_valid_and_never_splits_a_character(api, sid):
    # One byte at a time, so that every read of ours may end inside a character.
    text = "aé漢😀" * 50
    script = (f"import os,time\nfor b in {text.encode()!r}:\n os.write(1, bytes([b]))\n"
              "os.write(2, b'ok\\xff\\xc3(\\x00\\xf0\\x9f')")
    r = api.x(sid, "python3", "-c", script)
    assert r["stdout"] == text
    assert r["stderr"] == "ok\ufffd\ufffd(\0\ufffd"
    assert (r["stdout_bytes"], r["stderr_bytes"]) == (len(text.encode()), 8)


@pytest.mark.parametrize("keep", range(8, 14))
def test_check_G02_text_is_cut_between_characters(api, sid, keep):
    r = api.x(sid, "printf", "😀😀😀😀", capture_bytes=keep)
    whole = keep // 4
    assert (r["stdout"], r["stdout_bytes"], r["stdout_truncated_bytes"]) == ("😀" * whole, 16, 16 - 4 * whole)


def test_output_can_be_counted_without_being_kept(api, sid):
    r = api.sh(sid, "head -c 3000000 /dev/zero", capture_bytes=0)
    assert (r["stdout"], r["stdout_bytes"], r["stdout_truncated_bytes"]) == ("", 3000000, 3000000)


def test_stdin_is_dev_null_by_default(api, boxd_shared, sid):
    assert api.sh(sid, "readlink /proc/self/fd/0; cat; read x; echo $?")["stdout"] == "/dev/null\n1\n"
    assert wsexec.run(boxd_shared, sid, "readlink", "/proc/self/fd/0").out == b"/dev/null\n"


def test_stdin_text_of_any_permitted_size(api, sid):
    assert api.x(sid, "cat", stdin_text="")["stdout"] == ""
    assert api.x(sid, "cat", stdin_text="héllo\n")["stdout"] == "héllo\n"
    assert api.x(sid, "wc", "-c", stdin_text="x" * (8 << 20))["stdout"].strip() == str(8 << 20)
    assert api.x(sid, "true", stdin_text="x" * (4 << 20))["exit_code"] == 0  # nobody reads it
    with pytest.raises(ApiError) as e:
        api.x(sid, "cat", stdin_text="x" * ((8 << 20) + 1))
    assert e.value.status == 422 and "stdin_text" in e.value.detail


def test_check_E18_a_shell_command_of_a_mebibyte(api, sid):
    for size in (131070, 131071, 131072, 1 << 20, 8 << 20):
        cmd = "wc -c <<'END'; echo last; exit 5\n"
        cmd += "y" * (size - len(cmd) - 5) + "\nEND\n"
        assert len(cmd) == size
        r = api.sh(sid, cmd)
        assert (r["exit_code"], r["stdout"]) == (5, f"{size - 37}\nlast\n"), size
    with pytest.raises(ApiError) as e:
        api.sh(sid, "#" * ((8 << 20) + 1))
    assert e.value.status == 422 and "cmd" in e.value.detail


def test_check_E18_arguments_and_environment_up_to_what_the_kernel_takes(api, sid):
    r = api.x(sid, "sh", "-c", 'echo $# ${#1}', "sh", *["a" * 100] * 4000)
    assert r["stdout"] == "4000 100\n"
    assert api.x(sid, "sh", "-c", 'echo ${#1}', "sh", "x" * 131071)["stdout"] == "131071\n"
    r = api.sh(sid, 'echo ${#V7}', env={f"V{i}": "v" * 120000 for i in range(8)})
    assert r["stdout"] == "120000\n"
    for bad in ({"env": {f"V{i}": "v" * 131072 for i in range(9)}}, {"env": {f"V{i}": "" for i in range(5000)}},
                {"argv": ["echo"] + ["a" * 65536] * 9}, {"argv": ["echo"] + ["a"] * 4096}, {"argv": ["x" * 131072]},
                {"env": {"V": "v" * 131072}}):
        with pytest.raises(ApiError) as e:
            api.x(sid, **{"argv": ["true"], **bad})
        assert e.value.status == 422
    with pytest.raises(ApiError) as e:  # and what does not even fit a request
        api.x(sid, "true", env={f"V{i}": "v" * 131000 for i in range(100)})
    assert e.value.status == 413


def test_check_G11_names_that_no_environment_can_have_are_refused(api, sid):
    for name in ("", "A=B", "=", "A\0B", "\0"):
        with pytest.raises(ApiError) as e:
            api.x(sid, "true", env={name: "x"})
        assert e.value.status in (400, 422), name
    with pytest.raises(ApiError) as e:
        api.x(sid, "true", env={"A": "x\0y"})
    assert e.value.status == 422
    for body in (b'{"argv":["true"],"env":{"A":"1","A":"2"}}', b'{"argv":["true"],"env":{"A":"\xff"}}',
                 b'{"argv":["true"],"env":{"A":"\\ud800"}}'):
        with pytest.raises(ApiError) as e:
            api.call("POST", f"/v1/sessions/{sid}/exec", body)
        assert e.value.status == 400, body


def test_check_G11_every_other_environment_reaches_the_program_and_nothing_else(api, session):
    """A library that LD_PRELOAD names, a PATH that leads nowhere: none of it may stop PID 1 or what
    starts the program."""
    odd = {"A B": "1", "x\ny": "line1\nline2", "É": "漢", "LD_PRELOAD": "/no/such.so", "LD_DEBUG": "", "BIG": "b" * 100000,
           "1": "one", "a.b-c": "dots", "IFS": "x", "MALLOC_PERTURB_": "7"}
    for sid, env in ((session(env=odd), {}), (session(), odd)):
        r = api.x(sid, "python3", "-c",
                  f"import os; want={odd!r}; print({{k: os.environ.get(k) for k in want}} == want)", env=env)
        assert r["stdout"] == "True\n", r
    r = api.x(sid, "/bin/sh", "-c", 'echo "[$PATH]"', env={"PATH": ""})
    assert r["stdout"] == "[]\n"
    assert api.x(sid, "sh", "-c", "echo found", env={"PATH": ""})["stdout"] == "found\n"
    assert api.x(sid, "sh", "-c", "echo found", env={"PATH": "/nowhere"})["exit_code"] == 127
    # An exec's own value wins over the session's, which wins over the default.
    sid = session(env={"HOME": "/tmp", "X": "session"})
    assert api.sh(sid, "echo $HOME $X", env={"X": "exec"})["stdout"] == "/tmp exec\n"


def test_check_G11_nothing_of_the_daemon_is_in_the_environment(api, sid):
    names = {line.split("=")[0] for line in api.x(sid, "env")["stdout"].splitlines()}
    assert names == {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LC_CTYPE"}


@pytest.mark.parametrize("field", ["cmd", "cwd", "argv", "stdin_text", "session_id", "workdir", "mount_path", "image"])
@pytest.mark.parametrize("text", ["a\\u0000b", "a\\ud800b", "a\\udc00", "\\udc00\\ud800"])
def test_check_G12_NUL_and_lone_surrogates_are_refused_before_anything_happens(api, boxd_shared, sid, field, text):
    before = sorted(s["session_id"] for s in api.ps())
    value = f'["{text}"]' if field == "argv" else f'"/{text}"' if field in ("cwd", "workdir", "mount_path") else f'"{text}"'
    if field in ("session_id", "workdir", "mount_path", "image"):
        rest = "" if field == "session_id" else '"session_id":"g12",'
        path, body = "/v1/sessions", f'{{{rest}"{field}":{value}}}'
    else:
        rest = '' if field in ("cmd", "argv") else '"argv":["touch","/workspace/made"],'
        path, body = f"/v1/sessions/{sid}/exec", f'{{{rest}"{field}":{value}}}'
    with pytest.raises(ApiError) as e:
        api.call("POST", path, body)
    assert e.value.status in (400, 422), e.value
    assert sorted(s["session_id"] for s in api.ps()) == before
    assert api.x(sid, "ls", "/workspace")["stdout"] == ""


def test_check_G12_bytes_that_are_no_text_in_a_path_of_the_api(api):
    for name in ("%00", "a%00b", "%ff", "%ed%a0%80", "..%2f", "%2e%2e", "a%2fb"):
        for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/exec")):
            with pytest.raises(ApiError) as e:
                api.call(method, f"/v1/sessions/{name}{rest}", "{}" if rest else None)
            assert e.value.status in (400, 404, 422), (method, name)


def test_programs_start_with_default_signals(api, sid):
    status = dict(line.split(":\t") for line in api.x(sid, "cat", "/proc/self/status")["stdout"].splitlines())
    assert {status[k].strip("0") for k in ("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")} == {""}
    r = api.sh(sid, "yes | head -1; exit 3")
    assert (r["stdout"], r["stderr"], r["exit_code"]) == ("y\n", "", 3)


def test_orphans_are_reaped(api, sid):
    """C13: double forks, a thousand of them, leave no zombie."""
    api.x(sid, "python3", "-c", """
import os
for i in range(1000):
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.waitpid(pid, 0)
""", timeout_sec=110)
    r = api.sh(sid, "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l")
    assert r["stdout"].strip() == "0"
