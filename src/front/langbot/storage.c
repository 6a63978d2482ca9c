/* SPDX-License-Identifier: Apache-2.0 */

/* How much a workspace keeps: in its directory of the host, and in its sandboxes. Roots add up to
 * the whole; details lie inside of a root. */

#include <stdlib.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "front/langbot/tenant/usage.h"
#include "jobs/hostdir.h"

static const struct {
    const char *key, *name; /* in the directory of the workspace; "": itself */
} parts[] = {{"workspace", ""}, {"mcp", ".mcp"}, {"inbox", "inbox"}, {"outbox", "outbox"}};

static const struct {
    const char *key, *path;
} places[USAGE_PLACE_MAX] = {
    [USAGE_WORKSPACE] = {"session_workspaces", "/workspace"},
    [USAGE_CACHE] = {"session_caches", "~/.cache"},
    [USAGE_TEMP] = {"session_temp", "/tmp"},
};

struct row {
    const char *key, *path, *parent; /* parent NULL: a root */
    bool exists;
    uint64_t bytes, files, errors;
};

static void write_row(struct jw *w, const struct row *row, const char *scope)
{
    jw_object(w);
    jw_kstr(w, "key", row->key);
    jw_kstr(w, "path", row->path);
    jw_kstr(w, "kind", row->parent == NULL ? "root" : "detail");
    jw_kbool(w, "exists", row->exists);
    jw_ku64(w, "size_bytes", row->bytes);
    jw_ku64(w, "file_count", row->files);
    jw_ku64(w, "error_count", row->errors);
    if (row->parent != NULL)
        jw_kstr(w, "parent_key", row->parent);
    jw_kstr(w, "scope", scope);
    jw_object_end(w);
}

/* A helper says it, which may have been misled by what it met. */
static uint64_t amount(const struct json *part, const char *name)
{
    int64_t value = json_int(json_get(part, name));
    return value > 0 ? (uint64_t)value : 0;
}

static uint64_t write_host(const struct langbot_call *c, struct jw *w)
{
    uint64_t total = 0;
    if (c->storage.dir == NULL)
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
        const struct json *part = json_get(c->storage.measured, parts[i].name);
        AUTO_FREE char *path = xasprintf("%s%s%s", c->storage.dir, i > 0 ? "/" : "", parts[i].name);
        const struct row row = {.key = parts[i].key,
                                .path = path,
                                .parent = i > 0 ? parts[0].key : NULL,
                                .exists = json_bool(json_get(part, "exists")),
                                .bytes = amount(part, "size_bytes"),
                                .files = amount(part, "file_count"),
                                .errors = amount(part, "error_count") + c->storage.failed};
        write_row(w, &row, "runtime_host");
        total += i == 0 ? row.bytes : 0;
    }
    return total;
}

static uint64_t write_sessions(const struct usage_report *report, struct jw *w)
{
    static const char scope[] = "sandbox_sessions";
    uint64_t total = 0, errors = report->sessions - report->measured;
    for (int i = 0; i < USAGE_PLACE_MAX && report->sessions > 0; i++) {
        const struct usage_amount *at = &report->at[i];
        AUTO_FREE char *path =
            xasprintf("%s (%zu sandbox sessions)", places[i].path, report->measured);
        write_row(
            w, &(struct row){places[i].key, path, NULL, at->exists, at->bytes, at->files, errors},
            scope);
        total += at->bytes;
    }
    if (report->managed > 0) {
        const struct usage_amount *at = &report->managed_workspaces;
        AUTO_FREE char *path =
            xasprintf("/workspace (%zu managed-process sessions)", report->managed);
        write_row(w,
                  &(struct row){"managed_process_workspaces", path, places[USAGE_WORKSPACE].key,
                                at->exists, at->bytes, at->files, errors},
                  scope);
    }
    return total;
}

static void on_usage(void *arg, const struct usage_report *report)
{
    struct langbot_call *c = arg;
    struct langbot_reply reply;
    struct jw *w = &reply.w;
    c->cancel = NULL;
    langbot_reply_open(c, &reply);
    jw_key(w, "directories");
    jw_array(w);
    uint64_t total = write_host(c, w);
    total += write_sessions(report, w);
    jw_array_end(w);
    jw_ku64(w, "size_bytes", total);
    jw_ku64(w, "active_sessions", report->sessions);
    jw_ku64(w, "managed_processes", report->processes);
    langbot_reply_close(c, &reply);
}

static void ask_sessions(struct langbot_call *c)
{
    const struct usage_options options = {.manager = c->rpc->o.manager, .prefix = c->prefix};
    c->cancel = langbot_call_end;
    c->storage.usage = usage_new(&options, on_usage, c);
}

static void on_measured(void *arg, const char *json, size_t len, const char *message)
{
    struct langbot_call *c = arg;
    struct err err = {0};
    if (json != NULL ? json_parse(json, len, &c->storage.measured, &err) < 0
                     : !str_ends(message, HOSTDIR_MISSING)) {
        log_debug(NULL, "measure '%s': %s; ignoring", c->storage.dir,
                  json != NULL ? err.msg : message);
        c->storage.failed = true;
    }
    if (c->cancelled)
        langbot_call_end(c);
    else
        ask_sessions(c);
}

void langbot_storage_analysis(struct langbot_call *c)
{
    const char *names[ARRAY_SIZE(parts)] = {NULL}; /* all but the first */
    const char *root = NULL;
    struct err err = {0};
    if (c->ns[0] == '\0' || c->rpc->o.skills == NULL ||
        box_paths_managed_place(&c->rpc->paths, &root, &err) < 0) {
        ask_sessions(c);
        return;
    }
    for (size_t i = 1; i < ARRAY_SIZE(parts); i++)
        names[i - 1] = parts[i].name;
    c->storage.dir = box_paths_tenant_dir(&c->rpc->paths, c->ns);
    if (hostdir_measure(langbot_skills(c), c->storage.dir, names, on_measured, c, &err) < 0)
        on_measured(c, NULL, 0, err.msg);
}

void langbot_storage_done(struct langbot_storage *s)
{
    usage_free(s->usage);
    json_free(s->measured);
    free(s->dir);
    *s = (struct langbot_storage){0};
}
