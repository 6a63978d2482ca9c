#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Prints what stands behind the version of the build: "+COMMIT", with "-dirty" where files differ
# from it. The source archive of a release carries the commit in the file COMMIT; in a source tree
# without that file and without git there is none, and nothing is printed.
cd "$(dirname "$0")/.." || exit 1
if [ -f COMMIT ]; then
    commit=$(cat COMMIT)
elif [ -e .git ]; then # no repository around this directory
    # The tree may belong to another user than root.
    commit=$(GIT_OPTIONAL_LOCKS=0 git -c safe.directory='*' describe --always --exclude='*' --abbrev=12 --dirty 2>/dev/null)
fi
[ -z "${commit:-}" ] || printf '+%s\n' "$commit"
