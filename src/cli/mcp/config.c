/* SPDX-License-Identifier: Apache-2.0 */

/* The tables of fields of a server and its box, and their parser. */

#include "cli/mcp/config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "spec/model.h"
#include "spec/spec.h"

/* clang-format off */
static const struct field box_fields[] = {
    {"image", FIELD_STR, FIELD_NULLABLE, offsetof(struct mcp_box, image), .max = SPEC_IMAGE_MAX},
    {"network", FIELD_ENUM, 0, offsetof(struct mcp_box, network), .number = NETWORK_ON, .names = network_names},
    {"host_path", FIELD_STR, FIELD_NULLABLE | FIELD_TRIM, offsetof(struct mcp_box, host_path),
     .max = SPEC_PATH_MAX, .valid = host_path_valid, .rule = "host_path must be an absolute host path"},
    {"host_path_mode", FIELD_ENUM, 0, offsetof(struct mcp_box, host_path_mode), .number = MOUNT_RO,
     .names = mount_mode_names},
    {"env", FIELD_ENV, 0, offsetof(struct mcp_box, env), .max = SPEC_ENV_ENTRIES_MAX,
     .max_bytes = SPEC_ENV_BYTES_MAX},
    {"startup_timeout_sec", FIELD_INT, 0, offsetof(struct mcp_box, startup_timeout_sec),
     .number = MCP_STARTUP_SEC, .min = 1, .max = SPEC_TIMEOUT_MAX, .rule = "startup_timeout_sec must be greater than 0"},
    {"cpus", FIELD_REAL, 0, offsetof(struct mcp_box, cpus), .real = 1, .max = SPEC_CPUS_MAX, .rule = "cpus must be greater than 0"},
    {"memory_mb", FIELD_INT, 0, offsetof(struct mcp_box, memory_mb), .number = 32, .min = 32, .max = SPEC_SIZE_MB_MAX,
     .rule = "memory_mb must be at least 32"},
    {"pids_limit", FIELD_INT, 0, offsetof(struct mcp_box, pids_limit), .number = 1, .min = 1, .max = SPEC_PIDS_MAX,
     .rule = "pids_limit must be at least 1"},
};

static const struct field server_fields[] = {
    {"command", FIELD_STR, FIELD_REQUIRED | FIELD_TRIM, offsetof(struct mcp_server, command), .max = SPEC_PATH_MAX},
    {"args", FIELD_STRV, 0, offsetof(struct mcp_server, args), .max = SPEC_ARGS_ENTRIES_MAX,
     .max_bytes = SPEC_ARGS_BYTES_MAX},
    {"env", FIELD_ENV, 0, offsetof(struct mcp_server, env), .max = SPEC_ENV_ENTRIES_MAX,
     .max_bytes = SPEC_ENV_BYTES_MAX},
};
/* clang-format on */

static const struct model box_model = {.name = "box",
                                       .fields = box_fields,
                                       .n_fields = ARRAY_SIZE(box_fields),
                                       .size = sizeof(struct mcp_box)};
static const struct model server_model = {.name = "server",
                                          .fields = server_fields,
                                          .n_fields = ARRAY_SIZE(server_fields),
                                          .size = sizeof(struct mcp_server)};

/* Rules hold for what is given: null has no place in a number. */
static void put_nulls(struct mcp_box *b, const struct json *given)
{
    if (json_type(json_get(given, "cpus")) == JSON_NULL)
        b->cpus = 0;
    if (json_type(json_get(given, "memory_mb")) == JSON_NULL)
        b->memory_mb = 0;
    if (json_type(json_get(given, "pids_limit")) == JSON_NULL)
        b->pids_limit = 0;
}

void mcp_box_init(struct mcp_box *b)
{
    *b = (struct mcp_box){0};
    model_init(&box_model, b);
    b->read_only_rootfs = -1;
    put_nulls(b, NULL);
}

void mcp_box_done(struct mcp_box *b)
{
    model_done(&box_model, b);
    *b = (struct mcp_box){0};
}

/* What is null keeps its default. */
static uint64_t skipped(const struct json *box)
{
    uint64_t set = 0;

    for (size_t i = 0; i < ARRAY_SIZE(box_fields); i++) {
        const struct json *v = json_get(box, box_fields[i].name);
        if (v == NULL || json_type(v) == JSON_NULL)
            set |= FIELD_BIT(i);
    }
    return set;
}

int mcp_box_parse(const struct json *box, struct mcp_box *ret, struct err *err)
{
    struct report report;
    const struct json *rootfs = json_get(box, "read_only_rootfs");

    mcp_box_init(ret);
    if (box == NULL || json_type(box) == JSON_NULL)
        return 0;
    model_init(&box_model, ret);
    if (model_parse(&box_model, box, skipped(box), ret, &report) < 0) {
        mcp_box_done(ret);
        return report_fail_plain(&report, err);
    }
    put_nulls(ret, box);
    if (rootfs != NULL && json_type(rootfs) == JSON_BOOL) {
        ret->read_only_rootfs = json_bool(rootfs);
    } else if (rootfs != NULL && json_type(rootfs) != JSON_NULL) {
        mcp_box_done(ret);
        return err_set(err, ERR_INVALID, "read_only_rootfs must be true or false");
    }
    return 0;
}

void mcp_server_done(struct mcp_server *s)
{
    model_done(&server_model, s);
    mcp_box_done(&s->box);
    *s = (struct mcp_server){0};
}

int mcp_server_find(const struct json *file, const char *name, struct mcp_server *ret,
                    struct err *err)
{
    static const char *const lists[] = {"mcpServers", "servers", "context_servers"};
    const struct json *server = NULL;
    struct report report;

    for (size_t i = 0; i < ARRAY_SIZE(lists) && server == NULL; i++)
        server = json_get(json_get(file, lists[i]), name);
    if (server == NULL)
        return err_set(err, ERR_NOT_FOUND, "the file has no server '%s' in mcpServers", name);
    if (json_get(server, "command") == NULL && json_get(server, "url") != NULL)
        return err_set(err, ERR_INVALID, "server '%s' is remote: only stdio servers are boxed",
                       name);
    *ret = (struct mcp_server){0};
    model_init(&server_model, ret);
    mcp_box_init(&ret->box);
    if (model_parse(&server_model, server, 0, ret, &report) < 0) {
        mcp_server_done(ret);
        return report_fail_plain(&report, err);
    }
    mcp_box_done(&ret->box);
    int r = mcp_box_parse(json_get(server, "box"), &ret->box, err);
    if (r < 0)
        mcp_server_done(ret);
    return r;
}
