/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What boxd must still know after it was killed: an SQLite database in the state directory. Calls
 * are short (tens of microseconds) and run on the loop. Every text that comes back is hostile: a
 * person may have edited the file. */

#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct err;
struct store;

#define STORE_RECORD_MAX (2U << 20) /* bytes of one record */

/* Opens or makes DIR/state.db (0600). A database of a newer version is refused; one that is damaged
 * is set aside under another name, with a warning, and a new one begun. */
int store_open(int dir_fd, struct store **ret, struct err *err); /* dir_fd borrowed */
void store_free(struct store *s);
DEFINE_CLEANUP(store)

/* Records are JSON objects; a session's processes go with it. */
int store_put_session(struct store *s, const char *id, const char *json, size_t len,
                      struct err *err);
/* The same, and it waits for the disk: a power cut does not take the record back. */
int store_put_session_lasting(struct store *s, const char *id, const char *json, size_t len,
                              struct err *err);
int store_put_process(struct store *s, const char *id, const char *process_id, const char *json,
                      size_t len, struct err *err);
int store_set_used(struct store *s, const char *id, uint64_t real_ns, struct err *err);
int store_drop_session(struct store *s, const char *id, struct err *err);
int store_drop_process(struct store *s, const char *id, const char *process_id, struct err *err);
/* Several writes as one: nothing of it is there after a crash in between. */
int store_begin(struct store *s, struct err *err);
int store_commit(struct store *s, struct err *err);
void store_rollback(struct store *s); /* of what was begun; nothing of it is there after */

/* `real_ns`: when a session was used last, or an answer expires; 0 for a process. */
typedef int store_record_fn(void *arg, const char *id, uint64_t real_ns, const char *json,
                            size_t len);
/* Stops at the first negative return and gives it back. */
int store_each_session(struct store *s, store_record_fn *fn, void *arg, struct err *err);
int store_each_process(struct store *s, const char *id, store_record_fn *fn, void *arg,
                       struct err *err);

/* Answers that a repeated request gets again, until they expire; a second one of the same key takes
 * the place of the first. */
int store_put_answer(struct store *s, const char *key, uint64_t expires_real_ns, const char *json,
                     size_t len, struct err *err);
/* Those that have expired, and all but the newest `keep`. */
int store_drop_answers(struct store *s, uint64_t now_real_ns, size_t keep, struct err *err);
int store_drop_answer(struct store *s, const char *key, struct err *err); /* none is fine */
/* Oldest first. */
int store_each_answer(struct store *s, store_record_fn *fn, void *arg, struct err *err);
