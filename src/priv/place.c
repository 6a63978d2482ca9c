/* SPDX-License-Identifier: Apache-2.0 */

/* The directory that a local program works in, as a place whose parts it may have mounted. boxd
 * cannot look at the processes of other users; we can. boxd cannot choose the place either: it has
 * to show us a connection, and the kernel tells whose that is. */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "loop/peer.h"
#include "priv/server.h"
#include "sandbox/launch/as_user.h"

/* Never a place, whichever user works there. Root's home is none of these: a program that root runs
 * there may well keep its own files below it. */
static const char *const blocked[] = {"/etc", "/proc", "/sys", "/dev", "/boot", "/run", "/var/run"};

static int check_request(const struct priv *p, const struct priv_place *m, size_t len,
                         struct err *err)
{
    char absolute[PRIV_PLACE_PATH_MAX + 1];
    if (len != sizeof(*m) || m->path[sizeof(m->path) - 1] != '\0')
        return err_set(err, ERR_INVALID, "malformed request");
    if (!p->host->rootful)
        return path_is_clean_absolute(m->path) ? 0 : err_set(err, ERR_INVALID, "path is not clean");
    if (p->request_fd < 0)
        return err_set(err, ERR_INVALID, "no connection came with the request");
    if (m->path[0] != '\0' && (str_fmt(absolute, sizeof(absolute), "/%s", m->path) < 0 ||
                               !path_is_clean_absolute(absolute)))
        return err_set(err, ERR_INVALID, "path is not clean");
    return 0;
}

static int check_place(const char *path, struct err *err)
{
    for (size_t i = 0; i < ARRAY_SIZE(blocked); i++) {
        size_t n = strlen(blocked[i]);
        if (strncmp(path, blocked[i], n) == 0 && (path[n] == '/' || path[n] == '\0'))
            return err_set(err, ERR_DENIED, "%.300s lies in %s, which is blocked for security",
                           path, blocked[i]);
    }
    return 0;
}

/* Puts it behind the roots of the start; a place that is known by that path gets its number again,
 * whatever stands there by now. Takes fd. */
static int add_root(struct priv *p, const char *path, int fd, uint32_t *ret, struct err *err)
{
    AUTO_CLOSE int owned = fd;
    struct launch_host *h = p->host;
    size_t first = p->options.n_roots, i = first;
    while (i < h->n_roots && !str_eq(p->places[i - first].path, path))
        i++;
    if (i - first == LAUNCH_PLACES_MAX)
        return err_set(err, ERR_LIMIT,
                       "more than %u directories of callers; name %.200s in allowed_mount_roots",
                       LAUNCH_PLACES_MAX, path);
    if (i == h->n_roots) {
        (void)str_copy(p->places[i - first].path, sizeof(p->places[0].path), path);
        h->root_fds[h->n_roots++] = -1;
    }
    fd_close_many(&h->root_fds[i], 1);
    h->root_fds[i] = TAKE_FD(owned);
    *ret = (uint32_t)i;
    return 0;
}

static int refuse_overlap(const struct launch_host *h, int fd, const char *path, struct err *err)
{
    struct stat dir, state;
    if (fstat(fd, &dir) < 0 || fstat(h->state_fd, &state) < 0)
        return err_sys(err, errno, "stat %.300s", path);
    int inside = launch_is_at_or_below(fd, &state);
    int above = launch_is_at_or_below(h->state_fd, &dir);
    if (inside != 0 || above != 0)
        return err_set(err, ERR_DENIED, "%.300s overlaps with the state directory of boxd", path);
    return 0;
}

static int make_error(int error, const char *path, uid_t uid, struct err *err)
{
    if (error == -EXDEV)
        return err_set(err, ERR_DENIED,
                       "%.300s is, or lies on, a mount of its own; add it to allowed_mount_roots",
                       path);
    if (error == -ELOOP)
        return err_set(err, ERR_DENIED,
                       "%.300s has a symbolic link in it; name the directory that it leads to",
                       path);
    return err_set(err, ERR_DENIED, "uid %u cannot use or make %.300s: %s", uid, path,
                   err_errno_text(-error));
}

