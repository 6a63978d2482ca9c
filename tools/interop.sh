#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# make interop: clients that are not ours, against boxd. A client that openapi-python-client makes of
# docs/api/openapi.json (tests/interop_openapi), and LangBot's own, unmodified, from PyPI: tests/interop runs once
# for each of these releases, in a virtual environment of its own:
#
#   0.4.0       the first with a box client; boxd speaks the legacy protocol to it
#   0.5.5       the one docs/protocol.md describes; it has the skill calls
#   the newest  whatever PyPI offers today, and this Python can install
#
# and MCP servers of others, boxed, with the official MCP clients (tests/interop/mcp), and such as npx and uvx download
# when they start (tests/integration/test_mcp_download.py); and our own MCP server with the official clients and tools
# (tests/interop/mcp_serve).
#
# Without PyPI and npm this fails: a client that was not driven is not a client that works. INTEROP_RELEASES
# names other releases; INTEROP_SERVER=upstream drives the runtime of the package instead of boxd.
set -u
cd "$(dirname "$0")/.." || exit 1

reports=$PWD/build/reports
stages=()
export PYTHONDONTWRITEBYTECODE=1
mkdir -p "$reports"

# drive RELEASE PYTHON
drive() {
    local status=0 report=$reports/interop-$1.xml
    printf '\n=== langbot-plugin %s\n' "$1"
    if [[ -z $2 ]]; then
        echo "not installed, see above"
        stages+=("langbot-plugin $1:1:/dev/null")
        return
    fi
    rm -f "$report"
    "$2" -m pytest tests/interop -W ignore --junit-xml="$report" || status=$?
    stages+=("langbot-plugin $1:$status:$report")
}

# What the newest generator on PyPI makes of our document.
drive_openapi() {
    local dir=$PWD/build/interop/openapi report=$reports/interop-openapi.xml status=0
    printf '\n=== openapi-python-client\n'
    rm -f "$report"
    if [[ ! -e $dir/complete ]]; then
        rm -rf "$dir"
        mkdir -p "${dir%/*}"
        if ! { /usr/bin/python3 -m venv "$dir" && "$dir/bin/python" -m pip install -q openapi-python-client pytest &&
            touch "$dir/complete"; } >"$dir.log" 2>&1; then
            tail -n 5 "$dir.log"
            stages+=("openapi-python-client:1:/dev/null")
            return
        fi
    fi
    "$dir/bin/python" -m pytest tests/interop_openapi -W ignore --junit-xml="$report" || status=$?
    stages+=("openapi-python-client:$status:$report")
}

# At once: most of the time goes into waiting for files. What fails says so here, and fails below.
read -ra releases <<<"${INTEROP_RELEASES:-0.4.0 0.5.5}"
for release in "${releases[@]}"; do tools/langbot.sh install "$release" >/dev/null & done
newest=
[[ -n ${INTEROP_RELEASES:-} ]] || newest=$(tools/langbot.sh newest)
wait

for release in "${releases[@]}"; do
    drive "$release" "$(tools/langbot.sh install "$release" 2>/dev/null)"
done
if [[ -z ${INTEROP_RELEASES:-} ]]; then
    name=${newest%/bin/python}
    name=${name##*/langbot-}
    drive "${name:-newest}" "$newest"
    drive_openapi
fi

if [[ -z ${INTEROP_RELEASES:-} ]]; then
    printf '\n=== MCP servers in boxes\n'
    status=0
    mcp=$(tools/mcp-interop.sh) || status=1
    report=$reports/interop-mcp.xml
    rm -f "$report"
    if ((status == 0)); then
        "$mcp/python/.venv/bin/python" -m pytest tests/interop/mcp tests/integration/test_mcp_download.py \
            --confcutdir=tests/interop/mcp -W ignore --junit-xml="$report" || status=$?
    fi
    stages+=("mcp:$status:$report")

    printf '\n=== Box as an MCP server\n'
    report=$reports/interop-mcp-serve.xml
    rm -f "$report"
    status=1
    if [[ -n $mcp ]]; then
        status=0
        "$mcp/python/.venv/bin/python" -m pytest tests/interop/mcp_serve --confcutdir=tests/interop/mcp_serve \
            -W ignore --junit-xml="$report" || status=$?
    fi
    stages+=("mcp serve:$status:$report")
fi

printf '\n=== summary\n'
/usr/bin/python3 tools/summary.py "${stages[@]}"
