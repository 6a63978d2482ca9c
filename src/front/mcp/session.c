/* SPDX-License-Identifier: Apache-2.0 */

/* Finds, creates, keeps and ends the sessions that an MCP client may use, and the tools that list,
 * create and delete them by their handle. A model may choose only settings of a new session that
 * reach no further than its own: never a directory of the host. */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "front/mcp/mcp_internal.h"
#include "policy/authz.h"
#include "spec/model.h"
#include "spec/spec.h"

#define SETTINGS_MAX (1U << 20)
#define LIST_MAX (4U << 20)
#define SHOWN_MAX 1000 /* sessions of one list */

/* Places -------------------------------------------------------------------------------------- */

struct mcp_place *mcp_place_new(struct mcp *m, const struct authz_scope *scope, const char *who,
                                const char *tail)
{
    struct mcp_place *p = xnew(struct mcp_place);

    p->mcp = m;
    p->refs = 1;
    p->scope = authz_hold(scope);
    p->who = xstrdup(who);
    p->base = authz_session_name(scope, tail);
    p->session_id = p->base != NULL ? xstrdup(p->base) : NULL;
    p->confined = scope == NULL;
    /* Several tokens may have a name that their scopes spell out. */
    p->own_name = p->base != NULL && str_ends(p->base, tail);
    return p;
}

static void keep_session(struct mcp_place *p, struct session *s)
{
    if (p->kept == s)
        return;
    if (p->kept != NULL) {
        session_guest_leaves(p->kept);
        session_release(p->kept);
    }
    p->kept = s;
    if (s != NULL) {
        session_hold(s);
        session_guest_comes(s);
    }
}

/* NULL: not made yet, gone, or the name belongs to another session by now. */
static struct session *own_session(const struct mcp_place *p)
{
    return p->made != NULL && manager_find(p->mcp->front->manager, p->session_id) == p->made
               ? p->made
               : NULL;
}

void mcp_place_keep(struct mcp_place *p, bool on)
{
    p->keeps = on;
    keep_session(p, on ? own_session(p) : NULL);
}

void mcp_place_got(struct mcp_place *p, struct session *s)
{
    session_hold(s);
    if (p->made != NULL)
        session_release(p->made);
    p->made = s;
    if (p->keeps)
        keep_session(p, s);
}

void mcp_place_release(struct mcp_place *p)
{
    if (p == NULL)
        return;
    assert(p->refs > 0);
    if (--p->refs > 0)
        return;
    keep_session(p, NULL);
    assert(LIST_EMPTY(&p->calls)); /* each of them holds the place */
    if (p->made != NULL && p->ephemeral && p->own_name)
        front_session_discard(p->mcp->front, p->made);
    if (p->made != NULL)
        session_release(p->made);
    authz_release(p->scope);
    json_free(p->settings);
    free(p->who);
    free(p->base);
    free(p->session_id);
    free(p);
}

void mcp_place_close(struct mcp_place *p)
{
    while (!LIST_EMPTY(&p->calls))
        mcp_call_free(LIST_FIRST(&p->calls));
    mcp_place_release(p);
}

/* A token's name may be longer than, or unlike, a name of a session. */
static char *tail_of(const char *who)
{
    AUTO_FREE char *name = xasprintf("mcp-%s", who);

    if (strlen(name) <= 40 && id_valid(name))
        return TAKE_PTR(name);
    return xasprintf("mcp-%016llx", (unsigned long long)str_hash(who));
}

struct mcp_place *mcp_place_of_caller(struct mcp *m, const struct authz_scope *scope,
                                      const char *who)
{
    struct mcp_place **at = &m->callers;

    while (*at != NULL && !str_eq((*at)->who, who))
        at = &(*at)->next;
    struct mcp_place *p = *at;
    if (p != NULL && p->scope == scope)
        return p;
    /* The tokens were read again: what this one may do has perhaps changed. */
    if (p != NULL) {
        *at = p->next;
        mcp_place_release(p);
    }
    AUTO_FREE char *tail = tail_of(who);
    p = mcp_place_new(m, scope, who, tail);
    p->shared = true;
    p->next = m->callers;
    m->callers = p;
    return p;
}

bool mcp_place_reaches(const struct mcp_place *p, const char *id)
{
    if (!p->confined)
        return authz_sees(p->scope, NULL, id);
    size_t n = strlen(p->base);
    return (str_eq(id, p->session_id) || (strncmp(id, p->base, n) == 0 && id[n] == '-')) &&
           !manager_is_users(p->mcp->front->manager, id);
}

