# SPDX-License-Identifier: Apache-2.0
"""`box doctor --attack` on every backend: no wall that a receipt promises is broken."""

import collections
import json
import re

import pytest
from boxlib import box as run_box

pytestmark = pytest.mark.real
STATES = {"held", "broken", "not_promised", "not_tried"}
# A machine that is busy with other tests need not try everything, but these are tried first.
ESCAPES = {"A02", "A04", "A06", "B01", "B02", "B05", "B14", "C01", "C02"}


def test_no_promised_wall_is_broken(box):
    image = [] if box.backend.image == "host" else ["--image", box.backend.image]
    result = run_box("doctor", "--attack", "--format", "json", *image, sock=box.backend.daemon.sock)
    report = json.loads(result.stdout)
    counts = collections.Counter(c["state"] for c in report["checks"])
    print(box.backend.name, box.runtime, report["duration_ms"], dict(counts),
          *(f"\n{c['state']} {c['id']}: {c['detail']}; {c['reason']}" for c in report["checks"] if c["state"] != "held"))
    assert (result.returncode, report["result"], counts["broken"]) == (0, "held", 0), result.stdout
    assert report["counts"] == {state: counts[state] for state in STATES}
    assert report["kernel"] == ("gvisor" if box.runtime else "host")
    tried = {re.match("[A-Z]+[0-9]+", c["id"])[0] for c in report["checks"] if c["state"] != "not_tried"}
    assert ESCAPES <= tried, ESCAPES - tried
    assert all(c["reason"] for c in report["checks"] if c["state"] in ("not_promised", "not_tried"))
    assert counts["held"] > 150
    assert not [s for s in box.ps() if s["session_id"].startswith("attack-")]
