/* SPDX-License-Identifier: Apache-2.0 */

/* MCP tools that list, create and delete sessions by their handle. A model may choose only settings
 * of a new session that reach no further than its own: never a directory of the host. */

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "front/mcp/mcp_internal.h"
#include "policy/audit/audit.h"
#include "policy/outputs.h"
#include "session/manager.h"
#include "spec/model.h"
#include "spec/spec.h"

#define LIST_MAX (4U << 20)
#define SHOWN_MAX 1000 /* sessions of one list */

struct create_args {
    char *name, *image, *profile;
    enum network network;
    int64_t memory_mb, pids_limit, workspace_quota_mb;
    double cpus;
};

struct no_args {
    char none;
};

struct delete_args {
    char *session_id;
};

/* clang-format off */
static const struct field create_fields[] = {
    {"name", FIELD_STR, FIELD_NULLABLE | FIELD_TRIM | FIELD_BLANK_NULL, .offset = offsetof(struct create_args, name),
     .max = 32, .valid = id_valid, .rule = "name must consist of letters, digits, '_' and '-'",
     .doc = "What its handle ends with. The same name again gives the same session."},
    {"image", FIELD_STR, FIELD_NULLABLE, .offset = offsetof(struct create_args, image), .max = SPEC_IMAGE_MAX,
     .doc = "Root file system; the configured one by default."},
    {"profile", FIELD_STR, FIELD_NULLABLE, .offset = offsetof(struct create_args, profile), .max = 64,
     .doc = "Profile of limits, as the operator has named them."},
    {"network", FIELD_ENUM, .offset = offsetof(struct create_args, network), .names = network_names,
     .doc = "Whether the internet can be reached, where that is allowed."},
    {"memory_mb", FIELD_INT, FIELD_STRICT, .offset = offsetof(struct create_args, memory_mb), .min = 0, .max = SPEC_SIZE_MB_MAX,
     .rule = "memory_mb must not be negative", .strict_text = "memory_mb must be a number", .doc = "Memory, in MiB; 0: the default."},
    {"cpus", FIELD_REAL, FIELD_STRICT, .offset = offsetof(struct create_args, cpus), .real = 1, .max = SPEC_CPUS_MAX,
     .rule = "cpus must be above 0", .strict_text = "cpus must be a number", .doc = "Processor share, such as 0.5."},
    {"pids_limit", FIELD_INT, FIELD_STRICT, .offset = offsetof(struct create_args, pids_limit), .min = 0, .max = SPEC_PIDS_MAX,
     .rule = "pids_limit must not be negative", .strict_text = "pids_limit must be a number", .doc = "Processes and threads; 0: the default."},
    {"workspace_quota_mb", FIELD_INT, FIELD_STRICT, .offset = offsetof(struct create_args, workspace_quota_mb), .min = 0,
     .max = SPEC_SIZE_MB_MAX, .rule = "workspace_quota_mb must not be negative",
     .strict_text = "workspace_quota_mb must be a number", .doc = "Disk space, in MiB; 0: the default."},
};

static const struct field delete_fields[] = {
    {"session_id", FIELD_STR, FIELD_REQUIRED, .offset = offsetof(struct delete_args, session_id), .max = SPEC_ID_MAX,
     .doc = "Handle of the session."},
};
/* clang-format on */

static const struct model create_model = {.name = "create_session",
                                          .doc = "The session to make.",
                                          .fields = create_fields,
                                          .n_fields = ARRAY_SIZE(create_fields),
                                          .size = sizeof(struct create_args),
                                          .closed = true};
static const struct model none_model = {
    .name = "none", .doc = "Nothing.", .size = sizeof(struct no_args), .closed = true};
static const struct model delete_model = {.name = "delete_session",
                                          .doc = "The session to end.",
                                          .fields = delete_fields,
                                          .n_fields = ARRAY_SIZE(delete_fields),
                                          .size = sizeof(struct delete_args),
                                          .closed = true};

static int parse(const struct model *m, const struct json *arguments, void *args, struct err *err)
{
    struct report report = {0};

    model_init(m, args);
    return model_parse(m, arguments, 0, args, &report) < 0 ? report_fail_plain(&report, err) : 0;
}

static void write_session(const struct mcp_place *p, const struct session *s, struct jw *w)
{
    const struct spec *spec = session_spec(s);
    char when[40];

    jw_kstr(w, "session_id", session_id(s));
    jw_kbool(w, "is_default", str_eq(session_id(s), p->session_id));
    jw_kstr(w, "state", session_state_name(session_state(s)));
    jw_kstr(w, "workspace", spec->mount_path);
    jw_kstr(w, "image", spec->image);
    jw_kstr(w, "network", network_names[spec->network]);
    jw_kint(w, "memory_mb", spec->memory_mb);
    jw_kreal(w, "cpus", spec->cpus);
    clock_format(session_created(s), when, sizeof(when));
    jw_kstr(w, "created_at", when);
}

/* list_sessions */

static void list_sessions(struct mcp_call *c, const struct json *arguments)
{
    struct manager *m = c->mcp->front->manager;
    struct no_args none;
    AUTO_DONE(buf) struct buf out = {0};
    struct err err = {0};
    size_t shown = 0, total = 0;
    struct jw w;

    if (parse(&none_model, arguments, &none, &err) < 0) {
        mcp_call_tool_err(c, &err);
        return;
    }
    buf_init(&out, LIST_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_key(&w, "sessions");
    jw_array(&w);
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s)) {
        if (!mcp_place_reaches(c->place, session_id(s)))
            continue;
        total++;
        if (shown >= SHOWN_MAX)
            continue;
        shown++;
        jw_object(&w);
        write_session(c->place, s, &w);
        jw_object_end(&w);
    }
    jw_array_end(&w);
    jw_ku64(&w, "total", total);
    jw_object_end(&w);
    mcp_call_tool_json(c, &w, NULL);
}

