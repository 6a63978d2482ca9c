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
            "util/err.h": "#include <errno.h>\n",
            "util/json.c": "#include <jansson.h>\n",
            "io/loop.c": '#include "io/loop_internal.h"\n#include "util/err.h"\n',
            "io/loop_internal.h": "",
            "sandbox/seccomp.c": "#include <seccomp.h>\n",
            "sandbox/caps.c": "#include <linux/seccomp.h>\n",
            "sandbox/init/main.c": '#include "sandbox/plan.h"\n#include "near.h"\n',
            "sandbox/init/near.h": "",
            "sandbox/plan.h": "",
            "store/db.c": "#include <sqlite3.h>\n",
            "cmd/boxd.c": '#include "io/loop.h"\n#include "util/err.h"\n',
        },
    )
    assert status == 0, lines
    assert lines == ["layers: 11 files, 0 breaches"]


BREACHES = {
    "upwards": ("util/a.c", '#include "io/loop.h"', "util may not include io"),
    "sideways": ("spec/a.c", '#include "sandbox/plan.h"', "spec may not include sandbox"),
    "two layers up": ("core/a.h", '#  include "rpc/rpc.h"', "core may not include rpc"),
    "internal header": ("core/a.c", '#include "backend/x_internal.h"', "internal to backend"),
    "jansson elsewhere": ("util/a.c", "#include <jansson.h>", "by util/json.c only"),
    "seccomp elsewhere": ("sandbox/a.c", "#include <seccomp.h>", "by sandbox/seccomp.c only"),
    "seccomp in quotes": ("sandbox/a.c", '#include "seccomp.h"', "by sandbox/seccomp.c only"),
    "sqlite elsewhere": ("core/a.c", "#include <sqlite3.h>", "by store/ only"),
    "curl in the daemon": ("http/a.c", "#include <curl/curl.h>", "by fetch/ only"),
    "project header as system header": ("core/a.c", "#include <util/err.h>", "with quotes"),
    "parent directory": ("core/a.c", '#include "../util/err.h"', 'without ".."'),
    "header of no module": ("core/a.c", '#include "misc/x.h"', "belongs to no module"),
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


def test_empty_tree_is_not_a_pass(tmp_path):
    assert run(tmp_path, {})[0] == 2
