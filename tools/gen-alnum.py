#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/spec/alnum.c: the characters that Python's str.isalnum() accepts, as ranges.

The names of skills are checked by that rule on the other side of the wire. Run by hand when a new
version of Unicode matters; the output is committed.
"""
import sys
import unicodedata


def ranges():
    first = None
    for code in range(0x110000):
        if chr(code).isalnum():
            if first is None:
                first = code
        elif first is not None:
            yield first, code - 1
            first = None


def main():
    rows = [f'{{0x{a:x}, 0x{b:x}}},' for a, b in ranges()]
    out = [
        '/* SPDX-License-Identifier: Apache-2.0 */',
        '',
        '/* The table of letters and digits. Made by tools/gen-alnum.py from Unicode '
        + unicodedata.unidata_version + ';',
        ' * do not edit. */',
        '',
        '#include "spec/alnum.h"',
        '',
        '/* clang-format off */',
        'const struct alnum_range alnum_ranges[] = {',
    ]
    line = '   '
    for row in rows:
        if len(line) + 1 + len(row) > 120:
            out.append(line)
            line = '   '
        line += ' ' + row
    out += [line, '};', '/* clang-format on */', '', f'const size_t alnum_n_ranges = {len(rows)};']
    sys.stdout.write('\n'.join(out) + '\n')


if __name__ == '__main__':
    main()
