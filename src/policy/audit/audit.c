/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the audit log: opens it where it ended, formats and appends records, rotates its files,
 * and says whether there is room for more. */

#include "policy/audit/audit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "http/codec/crypto.h"
#include "policy/audit/audit_internal.h"
#include "policy/policy.h"
#include "spec/model.h"
#include "spec/profile.h"
#include "spec/spec.h"

/* Files ---------------------------------------------------------------------------------------- */

#define PREFIX "audit-"
#define SUFFIX ".log"

/* The number in the name of a full file; 0: it is none. */
static uint64_t number_of(const char *name)
{
    char digits[21];
    uint64_t n = 0;

    if (!str_starts(name, PREFIX) || strlen(name) != sizeof(PREFIX SUFFIX) - 1 + 20 ||
        !str_ends(name, SUFFIX))
        return 0;
    memcpy(digits, name + sizeof(PREFIX) - 1, 20);
    digits[20] = '\0';
    return str_to_u64(digits, &n) < 0 ? 0 : n;
}

static void name_for(uint64_t first, char ret[static AUDIT_NAME_MAX])
{
    (void)str_fmt(ret, AUDIT_NAME_MAX, PREFIX "%020llu" SUFFIX, (unsigned long long)first);
}

/* Lowest and highest number of the full files, and how many there are. */
struct numbers {
    uint64_t low, high;
    size_t n;
};

static int list_full(int dir_fd, struct numbers *ret)
{
    DIR *dir = fd_opendir(dir_fd);

    *ret = (struct numbers){0};
    if (dir == NULL)
        return -errno;
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        uint64_t n = number_of(e->d_name);
        if (n == 0)
            continue;
        ret->low = ret->n == 0 || n < ret->low ? n : ret->low;
        ret->high = n > ret->high ? n : ret->high;
        ret->n++;
    }
    (void)closedir(dir);
    return 0;
}

/* The last whole line of a file: *ret_len 0 when there is none. *ret_end is where it ends, with its
 * newline. `text` has room for two lines. */
static int last_line(int fd, uint64_t size, struct buf *text, size_t *ret_at, size_t *ret_len,
                     uint64_t *ret_end)
{
    size_t want = size < text->max ? (size_t)size : text->max;
    uint64_t from = size - want;

    buf_reset(text);
    int r = buf_reserve(text, want);
    if (r < 0)
        return r;
    ssize_t n = pread(fd, text->data, want, (off_t)from);
    if (n < 0)
        return -errno;
    text->len = (size_t)n;
    *ret_len = 0;
    const char *end = memrchr(text->data, '\n', text->len);
    *ret_end = end != NULL ? from + (uint64_t)(end - text->data) + 1 : from;
    if (end == NULL)
        return from > 0 ? -EBADMSG : 0;
    const char *before = memrchr(text->data, '\n', (size_t)(end - text->data));
    if (before == NULL && from > 0)
        return -EBADMSG;
    *ret_at = before != NULL ? (size_t)(before + 1 - text->data) : 0;
    *ret_len = (size_t)(end - text->data) - *ret_at;
    return *ret_len > 0 ? 0 : -EBADMSG;
}

/* Takes number and digest from the end of a file. 0; 1: it holds no record; -EBADMSG. */
static int take_end(struct audit *a, int fd, uint64_t size, uint64_t *ret_end)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(2 * (AUDIT_LINE_MAX + 1));
    struct audit_place place;
    size_t at = 0, len = 0;

    int r = last_line(fd, size, &text, &at, &len, ret_end);
    if (r < 0)
        return r;
    if (len == 0)
        return 1;
    r = audit_line_place(text.data + at, len, &place);
    if (r < 0)
        return r;
    a->seq = place.seq;
    return http_sha256_hex(text.data + at, len, a->head);
}

