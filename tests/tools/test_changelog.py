# SPDX-License-Identifier: Apache-2.0
"""CHANGELOG.md has the form of Keep a Changelog and knows the version of meson.build."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CHANGELOG.md").read_text()
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def test_the_version_of_the_build_is_named():
    (version,) = re.findall(r"^  version: '([\d.]+)',$", (ROOT / "meson.build").read_text(), re.M)
    assert version in TEXT


def test_unreleased_comes_first_and_releases_have_a_date():
    first, *releases = re.findall(r"^## (.+)$", TEXT, re.M)
    assert first == "[Unreleased]"
    assert [r for r in releases if not re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", r)] == []


def test_changes_stand_under_their_kinds_in_order():
    for part in re.split(r"^## ", TEXT, flags=re.M)[1:]:
        kinds = re.findall(r"^### (.+)$", part, re.M)
        assert kinds == [kind for kind in KINDS if kind in kinds] and kinds, part.split("\n")[0]
