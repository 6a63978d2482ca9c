# SPDX-License-Identifier: Apache-2.0
"""Managed processes: start, get, stop, replace, exit."""

import contextlib
import pathlib
import uuid

import pytest
from langbot_client import UPSTREAM, errors, models, until

RUNNING, EXITED = models.BoxManagedProcessStatus.RUNNING, models.BoxManagedProcessStatus.EXITED


@pytest.fixture
def mark():
    """An argument no other process has: a number for sleep."""
    return f"1000.{uuid.uuid4().int % 10**12:012d}"


def alive(mark):
    """How many processes have the mark as an argument. Seen from the host: inside, commands do not see each other."""
    count = 0
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            arguments = entry.read_bytes().split(b"\0")
            count += mark.encode() in arguments and arguments[0] == b"sleep"
    return count


async def running(mark, count=1):
    """A start is told when there is a process; the program may still have to be loaded into it."""
    async def probe():
        return alive(mark) == count

    await until(probe)


async def ended(box, process_id="default", session_id="s"):
    async def probe():
        info = await box.get_managed_process(session_id, process_id)
        # Upstream tells the end a moment before it knows how.
        return info if info.status == EXITED and (info.exited_at or not UPSTREAM) else None

    return await until(probe)


async def test_a_process_is_described(box):
    await box.new()
    info = await box.start("cat", cwd="/tmp", env={"Z": "secret-z", "A": "secret-a"})
    assert (info.session_id, info.process_id, info.status) == ("s", "default", RUNNING)
    assert (info.command, info.args, info.cwd, info.env_keys) == ("cat", [], "/tmp", ["A", "Z"])
    assert (info.attached, info.exited_at, info.exit_code, info.stderr_preview) == (False, None, None, "")
    assert info.started_at is not None
    again = await box.get_managed_process("s")
    assert again == info
    assert "secret" not in str(await box.get_session("s"))


async def test_a_session_lists_its_processes(box):
    await box.new()
    await box.start("cat", process_id="one")
    session = await box.get_session("s")
    assert set(session["managed_processes"]) == {"one"} and "managed_process" not in session
    await box.start("cat")
    session = await box.get_session("s")
    assert set(session["managed_processes"]) == {"one", "default"}
    assert session["managed_process"] == session["managed_processes"]["default"]
    assert session["managed_process"]["status"] == "running"


async def test_arguments_arrive_as_they_are(box):
    await box.new()
    words = ["a b", "it's", "$HOME", "*", "é世", "", "-n", 'q"q', "a\nb"]
    script = 'for w in "$@"; do printf "%s|" "$w"; done > /workspace/words'
    await box.start("sh", "-c", script, "sh", *words)
    await ended(box)
    assert (await box.sh("cat /workspace/words")).stdout == "|".join(words) + "|"


async def test_environment_and_directory(box):
    await box.new()
    await box.start("sh", "-c", "echo \"$A\" > here", env={"A": "x y"}, cwd="/workspace/sub/dir")
    await ended(box)
    assert (await box.sh("cat /workspace/sub/dir/here")).stdout == "x y"


async def test_an_exit_is_told(box):
    await box.new()
    await box.start("sh", "-c", "echo oops >&2; exit 4")
    info = await ended(box)
    assert (info.exit_code, info.stderr_preview, info.attached) == (4, "oops", False)
    assert info.exited_at >= info.started_at
    assert (await box.get_session("s"))["managed_process"]["status"] == "exited"


@pytest.mark.needs("boxd")
async def test_a_missing_program_is_told(box):
    await box.new()
    await box.start("no-such-program")
    info = await ended(box)
    assert info.exit_code == 127 and "no-such-program" in info.stderr_preview


@pytest.mark.needs("boxd")
async def test_the_end_of_a_long_stderr_is_kept(box):
    await box.new()
    await box.start("sh", "-c", "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done >&2")
    info = await ended(box)
    assert 3000 < len(info.stderr_preview) <= 4000 and info.stderr_preview.endswith("line 2998\nline 2999")


async def test_stderr_of_a_running_process_is_seen(box):
    await box.new()
    await box.start("sh", "-c", "echo 'ERROR é 世' >&2; exec sleep 1000")

    async def seen():
        return (await box.get_managed_process("s")).stderr_preview

    assert await until(seen) == "ERROR é 世"


async def test_a_running_process_is_replaced(box, mark):
    await box.new()
    first = await box.start("sleep", mark)
    await running(mark)
    second = await box.start("sleep", mark + "1")
    assert second.status == RUNNING and second.args == [mark + "1"] and second.started_at > first.started_at
    assert alive(mark) == 0
    await running(mark + "1")


