/* SPDX-License-Identifier: Apache-2.0 */

/* Host directories under other ids, for container engines. An engine takes only names and maps no
 * ids. So box-priv makes an id-mapped mount of the directory, beneath the allow-list and by
 * descriptor, and puts it where the engine finds it: in the engine's own mount namespace, below
 * PRIV_BINDS in the state directory, in a tmpfs that only root can enter. The container gets a copy
 * of that mount, so it is taken away as soon as the container runs. */

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "priv/server.h"
#include "sandbox/setup/mount.h"
#include "sandbox/setup/userns.h"

#define INSIDE (PRIV_BINDS_INSIDE + sizeof(PRIV_BINDS))

/* The engine. */

static int connect_engine(const char *path, struct err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (str_copy(address.sun_path, sizeof(address.sun_path), path) < 0)
        return err_set(err, ERR_UNSUPPORTED, "the path of the engine's socket is too long");
    AUTO_CLOSE int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (sock < 0 || connect(sock, (const struct sockaddr *)&address, sizeof(address)) < 0)
        return err_set(err, ERR_UNAVAILABLE, "the engine's socket '%.200s': %s", path,
                       err_errno_text(errno));
    return TAKE_FD(sock);
}

/* The mount namespace of the engine, which listens at its socket. Its number is believed while the
 * connection holds: a process that has ended listens no more. Only root's counts: in a namespace
 * that an ordinary user made, that user says what lies where. */
static int find_namespace(const char *path, struct err *err)
{
    struct ucred peer = {0};
    socklen_t size = sizeof(peer);
    char name[32];
    AUTO_CLOSE int sock = connect_engine(path, err);
    if (sock < 0)
        return sock;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || peer.pid == 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "the engine's process cannot be seen from here: it is in another container "
                       "or on another host");
    if (peer.uid != 0)
        return err_set(err, ERR_UNSUPPORTED, "the engine is not root's");
    (void)snprintf(name, sizeof(name), "/proc/%d/ns/mnt", peer.pid);
    AUTO_CLOSE int ns = open(name, O_RDONLY | O_CLOEXEC);
    if (ns < 0)
        return err_set(err, ERR_UNSUPPORTED, "the engine's mount namespace: %s",
                       err_errno_text(errno));
    struct pollfd p = {.fd = sock, .events = POLLRDHUP};
    if (poll(&p, 1, 0) != 0)
        return err_set(err, ERR_UNAVAILABLE, "the engine has just ended; try again");
    return TAKE_FD(ns);
}

