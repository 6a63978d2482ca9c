# SPDX-License-Identifier: Apache-2.0
"""The quota of a directory of the host holds between commands, too: against what a command left running in the
background, and against managed processes. What runs is killed, with the reason; the session stays and can delete."""

import pytest
from boxlib import ApiError
from hostlib import until
from policylib import Governed

# One file is never larger than the quota, so it takes several.
WRITER = "i=0; while :; do i=$((i+1)); head -c 1000000 /dev/zero > /workspace/fill.$i; sleep 0.05; done"
BETWEEN = "workspace quota exceeded between executions: used="


@pytest.fixture(scope="module")
def daemon():
    d = Governed("box: {local: {allowed_mount_roots: ['{top}']}}")
    yield d
    d.close()


@pytest.fixture
def shared(daemon, request):
    """A session on a directory of the host with 4 MiB, and that directory."""
    name = request.node.name.replace("_", "-").replace("[", "-").strip("]")[-32:].strip("-")
    path = daemon.directory(name)
    api = daemon.client()
    api.new(name, host_path=str(path), workspace_quota_mb=4)
    yield api, name, path
    try:
        api.rm(name)
    except ApiError as error:
        assert error.status == 404
    api.close()


def size(path):
    return sum(p.stat().st_size for p in path.iterdir())


def told(daemon, name):
    """What is on record about it, once it is."""
    def found():
        return [r for r in daemon.audit(event="process_end", session=name) if BETWEEN in (r.get("reason") or "")]
    until(found, what="the end of what ran", seconds=90)
    return found()


def test_what_runs_in_the_background_is_ended(daemon, shared):
    api, name, path = shared
    api.sh(name, "echo kept > /tmp/mark")
    # Away from the command's own streams, so that nothing waits for it.
    api.sh(name, f"({WRITER}) </dev/null >/dev/null 2>&1 & echo left")
    record = told(daemon, name)[0]
    assert record["who"] == "boxd" and "limit=4194304 bytes" in record["reason"]

    # The same session, with nothing left of it: it can look, delete, and go on.
    with pytest.raises(ApiError) as caught:
        api.sh(name, "true")
    assert "workspace quota exceeded before execution" in caught.value.detail
    # (What begins in the very moment of the end is ended with it.)
    look = "cat /tmp/mark; cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    seen = until(lambda: api.sh(name, look, cleanup=True)["stdout"], what="a command")
    assert seen.startswith("kept\n") and "workspace" not in seen, seen
    before = size(path)
    until(lambda: api.sh(name, "rm -f /workspace/fill.*", cleanup=True)["exit_code"] == 0, what="room")
    assert before > 4 << 20 and size(path) == 0
    assert api.sh(name, "echo on; cat /tmp/mark")["stdout"] == "on\nkept\n"


def test_a_managed_process_is_ended_with_the_reason(daemon, shared):
    api, name, path = shared
    other = daemon.directory(f"{name}-other")
    api.new("within", host_path=str(other), workspace_quota_mb=4)
    start = {"command": "sh", "process_id": "writer", "args": ["-c", WRITER]}
    idle = {"command": "cat", "process_id": "idle"}
    assert "reason" not in api.call("POST", f"/v1/sessions/{name}/processes", start)
    api.call("POST", "/v1/sessions/within/processes", idle)

    def info():
        return api.call("GET", f"/v1/sessions/{name}/processes/writer")
    until(lambda: info()["status"] == "exited", what="the end of the process", seconds=90)
    said = info()
    assert said["exit_code"] == -9 and BETWEEN in said["reason"] and BETWEEN in said["stderr_preview"], said
    assert told(daemon, name)
    assert [e["message"] for e in api.call("GET", "/v1/errors")["errors"] if BETWEEN in e["message"]]
    # Whoever is within is left alone.
    assert api.call("GET", "/v1/sessions/within/processes/idle")["status"] == "running"
    api.rm("within")

    # It may run again once there is room, and is ended again.
    until(lambda: api.sh(name, "rm -f /workspace/fill.*", cleanup=True)["exit_code"] == 0, what="room")
    api.call("POST", f"/v1/sessions/{name}/processes", start)
    until(lambda: info()["status"] == "exited", what="its end again", seconds=90)
    assert BETWEEN in info()["reason"] and len(told(daemon, name)) >= 2


def test_what_is_allocated_beyond_the_end_of_a_file_counts(daemon, shared):
    api, name, path = shared
    limit = api.receipt(name)["limits"]["workspace_bytes"]
    assert limit["enforced"] is False and limit["counted"] == 4 << 20 and "counted" in limit["reason"]
    keep_size = "import ctypes, os\nlibc = ctypes.CDLL(None)\n" \
        "for n in range(4):\n    fd = os.open(f'/workspace/{n}', os.O_CREAT | os.O_WRONLY)\n" \
        "    assert libc.fallocate(fd, 1, ctypes.c_long(0), ctypes.c_long(3 << 20)) == 0\n"
    with pytest.raises(ApiError) as caught:
        api.x(name, argv=["python3", "-c", keep_size])
    assert "workspace quota exceeded after execution" in caught.value.detail
    assert size(path) == 0, "by their sizes nothing is there"


# Eight files of a mebibyte that no directory has: their names are gone, or they never had one, and the program holds
# them open, or by nothing but memory that shows them.
HOLD = """
import mmap, os, time
def make(n):
    fd = os.open('/workspace', os.O_TMPFILE | os.O_RDWR) if n % 2 else os.open(f'/workspace/{n}', os.O_CREAT | os.O_RDWR)
    if n % 2 == 0:
        os.unlink(f'/workspace/{n}')
    os.write(fd, bytes(1 << 20))
    return fd
fds = [make(n) for n in range(8)]
if WAY == 'mapped':
    maps = [mmap.mmap(fd, 4096) for fd in fds]
    os.closerange(3, 256)
time.sleep(600)
"""


@pytest.mark.parametrize("way", ["open", "mapped"])
def test_files_without_a_name_count(daemon, shared, way):
    api, name, path = shared
    program = f"WAY = {way!r}\n{HOLD}"
    start = {"command": "python3", "process_id": "holder", "args": ["-c", program]}
    api.call("POST", f"/v1/sessions/{name}/processes", start)

    def info():
        return api.call("GET", f"/v1/sessions/{name}/processes/holder")
    until(lambda: info()["status"] == "exited", what="the end of the process", seconds=90)
    assert BETWEEN in info()["reason"], info()
    assert size(path) == 0

    with pytest.raises(ApiError) as caught:
        api.x(name, "python3", "-c", program, timeout_sec=120)
    assert "workspace quota exceeded after execution" in caught.value.detail
