/* SPDX-License-Identifier: Apache-2.0 */

/* Makes the spec of a chat's sandbox, and takes requests to create and delete one. */

#include "agent/chat/chat.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/chat/chat_internal.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/host_path.h"
#include "base/log.h"
#include "base/path.h"
#include "base/str.h"
#include "policy/chat_config.h"
#include "policy/policy.h"
#include "session/manager.h"
#include "spec/spec.h"

#define DIR_MODE 0750 /* of a chat: whoever looks after chats_root may give it a group */

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
    return fd < 0 ? err_sys(err, -fd, "directory '%.100s/%s'", root, chat_id) : 0;
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

static void set(char **text, const char *value)
{
    free(*text);
    *text = xstrdup(value);
}

/* Three mounts in this order: the chat's, to be written to, then dependencies and tools. */
int chat_make_spec(struct chat *c, const struct chat_labels *labels, uint64_t created_ns,
                   struct spec **ret, struct err *err)
{
    const struct chat_config *o = c->options.config;
    AUTO(spec) struct spec *s = spec_new();
    s->session_id = xstrdup(labels->chat_id);
    s->host_path = xasprintf("%s/%s", o->chats_root, labels->chat_id);
    s->host_path_mode = MOUNT_RW;
    set(&s->image, o->image);
    set(&s->mount_path, o->chat_mount_path);
    set(&s->workdir, o->chat_mount_path);
    s->own.labels = chat_labels_new(labels);
    s->own.created_ns = created_ns;
    s->own.expires_ns = labels->expires_ns;
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
        r = make_dir(c, labels->chat_id, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(s);
    return 0;
}

bool chat_session_of(struct session *s, struct chat_session *ret)
{
    const struct spec *spec = session_spec(s);
    struct chat_labels labels;
    if (spec->own.expires_ns == 0 || session_sandbox(s) == NULL ||
        chat_labels_parse(spec->own.labels, &labels) < 0 || !str_eq(labels.chat_id, session_id(s)))
        return false;
    *ret =
        (struct chat_session){.created_ns = session_created(s), .expires_ns = spec->own.expires_ns};
    memcpy(ret->session_id, labels.session_id, sizeof(ret->session_id));
    memcpy(ret->chat_id, labels.chat_id, sizeof(ret->chat_id));
    (void)str_copy(ret->container_id, sizeof(ret->container_id), session_sandbox_id(s));
    return true;
}

static int submit(struct chat *c, const char *chat_id, const struct chat_op *what, struct err *err)
{
    char canonical[CHAT_UUID_SIZE];
    if (chat_uuid_parse(chat_id, canonical) < 0)
        return err_set(err, ERR_INVALID, "chat_id must be a UUID");
    return chat_submit(c, canonical, what, err);
}

int chat_create(struct chat *c, const char *chat_id, chat_created_fn *done, void *arg,
                struct err *err)
{
    if (!chat_configured(c->options.config))
        return err_set(err, ERR_UNSUPPORTED,
                       "chat sandboxes are not configured: the configuration of boxd needs a "
                       "section 'sandbox', or $APP_SANDBOX_IMAGE and so on");
    return submit(c, chat_id, &(struct chat_op){.verb = CHAT_CREATE, .created = done, .arg = arg},
                  err);
}

int chat_delete(struct chat *c, const char *chat_id, chat_deleted_fn *done, void *arg,
                struct err *err)
{
    return submit(c, chat_id, &(struct chat_op){.verb = CHAT_DELETE, .deleted = done, .arg = arg},
                  err);
}

void chat_cleanup(struct chat *c)
{
    uint64_t now = clock_real(loop_clock(manager_loop(c->m)));
    struct chat_session s;
    struct err err = {0};
    for (struct session *it = manager_next(c->m, NULL); it != NULL; it = manager_next(c->m, it)) {
        if (!chat_session_of(it, &s) || s.expires_ns > now || chat_is_cleaning(c, s.chat_id))
            continue;
        struct chat_op what = {.verb = CHAT_CLEAN};
        memcpy(what.session_id, s.session_id, sizeof(what.session_id));
        if (chat_submit(c, s.chat_id, &what, &err) < 0) {
            log_warn(s.chat_id, "%s; it is ended later", err.msg);
            break;
        }
    }
    chat_debris_sweep(c);
}

static void on_time(struct loop_timer *t)
{
    struct chat *c = container_of(t, struct chat, timer);
    uint64_t interval = (uint64_t)c->options.config->cleanup_interval_seconds * NSEC_PER_SEC;
    loop_timer_start(manager_loop(c->m), t, interval, on_time);
    chat_cleanup(c);
}

void chat_start(struct chat *c)
{
    on_time(&c->timer);
}

int chat_new(struct manager *m, const struct chat_options *options, struct chat **ret,
             struct err *err)
{
    struct chat *c = xnew(struct chat);
    c->m = m;
    c->options = *options;
    *ret = c;
    return 0;
}

void chat_free(struct chat *c)
{
    if (c == NULL)
        return;
    loop_timer_stop(&c->timer);
    chat_lanes_free(c);
    chat_debris_forget(c, c->debris_serial);
    chat_reconcile_free(c->reconcile);
    free(c);
}