static bool same_file(int a, int b)
{
    struct stat one, other;
    return fstat(a, &one) == 0 && fstat(b, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

/* What is done in the engine's namespace. No path of ours means anything there but the state
 * directory's, and that is compared. /proc may be another pid namespace's. */

struct visit {
    const struct priv *priv;
    const struct priv_bind *bind; /* of place_there() */
    int mount_fd;
    bool dir;
    const char *name; /* of remove_there() */
    bool all_gone;    /* set by remove_there() */
};

static int open_state(const struct visit *v, struct err *err)
{
    const char *path = v->priv->options.state;
    AUTO_CLOSE int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || !same_file(fd, v->priv->host->state_fd))
        return err_set(err, ERR_UNSUPPORTED, "the engine does not see the state directory '%.200s'",
                       path);
    return TAKE_FD(fd);
}

static bool is_ours(int fd, int state)
{
    struct statfs fs;
    struct stat top, above;
    return fstatfs(fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC && fstat(fd, &top) == 0 &&
           fstat(state, &above) == 0 && top.st_dev != above.st_dev && top.st_uid == 0;
}

static int open_top(int state)
{
    int fd = openat(state, PRIV_BINDS, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int make_top(int state, struct err *err)
{
    static const struct mount_option options[] = {{"mode", "0700"}, {"size", "1m"}, {0}};
    if (mkdirat(state, PRIV_BINDS, 0700) < 0 && errno != EEXIST)
        return err_sys(err, errno, "make '" PRIV_BINDS "' in the state directory");
    AUTO_CLOSE int fd = open_top(state);
    if (fd < 0)
        return err_sys(err, -fd, "open '" PRIV_BINDS "' in the state directory");
    if (is_ours(fd, state))
        return TAKE_FD(fd);
    AUTO_CLOSE int fs =
        mount_new("tmpfs", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    if (fs < 0 || mkdirat(fs, INSIDE, 0700) < 0 ||
        (mknodat(fd, INSIDE, S_IFREG, 0) < 0 && errno != EEXIST))
        return err_sys(err, fs < 0 ? -fs : errno, "make '" PRIV_BINDS_INSIDE "'");
    int r = mount_attach(fs, fd);
    return r < 0 ? err_sys(err, -r, "mount '" PRIV_BINDS "'") : TAKE_FD(fs);
}

static int open_inside(int top)
{
    int fd = openat(top, INSIDE, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int place_there(struct visit *v, struct err *err)
{
    char name[16];
    AUTO_CLOSE int state = open_state(v, err);
    AUTO_CLOSE int top = state < 0 ? -1 : make_top(state, err);
    if (top < 0)
        return state < 0 ? state : top;
    (void)snprintf(name, sizeof(name), "%u", v->bind->index);
    AUTO_CLOSE int inside = open_inside(top);
    AUTO_CLOSE int dir = inside < 0 ? inside : path_make_dir_at(inside, v->bind->name, 0700);
    if (dir < 0)
        return err_sys(err, -dir, "make '" PRIV_BINDS_INSIDE "/%s'", v->bind->name);
    int r = v->dir ? mkdirat(dir, name, 0700) : mknodat(dir, name, S_IFREG | 0600, 0);
    AUTO_CLOSE int place = r < 0 ? -1 : openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (place < 0)
        return err_sys(err, errno, "make '" PRIV_BINDS_INSIDE "/%s/%s'", v->bind->name, name);
    r = mount_attach(v->mount_fd, place);
    return r < 0 ? err_sys(err, -r, "mount '" PRIV_BINDS_INSIDE "/%s/%s'", v->bind->name, name) : 0;
}

static void remove_one(int top, const char *session)
{
    AUTO_CLOSE int inside = open_inside(top);
    AUTO_CLOSE int dir = openat(inside, session, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0 || fchdir(dir) < 0)
        return;
    for (unsigned i = 0; i < PRIV_BINDS_MAX; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "%u", i);
        (void)umount2(name, MNT_DETACH | UMOUNT_NOFOLLOW);
        if (unlinkat(dir, name, 0) < 0 && errno == EISDIR)
            (void)unlinkat(dir, name, AT_REMOVEDIR);
    }
    (void)unlinkat(inside, session, AT_REMOVEDIR);
}

/* The tmpfs goes with the last of them: the kernel refuses while something is mounted in it. */
static int remove_there(struct visit *v, struct err *err)
{
    AUTO_CLOSE int state = open_state(v, err);
    if (state < 0)
        return state;
    int top = open_top(state);
    if (top >= 0 && v->name != NULL && is_ours(top, state))
        remove_one(top, v->name);
    fd_close_many(&top, 1);
    if (fchdir(state) < 0)
        return err_sys(err, errno, "enter the state directory");
    while (umount2(PRIV_BINDS, (v->name == NULL ? MNT_DETACH : 0) | UMOUNT_NOFOLLOW) == 0)
        ;
    v->all_gone = errno == EINVAL || errno == ENOENT;
    if (v->all_gone)
        (void)path_remove_tree_at(state, PRIV_BINDS);
    return 0;
}

static int visit(int ns_fd, int (*run)(struct visit *v, struct err *err), struct visit *v,
                 struct err *err)
{
    int home = mount_ns_enter(ns_fd);
    if (home < 0)
        return err_set(err, ERR_UNSUPPORTED, "enter the engine's mount namespace: %s",
                       err_errno_text(-home));
    int r = run(v, err);
    mount_ns_return(home);
    return r;
}

/* NULL: those of all sessions. True: none is left. */
static bool remove_from(int ns_fd, const struct priv *p, const char *name)
{
    struct err ignored = {0};
    struct visit v = {.priv = p, .name = name};
    return ns_fd >= 0 && visit(ns_fd, remove_there, &v, &ignored) == 0 && v.all_gone;
}

void priv_binds_init(struct priv *p)
{
    struct err ignored = {0};
    p->binds.ns_fd = p->binds.map.fd = -1;
    if (!p->host->rootful || p->options.engine == NULL)
        return;
    AUTO_CLOSE int ns = find_namespace(p->options.engine, &ignored);
    (void)remove_from(ns, p, NULL);
}

static void forget_namespace(struct priv *p)
{
    fd_close_many(&p->binds.ns_fd, 1);
    fd_close_many(&p->binds.map.fd, 1);
}

void priv_binds_done(struct priv *p)
{
    (void)remove_from(p->binds.ns_fd, p, NULL);
    forget_namespace(p);
}

int priv_on_unbind(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct priv_name *m = data;
    if (len == sizeof(*m) && m->name[PLAN_NAME_LEN] == '\0' && id_valid(m->name) &&
        remove_from(p->binds.ns_fd, p, m->name))
        forget_namespace(p);
    return 0;
}

/* An engine may come back in another namespace than it had. In a new one there is nothing of ours
 * but what an earlier box-priv left. */
static int take_namespace(struct priv *p, struct err *err)
{
    AUTO_CLOSE int ns = find_namespace(p->options.engine, err);
    if (ns < 0)
        return ns;
    if (p->binds.ns_fd >= 0 && same_file(ns, p->binds.ns_fd))
        return 0;
    priv_binds_done(p);
    (void)remove_from(ns, p, NULL);
    p->binds.ns_fd = TAKE_FD(ns);
    return 0;
}

/* The mount. */

static int check_bind(const struct priv *p, const struct priv_bind *m, size_t len, struct err *err)
{
    char absolute[sizeof(m->path) + 1];
    if (len != sizeof(*m) || m->path[sizeof(m->path) - 1] != '\0' ||
        m->name[PLAN_NAME_LEN] != '\0' || !id_valid(m->name))
        return err_set(err, ERR_INVALID, "malformed request");
    if (m->path[0] != '\0' && (str_fmt(absolute, sizeof(absolute), "/%s", m->path) < 0 ||
                               !path_is_clean_absolute(absolute)))
        return err_set(err, ERR_INVALID, "bind: path is not clean");
    if (m->index >= PRIV_BINDS_MAX || (m->flags & ~(uint32_t)PRIV_BIND_FLAGS) != 0)
        return err_set(err, ERR_INVALID, "bind: out of bounds");
    if ((m->uid != 0 && m->uid < USERNS_BLOCK) || m->uid == UINT32_MAX)
        return err_set(err, ERR_INVALID, "bind: user id out of bounds");
    if (p->options.engine == NULL || !p->host->rootful)
        return err_set(err, ERR_UNSUPPORTED, "there is no engine of root's to mount for");
    return 0;
}

/* The owner on disk is the session's user to the container. gVisor makes its files as root and
 * gives them away at once: meanwhile root has an id on disk that no session and no account has. */
static int take_map(struct priv *p, const struct priv_bind *m, const struct stat *st,
                    struct err *err)
{
    uint32_t flags = m->flags & PRIV_BIND_GVISOR;
    struct priv_map *map = &p->binds.map;
    if (map->fd >= 0 && map->uid == st->st_uid && map->gid == st->st_gid && map->seen == m->uid &&
        map->flags == flags)
        return map->fd;
    fd_close_many(&map->fd, 1);
    const uint32_t nobody = userns_init_id(USERNS_INDEX_MAX);
    struct id_pair uids[2] = {{st->st_uid, m->uid}, {nobody, 0}};
    struct id_pair gids[2] = {{st->st_gid, m->uid}, {nobody, 0}};
    bool root_too = (m->flags & PRIV_BIND_GVISOR) && m->uid != 0;
    *map = (struct priv_map){.uid = st->st_uid, .gid = st->st_gid, .seen = m->uid, .flags = flags};
    map->fd = userns_idmap(uids, gids, root_too ? 2 : 1, err);
    return map->fd;
}

static int make_mount(struct priv *p, const struct priv_bind *m, int fd, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "stat mount source");
    AUTO_CLOSE int copy = launch_clone_allowed(p->host, fd, 0);
    if (copy < 0)
        return err_sys(err, -copy, "copy the mount of '%.200s'", m->path);
    int map = take_map(p, m, &st, err);
    if (map < 0)
        return map;
    uint64_t attrs = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV |
                     (m->flags & PRIV_BIND_RDONLY ? MOUNT_ATTR_RDONLY : 0);
    int r = mount_set(copy, attrs, map, 0);
    if (r < 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "the file system behind '%.200s' has no idmapped mounts (%s)", m->path,
                       err_errno_text(-r));
    return TAKE_FD(copy);
}

/* A requester gains nothing that it could not have by mounting the same directory into a sandbox:
 * the bounds are those of launch_open_allowed(), and only root can reach the mount by its
 * name. */
int priv_on_bind(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct priv_bind *m = data;
    struct priv_reply reply = {.head = m->head};
    struct stat st;
    int r = check_bind(p, m, len, err);
    if (r < 0)
        return r;
    AUTO_CLOSE int fd =
        launch_open_allowed(p->host, m->root, m->path, (m->flags & PRIV_BIND_DIR) != 0, err);
    if (fd < 0)
        return fd;
    if (m->flags & PRIV_BIND_LOOK) {
        priv_answer(p, &reply, NULL, 0);
        return 0;
    }
    AUTO_CLOSE int copy = make_mount(p, m, fd, err);
    if (copy < 0 || fstat(copy, &st) < 0)
        return copy < 0 ? copy : err_sys(err, errno, "stat mount source");
    struct visit v = {.priv = p, .bind = m, .mount_fd = copy, .dir = S_ISDIR(st.st_mode)};
    if (m->index == 0 || p->binds.ns_fd < 0)
        r = take_namespace(p, err);
    if (r == 0)
        r = visit(p->binds.ns_fd, place_there, &v, err);
    if (r == 0)
        priv_answer(p, &reply, &copy, 1);
    return r;
}
