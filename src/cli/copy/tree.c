/* SPDX-License-Identifier: Apache-2.0 */

/* `box cp -r`: directories into a session and out of it, file by file. What a session lists is
 * hostile: its names are checked, everything is made beneath a directory descriptor, nothing that
 * exists here is replaced or followed, and devices are never made. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/copy/copy_internal.h"
#include "cli/io/app.h"
#include "cli/io/text.h"
#include "http/codec/crypto.h"

#define TREE_DEPTH_MAX 100
#define TREE_ENTRIES_MAX 1000000
#define LIST_LIMIT 1000
#define PATH_SIZE_MAX 4096

struct copy_tree {
    struct app *app;     /* borrowed */
    const char *session; /* borrowed */
    size_t n_entries;
    size_t n_skipped; /* told on standard error */
};

static void skip(struct copy_tree *t, const char *path, const char *why)
{
    text_say("skipped '%s': %s", path, why);
    t->n_skipped++;
}

static int count_entry(struct copy_tree *t, size_t depth, const char *path, struct err *err)
{
    if (depth > TREE_DEPTH_MAX || strlen(path) >= PATH_SIZE_MAX)
        return err_set(err, ERR_LIMIT, "'%.80s...' is more than %d directories or %d bytes deep",
                       path, TREE_DEPTH_MAX, PATH_SIZE_MAX);
    if (++t->n_entries > TREE_ENTRIES_MAX)
        return err_set(err, ERR_LIMIT, "more than %d files", TREE_ENTRIES_MAX);
    return 0;
}

static char *join_path(const char *dir, const char *name)
{
    return xasprintf("%s%s%s", dir, str_ends(dir, "/") ? "" : "/", name);
}

/* "directory", "file", ... of what is at a path inside; "" when there is nothing, with what boxd
 * says of that in err. */
static int stat_inside(struct copy_tree *t, const char *path, char type[static 32], struct err *err)
{
    AUTO_DONE(buf) struct buf target = BUF_INIT(4 * 8192);
    AUTO_DONE(buf) struct buf body = BUF_INIT(1 << 20);
    AUTO(json) struct json *entry = NULL;

    type[0] = '\0';
    copy_put_target(&target, t->session, "stat", path);
    (void)buf_puts(&target, "&follow=1");
    int r = app_call(t->app, "GET", buf_str(&target), &body, err);
    if (r < 0 && r != -EINTR && err->code == ERR_NOT_FOUND)
        return 0;
    if (r >= 0)
        r = json_parse(buf_str(&body), body.len, &entry, err);
    if (r >= 0)
        text_cut(type, 32, json_str(json_get(entry, "type")));
    return r;
}

/* In. */

/* A call with a body that is written by jw; the answer. */
static int post(struct copy_tree *t, const char *what, const struct buf *request, struct json **ret,
                struct err *err)
{
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s/%s", t->session, what);
    AUTO_DONE(buf) struct buf body = BUF_INIT(1 << 20);
    const struct app_request req = {.method = "POST",
                                    .target = target,
                                    .type = "application/json",
                                    .body = buf_str(request),
                                    .body_len = request->len};
    int r = app_send(t->app, &req, &body, err);

    return r < 0 ? r : json_parse(buf_str(&body), body.len, ret, err);
}

static int make_dir_inside(struct copy_tree *t, const char *path, struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(8 * PATH_SIZE_MAX);
    AUTO(json) struct json *answer = NULL;
    struct jw w = JW_INIT(&text);

    jw_object(&w);
    jw_kstr(&w, "op", "mkdir");
    jw_kstr(&w, "path", path);
    jw_object_end(&w);
    int r = jw_end(&w);
    return r < 0 ? err_sys(err, -r, "'%s'", path) : post(t, "files", &text, &answer, err);
}

/* boxd has no call that makes links: `ln` inside does it. */
static int make_link_inside(struct copy_tree *t, const char *target, const char *path,
                            struct err *err)
{
    const char *const words[] = {"ln", "-sfn", "--", target, path};
    AUTO_DONE(buf) struct buf text = BUF_INIT(16 * PATH_SIZE_MAX);
    AUTO(json) struct json *answer = NULL;
    struct jw w = JW_INIT(&text);

    jw_object(&w);
    jw_karray(&w, "argv");
    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        jw_str(&w, words[i]);
    jw_array_end(&w);
    jw_object_end(&w);
    int r = jw_end(&w);
    r = r < 0 ? err_sys(err, -r, "'%s'", path) : post(t, "exec", &text, &answer, err);
    const struct json *code = json_get(answer, "exit_code");
    if (r >= 0 && (json_type(code) != JSON_INT || json_int(code) != 0))
        r = err_set(err, ERR_BACKEND, "cannot make the link '%s' inside", path);
    return r;
}

static int send_dir(struct copy_tree *t, int dir_fd, const char *local, const char *inside,
                    size_t depth, struct err *err);

