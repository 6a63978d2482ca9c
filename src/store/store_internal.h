/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the store share: the database and its prepared statements. */

#include <sqlite3.h>

#include "store/store.h"

enum store_statement {
    STORE_PUT_SESSION,
    STORE_PUT_PROCESS,
    STORE_SET_USED,
    STORE_DROP_SESSION,
    STORE_DROP_PROCESS,
    STORE_BEGIN,
    STORE_COMMIT,
    STORE_ROLLBACK,
    STORE_EACH_SESSION,
    STORE_EACH_PROCESS,
    STORE_PUT_ANSWER,
    STORE_DROP_ANSWERS,
    STORE_DROP_ANSWER,
    STORE_EACH_ANSWER,
    STORE_STATEMENT_MAX,
};

struct store {
    sqlite3 *db;                                   /* owned */
    sqlite3_stmt *statements[STORE_STATEMENT_MAX]; /* owned */
    int dir_fd; /* owned: SQLite opens its files below it for as long as it lives */
};

/* What SQLite said, as an error of ours. `doing` names what was tried. */
int store_fail(const struct store *s, const char *doing, struct err *err);

/* store.c: all of them, or an error. */
int store_prepare(struct store *s, struct err *err);
