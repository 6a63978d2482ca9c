/* SPDX-License-Identifier: Apache-2.0 */

/* Texts about files: error messages, entity tags, and names of types and changes. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/files.h"
#include "agent/files_internal.h"
#include "base/str.h"

/* Errors of the session's own system calls, as a caller should see them. */
static const struct {
    int error;
    enum err_code code;
    const char *text;
} errors[] = {
    {ENOENT, ERR_NOT_FOUND, "there is no such file or directory"},
    {ENOTDIR, ERR_INVALID, "a part of the path is not a directory"},
    {EISDIR, ERR_INVALID, "it is a directory"},
    {ELOOP, ERR_INVALID, "too many symbolic links, or they change all the time"},
    {ENAMETOOLONG, ERR_INVALID, "the path, or a part of it, is too long"},
    {EINVAL, ERR_INVALID, "the request is not valid for this path"},
    {EACCES, ERR_DENIED, "the session's user may not do that"},
    {EPERM, ERR_DENIED, "the session's user may not do that"},
    {EROFS, ERR_DENIED, "the session has it read-only"},
    {ENOSPC, ERR_LIMIT, "the session's disk is full; nothing was kept"},
    {EDQUOT, ERR_LIMIT, "the session's quota is used up; nothing was kept"},
    {EFBIG, ERR_LIMIT, "the file would be larger than the session may write"},
    {EMFILE, ERR_LIMIT, "too many open files in the session"},
    {ENOMEM, ERR_LIMIT, "the session is out of memory"},
    {EEXIST, ERR_CONFLICT, "it exists already"},
    {ENOTEMPTY, ERR_CONFLICT, "the directory is not empty; ask for it with all it holds"},
    {EBUSY, ERR_CONFLICT, "it is in use, or the top of what can be reached"},
    {EXDEV, ERR_CONFLICT, "it lies on another file system; copy it instead"},
    {ETXTBSY, ERR_CONFLICT, "it is being executed"},
};

static void explain_errno(struct files_failure *f)
{
    for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
        if (errors[i].error == f->error) {
            (void)err_set(&f->err, errors[i].code, "%s", errors[i].text);
            f->err.sys = f->error;
            return;
        }
    }
    (void)err_sys(&f->err, f->error != 0 ? f->error : EIO, "in the session");
}

/* Text from inside, for a person: as far as it is printable. */
static void explain_pattern(struct err *err, const char *text, size_t len)
{
    size_t n = 0;

    while (n < len && n < 200 && (unsigned char)text[n] >= 0x20 && (unsigned char)text[n] < 0x7f)
        n++;
    if (n > 0)
        (void)err_set(err, ERR_INVALID, "%.*s", (int)n, text);
    else
        (void)err_set(err, ERR_INVALID, "the pattern is not valid");
}

void files_explain(struct files_failure *f, const char *text, size_t len)
{
    struct err *err = &f->err;
    unsigned long long n = f->n;

    switch (f->why) {
    case FILES_WHY_ESCAPE:
        (void)err_set(err, ERR_DENIED, "the path leaves the directory that it has to stay in");
        break;
    case FILES_WHY_SPECIAL:
        (void)err_set(err, ERR_INVALID, "it is neither a file nor a directory");
        break;
    case FILES_WHY_CHANGED:
        (void)err_set(err, ERR_CONFLICT, "%s",
                      f->error == EEXIST   ? "it exists already"
                      : f->error == ENOENT ? "it does not exist"
                                           : "it was changed by somebody else meanwhile");
        break;
    case FILES_WHY_RANGE:
        (void)err_set(err, ERR_INVALID, "the range is outside of the file, which has %llu bytes",
                      n);
        break;
    case FILES_WHY_PATTERN:
        explain_pattern(err, text, len);
        break;
    case FILES_WHY_NO_PLACE:
        (void)err_set(err, ERR_NOT_FOUND, "the text is not in the file");
        break;
    case FILES_WHY_PLACES:
        (void)err_set(err, ERR_CONFLICT, "the text is in the file %llu times", n);
        break;
    case FILES_WHY_TOO_LARGE:
        (void)err_set(err, ERR_LIMIT, "the file has more than %llu bytes", n);
        break;
    case FILES_WHY_BUSY:
        (void)err_set(err, ERR_CONFLICT, "a program in the session holds a lock on the directory");
        break;
    case FILES_WHY_CUT_OFF:
        (void)err_set(err, ERR_INVALID, "the content ended too early; nothing was kept");
        break;
    case FILES_WHY_REQUEST:
        (void)err_set(err, ERR_BACKEND, "the session does not understand the request");
        break;
    case FILES_WHY_ERRNO:
    case FILES_WHY_MAX:
        explain_errno(f);
        break;
    }
}

/* Names. */

void files_etag(const struct files_tag *tag, char ret[static FILES_ETAG_SIZE])
{
    (void)snprintf(ret, FILES_ETAG_SIZE, "\"%llx-%llx-%llx-%llx\"", (unsigned long long)tag->ino,
                   (unsigned long long)tag->size, (unsigned long long)tag->mtime_ns,
                   (unsigned long long)tag->ctime_ns);
}

static bool read_hex(const char **s, const char *end, uint64_t *ret)
{
    const char *begin = *s;

    *ret = 0;
    for (; *s < end && *s - begin < 16; (*s)++) {
        char c = **s;
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0)
            break;
        *ret = *ret << 4 | (unsigned)digit;
    }
    return *s > begin;
}

bool files_etag_parse(const char *text, size_t len, struct files_tag *ret)
{
    uint64_t n[4];
    const char *s = text, *end = text + len;

    if (len < 2 || *s++ != '"')
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(n); i++) {
        if (i > 0 && (s >= end || *s++ != '-'))
            return false;
        if (!read_hex(&s, end, &n[i]))
            return false;
    }
    *ret = (struct files_tag){n[0], n[1], (int64_t)n[2], (int64_t)n[3]};
    return s + 1 == end && *s == '"';
}

const char *files_type_name(uint32_t mode)
{
    static const struct {
        uint32_t type;
        const char *name;
    } types[] = {{S_IFREG, "file"},        {S_IFDIR, "directory"}, {S_IFLNK, "symlink"},
                 {S_IFIFO, "fifo"},        {S_IFSOCK, "socket"},   {S_IFCHR, "char_device"},
                 {S_IFBLK, "block_device"}};
    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        if ((mode & S_IFMT) == types[i].type)
            return types[i].name;
    return "unknown";
}

const char *files_change_name(enum files_change c)
{
    static const char *const names[FILES_CHANGE_MAX] = {
        [FILES_CREATED] = "created",   [FILES_MODIFIED] = "modified",
        [FILES_CLOSED] = "closed",     [FILES_ATTRIBUTES] = "attributes",
        [FILES_DELETED] = "deleted",   [FILES_MOVED_FROM] = "moved_from",
        [FILES_MOVED_TO] = "moved_to", [FILES_GONE] = "gone",
        [FILES_OVERFLOW] = "overflow", [FILES_PARTIAL] = "partial"};
    return c > 0 && c < FILES_CHANGE_MAX ? names[c] : NULL;
}

const char *files_cut_name(uint32_t cut)
{
    static const char *const names[FILES_CUT_MAX] = {
        [FILES_CUT_LINES] = "lines",     [FILES_CUT_BYTES] = "bytes",
        [FILES_CUT_ENTRIES] = "entries", [FILES_CUT_MATCHES] = "matches",
        [FILES_CUT_LINE] = "line",       [FILES_CUT_SCAN] = "scan"};
    return cut < FILES_CUT_MAX ? names[cut] : NULL;
}
