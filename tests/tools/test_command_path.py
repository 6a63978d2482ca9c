# SPDX-License-Identifier: Apache-2.0
"""One place starts the commands of users; the others that start a run do it for boxd itself."""

import re
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"
CALLERS = {
    "command/command.c": "the commands of users, of every front",
    "command/quota_guard.c": "ends what runs in a session that is over its quota",
    "agent/files.c": "box-files, which reads and writes for the file tools",
    "front/langbot/tenant/readiness.c": "tries whether the isolation holds",
    "front/langbot/storage.c": "counts what a session keeps",
}


def test_one_place_starts_the_commands_of_users():
    found = {str(p.relative_to(SRC)) for p in SRC.rglob("*.c") if re.search(r"\brun_start\(", p.read_text())}
    assert found - {"session/run.c"} == set(CALLERS)
    assert (SRC / "command/command.c").read_text().count("run_start(") == 1