/* A requester gets a directory that the process at the other end of its connection works in or
 * above, that this process's user could have made, read and written there, and that is this user's
 * own unless it is root: mounted, its files are the payload's. */
static int open_place(const struct launch_host *h, const struct peer_process *peer,
                      const char *rest, const char *path, struct err *err)
{
    const struct as_user who = {peer->peer.uid, peer->gid, peer->groups, peer->n_groups};
    struct as_user_found found = {0};
    struct stat st;
    if (str_eq(peer->path, "/"))
        return err_set(err, ERR_DENIED,
                       "%.300s is not below one of allowed_mount_roots, and a caller that works in "
                       "/ has no directory of its own",
                       path);
    int r = check_place(path, err);
    if (r == 0 && (r = as_user_make(&who, peer->cwd, rest, &found)) < 0)
        r = make_error(r, path, who.uid, err);
    if (r < 0)
        return r;
    AUTO_CLOSE int fd = path_open_beneath(peer->cwd, rest, O_PATH | O_DIRECTORY, 0);
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_dev != found.dev || st.st_ino != found.ino)
        return err_set(err, ERR_DENIED, "%.300s was exchanged meanwhile", path);
    if (who.uid != 0 && st.st_uid != who.uid)
        return err_set(err, ERR_DENIED, "%.300s belongs to uid %u and not to uid %u, who asks",
                       path, st.st_uid, who.uid);
    r = refuse_overlap(h, fd, path, err);
    if (r < 0)
        return r;
    AUTO_CLOSE int outer = launch_open_outer(h, path);
    if (outer < 0 || fstat(outer, &st) < 0 || st.st_dev != found.dev || st.st_ino != found.ino)
        return err_set(err, ERR_DENIED, "%.300s was exchanged meanwhile", path);
    return TAKE_FD(outer);
}

/* Without privilege boxd could open all that we can. */
static int place_by_path(struct priv *p, const char *path, struct priv_placed *ret, struct err *err)
{
    int r = check_place(path, err);
    if (r < 0)
        return r;
    AUTO_CLOSE int fd = path_open_unlinked(path, O_PATH | O_DIRECTORY);
    if (fd < 0)
        return err_sys(err, -fd, "open %.300s", path);
    r = refuse_overlap(p->host, fd, path, err);
    if (r == 0)
        r = add_root(p, path, TAKE_FD(fd), &ret->root, err);
    ret->uid = p->host->host_uid;
    (void)str_copy(ret->path, sizeof(ret->path), path);
    return r;
}

static int place_by_peer(struct priv *p, const char *rest, struct priv_placed *ret, struct err *err)
{
    AUTO_DONE(peer_process) struct peer_process peer = {.cwd = -1};
    const char *slash;
    if (p->diag_fd < 0)
        p->diag_fd = peer_socket();
    int r = peer_find_process(p->diag_fd, p->request_fd, p->host->mnt_ns, &peer, err);
    if (r < 0)
        return r;
    slash = rest[0] != '\0' && !str_eq(peer.path, "/") ? "/" : "";
    ret->uid = peer.peer.uid;
    ret->root = PRIV_NO_ROOT;
    if (str_fmt(ret->path, sizeof(ret->path), "%s%s%s", peer.path, slash, rest) < 0)
        return err_set(err, ERR_LIMIT, "the path of the working directory is too long");
    if (rest[0] == '\0')
        return 0;
    AUTO_CLOSE int fd = open_place(p->host, &peer, rest, ret->path, err);
    return fd < 0 ? fd : add_root(p, ret->path, TAKE_FD(fd), &ret->root, err);
}

int priv_on_place(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct priv_place *m = data;
    struct priv_reply reply = {.head = m->head};
    int r = check_request(p, m, len, err);
    if (r < 0)
        return r;
    if (m->path[0] != '\0' && !p->options.places)
        return err_set(err, ERR_DENIED, "it is not below one of allowed_mount_roots; add it there");
    r = p->host->rootful ? place_by_peer(p, m->path, &reply.placed, err)
                         : place_by_path(p, m->path, &reply.placed, err);
    if (r == 0)
        priv_answer(p, &reply, NULL, 0);
    return r;
}