int mcp_place_find(const struct mcp_place *p, const char *id, struct session **ret, struct err *err)
{
    const struct front *f = p->mcp->front;
    struct session *s = mcp_place_reaches(p, id) ? manager_find(f->manager, id) : NULL;

    if (s == NULL)
        return err_missing(err, ERR_THING_SESSION,
                           "session %.80s not found; list_sessions lists the sessions", id);
    *ret = s;
    return policy_check_use(f->service->policy, p->scope, session_spec(s), err);
}

static void on_ready(void *arg, struct session *s, const struct err *err)
{
    struct mcp_wait *w = arg;
    mcp_session_fn *then = w->then;
    struct mcp_place *place = w->place;
    struct mcp_call *c = mcp_wait_end(w);

    if (place != NULL && s != NULL)
        mcp_place_got(place, s);
    mcp_place_release(place); /* the session goes at once where the client has */
    if (c != NULL && s == NULL)
        mcp_call_tool_err(c, err);
    else if (c != NULL)
        then(c, s);
    if (s != NULL)
        session_release(s);
}

/* The session of that name as POST /v1/sessions takes it, owned: the settings of the place, and
 * `more` (or NULL) over them. */
static struct json *place_settings(const struct mcp_place *p, const char *id,
                                   const struct json *more)
{
    AUTO_DONE(front_answer) struct front_answer text;
    struct jw *w = front_begin(&text, SETTINGS_MAX);
    struct json *ret = NULL;

    jw_kstr(w, "session_id", id);
    for (void *it = json_iter(p->settings); it != NULL; it = json_iter_next(p->settings, it)) {
        const char *key = json_iter_key(it);
        if (!str_eq(key, "session_id") && json_get(more, key) == NULL)
            jw_kvalue(w, key, json_iter_value(it));
    }
    for (void *it = json_iter(more); it != NULL; it = json_iter_next(more, it))
        if (!str_eq(json_iter_key(it), "name"))
            jw_kvalue(w, json_iter_key(it), json_iter_value(it));
    if (front_end(&text) == 0)
        (void)json_parse(buf_str(&text.out), text.out.len, &ret, NULL);
    return ret;
}

/* The session of that name, made if need be: with the settings of the place and `more` (or NULL).
 */
static void make_session(struct mcp_call *c, const char *id, const struct json *more,
                         mcp_session_fn *then)
{
    struct mcp_place *p = c->place;
    const struct front_asker asker = {
        .scope = p->scope, .who = p->who, .via = "mcp", .tool = c->tool.scope};
    AUTO(json) struct json *object = place_settings(p, id, more);
    struct mcp_wait *w = mcp_wait_new(c);
    struct err err = {0};

    w->then = then;
    const struct front_want want = {.object = object, .id_required = true};
    if (front_session_get(c->mcp->front, &asker, &want, on_ready, w, &err) == 0) {
        w->place = str_eq(id, p->session_id) ? p : NULL;
        p->refs += w->place != NULL;
        return;
    }
    (void)mcp_wait_end(w);
    mcp_call_tool_err(c, &err);
}

/* One that is stopped. */
static void start_session(struct mcp_call *c, const struct session *s, mcp_session_fn *then)
{
    struct mcp_wait *w = mcp_wait_new(c);
    struct err err = {0};

    w->then = then;
    if (manager_start(c->mcp->front->manager, session_id(s), on_ready, w, &err) == 0)
        return;
    (void)mcp_wait_end(w);
    mcp_call_tool_err(c, &err);
}

/* Nothing has to be made or waited for. */
static bool own_session_ready(const struct mcp_place *p)
{
    const struct session *s = own_session(p);

    return s != NULL && session_state(s) == SESSION_READY;
}

void mcp_call_session(struct mcp_call *c, mcp_session_fn *then)
{
    struct mcp_place *p = c->place;
    const char *id = c->session_id;
    struct session *s = NULL;
    struct err err = {0};

    if (id == NULL && p->session_id == NULL) {
        (void)err_set(&err, ERR_INVALID,
                      "this token's scope names no sessions: session_id cannot be left out");
    } else if (id == NULL && !own_session_ready(p)) {
        make_session(c, p->session_id, NULL, then);
        return;
    } else if (mcp_place_find(p, id != NULL ? id : p->session_id, &s, &err) < 0) {
        mcp_call_tool_err(c, &err);
        return;
    } else if (session_dormant(s)) {
        start_session(c, s, then);
        return;
    } else if (session_state(s) == SESSION_PAUSED) {
        (void)session_refuse_paused(s, &err);
    } else {
        session_hold(s);
        then(c, s);
        session_release(s);
        return;
    }
    mcp_call_tool_err(c, &err);
}

