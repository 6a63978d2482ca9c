/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What every cmocka test includes first; the order is cmocka's. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
