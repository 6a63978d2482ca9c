/* SPDX-License-Identifier: Apache-2.0 */

/* What makes a sandbox that of a chat: its labels, its spec, and how a new boxd finds it again. */

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/chat/chat_internal.h"
#include "backend/backend.h"
#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/host_path.h"
#include "base/log.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"
#include "policy/chat_config.h"
#include "session/manager.h"
#include "session/record.h"
#include "spec/coerce.h"
#include "spec/spec.h"
#include "store/store.h"

#define UUID_DIGITS 32
#define USEC_NS 1000U
#define DIR_MODE 0750     /* of a chat whose group the operator chose: chats_root is setgid */
#define DIR_MODE_OWN 0700 /* of any other */
/* Of a sandbox whose record is lost it is not known which numbers its processes had. */
#define NUMBERS_UNKNOWN (1U << 24)

/* UUIDs, times and labels. */

enum label { LABEL_SESSION, LABEL_CHAT, LABEL_EXPIRES };
/* NULL-terminated, as an engine filters by them. */
static const char *const label_names[] = {
    [LABEL_SESSION] = "session_id", [LABEL_CHAT] = "chat_id", [LABEL_EXPIRES] = "expires_at", NULL};

/* Takes "urn:uuid:" and braces away; the length of what is left. */
static size_t unwrap(const char **text)
{
    static const char prefix[] = "urn:uuid:";
    if (str_starts(*text, prefix))
        *text += strlen(prefix);
    size_t len = strlen(*text);
    if (len < 2 || (*text)[0] != '{' || (*text)[len - 1] != '}')
        return len;
    ++*text;
    return len - 2;
}

/* Hyphens may stand anywhere. */
int chat_uuid_parse(const char *text, char ret[static CHAT_UUID_SIZE])
{
    size_t digits = 0, at = 0, len = unwrap(&text);
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '-')
            continue;
        if (!isxdigit((unsigned char)text[i]) || digits == UUID_DIGITS)
            return -EINVAL;
        if (digits >= 8 && digits <= 20 && digits % 4 == 0)
            ret[at++] = '-';
        ret[at++] = (char)tolower((unsigned char)text[i]);
        digits++;
    }
    ret[at] = '\0';
    return digits == UUID_DIGITS ? 0 : -EINVAL;
}

/* Version 4 (RFC 9562). */
void chat_uuid_random(char ret[static CHAT_UUID_SIZE])
{
    char digits[UUID_DIGITS + 1];
    id_random(digits);
    id_random(digits + UUID_DIGITS / 2);
    digits[12] = '4';
    digits[16] = "89ab"[(unsigned char)digits[16] % 4];
    (void)chat_uuid_parse(digits, ret);
}

void chat_time_format(uint64_t real_ns, char ret[static CHAT_TIME_SIZE])
{
    static const char none[] = ".000000";
    clock_format(real_ns, ret, CHAT_TIME_SIZE);
    char *dot = strchr(ret, '.');
    if (dot != NULL && str_starts(dot, none))
        memmove(dot, dot + strlen(none), strlen(dot + strlen(none)) + 1);
}

static const char *label_of(char *const *labels, const char *name)
{
    size_t len = strlen(name);
    for (; labels != NULL && *labels != NULL; labels++)
        if (strncmp(*labels, name, len) == 0 && (*labels)[len] == '=')
            return *labels + len + 1;
    return NULL;
}

/* Ids and end of the chat; -EINVAL when one is missing or makes no sense. */
static int labels_parse(char *const *labels, struct chat_session *ret)
{
    const char *session = label_of(labels, label_names[LABEL_SESSION]);
    const char *chat = label_of(labels, label_names[LABEL_CHAT]);
    const char *expires = label_of(labels, label_names[LABEL_EXPIRES]);
    int64_t usec = 0;
    bool zoned = false;
    if (session == NULL || chat == NULL || expires == NULL ||
        chat_uuid_parse(session, ret->session_id) < 0 || chat_uuid_parse(chat, ret->chat_id) < 0 ||
        coerce_time_text(expires, &usec, &zoned) != ISSUE_NONE || !zoned || usec <= 0 ||
        usec > INT64_MAX / (int64_t)USEC_NS)
        return -EINVAL;
    ret->expires_ns = (uint64_t)usec * USEC_NS;
    return 0;
}

