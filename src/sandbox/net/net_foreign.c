/* SPDX-License-Identifier: Apache-2.0 */

/* Getting along with other firewalls. A packet must be accepted by every forward chain on the host;
 * Docker makes iptables' one drop by default. There we add two rules of our own, for our interfaces
 * only, and take them away again by their mark. Our own table has judged these packets before, so
 * nothing becomes reachable by this that is not so on a host without Docker. Chains of
 * iptables-legacy are invisible to nft and stay as they are. */

#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"
#include "sandbox/net/net.h"
#include "sandbox/net/net_internal.h"
#include "sandbox/net/nft.h"

#define LISTING_MAX (256 * 1024)
#define SCRIPT_MAX (64 * 1024)

/* In order of preference: the chain that Docker sets aside for others, else the base chain. */
static const char *const chains[] = {"DOCKER-USER", "FORWARD"};

static int list_chain(const char *chain, struct buf *out, struct err *err)
{
    const char *const args[] = {"-a", "list", "chain", "ip", "filter", chain, NULL};

    return nft_query(args, out, err);
}

/* Lines look like: iifname "bxa_*" accept comment "box_a" # handle 12 */
static void put_deletes(const struct buf *listing, const char *chain, const char *mark,
                        struct buf *script)
{
    static const char handle[] = "# handle ";

    for (const char *line = buf_str(listing); *line != '\0';) {
        const char *end = strchrnul(line, '\n');
        const char *m = memmem(line, (size_t)(end - line), mark, strlen(mark));
        const char *h = memmem(line, (size_t)(end - line), handle, strlen(handle));

        if (m != NULL && h != NULL) {
            h += strlen(handle);
            (void)buf_printf(script, "delete rule ip filter %s handle %.*s\n", chain,
                             (int)strspn(h, "0123456789"), h);
        }
        line = *end == '\n' ? end + 1 : end;
    }
}

static int put_stale(const struct net_config *c, struct buf *script, struct err *err)
{
    char mark[32];

    (void)str_fmt(mark, sizeof(mark), "comment \"box_%s\"", c->tag);
    for (size_t i = 0; i < ARRAY_SIZE(chains); i++) {
        AUTO_DONE(buf) struct buf listing;

        buf_init(&listing, LISTING_MAX);
        int r = list_chain(chains[i], &listing, err);
        if (r < 0)
            return r;
        if (r == 0)
            put_deletes(&listing, chains[i], mark, script);
    }
    return 0;
}

/* 1 when packets that nobody accepts are dropped in iptables' forward chain. */
static int drops_by_default(struct err *err)
{
    AUTO_DONE(buf) struct buf listing;

    buf_init(&listing, LISTING_MAX);
    int r = list_chain("FORWARD", &listing, err);
    if (r != 0)
        return r < 0 ? r : 0;
    return strstr(buf_str(&listing), "policy drop;") != NULL ? 1 : 0;
}

static int pick_chain(const char **ret, struct err *err)
{
    for (size_t i = 0; i < ARRAY_SIZE(chains); i++) {
        AUTO_DONE(buf) struct buf listing;

        buf_init(&listing, LISTING_MAX);
        int r = list_chain(chains[i], &listing, err);
        if (r < 0)
            return r;
        if (r == 0) {
            *ret = chains[i];
            return 0;
        }
    }
    return err_set(err, ERR_NOT_FOUND, "no forward chain");
}

int net_foreign_add(const struct net_config *c, struct err *err)
{
    const char *chain = NULL;
    AUTO_DONE(buf) struct buf script;

    buf_init(&script, SCRIPT_MAX);
    int r = put_stale(c, &script, err);
    if (r < 0)
        return r;
    int wanted = drops_by_default(err);
    if (wanted < 0)
        return wanted;
    if (wanted > 0) {
        r = pick_chain(&chain, err);
        if (r < 0)
            return r;
        (void)buf_printf(&script,
                         "insert rule ip filter %s iifname \"bx%s_*\" accept comment \"box_%s\"\n"
                         "insert rule ip filter %s oifname \"bx%s_*\" ct state established,related "
                         "accept comment \"box_%s\"\n",
                         chain, c->tag, c->tag, chain, c->tag, c->tag);
    }
    if (script.len > 0) {
        r = nft_load(&script, err);
        if (r < 0)
            return err_wrap(err, "accept rules in iptables' forward chain");
    }
    return wanted;
}

int net_foreign_remove(const struct net_config *c, struct err *err)
{
    AUTO_DONE(buf) struct buf script;

    buf_init(&script, SCRIPT_MAX);
    int r = put_stale(c, &script, err);
    if (r == 0 && script.len > 0)
        r = nft_load(&script, err);
    return r;
}
