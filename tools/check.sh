#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# make check: what a change needs before it is committed, in less than a minute with a warm build. It builds, runs the
# unit tests, the checks of the tree and the format, and one or two tests of each front. Goes on after a failure, and ends
# with one line, `N passed, N failed, N skipped`, a step each. `make test` and `make lint` stay the whole.
set -u
cd "$(dirname "$0")/.." || exit 1

python=/usr/bin/python3
jobs=${JOBS:-$(nproc)}
passed=0 failed=0
export PYTHONDONTWRITEBYTECODE=1

step() {
    local name=$1
    shift
    printf '=== %s\n' "$name"
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1)) && printf '!!! %s failed\n' "$name"
    fi
}

build() {
    tools/configure.sh build gcc -Dtests=enabled && ninja -j "$jobs" -C build --quiet
}

format() {
    git -c safe.directory='*' ls-files -z --modified --others --exclude-standard -- 'src/*.[ch]' 'tests/*.[ch]' 'tools/*.[ch]' |
        while IFS= read -rd '' f; do [[ ! -f $f ]] || printf '%s\0' "$f"; done |
        xargs -0 -r "$(command -v clang-format-14 || command -v clang-format)" --dry-run -Werror
}

smoke() {
    BOX_TEST_BACKENDS=native timeout 120 "$python" -m pytest -q tests/integration/test_smoke.py \
        tests/integration/test_rpc_sessions.py tests/integration/test_mcp_serve.py tests/conformance/test_chat.py \
        tests/integration/test_cli.py \
        -k 'smoke or T53 or T54 or stdio_speaks or http_modern_statuses or T65 or the_exit_status_is'
}

step build build
step "unit tests" meson test -C build --no-rebuild --quiet --print-errorlogs --num-processes "$jobs" --suite unit
for check in layers sizes heads exports duplicates; do
    step "$check" "$python" "tools/check-$check.py"
done
step format format
step "a smoke of each front" smoke

echo "$passed passed, $failed failed, 0 skipped"
((failed == 0))
