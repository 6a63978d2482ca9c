/* SPDX-License-Identifier: Apache-2.0 */

/* MCP resources: lists workspaces and reads files and directories of sessions. Files as resources:
 * box://sessions/{id}/files{path}, the path absolute as inside and with escapes where a URI needs
 * them. The list has the workspaces; a directory is read as the URIs of what is in it. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/files.h"
#include "base/alloc.h"
#include "base/str.h"
#include "front/mcp/mcp_internal.h"
#include "http/codec/crypto.h"
#include "http/codec/http1.h"
#include "policy/authz.h"
#include "spec/spec.h"

#define SCHEME "box://sessions/"
#define FILES "/files"
#define TEMPLATE SCHEME "{session_id}" FILES "{+path}"
#define PAGE 100               /* sessions on one page of the list */
#define CONTENT_MAX (1U << 20) /* bytes of a file that is read whole */
#define ENTRIES_MAX 1000U      /* of a directory */
#define LIST_MAX (1U << 20)

static void put_cache(const struct mcp_call *c, struct jw *w, bool is_public)
{
    if (!c->modern)
        return;
    jw_kint(w, "ttlMs", is_public ? MCP_LIST_TTL_MS : 0);
    jw_kstr(w, "cacheScope", is_public ? "public" : "private");
}

/* Lists. */

static void list_templates(struct mcp_call *c)
{
    AUTO_DONE(front_answer) struct front_answer out = {0};

    struct jw *w = mcp_call_begin(c, &out);
    jw_karray(w, "resourceTemplates");
    jw_object(w);
    jw_kstr(w, "uriTemplate", TEMPLATE);
    jw_kstr(w, "name", "file");
    jw_kstr(w, "title", "File of a session");
    jw_kstr(w, "description",
            "A file or directory under the workspace of a session: session_id is its handle, path "
            "is absolute, such as /workspace/notes.txt.");
    jw_object_end(w);
    jw_array_end(w);
    put_cache(c, w, true);
    mcp_call_end(c, &out);
}

static void put_escaped(struct buf *out, const char *s, size_t len)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                "0123456789-._~/!$&'()*+,;=:@";

    for (size_t i = 0; i < len; i++)
        if (s[i] != '\0' && strchr(plain, s[i]) != NULL)
            (void)buf_putc(out, s[i]);
        else
            (void)buf_printf(out, "%%%02X", (unsigned char)s[i]);
}

static void put_uri(struct buf *out, const char *id, const char *path)
{
    (void)buf_puts(out, SCHEME);
    put_escaped(out, id, strlen(id));
    (void)buf_puts(out, FILES);
    put_escaped(out, path, strlen(path));
}

static void write_workspace(struct jw *w, const struct session *s)
{
    AUTO_DONE(buf) struct buf uri = BUF_INIT(3 * (SPEC_ID_MAX + SPEC_PATH_MAX) + 64);
    AUTO_FREE char *title = xasprintf("Workspace of session %s", session_id(s));

    put_uri(&uri, session_id(s), session_spec(s)->mount_path);
    jw_object(w);
    jw_kstr(w, "uri", buf_str(&uri));
    jw_kstr(w, "name", session_id(s));
    jw_kstr(w, "title", title);
    jw_kstr(w, "mimeType", "text/uri-list");
    jw_object_end(w);
}

static void list_resources(struct mcp_call *c)
{
    const struct json *given = json_get(c->message.params, "cursor");
    const char *cursor = json_str(given);
    struct manager *m = c->mcp->front->manager;
    AUTO_DONE(front_answer) struct front_answer out = {0};
    struct session *s = cursor != NULL ? manager_find(m, cursor) : NULL;
    const char *last = NULL;
    unsigned n = 0;

    if (given != NULL && cursor == NULL) {
        mcp_call_failf(c, MCP_INVALID_PARAMS, "cursor must be a string");
        return;
    }
    /* The cursor is the last session of the page before. When that is gone the client has to begin
     * anew. */
    if (cursor != NULL && (s == NULL || !mcp_place_reaches(c->place, cursor))) {
        mcp_call_failf(c, MCP_INVALID_PARAMS, "no such cursor: list again without one");
        return;
    }
    struct jw *w = mcp_call_begin(c, &out);
    jw_karray(w, "resources");
    bool may = authz_check_tool(c->place->scope, "read", NULL) == 0;
    for (s = manager_next(m, s); may && s != NULL && n < PAGE; s = manager_next(m, s)) {
        if (!mcp_place_reaches(c->place, session_id(s)))
            continue;
        write_workspace(w, s);
        last = session_id(s);
        n++;
    }
    jw_array_end(w);
    if (s != NULL && last != NULL)
        jw_kstr(w, "nextCursor", last);
    put_cache(c, w, false);
    mcp_call_end(c, &out);
}

