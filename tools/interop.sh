#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# make interop: real clients against boxd. The clients come with the wire protocol they speak; what
# tests/interop holds is run here.
set -u
cd "$(dirname "$0")/.." || exit 1
mkdir -p build/reports

if ! compgen -G 'tests/interop/test_*.py' >/dev/null; then
    echo "interop: tests/interop holds no tests: clients arrive with the wire protocol"
    echo "0 passed, 0 failed, 0 skipped"
    exit 0
fi

status=0
report=build/reports/interop.xml
rm -f "$report"
PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -m pytest tests/interop --junit-xml="$report" ||
    status=$?
/usr/bin/python3 tools/summary.py "interop:$status:$report"
