/* SPDX-License-Identifier: Apache-2.0 */

/* An HTTP client over TLS. It is apart from the rest, so that programs without TLS do not link
 * it. */

#include <string.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "http/client/client_internal.h"
#include "http/stream/tls.h"

static int dial(void *arg, struct places *places, struct err *err)
{
    return tls_dial(arg, places, err);
}

static bool failure(void *arg, struct err *ret)
{
    return tls_client_failure(arg, ret);
}

static void free_tls(void *arg)
{
    tls_client_free(arg);
}

static const struct client_dialer dialer = {.dial = dial, .failure = failure, .free = free_tls};

int http_client_new_tls(struct loop *loop, const char *endpoint, const struct tls_files *files,
                        struct http_client **ret, struct err *err)
{
    AUTO(http_client) struct http_client *c = NULL;
    const char *authority = strstr(endpoint, "://"), *rest;
    int r = client_new(loop, endpoint, &c, err);
    if (r < 0)
        return r;
    if (c->places.list[0].address.ss_family == AF_UNIX)
        return err_set(err, ERR_INVALID, "there is no TLS on the unix socket '%s'", endpoint);
    AUTO_FREE char *host = client_host_of(authority + strlen("://"), &rest);
    struct tls_client *tls = NULL;
    r = tls_client_new(loop, files, host, &tls, err);
    if (r < 0)
        return r;
    c->dialer = &dialer;
    c->dialer_arg = tls;
    *ret = TAKE_PTR(c);
    return 0;
}
