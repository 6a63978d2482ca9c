/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Sandboxes made by a container engine, Docker or Podman, through its API. A session is one
 * container whose own program is box-guest (guest_wire.h); commands and managed processes go
 * through that and never through the engine, so they are as quick as a process and go on while the
 * engine restarts. A user of a rootful engine is root on the host: with this backend boxd is
 * as powerful as the engine's socket makes it. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct backend;
struct err;
struct loop;
struct priv_client;
struct tls_files;

struct engine_options {
    const char *kind;            /* "docker" or "podman" */
    const char *endpoint;        /* unix:///path or tcp://host:port; NULL: the usual places */
    const struct tls_files *tls; /* NULL: none; then tcp:// must be this host's loopback */
    const char *state_dir;
    const char *guest_program; /* path of box-guest, as the engine sees it */
    const char *runtime;       /* "runsc" and the like; NULL: the engine's default */
    char *const *roots;        /* allow-list of mounts, real paths */
    bool roots_are_outer;      /* only what lies below a root may be mounted */
    bool require_limits;
    uint64_t linger_sec; /* how long sandboxes outlive a daemon that was killed; 0: not at all */
    uid_t uid;           /* that boxd will run as; the directory of sessions becomes theirs */
    gid_t gid;
    /* box-priv, which maps owners of mounts for the engine; NULL: `no_priv` says why not. Borrowed,
     * and free it after the backend. */
    struct priv_client *priv;
    const char *no_priv;
    bool pull; /* an image that is not there is fetched; else it is an error */
};

/* Where the engine is, as an endpoint: `given`, or the first place that has a socket, or where it
 * usually is. The caller sees to it that it may still use it later. To free. */
char *engine_find_endpoint(const char *kind, const char *given);
bool engine_kind_known(const char *kind);
bool engine_endpoint_is_tcp(const char *endpoint); /* it is a place in the network */
/* Whether an earlier daemon may have left sessions there. */
bool engine_has_left(const char *kind, const char *state_dir);

/* A sandbox of this image needs none: an image without anything is made on the way, if it is not
 * there. There is no program in it to run. */
#define ENGINE_PROBE_IMAGE "localhost/box-probe:1"

/* Makes no call yet: an engine that is down is found out by the first one, and asked again by
 * the next. Call before dropping privileges: the roots are opened. Strings are borrowed for the
 * backend's life. */
int engine_new(struct loop *loop, const struct engine_options *options, struct backend **ret,
               struct err *err);
