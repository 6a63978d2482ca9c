/* SPDX-License-Identifier: Apache-2.0 */

/* The skill actions, each of which is one job of the skill store, and the files that come in pieces
 * ahead of them. The files have no name on our disk, so nothing is left of them when their
 * connection or boxd goes away. */

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
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
    LIST_ENTRY(langbot_file) entry;
    int fd; /* owned */
    int64_t size;
    char key[KEY_MAX + 1];
};

static struct langbot_file *find_file(struct langbot_conn *conn, const char *key)
{
    struct langbot_file *f;
    LIST_FOREACH (f, &conn->files, entry)
        if (str_eq(f->key, key))
            break;
    return f;
}

static void drop_file(struct langbot_conn *conn, struct langbot_file *f)
{
    assert(conn->n_files > 0);
    LIST_REMOVE(f, entry);
    conn->n_files--;
    fd_close_many(&f->fd, 1);
    free(f);
}

void langbot_files_free(struct langbot_conn *conn)
{
    while (!LIST_EMPTY(&conn->files))
        drop_file(conn, LIST_FIRST(&conn->files));
}

/* Its descriptor, owned, or a negative errno. */
static int take_file(struct langbot_conn *conn, const char *key)
{
    struct langbot_file *f = find_file(conn, key);
    if (f == NULL)
        return -ENOENT;
    int fd = TAKE_FD(f->fd);
    drop_file(conn, f);
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
    *ret = find_file(conn, key);
    if (*ret != NULL)
        return 0;
    int fd = conn->rpc->o.spool_fd < 0 ? -ENOENT : open_unnamed(conn->rpc->o.spool_fd);
    if (fd < 0)
        return fd;
    *ret = xnew(struct langbot_file);
    (*ret)->fd = fd;
    (void)str_copy((*ret)->key, sizeof((*ret)->key), key);
    LIST_INSERT_HEAD(&conn->files, *ret, entry);
    conn->n_files++;
    return 0;
}

/* The piece into its file. The call is answered in any case. */
static void store_chunk(struct langbot_call *c, const char *key, bool first, const void *data,
                        size_t len)
{
    struct langbot_file *f = NULL;
    struct langbot_conn *conn = c->conn;
    if (find_file(conn, key) == NULL && conn->n_files >= FILES_MAX) {
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

static const struct json *need_member(struct langbot_call *c, const char *name)
{
    const struct json *v = json_get(c->msg.data, name);
    if (v == NULL)
        langbot_fail(c, LANGBOT_KEY_ERROR, "'%s'", name);
    return v;
}

static void file_chunk(struct langbot_call *c)
{
    unsigned char data[CHUNK_TEXT_MAX / 4 * 3];
    const struct json *key = need_member(c, "file_key");
    const struct json *text = key != NULL ? need_member(c, "chunk_base64") : NULL;
    const struct json *index = text != NULL ? need_member(c, "chunk_index") : NULL;
    const struct json *amount = index != NULL ? need_member(c, "chunk_amount") : NULL;
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
        store_chunk(c, json_str(key), json_int(index) == 0, data, (size_t)len);
}

/* The skills. */

/* The upload, which is used up; owned. -1: the call has failed. */
static int take_upload(struct langbot_call *c)
{
    const struct json *v = json_get(c->msg.data, "file_key");
    const char *key = json_str(v);
    if (v == NULL) {
        langbot_fail(c, LANGBOT_VALIDATION, "'file_key'");
        return -1;
    }
    bool good = key != NULL && strlen(key) == json_str_len(v);
    int fd = good ? take_file(c->conn, key) : -ENOENT;
    if (fd >= 0)
        return fd;
    langbot_fail(c, LANGBOT_VALIDATION, "[Errno %d] %s: '%.255s'", -fd, err_errno_text(-fd),
                 key != NULL ? key : "");
    return -1;
}

static void skill_action(struct langbot_call *c)
{
    enum skills_op op = c->action->skill;
    AUTO_CLOSE int fd = -1;
    struct err err = {0};
    if (c->rpc->o.skills == NULL) {
        langbot_fail(c, LANGBOT_ERROR, "this boxd has no skill store: box-fetch is missing");
        return;
    }
    if (op == SKILLS_PREVIEW_ZIP || op == SKILLS_INSTALL_ZIP) {
        fd = take_upload(c);
        if (fd < 0)
            return;
    }
    if (jobs_skill(langbot_skills(c), c->ns[0] != '\0' ? c->ns : NULL, op, c->msg.data, fd,
                   langbot_on_job, c, &err) < 0)
        langbot_fail_err(c, &err);
}

/* clang-format off */
const struct langbot_action langbot_skill_actions[] = {
    {"__file_chunk", 0, 0, file_chunk},
    {"box_list_skills", LANGBOT_TENANT, LANGBOT_SKILL, skill_action, .skill = SKILLS_LIST},
    {"box_get_skill", LANGBOT_TENANT, LANGBOT_SKILL, skill_action, .skill = SKILLS_GET},
    {"box_create_skill", LANGBOT_TENANT, LANGBOT_SKILL, skill_action, .skill = SKILLS_CREATE},
    {"box_update_skill", LANGBOT_TENANT, LANGBOT_SKILL, skill_action, .skill = SKILLS_UPDATE},
    {"box_delete_skill", LANGBOT_TENANT, LANGBOT_SKILL, skill_action, .skill = SKILLS_DELETE},
    {"box_scan_skill_directory", LANGBOT_TENANT, LANGBOT_SKILL, skill_action, .skill = SKILLS_SCAN},
    {"box_list_skill_files", LANGBOT_TENANT, LANGBOT_SKILL, skill_action, .skill = SKILLS_LIST_FILES},
    {"box_read_skill_file", LANGBOT_TENANT, LANGBOT_SKILL, skill_action, .skill = SKILLS_READ_FILE},
    {"box_write_skill_file", LANGBOT_TENANT, LANGBOT_SKILL, skill_action, .skill = SKILLS_WRITE_FILE},
    {"box_preview_skill_zip", LANGBOT_TENANT, LANGBOT_SKILL, skill_action, .skill = SKILLS_PREVIEW_ZIP},
    {"box_install_skill_zip", LANGBOT_TENANT, LANGBOT_SKILL, skill_action, .skill = SKILLS_INSTALL_ZIP},
    {0},
};
/* clang-format on */