/* Reading. */

struct resource_read {
    struct mcp_call *call;
    char *uri, *id, *path;    /* owned; path as inside */
    const char *root;         /* of the session; held by `files` */
    struct session *session;  /* held */
    struct files_call *files; /* owned */
    struct buf content;
    bool is_directory, too_large;
    uint64_t size;
};

static void resource_read_free(void *work)
{
    struct resource_read *r = work;

    files_call_free(r->files);
    if (r->session != NULL)
        session_release(r->session);
    buf_done(&r->content);
    free(r->uri);
    free(r->id);
    free(r->path);
    free(r);
}

/* NULL: an escape is broken, or there is a NUL. Owned. */
static char *uri_unescape(const char *s, size_t len)
{
    AUTO_FREE char *out = xcalloc(1, len + 1);

    return http1_percent_decode((struct http1_str){s, len}, false, out, len + 1) < 0
               ? NULL
               : TAKE_PTR(out);
}

/* What the URI names. False: it is none of ours. */
static bool read_uri(struct resource_read *r, const char *uri)
{
    if (!str_starts(uri, SCHEME) || strlen(uri) > 3 * (SPEC_ID_MAX + SPEC_PATH_MAX))
        return false;
    const char *id = uri + strlen(SCHEME);
    const char *slash = strchr(id, '/');
    if (slash == NULL || !str_starts(slash, FILES "/"))
        return false;
    const char *path = slash + strlen(FILES);
    r->uri = xstrdup(uri);
    r->id = uri_unescape(id, (size_t)(slash - id));
    r->path = uri_unescape(path, strlen(path));
    return r->id != NULL && r->path != NULL && strlen(r->path) < FILES_PATH_MAX;
}

static void not_found(struct mcp_call *c, const char *what)
{
    mcp_call_failf(c, c->modern ? MCP_INVALID_PARAMS : MCP_NO_RESOURCE_LEGACY,
                   "Resource not found: %.300s", what);
}

static void fail_with(struct mcp_call *c, const struct err *err)
{
    if (err->code == ERR_NOT_FOUND)
        not_found(c, err->msg);
    else
        mcp_call_failf(c,
                       err->code == ERR_BACKEND || err->code == ERR_SYSTEM ? MCP_INTERNAL
                                                                           : MCP_INVALID_PARAMS,
                       "%s", err->msg);
}

static void reply_content(struct mcp_call *c, struct resource_read *r, const char *type)
{
    bool text = utf8_valid(buf_str(&r->content), r->content.len) &&
                memchr(buf_str(&r->content), '\0', r->content.len) == NULL;
    AUTO_DONE(front_answer) struct front_answer out = {0};

    struct jw *w = mcp_call_begin(c, &out);
    jw_karray(w, "contents");
    jw_object(w);
    jw_kstr(w, "uri", r->uri);
    if (text) {
        jw_kstr(w, "mimeType", type != NULL ? type : "text/plain");
        jw_kstrn(w, "text", buf_str(&r->content), r->content.len);
    } else {
        AUTO_FREE char *encoded = xcalloc(1, r->content.len / 3 * 4 + 8);
        http_base64(r->content.data, r->content.len, encoded);
        jw_kstr(w, "mimeType", "application/octet-stream");
        jw_kstr(w, "blob", encoded);
    }
    jw_object_end(w);
    jw_array_end(w);
    put_cache(c, w, false);
    mcp_call_end(c, &out);
}

static void on_failure(struct mcp_call *c, const struct resource_read *r,
                       const struct files_failure *f)
{
    if (f->why == FILES_WHY_ERRNO && (f->error == ENOENT || f->error == ENOTDIR))
        not_found(c, r->path);
    else if (f->why == FILES_WHY_ESCAPE)
        mcp_call_failf(c, MCP_INVALID_PARAMS, "%.200s leads out of the workspace", r->path);
    else
        fail_with(c, &f->err);
}

/* A directory: the URIs of what is in it. */

static void on_entry(void *arg, enum files_type type, const char *data, size_t len)
{
    struct resource_read *r = arg;
    struct files_entry e;

    if (type != FILES_FRAME_ENTRY || len < sizeof(e))
        return;
    memcpy(&e, data, sizeof(e));
    put_uri(&r->content, r->id, r->path);
    if (r->path[strlen(r->path) - 1] != '/')
        (void)buf_putc(&r->content, '/');
    put_escaped(&r->content, data + sizeof(e), e.name_len);
    (void)buf_puts(&r->content, S_ISDIR(e.stat.mode) ? "/\r\n" : "\r\n");
}