/* Tools --------------------------------------------------------------------------------------- */

struct create_args {
    char *name, *image, *profile;
    enum network network;
    int64_t memory_mb, pids_limit, workspace_quota_mb;
    double cpus;
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
                                          .closed = true,
                                          MODEL_FIELDS(create_fields, struct create_args)};
static const struct model delete_model = {.name = "delete_session",
                                          .doc = "The session to end.",
                                          .closed = true,
                                          MODEL_FIELDS(delete_fields, struct delete_args)};

static void write_session(const struct mcp_place *p, const struct session *s, struct jw *w)
{
    const struct spec *spec = session_spec(s);

    jw_kstr(w, "session_id", session_id(s));
    jw_kbool(w, "is_default", str_eq(session_id(s), p->session_id));
    jw_kstr(w, "state", session_state_name(session_state(s)));
    jw_kstr(w, "workspace", spec->mount_path);
    jw_kstr(w, "image", spec->image);
    jw_kstr(w, "network", network_names[spec->network]);
    jw_kint(w, "memory_mb", spec->memory_mb);
    jw_kreal(w, "cpus", spec->cpus);
    front_write_time(w, "created_at", session_created(s));
}

/* list_sessions */

static void list_sessions(struct mcp_call *c, const struct json *arguments)
{
    struct manager *m = c->mcp->front->manager;
    size_t total = 0;
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, LIST_MAX);

    jw_karray(w, "sessions");
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s)) {
        if (!mcp_place_reaches(c->place, session_id(s)))
            continue;
        if (total++ >= SHOWN_MAX)
            continue;
        jw_object(w);
        write_session(c->place, s, w);
        jw_object_end(w);
    }
    jw_array_end(w);
    jw_ku64(w, "total", total);
    mcp_call_tool_json(c, &out, NULL);
}

/* create_session */

/* On stdio the person who started the server decided whether there is a network; a model cannot
 * change that. */
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
    AUTO_FREE char *text = xasprintf("Session %s is ready. Pass it as session_id.", session_id(s));
    AUTO_DONE(front_answer) struct front_answer out;

    write_session(c->place, s, front_begin(&out, LIST_MAX));
    mcp_call_tool_json(c, &out, text);
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
    struct create_args a = {0};
    int r = mcp_args_parse(&create_model, arguments, &a, err);

    if (r == 0)
        r = check_network(c, arguments, err);
    if (r == 0 && !c->place->own_name)
        r = err_set(err, ERR_DENIED, "the scope of this token names the sessions it may use");
    if (r == 0)
        *ret_id = new_id(c->place, a.name);
    model_done(&create_model, &a);
    return r;
}

static void create_session(struct mcp_call *c, const struct json *arguments)
{
    AUTO_FREE char *id = NULL;
    struct err err = {0};

    if (check_create(c, arguments, &id, &err) < 0)
        mcp_call_tool_err(c, &err);
    else
        make_session(c, id, arguments, on_created);
}

/* delete_session */

static void on_deleted(void *arg, const struct err *err)
{
    mcp_wait_done(arg, err, "deleted", "Deleted.");
}

static void delete_session(struct mcp_call *c, const struct json *arguments)
{
    const struct front_asker asker = mcp_place_asker(c->place);
    struct delete_args a = {0};
    struct session *s = NULL;
    struct err err = {0};
    int r = mcp_args_parse(&delete_model, arguments, &a, &err);

    if (r == 0)
        r = mcp_place_find(c->place, a.session_id, &s, &err);
    struct mcp_wait *w = mcp_wait_new(c);
    if (r == 0)
        r = front_session_delete(c->mcp->front, &asker, a.session_id, on_deleted, w, &err);
    model_done(&delete_model, &a);
    if (r < 0)
        mcp_wait_failed(w, &err);
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

const struct mcp_tool_row mcp_session_tools[] = {
    {.name = "list_sessions", .title = "List sessions",
     .description = "List the sandboxes that can be used: their handles, limits and state.",
     .params = &mcp_no_arguments, .output = list_output, .read_only = true, .idempotent = true, .start = list_sessions},
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
