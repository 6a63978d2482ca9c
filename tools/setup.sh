#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: tools/setup.sh PURPOSE...      (build, run, test, bench, interop, vm, deb, lint)
#
# Installs what is missing for these purposes from Debian's own packages. Every name in the table
# exists on bookworm and on trixie. When nothing is missing this is one dpkg-query, and the network
# is left alone.
set -euo pipefail

declare -A packages=(
    [build]="gcc libc6-dev meson ninja-build pkgconf python3 musl-dev libjansson-dev
             libseccomp-dev libsqlite3-dev libssl-dev libyaml-dev zlib1g-dev"
    # What boxd calls at run time: firewall rules, quota images, rootless maps and network.
    [run]="nftables e2fsprogs uidmap slirp4netns"
    # clang and its runtime carry the sanitizers; git to curl are run inside sandboxes; the last line
    # is what the suite starts engines of its own from.
    [test]="libcmocka-dev clang libclang-rt-dev python3-pytest python3-websockets python3-aiohttp
            openssl git nodejs cmake sqlite3 curl iproute2 util-linux procps strace python3-venv
            python3-prometheus-client mandoc man-db xfsprogs btrfs-progs
            zsh fish passt tmux
            busybox-static docker.io podman runc crun tini"
    # The peers; an engine that is running already is left alone.
    [bench]="bubblewrap busybox-static runc crun docker.io podman"
    # Servers and clients of others come from npm and PyPI.
    [interop]="nodejs npm python3-venv git"
    # systemd to curl: the machine's root is a copy of the host's.
    [vm]="qemu-system-x86 qemu-utils busybox-static kmod e2fsprogs xz-utils zstd
          systemd dbus adduser init-system-helpers curl procps"
    # lintian checks the packages.
    [deb]="dpkg-dev git lintian binutils"
    [lint]="clang clang-format clang-tidy cppcheck codespell shellcheck python3-pyflakes git"
)

# From trixie on the client of docker.io is a package of its own.
release=$(sed -n 's/^VERSION_ID="\{0,1\}\([0-9]*\).*/\1/p' /etc/os-release 2>/dev/null) || true
((${release:-0} < 13)) || { packages[bench]+=" docker-cli" && packages[interop]+=" docker-cli"; }
# gVisor: bookworm has it, trixie does not. The tests that need it say so where it is missing.
((${release:-0} != 12)) || packages[test]+=" runsc"
# Node from elsewhere brings an npm of its own, and does not go together with Debian's.
! command -v npm >/dev/null || packages[interop]=${packages[interop]/npm/}

wanted=()
for purpose in "$@"; do
    if [[ -z ${packages[$purpose]:-} ]]; then
        echo "setup: unknown purpose '$purpose' (one of: ${!packages[*]})" >&2
        exit 2
    fi
    # shellcheck disable=SC2206 # the lists are words on purpose
    wanted+=(${packages[$purpose]})
done

if ! command -v dpkg-query >/dev/null; then
    echo "setup: this is not a Debian system; install the equivalents of: ${wanted[*]}" >&2
    exit 1
fi

# Prints the wanted packages that are not fully installed.
missing() {
    local have
    # dpkg-query fails when it does not know one of the names, and still lists the others.
    have=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null |
        sed -n 's/ installed$//p') || true
    printf '%s\n' "${wanted[@]}" | sort -u | grep -vxF -e "$have" || true
}

mapfile -t needed < <(missing)
((${#needed[@]})) || exit 0

install=(apt-get install -y --no-install-recommends "${needed[@]}")
if ((EUID != 0)); then
    {
        echo "setup: missing Debian packages: ${needed[*]}"
        echo "setup: only root can install them; run this, then try again:"
        echo "    sudo apt-get update && sudo ${install[*]}"
    } >&2
    exit 1
fi

# An engine comes with services. Nobody asked for those: what a test or a benchmark needs it starts
# itself, so nothing is started now, or enabled for the next boot. A policy that is there stays.
policy=${BOX_SETUP_ROOT:-}/usr/sbin/policy-rc.d
units=(docker.service docker.socket containerd.service podman.service podman.socket
    podman-restart.service podman-auto-update.service podman-auto-update.timer)
own_policy=
hold_services() {
    [[ " ${needed[*]} " == *" docker.io "* || " ${needed[*]} " == *" podman "* ]] || return 0
    [[ ! -e $policy ]] || return 0
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    own_policy=$policy
}
release_services() {
    [[ -n $own_policy ]] || return 0
    rm -f "$own_policy"
    own_policy=
    local unit
    command -v systemctl >/dev/null || return 0
    for unit in "${units[@]}"; do
        systemctl disable "$unit" >/dev/null 2>&1 || true
    done
}

echo "setup: installing ${needed[*]}"
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 LC_ALL=C
log=$(mktemp)
trap 'rm -f "$log"; release_services' EXIT
hold_services
quiet=(-qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 -o Acquire::Retries=2
    -o Dpkg::Options::=--force-confold)

# A list that failed to load (often a third party's) matters only if a package cannot be found.
apt_once() {
    apt-get "${quiet[@]}" update </dev/null >>"$log" 2>&1 || echo "(apt-get update failed)" >>"$log"
    "${install[@]}" "${quiet[@]}" </dev/null >>"$log" 2>&1
}

if ! apt_once && ! apt_once; then
    {
        tail -n 30 "$log"
        echo "setup: could not install the packages above; the command was:"
        echo "    apt-get update && ${install[*]}"
    } >&2
    exit 1
fi

mapfile -t needed < <(missing)
if ((${#needed[@]})); then
    echo "setup: still missing after apt-get: ${needed[*]}" >&2
    exit 1
fi
