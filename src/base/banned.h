/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Functions this tree does without; the build puts this file in front of every source. The headers
 * that declare them come first, then each becomes a name that no compiler knows. Only calls are
 * caught (a member may be called `exit`), which is what a macro can do and a poisoned identifier
 * cannot. A file with a reason says #undef and why; tests are built with BOX_ALLOW_BANNED. */

#ifndef BOX_ALLOW_BANNED

#include <alloca.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BANNED(name) name##_is_banned_see_util_banned_h

/* No bound, or a bound that leaves no terminator. */
#undef strcpy
#define strcpy(...) BANNED(strcpy)
#undef strcat
#define strcat(...) BANNED(strcat)
#undef strncpy
#define strncpy(...) BANNED(strncpy)
#undef strncat
#define strncat(...) BANNED(strncat)
#undef sprintf
#define sprintf(...) BANNED(sprintf)
#undef vsprintf
#define vsprintf(...) BANNED(vsprintf)
#undef gets
#define gets(...) BANNED(gets)
#undef alloca
#define alloca(...) BANNED(alloca)

/* Errors that cannot be told from results: str_to_u64() and its kin. */
#undef atoi
#define atoi(...) BANNED(atoi)
#undef atol
#define atol(...) BANNED(atol)
#undef strtol
#define strtol(...) BANNED(strtol)
#undef sscanf
#define sscanf(...) BANNED(sscanf)

/* Hidden static state. */
#undef strtok
#define strtok(...) BANNED(strtok)
#undef strerror
#define strerror(...) BANNED(strerror)
#undef gmtime
#define gmtime(...) BANNED(gmtime)
#undef localtime
#define localtime(...) BANNED(localtime)
#undef basename
#define basename(...) BANNED(basename)
#undef dirname
#define dirname(...) BANNED(dirname)

/* A shell, a descriptor without O_CLOEXEC, unspecified semantics, an end from anywhere, a process
 * that has no owner. */
#undef system
#define system(...) BANNED(system)
#undef popen
#define popen(...) BANNED(popen)
#undef dup
#define dup(...) BANNED(dup)
#undef signal
#define signal(...) BANNED(signal)
#undef exit
#define exit(...) BANNED(exit)
#undef fork
#define fork(...) BANNED(fork)
#undef vfork
#define vfork(...) BANNED(vfork)

#endif
