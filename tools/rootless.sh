#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: tools/rootless.sh UID COMMAND...      (as root)
#
# Runs a command as an ordinary user: no capabilities, no groups, its own empty home and XDG
# directories, removed afterwards. A checkout may lie where that user cannot go (below /root, say),
# so the tree is bound to a reachable place in a mount namespace of its own, and the command starts
# there. In that namespace alone the user has an account and a range of subordinate ids, for
# newuidmap.
set -euo pipefail
uid=$1
shift
tree=$(realpath "$(dirname "$0")/..")

if [[ ${BOX_ROOTLESS_HOME:-} == "" ]]; then
    # mktemp makes the outer directory 0700; the user needs to walk through it.
    home=$(mktemp -d /tmp/box-rootless.XXXXXX)
    trap 'rm -rf --one-file-system "$home"' EXIT
    chmod 0755 "$home"
    mkdir "$home/tree"
    for d in home tmp run state data cache config; do
        install -d -m 0700 -o "$uid" -g "$uid" "$home/$d"
    done
    BOX_ROOTLESS_HOME=$home unshare --mount --propagation private "$0" "$uid" "$@"
    exit
fi

home=$BOX_ROOTLESS_HOME
mount --bind "$tree" "$home/tree"
add() { # FILE LINE
    [[ -e $1 ]] || return 0
    cp "$1" "$home/etc-${1##*/}"
    echo "$2" >>"$home/etc-${1##*/}"
    chmod 0644 "$home/etc-${1##*/}"
    mount --bind "$home/etc-${1##*/}" "$1"
}
if ! getent passwd "$uid" >/dev/null; then
    add /etc/passwd "boxtest:x:$uid:$uid::$home/home:/bin/sh"
    add /etc/subuid "boxtest:2100000000:65536"
    add /etc/subgid "boxtest:2100000000:65536"
fi
cd "$home/tree"
exec env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 HOME="$home/home" TMPDIR="$home/tmp" XDG_RUNTIME_DIR="$home/run" \
    XDG_STATE_HOME="$home/state" XDG_DATA_HOME="$home/data" XDG_CACHE_HOME="$home/cache" \
    XDG_CONFIG_HOME="$home/config" \
    setpriv --reuid "$uid" --regid "$uid" --clear-groups --inh-caps=-all -- "$@"
