# SPDX-License-Identifier: Apache-2.0
"""Every command of the tutorials is run as it stands there, and its output is what the page shows. The tutorial about
LangBot needs a LangBot: tests/interop_langbot/test_newcomer.py runs it."""

import os

import pytest
from boxlib import ROOT
from pagelib import Reader, blocks, commands_and_outputs, shown_pattern

ELSEWHERE = {"tutorials/langbot"}
PAGES = [*sorted(f"tutorials/{page.stem}" for page in (ROOT / "docs/tutorials").glob("*.md")), "how-to/own-agent"]
# Pages that an ordinary user can follow on every host; the others show a network.
ROOTLESS = {"how-to/own-agent", "tutorials/first-sandbox", "tutorials/mcp-server"}
# The real ones want an account. Claude writes the test that it is asked for.
AGENTS = {"claude": """#!/bin/sh
case "$*" in
*--version) echo "2.1.0 (Claude Code)" ;;
*--print*) [ "$ANTHROPIC_API_KEY" ] && echo "import app" > test_app.py ;;
esac
""", "codex": "#!/bin/sh\necho codex-cli 0.1.0\n"}


@pytest.fixture
def reader(boxd):
    someone = Reader(boxd)
    programs = someone.top / ".agents"
    programs.mkdir()
    for name, text in AGENTS.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    someone.env["PATH"] = f"{programs}:{os.environ['PATH']}"
    yield someone
    someone.close()


def test_every_block_says_what_it_is():
    for page in PAGES:
        found = blocks(f"docs/{page}.md")
        assert found and {mark for mark, _ in found} <= {"sh", "text"}, page


@pytest.mark.parametrize("page", [pytest.param(page, marks=[pytest.mark.rootless] * (page in ROOTLESS))
                                  for page in PAGES if page not in ELSEWHERE])
def test_the_commands_do_what_the_page_shows(boxd, reader, page):
    typed = commands_and_outputs(f"docs/{page}.md")
    for (command, shown), got in zip(typed, reader.type([command for command, _ in typed])):
        assert got.status == 0, f"\n{command}\n{got.out}"
        may_be = shown[:1] if os.geteuid() == 0 else shown
        assert not may_be or any(shown_pattern(one).fullmatch(got.out.strip("\n")) for one in may_be), (
            f"\n{command}\n{got.out}\n--- shown:\n{may_be}")
    assert boxd.client().ps() == [], "the page leaves nothing behind"
