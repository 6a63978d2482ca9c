#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: tools/install.sh PREFIX [DESTDIR]
#
# Installs the build, and the system user that boxd drops to when root starts it. A staged install
# (DESTDIR) makes no user.
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$1
export DESTDIR=${2:-}

meson configure build -Dprefix="$prefix"
meson install -C build --quiet

if [[ -z $DESTDIR ]] && ((EUID == 0)) && ! getent passwd box >/dev/null; then
    useradd --system --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin box
    echo "install: made the system user 'box'"
fi
