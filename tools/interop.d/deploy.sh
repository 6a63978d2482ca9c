#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The files of deploy/langbot, tried with LangBot itself from PyPI: tests/interop_deploy. Part of tools/interop.sh.

deploy_release=4.11.2
deploy_dir=$PWD/build/interop/app-$deploy_release

# LangBot takes any litellm since 1.0; it is held at what LangBot was tried with.
deploy_application() {
    "$deploy_dir/bin/python" -c 'import langbot, pytest, yaml' 2>/dev/null ||
        { /usr/bin/python3 -m venv "$deploy_dir" &&
            "$deploy_dir/bin/python" -m pip install -q "langbot==$deploy_release" 'litellm<1.101' pytest; } \
            >"$deploy_dir.log" 2>&1 || { tail -n 5 "$deploy_dir.log" >&2 && return 1; }
    printf '%s\n' "$deploy_dir/bin/python"
}

drive deploy "$(deploy_application)" tests/interop_deploy