/* The number of a file's first record, by which it will be named when it is full. */
static int take_first(struct audit *a)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(AUDIT_LINE_MAX + 1);
    struct audit_place place;

    (void)buf_reserve(&text, text.max);
    ssize_t n = pread(a->fd, text.data, text.max, 0);
    const char *end = n > 0 ? memchr(text.data, '\n', (size_t)n) : NULL;
    if (end == NULL)
        return -EBADMSG;
    int r = audit_line_place(text.data, (size_t)(end - text.data), &place);
    a->first = place.seq;
    return r;
}

/* The chain goes on from the newest full file. */
static int take_full(struct audit *a)
{
    struct numbers numbers;
    char name[AUDIT_NAME_MAX];
    struct stat st;
    uint64_t end;
    int r = list_full(a->dir_fd, &numbers);

    if (r < 0 || numbers.n == 0)
        return r;
    name_for(numbers.high, name);
    AUTO_CLOSE int fd = openat(a->dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    r = take_end(a, fd, (uint64_t)st.st_size, &end);
    return r > 0 ? -EBADMSG : r;
}

static int open_current(struct audit *a, int flags)
{
    a->fd = openat(a->dir_fd, AUDIT_CURRENT,
                   O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0600);
    return a->fd < 0 ? -errno : 0;
}

/* Out of the way, but not lost: it is evidence. The new chain counts on from the names that are
 * taken, so that its own files find theirs free. */
static int set_aside(struct audit *a)
{
    char name[AUDIT_NAME_MAX];
    struct numbers numbers;
    int r = list_full(a->dir_fd, &numbers);

    if (r < 0)
        return r;
    a->first = a->size = 0;
    a->seq = numbers.high;
    (void)str_copy(a->head, sizeof(a->head), audit_no_head);

    (void)str_fmt(name, sizeof(name), PREFIX "bad-%llu" SUFFIX,
                  (unsigned long long)clock_real(a->options.clock));
    fd_close_many(&a->fd, 1);
    if (renameat(a->dir_fd, AUDIT_CURRENT, a->dir_fd, name) < 0)
        return -errno;
    return open_current(a, O_CREAT | O_EXCL);
}

static int audit_find_end(struct audit *a, uint64_t *ret_dropped, bool *ret_bad, struct err *err)
{
    struct stat st = {0};
    uint64_t end = 0;

    (void)str_copy(a->head, sizeof(a->head), audit_no_head);
    int r = open_current(a, O_CREAT);
    if (r == 0 && fstat(a->fd, &st) < 0)
        r = -errno;
    if (r == 0 && !S_ISREG(st.st_mode))
        r = -EISDIR;
    if (r < 0)
        return err_sys(err, -r, "open " AUDIT_CURRENT);
    r = take_end(a, a->fd, (uint64_t)st.st_size, &end);
    if (r == 0)
        r = take_first(a);
    else if (r == 1)
        r = take_full(a);
    if (r == 0 && end < (uint64_t)st.st_size) {
        *ret_dropped = (uint64_t)st.st_size - end;
        r = ftruncate(a->fd, (off_t)end) < 0 ? -errno : 0;
    }
    a->size = end;
    if (r == -EBADMSG) {
        *ret_bad = true;
        r = set_aside(a);
    }
    return r < 0 ? err_sys(err, -r, "read the end of " AUDIT_CURRENT) : 0;
}

static void remove_old(struct audit *a)
{
    struct numbers numbers;
    char name[AUDIT_NAME_MAX];

    while (a->options.keep_files > 0 && list_full(a->dir_fd, &numbers) == 0 &&
           numbers.n > a->options.keep_files) {
        name_for(numbers.low, name);
        if (unlinkat(a->dir_fd, name, 0) < 0)
            return;
    }
}

/* When no new file can be made, the old one goes on: too long a file is better than none. */
static int audit_rotate(struct audit *a)
{
    char name[AUDIT_NAME_MAX];
    int old = a->fd;

    name_for(a->first, name);
    /* What was reserved and not used is given back. */
    if (ftruncate(old, (off_t)a->size) < 0)
        return -errno;
    a->reserved = a->size;
    if (a->options.sync)
        (void)fsync(old);
    if (renameat2(a->dir_fd, AUDIT_CURRENT, a->dir_fd, name, RENAME_NOREPLACE) < 0)
        return -errno;
    int r = open_current(a, O_CREAT | O_EXCL);
    if (r < 0) {
        a->fd = old;
        (void)renameat(a->dir_fd, name, a->dir_fd, AUDIT_CURRENT);
        return r;
    }
    (void)close(old);
    (void)fsync(a->dir_fd);
    a->first = a->size = a->reserved = 0;
    remove_old(a);
    return 0;
}

/* 0, or -ENOSPC and the like. */
static int audit_reserve(struct audit *a, size_t len)
{
    if (a->no_reserve || a->size + len + AUDIT_RESERVE / 2 <= a->reserved)
        return 0;
    uint64_t want = a->size + len + AUDIT_RESERVE;
    if (fallocate(a->fd, FALLOC_FL_KEEP_SIZE, (off_t)a->size, (off_t)(want - a->size)) < 0) {
        a->no_reserve = errno == EOPNOTSUPP || errno == ENOSYS;
        return a->no_reserve ? 0 : -errno;
    }
    a->reserved = want;
    return 0;
}

int audit_file_of(const struct audit *a, uint64_t number, char ret[static AUDIT_NAME_MAX])
{
    uint64_t at_or_before = 0, after = UINT64_MAX;

    (void)str_copy(ret, AUDIT_NAME_MAX, AUDIT_CURRENT);
    if (a->first != 0 && number >= a->first)
        return 1;
    DIR *dir = fd_opendir(a->dir_fd);
    if (dir == NULL)
        return -errno;
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        uint64_t n = number_of(e->d_name);
        if (n > 0 && n <= number && n > at_or_before)
            at_or_before = n;
        if (n > number && n < after)
            after = n;
    }
    (void)closedir(dir);
    if (at_or_before == 0 && after == UINT64_MAX)
        return a->first != 0 ? 1 : 0;
    name_for(at_or_before > 0 ? at_or_before : after, ret);
    return 1;
}