async def test_an_exited_process_is_replaced(box):
    await box.new()
    await box.start("false")
    assert (await ended(box)).exit_code == 1
    info = await box.start("cat")
    assert (info.status, info.exit_code, info.exited_at) == (RUNNING, None, None)


async def test_stop_ends_and_forgets(box, mark):
    await box.new()
    await box.start("sleep", mark, process_id="p")
    await running(mark)
    await box.stop_managed_process("s", "p")
    assert alive(mark) == 0
    for call in (box.get_managed_process, box.stop_managed_process):
        with pytest.raises(errors.BoxManagedProcessNotFoundError,
                           match=f"session {box.physical()} has no managed process with process_id=p"):
            await call("s", "p")
    assert "managed_processes" not in await box.get_session("s")


@pytest.mark.needs("boxd")
async def test_stop_ends_the_whole_tree(box, mark):
    await box.new()
    await box.start("sh", "-c", f"trap '' TERM; setsid sleep {mark} & sleep {mark} & wait; sleep {mark}")
    await running(mark, 2)
    await box.stop_managed_process("s")
    assert alive(mark) == 0


async def test_stop_is_a_signal_and_the_end_of_input(box):
    await box.new()
    await box.start("sh", "-c", "trap 'echo term > /workspace/how; exit 0' TERM; echo up > /workspace/how; "
                                "while :; do sleep 0.05; done")

    async def up():
        return (await box.sh("cat /workspace/how 2>/dev/null")).stdout == "up"

    await until(up)
    await box.stop_managed_process("s")
    assert (await box.sh("cat /workspace/how")).stdout == "term"


async def test_stopping_what_has_ended_forgets_it(box):
    await box.new()
    await box.start("true")
    await ended(box)
    await box.stop_managed_process("s")
    with pytest.raises(errors.BoxManagedProcessNotFoundError):
        await box.get_managed_process("s")


async def test_processes_need_a_session(box):
    for call in (box.start("cat", session_id="none"), box.get_managed_process("none"),
                 box.stop_managed_process("none")):
        with pytest.raises(errors.BoxSessionNotFoundError, match=f"session {box.physical('none')} not found"):
            await call


async def test_commands_run_beside_a_process(box, mark):
    await box.new()
    await box.start("sleep", mark)
    assert (await box.sh("echo hi")).stdout == "hi"
    assert (await box.get_managed_process("s")).status == RUNNING


async def test_deleting_the_session_ends_its_processes(box, mark):
    await box.new()
    await box.start("sleep", mark)
    await running(mark)
    await box.delete_session("s")
    with pytest.raises(errors.BoxSessionNotFoundError):
        await box.get_managed_process("s")
    assert alive(mark) == 0


async def test_a_timeout_ends_processes_too(box):
    await box.new()
    await box.start("cat")
    await box.sh("sleep 60", timeout_sec=1)
    with pytest.raises(errors.BoxSessionNotFoundError):
        await box.get_managed_process("s")


@pytest.mark.needs("capacity")
async def test_there_is_a_limit_of_processes(box):
    await box.new()
    await box.configure(limits={"max_managed_processes": 1})
    try:
        await box.start("cat", process_id="a")
        with pytest.raises(errors.BoxCapacityExceededError, match=r"Box managed process capacity reached \(1\)"):
            await box.start("cat", process_id="b")
        await box.start("cat", process_id="a")
        await box.stop_managed_process("s", "a")
        await box.start("cat", process_id="b")
    finally:
        await box.configure(limits={"max_managed_processes": 64})


@pytest.mark.needs("capacity")
async def test_ended_processes_can_be_forgotten_at_once(box):
    await box.new()
    await box.configure(limits={"completed_process_retention_sec": 0})
    try:
        # It ends when it is told to: one that had ended before the answer would have been forgotten before it.
        await box.start("sh", "-c", "until [ -e go ]; do sleep 0.05; done")
        await box.sh("touch go")

        async def forgotten():
            try:
                await box.get_managed_process("s")
            except errors.BoxManagedProcessNotFoundError:
                return True

        await until(forgotten)
    finally:
        await box.configure(limits={"completed_process_retention_sec": 300})


@pytest.mark.needs("capacity")
async def test_ended_processes_are_kept_up_to_a_number(box):
    await box.new()
    await box.configure(limits={"max_completed_processes": 2})
    try:
        for name in ("a", "b", "c"):
            await box.start("true", process_id=name)
            await ended(box, name)

        async def two():
            return set((await box.get_session("s"))["managed_processes"]) == {"b", "c"}

        await until(two)
    finally:
        await box.configure(limits={"max_completed_processes": 256})
