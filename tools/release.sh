#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# make release: the source archive of HEAD and an archive of the programs with an installer, in
# build/release. The programs are linked statically and run on any distribution. Both archives are made
# twice, in two directories, and must have the same bytes: nothing in them tells when, where or by whom
# they were built. The digests are in SHA256SUMS.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
export LC_ALL=C TZ=UTC CCACHE_DISABLE=1 # each build compiles
jobs=${JOBS:-$(nproc)}
prefix=/usr/local # install.sh in the archive takes another
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

# fill DIR: what is in the archive of the programs besides what `make install` has.
fill() {
    install -D packaging/archive/install.sh "$1/share/box/install.sh"
    install -D -m 0644 packaging/apparmor/box-priv "$1/share/box/apparmor/box-priv"
    ln -s share/box/install.sh "$1/install.sh"
    install -m 0644 LICENSE "$1/share/doc/box/LICENSE"
    # shellcheck disable=SC2016 # the braces are dpkg-query's
    dpkg-query -W -f '${Package} ${Version}\n' libc6-dev libjansson-dev libseccomp-dev libsqlite3-dev libssl-dev libyaml-dev \
        musl-dev zlib1g-dev >"$1/share/doc/box/libraries"
    (cd "$1" && { find . -type f -printf '%P\n' && echo share/box/files; } | sort >"$1/../files")
    mv "$1/../files" "$1/share/box/files"
}

# build DIR: the two archives in DIR/out.
build() {
    local src=$1/$name programs
    programs=$name-linux-$(uname -m)
    mkdir -p "$src" "$1/out"
    git archive HEAD | tar -C "$src" -xf -
    echo "$commit" >"$src/COMMIT"
    archive "$1" "$name" "$1/out/$name.tar.gz" # before there is a build in it
    CC=gcc meson setup "$src/build" "$src" --prefix="$prefix" -Dtests=disabled -Ddebug=false -Doptimization=2 -Dstrip=true \
        -Dprefer_static=true -Dc_args="-ffile-prefix-map=$src=." >"$1/setup.log"
    ninja -j "$jobs" -C "$src/build" --quiet
    DESTDIR=$1/root meson install -C "$src/build" --quiet --no-rebuild
    mv "$1/root$prefix" "$1/$programs"
    (cd "$src" && fill "$1/$programs")
    ! grep -rlF "$1" "$1/$programs" || { echo "release: these files name the directory of the build" >&2 && return 1; }
    archive "$1" "$programs" "$1/out/$programs.tar.gz"
}

rm -rf "$out"
mkdir -p "$out/1" "$out/another-directory"
build "$out/1"
build "$out/another-directory"
if ! diff -r "$out/1/out" "$out/another-directory/out"; then
    echo "release: two builds of the same source differ; both are below $out" >&2
    exit 1
fi
mv "$out/1/out/"* "$out"
rm -rf "$out/1" "$out/another-directory"
cd "$out" && sha256sum -- *.tar.gz | tee SHA256SUMS
