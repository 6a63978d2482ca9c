# SPDX-License-Identifier: Apache-2.0
"""The closing line adds up every kind of report, and a lost report is never a pass."""

import json
import subprocess
import sys
from pathlib import Path

SUMMARY = Path(__file__).resolve().parents[2] / "tools" / "summary.py"


def run(*stages):
    done = subprocess.run(
        [sys.executable, str(SUMMARY), *stages],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return done.returncode, done.stdout.splitlines()[-1]


def write_testlog(tmp_path, *tests):
    path = tmp_path / "testlog.json"
    path.write_text("".join(json.dumps(t) + "\n" for t in tests))
    return path


def test_cmocka_binary_counts_as_its_tests(tmp_path):
    log = write_testlog(
        tmp_path,
        {"name": "buf", "result": "OK", "stderr": "[  PASSED  ] 7 test(s).\n"},
        {
            "name": "err",
            "result": "FAIL",
            "stdout": "[  PASSED  ] 2 test(s).\n",
            "stderr": "[  FAILED  ] 1 test(s), listed below:\n[  FAILED  ] wraps\n",
        },
        {
            "name": "fd",
            "result": "OK",
            "stdout": "[  PASSED  ] 3 test(s).\n[  SKIPPED ] 1 test(s), listed below:\n",
        },
        {
            "name": "log",
            "result": "OK",
            "stdout": "[  PASSED  ] 1 test(s).\n[  SKIPPED ] group: 1 test(s), listed below:\n",
        },
    )
    assert run(f"unit:1:{log}") == (1, "13 passed, 1 failed, 2 skipped")


def test_other_meson_tests_count_once(tmp_path):
    log = write_testlog(
        tmp_path,
        {"name": "layers", "result": "OK", "stdout": "fine"},
        {"name": "slow", "result": "TIMEOUT"},
        {"name": "crash", "result": "FAIL", "stdout": "[  PASSED  ] 0 test(s).\n"},
        {"name": "absent", "result": "SKIP"},
    )
    assert run(f"unit:1:{log}") == (1, "1 passed, 2 failed, 1 skipped")


def test_junit_outcomes(tmp_path):
    xml = tmp_path / "r.xml"
    xml.write_text(
        '<testsuites><testsuite><testcase name="a"/><testcase name="b"><failure/></testcase>'
        '<testcase name="c"><error/></testcase><testcase name="d"><skipped/></testcase>'
        "</testsuite></testsuites>"
    )
    assert run(f"py:1:{xml}") == (1, "1 passed, 2 failed, 1 skipped")


def test_log_takes_the_last_closing_line(tmp_path):
    log = tmp_path / "make.log"
    log.write_text("1 passed, 1 failed, 0 skipped\nmore\n5 passed, 0 failed, 2 skipped\nend\n")
    assert run(f"make test:0:{log}") == (0, "5 passed, 0 failed, 2 skipped")


def test_log_without_closing_line_is_one_check(tmp_path):
    log = tmp_path / "make.log"
    log.write_text("nothing to count\n")
    assert run(f"a:0:{log}", f"b:2:{log}") == (1, "1 passed, 1 failed, 0 skipped")


def test_failed_stage_with_clean_report_is_a_failure(tmp_path):
    log = tmp_path / "make.log"
    log.write_text("5 passed, 0 failed, 0 skipped\n")
    assert run(f"a:1:{log}") == (1, "5 passed, 1 failed, 0 skipped")


def test_missing_and_torn_reports_are_failures(tmp_path):
    torn = tmp_path / "torn.json"
    torn.write_text('{"name": "buf", "resu')
    xml = tmp_path / "torn.xml"
    xml.write_text("<testsuites>")
    stages = [f"a:0:{tmp_path}/absent.xml", f"b:0:{torn}", f"c:0:{xml}"]
    assert run(*stages) == (1, "0 passed, 3 failed, 0 skipped")
