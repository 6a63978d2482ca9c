/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* How a boxed server is doing: its phase, when it is tried again, its tools and its last words, and
 * what `box mcp ls` shows of them. Never a value of its environment, never an argument. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct json;
struct jw;

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
/* Every quick retry is used up: requests that wait are answered with an error. */
bool mcp_retry_exhausted(const struct mcp_retry *r);

#define MCP_TOOLS_MAX 256
#define MCP_ERROR_MAX 800

struct mcp_listed_tool {
    char name[128];
    char description[200]; /* cut between characters */
};

struct mcp_tools {
    struct mcp_listed_tool *list; /* owned */
    size_t n, total;              /* kept, and told */
    bool known;
};

void mcp_tools_done(struct mcp_tools *t);
/* The answer to tools/list; what is none changes nothing. `more`: a further page of the list. */
void mcp_tools_read(struct mcp_tools *t, const char *line, size_t len, bool more);

struct mcp_info {
    const char *name;
    const char *command;    /* its last component */
    const char *session_id; /* NULL: not boxed */
    enum mcp_status status;
    enum mcp_phase phase;
    const char *error; /* NULL: none */
    unsigned retries, restarts;
    const struct mcp_tools *tools;
    int64_t pid; /* of the wrapper */
};

void mcp_write_info(struct jw *w, const struct mcp_info *info);

/* `text` with every value of env ("NAME=value", of four characters or more) as "***". */
void mcp_hide_secrets(const char *text, char *const *env, struct buf *ret);

/* The beginning of the last `lines` lines. */
const char *mcp_last_lines(const char *text, unsigned lines);

#define MCP_INSTALL_TEXT 500 /* bytes of an installer's words that are shown */

/* Why the installation failed, in one line; owned. `result` is boxd's answer to the exec, `hint`
 * may be NULL. */
char *mcp_install_failure(const struct json *result, int64_t timeout_sec, const char *hint);
/* How a server ended, and why, as mcp_failure_text() has it. A negative code is a signal; `hint`
 * may be "". */
void mcp_exit_text(int64_t code, const char *hint, const char *last_words, char *ret, size_t size);
