#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: install.sh [--prefix DIR] [--destdir DIR] [--uninstall | --purge]
#
# Installs the archive that this script lies in, below /usr/local unless told otherwise, or over an earlier version:
# programs, manuals, completion, /etc/box/config.yaml where there is none yet, the system user and group `box`, units
# where systemd is the manager, and a profile where AppArmor restricts user namespaces. It needs no tool but those of
# busybox, and can be run again at any time.
#
# --uninstall removes what was installed, and leaves /etc/box, /var/lib/box with the files of sessions, and the user.
# --purge removes those as well. The installed copy, PREFIX/share/box/install.sh, does both without the archive.
set -eu
umask 022
here=$(cd "$(dirname "$0")" && pwd)
prefix=/usr/local
case $here in */share/box) prefix=${here%/share/box} ;; esac # the installed copy
destdir=
action=install
say() { echo "install.sh: $*"; }
fail() { echo "install.sh: $*" >&2; exit 1; }

while [ $# -gt 0 ]; do
    case $1 in
    --prefix) prefix=${2:?--prefix needs a directory}; shift ;;
    --destdir) destdir=${2:?--destdir needs a directory}; shift ;;
    --uninstall) action=uninstall ;;
    --purge) action=purge ;;
    --help) sed -n '4,14s/^# \{0,1\}//p' "$0"; exit ;;
    *) fail "unknown option '$1'; --help tells what there is" ;;
    esac
    shift
done
case $prefix in /*) ;; *) fail "the prefix '$prefix' must begin with /" ;; esac
[ "$(id -u)" = 0 ] || [ -n "$destdir" ] || fail "only root can install below '$prefix'; use sudo, or --destdir for a staged installation"

target=$destdir$prefix
list=$target/share/box/files # what was installed, relative to the prefix
config=$destdir/etc/box/config.yaml
profile=$destdir/etc/apparmor.d/box-priv
# True on the system that is running, with systemd as its manager.
live() { [ -z "$destdir" ] && [ -d /run/systemd/system ]; }
known() { grep -q "^box:" "/etc/$1"; }
units() { case $1 in lib/systemd/*) live || [ -n "$destdir" ] ;; esac; }

# Removes the files of the installed list that are not in the list $1.
remove_files() {
    [ -e "$list" ] || return 0
    while IFS= read -r name; do
        grep -qxF -e "$name" "$1" || rm -f "$target/$name"
    done <"$list"
}

install_files() {
    new=$here/share/box/files
    [ -e "$new" ] || fail "'$new' is missing: run this from the unpacked archive"
    remove_files "$new"
    while IFS= read -r name; do
        units "$name" || continue
        mkdir -p "$(dirname "$target/$name")"
        # Beside the old file, then in its place: a program that runs goes on with what it has.
        cp "$here/$name" "$target/$name.new"
        case $name in lib/systemd/*) sed -i "s|/usr/local/|$prefix/|g" "$target/$name.new" ;; esac
        mv -f "$target/$name.new" "$target/$name"
    done <"$new"
    if [ ! -e "$config" ]; then
        mkdir -p "${config%/*}"
        cp "$here/share/doc/box/config.yaml" "$config"
    fi
}

# apparmor OPTION: loads the profile (-r) or takes it away (-R), on a system that uses AppArmor.
apparmor() {
    if [ -z "$destdir" ] && aa-enabled --quiet 2>/dev/null; then
        apparmor_parser "$1" "$profile" || say "AppArmor did not take '$profile'; sessions without root may be refused"
    fi
}

# Hosts that restrict user namespaces know the rule `userns` (AppArmor 4). On others there is nothing to allow.
install_profile() {
    [ -e "$destdir/etc/apparmor.d/abi/4.0" ] || return 0
    sed "s|/usr/libexec/|$prefix/libexec/|" "$here/share/box/apparmor/box-priv" >"$profile"
    apparmor -r
}

# The user that boxd becomes when root starts it, and the group whose members may use it.
make_account() {
    uid=$(sed -n 's/^box:[^:]*:\([0-9]*\):.*/\1/p' /etc/passwd)
    [ "${uid:-0}" -lt 1000 ] ||
        fail "there is a user 'box' that is a person's (uid $uid): boxd would share its files with that user; rename the user"
    if ! known group; then
        if command -v groupadd >/dev/null; then groupadd --system box; else addgroup -S box; fi
    fi
    if ! known passwd; then
        if command -v useradd >/dev/null; then
            useradd --system --gid box --no-create-home --home-dir /nonexistent --shell /sbin/nologin box
        else
            adduser -S -D -H -h /nonexistent -s /sbin/nologin -G box box
        fi
        say "made the system user 'box'"
    fi
}

drop_account() {
    if known passwd; then
        if command -v userdel >/dev/null; then userdel box; else deluser box; fi
    fi
    if known group; then
        if command -v groupdel >/dev/null; then groupdel box; else delgroup box; fi
    fi
}

if [ "$action" = install ]; then
    [ -n "$destdir" ] || make_account
    install_files
    install_profile
    if live; then
        systemctl daemon-reload
        # An upgrade: the sessions of a boxd that runs go on (RestartKillSignal= of the unit).
        systemctl try-restart boxd.service
        at= # elsewhere systemd does not look for units
        case $prefix in /usr | /usr/local) ;; *) at=$prefix/lib/systemd/system/ ;; esac
        say "\`systemctl enable --now ${at}boxd.socket ${at}boxd.service\` starts boxd, now and at every boot"
    elif [ -z "$destdir" ]; then
        say "systemd is not the manager here; start \`$prefix/bin/boxd\` as root from what is"
    fi
    [ -n "$destdir" ] || say "\`box doctor\` tells what this host can enforce. Members of the group 'box' may use the daemon"
    exit 0
fi

[ -e "$list" ] || fail "nothing is installed below '$target'; name the place with --prefix"
! live || systemctl disable --now boxd.service boxd.socket 2>/dev/null || true
if [ -e "$profile" ]; then
    apparmor -R
    rm "$profile"
fi
remove_files /dev/null
for dir in share/box/apparmor share/box share/doc/box libexec/box; do
    [ ! -d "$target/$dir" ] || rmdir "$target/$dir" 2>/dev/null || true
done
! live || systemctl daemon-reload
if [ "$action" = purge ]; then
    for dir in etc/box var/lib/box run/box; do
        # Not over a mount: what an administrator has mounted there is not ours.
        [ -d "$destdir/$dir" ] || continue
        find "$destdir/$dir" -xdev ! -type d -exec rm -f {} +
        find "$destdir/$dir" -xdev -depth -type d -exec rmdir {} + || say "'$destdir/$dir' is not empty: something is mounted in it"
    done
    [ -n "$destdir" ] || drop_account
else
    say "left /etc/box, /var/lib/box and the user 'box'"
fi
