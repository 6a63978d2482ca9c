/* SPDX-License-Identifier: Apache-2.0 */

/* Opens, checks and upgrades the database, and sets a damaged one aside. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "store/store_internal.h"

#define VERSION 2
#define VALUE_MAX (64 << 20) /* SQLite refuses to hold more in one value, whoever put it there */
#define BUSY_MS 100          /* somebody looks into the file with another program */

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
 * descriptor leads there all the same, as long as nobody resolves it. */
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

/* Not when somebody holds it, the disk is full or fails, or descriptors are out: then the file is
 * fine, and so is what it says. */
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