static int send_link(struct copy_tree *t, int dir_fd, const char *name, const char *inside,
                     struct err *err)
{
    char target[PATH_SIZE_MAX];
    ssize_t n = readlinkat(dir_fd, name, target, sizeof(target) - 1);

    if (n < 0)
        return err_sys(err, errno, "'%s'", inside);
    target[n] = '\0';
    if (!utf8_valid(target, (size_t)n)) {
        skip(t, inside, "it leads to a name that is not valid UTF-8");
        return 0;
    }
    return make_link_inside(t, target, inside, err);
}

/* What changes its kind meanwhile is not followed. */
static int send_entry(struct copy_tree *t, int dir_fd, const char *name, const char *paths[2],
                      size_t depth, struct err *err)
{
    const char *local = paths[0], *inside = paths[1];
    struct stat st;
    int r = count_entry(t, depth, inside, err);

    if (r < 0)
        return r;
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(err, errno, "'%s'", local);
    if (!utf8_valid(name, strlen(name)) && !S_ISREG(st.st_mode)) {
        skip(t, local, "its name is not valid UTF-8");
        return 0;
    }
    if (S_ISLNK(st.st_mode))
        return send_link(t, dir_fd, name, inside, err);
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
        skip(t, local, "it is no file, directory or link");
        return 0;
    }
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return err_sys(err, errno, "'%s'", local);
    if (S_ISDIR(st.st_mode))
        return send_dir(t, fd, local, inside, depth, err);
    return copy_fd_in(t->app, fd, local, &(struct copy_place){t->session, inside}, err);
}

/* Takes dir_fd. */
static int send_dir(struct copy_tree *t, int dir_fd, const char *local, const char *inside,
                    size_t depth, struct err *err)
{
    DIR *dir = fdopendir(dir_fd);
    struct dirent *entry;

    if (dir == NULL) {
        (void)close(dir_fd);
        return err_sys(err, errno, "'%s'", local);
    }
    int r = make_dir_inside(t, inside, err);
    while (r >= 0 && (errno = 0, entry = readdir(dir)) != NULL) {
        if (str_eq(entry->d_name, ".") || str_eq(entry->d_name, ".."))
            continue;
        AUTO_FREE char *here = join_path(local, entry->d_name);
        AUTO_FREE char *there = join_path(inside, entry->d_name);
        const char *paths[2] = {here, there};
        r = send_entry(t, dirfd(dir), entry->d_name, paths, depth + 1, err);
    }
    if (r >= 0 && errno != 0)
        r = err_sys(err, errno, "'%s'", local);
    (void)closedir(dir);
    return r;
}

/* The name that a tree keeps when it is put into a directory; "" for "DIR/.", whose content goes
 * there. */
static char *tree_name(const char *path)
{
    AUTO_FREE char *copy = xstrdup(path);
    size_t len = strlen(copy);

    if (str_eq(copy, ".") || str_ends(copy, "/."))
        return xstrdup("");
    while (len > 1 && copy[len - 1] == '/')
        copy[--len] = '\0';
    return xstrdup(copy_last_part(copy));
}

static int tree_status(const struct copy_tree *t, int r)
{
    return r < 0 ? r : t->n_skipped > 0 ? STATUS_FAILED : 0;
}

int copy_tree_in(struct app *app, const char *local, const struct copy_place *to, struct err *err)
{
    struct copy_tree t = {.app = app, .session = to->session};
    AUTO_FREE char *name = tree_name(local);
    char type[32];
    int r = stat_inside(&t, to->path, type, err);

    if (r < 0)
        return r;
    bool into = str_eq(type, "directory");
    if (type[0] != '\0' && !into)
        return err_set(err, ERR_INVALID, "'%s' is there already, and no directory", to->path);
    AUTO_FREE char *inside =
        into && name[0] != '\0' ? join_path(to->path, name) : xstrdup(to->path);
    int fd = open(local, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0) {
        r = err_sys(err, errno, "'%s'", local);
        if (fd >= 0)
            (void)close(fd);
        return r;
    }
    r = S_ISDIR(st.st_mode)
            ? send_dir(&t, fd, local, inside, 0, err)
            : copy_fd_in(app, fd, local, &(struct copy_place){to->session, inside}, err);
    return tree_status(&t, r);
}

/* Out. */

/* The name of an entry, which may be no UTF-8; NULL for one that is no name. */
static char *entry_name(const struct json *entry)
{
    const char *text = json_str(json_get(entry, "name"));
    const char *base64 = json_str(json_get(entry, "name_base64"));
    char *name = NULL;

    if (base64 != NULL) {
        size_t len = strlen(base64);
        name = xcalloc(1, len + 1);
        ssize_t n = http_base64_decode(base64, len, (unsigned char *)name);
        name[n > 0 ? n : 0] = '\0';
    } else if (text != NULL && json_str_len(json_get(entry, "name")) == strlen(text)) {
        name = xstrdup(text);
    }
    if (name == NULL || name[0] == '\0' || strchr(name, '/') != NULL || str_eq(name, ".") ||
        str_eq(name, "..")) {
        free(name);
        return NULL;
    }
    return name;
}

