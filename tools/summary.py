#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up test reports into one closing line: `N passed, N failed, N skipped`.

usage: summary.py STAGE:STATUS:REPORT...

STATUS is the exit status of the stage. REPORT is meson's testlog.json, a JUnit XML file, or a log
whose last closing line counts (a log without one counts as a single check). A stage that failed
without a failure in its report, or that left no report, counts as one failure. Exit status 1 when
anything failed.
"""

import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

CLOSING = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)
# cmocka's own totals, so that one test binary counts as the tests it holds. Since 1.1.7 some carry
# the name of the group.
CMOCKA = {
    kind: re.compile(rf"^\[  {kind} *\] (?:\w+: )?(\d+) test\(s\)", re.MULTILINE)
    for kind in ("PASSED", "FAILED", "SKIPPED")
}
MESON_PASSED = {"OK", "EXPECTEDFAIL"}


def count_meson(path):
    passed = failed = skipped = 0
    for line in path.read_text(errors="replace").splitlines():
        test = json.loads(line)
        output = test.get("stdout", "") + "\n" + test.get("stderr", "")
        totals = {k: sum(int(n) for n in rx.findall(output)) for k, rx in CMOCKA.items()}
        if test["result"] == "SKIP":
            skipped += 1
        elif test["result"] in MESON_PASSED:
            passed += totals["PASSED"] or (0 if totals["SKIPPED"] else 1)
            skipped += totals["SKIPPED"]
        else:
            passed += totals["PASSED"]
            failed += totals["FAILED"] or 1
            skipped += totals["SKIPPED"]
    return passed, failed, skipped


def count_junit(path):
    passed = failed = skipped = 0
    for case in ET.parse(path).getroot().iter("testcase"):
        outcomes = {child.tag for child in case}
        if outcomes & {"failure", "error"}:
            failed += 1
        elif "skipped" in outcomes:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def count_log(path, status):
    lines = CLOSING.findall(path.read_text(errors="replace"))
    if lines:
        return tuple(int(n) for n in lines[-1])
    return (1, 0, 0) if status == 0 else (0, 1, 0)


def count(path, status):
    try:
        if path.suffix == ".json":
            counts = count_meson(path)
        elif path.suffix == ".xml":
            counts = count_junit(path)
        else:
            counts = count_log(path, status)
    except (OSError, ValueError, KeyError, ET.ParseError) as e:
        print(f"summary: no usable report: {e}", file=sys.stderr)
        counts = (0, 1, 0)
    passed, failed, skipped = counts
    if status != 0 and failed == 0:
        failed = 1
    return passed, failed, skipped


def main(args):
    total = [0, 0, 0]
    for arg in args:
        stage, status, report = arg.split(":", 2)
        counts = count(Path(report), int(status))
        print(f"  {stage:<24} {counts[0]:>5} passed {counts[1]:>4} failed {counts[2]:>4} skipped")
        total = [a + b for a, b in zip(total, counts)]
    print("{} passed, {} failed, {} skipped".format(*total))
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