/* Records -------------------------------------------------------------------------------------- */

#define TEXT_MAX 512U /* bytes of any other text */

static const char *const event_names[AUDIT_EVENT_MAX] = {
    [AUDIT_LOG_BEGIN] = "log_begin",
    [AUDIT_LOG_RECOVERED] = "log_recovered",
    [AUDIT_EXEC_START] = "exec_start",
    [AUDIT_EXEC_END] = "exec_end",
    [AUDIT_DENIED] = "denied",
    [AUDIT_SESSION_CREATE] = "session_create",
    [AUDIT_SESSION_DELETE] = "session_delete",
    [AUDIT_SESSION_STATE] = "session_state",
    [AUDIT_SESSION_END] = "session_end",
    [AUDIT_PROCESS_START] = "process_start",
    [AUDIT_PROCESS_END] = "process_end",
    [AUDIT_FILE_WRITE] = "file_write",
};

static void put_text(struct jw *w, const char *key, const char *text)
{
    if (text == NULL)
        return;
    size_t len = strlen(text);
    jw_kstrn(w, key, text, len > TEXT_MAX ? utf8_boundary(text, TEXT_MAX) : len);
}

/* Its beginning for people, and length and digest so that the whole can be proved later. */
static int put_command(struct jw *w, const struct audit_record *r)
{
    char digest[AUDIT_HASH_LEN + 1];
    size_t kept = r->command_len;

    if (r->command == NULL)
        return 0;
    int e = http_sha256_hex(r->command, r->command_len, digest);
    if (e < 0)
        return e;
    if (kept > AUDIT_COMMAND_MAX)
        kept = utf8_boundary(r->command, AUDIT_COMMAND_MAX);
    jw_kstrn(w, "command", r->command, kept);
    jw_ku64(w, "command_bytes", r->command_len);
    jw_kstr(w, "command_sha256", digest);
    return 0;
}

