/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The compiler frees it: a local that owns something is AUTO*, ownership leaves by TAKE_*. */

#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_free(void *p)
{
    free(*(void **)p);
}

static inline void cleanup_close(const int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
}

#define AUTO_FREE __attribute__((cleanup(cleanup_free)))
#define AUTO_CLOSE __attribute__((cleanup(cleanup_close)))

/* For a struct S with S_free(): `AUTO(S) struct S *s = NULL;`. */
#define DEFINE_CLEANUP(name)                                                                       \
    static inline void cleanup_##name(struct name **p)                                             \
    {                                                                                              \
        name##_free(*p);                                                                           \
    }
#define AUTO(name) __attribute__((cleanup(cleanup_##name)))

/* For a struct S on the stack with S_done(): `AUTO_DONE(S) struct S s;`. */
#define DEFINE_CLEANUP_DONE(name)                                                                  \
    static inline void cleanup_done_##name(struct name *p)                                         \
    {                                                                                              \
        name##_done(p);                                                                            \
    }
#define AUTO_DONE(name) __attribute__((cleanup(cleanup_done_##name)))

#define TAKE_PTR(p)                                                                                \
    __extension__({                                                                                \
        __typeof__(p) *take_from = &(p);                                                           \
        __typeof__(p) take_value = *take_from;                                                     \
        *take_from = NULL;                                                                         \
        take_value;                                                                                \
    })

#define TAKE_FD(fd)                                                                                \
    __extension__({                                                                                \
        int *take_from = &(fd);                                                                    \
        int take_value = *take_from;                                                               \
        *take_from = -1;                                                                           \
        take_value;                                                                                \
    })
