# SPDX-License-Identifier: Apache-2.0
"""A program inside exchanges the directories of a path for links, at three depths, a million times, while files are
read and written through that path."""

import os
import re
import threading

from boxlib import BUILD
from filelib import Files

SWAPS = 1_000_000
TRIES = 150  # of each kind, at least


def test_check_H05_a_million_swaps_at_three_depths_lead_nowhere(boxd_shared, api, sid, tmp_path):
    """The links lead to a directory of the host by its own name, to the same through procfs, and out of the workspace
    within the session. Nothing of the host is ever read or written; the tools never leave the workspace."""
    host = tmp_path / "host"
    (host / "b" / "c").mkdir(parents=True)
    for place in (host, host / "b", host / "b" / "c"):
        os.chmod(place, 0o777)
        (place / "marker").write_text("of the host")
    os.chmod(tmp_path, 0o755)
    files = Files(boxd_shared.sock, sid)
    assert files.put("swap", (BUILD / "tests/integration/swap_files").read_bytes(), mode="755").status == 201
    api.sh(sid, f"""set -e; mkdir -p r/a/b/c /tmp/out/b/c; echo -n inside > r/a/b/c/marker
        for d in /tmp/out /tmp/out/b /tmp/out/b/c; do echo -n outside > $d/marker; done
        ln -s {host} r/a.x; ln -s /tmp/out/b r/a/b.x; ln -s /proc/1/root{host}/b/c r/a/b/c.x""")
    result = {}
    swapper = threading.Thread(target=lambda: result.update(
        boxd_shared.client().x(sid, "/workspace/swap", "/workspace/r", str(SWAPS), "/workspace/stop", timeout_sec=600)))
    swapper.start()
    seen = {"read": set(), "get": set(), "write": 0, "put": 0}
    tries = 0
    path = "/workspace/r/a/b/c"
    while tries < TRIES:
        tries += 1
        got = api.call("POST", f"/v1/sessions/{sid}/tools/read", {"path": f"{path}/marker"})
        seen["read"].add(got["content"] if got["ok"] else "no")
        got = files.get(f"{path}/marker")
        seen["get"].add(got.body.decode() if got.status == 200 else "no")
        got = api.call("POST", f"/v1/sessions/{sid}/tools/write", {"path": f"{path}/tool", "content": "t"})
        seen["write"] += got["ok"]
        seen["put"] += files.put(f"{path}/api", b"w").status < 300
    api.sh(sid, "touch stop")
    swapper.join(600)
    swaps = int(re.search(r"swaps=(\d+)", result["stdout"]).group(1))
    assert result["exit_code"] == 0 and swaps >= SWAPS, result
    assert seen["read"] <= {"inside", "no"}, seen
    assert seen["get"] <= {"inside", "outside", "no"}, seen  # /tmp/out is the session's own
    found = sorted(str(p.relative_to(host)) for p in host.rglob("*"))
    assert found == ["b", "b/c", "b/c/marker", "b/marker", "marker"], found
    assert all(p.read_text() == "of the host" for p in host.rglob("marker"))
    stray = api.sh(sid, "find /tmp/out -name tool; find / -xdev -name '.box-*.tmp' 2> /dev/null")["stdout"]
    assert stray == "", "the tools stay in the workspace, and no draft is left"
    print(f"swaps={swaps} tries={4 * tries} {seen}")
