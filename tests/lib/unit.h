/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What every cmocka test includes first; the order is cmocka's. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* cmocka does not say that a failed assertion does not return, so clang-tidy would go on to what
 * cannot be. Only it sees this. */
#ifdef __clang_analyzer__
#include <stdlib.h>
#undef assert_true
#undef assert_non_null
#undef fail_msg
#define assert_true(c) ((c) ? (void)0 : abort())
#define assert_non_null(c) ((c) != NULL ? (void)0 : abort())
#define fail_msg(...) (print_error(__VA_ARGS__), abort())
#endif
