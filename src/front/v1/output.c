/* SPDX-License-Identifier: Apache-2.0 */

/* Reads ranges of a command's whole stored output, and searches it for a pattern. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/regex.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "front/v1/v1_internal.h"
#include "http/server/server.h"
#include "loop/loop.h"
#include "policy/authz.h"
#include "policy/outputs.h"
#include "session/manager.h"

#define READ_MAX (4U << 20)
#define PATTERN_MAX (REGEX_PATTERN_MAX + 1U)
#define ANSWER_MAX (16U << 20)

/* Outputs outlive their session, for a while: only the name has to be the caller's. False:
 * answered. */
static bool find(struct http_request *req, const struct v1 *v, struct output_ref *ret)
{
    struct err err = {0};

    ret->owner = http_request_param(req, "id");
    ret->id = http_request_param(req, "output");
    if (!front_may(req, &v->front, "read"))
        return false;
    int r = front_owns(req, &v->front, ret->owner)
                ? 0
                : authz_check_session(front_caller(req), ret->owner, &err);
    if (r == 0 && v->front.service->outputs == NULL)
        r = err_missing(&err, ERR_THING_OUTPUT, "outputs are not kept");
    if (r < 0)
        front_fail(req, &err);
    return r == 0;
}

/* "bytes=FROM-", "bytes=FROM-TO", "bytes=-LAST"; one of them. Anything else is not understood. */
static int read_range(const char *text, uint64_t kept, uint64_t *ret_from, uint64_t *ret_len)
{
    static const char unit[] = "bytes=";
    char word[48];
    uint64_t from, to;

    if (!str_starts(text, unit) || str_copy(word, sizeof(word), text + strlen(unit)) < 0)
        return -EINVAL;
    char *dash = strchr(word, '-');
    if (dash == NULL)
        return -EINVAL;
    *dash++ = '\0';
    if (word[0] == '\0') {
        if (str_to_u64(dash, &to) < 0 || to == 0)
            return -EINVAL;
        *ret_len = to < kept ? to : kept;
        *ret_from = kept - *ret_len;
        return 0;
    }
    if (str_to_u64(word, &from) < 0)
        return -EINVAL;
    to = UINT64_MAX;
    if (dash[0] != '\0' && (str_to_u64(dash, &to) < 0 || to < from))
        return -EINVAL;
    *ret_from = from;
    *ret_len = to - from < UINT64_MAX ? to - from + 1 : UINT64_MAX;
    return 0;
}

static void reply_range(struct http_request *req, const struct output_info *info, uint64_t from,
                        const char *data, size_t len)
{
    char text[96];

    (void)snprintf(text, sizeof(text), "bytes %llu-%llu/%llu", (unsigned long long)from,
                   (unsigned long long)(from + len - 1), (unsigned long long)info->kept);
    (void)http_reply_header(req, "Content-Range", text);
    http_reply(req, 206, "application/octet-stream", data, len);
}

static void unsatisfiable(struct http_request *req, const struct output_info *info)
{
    char text[48];

    (void)snprintf(text, sizeof(text), "bytes */%llu", (unsigned long long)info->kept);
    (void)http_reply_header(req, "Content-Range", text);
    http_reply_error(req, 416, "range", "nothing is kept there",
                     "ask for what lies before the end");
}

static void read_output(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    struct output_ref ref;
    struct output_info info;
    struct err err = {0};
    char produced[24];

    if (!find(req, v, &ref))
        return;
    if (outputs_stat(v->front.service->outputs, &ref, &info, &err) < 0) {
        front_fail(req, &err);
        return;
    }
    const char *range = http_request_header(req, "Range");
    uint64_t from = 0, len = UINT64_MAX;
    bool ranged = range != NULL && read_range(range, info.kept, &from, &len) == 0;
    (void)snprintf(produced, sizeof(produced), "%llu", (unsigned long long)info.produced);
    (void)http_reply_header(req, "Box-Produced-Bytes", produced);
    (void)http_reply_header(req, "Accept-Ranges", "bytes");
    if (ranged && from >= info.kept) {
        unsatisfiable(req, &info);
        return;
    }
    /* A reader that takes more than one answer holds comes again for the rest. */
    size_t max = len < READ_MAX ? (size_t)len : READ_MAX;
    AUTO_FREE char *data = xcalloc(1, max);
    ssize_t n = outputs_read(v->front.service->outputs, &ref, from, data, max, &err);
    if (n < 0)
        front_fail(req, &err);
    else if (ranged || (uint64_t)n < info.kept)
        reply_range(req, &info, from, data, (size_t)n);
    else
        http_reply(req, 200, "application/octet-stream", data, (size_t)n);
}

