/* SPDX-License-Identifier: Apache-2.0 */

/* The database of records: opens, checks and upgrades it, sets a damaged one aside, and writes and
 * reads sessions, processes and answers. */

#include "store/store.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"

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
                            "SELECT id, 0, record FROM process WHERE session = ?1 ORDER BY number"},
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

/* What SQLite said, as an error of ours; `doing` names what was tried. Only a few codes mean
 * something to a reader of the message. */
static int store_fail(const struct store *s, const char *doing, struct err *err)
{
    int code = sqlite3_errcode(s->db) & 0xff;
    enum err_code ours = code == SQLITE_FULL || code == SQLITE_TOOBIG ? ERR_LIMIT : ERR_SYSTEM;
    return err_set(err, ours, "state database: %s: %s", doing, sqlite3_errmsg(s->db));
}

static int store_prepare(struct store *s, struct err *err)
{
    for (size_t i = 0; i < STORE_STATEMENT_MAX; i++)
        if (sqlite3_prepare_v3(s->db, texts[i].sql, -1, SQLITE_PREPARE_PERSISTENT,
                               &s->statements[i], NULL) != SQLITE_OK)
            return store_fail(s, texts[i].name, err);
    return 0;
}

/* Opening -------------------------------------------------------------------------------------- */

#define VERSION 2
#define VALUE_MAX (64 << 20) /* SQLite refuses to hold more in one value */
#define BUSY_MS 100          /* another program looks into the file */

#define NAME "state.db"
#define ASIDE "state.db.damaged"

static const char *const suffixes[] = {"", "-wal", "-shm", "-journal"};

/* What SQLite is told before anything is read. The file may have been edited: it brings no code
 * along that would run, and what it says about itself is checked. */
static const char prelude[] = "PRAGMA trusted_schema = OFF;"
                              "PRAGMA cell_size_check = ON;"
                              "PRAGMA locking_mode = EXCLUSIVE;"
                              "PRAGMA synchronous = OFF;" /* until it is made, see below */
                              "PRAGMA journal_mode = WAL;"
                              "PRAGMA foreign_keys = ON;"
                              "PRAGMA temp_store = MEMORY;"
                              "PRAGMA cache_size = -1024;"
                              "PRAGMA journal_size_limit = 4194304;";

/* `number` is the order of first insertion. */
static const char schema[] =
    "BEGIN;"
    "CREATE TABLE session (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,"
    " used INTEGER NOT NULL, record TEXT NOT NULL) STRICT;"
    "CREATE TABLE process (number INTEGER PRIMARY KEY,"
    " session TEXT NOT NULL REFERENCES session (id) ON DELETE CASCADE,"
    " id TEXT NOT NULL, record TEXT NOT NULL, UNIQUE (session, id)) STRICT;"
    "PRAGMA user_version = 1;"
    "COMMIT;";

/* From one version to the next, each as a whole. */
static const char *const upgrades[VERSION] = {
    [0] = schema,
    /* Answers that a repeated request gets again. */
    [1] = "BEGIN;"
          "CREATE TABLE answer (number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE,"
          " expires INTEGER NOT NULL, record TEXT NOT NULL) STRICT;"
          "PRAGMA user_version = 2;"
          "COMMIT;",
};

static int run_sql(struct store *s, const char *doing, const char *sql, struct err *err)
{
    return sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : store_fail(s, doing, err);
}

/* SQLite wants to know the real path and would walk it again for each of its files. Ours may lie
 * below a directory that only root may pass, which we no longer are: a path through our own
 * descriptor leads there all the same, as long as it is not resolved. */
static int keep_path(sqlite3_vfs *vfs, const char *path, int size, char *ret)
{
    return str_copy(ret, (size_t)size, path) < 0 ? SQLITE_CANTOPEN : SQLITE_OK;
}

static const char *own_vfs(void)
{
    static sqlite3_vfs vfs;
    if (vfs.zName == NULL && sqlite3_vfs_find(NULL) != NULL) {
        vfs = *sqlite3_vfs_find(NULL);
        vfs.pNext = NULL;
        vfs.zName = "box";
        vfs.xFullPathname = keep_path;
        (void)sqlite3_vfs_register(&vfs, 0);
    }
    return vfs.zName;
}

/* The file is there, is a file, and is ours alone before SQLite sees it; what SQLite puts beside it
 * gets the same mode. */
static int make_file(int dir_fd, struct err *err)
{
    struct stat st;
    AUTO_CLOSE int fd =
        openat(dir_fd, NAME, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0)
        return err_sys(err, errno, "open the state database " NAME);
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return err_set(err, ERR_INVALID, "the state database " NAME " is not a file");
    if (fchmod(fd, 0600) < 0)
        return err_sys(err, errno, "protect the state database " NAME);
    return 0;
}

