/* SPDX-License-Identifier: Apache-2.0 */

/* Intrusive lists: those of the C library, two loops that allow the removal of the element at hand,
 * and a hash table of them. */

#pragma once

#include <sys/queue.h>

/* clang's analyzer does not see that a pointer to an element lies in its neighbour or in the head:
 * after a removal it finds the element there again. To it, each element is one that it knows
 * nothing of. */
#ifdef __clang_analyzer__
void *list_unknown(const void *element);
#define LIST_UNKNOWN(element) ((__typeof__(element))list_unknown(element))
#undef LIST_FIRST
#undef LIST_NEXT
#undef LIST_FOREACH
#undef TAILQ_FIRST
#undef TAILQ_NEXT
#undef TAILQ_FOREACH
#define LIST_FIRST(head) LIST_UNKNOWN((head)->lh_first)
#define LIST_NEXT(element, field) LIST_UNKNOWN((element)->field.le_next)
#define LIST_FOREACH(element, head, field)                                                         \
    for ((element) = LIST_FIRST(head); (element) != NULL; (element) = LIST_NEXT(element, field))
#define TAILQ_FIRST(head) LIST_UNKNOWN((head)->tqh_first)
#define TAILQ_NEXT(element, field) LIST_UNKNOWN((element)->field.tqe_next)
#define TAILQ_FOREACH(element, head, field)                                                        \
    for ((element) = TAILQ_FIRST(head); (element) != NULL; (element) = TAILQ_NEXT(element, field))
#endif

/* `next` is read before the body runs: the body may remove and free `element`, but no other
 * element. Where a callback may remove any element, take elements from the head until the list is
 * empty instead. */
#define LIST_FOREACH_SAFE(element, head, field, next)                                              \
    for ((element) = LIST_FIRST(head);                                                             \
         (element) != NULL && ((next) = LIST_NEXT(element, field), 1); (element) = (next))

#define TAILQ_FOREACH_SAFE(element, head, field, next)                                             \
    for ((element) = TAILQ_FIRST(head);                                                            \
         (element) != NULL && ((next) = TAILQ_NEXT(element, field), 1); (element) = (next))

/* A hash table with a fixed number of buckets, each a LIST; choose the number by the cap on
 * elements. A table that is all zero is empty.
 *
 *   TABLE(user, 256) by_name;
 *   TABLE_INSERT(&by_name, str_hash(u->name), u, link);      where link is a LIST_ENTRY(user)
 *   LIST_FOREACH(u, TABLE_BUCKET(&by_name, str_hash(name)), link)
 *   LIST_REMOVE(u, link);
 */
#define TABLE(type, n)                                                                             \
    struct {                                                                                       \
        LIST_HEAD(, type) buckets[n];                                                              \
    }

#define TABLE_BUCKET(table, hash)                                                                  \
    (&(table)->buckets[(hash) % (sizeof((table)->buckets) / sizeof((table)->buckets[0]))])

#define TABLE_INSERT(table, hash, element, field)                                                  \
    LIST_INSERT_HEAD(TABLE_BUCKET(table, hash), element, field)
