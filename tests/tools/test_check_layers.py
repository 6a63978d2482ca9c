# SPDX-License-Identifier: Apache-2.0
"""The layer check finds each kind of breach, and says nothing about a tree without one."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[2] / "tools" / "check-layers.py"


def run(tmp_path, files):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, str(CHECK), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    return done.returncode, done.stdout.splitlines()


def test_clean_tree_passes(tmp_path):
    status, lines = run(
        tmp_path,
        {
            "base/err.h": "#include <errno.h>\n",
            "base/json.c": "#include <jansson.h>\n",
            "loop/loop.c": '#include "loop/loop_internal.h"\n#include "base/err.h"\n',
            "loop/loop_internal.h": "",
            "sandbox/seccomp/seccomp.c": "#include <seccomp.h>\n",
            "sandbox/seccomp/filter.c": "#include <linux/seccomp.h>\n",
            "sandbox/launch/main.c": '#include "sandbox/plan.h"\n#include "near.h"\n',
            "sandbox/launch/near.h": "",
            "sandbox/plan.h": "",
            "store/db.c": "#include <sqlite3.h>\n",
            "front/common/front.h": "",
            "front/v1/v1_internal.h": '#include "front/common/front.h"\n',
            "front/v1/part/a.c": '#include "front/v1/v1_internal.h"\n',
            "daemon/boxd.c": '#include "loop/loop.h"\n#include "front/common/front.h"\n',
        },
    )
    assert status == 0, lines
    assert lines == ["layers: 14 files, 0 breaches"]


BREACHES = {
    "upwards": ("base/a.c", '#include "loop/loop.h"', "base may not include loop"),
    "sideways": ("spec/a.c", '#include "inside/ring.h"', "spec may not include inside"),
    "two layers up": ("session/a.h", '#  include "agent/tools.h"', "session may not include agent"),
    "internal header": ("session/a.c", '#include "backend/x_internal.h"', "internal to backend"),
    "internal header of a front": ("front/mcp/a.c", '#include "front/v1/v1_internal.h"', "internal to front/v1"),
    "front in a front": ("front/mcp/a.c", '#include "front/v1/v1.h"', "fronts share front/common only"),
    "jansson elsewhere": ("base/a.c", "#include <jansson.h>", "by base/json.c only"),
    "seccomp elsewhere": ("sandbox/a.c", "#include <seccomp.h>", "by sandbox/seccomp/seccomp.c only"),
    "seccomp in quotes": ("sandbox/a.c", '#include "seccomp.h"', "by sandbox/seccomp/seccomp.c only"),
    "sqlite elsewhere": ("session/a.c", "#include <sqlite3.h>", "by store/ only"),
    "curl in the daemon": ("http/a.c", "#include <curl/curl.h>", "by fetch/ only"),
    "project header as system header": ("session/a.c", "#include <base/err.h>", "with quotes"),
    "parent directory": ("session/a.c", '#include "../base/err.h"', 'without ".."'),
    "header of no module": ("session/a.c", '#include "misc/x.h"', "belongs to no module"),
}


@pytest.mark.parametrize("name", BREACHES)
def test_breach_is_found_with_file_and_line(tmp_path, name):
    path, include, text = BREACHES[name]
    status, lines = run(tmp_path, {path: f"/* A comment. */\n{include}\n"})
    assert status == 1
    assert lines[0].startswith(f"{path}:2: ") and text in lines[0]
    assert len(lines) == 2


def test_file_outside_every_module_is_a_breach(tmp_path):
    status, lines = run(tmp_path, {"stray.c": "", "misc/x.c": ""})
    assert status == 1
    assert lines[:2] == [
        "misc/x.c:1: belongs to no module of the layer list",
        "stray.c:1: belongs to no module of the layer list",
    ]


def test_directories_that_include_each_other_are_found(tmp_path):
    status, lines = run(
        tmp_path,
        {
            "sandbox/net/a.c": '#include "sandbox/host/h.h"\n',
            "sandbox/host/h.h": '#include "sandbox/setup/s.h"\n',
            "sandbox/setup/s.h": '#include "sandbox/net/n.h"\n',
            "sandbox/net/n.h": "",
        },
    )
    assert status == 1
    assert "sandbox/host includes sandbox/setup, which includes sandbox/host" in lines[0]


@pytest.mark.parametrize("n, status", [(25, 0), (26, 1)])
def test_a_crowded_directory_is_a_breach(tmp_path, n, status):
    assert run(tmp_path, {f"base/f{i}.c": "" for i in range(n)})[0] == status


def test_the_picture_has_every_module_above_what_it_includes(tmp_path):
    files = {"base/err.h": "", "session/a.c": '#include "base/err.h"\n'}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    done = subprocess.run([sys.executable, str(CHECK), "--graph", str(tmp_path)], stdout=subprocess.PIPE, text=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines.index(["session/", "─►", "base"]) < lines.index(["base/"])


def test_empty_tree_is_not_a_pass(tmp_path):
    assert run(tmp_path, {})[0] == 2
