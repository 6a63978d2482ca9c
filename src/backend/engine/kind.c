/* SPDX-License-Identifier: Apache-2.0 */

/* The table of what differs between Docker and Podman, and where their sockets are found. */

#include <arpa/inet.h>
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/str.h"

/* A leading '~' stands for $XDG_RUNTIME_DIR: where an engine of the user's own listens. Root's own
 * comes first for root only, whose runtime directory may be somebody else's. */
static const char *const docker_sockets[] = {"/run/docker.sock", "/var/run/docker.sock",
                                             "~/docker.sock", NULL};
static const char *const podman_sockets[] = {"/run/podman/podman.sock", "~/podman/podman.sock",
                                             NULL};

static const struct engine_kind kinds[] = {
    {.name = "docker",
     .sockets = docker_sockets,
     .env = "DOCKER_HOST",
     .probe_import = "/images/create?fromSrc=-&repo=localhost%2Fbox-probe&tag=1"},
    {.name = "podman",
     .sockets = podman_sockets,
     .env = "CONTAINER_HOST",
     /* The other way it forgets the name. */
     .probe_import = "/v4.0.0/libpod/images/import?reference=localhost%2Fbox-probe%3A1",
     .seccomp_by_path = true,
     .masks_by_option = true,
     .is_podman = true,
     .mounts_as_text = true},
};

const struct engine_kind *engine_kind_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        if (str_eq(kinds[i].name, name))
            return &kinds[i];
    return NULL;
}

bool engine_kind_known(const char *kind)
{
    return engine_kind_find(kind) != NULL;
}

static char *socket_path(const char *place)
{
    const char *run = getenv("XDG_RUNTIME_DIR");
    if (place[0] != '~')
        return xstrdup(place);
    if (run == NULL || run[0] != '/')
        return xasprintf("/run/user/%u%s", (unsigned)geteuid(), place + 1);
    return xasprintf("%s%s", run, place + 1);
}

char *engine_find_endpoint(const char *kind, const char *given)
{
    const struct engine_kind *k = engine_kind_find(kind);
    assert(k != NULL);
    const char *env = getenv(k->env);
    struct stat st;
    if (given != NULL && given[0] != '\0')
        return given[0] == '/' ? xasprintf("unix://%s", given) : xstrdup(given);
    if (env != NULL && env[0] != '\0')
        return xstrdup(env);
    for (size_t i = 0; k->sockets[i] != NULL; i++) {
        AUTO_FREE char *path = socket_path(k->sockets[i]);
        /* One that we may not use is somebody else's, unless there is no other. */
        if (stat(path, &st) == 0 && S_ISSOCK(st.st_mode) && access(path, W_OK) == 0)
            return xasprintf("unix://%s", path);
    }
    return xasprintf("unix://%s", k->sockets[0]);
}

/* What follows the scheme, or NULL. */
static const char *tcp_authority(const char *endpoint)
{
    static const char *const schemes[] = {"tcp://", "http://", "https://"};
    for (size_t i = 0; i < ARRAY_SIZE(schemes); i++)
        if (str_starts(endpoint, schemes[i]))
            return endpoint + strlen(schemes[i]);
    return NULL;
}

bool engine_endpoint_is_tcp(const char *endpoint)
{
    return tcp_authority(endpoint) != NULL;
}

/* A name is not looked up for that: whoever answers may say anything. */
bool engine_endpoint_is_loopback(const char *endpoint)
{
    const char *at = tcp_authority(endpoint);
    struct in_addr address;
    if (at == NULL || str_starts(at, "[::1]"))
        return at != NULL;
    AUTO_FREE char *host = xstrndup(at, strcspn(at, ":/"));
    return inet_pton(AF_INET, host, &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}
