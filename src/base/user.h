/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Tells root of the host from root of a user namespace. */

#include <stdbool.h>
#include <sys/types.h>

/* Root of the whole machine. Root of a user namespace is an ordinary user with another number. */
bool user_is_host_root(void);

/* What our own effective id is outside of our user namespace. */
uid_t user_outer_id(void);
