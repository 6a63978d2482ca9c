/* SPDX-License-Identifier: Apache-2.0 */

/* Files that come in pieces ahead of the action that uses them. They have no name on our disk, so
 * nothing is left of them when their connection or we go away. */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "http/codec/crypto.h"

#define KEY_MAX 255
#define CHUNK_MAX 16384
#define CHUNK_TEXT_MAX 21848
#define FILES_MAX 128

struct langbot_file {
    struct langbot_file *next;
    int fd; /* owned */
    int64_t size;
    char key[KEY_MAX + 1];
};

static struct langbot_file **find_file(struct langbot_conn *conn, const char *key)
{
    struct langbot_file **at = &conn->files;
    while (*at != NULL && !str_eq((*at)->key, key))
        at = &(*at)->next;
    return at;
}

static void drop_file(struct langbot_conn *conn, struct langbot_file **at)
{
    struct langbot_file *f = *at;
    *at = f->next;
    conn->n_files--;
    fd_close_many(&f->fd, 1);
    free(f);
}

void langbot_files_free(struct langbot_conn *conn)
{
    while (conn->files != NULL)
        drop_file(conn, &conn->files);
}

int langbot_file_take(struct langbot_conn *conn, const char *key)
{
    struct langbot_file **at = find_file(conn, key);
    if (*at == NULL)
        return -ENOENT;
    int fd = TAKE_FD((*at)->fd);
    drop_file(conn, at);
    return lseek(fd, 0, SEEK_SET) < 0 ? -errno : fd;
}

static bool key_valid(const char *s)
{
    size_t n = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    return s[n] == '\0' && n >= 1 && n <= KEY_MAX && strchr("._-", s[0]) == NULL &&
           strstr(s, "..") == NULL;
}

static int open_unnamed(int dir)
{
    int fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT))
        return fd < 0 ? -errno : fd;
    char name[17]; /* a file system that cannot do it */
    id_random(name);
    fd = openat(dir, name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    (void)unlinkat(dir, name, 0);
    return fd;
}

static int open_file(struct langbot_conn *conn, const char *key, struct langbot_file **ret)
{
    struct langbot_file **at = find_file(conn, key);
    if (*at == NULL) {
        int fd = conn->rpc->o.spool_fd < 0 ? -ENOENT : open_unnamed(conn->rpc->o.spool_fd);
        if (fd < 0)
            return fd;
        *at = xnew(struct langbot_file);
        (*at)->fd = fd;
        (void)str_copy((*at)->key, sizeof((*at)->key), key);
        conn->n_files++;
    }
    *ret = *at;
    return 0;
}

/* The piece into its file. The call is answered in any case. */
static void store(struct langbot_call *c, const char *key, bool first, const void *data, size_t len)
{
    struct langbot_file *f = NULL;
    struct langbot_conn *conn = c->conn;
    if (*find_file(conn, key) == NULL && conn->n_files >= FILES_MAX) {
        langbot_fail(c, LANGBOT_VALUE_ERROR, "Active file transfer capacity reached");
        return;
    }
    int r = open_file(conn, key, &f);
    if (r == 0 && first) {
        f->size = 0;
        r = ftruncate(f->fd, 0) < 0 ? -errno : 0;
    }
    if (r == 0 && f->size + (int64_t)len > conn->file_max) {
        langbot_fail(c, LANGBOT_VALUE_ERROR, "File transfer exceeds the configured size limit");
        return;
    }
    if (r == 0 && lseek(f->fd, f->size, SEEK_SET) < 0)
        r = -errno;
    if (r == 0)
        r = fd_write_all(f->fd, data, len);
    if (r < 0) {
        langbot_fail(c, LANGBOT_OS_ERROR, "[Errno %d] %s", -r, err_errno_text(-r));
        return;
    }
    f->size += (int64_t)len;
    langbot_ok(c);
}

static const struct json *need(struct langbot_call *c, const char *name)
{
    const struct json *v = json_get(c->msg.data, name);
    if (v == NULL)
        langbot_fail(c, LANGBOT_KEY_ERROR, "'%s'", name);
    return v;
}

void langbot_file_chunk(struct langbot_call *c)
{
    unsigned char data[CHUNK_TEXT_MAX / 4 * 3];
    const struct json *key = need(c, "file_key");
    const struct json *text = key != NULL ? need(c, "chunk_base64") : NULL;
    const struct json *index = text != NULL ? need(c, "chunk_index") : NULL;
    const struct json *amount = index != NULL ? need(c, "chunk_amount") : NULL;
    if (amount == NULL)
        return;
    if (json_str(key) == NULL || strlen(json_str(key)) != json_str_len(key) ||
        !key_valid(json_str(key))) {
        langbot_fail(c, LANGBOT_VALUE_ERROR, "Invalid file transfer key");
        return;
    }
    if (json_str(text) == NULL || json_str_len(text) > CHUNK_TEXT_MAX) {
        langbot_fail(c, LANGBOT_VALUE_ERROR, "File transfer chunk exceeds the protocol limit");
        return;
    }
    if (json_type(index) != JSON_INT || json_type(amount) != JSON_INT || json_int(amount) <= 0 ||
        json_int(index) < 0 || json_int(index) >= json_int(amount)) {
        langbot_fail(c, LANGBOT_VALUE_ERROR, "Invalid file chunk position");
        return;
    }
    ssize_t len = http_base64_decode(json_str(text), json_str_len(text), data);
    if (len < 0)
        langbot_fail(c, LANGBOT_BASE64_ERROR, "Only base64 data is allowed");
    else if (len > CHUNK_MAX)
        langbot_fail(c, LANGBOT_VALUE_ERROR, "File transfer chunk exceeds the protocol limit");
    else
        store(c, json_str(key), json_int(index) == 0, data, (size_t)len);
}
