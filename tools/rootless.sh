#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: tools/rootless.sh UID COMMAND...      (as root)
#
# Runs a command as an ordinary user who has no account: no capabilities, no groups, its own empty
# home and XDG directories, removed afterwards. A checkout may lie where that user cannot go (below
# /root, say), so the tree is bound to a reachable place in a mount namespace of its own, and the
# command starts there.
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
cd "$home/tree"
exec env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 HOME="$home/home" TMPDIR="$home/tmp" XDG_RUNTIME_DIR="$home/run" \
    XDG_STATE_HOME="$home/state" XDG_DATA_HOME="$home/data" XDG_CACHE_HOME="$home/cache" \
    XDG_CONFIG_HOME="$home/config" \
    setpriv --reuid "$uid" --regid "$uid" --clear-groups --inh-caps=-all -- "$@"
