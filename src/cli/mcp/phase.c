/* SPDX-License-Identifier: Apache-2.0 */

/* The names of an MCP server's phases, and the delays between its attempts to start. */

#include "cli/mcp/phase.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"

#define DELAY_SEC_MAX 86400

static const char *const phases[MCP_PHASE_MAX] = {
    [MCP_SESSION_CREATE] = "session_create",
    [MCP_DEP_INSTALL] = "dep_install",
    [MCP_PROCESS_START] = "process_start",
    [MCP_RELAY_CONNECT] = "relay_connect",
    [MCP_INIT] = "mcp_init",
    [MCP_RUNTIME] = "runtime",
    [MCP_BOX_UNAVAILABLE] = "box_unavailable",
};

const char *mcp_phase_name(enum mcp_phase phase)
{
    return phases[phase];
}

const char *mcp_status_name(enum mcp_status status)
{
    static const char *const names[MCP_STATUS_MAX] = {"connecting", "connected", "error"};

    return names[status];
}

void mcp_retry_init(struct mcp_retry *r)
{
    *r = (struct mcp_retry){
        .delays_ns = {2 * NSEC_PER_SEC, 4 * NSEC_PER_SEC, 8 * NSEC_PER_SEC, 60 * NSEC_PER_SEC},
        .n_delays = 4,
        .healthy_ns = 30 * NSEC_PER_SEC};
}

int mcp_retry_parse(struct mcp_retry *r, const char *text)
{
    struct mcp_retry next = *r;

    next.n_delays = 0;
    while (next.n_delays < MCP_DELAYS_MAX) {
        size_t len = strcspn(text, ",");
        AUTO_FREE char *word = xstrndup(text, len);
        double seconds;
        if (str_to_double(word, &seconds) < 0 || seconds < 0 || seconds > DELAY_SEC_MAX)
            return -EINVAL;
        next.delays_ns[next.n_delays++] = (uint64_t)(seconds * (double)NSEC_PER_SEC);
        text += len;
        if (*text == '\0') {
            *r = next;
            return 0;
        }
        text++;
    }
    return -EINVAL;
}

uint64_t mcp_retry_failed(struct mcp_retry *r)
{
    size_t i = r->failed < r->n_delays ? r->failed : r->n_delays - 1;

    r->failed++;
    return r->delays_ns[i];
}

void mcp_retry_worked(struct mcp_retry *r, uint64_t ns)
{
    if (ns >= r->healthy_ns)
        r->failed = 0;
}

bool mcp_retry_exhausted(const struct mcp_retry *r)
{
    return r->failed >= r->n_delays;
}
