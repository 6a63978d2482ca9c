/* SPDX-License-Identifier: Apache-2.0 */

/* The SQL statements of the store, and writing and reading of its records. */

#include "store/store.h"

#include <assert.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "store/store_internal.h"

static const struct {
    const char *name; /* for errors */
    const char *sql;
} texts[STORE_STATEMENT_MAX] = {
    [STORE_PUT_SESSION] = {"write a session's record",
                           "INSERT INTO session (id, used, record) VALUES (?1, 0, ?2)"
                           " ON CONFLICT (id) DO UPDATE SET record = excluded.record"},
    [STORE_PUT_PROCESS] = {"write a process's record",
                           "INSERT INTO process (session, id, record) VALUES (?1, ?2, ?3)"
                           " ON CONFLICT (session, id) DO UPDATE SET record = excluded.record"},
    [STORE_SET_USED] = {"write when a session was used",
                        "UPDATE session SET used = ?2 WHERE id = ?1"},
    [STORE_DROP_SESSION] = {"drop a session's record", "DELETE FROM session WHERE id = ?1"},
    [STORE_DROP_PROCESS] = {"drop a process's record",
                            "DELETE FROM process WHERE session = ?1 AND id = ?2"},
    [STORE_BEGIN] = {"begin a transaction", "BEGIN IMMEDIATE"},
    [STORE_COMMIT] = {"commit a transaction", "COMMIT"},
    [STORE_ROLLBACK] = {"give up a transaction", "ROLLBACK"},
    [STORE_EACH_SESSION] = {"read the sessions' records",
                            "SELECT id, used, record FROM session ORDER BY number"},
    [STORE_EACH_PROCESS] = {"read the processes' records",
                            "SELECT id, record FROM process WHERE session = ?1 ORDER BY number"},
    [STORE_PUT_ANSWER] = {"write an answer",
                          "INSERT INTO answer (key, expires, record) VALUES (?1, ?2, ?3)"
                          " ON CONFLICT (key) DO UPDATE SET expires = excluded.expires,"
                          " record = excluded.record"},
    [STORE_DROP_ANSWERS] = {"drop answers",
                            "DELETE FROM answer WHERE expires <= ?1 OR number <="
                            " (SELECT number FROM answer ORDER BY number DESC LIMIT 1 OFFSET ?2)"},
    [STORE_DROP_ANSWER] = {"drop an answer", "DELETE FROM answer WHERE key = ?1"},
    [STORE_EACH_ANSWER] = {"read the answers",
                           "SELECT key, expires, record FROM answer ORDER BY number"},
};

/* Only a few codes mean something to whoever reads the message. */
int store_fail(const struct store *s, const char *doing, struct err *err)
{
    int code = sqlite3_errcode(s->db) & 0xff;
    enum err_code ours = code == SQLITE_FULL || code == SQLITE_TOOBIG ? ERR_LIMIT : ERR_SYSTEM;
    return err_set(err, ours, "state database: %s: %s", doing, sqlite3_errmsg(s->db));
}

int store_prepare(struct store *s, struct err *err)
{
    for (size_t i = 0; i < STORE_STATEMENT_MAX; i++)
        if (sqlite3_prepare_v3(s->db, texts[i].sql, -1, SQLITE_PREPARE_PERSISTENT,
                               &s->statements[i], NULL) != SQLITE_OK)
            return store_fail(s, texts[i].name, err);
    return 0;
}

/* Ready for the next use, and what was bound is let go. The error, if any, was told by step. */
static void reset(sqlite3_stmt *st)
{
    (void)sqlite3_reset(st);
    (void)sqlite3_clear_bindings(st);
}

/* Texts are borrowed for the call, which is shorter than their lives. A failure sticks and is told
 * by the step that follows: a parameter that was not bound is NULL, which no column takes. */
static void bind_text(sqlite3_stmt *st, int at, const char *text, size_t len)
{
    (void)sqlite3_bind_text64(st, at, text, len, SQLITE_STATIC, SQLITE_UTF8);
}

static void bind_str(sqlite3_stmt *st, int at, const char *text)
{
    bind_text(st, at, text, strlen(text));
}

static int run(struct store *s, enum store_statement which, struct err *err)
{
    sqlite3_stmt *st = s->statements[which];
    int r = sqlite3_step(st) == SQLITE_DONE ? 0 : store_fail(s, texts[which].name, err);
    reset(st);
    return r;
}

static int check_size(size_t len, struct err *err)
{
    if (len > STORE_RECORD_MAX)
        return err_set(err, ERR_LIMIT, "a record of %zu bytes is too large to be kept; at most %u",
                       len, STORE_RECORD_MAX);
    return 0;
}

int store_put_session(struct store *s, const char *id, const char *json, size_t len,
                      struct err *err)
{
    int r = check_size(len, err);
    if (r < 0)
        return r;
    bind_str(s->statements[STORE_PUT_SESSION], 1, id);
    bind_text(s->statements[STORE_PUT_SESSION], 2, json, len);
    return run(s, STORE_PUT_SESSION, err);
}

int store_put_process(struct store *s, const char *id, const char *process_id, const char *json,
                      size_t len, struct err *err)
{
    int r = check_size(len, err);
    if (r < 0)
        return r;
    bind_str(s->statements[STORE_PUT_PROCESS], 1, id);
    bind_str(s->statements[STORE_PUT_PROCESS], 2, process_id);
    bind_text(s->statements[STORE_PUT_PROCESS], 3, json, len);
    return run(s, STORE_PUT_PROCESS, err);
}

