# SPDX-License-Identifier: Apache-2.0
"""The export check tells functions that no other file calls from those that one or more do, and a seam inside a
directory from the interface of a layer."""

import subprocess
import sys
from pathlib import Path

CHECK = Path(__file__).resolve().parents[2] / "tools" / "check-exports.py"

FILES = {
    "base/a.h": "int dead(int a);\nint seam(void);\nint layer(void);\nstruct b *shared(const char *text,\n                 int n);\n"
                "void thing_free(struct thing *t);\nDEFINE_CLEANUP(thing)\n",
    "base/a.c": "struct twice {\n};\nint dead(int a) {}\nint seam(void) {}\nint layer(void) {}\nstruct b *shared(const char *t, int n) {}\n",
    "base/b.c": "struct twice {\n};\n/* dead() */ void f(void) { seam(); shared(\"dead\", '\"'); }\n",
    "base/c.c": "static void g(void) { shared(0, 1); }\n",
    "front/d.c": "static void h(void) { layer(); }\n",
}


def run(tmp_path, *options):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    done = subprocess.run([sys.executable, str(CHECK), *options, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines()


def test_each_kind_is_counted_and_named(tmp_path):
    assert run(tmp_path, "--list") == [
        "unused dead", "single layer", "seam seam", "twice twice base/a.c base/b.c",
        "exports: 4 functions; 1 that no other file calls, 2 (50 %) that one does, 1 (25 %) of these from its own directory; "
        "1 struct tags defined twice",
        "exports: more struct tags defined twice than before; --list names them",
    ]
