# SPDX-License-Identifier: Apache-2.0
"""The real LangBot in front of its own runtime and of boxd: one script, the same picture, or a row of the table."""

import pytest
import script

BOXD = ("native", "docker")


def value(seen, path):
    for part in path.split("/"):
        seen = seen[int(part)] if isinstance(seen, list) else seen[part]
    return seen


# The script proves something only when it did what it says, everywhere.
EVERYWHERE = {
    "boot/available": True,
    "status/available": True,
    "tools": ["edit", "exec", "glob", "grep", "read", "write"],
    "execute": {"ok": False, "status": "completed", "exit_code": 3, "stdout": "out", "stderr": "err"},
    "surroundings/workdir/out": "/workspace",
    "surroundings/python/out": "42",
    "timeouts/status": "timed_out",
    "background/lives on/out": "alive",
    "files/edited/content": "one\n2\nthree\nfour",
    "files/glob/matches": ["/workspace/a/b/note.txt"],
    "files/grep/total": 1,
    "files/seen/out": "yours",
    "skill_activated/run/out": "hello from one",
    "skill_activated/tmp/out": "before",
    "skill_activated/process/out": "alive",
    "two_skills/second/out": "bye from two",
    "two_skills/first/out": "hello from one",
    "two_skills/process/out": "alive",
    "skill_updated/new run/out": "good day from three",
    "attachments_in/same": [True, True],
    "attachments_in/appended/out": "ok",
    "attachments_out/sent": [{"name": "a.txt", "type": "File", "size": 3},
                             {"name": "b.bin", "type": "File", "size": 2 << 20},
                             {"name": "p.png", "type": "Image", "size": 2}],
    "profiles/offline_readonly/workspace": [1, ""],
    "profiles/network_basic/network": "on",
    "quota/fits": "0",
    "mcp_start/counter": {"count": 1, "greeting": "hi", "cwd": True},
    "mcp_tools": ["counter_count", "other_count"],
    "killed_kept/workspace/out": "yours",
    "two_workspaces/at once/0/out": "mine\nmine",
    "two_workspaces/at once/1/out": "theirs\ntheirs",
    "restarted/available": True,
    "restarted_mcp/counter/greeting": "hi",
    "restarted_kept/workspace/out": "yours",
    "restarted_kept/skill/out": "bye from five",
    "mcp_stop": 0,
}
# Since 4.11 a runner asks for boxes and names the files that it sends.
NEWER = {
    "acquire/0/image": "rockchin/langbot-sandbox:latest",
    "acquire/0/network": "on",
    "skill_updated/old run/out": "hello from three",
    "skill_registered/run/out": "made it",
    "skill_removed/tmp/out": "before",
    "exports//tmp/small": [1000],
    "exports//tmp/700k": [700 << 10],
    "storage/size_bytes": "int",
    "profiles/offline/network": "off",
    "killed_mcp/other/greeting": "hi",
}


@pytest.mark.parametrize("kind", script.KINDS)
def test_langbot_does_what_it_is_told(seen, release, kind):
    shown = seen(kind)
    for path, want in {**EVERYWHERE, **(NEWER if release >= "4.11" else {})}.items():
        name, _, rest = path.partition("//")  # the names of some are paths
        got = shown[name][f"/{rest}"] if rest else value(shown, path)
        assert got == want, path


@pytest.mark.parametrize("name", script.NAMES)
@pytest.mark.parametrize("kind", BOXD)
def test_boxd_shows_what_the_own_runtime_shows(seen, table, kind, name):
    """What differs has a row in docs/internals/interop.md, where it is judged."""
    found = script.differences(script.flat(seen("upstream")[name], name), script.flat(seen(kind)[name], name))
    unjudged = {at: pair for at, pair in found.items() if not any(row.covers(kind, at) for row in table)}
    assert not unjudged, "differences without a row (upstream's, boxd's)"


def test_mcp_servers_outlive_boxd(seen, release):
    """kill -9: the server has counted on. On upstream's runtime it has begun again."""
    if release < "4.11":
        return  # does not call them again, see script.py
    for kind in BOXD:
        for server in ("counter", "other"):
            before, after = (seen(kind)[step][server]["count"] for step in ("mcp_start", "killed_mcp"))
            assert after > before, (kind, server)


def test_no_row_is_out_of_date(everything, table):
    """What no release shows any more is no difference."""
    used = {(i, kind) for (release, kind), shown in everything.items() if kind != "upstream" for name in script.NAMES
            for at in script.differences(script.flat(everything[release, "upstream"][name], name),
                                         script.flat(shown[name], name))
            for i, row in enumerate(table) if row.covers(kind, at)}
    assert not [(row.patterns, kind) for i, row in enumerate(table) for kind in BOXD
                if row.differs[kind] and (i, kind) not in used]


def test_each_difference_is_judged(table):
    assert table and all(row.judged.split(":")[0] in ("better", "stricter", "equal") for row in table)
