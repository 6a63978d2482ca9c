/* SPDX-License-Identifier: Apache-2.0 */

/* Adds, filters and writes the remembered errors. */

#include "policy/error_ring.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"

struct error_entry {
    uint64_t real_ns;
    const char *type; /* class name of the LangBot wire, static */
    char *message;    /* owned by the ring */
    char *query_id;   /* owned by the ring; "" when there was none */
    char *scope;      /* owned by the ring; whose error it is, "" for the instance itself */
};

struct error_ring {
    struct error_entry entries[ERROR_RING_MAX];
    size_t first, n;
};

static const char *const classes[ERR_CODE_MAX] = {
    [ERR_NONE] = "BoxError",
    [ERR_INVALID] = "BoxValidationError",
    [ERR_NOT_FOUND] = "BoxSessionNotFoundError",
    [ERR_CONFLICT] = "BoxSessionConflictError",
    [ERR_STATE] = "BoxError",
    [ERR_LIMIT] = "BoxCapacityExceededError",
    [ERR_DENIED] = "BoxValidationError",
    [ERR_UNSUPPORTED] = "BoxBackendUnavailableError",
    [ERR_BACKEND] = "BoxBackendUnavailableError",
    [ERR_UNAVAILABLE] = "BoxBackendUnavailableError",
    [ERR_SYSTEM] = "BoxError",
};

const char *error_class_name(enum err_code code)
{
    return classes[code < ERR_CODE_MAX ? code : ERR_NONE];
}

struct error_ring *error_ring_new(void)
{
    return xnew(struct error_ring);
}

static void entry_forget(struct error_entry *e)
{
    free(e->message);
    free(e->query_id);
    free(e->scope);
    *e = (struct error_entry){0};
}

void error_ring_free(struct error_ring *r)
{
    if (r == NULL)
        return;
    for (size_t i = 0; i < ERROR_RING_MAX; i++)
        entry_forget(&r->entries[i]);
    free(r);
}

static char *capped(const char *s)
{
    size_t len = s != NULL ? strlen(s) : 0;

    return xstrndup(s != NULL ? s : "",
                    len > ERROR_RING_QUERY_MAX ? utf8_boundary(s, ERROR_RING_QUERY_MAX) : len);
}

void error_ring_add(struct error_ring *r, uint64_t real_ns, const struct err *err,
                    const char *query_id, const char *scope)
{
    struct error_entry *e = &r->entries[(r->first + r->n) % ERROR_RING_MAX];

    if (r->n == ERROR_RING_MAX) {
        entry_forget(e);
        r->first = (r->first + 1) % ERROR_RING_MAX;
    } else {
        r->n++;
    }
    e->real_ns = real_ns;
    e->type = error_class_name(err->code);
    e->message = xstrdup(err->msg);
    e->query_id = capped(query_id);
    e->scope = capped(scope);
}

/* The i-th entry of that scope, oldest first. */
static const struct error_entry *error_ring_at(const struct error_ring *r, const char *scope,
                                               size_t i)
{
    for (size_t k = 0; k < r->n; k++) {
        const struct error_entry *e = &r->entries[(r->first + k) % ERROR_RING_MAX];
        if (scope != NULL && !str_eq(e->scope, scope))
            continue;
        if (i-- == 0)
            return e;
    }
    return NULL;
}

size_t error_ring_count(const struct error_ring *r, const char *scope)
{
    size_t n = 0;

    while (error_ring_at(r, scope, n) != NULL)
        n++;
    return n;
}

void error_ring_write_json(const struct error_ring *r, const char *scope, struct jw *w)
{
    const struct error_entry *e;
    char when[40];

    jw_array(w);
    for (size_t i = 0; (e = error_ring_at(r, scope, i)) != NULL; i++) {
        clock_format(e->real_ns, when, sizeof(when));
        jw_object(w);
        jw_kstr(w, "timestamp", when);
        jw_kstr(w, "type", e->type);
        jw_kstr(w, "message", e->message);
        jw_kstr(w, "query_id", e->query_id);
        jw_object_end(w);
    }
    jw_array_end(w);
}
