/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the tools for processes share. Private to process.c and process_io.c. */

#include <stdbool.h>
#include <stdint.h>

struct err;
struct json;
struct jw;
struct mcp_call;
struct mcp_output;
struct model;
struct process;
struct session;

enum process_encoding { PROCESS_TEXT, PROCESS_BASE64 };

/* One struct for all of them: each model fills what it knows. */
struct process_args {
    char *process_id, *data;
    int64_t offset, max_bytes, wait_ms;
    enum process_encoding encoding;
    bool close;
};

extern const struct model process_id_model, process_read_model, process_write_model;
extern const struct mcp_output mcp_read_output[], mcp_write_output[];

int mcp_process_args(struct mcp_call *c, const struct model *m, struct process_args **ret,
                     struct err *err);
void mcp_process_args_free(const struct model *m, struct process_args *a); /* NULL is fine */
void mcp_write_process(struct jw *w, struct process *p);                   /* members */

void mcp_read_process(struct mcp_call *c, const struct json *arguments);
void mcp_write_stdin(struct mcp_call *c, const struct json *arguments);
