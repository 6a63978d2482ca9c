#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: tools/install.sh [--uninstall] PREFIX [DESTDIR]
#
# Installs the build (or what $BUILD_DIR names): programs, units, manuals, completion, and
# /etc/box/config.yaml where there is none yet. Into the real root it also makes the system user
# that boxd drops to when root starts it; a staged install (DESTDIR) makes no user.
#
# --uninstall removes what was installed, and the configuration if nobody has changed it. It leaves
# the user, and /var/lib/box with the files of sessions and the audit log.
set -euo pipefail
cd "$(dirname "$0")/.."
uninstall=no
if [[ ${1:-} == --uninstall ]]; then
    uninstall=yes
    shift
fi
prefix=$1
export DESTDIR=${2:-}
build=${BUILD_DIR:-build}
config=$DESTDIR/etc/box/config.yaml

# True when this is the system that is running, and systemd its manager.
live() {
    [[ -z $DESTDIR && -d /run/systemd/system ]] && ((EUID == 0))
}

# Every file and directory of ours, DESTDIR in front.
installed() {
    meson introspect --installed "$build" |
        /usr/bin/python3 -c 'import json, sys; print("\n".join(sorted(set(json.load(sys.stdin).values()))))' |
        while IFS= read -r path; do printf '%s\n' "$DESTDIR$path"; done
}

if [[ $uninstall == yes ]]; then
    if live; then
        systemctl disable --now boxd.service boxd.socket 2>/dev/null || true
    fi
    if cmp -s etc/config.yaml "$config"; then
        rm -f "$config"
        rmdir --ignore-fail-on-non-empty "$DESTDIR/etc/box"
    fi
    installed | while IFS= read -r path; do rm -f -- "$path"; done
    for dir in "$prefix/libexec/box" "$prefix/share/doc/box"; do
        [[ ! -d $DESTDIR$dir ]] || rmdir --ignore-fail-on-non-empty "$DESTDIR$dir"
    done
    live && systemctl daemon-reload
    [[ -n $DESTDIR ]] || echo "uninstall: left the user 'box' and /var/lib/box; remove them when nobody needs them"
    exit 0
fi

if [[ -z $DESTDIR ]] && ((EUID == 0)) && account=$(getent passwd box) && (($(cut -d: -f3 <<<"$account") >= 1000)); then
    echo "install: there is a user 'box' that is a person's (uid 1000 or above): boxd would share its files with that user;" \
        "rename the user, or make a system user 'box' in its place" >&2
    exit 1
fi
if [[ $(meson introspect --buildoptions "$build" |
    /usr/bin/python3 -c 'import json, sys; print(*(o["value"] for o in json.load(sys.stdin) if o["name"] == "prefix"))') != "$prefix" ]]; then
    meson configure "$build" -Dprefix="$prefix"
    ninja -C "$build" >/dev/null
fi
meson install -C "$build" --quiet --no-rebuild
if [[ ! -e $config ]]; then
    install -D -m 0644 etc/config.yaml "$config"
fi

[[ -z $DESTDIR ]] && ((EUID == 0)) || exit 0
if ! getent passwd box >/dev/null; then
    useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin box
    echo "install: made the system user 'box'"
fi
if live; then
    systemctl daemon-reload
    echo "install: \`systemctl enable --now boxd.socket boxd\` starts it; \`systemctl restart boxd\` after an upgrade" \
        "keeps the sessions. \`usermod -aG box USER\` and a new login let an ordinary user use it"
fi
