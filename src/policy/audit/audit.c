/* SPDX-License-Identifier: Apache-2.0 */

/* Opens the log, appends records, and says whether there is room for more. */

#include "policy/audit/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "policy/audit/audit_internal.h"

#define LOCK_NAME "lock"

static int lock(struct audit *a, int dir_fd, struct err *err)
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
    int r = lock(a, options->dir_fd, err);
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

static int put(struct audit *a, const struct audit_record *record)
{
    AUTO_DONE(buf) struct buf line;
    char head[AUDIT_HASH_LEN + 1];

    buf_init(&line, AUDIT_LINE_MAX + 1);
    int r = audit_format(a, record, a->seq + 1, &line);
    if (r == 0)
        r = audit_line_hash(line.data, line.len, head);
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

/* Where what cannot be recorded must not happen, the last of the room is for the ends of what does:
 * whoever is refused over and over does not use it up. */
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
    int r = put(a, record);

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

const char *audit_head(const struct audit *a)
{
    return a->head;
}

uint64_t audit_lost(const struct audit *a)
{
    return a->lost;
}
