#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# make deb: the packages box and box-doc of HEAD, for the Debian release that this runs on, in build/deb. They are built twice,
# in two directories, and must have the same bytes; their digests are in SHA256SUMS. No network is used.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
export LC_ALL=C TZ=UTC CCACHE_DISABLE=1 # each build compiles
jobs=${JOBS:-$(nproc)}
out=$PWD/build/deb

# The tree may belong to another user than root.
git() { command git -c safe.directory='*' "$@"; }

version=$(sed -n "s/^  version: '\([0-9.]*\)',$/\1/p" meson.build)
commit=$(git rev-parse --short=12 HEAD)
seconds=$(git log -1 --format=%ct HEAD)
release=$(sed -n 's/^VERSION_ID="\{0,1\}\([0-9]*\).*/\1/p' /etc/os-release)
[[ -n $release ]] || { echo "deb: this is no release of Debian; \`make release\` makes archives for other systems" >&2 && exit 1; }
# Between releases the number of commits makes a later version a later one for dpkg, too; what comes
# before the release of that number is older than it.
later=+
[[ -n $(git tag --list "v$version") ]] || later='~'
[[ $(git tag --points-at HEAD) == *"v$version"* ]] || version+=${later}git$(git rev-list --count HEAD).$commit
version+=-1~deb$release
[[ -z $(git status --porcelain) ]] || echo "deb: files that are not committed are left out" >&2

# build DIR: the packages in DIR.
build() {
    local src=$1/box
    mkdir -p "$src"
    git archive HEAD | tar -C "$src" -xf -
    echo "$commit" >"$src/COMMIT"
    cp -r "$src/packaging/debian" "$src/debian"
    cat >"$src/debian/changelog" <<TEXT
box ($version) unstable; urgency=medium

  * Built from commit $commit; changelog.gz has what users notice.

 -- The Box maintainers <maintainers@box.invalid>  $(date -u -R -d "@$seconds")
TEXT
    if ! (cd "$src" && dpkg-buildpackage -b -us -uc -j"$jobs" >"$1/build.log" 2>&1); then
        tail -n 40 "$1/build.log" >&2
        echo "deb: dpkg-buildpackage failed; all of it is in $1/build.log" >&2
        return 1
    fi
}

rm -rf "$out"
mkdir -p "$out/1" "$out/another-directory"
build "$out/1"
build "$out/another-directory"
for deb in "$out/1/"*.deb; do
    if ! cmp "$deb" "$out/another-directory/${deb##*/}"; then
        echo "deb: two builds of the same source differ; both are below $out" >&2
        exit 1
    fi
done
mv "$out/1/"*.deb "$out"
rm -rf "$out/1" "$out/another-directory"
cd "$out"
if command -v lintian >/dev/null; then
    lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs,no-manual-page ./*.deb
else
    echo "deb: lintian is not installed; the packages were not checked by it" >&2
fi
sha256sum -- *.deb | tee SHA256SUMS
