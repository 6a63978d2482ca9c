#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# make fuzz: a short libFuzzer run of every target, FUZZ_SECONDS (20) each, or FUZZ_WIRES for those that
# read what a peer sends in its very first bytes, from the seeds in tests/fuzz/corpus. Inputs found on the way stay in build-fuzz/corpus, crashes in
# build-fuzz/crashes; a crash that was mended belongs in tests/fuzz/corpus.
set -u
cd "$(dirname "$0")/.." || exit 1

tools/configure.sh build-fuzz clang -Dfuzz=true -Dtests=disabled \
    -Dc_args=-fsanitize=fuzzer-no-link -Db_sanitize=address,undefined -Db_lundef=false || exit
ninja -j "${JOBS:-$(nproc)}" -C build-fuzz fuzzers || exit

mkdir -p build-fuzz/crashes build-fuzz/status
rm -f build-fuzz/status/*

# fuzz_one TARGET: its exit status is left in build-fuzz/status.
fuzz_one() {
    local name=${1##*/fuzz_} found=build-fuzz/corpus/${1##*/fuzz_} seconds=${FUZZ_SECONDS:-20}
    case $name in
    http1 | http_server | init_wire | priv | proxy | record | rpc | rpc_framing | ws | zip) seconds=${FUZZ_WIRES:-$seconds} ;;
    esac
    mkdir -p "$found"
    UBSAN_OPTIONS=halt_on_error=1 "$1" -max_total_time="$seconds" -timeout=5 \
        -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="build-fuzz/crashes/$name-" \
        "$found" "tests/fuzz/corpus/$name" >"build-fuzz/$name.log" 2>&1
    echo $? >"build-fuzz/status/$name"
}

running=0
for target in build-fuzz/tests/fuzz/fuzz_*; do
    [[ -f $target && -x $target ]] || continue
    if ((running >= ${JOBS:-$(nproc)})); then
        wait -n
        running=$((running - 1))
    fi
    fuzz_one "$target" &
    running=$((running + 1))
done
wait

passed=0 failed=0
for status in build-fuzz/status/*; do
    name=${status##*/}
    printf '=== %s\n' "$name"
    if [[ $(<"$status") == 0 ]]; then
        grep -E 'executed_units|peak_rss' "build-fuzz/$name.log"
        passed=$((passed + 1))
    else
        tail -n 60 "build-fuzz/$name.log"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed, 0 skipped"
((failed == 0 && passed > 0))
