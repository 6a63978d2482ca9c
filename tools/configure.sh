#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: tools/configure.sh DIR COMPILER [-DOPTION=VALUE...]
#
# Makes a build directory, or gives an existing one the options it does not have yet (a directory
# that was made before cmocka was installed learns of it this way). Says nothing when all is well.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$1 cc=$2
shift 2
given=$dir/.options # the options of earlier calls, one per line

if [[ ! -f $dir/build.ninja ]]; then
    mkdir -p "$dir"
    if ! CC=$cc meson setup "$dir" "$@" >"$dir/setup.log" 2>&1; then
        tail -n 25 "$dir/setup.log" >&2
        exit 1
    fi
    printf '%s\n' "$@" >"$given"
fi

new=()
for option in "$@"; do
    grep -qsxF -e "$option" "$given" || new+=("$option")
done
if ((${#new[@]})); then
    meson configure "$dir" "${new[@]}"
    printf '%s\n' "${new[@]}" >>"$given"
fi