/* Searching, a step at a time. */

struct search {
    struct http_request *req;
    struct loop *loop;
    struct output_grep *grep; /* owned */
    struct loop_defer defer;
    struct buf out;
    struct jw w;
};

static void search_free(struct search *s)
{
    loop_defer_stop(&s->defer);
    output_grep_free(s->grep);
    buf_done(&s->out);
    free(s);
}

static void on_match(void *arg, const struct grep_match *match)
{
    struct search *s = arg;

    jw_object(&s->w);
    jw_ku64(&s->w, "line", match->line);
    jw_ku64(&s->w, "offset", match->offset);
    jw_key(&s->w, "text");
    jw_strn(&s->w, match->text, match->len);
    jw_object_end(&s->w);
}

static void step(struct loop_defer *d)
{
    struct search *s = container_of(d, struct search, defer);
    struct err err = {0};
    uint64_t offset, line;
    int r = output_grep_step(s->grep, GREP_STEP, on_match, s, &err);

    if (r > 0) {
        loop_defer_start(s->loop, &s->defer, step);
        return;
    }
    if (r < 0) {
        front_fail(s->req, &err);
        search_free(s);
        return;
    }
    jw_array_end(&s->w);
    if (output_grep_next(s->grep, &offset, &line)) {
        jw_ku64(&s->w, "next_offset", offset);
        jw_ku64(&s->w, "next_line", line);
    }
    jw_object_end(&s->w);
    front_reply_json(s->req, 200, &s->out, &s->w);
    search_free(s);
}

static bool flag_of(const struct http_request *req, const char *name)
{
    char text[8];

    return http_request_query_get(req, name, text, sizeof(text)) >= 0 && str_eq(text, "1");
}

static int number_of(const struct http_request *req, const char *name, uint64_t *ret,
                     struct err *err)
{
    char text[24];
    ssize_t len = http_request_query_get(req, name, text, sizeof(text));

    *ret = 0;
    if (len == -ENOENT || (len >= 0 && str_to_u64(text, ret) == 0))
        return 0;
    return err_set(err, ERR_INVALID, "%s must be a whole number", name);
}

/* pattern; ignore_case=1, literal=1; max_matches; offset and line to go on where an answer said. */
static int read_search(const struct http_request *req, char *pattern, struct grep_options *ret,
                       struct err *err)
{
    uint64_t most = 0;
    ssize_t len = http_request_query_get(req, "pattern", pattern, PATTERN_MAX);

    *ret = (struct grep_options){.pattern = pattern,
                                 .pattern_len = len > 0 ? (size_t)len : 0,
                                 .flags = (flag_of(req, "ignore_case") ? REGEX_IGNORE_CASE : 0U) |
                                          (flag_of(req, "literal") ? REGEX_LITERAL : 0U)};
    if (len <= 0)
        return err_set(err, ERR_INVALID, "pattern must be text of 1 to %u bytes", PATTERN_MAX - 1);
    int r = number_of(req, "max_matches", &most, err);
    if (r == 0)
        r = number_of(req, "offset", &ret->offset, err);
    if (r == 0)
        r = number_of(req, "line", &ret->line, err);
    ret->max_matches = most < GREP_MATCHES_MAX ? (size_t)most : GREP_MATCHES_MAX;
    return r;
}

static void grep_output(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    char pattern[PATTERN_MAX];
    struct grep_options options;
    struct output_ref ref;
    struct err err = {0};

    if (!find(req, v, &ref))
        return;
    struct search *s = xnew(struct search);
    if (read_search(req, pattern, &options, &err) < 0 ||
        output_grep_new(v->front.service->outputs, &ref, &options, &s->grep, &err) < 0) {
        free(s);
        front_fail(req, &err);
        return;
    }
    s->req = req;
    s->loop = manager_loop(v->front.manager);
    buf_init(&s->out, ANSWER_MAX);
    jw_init(&s->w, &s->out);
    jw_object(&s->w);
    jw_key(&s->w, "matches");
    jw_array(&s->w);
    loop_defer_start(s->loop, &s->defer, step);
}

static const struct http_route routes[] = {
    {"GET", "/v1/sessions/{id}/outputs/{output}", read_output, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/sessions/{id}/outputs/{output}/grep", grep_output, HTTP_ROUTE_SCOPED, 0},
    {0},
};

int v1_output_routes(struct http_server *server, struct v1 *v, struct err *err)
{
    return http_server_add_routes(server, routes, v, err);
}
