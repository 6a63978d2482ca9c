#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# make test: every test that needs only Debian's packages. Goes on after a failure and ends with
# one line, `N passed, N failed, N skipped`.
set -u
cd "$(dirname "$0")/.." || exit 1

python=/usr/bin/python3
jobs=${JOBS:-$(nproc)}
rootless_uid=12345
reports=$PWD/build/reports
stages=()
all="tests --ignore=tests/machine --ignore=tests/interop --ignore=tests/interop_openapi --ignore=tests/interop_deploy --ignore=tests/interop_langbot"
export PYTHONDONTWRITEBYTECODE=1
export ASAN_OPTIONS=${ASAN_OPTIONS:-halt_on_error=1:abort_on_error=1:print_summary=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:abort_on_error=1:print_stacktrace=1}

# stage NAME REPORT COMMAND...
stage() {
    local name=$1 report=$2 status=0
    shift 2
    rm -f "$report"
    printf '\n=== %s\n' "$name"
    "$@" || status=$?
    stages+=("$name:$status:$report")
}

unit_gcc() {
    tools/configure.sh build gcc -Dtests=enabled &&
        ninja -j "$jobs" -C build &&
        meson test -C build --no-rebuild --print-errorlogs --num-processes "$jobs"
}

# Only the unit tests: the sandbox's static PID 1 cannot carry a sanitizer.
unit_asan() {
    tools/configure.sh build-asan clang -Dtests=enabled -Dbuildtype=debug \
        -Db_sanitize=address,undefined -Db_lundef=false &&
        ninja -j "$jobs" -C build-asan unit-tests &&
        meson test -C build-asan --no-rebuild --print-errorlogs --num-processes "$jobs" \
            --suite unit
}

# run_pytest REPORT PATHS PYTEST...: an empty selection is a failure, unless the tree holds no such test.
run_pytest() {
    local report=$1 paths status=0
    read -ra paths <<<"$2"
    shift 2
    "$@" "${paths[@]}" --junit-xml="$report" || status=$?
    if [[ $status == 1 ]]; then
        status=0
        "$python" tools/again.py "$report" "$@" || status=$?
    fi
    if [[ $status == 5 ]] && ! grep -rqs --include='*.py' 'mark\.rootless' tests; then
        echo "no test is marked rootless"
        status=0
    fi
    return "$status"
}

# The same suite as an ordinary user. The report is made here, because that user may write nothing
# else in the tree.
py_rootless() {
    local report=build/reports/pytest-rootless.xml command=("$python" -m pytest -m rootless)
    if ((EUID == 0)); then
        touch "$report" && chown "$rootless_uid" "$report"
        command=(tools/rootless.sh "$rootless_uid" "${command[@]}")
    fi
    run_pytest "$report" "$all" "${command[@]}"
}

# What runs on engines waits for them most of the time, so it runs beside the rest.
py_root() {
    local engines status=0
    run_pytest "$reports/pytest-engines.xml" tests/conformance "$python" -m pytest \
        >"$reports/pytest-engines.log" 2>&1 &
    engines=$!
    run_pytest "$reports/pytest-root.xml" "$all --ignore=tests/conformance" "$python" -m pytest || status=$?
    wait "$engines" || engines_status=$?
    cat "$reports/pytest-engines.log"
    return "$status"
}

mkdir -p "$reports"
stage "unit, gcc" build/meson-logs/testlog.json unit_gcc
stage "unit, clang asan+ubsan" build-asan/meson-logs/testlog.json unit_asan
if ((EUID == 0)); then
    rm -f "$reports"/pytest-engines.*
    engines_status=0
    stage "python, root" "$reports/pytest-root.xml" py_root
    stages+=("python, engines:$engines_status:$reports/pytest-engines.xml")
else
    echo "the python suite needs root; only the tests marked rootless run now"
    echo "0 passed, 0 failed, 1 skipped" >"$reports/pytest-root.log"
    stages+=("python, root:0:$reports/pytest-root.log")
fi
stage "python, ordinary user" "$reports/pytest-rootless.xml" py_rootless

printf '\n=== summary\n'
"$python" tools/summary.py "${stages[@]}"