static int64_t sql_time(uint64_t ns)
{
    return ns <= INT64_MAX ? (int64_t)ns : INT64_MAX;
}

int store_set_used(struct store *s, const char *id, uint64_t real_ns, struct err *err)
{
    bind_str(s->statements[STORE_SET_USED], 1, id);
    (void)sqlite3_bind_int64(s->statements[STORE_SET_USED], 2, sql_time(real_ns));
    return run(s, STORE_SET_USED, err);
}

int store_drop_session(struct store *s, const char *id, struct err *err)
{
    bind_str(s->statements[STORE_DROP_SESSION], 1, id);
    return run(s, STORE_DROP_SESSION, err);
}

int store_drop_process(struct store *s, const char *id, const char *process_id, struct err *err)
{
    bind_str(s->statements[STORE_DROP_PROCESS], 1, id);
    bind_str(s->statements[STORE_DROP_PROCESS], 2, process_id);
    return run(s, STORE_DROP_PROCESS, err);
}

int store_begin(struct store *s, struct err *err)
{
    assert(sqlite3_get_autocommit(s->db)); /* they do not nest */
    return run(s, STORE_BEGIN, err);
}

int store_commit(struct store *s, struct err *err)
{
    /* Some failures have ended the transaction already; then nothing of it is there. */
    int r = run(s, STORE_COMMIT, err);
    if (r < 0 && !sqlite3_get_autocommit(s->db))
        (void)run(s, STORE_ROLLBACK, NULL);
    return r;
}

/* NUL-terminated, whatever it holds, or NULL. What is longer than a record can be comes back as
 * nothing, which no reader of records accepts. */
static const char *column(sqlite3_stmt *st, int at, size_t *ret_len)
{
    const char *text = (const char *)sqlite3_column_text(st, at);
    int len = sqlite3_column_bytes(st, at);
    if (text == NULL || len < 0 || (size_t)len > STORE_RECORD_MAX) {
        *ret_len = 0;
        return "";
    }
    *ret_len = (size_t)len;
    return text;
}

/* A name with NUL in it is none of ours: nobody could ask for it again. */
static const char *name_column(sqlite3_stmt *st)
{
    size_t len;
    const char *name = column(st, 0, &len);
    return strlen(name) == len ? name : NULL;
}

/* Rows of a name, a time and a record. */
static int each_dated(struct store *s, enum store_statement which, store_session_fn *fn, void *arg,
                      struct err *err)
{
    sqlite3_stmt *st = s->statements[which];
    int r = 0, code;
    while (r >= 0 && (code = sqlite3_step(st)) != SQLITE_DONE) {
        if (code != SQLITE_ROW) {
            r = store_fail(s, texts[which].name, err);
            break;
        }
        size_t len;
        const char *json = column(st, 2, &len), *id = name_column(st);
        int64_t when = sqlite3_column_int64(st, 1);
        if (id != NULL)
            r = fn(arg, id, when > 0 ? (uint64_t)when : 0, json, len);
    }
    reset(st);
    return r < 0 ? r : 0;
}

int store_each_session(struct store *s, store_session_fn *fn, void *arg, struct err *err)
{
    return each_dated(s, STORE_EACH_SESSION, fn, arg, err);
}

int store_each_answer(struct store *s, store_session_fn *fn, void *arg, struct err *err)
{
    return each_dated(s, STORE_EACH_ANSWER, fn, arg, err);
}

int store_put_answer(struct store *s, const char *key, uint64_t expires_real_ns, const char *json,
                     size_t len, struct err *err)
{
    sqlite3_stmt *st = s->statements[STORE_PUT_ANSWER];
    int r = check_size(len, err);
    if (r < 0)
        return r;
    bind_str(st, 1, key);
    (void)sqlite3_bind_int64(st, 2, sql_time(expires_real_ns));
    bind_text(st, 3, json, len);
    return run(s, STORE_PUT_ANSWER, err);
}

int store_drop_answers(struct store *s, uint64_t now_real_ns, size_t keep, struct err *err)
{
    (void)sqlite3_bind_int64(s->statements[STORE_DROP_ANSWERS], 1, sql_time(now_real_ns));
    (void)sqlite3_bind_int64(s->statements[STORE_DROP_ANSWERS], 2, (int64_t)keep);
    return run(s, STORE_DROP_ANSWERS, err);
}

int store_drop_answer(struct store *s, const char *key, struct err *err)
{
    bind_str(s->statements[STORE_DROP_ANSWER], 1, key);
    return run(s, STORE_DROP_ANSWER, err);
}

int store_each_process(struct store *s, const char *id, store_process_fn *fn, void *arg,
                       struct err *err)
{
    sqlite3_stmt *st = s->statements[STORE_EACH_PROCESS];
    int r = 0, code;
    bind_str(st, 1, id);
    while (r >= 0 && (code = sqlite3_step(st)) != SQLITE_DONE) {
        if (code != SQLITE_ROW) {
            r = store_fail(s, texts[STORE_EACH_PROCESS].name, err);
            break;
        }
        size_t len;
        const char *json = column(st, 1, &len), *name = name_column(st);
        if (name != NULL)
            r = fn(arg, name, json, len);
    }
    reset(st);
    return r < 0 ? r : 0;
}
