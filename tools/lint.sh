#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# make lint: everything that can be said about the tree without running it. Goes on after a
# finding, and ends with one line, `N passed, N failed, N skipped`, a check each.
set -u
cd "$(dirname "$0")/.." || exit 1

jobs=${JOBS:-$(nproc)}
python=/usr/bin/python3
clang_format_version=14 # one version decides; others differ in details
passed=0 failed=0 skipped=0
mkdir -p build/lint/cppcheck

# The tree may belong to another user than root.
git() { command git -c safe.directory='*' "$@"; }

# files PATTERN...: tracked and new files, none that was deleted or is ignored.
files() {
    git ls-files --cached --others --exclude-standard -- "$@" | sort -u |
        while IFS= read -r f; do [[ -f $f ]] && printf '%s\n' "$f"; done
}

# scripts INTERPRETER: files whose first line names it.
scripts() {
    files | while IFS= read -r f; do
        IFS= read -r line <"$f" 2>/dev/null
        [[ ${line:-} =~ ^#!.*[/\ ]$1([0-9.]*)?( |$) ]] && printf '%s\n' "$f"
    done
}

check() {
    local name=$1 status=0 start=$SECONDS
    shift
    printf '=== %s\n' "$name"
    "$@" || status=$?
    case $status in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)) && printf '!!! %s failed\n' "$name" ;;
    esac
    ((SECONDS - start < 5)) || printf '    (%d s)\n' $((SECONDS - start))
}

# found LABEL TEXT: a check that fails when there is any text.
found() {
    [[ -z $2 ]] && return 0
    printf '%s:\n%s\n' "$1" "$2"
    return 1
}

lint_format() {
    local tool
    tool=$(command -v "clang-format-$clang_format_version" || command -v clang-format)
    if ! "$tool" --version | grep -q "version $clang_format_version\."; then
        echo "skipped: the format is that of clang-format $clang_format_version," \
            "this is $("$tool" --version)"
        return 77
    fi
    found "to be formatted with $tool -i (places)" "$(files 'src/*.[ch]' 'tests/*.[ch]' 'tools/*.[ch]' |
        xargs -r -d '\n' "$tool" --dry-run 2>&1 | sed -n 's/:[0-9:]* warning:.*//p' | sort | uniq -c)"
}

# compile_commands.json of the clang build: gcc's has flags that clang does not know.
lint_tidy() {
    tools/configure.sh build-asan clang -Dtests=enabled -Dbuildtype=debug \
        -Db_sanitize=address,undefined -Db_lundef=false &&
        ninja -C build-asan build.ninja >/dev/null && # meson files may have changed
        ninja -C build-asan -t targets all | sed -n 's/^\(.*\.h\): CUSTOM_COMMAND.*/\1/p' |
        xargs -r ninja -C build-asan --quiet && # headers that are generated
        "$python" tools/tidy.py build-asan build/lint/tidy "$jobs"
}

# BOX_VERSION comes from meson. A variable's own register, `r10 __asm__("r10")`, is a syntax error to
# cppcheck 2.17; without the name of the register it is an ordinary one. It reads no header of the system: of these
# it needs the lists, whose macros declare members.
lint_cppcheck() {
    local lists
    lists=$(gcc -E -M -x c - <<<'#include <sys/queue.h>' | grep -o '[^ ]*/sys/queue\.h')
    cppcheck --include="$lists" --quiet -j "$jobs" --cppcheck-build-dir=build/lint/cppcheck --std=c11 \
        --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
        --suppressions-list=tools/cppcheck.suppress -D_GNU_SOURCE -D__linux__ -D__x86_64__ \
        '-DBOX_VERSION=""' '-D__asm__(text)=' -Isrc src
}

# Every warning of gcc and of its analyzer is an error here. Two are not asked for, which gcc knows
# since 13: it believes that a descriptor it saw opened may be negative when AUTO_CLOSE looks at it,
# and that what dup3() puts at a number has to be kept in a variable, too.
lint_analyzer() {
    local off="-Wno-analyzer-fd-leak -Wno-analyzer-fd-double-close"
    tools/configure.sh build-analyzer gcc -Dwerror=true -Dtests=disabled \
        "-Dc_args=-fanalyzer -DBOX_ANALYZER $off" &&
        ninja -C build-analyzer build.ninja >/dev/null && # meson files may have changed
        ninja -k 0 -j "$jobs" -C build-analyzer --quiet
}

lint_python() {
    local list
    mapfile -t list < <({ files '*.py' && scripts python; } | sort -u)
    if command -v ruff >/dev/null; then
        ruff check --quiet --no-cache --select E9,F "${list[@]}"
    else
        "$python" -m pyflakes "${list[@]}"
    fi
}

lint_shell() {
    { scripts sh && scripts bash; } | sort -u | xargs -r -d '\n' shellcheck
}

lint_spelling() {
    files | grep -vE '^(LICENSE|tests/.*/(golden|corpus)/)' |
        xargs -r -d '\n' codespell --quiet-level=3 --ignore-words=tools/codespell.ignore
}

# Nothing of the machine a change was made on, and no registry's address.
lint_addresses() {
    local top parent text
    top=$(git rev-parse --show-toplevel) && parent=$(dirname "$top")
    text=$(git grep -nIF --untracked "$top/" -- .)
    case $parent in
    / | /tmp | /root | /home | /home/* | /srv | /opt | /mnt | /usr/src) ;;
    *) text+=$(git grep -nIF --untracked "$parent/" -- .) ;;
    esac
    text+=$(git grep -nIE --untracked 'https?://[^/ ]*(npmjs|pypi|golang|debian)\.' -- .)
    found "paths of this machine or addresses of registries" "$text"
}

lint_unfinished() {
    local text # HTTP's own name of status 501 is no promise
    text=$(git grep -nIE --untracked '\b(TODO|FIXME|XXX)\b' -- src tests
        git grep -nIiE --untracked 'not (yet )?implemented|unimplemented' -- src tests |
            grep -v '\b501\b')
    found "unfinished places" "$text"
}

lint_spdx() {
    found "files without an SPDX line" "$(files '*.[ch]' '*.py' '*.sh' |
        xargs -r -d '\n' grep -L 'SPDX-License-Identifier: Apache-2.0' --)"
}

check "layers" "$python" tools/check-layers.py
check "sizes" "$python" tools/check-sizes.py
check "heads" "$python" tools/check-heads.py
check "exports" "$python" tools/check-exports.py
check "duplicates" "$python" tools/check-duplicates.py
check "addresses" lint_addresses
check "unfinished" lint_unfinished
check "licence lines" lint_spdx
check "spelling" lint_spelling
check "python" lint_python
check "shell" lint_shell
check "clang-format" lint_format
check "cppcheck" lint_cppcheck
check "gcc -fanalyzer" lint_analyzer
check "clang-tidy" lint_tidy

echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
