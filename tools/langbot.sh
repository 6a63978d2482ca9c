#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: tools/langbot.sh offered           the newest releases of langbot-plugin on PyPI, one a line
#        tools/langbot.sh install RELEASE   installs it, once, and prints the path of its Python
#        tools/langbot.sh newest            the newest that can be installed: its Python
#        tools/langbot.sh shared            installs, once, what all releases need
#        tools/langbot.sh application RELEASE   LangBot itself instead, with the langbot-plugin that it pins
#
# Each release has a virtual environment of its own in build/interop, with nothing in it but the release: what it
# needs is the same for all of them and installed once. Fails without PyPI.
set -u
cd "$(dirname "$0")/.." || exit 1

package=langbot-plugin
here=$PWD/build/interop
export PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH
mkdir -p "$here"

# shared: the packages that a release asks for, without the release. What was installed half is installed again.
shared() {
    local dir=$here/langbot-shared
    [[ -e $dir/complete ]] && return
    rm -rf "$dir"
    if ! { /usr/bin/python3 -m venv "$dir" && "$dir/bin/python" -m pip install -q "$package" pytest &&
        "$dir/bin/python" -m pip uninstall -q -y "$package" && touch "$dir/complete"; } >"$dir.log" 2>&1; then
        tail -n 5 "$dir.log" >&2
        echo "what $package needs cannot be installed" >&2
        return 1
    fi
}

offered() {
    local list
    shared || return 1
    list=$("$here/langbot-shared/bin/python" -m pip index versions "$package" 2>"$here/offered.log" |
        sed -n 's/^Available versions: //p' | tr -d ' ' | tr ',' '\n' | head -n 5)
    if [[ -z $list ]]; then
        tail -n 2 "$here/offered.log" >&2
        echo "PyPI cannot be reached: there is no $package" >&2
        return 1
    fi
    printf '%s\n' "$list"
}

# install RELEASE: its own packages come before the shared ones.
install() {
    local dir=$here/langbot-$1 packages
    if [[ ! -e $dir/complete ]]; then
        shared || return 1
        rm -rf "$dir"
        if ! { /usr/bin/python3 -m venv --without-pip "$dir" &&
            packages=$(echo "$dir"/lib/python3*/site-packages) &&
            echo "$here/langbot-shared/${packages#"$dir"/}" >"$packages/shared.pth" &&
            "$here/langbot-shared/bin/python" -m pip --python "$dir/bin/python" install -q --no-deps "$package==$1" &&
            "$dir/bin/python" -c 'import langbot_plugin.box.client'; } >"$dir.log" 2>&1; then
            tail -n 5 "$dir.log" >&2
            echo "$package $1 cannot be installed" >&2
            return 1
        fi
        touch "$dir/complete"
    fi
    printf '%s\n' "$dir/bin/python"
}

# application RELEASE: by uv, which LangBot itself brings along; pip takes minutes to choose among its packages. Any
# litellm is right for it, but the newest do not install beside it.
application() {
    local dir=$here/app-$1 uv=$here/uv
    if ! "$dir/bin/python" -c 'import langbot, pytest' 2>/dev/null; then
        rm -rf "$dir"
        if ! { /usr/bin/python3 -m venv "$uv" && "$uv/bin/python" -m pip install -q uv &&
            "$uv/bin/uv" venv -q --python /usr/bin/python3 "$dir" &&
            SSL_CERT_FILE=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt} "$uv/bin/uv" pip install -q \
                --compile-bytecode --python "$dir/bin/python" "langbot==$1" 'litellm<1.101' pytest; } \
            >"$dir.log" 2>&1; then
            tail -n 5 "$dir.log" >&2
            echo "LangBot $1 cannot be installed" >&2
            return 1
        fi
    fi
    printf '%s\n' "$dir/bin/python"
}

newest() {
    local releases release
    releases=$(offered) || return 1
    for release in $releases; do
        install "$release" && return
    done
    return 1
}

case ${1:-} in
    offered | newest | shared) "$1" ;;
    install | application) "$1" "${2:?which release?}" ;;
    *)
        sed -n '4,8s/^# *//p' "$0" >&2
        exit 2
        ;;
esac