static void on_listed(void *arg, const struct files_done *done, const struct files_failure *failure)
{
    struct resource_read *r = arg;

    if (failure != NULL) {
        on_failure(r->call, r, failure);
        return;
    }
    if (done->cut != FILES_CUT_NONE)
        (void)buf_printf(&r->content, "# %llu entries in all; the glob tool finds the others\r\n",
                         (unsigned long long)done->total);
    reply_content(r->call, r, "text/uri-list");
}

/* Beneath the root. */
static const char *path_beneath(const struct resource_read *r)
{
    const char *path = r->path + strlen(r->root);

    return path[0] != '\0' ? path : ".";
}

static void list_directory(struct resource_read *r)
{
    static const struct files_events events = {.frame = on_entry, .finished = on_listed};
    const struct files_ask ask = {.head = {.op = FILES_LIST, .length = ENTRIES_MAX},
                                  .root = r->root,
                                  .path = path_beneath(r),
                                  .timeout_ns = FILES_TIMEOUT_NS};
    struct err err = {0};

    files_call_free(TAKE_PTR(r->files));
    buf_reset(&r->content);
    if (files_start(r->session, &ask, &events, r, &r->files, &err) < 0)
        fail_with(r->call, &err);
}

/* A file. */

static void on_content(void *arg, enum files_type type, const char *data, size_t len)
{
    struct resource_read *r = arg;
    struct files_stat st;

    if (type == FILES_FRAME_STAT && len == sizeof(st)) {
        memcpy(&st, data, sizeof(st));
        r->size = st.tag.size;
    } else if (type == FILES_FRAME_DATA && buf_append(&r->content, data, len) < 0) {
        r->too_large = true;
    }
}

static void on_read(void *arg, const struct files_done *done, const struct files_failure *failure)
{
    struct resource_read *r = arg;

    if (failure != NULL && failure->why == FILES_WHY_ERRNO && failure->error == EISDIR)
        list_directory(r);
    else if (failure != NULL && failure->why == FILES_WHY_RANGE && failure->n == 0)
        reply_content(r->call, r, NULL); /* it is empty */
    else if (failure != NULL)
        on_failure(r->call, r, failure);
    else if (r->too_large || r->size > CONTENT_MAX)
        mcp_call_failf(r->call, MCP_INVALID_PARAMS,
                       "%.200s has %llu bytes, and at most %u are read as a resource: use the tool "
                       "read with offset or byte_offset",
                       r->path, (unsigned long long)r->size, CONTENT_MAX);
    else
        reply_content(r->call, r, NULL);
}

static int find_session(struct mcp_call *c, struct resource_read *r, struct err *err)
{
    int e = authz_check_tool(c->place->scope, "read", err);

    if (e == 0)
        e = mcp_place_find(c->place, r->id, &r->session, err);
    if (e < 0) {
        r->session = NULL;
        return e;
    }
    session_hold(r->session);
    r->root = session_spec(r->session)->mount_path;
    size_t n = strlen(r->root);
    if (strncmp(r->path, r->root, n) != 0 || (r->path[n] != '/' && r->path[n] != '\0'))
        return err_set(err, ERR_INVALID, "the path of a resource is under %s", r->root);
    return 0;
}

static void read_resource(struct mcp_call *c)
{
    static const struct files_events events = {.frame = on_content, .finished = on_read};
    const char *uri = json_str(json_get(c->message.params, "uri"));
    struct resource_read *r = xnew(struct resource_read);
    struct err err = {0};

    r->call = c;
    mcp_call_set_work(c, r, resource_read_free);
    buf_init(&r->content, CONTENT_MAX);
    if (uri == NULL) {
        mcp_call_failf(c, MCP_INVALID_PARAMS, "uri is missing");
        return;
    }
    if (!read_uri(r, uri)) {
        not_found(c, uri);
        return;
    }
    int e = find_session(c, r, &err);
    const struct files_ask ask = {
        .head = {.op = FILES_READ, .flags = FILES_RANGE, .length = CONTENT_MAX},
        .root = r->root,
        .path = e == 0 ? path_beneath(r) : NULL,
        .timeout_ns = FILES_TIMEOUT_NS};
    if (e == 0)
        e = files_start(r->session, &ask, &events, r, &r->files, &err);
    if (e < 0)
        fail_with(c, &err);
}

const struct mcp_method mcp_resource_methods[] = {
    {"resources/list", MCP_ERA_BOTH, list_resources},
    {"resources/templates/list", MCP_ERA_BOTH, list_templates},
    {"resources/read", MCP_ERA_BOTH, read_resource},
    {0},
};