/* create_session */

/* On stdio whoever started us has said whether there is a network; a model does not outvote it. */
static int check_network(const struct mcp_call *c, const struct json *arguments, struct err *err)
{
    const struct json *settings = c->place->settings;

    if (c->place->shared || settings == NULL ||
        !str_eq(json_str(json_get(arguments, "network")), "on") ||
        str_eq(json_str(json_get(settings, "network")), "on"))
        return 0;
    return err_set(err, ERR_DENIED, "this server was started without --network on");
}

static void on_created(struct mcp_call *c, struct session *s)
{
    AUTO_DONE(buf) struct buf out = {0};
    AUTO_FREE char *text = xasprintf("Session %s is ready. Pass it as session_id.", session_id(s));
    struct jw w;

    buf_init(&out, LIST_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    write_session(c->place, s, &w);
    jw_object_end(&w);
    mcp_call_tool_json(c, &w, text);
}

static char *new_id(const struct mcp_place *p, const char *name)
{
    char random[17];

    id_random(random);
    if (name == NULL)
        random[8] = '\0';
    return xasprintf("%s-%s", p->base, name != NULL ? name : random);
}

static int check_create(const struct mcp_call *c, const struct json *arguments, char **ret_id,
                        struct err *err)
{
    struct create_args *a = xnew(struct create_args);
    int r = parse(&create_model, arguments, a, err);

    if (r == 0)
        r = check_network(c, arguments, err);
    if (r == 0 && !c->place->own_name)
        r = err_set(err, ERR_DENIED, "the scope of this token names the sessions it may use");
    if (r == 0)
        *ret_id = new_id(c->place, a->name);
    model_done(&create_model, a);
    free(a);
    return r;
}

static void create_session(struct mcp_call *c, const struct json *arguments)
{
    AUTO_FREE char *id = NULL;
    struct err err = {0};

    if (check_create(c, arguments, &id, &err) < 0)
        mcp_call_tool_err(c, &err);
    else
        mcp_call_make_session(c, id, arguments, on_created);
}

/* delete_session */

static void on_deleted(void *arg, const struct err *err)
{
    struct mcp_call *c = mcp_wait_end(arg);
    AUTO_DONE(buf) struct buf out = {0};
    struct jw w;

    if (c == NULL)
        return;
    if (err != NULL) {
        mcp_call_tool_err(c, err);
        return;
    }
    buf_init(&out, 4096);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kbool(&w, "deleted", true);
    jw_object_end(&w);
    mcp_call_tool_json(c, &w, "Deleted.");
}

static void delete_session(struct mcp_call *c, const struct json *arguments)
{
    const struct policy_service *service = c->mcp->front->service;
    struct delete_args a = {0};
    struct session *s = NULL;
    struct err err = {0};
    int r = parse(&delete_model, arguments, &a, &err);

    if (r == 0)
        r = mcp_place_find(c->place, a.session_id, &s, &err);
    struct mcp_wait *w = r == 0 ? mcp_wait_new(c) : NULL;
    if (r == 0)
        r = manager_delete(c->mcp->front->manager, a.session_id, on_deleted, w, &err);
    if (r == 0) {
        const struct audit_record record = {.event = AUDIT_SESSION_DELETE,
                                            .who = c->place->who,
                                            .via = "mcp",
                                            .session = a.session_id};
        if (service->audit != NULL)
            (void)audit_write(service->audit, &record, NULL); /* it goes; losses are counted */
        if (service->outputs != NULL)
            outputs_forget(service->outputs, a.session_id);
    } else {
        if (w != NULL)
            (void)mcp_wait_end(w);
        mcp_call_tool_err(c, &err);
    }
    model_done(&delete_model, &a);
}

/* clang-format off */
#define SESSION(optional) \
    {"session_id", "string", "Its handle.", optional}, \
    {"is_default", "boolean", "It is the one that calls without session_id mean.", optional}, \
    {"state", "string", "creating or ready.", optional}, \
    {"workspace", "string", "Where its files are.", optional}, \
    {"image", "string", "Its root file system.", optional}, \
    {"network", "string", "on or off.", optional}, \
    {"memory_mb", "integer", "Its memory.", optional}, \
    {"cpus", "number", "Its processor share.", optional}, \
    {"created_at", "string", "Since when there is one.", optional}

static const struct mcp_output list_output[] = {
    {"sessions", "array", "Those that this client can use.", false},
    {"total", "integer", "How many there are.", false},
    {0},
};
static const struct mcp_output create_output[] = {SESSION(false), {0}};
static const struct mcp_output delete_output[] = {{"deleted", "boolean", "It is gone.", false}, {0}};

const struct mcp_tool mcp_session_tools[] = {
    {.name = "list_sessions", .title = "List sessions",
     .description = "List the sandboxes that can be used: their handles, limits and state.",
     .params = &none_model, .output = list_output, .read_only = true, .idempotent = true, .start = list_sessions},
    {.name = "create_session", .title = "Create a session",
     .description = "Make another sandbox with files and processes of its own, and get its handle. Not needed for "
                    "ordinary work: calls without session_id have one already.",
     .params = &create_model, .output = create_output, .scope = "session", .start = create_session},
    {.name = "delete_session", .title = "Delete a session",
     .description = "End a sandbox: every process and every file in it.",
     .params = &delete_model, .output = delete_output, .scope = "session", .destructive = true, .idempotent = true,
     .start = delete_session},
    {0},
};
/* clang-format on */
