# SPDX-License-Identifier: Apache-2.0
"""The commit behind a version: of the repository, of the file that a release carries, or none."""

import shutil
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "commit.sh"


def commit(tree):
    (tree / "tools").mkdir(exist_ok=True)
    shutil.copy(SCRIPT, tree / "tools")
    done = subprocess.run([tree / "tools" / "commit.sh"], cwd="/", stdout=subprocess.PIPE, text=True, timeout=60)
    return done.stdout


def git(tree, *args):
    command = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", *args]
    return subprocess.run(command, cwd=tree, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout.strip()


def test_a_tree_without_git_has_no_commit(tmp_path):
    assert commit(tmp_path) == ""


def test_a_repository_around_the_tree_is_not_asked(tmp_path):
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "x")
    (tmp_path / "below").mkdir()
    assert commit(tmp_path / "below") == ""


def test_the_commit_is_named_and_changes_are_told(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("a")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "x")
    git(tmp_path, "tag", "v9")
    head = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    assert commit(tmp_path) == f"+{head}\n"
    (tmp_path / "file").write_text("b")
    assert commit(tmp_path) == f"+{head}-dirty\n"


def test_a_release_carries_its_commit(tmp_path):
    (tmp_path / "COMMIT").write_text("0123456789ab\n")
    assert commit(tmp_path) == "+0123456789ab\n"
