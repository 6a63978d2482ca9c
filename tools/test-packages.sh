#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# make test-packages: builds the packages and the archives, and tries them. The packages are installed, upgraded, removed and
# purged in an emulated machine with systemd, whose power is cut in between; the archive is installed in an empty root.
set -u
cd "$(dirname "$0")/.." || exit 1
python=/usr/bin/python3
reports=$PWD/build/reports
later=build/deb/later
mkdir -p "$reports"
rm -f "$reports"/packages.xml build/vm/out/junit-*.xml

# The same package with a later version, to upgrade to.
make_later() {
    rm -rf "$later" && mkdir "$later" &&
        dpkg-deb -R build/deb/box_*.deb "$later/tree" &&
        sed -i 's/^Version: .*/&+later/' "$later/tree/DEBIAN/control" &&
        dpkg-deb --root-owner-group -Zgzip -b "$later/tree" "$later/box_later.deb" >/dev/null &&
        rm -r "$later/tree"
}

tools/deb.sh && make_later && tools/release.sh || exit 1
tools=0
"$python" -m pytest -q --junitxml="$reports/packages.xml" tests/tools/test_packages.py tests/tools/test_archive.py || tools=$?
machine=0
# shellcheck disable=SC2016 # VM_BOOT is the guest's.
tools/vm/run --systemd --boots 2 --timeout 480 -- sh -c \
    'exec /usr/bin/python3 -m pytest -q -x --junitxml="$VM_OUT/junit-$VM_BOOT.xml" "tests/machine/test_boot_$VM_BOOT.py"' || machine=$?
boots=("first boot:$machine:build/vm/out/junit-1.xml")
[[ ! -e build/vm/out/junit-2.xml ]] || boots=("first boot:0:build/vm/out/junit-1.xml" "second boot:$machine:build/vm/out/junit-2.xml")
"$python" tools/summary.py "packages:$tools:$reports/packages.xml" "${boots[@]}"
