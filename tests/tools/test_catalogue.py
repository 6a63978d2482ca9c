# SPDX-License-Identifier: Apache-2.0
"""Every row of docs/rows.md and every check of docs/checks.md is proved by a test that carries its name.

`test_row_I07_...` proves a row, `test_check_I07_...` a check; one that proves several has a prefix for each. So
`pytest -k check_I07` runs what stands for one of them, and nothing else. The two pages have a line for each, with its
main test."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
DOCS = TESTS.parent / "docs"
# How many of each letter there are, beginning with 01.
ROWS = {"T": 71, "F": 25, "I": 14}
CHECKS = {"A": 10, "B": 20, "C": 16, "D": 12, "E": 18, "F": 12, "G": 12, "H": 12, "I": 20, "J": 16, "K": 10, "L": 12,
          "M": 8}
# What no test proves, and why.
WITHOUT = {
    ("check", "D08"): "the limits on connections are in the rules (tests/unit/test_net.c); no test floods a host",
    ("check", "E12"): "nothing limits the bytes per second that a session writes to a disk; its quota is all",
    ("check", "E15"): "sessions are not counted against the host's pid_max",
}
DEFINITION = re.compile(r"^(?:def|static void|async def) (\w+)\(", re.M)
ALIAS = re.compile(r"^(test_\w+) = \w", re.M)
PREFIX = re.compile(r"(row|check)_([A-Z]\d\d)_")
PAGE_ROW = re.compile(r"^\| ([A-Z]\d\d) \| (.+) \| (.+) \|$", re.M)
PAGE_TEST = re.compile(r"`tests/([\w/.]+)::(\w+)`")
ID = re.compile(r"(?:^|_)[A-Z]\d\d(?=_)")


def ids(table):
    return {f"{letter}{n:02}" for letter, count in table.items() for n in range(1, count + 1)}


def names():
    for path in [*TESTS.rglob("test_*.py"), *TESTS.rglob("test_*.c")]:
        text = path.read_text()
        for name in [*DEFINITION.findall(text), *ALIAS.findall(text)]:
            yield path, name


def prefixes(name):
    """Those of a test's name, and what follows them."""
    found, rest = [], name.removeprefix("test_") if name.startswith("test_") else ""
    while match := PREFIX.match(rest):
        found.append(match.groups())
        rest = rest[match.end():]
    return found, rest


def test_ids_stand_in_front_with_what_they_are():
    loose = [f"{path.relative_to(TESTS)}: {name}" for path, name in names()
             if ID.search(prefixes(name)[1] if prefixes(name)[0] else name)]
    assert loose == []


def test_every_name_is_of_something_that_there_is():
    known = {("row", i) for i in ids(ROWS)} | {("check", i) for i in ids(CHECKS)}
    assert {(p.name, *f) for p, name in names() for f in prefixes(name)[0] if f not in known} == set()


def test_every_row_and_check_has_a_test_or_a_reason():
    named = {f for _, name in names() for f in prefixes(name)[0]}
    missing = ({("row", i) for i in ids(ROWS)} | {("check", i) for i in ids(CHECKS)}) - named
    assert missing == set(WITHOUT)
    assert [f for f in WITHOUT if f[0] == "row"] == []


def test_one_name_is_one_test():
    """Two of one name in one file: the second hides the first."""
    seen, twice = set(), []
    for path, name in names():
        if prefixes(name)[0] and (path, name) in seen:
            twice.append(f"{path.relative_to(TESTS)}: {name}")
        seen.add((path, name))
    assert twice == []


PAGES = pytest.mark.parametrize("page, kind, table", [("checks.md", "check", CHECKS), ("rows.md", "row", ROWS)])


def page_rows(page):
    """Id, what is proved, where."""
    return PAGE_ROW.findall((DOCS / page).read_text())


@PAGES
def test_the_page_has_one_row_for_each_in_order(page, kind, table):
    assert [row[0] for row in page_rows(page)] == sorted(ids(table), key=lambda i: (list(table).index(i[0]), i))


@PAGES
def test_every_letter_has_a_title_and_a_line(page, kind, table):
    head = rf"^## ([A-Z]): \w.*\n\n\w.*\.\n\n\| id \| {kind} \| test \|\n"
    assert re.findall(head, (DOCS / page).read_text(), re.M) == list(table)


@PAGES
def test_every_line_of_the_page_names_a_test_of_its_id_or_the_reason(page, kind, table):
    there = {(str(path.relative_to(TESTS)), name) for path, name in names()}
    wrong = []
    for number, what, where in page_rows(page):
        if not what.endswith("."):
            wrong.append((number, "is no sentence"))
        if reason := WITHOUT.get((kind, number)):
            if where != f"no test: {reason}":
                wrong.append((number, where))
        elif not (named := PAGE_TEST.fullmatch(where)) or named.groups() not in there:
            wrong.append((number, where))
        elif (kind, number) not in prefixes(named.group(2))[0]:
            wrong.append((number, f"{where} is a test of another"))
    assert wrong == []
