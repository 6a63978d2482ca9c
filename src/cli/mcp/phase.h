/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Where a boxed server is on its way, and when it is tried again. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mcp_phase {
    MCP_SESSION_CREATE,
    MCP_DEP_INSTALL,
    MCP_PROCESS_START,
    MCP_RELAY_CONNECT,
    MCP_INIT, /* it runs and has not answered yet: a cold start, not a failure */
    MCP_RUNTIME,
    MCP_BOX_UNAVAILABLE,
    MCP_PHASE_MAX,
};

const char *mcp_phase_name(enum mcp_phase phase);

enum mcp_status { MCP_CONNECTING, MCP_CONNECTED, MCP_ERROR, MCP_STATUS_MAX };
const char *mcp_status_name(enum mcp_status status);

/* Retries after 2, 4 and 8 seconds; after that it counts as failed and is tried again slowly, for
 * ever. A server that was well for a while starts over. */
#define MCP_DELAYS_MAX 8

struct mcp_retry {
    uint64_t delays_ns[MCP_DELAYS_MAX]; /* the last is the slow one, for ever after */
    size_t n_delays;
    uint64_t healthy_ns; /* so long at work makes up for failures */
    unsigned failed;     /* attempts since the server was well */
};

void mcp_retry_init(struct mcp_retry *r);
/* "2,4,8,60": seconds, with fractions; at most MCP_DELAYS_MAX. -EINVAL. */
int mcp_retry_parse(struct mcp_retry *r, const char *text);
/* An attempt has failed: how long to wait before the next. */
uint64_t mcp_retry_failed(struct mcp_retry *r);
/* It has worked for so long. */
void mcp_retry_worked(struct mcp_retry *r, uint64_t ns);
/* Every quick retry is used up: whoever waits shall hear of it. */
bool mcp_retry_exhausted(const struct mcp_retry *r);
