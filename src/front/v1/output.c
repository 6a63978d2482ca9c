/* SPDX-License-Identifier: Apache-2.0 */

/* Reads ranges of a command's whole stored output, and searches it for a pattern. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/regex.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "front/v1/v1_internal.h"
#include "loop/loop.h"
#include "policy/authz.h"
#include "policy/outputs.h"

#define READ_MAX (4U << 20)
#define PATTERN_MAX (REGEX_PATTERN_MAX + 1U)
#define ANSWER_MAX (16U << 20)

/* Outputs outlive their session for a while, so only the name is checked. False: answered. */
static bool find_output(struct http_request *req, const struct v1 *v, struct output_ref *ret)
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

static void reply_range(struct http_request *req, const struct output_info *info, uint64_t from,
                        const char *data, size_t len)
{
    v1_put_range(req, from, from + len, info->kept);
    http_reply(req, 206, "application/octet-stream", data, len);
}

static void read_output(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    struct output_ref ref;
    struct output_info info;
    struct err err = {0};
    char produced[24];

    if (!find_output(req, v, &ref))
        return;
    if (outputs_stat(v->front.service->outputs, &ref, &info, &err) < 0) {
        front_fail(req, &err);
        return;
    }
    const char *range = http_request_header(req, "Range");
    uint64_t from = 0, len = UINT64_MAX;
    struct v1_range r;
    bool ranged = range != NULL && v1_range_parse(range, &r) && !(r.is_suffix && r.length == 0);
    if (ranged) {
        len = r.is_suffix && r.length > info.kept ? info.kept : r.length;
        from = r.is_suffix ? info.kept - len : r.from;
    }
    (void)snprintf(produced, sizeof(produced), "%llu", (unsigned long long)info.produced);
    (void)http_reply_header(req, "Box-Produced-Bytes", produced);
    (void)http_reply_header(req, "Accept-Ranges", "bytes");
    if (ranged && from >= info.kept) {
        v1_put_range(req, 0, 0, info.kept);
        http_reply_error(req, 416, "range", "the range begins behind the last byte that is kept",
                         "ask for what lies before the end");
        return;
    }
    /* A reader that wants more than one answer holds sends another request for the rest. */
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
    struct front_answer out;
    struct jw *w; /* of out */
};

static void search_free(struct search *s)
{
    loop_defer_stop(&s->defer);
    output_grep_free(s->grep);
    front_answer_done(&s->out);
    free(s);
}

static void on_match(void *arg, const struct grep_match *match)
{
    struct search *s = arg;

    jw_object(s->w);
    jw_ku64(s->w, "line", match->line);
    jw_ku64(s->w, "offset", match->offset);
    jw_kstrn(s->w, "text", match->text, match->len);
    jw_object_end(s->w);
}

static void search_step(struct loop_defer *d)
{
    struct search *s = container_of(d, struct search, defer);
    struct err err = {0};
    uint64_t offset, line;
    int r = output_grep_step(s->grep, GREP_STEP, on_match, s, &err);

    if (r > 0) {
        loop_defer_start(s->loop, &s->defer, search_step);
        return;
    }
    if (r < 0) {
        front_fail(s->req, &err);
        search_free(s);
        return;
    }
    jw_array_end(s->w);
    if (output_grep_next(s->grep, &offset, &line)) {
        jw_ku64(s->w, "next_offset", offset);
        jw_ku64(s->w, "next_line", line);
    }
    front_reply(&s->out, s->req, 200);
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

    if (!find_output(req, v, &ref))
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
    s->w = front_begin(&s->out, ANSWER_MAX);
    jw_karray(s->w, "matches");
    loop_defer_start(s->loop, &s->defer, search_step);
}

const struct http_route v1_output_routes[] = {
    {"GET", "/v1/sessions/{id}/outputs/{output}", read_output, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/sessions/{id}/outputs/{output}/grep", grep_output, HTTP_ROUTE_SCOPED, 0},
    {0},
};
