#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# make release: the source archive of HEAD and an archive of the programs that it installs, in
# build/release. Both are made twice, in two directories, and must have the same bytes: nothing in
# them tells when, where or by whom they were built. The digests are in SHA256SUMS.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
export LC_ALL=C TZ=UTC CCACHE_DISABLE=1 # each build compiles
jobs=${JOBS:-$(nproc)}
prefix=${PREFIX:-/usr/local}
out=$PWD/build/release

# The tree may belong to another user than root.
git() { command git -c safe.directory='*' "$@"; }

version=$(sed -n "s/^  version: '\([0-9.]*\)',$/\1/p" meson.build)
commit=$(git rev-parse --short=12 HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct HEAD)
export SOURCE_DATE_EPOCH
name=box-$version
[[ $(git tag --points-at HEAD) == *"v$version"* ]] || name+=+$commit # between releases
[[ -z $(git status --porcelain) ]] || echo "release: files that are not committed are left out" >&2

# archive DIR NAME FILE: the same tree makes the same bytes.
archive() {
    tar -C "$1" --sort=name --format=gnu --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$2" |
        gzip -9n >"$3"
}

# build DIR: the two archives in DIR/out.
build() {
    local src=$1/$name
    mkdir -p "$src" "$1/out"
    git archive HEAD | tar -C "$src" -xf -
    echo "$commit" >"$src/COMMIT"
    archive "$1" "$name" "$1/out/$name.tar.gz" # before there is a build in it
    CC=gcc meson setup "$src/build" "$src" --prefix="$prefix" -Dtests=disabled -Ddebug=false -Doptimization=2 \
        -Dc_args="-ffile-prefix-map=$src=." >"$1/setup.log"
    ninja -j "$jobs" -C "$src/build" --quiet
    BUILD_DIR=$src/build "$src/tools/install.sh" "$prefix" "$1/root"
    ! grep -rlF "$1" "$1/root" || { echo "release: these files name the directory of the build" >&2 && return 1; }
    archive "$1/root" . "$1/out/$name-linux-$(uname -m).tar.gz"
}

rm -rf "$out"
mkdir -p "$out/1" "$out/another-directory"
build "$out/1"
build "$out/another-directory"
if ! diff -r "$out/1/out" "$out/another-directory/out"; then
    echo "release: two builds of the same source differ: compare $out/1/root and $out/another-directory/root" >&2
    exit 1
fi
mv "$out/1/out/"* "$out"
rm -rf "$out/1" "$out/another-directory"
cd "$out" && sha256sum -- *.tar.gz | tee SHA256SUMS