static int read_number(struct store *s, const char *sql, int64_t *ret, struct err *err)
{
    sqlite3_stmt *st = NULL;
    int r = 0;
    if (sqlite3_prepare_v2(s->db, sql, -1, &st, NULL) != SQLITE_OK ||
        sqlite3_step(st) != SQLITE_ROW)
        r = store_fail(s, "read", err);
    else
        *ret = sqlite3_column_int64(st, 0);
    (void)sqlite3_finalize(st);
    return r;
}

static int check_sound(struct store *s, struct err *err)
{
    sqlite3_stmt *st = NULL;
    int r = 0;
    if (sqlite3_prepare_v2(s->db, "PRAGMA quick_check(1)", -1, &st, NULL) != SQLITE_OK ||
        sqlite3_step(st) != SQLITE_ROW)
        r = store_fail(s, "check", err);
    else if (!str_eq((const char *)sqlite3_column_text(st, 0), "ok"))
        r = err_set(err, ERR_INVALID, "state database: it is damaged");
    (void)sqlite3_finalize(st);
    return r;
}

static int connect_db(struct store *s, struct err *err)
{
    char path[64];
    (void)str_fmt(path, sizeof(path), "/proc/self/fd/%d/" NAME, s->dir_fd);
    int code = sqlite3_open_v2(
        path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, own_vfs());
    if (s->db == NULL)
        return err_set(err, ERR_LIMIT, "state database: out of memory");
    if (code != SQLITE_OK)
        return store_fail(s, "open", err);
    (void)sqlite3_extended_result_codes(s->db, 1);
    (void)sqlite3_busy_timeout(s->db, BUSY_MS);
    (void)sqlite3_limit(s->db, SQLITE_LIMIT_LENGTH, VALUE_MAX);
    (void)sqlite3_limit(s->db, SQLITE_LIMIT_ATTACHED, 0);
    (void)sqlite3_db_config(s->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    (void)sqlite3_db_config(s->db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    (void)sqlite3_db_config(s->db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
    return run_sql(s, "set up", prelude, err);
}

/* > 0: the database is of a version that we do not know. */
static int open_once(struct store *s, struct err *err)
{
    int64_t version = 0;
    int r = make_file(s->dir_fd, err);
    if (r == 0)
        r = connect_db(s, err);
    if (r == 0)
        r = read_number(s, "PRAGMA user_version", &version, err);
    if (r < 0)
        return r;
    if (version > VERSION) {
        (void)err_set(err, ERR_UNSUPPORTED,
                      "the state database " NAME " was written by a newer boxd (version %lld, this "
                      "one knows %d); use that one, or choose another --state-dir",
                      (long long)version, VERSION);
        return 1;
    }
    if (version != 0)
        r = check_sound(s, err);
    for (; r == 0 && version < VERSION; version++)
        r = version < 0 ? err_set(err, ERR_INVALID, "state database: it is damaged")
                        : run_sql(s, "make the tables", upgrades[version], err);
    /* What is lost of an empty database is made again; waiting for the disk would make every start
     * of a private daemon slow. From here on there is something to lose. */
    if (r == 0)
        r = run_sql(s, "set up", "PRAGMA synchronous = NORMAL", err);
    return r < 0 ? r : store_prepare(s, err);
}

static void close_db(struct store *s)
{
    for (size_t i = 0; i < STORE_STATEMENT_MAX; i++) {
        (void)sqlite3_finalize(s->statements[i]);
        s->statements[i] = NULL;
    }
    (void)sqlite3_close_v2(s->db);
    s->db = NULL;
}

/* One of these is kept: a person may want to look, and the disk stays as full as it is. */
static int set_aside(const struct store *s, struct err *err)
{
    for (size_t i = 0; i < ARRAY_SIZE(suffixes); i++) {
        char from[64], to[64];
        (void)str_fmt(from, sizeof(from), NAME "%s", suffixes[i]);
        (void)str_fmt(to, sizeof(to), ASIDE "%s", suffixes[i]);
        if (renameat(s->dir_fd, from, s->dir_fd, to) < 0 &&
            (errno != ENOENT || (unlinkat(s->dir_fd, to, 0) < 0 && errno != ENOENT)))
            return err_sys(err, errno, "set '%s' aside", from);
    }
    return 0;
}

/* Not when another program holds it, the disk is full or fails, or descriptors are out: then the
 * file is fine, and so is what it says. */
static bool is_damaged(const struct store *s, const struct err *why)
{
    static const int ours[] = {EACCES, EPERM, ELOOP, EISDIR, ENXIO}; /* what is there is no file of
                                                                        ours */
    static const int theirs[] = {SQLITE_ERROR,  SQLITE_CORRUPT, SQLITE_NOTADB,
                                 SQLITE_FORMAT, SQLITE_SCHEMA,  SQLITE_TOOBIG};
    bool found = why->code == ERR_INVALID;
    for (size_t i = 0; s->db == NULL && i < ARRAY_SIZE(ours); i++)
        found = found || why->sys == ours[i];
    for (size_t i = 0; s->db != NULL && i < ARRAY_SIZE(theirs); i++)
        found = found || (sqlite3_errcode(s->db) & 0xff) == theirs[i];
    return found;
}

int store_open(int dir_fd, struct store **ret, struct err *err)
{
    AUTO(store) struct store *s = xnew(struct store);
    struct err why = {0};
    s->dir_fd = fcntl(dir_fd, F_DUPFD_CLOEXEC, 3);
    if (s->dir_fd < 0)
        return err_sys(err, errno, "keep the state directory open");
    int r = open_once(s, &why);
    if (r < 0 && is_damaged(s, &why)) {
        close_db(s);
        r = set_aside(s, err);
        if (r < 0)
            return r;
        log_warn(NULL, "%s; beginning a new one, the old one is now " ASIDE, why.msg);
        r = open_once(s, &why);
    }
    if (r != 0) {
        if (err != NULL)
            *err = why;
        return err_code_errno(why.code);
    }
    *ret = TAKE_PTR(s);
    return 0;
}

void store_free(struct store *s)
{
    if (s == NULL)
        return;
    close_db(s);
    if (s->dir_fd >= 0)
        (void)close(s->dir_fd);
    free(s);
}

/* Records -------------------------------------------------------------------------------------- */

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

static int run_statement(struct store *s, enum store_statement which, struct err *err)
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
    return run_statement(s, STORE_PUT_SESSION, err);
}

int store_put_session_lasting(struct store *s, const char *id, const char *json, size_t len,
                              struct err *err)
{
    int r = run_sql(s, "wait for the disk", "PRAGMA synchronous = FULL", err);
    if (r == 0)
        r = store_put_session(s, id, json, len, err);
    (void)run_sql(s, "set up", "PRAGMA synchronous = NORMAL", NULL);
    return r;
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
    return run_statement(s, STORE_PUT_PROCESS, err);
}

static int64_t sql_time(uint64_t ns)
{
    return ns <= INT64_MAX ? (int64_t)ns : INT64_MAX;
}

int store_set_used(struct store *s, const char *id, uint64_t real_ns, struct err *err)
{
    bind_str(s->statements[STORE_SET_USED], 1, id);
    (void)sqlite3_bind_int64(s->statements[STORE_SET_USED], 2, sql_time(real_ns));
    return run_statement(s, STORE_SET_USED, err);
}

int store_drop_session(struct store *s, const char *id, struct err *err)
{
    bind_str(s->statements[STORE_DROP_SESSION], 1, id);
    return run_statement(s, STORE_DROP_SESSION, err);
}

int store_drop_process(struct store *s, const char *id, const char *process_id, struct err *err)
{
    bind_str(s->statements[STORE_DROP_PROCESS], 1, id);
    bind_str(s->statements[STORE_DROP_PROCESS], 2, process_id);
    return run_statement(s, STORE_DROP_PROCESS, err);
}

int store_begin(struct store *s, struct err *err)
{
    assert(sqlite3_get_autocommit(s->db)); /* they do not nest */
    return run_statement(s, STORE_BEGIN, err);
}

void store_rollback(struct store *s)
{
    if (!sqlite3_get_autocommit(s->db))
        (void)run_statement(s, STORE_ROLLBACK, NULL);
}

int store_commit(struct store *s, struct err *err)
{
    /* Some failures have ended the transaction already; then nothing of it is there. */
    int r = run_statement(s, STORE_COMMIT, err);
    if (r < 0)
        store_rollback(s);
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

/* A name with NUL in it is none of ours: it could not be asked for again. */
static const char *name_column(sqlite3_stmt *st)
{
    size_t len;
    const char *name = column(st, 0, &len);
    return strlen(name) == len ? name : NULL;
}

/* Rows of a name, a time and a record. */
static int each_record(struct store *s, enum store_statement which, store_record_fn *fn, void *arg,
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

int store_each_session(struct store *s, store_record_fn *fn, void *arg, struct err *err)
{
    return each_record(s, STORE_EACH_SESSION, fn, arg, err);
}

int store_each_process(struct store *s, const char *id, store_record_fn *fn, void *arg,
                       struct err *err)
{
    bind_str(s->statements[STORE_EACH_PROCESS], 1, id);
    return each_record(s, STORE_EACH_PROCESS, fn, arg, err);
}

int store_each_answer(struct store *s, store_record_fn *fn, void *arg, struct err *err)
{
    return each_record(s, STORE_EACH_ANSWER, fn, arg, err);
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
    return run_statement(s, STORE_PUT_ANSWER, err);
}

int store_drop_answers(struct store *s, uint64_t now_real_ns, size_t keep, struct err *err)
{
    (void)sqlite3_bind_int64(s->statements[STORE_DROP_ANSWERS], 1, sql_time(now_real_ns));
    (void)sqlite3_bind_int64(s->statements[STORE_DROP_ANSWERS], 2, (int64_t)keep);
    return run_statement(s, STORE_DROP_ANSWERS, err);
}

int store_drop_answer(struct store *s, const char *key, struct err *err)
{
    bind_str(s->statements[STORE_DROP_ANSWER], 1, key);
    return run_statement(s, STORE_DROP_ANSWER, err);
}
