# SPDX-License-Identifier: Apache-2.0
"""box_exec, and what must work while one runs."""

import asyncio
import pathlib
import time

import pytest
from langbot_client import VERSION, errors, models

COMPLETED, TIMED_OUT = models.BoxExecutionStatus.COMPLETED, models.BoxExecutionStatus.TIMED_OUT
MIB = 1 << 20


async def test_a_command_completes(box):
    result = await box.sh("echo hi")
    assert (result.status, result.exit_code, result.stdout, result.stderr) == (COMPLETED, 0, "hi", "")
    assert result.ok and result.session_id == "s" and result.backend_name and result.duration_ms >= 0


async def test_a_failing_command_is_a_result(box):
    result = await box.sh("echo out; echo err >&2; exit 3")
    assert (result.status, result.exit_code, result.stdout, result.stderr) == (COMPLETED, 3, "out", "err")
    assert not result.ok


@pytest.mark.needs("boxd")
async def test_a_command_that_is_killed_ends_as_docker_tells_it(box):
    assert (await box.sh("kill -9 $$")).exit_code == 137


async def test_a_timeout_ends_the_command_and_the_session(box):
    before = time.monotonic()
    result = await box.sh("echo part; sleep 60", timeout_sec=1)
    assert (result.status, result.exit_code, result.stdout) == (TIMED_OUT, None, "part")
    assert result.stderr == "Command timed out after 1 seconds."
    assert 900 <= result.duration_ms and time.monotonic() - before < 20
    with pytest.raises(errors.BoxSessionNotFoundError):
        await box.get_session("s")


async def test_after_a_timeout_the_session_starts_anew(box):
    await box.sh("echo x > /workspace/kept; echo said >&2; sleep 60", timeout_sec=1)
    result = await box.sh("test -e /workspace/kept || echo gone")
    assert result.stdout == "gone"


async def test_what_was_said_before_a_timeout_is_kept(box):
    result = await box.sh("echo said >&2; sleep 60", timeout_sec=1)
    assert (result.status, result.stderr) == (TIMED_OUT, "said")


async def test_unicode_goes_in_and_out(box):
    words = "héllo 世界 🎉 \u202eabc"
    result = await box.sh(f"printf '%s\\n' '{words}' \"$WORDS\"", env={"WORDS": words})
    assert result.stdout == f"{words}\n{words}"


async def test_bytes_that_are_no_text_are_replaced(box):
    assert (await box.sh("printf 'a\\377b'")).stdout == "a\ufffdb"


async def test_output_is_trimmed(box):
    assert (await box.sh("printf '  a b \\n\\n'")).stdout == "a b"


# The first client's library refuses messages above a mebibyte.
BIG = MIB if VERSION != "0.4.0" else MIB - 4096


async def test_a_mebibyte_of_output_arrives(box):
    result = await box.sh(f"head -c {BIG} /dev/zero | tr '\\0' a; echo err >&2")
    assert result.stdout == "a" * BIG and result.stderr == "err"


@pytest.mark.needs("tenancy")
async def test_more_output_is_cut_and_counted(box):
    result = await box.sh(f"head -c {MIB + 10} /dev/zero | tr '\\0' a; head -c {MIB + 20} /dev/zero | tr '\\0' b >&2")
    tail = "\n... [raw output clipped at 1048576 bytes, {} bytes discarded]"
    assert result.stdout == "a" * MIB + tail.format(10)
    assert result.stderr == "b" * MIB + tail.format(20)