static void put_decision(struct jw *w, const struct policy_decision *d)
{
    if (d == NULL)
        return;
    jw_kobject(w, "policy");
    jw_kstr(w, "profile", d->profile != NULL ? d->profile->name : NULL);
    jw_karray(w, "overridden");
    for (size_t i = 0; i < SPEC_FIELD_MAX; i++)
        if ((d->overridden & FIELD_BIT(i)) != 0)
            jw_str(w, spec_model.fields[i].name);
    jw_array_end(w);
    jw_kbool(w, "clamped", d->clamped);
    jw_object_end(w);
}

/* The line without its newline. */
static int audit_format(const struct audit *a, const struct audit_record *r, uint64_t seq,
                        struct buf *out)
{
    char when[40];
    struct jw w = JW_INIT(out);

    clock_format(clock_real(a->options.clock), when, sizeof(when));
    jw_object(&w);
    jw_ku64(&w, "seq", seq);
    jw_kstr(&w, "time", when);
    jw_kstr(&w, "prev", a->head);
    jw_kstr(&w, "event", event_names[r->event]);
    put_text(&w, "who", r->who);
    put_text(&w, "via", r->via);
    put_text(&w, "session", r->session);
    put_text(&w, "query", r->query);
    put_text(&w, "process", r->process);
    put_text(&w, "path", r->path);
    int e = put_command(&w, r);
    put_text(&w, "outcome", r->outcome);
    put_text(&w, "reason", r->reason);
    if (r->exit_code != NULL)
        jw_kint(&w, "exit_code", *r->exit_code);
    if (r->duration_ms != NULL)
        jw_ku64(&w, "duration_ms", *r->duration_ms);
    if (r->bytes != NULL) {
        jw_ku64(&w, "stdout_bytes", r->bytes[0]);
        jw_ku64(&w, "stderr_bytes", r->bytes[1]);
    }
    put_decision(&w, r->decision);
    if (a->lost_untold > 0)
        jw_ku64(&w, "lost", a->lost_untold);
    jw_object_end(&w);
    return e < 0 ? e : jw_end(&w);
}

/* The log -------------------------------------------------------------------------------------- */

#define LOCK_NAME "lock"

