#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What the newest openapi-python-client on PyPI makes of docs/api/openapi.json (tests/interop_openapi).
# Part of tools/interop.sh.

# Prints the path of its Python.
install_openapi() {
    local dir=$PWD/build/interop/openapi
    if [[ ! -e $dir/complete ]]; then
        rm -rf "$dir"
        if ! { /usr/bin/python3 -m venv "$dir" && "$dir/bin/python" -m pip install -q openapi-python-client pytest &&
            touch "$dir/complete"; } >"$dir.log" 2>&1; then
            tail -n 5 "$dir.log" >&2
            return
        fi
    fi
    echo "$dir/bin/python"
}

drive openapi-python-client "$(install_openapi)" tests/interop_openapi
