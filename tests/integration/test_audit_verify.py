# SPDX-License-Identifier: Apache-2.0
"""`box audit verify`: logs made here, by the description in docs/reference/audit.md, and what is wrong with them."""

import hashlib
import json
import os
import subprocess

import pytest

from boxlib import BUILD

pytestmark = pytest.mark.rootless

ZERO = "0" * 64


def records(n, first=1, prev=ZERO):
    """n lines that follow from each other, and the digest of the last."""
    lines = []
    for seq in range(first, first + n):
        record = {"seq": seq, "time": "2026-11-15T00:00:00.000000+00:00", "prev": prev, "event": "exec_end", "who": "x"}
        lines.append(json.dumps(record, separators=(",", ":")).encode())
        prev = hashlib.sha256(lines[-1]).hexdigest()
    return lines, prev


def write(path, lines):
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return str(path)


def verify(*args, **env):
    return subprocess.run(
        [str(BUILD / "box"), "audit", "verify", *args],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **env},
        check=False,
    )


def test_a_whole_log_is_proved(tmp_path):
    lines, head = records(5)
    r = verify(write(tmp_path / "a.log", lines))
    assert (r.returncode, r.stderr) == (0, "")
    assert r.stdout == f"5 records, 1 to 5, each follows from the one before\nhead {head}\n"


@pytest.mark.parametrize("line", [1, 3, 5])
def test_a_changed_record_is_found_by_the_next(tmp_path, line):
    lines, _ = records(6)
    lines[line - 1] = lines[line - 1].replace(b'"who":"x"', b'"who":"y"')
    path = write(tmp_path / "a.log", lines)
    r = verify(path)
    assert r.returncode == 1
    assert r.stdout == f"{path} line {line + 1}: the record does not follow from the line before\n"


def test_a_removed_record_is_found(tmp_path):
    lines, _ = records(6)
    del lines[2]
    r = verify(write(tmp_path / "a.log", lines))
    assert r.returncode == 1
    assert "line 3: the record does not follow" in r.stdout


def test_the_chain_goes_on_from_file_to_file(tmp_path):
    lines, _ = records(10)
    first, second = write(tmp_path / "1", lines[:4]), write(tmp_path / "2", lines[4:])
    assert verify(first, second).returncode == 0
    assert "6 records, 5 to 10" in verify(second).stdout
    r = verify(second, first)
    assert r.returncode == 1
    assert r.stdout.startswith(f"{first} line 1: ")


def test_the_files_of_the_state_directory_are_found(tmp_path):
    log = tmp_path / "audit"
    log.mkdir()
    lines, head = records(9)
    write(log / f"audit-{1:020}.log", lines[:3])
    write(log / f"audit-{4:020}.log", lines[3:5])
    write(log / "audit.log", lines[5:])
    (log / "audit-bad-17.log").write_text("set aside\n")
    r = verify("--json", BOX_STATE_DIR=str(tmp_path))
    assert r.returncode == 0, r.stderr
    assert json.loads(r.stdout) == {"whole": True, "first": 1, "last": 9, "lost": 0, "head": head}
    (log / f"audit-{4:020}.log").unlink()
    r = verify("--json", BOX_STATE_DIR=str(tmp_path))
    assert r.returncode == 1
    answer = json.loads(r.stdout)
    assert (answer["whole"], answer["file"], answer["line"]) == (False, str(log / "audit.log"), 1)


def test_a_head_that_was_noted_finds_a_cut_end(tmp_path):
    lines, head = records(5)
    path = write(tmp_path / "a.log", lines)
    assert verify("--head", head, path).returncode == 0
    write(tmp_path / "a.log", lines[:4])
    assert verify(path).returncode == 0
    r = verify("--head", head, path)
    assert r.returncode == 1
    assert "MISSING" in r.stdout


@pytest.mark.parametrize(
    "text, reason",
    [
        (b"hello\n", "the line is no record"),
        (b'{"seq":1,"prev":"00"}\n', "the line is no record"),
        (b'{"seq":1', "the last line is not complete"),
        (b"x" * 100000 + b"\n", "the line is too long"),
    ],
)
def test_what_is_no_log_is_told(tmp_path, text, reason):
    path = tmp_path / "a\x1b[31m.log"
    path.write_bytes(text)
    r = verify(str(path))
    assert r.returncode == 1
    assert r.stdout == f"{tmp_path}/a\\x1b[31m.log line 1: {reason}\n"


def test_mistakes_are_one_line_and_125(tmp_path):
    missing = tmp_path / "missing"
    r = verify(str(missing))
    assert (r.returncode, r.stderr) == (125, f"box: open '{missing}': No such file or directory\n")
    r = verify("--head", "abc", str(missing))
    assert (r.returncode, r.stderr) == (125, "box: --head wants the 64 digits of a digest\n")
    r = verify(BOX_STATE_DIR=str(tmp_path))
    assert r.returncode == 125
    r = subprocess.run([str(BUILD / "box"), "audit", "prove"], capture_output=True, text=True, timeout=30, check=False)
    assert (r.returncode, r.stderr) == (125, "box: unknown word 'prove', see 'box help audit'\n")
