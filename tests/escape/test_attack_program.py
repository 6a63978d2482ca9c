# SPDX-License-Identifier: Apache-2.0
"""box-attack finds what is there to be found: each attempt, where nothing is in its way."""

import pytest
from escapelib import Report, probe_argv, ran

pytestmark = pytest.mark.rootless
MIB = 1 << 20
SECRET = "a-name-of-the-test"
TO_BE_FOUND = f"--secret-reversed={SECRET[::-1]}"


def report(api, sid, mode, *options):
    return Report(ran(api.x(sid, *probe_argv(mode, *options)))["stdout"])


# Limits that no session has: what is tried goes well past them, and not further.
@pytest.mark.parametrize("mode, limit, row", [
    ("forks", 8, "E01"),
    ("hog-anon", MIB, "E02"),
    ("hog-memfd", MIB, "E03.memfd"),
    ("hog-shm", MIB, "E03.shm"),
    ("hog-pipe", MIB, "E03.pipe"),
    ("hog-unix", MIB, "E03.unix"),
    ("hog-tcp", MIB, "E03.tcp"),
    ("hog-udp", MIB, "E03.udp"),
    ("spin", 1000, "E05"),
    ("files-open", 64, "E08"),
    ("disk-write", MIB, "F01.write"),
    ("disk-fallocate", MIB, "F01.fallocate"),
    ("disk-unlinked", MIB, "F01.unlinked"),
])
def test_an_abuse_that_nothing_stops_is_a_failure(api, psid, mode, limit, row):
    state, detail = report(api, psid, mode, f"--limit={limit}").lines[row]
    assert state == "FAIL", detail


def test_a_neighbour_in_the_same_session_is_found(api, psid):
    assert ran(api.x(psid, *probe_argv("neighbour", TO_BE_FOUND)))["exit_code"] == 0
    found = report(api, psid, "neighbours", TO_BE_FOUND).row("M03")
    assert {name: state for name, (state, _) in found.items()} == {
        "M03.file": "FAIL", "M03.abstract": "FAIL", "M03.sysv": "FAIL", "M03.mq": "FAIL"}, found


LISTEN = """
import os, socket, subprocess, sys
tcp = socket.create_server(("127.0.0.1", 0))
unix = socket.socket(socket.AF_UNIX)
unix.bind("\\0" + sys.argv[1])
unix.listen()
sys.exit(subprocess.call([*sys.argv[2:-1], "--host-address=127.0.0.1", f"--port={tcp.getsockname()[1]}", sys.argv[-1]]))
"""


def test_a_listener_that_can_be_reached_is_found(api, psid):
    text = ran(api.x(psid, "python3", "-c", LISTEN, SECRET, *probe_argv("network", TO_BE_FOUND)))["stdout"]
    found = Report(text).row("D02")
    assert {name: state for name, (state, _) in found.items()} == {"D02.address-1": "FAIL", "D02.abstract": "FAIL"}, found
    assert Report(text).lines["D01"][0] == Report(text).lines["D04.metadata"][0] == "ok"
