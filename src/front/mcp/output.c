/* SPDX-License-Identifier: Apache-2.0 */

/* The MCP tool that reads the whole output of a command, of which `exec` has shown a part. */

#include <stdlib.h>

#include "base/alloc.h"
#include "command/policy_service.h"
#include "front/mcp/mcp_internal.h"
#include "policy/outputs.h"
#include "spec/model.h"

#define READ_DEFAULT (16 << 10)
#define READ_MAX (50 << 10) /* of what a model is shown, as its other tools do */
#define ANSWER_MAX (1U << 20)
#define NUMBER_MAX 9007199254740991 /* what every JSON reader can count to */

struct output_args {
    char *output_id;
    int64_t offset, max_bytes;
};

/* clang-format off */
static const struct field output_fields[] = {
    {"output_id", FIELD_STR, FIELD_REQUIRED | FIELD_TRIM, .offset = offsetof(struct output_args, output_id),
     .max = OUTPUT_ID_SIZE - 1, .doc = "stdout_id or stderr_id of an answer of exec, in the same session."},
    {"offset", FIELD_INT, .offset = offsetof(struct output_args, offset), .min = 0, .max = NUMBER_MAX,
     .rule = "offset must not be negative", .doc = "First byte to read, counted from 0."},
    {"max_bytes", FIELD_INT, .offset = offsetof(struct output_args, max_bytes), .number = READ_DEFAULT, .min = 1,
     .max = READ_MAX, .rule = "max_bytes must be at least 1", .doc = "Bytes to read at most."},
};

static const struct model output_model = {.name = "read_output", .doc = "What to read.", .closed = true,
                                          MODEL_FIELDS(output_fields, struct output_args)};

static const struct mcp_output output_output[] = {
    {"output_id", "string", "What was read.", false},
    {"offset", "integer", "First byte shown.", false},
    {"next_offset", "integer?", "Go on there; null at the end.", false},
    {"kept_bytes", "integer", "Bytes that can be read.", false},
    {"produced_bytes", "integer", "Bytes that the command wrote.", false},
    {"output", "string", "What was written; bytes that are no UTF-8 are shown as U+FFFD.", false},
    {0},
};
/* clang-format on */

static int read_range(const struct mcp_call *c, const struct session *s,
                      const struct output_args *a, struct jw *w, struct err *err)
{
    struct outputs *outputs = c->mcp->front->service->outputs;
    const struct output_ref ref = {.owner = session_id(s), .id = a->output_id};
    uint64_t from = (uint64_t)a->offset;
    AUTO_FREE char *data = xcalloc(1, (size_t)a->max_bytes);
    struct output_info info;

    if (outputs == NULL)
        return err_missing(err, ERR_THING_OUTPUT, "outputs are not kept");
    int r = outputs_stat(outputs, &ref, &info, err);
    if (r < 0)
        return r;
    if (from > info.kept)
        return err_set(err, ERR_INVALID, "offset %llu is behind the %llu bytes that are kept",
                       (unsigned long long)from, (unsigned long long)info.kept);
    ssize_t n = outputs_read(outputs, &ref, from, data, (size_t)a->max_bytes, err);
    if (n < 0)
        return (int)n;
    jw_kstr(w, "output_id", a->output_id);
    jw_ku64(w, "offset", from);
    if (from + (uint64_t)n < info.kept)
        jw_ku64(w, "next_offset", from + (uint64_t)n);
    else
        jw_knull(w, "next_offset");
    jw_ku64(w, "kept_bytes", info.kept);
    jw_ku64(w, "produced_bytes", info.produced);
    jw_kstrn(w, "output", data, (size_t)n);
    return 0;
}

static void read_output(struct mcp_call *c, struct session *s)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, ANSWER_MAX);
    struct output_args a = {0};
    struct err err = {0};
    int r = mcp_args_parse(&output_model, mcp_call_arguments(c), &a, &err);

    if (r == 0)
        r = read_range(c, s, &a, w, &err);
    model_done(&output_model, &a);
    if (r < 0)
        mcp_call_tool_err(c, &err);
    else
        mcp_call_tool_json(c, &out, NULL);
}

/* clang-format off */
const struct mcp_tool_row mcp_output_tools[] = {
    {.name = "read_output", .title = "Read the whole output of a command",
     .description = "Read what a command wrote where exec has shortened it: by the stdout_id or stderr_id of its "
                    "answer, from an offset in bytes on. Go on at next_offset.",
     .params = &output_model, .output = output_output, .scope = "read", .read_only = true, .idempotent = true,
     .in = read_output},
    {0},
};
/* clang-format on */
