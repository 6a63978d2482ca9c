#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# usage: probe_test.sh PROBE RUN_FILTERED GOLDEN
# The probe itself: it must refuse to run on the host, find what a bare bwrap leaves open, find
# nothing of the kernel's surface under our filter, and the kernel must answer every number of the
# sweep as the golden file says. Needs bwrap and user namespaces; TAP output.
# shellcheck disable=SC2016,SC2317 # check calls them
set -u
export LC_ALL=C
probe=$1 filtered=$2 golden=$3
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
chmod 755 "$dir"
cp "$probe" "$dir/probe" && cp "$filtered" "$dir/filtered" || exit 1
n=0 failed=0

check() { # check NAME COMMAND...
    name=$1
    shift
    n=$((n + 1))
    if "$@"; then
        echo "ok $n - $name"
    else
        echo "not ok $n - $name"
        failed=1
    fi
}

host_ns=
for ns in cgroup ipc mnt net pid time user uts; do
    host_ns="$host_ns$ns=$(stat -Lc %i /proc/self/ns/$ns),"
done
host_ns=${host_ns%,}

refuses() { # refuses ARG...: exit status 3 and not a single check
    "$dir/probe" "$@" >"$dir/out" 2>/dev/null
    test $? = 3 && test ! -s "$dir/out"
}
check "refuses without the host's namespaces" refuses all
check "refuses in the host's namespaces" refuses --host-ns="$host_ns" all
if test "$(stat -Lc %i /proc/self/ns/pid)" = $((0xeffffffc)); then
    check "refuses in the initial namespaces whatever it is told" refuses --host-ns=mnt=1,pid=1 sweep
fi
"$dir/probe" --host-ns=mnt=1,pid=x all >/dev/null 2>&1
check "does not take half an answer" test $? = 2

# Root gives itself up first: with the capabilities of the machine the probe would refuse, rightly.
drop=()
test "$(id -u)" != 0 || drop=(setpriv --reuid 65533 --regid 65533 --clear-groups --inh-caps=-all)
sandbox() {
    "${drop[@]}" env -i PATH=/usr/bin:/bin SECRET=tell-nobody bwrap --unshare-all --die-with-parent --clearenv \
        --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc \
        --dev /dev --size 1048576 --tmpfs /tmp --ro-bind "$dir" /box --uid 1000 --gid 1000 --remount-ro / \
        --chdir /tmp -- "$@"
}
if ! sandbox /bin/true 2>/dev/null; then
    echo "# bwrap cannot make a sandbox here: the rest is skipped"
    echo "1..$n"
    exit $failed
fi

ulimit -c 0
line() { grep -q "^$1 $2 " "$dir/out"; }

sandbox /box/probe --host-ns="$host_ns" --secret-reversed=ydobon-llet all >"$dir/out" 2>&1 9</dev/null </dev/null
check "finds new namespaces without a filter" line B01.unshare-user FAIL
check "finds personalities without a filter" line B11.no-randomize FAIL
check "finds threads without a filter" line A04 FAIL
check "finds the environment of PID 1" line A10.environ FAIL
check "finds a secret" line C08.secret FAIL
check "finds a descriptor" line C08.fds FAIL
check "finds a writable /dev" line C05./dev FAIL

sandbox /box/filtered /box/probe --host-ns="$host_ns" kernel >"$dir/out" 2>&1 </dev/null
check "ran to the end" grep -q '^# [0-9]* checks' "$dir/out"
check "finds nothing under the filter" eval '! grep -E "^B[0-9a-z.-]* FAIL" "$dir/out"'
sandbox /box/filtered /box/probe --host-ns="$host_ns" uring >"$dir/out" 2>&1 </dev/null
check "no sockets by way of a ring" line B04b.vsock ok
sandbox /box/filtered /box/probe --host-ns="$host_ns" posture >"$dir/out" 2>&1 </dev/null
check "posture is sorted" sort -c "$dir/out"
check "posture has the filter" grep -q '^self Seccomp 2' "$dir/out"
sandbox /box/probe --host-ns="$host_ns" sweep >"$dir/out" 2>&1 </dev/null
check "does not sweep without a filter" line B20 FAIL

# What is not allowed never reaches the kernel, so there the two must agree on any kernel.
sweep_agrees() {
    sandbox /box/filtered /box/probe --host-ns="$host_ns" sweep >"$dir/out" 2>&1 </dev/null
    awk 'NR == FNR { if ($1 != "#") want[$1] = $3; next }
         { seen++; if (want[$1] != "allow" && want[$1] != $3) { print "# " $0 ", not " want[$1]; bad = 1 } }
         END { exit bad || seen != 601 }' "$golden" "$dir/out"
}
test "$(uname -m)" != x86_64 || check "the kernel agrees with the golden file" sweep_agrees
echo "1..$n"
exit $failed