static mode_t entry_mode(const struct json *entry)
{
    const char *text = json_str(json_get(entry, "mode"));
    mode_t mode = 0;

    for (; text != NULL && *text >= '0' && *text <= '7'; text++)
        mode = (mode << 3 | (mode_t)(*text - '0')) & 07777;
    return mode & 0777;
}

static int receive_dir(struct copy_tree *t, int parent_fd, const char *name, const char *paths[2],
                       size_t depth, struct err *err);

static int receive_entry(struct copy_tree *t, int dir_fd, const struct json *entry,
                         const char *dirs[2], size_t depth, struct err *err)
{
    const char *type = json_str(json_get(entry, "type"));
    const char *target = json_str(json_get(entry, "target"));
    AUTO_FREE char *name = entry_name(entry);

    if (name == NULL)
        return err_set(err, ERR_BACKEND, "boxd lists a name that no file can have");
    AUTO_FREE char *local = join_path(dirs[0], name);
    AUTO_FREE char *inside = join_path(dirs[1], name);
    const char *paths[2] = {local, inside};
    int r = count_entry(t, depth, inside, err);
    if (r < 0)
        return r;
    if (str_eq(type, "directory"))
        return receive_dir(t, dir_fd, name, paths, depth, err);
    if (str_eq(type, "symlink") && target != NULL && json_get(entry, "target_base64") == NULL)
        return symlinkat(target, dir_fd, name) < 0 ? err_sys(err, errno, "'%s'", local) : 0;
    if (!str_eq(type, "file")) {
        skip(t, inside, "it is no file, directory or link with a plain name");
        return 0;
    }
    int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    entry_mode(entry));
    if (fd < 0)
        return err_sys(err, errno, "'%s'", local);
    return copy_fd_out(t->app, fd, local, &(struct copy_place){t->session, inside}, err);
}

/* A page of a list; *after is the last name in it, NULL when there are no more. */
static int receive_page(struct copy_tree *t, int dir_fd, const char *dirs[2], char **after,
                        size_t depth, struct err *err)
{
    AUTO_DONE(buf) struct buf target = BUF_INIT(8 * 8192);
    AUTO_DONE(buf) struct buf body = BUF_INIT(APP_BODY_MAX);
    AUTO(json) struct json *list = NULL;

    copy_put_target(&target, t->session, "list", dirs[1]);
    (void)buf_printf(&target, "&limit=%d", LIST_LIMIT);
    if (*after != NULL) {
        (void)buf_puts(&target, "&after=");
        copy_put_escaped(&target, *after);
    }
    int r = app_call(t->app, "GET", buf_str(&target), &body, err);
    if (r >= 0)
        r = json_parse(buf_str(&body), body.len, &list, err);
    const struct json *entries = json_get(list, "entries");
    size_t n = json_len(entries);
    for (size_t i = 0; i < n && r >= 0; i++)
        r = receive_entry(t, dir_fd, json_at(entries, i), dirs, depth + 1, err);
    free(TAKE_PTR(*after));
    if (r >= 0 && n > 0 && json_bool(json_get(list, "truncated")))
        *after = entry_name(json_at(entries, n - 1));
    return r;
}

/* The directory must be new: nothing that is there is replaced, and no link that an earlier copy
 * has brought is followed. */
static int receive_dir(struct copy_tree *t, int parent_fd, const char *name, const char *paths[2],
                       size_t depth, struct err *err)
{
    if (mkdirat(parent_fd, name, 0777) < 0) {
        if (errno != EEXIST)
            return err_sys(err, errno, "'%s'", paths[0]);
        return err_set(err, ERR_CONFLICT, "'%s' exists; remove it, or choose another place",
                       paths[0]);
    }
    AUTO_CLOSE int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return err_sys(err, errno, "'%s'", paths[0]);
    AUTO_FREE char *after = NULL;
    int r;
    do
        r = receive_page(t, fd, paths, &after, depth, err);
    while (r >= 0 && after != NULL);
    return r;
}

int copy_tree_out(struct app *app, const struct copy_place *from, const char *local,
                  struct err *err)
{
    struct copy_tree t = {.app = app, .session = from->session};
    AUTO_FREE char *name = tree_name(from->path);
    char type[32];
    struct stat st;
    int r = stat_inside(&t, from->path, type, err);

    if (r < 0)
        return r;
    if (type[0] == '\0')
        return err_code_errno(err->code);
    bool into = stat(local, &st) == 0 && S_ISDIR(st.st_mode) && name[0] != '\0';
    AUTO_FREE char *place = into ? join_path(local, name) : xstrdup(local);
    const char *paths[2] = {place, from->path};
    if (str_eq(type, "directory"))
        return tree_status(&t, receive_dir(&t, AT_FDCWD, place, paths, 0, err));
    int fd = open(place, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_sys(err, errno, "'%s'", place);
    return copy_fd_out(app, fd, place, from, err);
}
