/* SPDX-License-Identifier: Apache-2.0 */

/* An HTTP client over TLS. It is apart from the rest, so that programs without TLS do not link
 * it. */

#include <string.h>

#include "base/cleanup.h"
#include "http/client/client_internal.h"
#include "http/stream/tls.h"

static const struct client_dialer dialer = {
    .dial = tls_dial, .failure = tls_client_failure, .free = tls_client_free};

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
    r = tls_client_new(loop, files, host, &c->tls, err);
    if (r < 0)
        return r;
    c->dialer = &dialer;
    *ret = TAKE_PTR(c);
    return 0;
}