static int lock_dir(struct audit *a, int dir_fd, struct err *err)
{
    a->dir_fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (a->dir_fd < 0)
        return err_sys(err, errno, "open the directory of the audit log");
    a->lock_fd = openat(a->dir_fd, LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (a->lock_fd < 0)
        return err_sys(err, errno, "open the lock of the audit log");
    if (flock(a->lock_fd, LOCK_EX | LOCK_NB) < 0)
        return err_set(err, ERR_STATE, "another process writes this audit log");
    return 0;
}

/* What happened to the log itself is part of it. */
static int write_begin(struct audit *a, uint64_t dropped, bool bad, struct err *err)
{
    char reason[96] = "";
    struct audit_record r = {.event = AUDIT_LOG_BEGIN};

    if (bad)
        r.reason = "the log before this one was not readable and was set aside";
    if (dropped > 0) {
        r.event = AUDIT_LOG_RECOVERED;
        (void)str_fmt(reason, sizeof(reason), "%llu bytes of an incomplete record were dropped",
                      (unsigned long long)dropped);
        r.reason = reason;
    }
    return a->seq == 0 || bad || dropped > 0 ? audit_write(a, &r, err) : 0;
}

int audit_open(const struct audit_options *options, struct audit **ret, struct err *err)
{
    AUTO(audit) struct audit *a = xnew(struct audit);
    uint64_t dropped = 0;
    bool bad = false;

    a->dir_fd = a->lock_fd = a->fd = -1;
    a->options = *options;
    a->options.dir_fd = -1;
    int r = lock_dir(a, options->dir_fd, err);
    if (r == 0)
        r = audit_find_end(a, &dropped, &bad, err);
    if (r == 0)
        r = write_begin(a, dropped, bad, err);
    if (r == 0)
        *ret = TAKE_PTR(a);
    return r;
}

void audit_free(struct audit *a)
{
    if (a == NULL)
        return;
    /* What was reserved and not used is given back. */
    if (a->fd >= 0 && ftruncate(a->fd, (off_t)a->size) < 0)
        a->error = errno;
    fd_close_many(&a->fd, 1);
    fd_close_many(&a->dir_fd, 1);
    fd_close_many(&a->lock_fd, 1);
    free(a);
}

/* All of it or nothing: a record that was begun is taken back. */
static int append(struct audit *a, const struct buf *line)
{
    if (a->torn && ftruncate(a->fd, (off_t)a->size) < 0)
        return -errno;
    a->torn = false;
    int r = fd_write_all(a->fd, line->data, line->len);
    if (r == 0 && a->options.sync && fdatasync(a->fd) < 0)
        r = -errno;
    if (r < 0)
        a->torn = ftruncate(a->fd, (off_t)a->size) < 0;
    return r;
}

static int put_record(struct audit *a, const struct audit_record *record)
{
    AUTO_DONE(buf) struct buf line = BUF_INIT(AUDIT_LINE_MAX + 1);
    char head[AUDIT_HASH_LEN + 1];

    int r = audit_format(a, record, a->seq + 1, &line);
    if (r == 0)
        r = http_sha256_hex(line.data, line.len, head);
    if (r == 0)
        r = buf_putc(&line, '\n');
    if (r < 0)
        return r;
    if (a->options.max_bytes > 0 && a->size > 0 && a->size + line.len > a->options.max_bytes)
        (void)audit_rotate(a);
    a->full = audit_reserve(a, AUDIT_LINE_MAX) < 0;
    r = append(a, &line);
    if (r < 0) {
        a->full = true;
        return r;
    }
    a->size += line.len;
    a->seq++;
    a->first = a->first == 0 ? a->seq : a->first;
    (void)str_copy(a->head, sizeof(a->head), head);
    a->lost_untold = 0;
    return 0;
}

/* With `refuse`, the last of the room is for the records of what ends: a client that is refused
 * over and over does not use it up. */
static bool has_room_for(struct audit *a, enum audit_event event)
{
    if (!a->options.refuse || !a->full || event != AUDIT_DENIED)
        return true;
    return audit_reserve(a, AUDIT_LINE_MAX) == 0;
}

int audit_write(struct audit *a, const struct audit_record *record, struct err *err)
{
    if (!has_room_for(a, record->event)) {
        a->lost++;
        a->lost_untold++;
        return 0;
    }
    int r = put_record(a, record);

    a->error = -r;
    if (r == 0)
        return 0;
    a->lost++;
    a->lost_untold++;
    if (!a->options.refuse)
        return 0;
    return err_set(err, ERR_LIMIT, "the audit log cannot be written: %s", err_errno_text(-r));
}

int audit_ready(struct audit *a, struct err *err)
{
    if (!a->options.refuse)
        return 0;
    int r = audit_reserve(a, AUDIT_LINE_MAX);
    a->full = r < 0;
    a->error = -r;
    if (r == 0)
        return 0;
    return err_set(err, ERR_LIMIT,
                   "the audit log has no room (%s), and nothing runs that cannot be recorded",
                   err_errno_text(-r));
}

void audit_write_status(const struct audit *a, bool counts, struct jw *w)
{
    jw_object(w);
    if (counts) {
        jw_ku64(w, "records", a->seq);
        jw_kstr(w, "head", a->head);
        jw_ku64(w, "lost", a->lost);
    }
    jw_kbool(w, "full", a->full);
    jw_kstr(w, "on_full", a->options.refuse ? "refuse" : "continue");
    jw_kstr(w, "error", a->error != 0 ? err_errno_text(a->error) : NULL);
    jw_object_end(w);
}

uint64_t audit_count(const struct audit *a)
{
    return a->seq;
}

uint64_t audit_lost(const struct audit *a)
{
    return a->lost;
}
