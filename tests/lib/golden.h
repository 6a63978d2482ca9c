/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Compares a text with a file of tests/golden; UPDATE_GOLDEN=1 in the environment writes the file
 * first, for a person to read the difference. Needs golden_dep. */

#include "lib/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN_MAX (1 << 16)

static inline void golden_check(const char *name, const char *got)
{
    static char want[GOLDEN_MAX];
    char path[4096];
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/%s", GOLDEN_DIR, name);
    if (getenv("UPDATE_GOLDEN") != NULL) {
        f = fopen(path, "we");
        assert_non_null(f);
        assert_true(fputs(got, f) >= 0);
        assert_int_equal(fclose(f), 0);
    }
    f = fopen(path, "re");
    if (f == NULL)
        fail_msg("there is no %s; UPDATE_GOLDEN=1 makes it", path);
    want[fread(want, 1, sizeof(want) - 1, f)] = '\0';
    assert_int_equal(fclose(f), 0);
    if (strcmp(got, want) != 0)
        print_error("%s differs; with UPDATE_GOLDEN=1 it is written anew\n", path);
    assert_string_equal(got, want);
}