@pytest.mark.needs("boxd")
@pytest.mark.parametrize("size", [70_000, 200_000, 600_000])
async def test_a_command_of_any_size(box, size):
    body = "x" * 99 + "\n"
    command = f"cat <<'PY' | wc -c\n{body * (size // 100)}PY\n"
    assert (await box.sh(command)).stdout == str(size // 100 * 100)


@pytest.mark.needs("boxd")
async def test_a_large_command_of_wide_characters(box):
    text = "世界é🎉 " * 20_000
    result = await box.sh(f"printf %s '{text}' | wc -m", env={"LC_ALL": "C.UTF-8"})
    assert result.stdout == str(len(text))


async def test_many_lines_of_script(box):
    result = await box.sh("set -e\nfor i in 1 2 3; do\n  echo $i\ndone\nfalse\necho never")
    assert (result.stdout, result.exit_code) == ("1\n2\n3", 1)


@pytest.mark.needs("boxd")
async def test_the_working_directory_is_made(box):
    assert (await box.sh("pwd")).stdout == "/workspace"
    assert (await box.sh("pwd", workdir="/workspace/a b/c")).stdout == "/workspace/a b/c"
    assert (await box.sh("pwd", workdir="/tmp/else/where")).stdout == "/tmp/else/where"


async def test_the_environment_is_of_one_command(box):
    assert (await box.sh("echo $MARK", env={"MARK": "it's $HOME *"})).stdout == "it's $HOME *"
    assert (await box.sh("echo \"<$MARK>\"")).stdout == "<>"


@pytest.mark.needs("boxd")
async def test_standard_input_is_empty(box):
    assert (await box.sh("cat; echo end", timeout_sec=10)).stdout == "end"


@pytest.mark.needs("boxd")
async def test_children_in_the_background_do_not_hold_the_answer(box):
    before = time.monotonic()
    result = await box.sh("sleep 60 & echo started", timeout_sec=30)
    assert (result.status, result.stdout) == (COMPLETED, "started")
    assert time.monotonic() - before < 20


async def test_files_stay_from_command_to_command(box):
    await box.sh("echo kept > /workspace/f")
    assert (await box.sh("cat /workspace/f")).stdout == "kept"


async def test_python_in_a_heredoc(box):
    result = await box.sh("python3 - <<'PY'\nimport json\nprint(json.dumps({'ok': True}))\nPY")
    assert result.stdout == '{"ok": true}'


async def test_sessions_run_side_by_side(box, shared):
    """The first ends only when the second has run: answers come out of order."""
    wait = asyncio.ensure_future(box.sh(
        "while [ ! -e /workspace/go ]; do sleep 0.02; done; echo first", "a", host_path=shared))
    assert (await box.sh("touch /workspace/go; echo second", "b", host_path=shared)).stdout == "second"
    assert (await wait).stdout == "first"


async def test_commands_of_one_session_follow_each_other(box):
    await box.new()
    runs = [box.sh(f"echo {i}a >> /workspace/f; sleep 0.05; echo {i}b >> /workspace/f") for i in range(3)]
    await asyncio.gather(*runs)
    lines = (await box.sh("cat /workspace/f")).stdout.split()
    assert [lines[i:i + 2] for i in (0, 2, 4)] == [[f"{n}a", f"{n}b"] for n in (line[0] for line in lines[::2])]


async def test_pings_are_answered_while_a_command_runs(box, shared):
    task = asyncio.ensure_future(box.sh("while [ ! -e /workspace/go ]; do sleep 0.02; done", host_path=shared))
    for _ in range(5):
        assert await box.link.ping() == {}
    assert not task.done()
    pathlib.Path(shared, "go").touch()
    assert (await task).exit_code == 0


@pytest.mark.needs("tenancy")
async def test_the_129th_call_in_flight_is_refused(box, shared):
    await box.new(host_path=shared)
    calls = [asyncio.ensure_future(box.sh("while [ ! -e /workspace/go ]; do sleep 0.02; done", host_path=shared))
             for _ in range(128)]
    await asyncio.sleep(0)
    with pytest.raises(Exception, match=r"Runtime connection is busy \(max 128 concurrent actions\)"):
        while True:  # until the last of them has been sent
            await box.link.ping()
    pathlib.Path(shared, "go").touch()
    assert {r.exit_code for r in await asyncio.gather(*calls)} == {0}