static char **labels_new(const struct chat_session *l)
{
    char when[CHAT_TIME_SIZE];
    char **labels = NULL;
    chat_time_format(l->expires_ns, when);
    strv_push(&labels, xasprintf("%s=%s", label_names[LABEL_SESSION], l->session_id));
    strv_push(&labels, xasprintf("%s=%s", label_names[LABEL_CHAT], l->chat_id));
    strv_push(&labels, xasprintf("%s=%s", label_names[LABEL_EXPIRES], when));
    return labels;
}

bool chat_session_of(struct session *s, struct chat_session *ret)
{
    const struct spec *spec = session_spec(s);
    *ret = (struct chat_session){0};
    if (spec->own.expires_ns == 0 || session_sandbox(s) == NULL ||
        labels_parse(spec->own.labels, ret) < 0 || !str_eq(ret->chat_id, session_id(s)))
        return false;
    ret->created_ns = session_created(s);
    ret->expires_ns = spec->own.expires_ns;
    (void)str_copy(ret->container_id, sizeof(ret->container_id), session_sandbox_id(s));
    return true;
}

/* What to make. */

/* The group that boxd itself has is the one whose members may use its socket: they are not to read
 * the files of all chats. What has another owner is the operator's. */
static int close_to_own_group(int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_uid != geteuid() || st.st_gid != getegid() || (st.st_mode & 07777) == DIR_MODE_OWN)
        return 0;
    return fchmod(fd, DIR_MODE_OWN) < 0 ? -errno : 0;
}

/* The chat's own directory is made, beneath the descriptor of the root of all: there is no name
 * that leads elsewhere. Nothing else on the host ever is. */
static int make_dir(const struct chat *c, const char *chat_id, struct err *err)
{
    const char *root = c->options.config->chats_root;
    AUTO_CLOSE int fd = path_make_dir_at(c->options.chats_fd, chat_id, DIR_MODE);
    if (fd == -EACCES || fd == -EPERM || fd == -EROFS)
        return err_sys(err, -fd,
                       "make '%.100s/%s'; boxd runs as uid %u, which must be able to write there",
                       root, chat_id, geteuid());
    int r = fd < 0 ? fd : close_to_own_group(fd);
    return r < 0 ? err_sys(err, -r, "directory '%.100s/%s'", root, chat_id) : 0;
}

/* Directories of chats that an older boxd made. */
static void close_old_dirs(const struct chat *c)
{
    char id[CHAT_UUID_SIZE];
    DIR *dir = fd_opendir(c->options.chats_fd);
    struct dirent *e;
    while (dir != NULL && (e = readdir(dir)) != NULL) {
        if (chat_uuid_parse(e->d_name, id) < 0 || !str_eq(e->d_name, id))
            continue;
        AUTO_CLOSE int fd =
            openat(dirfd(dir), id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd >= 0 && close_to_own_group(fd) < 0)
            log_warn(id, "the group can read the chat's directory, and its mode cannot be changed");
    }
    if (dir != NULL)
        (void)closedir(dir);
}

/* A directory that others provide. A link is followed now, at each start, so that it may be changed
 * to another version. One that we may not look at is for the backend to judge. */
static int find_dir(const char *path, char **ret, struct err *err)
{
    AUTO_FREE char *real = path_real(path);
    struct stat st;
    int r = stat(real, &st) < 0 ? errno : 0;
    if (r == 0 && !S_ISDIR(st.st_mode))
        r = ENOTDIR;
    if (r != 0 && r != EACCES)
        return err_sys(err, r, "'%.200s' of the section sandbox", path);
    *ret = TAKE_PTR(real);
    return 0;
}

static int add_mount(struct mount_spec *m, const char *host_path, const char *mount_path,
                     struct err *err)
{
    m->mount_path = xstrdup(mount_path);
    m->mode = MOUNT_RO;
    return find_dir(host_path, &m->host_path, err);
}

