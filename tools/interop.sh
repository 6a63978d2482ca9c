#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# make interop: clients and servers that are not ours, against boxd. Each part is a file in tools/interop.d, read into
# this shell, which says what it installs and drives; docs/internals/interop.md tells about all of them.
#
# Without PyPI and npm this fails: a client that was not driven is not a client that works.
#
#   INTEROP_ONLY="clients mcp"   only these parts
#   INTEROP_RELEASES="0.5.8"     only the clients, of these releases of langbot-plugin
#   INTEROP_SERVER=upstream      the clients drive the runtime of their package instead of boxd
set -u
cd "$(dirname "$0")/.." || exit 1

parts=(clients langbot openapi mcp mcp_serve deploy)

[[ -z ${INTEROP_RELEASES:-} ]] || INTEROP_ONLY=clients
if [[ -n ${INTEROP_ONLY:-} ]]; then
    read -ra parts <<<"$INTEROP_ONLY"
fi
reports=$PWD/build/reports
stages=$reports/interop.stages
export PYTHONDONTWRITEBYTECODE=1
mkdir -p "$reports" build/interop
: >"$stages"

# title TEXT
title() {
    printf '\n=== %s\n' "$1"
}

# result NAME STATUS [REPORT]: what the summary counts; also from the background.
result() {
    echo "$1:$2:${3:-/dev/null}" >>"$stages"
}

# drive NAME PYTHON PYTEST_ARGUMENT...: the cases of one part, with the interpreter of its environment. No interpreter:
# the environment could not be made, and the part fails.
drive() {
    local name=$1 python=$2 status=0 report=$reports/interop-${1// /-}.xml
    title "$name"
    rm -f "$report"
    if [[ -z $python ]]; then
        echo "not installed, see above"
        result "$name" 1
        return
    fi
    "$python" -m pytest "${@:3}" -W ignore --junit-xml="$report" || status=$?
    result "$name" "$status" "$report"
}

for part in "${parts[@]}"; do
    if [[ ! -e tools/interop.d/$part.sh ]]; then
        title "$part"
        echo "there is no such part; there are: $(cd tools/interop.d && printf '%s ' *.sh | sed 's/\.sh//g')"
        result "$part" 1
        continue
    fi
    # shellcheck source=/dev/null
    source "tools/interop.d/$part.sh"
done

title summary
mapfile -t counted <"$stages"
/usr/bin/python3 tools/summary.py "${counted[@]}"
