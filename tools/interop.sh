#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# make interop: LangBot's own client, unmodified, from PyPI, against boxd. Each release gets a
# virtual environment of its own, kept in build/interop; tests/interop runs once in each of them:
#
#   the first   0.4.0, the first release with a box client; boxd speaks the legacy protocol to it
#   described   0.5.5, the release spec and docs describe; the last line with the skill calls
#   the newest  whatever PyPI offers today; older ones are tried when it cannot be installed
#
# Without PyPI this fails: a client that was not driven is not a client that works. INTEROP_RELEASES
# names other releases, INTEROP_SERVER=upstream drives the runtime of the package instead of boxd.
set -u
cd "$(dirname "$0")/.." || exit 1

package=langbot-plugin
fixed=(0.4.0 0.5.5)
here=$PWD/build/interop
reports=$PWD/build/reports
stages=()
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH
mkdir -p "$here" "$reports"

fail() {
    printf 'interop: %s\n' "$1"
    stages+=("no client:1:/dev/null")
}

finish() {
    printf '\n=== summary\n'
    /usr/bin/python3 tools/summary.py "${stages[@]}"
    exit
}

# environment NAME: makes or finds the virtual environment, prints its directory.
environment() {
    local dir=$here/$1
    [[ -x $dir/bin/python ]] || { rm -rf "$dir" && /usr/bin/python3 -m venv "$dir" >&2; } || return 1
    printf '%s\n' "$dir"
}

# install RELEASE: 0 when the client of that release can be imported.
install() {
    local dir log=$here/$1.log
    dir=$(environment "langbot-$1") || return 1
    [[ -e $dir/complete ]] && return 0
    if "$dir/bin/python" -m pip install -q "$package==$1" pytest >"$log" 2>&1 &&
        "$dir/bin/python" -c 'import langbot_plugin.box.client' >>"$log" 2>&1; then
        touch "$dir/complete"
        return 0
    fi
    tail -n 5 "$log" | sed 's/^/    /'
    return 1
}

# offered: the releases PyPI has for this Python, newest first.
offered() {
    local dir
    dir=$(environment pip) || return 1
    "$dir/bin/python" -m pip index versions "$package" 2>"$here/offered.log" |
        sed -n 's/^Available versions: //p' | tr -d ' ' | tr ',' '\n' | grep .
}

# drive RELEASE WHAT
drive() {
    local status=0 report=$reports/interop-$1.xml
    printf '\n=== langbot-plugin %s: %s\n' "$1" "$2"
    if ! install "$1"; then
        fail "langbot-plugin $1 cannot be installed"
        return
    fi
    rm -f "$report"
    "$here/langbot-$1/bin/python" -m pytest tests/interop -W ignore --junit-xml="$report" || status=$?
    stages+=("langbot-plugin $1:$status:$report")
}

if [[ -n ${INTEROP_RELEASES:-} ]]; then
    for release in $INTEROP_RELEASES; do drive "$release" "asked for"; done
    finish
fi

mapfile -t releases < <(offered)
if ((${#releases[@]} == 0)); then
    tail -n 3 "$here/offered.log" 2>/dev/null
    fail "PyPI cannot be reached: no client to drive boxd with"
    finish
fi
# All at once: most of the time goes into waiting for files.
for release in "${fixed[@]}" "${releases[0]}"; do install "$release" >/dev/null & done
wait
drive "${fixed[0]}" "the first release with a box client, legacy protocol"
drive "${fixed[1]}" "the release that is described"
for release in "${releases[@]:0:5}"; do
    if install "$release"; then
        drive "$release" "the newest"
        break
    fi
    echo "interop: langbot-plugin $release cannot be installed here, trying an older one"
    release=
done
[[ -n $release ]] || fail "none of the newest releases of langbot-plugin can be installed"
finish
