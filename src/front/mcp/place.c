/* SPDX-License-Identifier: Apache-2.0 */

/* Finds, creates, keeps and ends the sessions that an MCP client may use. */

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/str.h"
#include "command/policy_gate.h"
#include "command/policy_service.h"
#include "front/mcp/mcp_internal.h"
#include "policy/authz.h"
#include "session/manager.h"
#include "spec/spec.h"

#define SETTINGS_MAX (1U << 20)

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
    /* A name that the scope spells out may be somebody else's, too. */
    p->own_name = p->base != NULL && str_ends(p->base, tail);
    return p;
}

static void keep(struct mcp_place *p, struct session *s)
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

void mcp_place_keep(struct mcp_place *p, bool on)
{
    struct session *s = p->made ? manager_find(p->mcp->front->manager, p->session_id) : NULL;

    p->keeps = on;
    keep(p, on ? s : NULL);
}

void mcp_place_hold(struct mcp_place *p)
{
    p->refs++;
}

static void on_gone(void *arg, const struct err *err)
{
    if (err != NULL)
        log_warn(arg, "remove the session of an MCP client: %s; ignoring", err->msg);
    free(arg);
}

void mcp_place_release(struct mcp_place *p)
{
    if (p == NULL || --p->refs > 0)
        return;
    keep(p, NULL);
    if (p->ephemeral && p->own_name && p->made) {
        char *id = xstrdup(p->session_id);
        if (manager_delete(p->mcp->front->manager, id, on_gone, id, NULL) < 0)
            free(id); /* it is gone already */
    }
    authz_release(p->scope);
    json_free(p->settings);
    free(p->who);
    free(p->base);
    free(p->session_id);
    free(p);
}

void mcp_place_close(struct mcp_place *p)
{
    while (p->calls != NULL)
        mcp_call_free(p->calls);
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
    /* The tokens were read again: what that one may has changed, perhaps. */
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

/* Which sessions. */

bool mcp_place_reaches(const struct mcp_place *p, const char *id)
{
    if (!p->confined)
        return authz_sees(p->scope, NULL, id);
    size_t n = strlen(p->base);
    return str_eq(id, p->session_id) || (strncmp(id, p->base, n) == 0 && id[n] == '-');
}

int mcp_place_find(const struct mcp_place *p, const char *id, struct session **ret, struct err *err)
{
    const struct front *f = p->mcp->front;
    struct session *s = mcp_place_reaches(p, id) ? manager_find(f->manager, id) : NULL;

    if (s == NULL)
        return err_missing(err, ERR_THING_SESSION,
                           "session %.80s not found; list_sessions tells which there are", id);
    *ret = s;
    return policy_check_use(f->service->policy, p->scope, session_spec(s), err);
}

/* The one that is meant, made. */

static void on_ready(void *arg, struct session *s, const struct err *err)
{
    struct mcp_wait *w = arg;
    mcp_session_fn *then = w->then;
    bool own = w->own;
    struct mcp_call *c = mcp_wait_end(w);

    if (c != NULL && s != NULL && own && c->place->keeps)
        keep(c->place, s);

    if (c != NULL && s == NULL)
        mcp_call_tool_err(c, err);
    else if (c != NULL)
        then(c, s);
    if (s != NULL)
        session_release(s);
}

static struct json *mcp_place_settings(const struct mcp_place *p, const char *id,
                                       const struct json *more)
{
    AUTO_DONE(buf) struct buf text = {0};
    struct json *ret = NULL;
    struct jw w;

    buf_init(&text, SETTINGS_MAX);
    jw_init(&w, &text);
    jw_object(&w);
    jw_kstr(&w, "session_id", id);
    for (void *it = json_iter(p->settings); it != NULL; it = json_iter_next(p->settings, it)) {
        const char *key = json_iter_key(it);
        if (str_eq(key, "session_id") || json_get(more, key) != NULL)
            continue;
        jw_key(&w, key);
        jw_value(&w, json_iter_value(it));
    }
    for (void *it = json_iter(more); it != NULL; it = json_iter_next(more, it)) {
        if (str_eq(json_iter_key(it), "name"))
            continue;
        jw_key(&w, json_iter_key(it));
        jw_value(&w, json_iter_value(it));
    }
    jw_object_end(&w);
    if (jw_end(&w) == 0)
        (void)json_parse(buf_str(&text), text.len, &ret, NULL);
    return ret;
}

void mcp_call_make_session(struct mcp_call *c, const char *id, const struct json *more,
                           mcp_session_fn *then)
{
    const struct mcp_place *p = c->place;
    const struct front_asker asker = {
        .scope = p->scope, .who = p->who, .via = "mcp", .tool = c->tool.scope};
    AUTO(json) struct json *object = mcp_place_settings(p, id, more);
    struct mcp_wait *w = mcp_wait_new(c);
    struct err err = {0};

    w->then = then;
    w->own = str_eq(id, p->session_id);
    const struct front_want want = {.object = object, .id_required = true};
    if (front_session_get(c->mcp->front, &asker, &want, on_ready, w, &err) == 0)
        return;
    (void)mcp_wait_end(w);
    mcp_call_tool_err(c, &err);
}

/* Nothing has to be made or waited for. */
static bool is_there(const struct mcp_place *p)
{
    const struct session *s = p->made ? manager_find(p->mcp->front->manager, p->session_id) : NULL;

    return s != NULL && session_state(s) == SESSION_READY;
}

void mcp_call_session(struct mcp_call *c, const char *id, mcp_session_fn *then)
{
    struct mcp_place *p = c->place;
    struct session *s = NULL;
    struct err err = {0};

    if (id == NULL && p->session_id == NULL) {
        (void)err_set(&err, ERR_INVALID,
                      "this token's scope names no sessions: session_id cannot be left out");
    } else if (id == NULL && !is_there(p)) {
        p->made = true;
        mcp_call_make_session(c, p->session_id, NULL, then);
        return;
    } else if (mcp_place_find(p, id != NULL ? id : p->session_id, &s, &err) == 0) {
        session_hold(s);
        then(c, s);
        session_release(s);
        return;
    }
    mcp_call_tool_err(c, &err);
}