static void set_text(char **text, const char *value)
{
    free(*text);
    *text = xstrdup(value);
}

/* Three mounts in this order: the chat's, to be written to, then dependencies and tools. */
int chat_make_spec(struct chat *c, const struct chat_session *want, struct spec **ret,
                   struct err *err)
{
    const struct chat_config *o = c->options.config;
    AUTO(spec) struct spec *s = spec_new();
    s->session_id = xstrdup(want->chat_id);
    s->host_path = xasprintf("%s/%s", o->chats_root, want->chat_id);
    s->host_path_mode = MOUNT_RW;
    set_text(&s->image, o->image);
    set_text(&s->mount_path, o->chat_mount_path);
    set_text(&s->workdir, o->chat_mount_path);
    s->own.labels = labels_new(want);
    s->own.created_ns = want->created_ns;
    s->own.expires_ns = want->expires_ns;
    s->extra_mounts = xnew_n(struct mount_spec, 2);
    s->n_extra_mounts = 2;
    int r =
        add_mount(&s->extra_mounts[0], o->dependencies_host_path, o->dependencies_mount_path, err);
    if (r == 0)
        r = add_mount(&s->extra_mounts[1], o->lambda_tools_host_path, o->lambda_tools_mount_path,
                      err);
    if (r == 0)
        r = spec_validate(s, err);
    if (r == 0)
        r = make_dir(c, want->chat_id, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(s);
    return 0;
}

/* After a restart. */

struct chat_found {
    struct chat_session chat;
    char backend[32], name[RECORD_NAME_MAX + 1], id[RECORD_NAME_MAX + 1];
    bool recorded; /* the store knows just this one */
    bool foreign;  /* its name is that of a session of another kind */
};

struct chat_reconcile {
    struct chat *chat;
    chat_done_fn *done;
    void *arg;
    struct chat_found *list; /* owned; one per chat */
    size_t n;
    char **useless; /* owned; ids of records whose labels make no sense */
    struct err err;
    struct loop_defer defer;
};

void chat_reconcile_free(struct chat_reconcile *r)
{
    if (r == NULL)
        return;
    loop_defer_stop(&r->defer);
    strv_free(r->useless);
    free(r->list);
    free(r);
}

static void on_reconciled(struct loop_defer *d)
{
    struct chat_reconcile *r = container_of(d, struct chat_reconcile, defer);
    chat_done_fn *done = r->done;
    void *arg = r->arg;
    struct err err = r->err;
    r->chat->reconcile = NULL;
    chat_reconcile_free(r);
    done(arg, err.code != ERR_NONE ? &err : NULL);
}

static struct chat_found *found_of(struct chat_reconcile *r, const char *chat_id)
{
    for (size_t i = 0; i < r->n; i++)
        if (str_eq(r->list[i].chat.chat_id, chat_id))
            return &r->list[i];
    return NULL;
}

static bool is_newer(const struct chat_found *a, const struct chat_found *b)
{
    if (a->chat.created_ns != b->chat.created_ns)
        return a->chat.created_ns > b->chat.created_ns;
    return strcmp(a->chat.session_id, b->chat.session_id) > 0;
}

/* The newest of a chat. */
static void on_found(void *arg, const struct backend_found *seen)
{
    struct chat_reconcile *r = arg;
    struct chat_found f = {.chat.created_ns = seen->created_ns};
    if (labels_parse(seen->labels, &f.chat) < 0 ||
        str_copy(f.backend, sizeof(f.backend), seen->backend) < 0 ||
        str_copy(f.name, sizeof(f.name), seen->name) < 0 ||
        str_copy(f.id, sizeof(f.id), seen->id != NULL ? seen->id : seen->name) < 0) {
        log_warn(NULL, "sandbox '%.80s' has labels of a chat that make no sense; skipping it",
                 seen->name);
        return;
    }
    struct chat_found *have = found_of(r, f.chat.chat_id);
    if (have == NULL) {
        r->list = xreallocarray(r->list, r->n + 1, sizeof(*r->list));
        r->list[r->n++] = f;
        return;
    }
    log_warn(f.chat.chat_id, "the chat has more than one sandbox; keeping the newest");
    if (is_newer(&f, have))
        *have = f;
}

/* What the store says of chats. */
static int on_record(void *arg, const char *id, uint64_t used, const char *json, size_t len)
{
    struct chat_reconcile *r = arg;
    AUTO_DONE(session_record) struct session_record record = {0};
    struct chat_session labels;
    if (session_record_read(json, len, &record, NULL) < 0)
        return 0; /* manager_adopt() says so */
    struct chat_found *f = found_of(r, id);
    bool ours = record.spec->own.expires_ns > 0 || strv_len(record.spec->own.labels) > 0;
    if (ours && (labels_parse(record.spec->own.labels, &labels) < 0 ||
                 !str_eq(labels.chat_id, id) || labels.expires_ns != record.spec->own.expires_ns)) {
        log_warn(id, "the record of a chat sandbox makes no sense; forgetting it");
        strv_add(&r->useless, id);
        return 0;
    }
    if (f != NULL) {
        f->foreign = !ours;
        f->recorded = ours && str_eq(record.sandbox, f->name) &&
                      str_eq(labels.session_id, f->chat.session_id);
    }
    return 0;
}

static int put_record(struct chat *c, const struct chat_found *f, struct err *err)
{
    AUTO(spec) struct spec *spec = NULL;
    AUTO_DONE(buf) struct buf text = BUF_INIT(STORE_RECORD_MAX);
    struct store *store = manager_get_options(c->m)->store;
    struct chat_found copy = *f; /* whose texts the record may point to */
    int r = chat_make_spec(c, &f->chat, &spec, err);
    if (r < 0)
        return r;
    struct session_record record = {.spec = spec,
                                    .backend = copy.backend,
                                    .sandbox = copy.name,
                                    .sandbox_id = copy.id,
                                    .created_ns = (int64_t)f->chat.created_ns,
                                    .numbers_end = NUMBERS_UNKNOWN};
    if (session_record_write(&record, &text) < 0)
        return err_set(err, ERR_LIMIT, "the record is too large");
    return store_put_session(store, f->chat.chat_id, text.data, text.len, err);
}

static int reconcile_records(struct chat_reconcile *r, struct err *err)
{
    struct store *store = manager_get_options(r->chat->m)->store;
    if (store == NULL)
        return 0;
    int e = store_each_session(store, on_record, r, err);
    for (size_t i = 0; e == 0 && r->useless != NULL && r->useless[i] != NULL; i++)
        e = store_drop_session(store, r->useless[i], err);
    for (size_t i = 0; e == 0 && i < r->n; i++) {
        struct err why = {0};
        if (r->list[i].recorded || r->list[i].foreign)
            continue;
        if (put_record(r->chat, &r->list[i], &why) < 0)
            log_warn(r->list[i].chat.chat_id, "found by its labels, but of no use: %s", why.msg);
        else
            log_info(r->list[i].chat.chat_id, "found again by its labels");
    }
    return e;
}

static void on_listed(void *arg, const struct err *err)
{
    struct chat_reconcile *r = arg;
    if (err != NULL)
        (void)err_set(&r->err, err->code, "chat sandboxes cannot be listed: %s", err->msg);
    else
        (void)reconcile_records(r, &r->err);
    loop_defer_start(manager_loop(r->chat->m), &r->defer, on_reconciled);
}

int chat_reconcile(struct chat *c, chat_done_fn *done, void *arg, struct err *err)
{
    struct backend *b = manager_backend(c->m);
    struct chat_reconcile *r = xnew(struct chat_reconcile);
    *r = (struct chat_reconcile){.chat = c, .done = done, .arg = arg};
    c->reconcile = r;
    if (chat_configured(c->options.config))
        close_old_dirs(c);
    if (!chat_configured(c->options.config) || b->ops->list == NULL) {
        on_listed(r, NULL);
        return 0;
    }
    int e = b->ops->list(b, label_names, on_found, on_listed, r, err);
    if (e < 0)
        chat_reconcile_free(TAKE_PTR(c->reconcile));
    return e;
}
