/* SPDX-License-Identifier: Apache-2.0 */

/* The jobs that make, measure and verify a directory of the host. */

#include "jobs/hostdir.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "http/codec/crypto.h"
#include "jobs/queue.h"

#define MARKER_MAX 1024U

static int marker_answer(const struct json *data, const char *note, struct buf *ret);

static const struct job_kind ensure_kind = {
    .op = "make_dir",
    .error_class = "BoxValidationError",
    .create = true,
    .seconds = 10,
    .not_a_directory =
        "box.local.default_workspace must point to a directory on the Box runtime host",
};

static const struct job_kind marker_kind = {
    .op = "read_marker",
    .error_class = "BoxReadinessError",
    .seconds = 10,
    .not_a_directory = "Managed sandbox workspace path is not a directory",
    .missing = "Managed sandbox workspace path is not a directory",
    .translate = marker_answer,
};

static const struct job_kind measure_kind = {
    .op = "measure",
    .error_class = "BoxError",
    .seconds = 15,
    .not_a_directory = HOSTDIR_MISSING,
    .missing = HOSTDIR_MISSING,
};

static int hex_value(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c != '\0' ? strchr(digits, c) : NULL;
    return at != NULL ? (int)(at - digits) : -1;
}

/* The job sends the file in hexadecimal digits. */
static int decode(const char *hex, unsigned char ret[static MARKER_MAX], size_t *ret_len)
{
    size_t len = hex != NULL ? strlen(hex) : 0;
    if (len == 0 || len % 2 != 0 || len / 2 > MARKER_MAX)
        return -EINVAL;
    for (size_t i = 0; i < len / 2; i++) {
        int high = hex_value(hex[2 * i]), low = hex_value(hex[2 * i + 1]);
        if (high < 0 || low < 0)
            return -EINVAL;
        ret[i] = (unsigned char)(high << 4 | low);
    }
    *ret_len = len / 2;
    return 0;
}

static int marker_answer(const struct json *data, const char *note, struct buf *ret)
{
    unsigned char content[MARKER_MAX];
    char digest[65];
    size_t len = 0;
    struct jw w;
    int r = decode(json_str(json_get(data, "content")), content, &len);
    if (r == 0)
        r = http_sha256_hex(content, len, digest);
    if (r < 0) {
        (void)buf_puts(ret, "Box Runtime cannot read the Core shared Workspace probe");
        return r;
    }
    jw_init(&w, ret);
    jw_object(&w);
    jw_kstr(&w, "marker_name", note);
    jw_kstr(&w, "sha256", digest);
    jw_ku64(&w, "size", len);
    jw_object_end(&w);
    return jw_end(&w);
}

/* The request of a job that is about one directory and, maybe, names in it. */
static int submit(struct jobs *s, struct job_request request, const char *const *parts,
                  jobs_done_fn *done, void *arg, struct err *err)
{
    AUTO_DONE(buf) struct buf text;
    AUTO(json) struct json *data = NULL;
    struct jw w;
    buf_init(&text, 8192);
    jw_init(&w, &text);
    jw_object(&w);
    if (request.note != NULL)
        jw_kstr(&w, "marker_name", request.note);
    if (parts != NULL) {
        jw_key(&w, "parts");
        jw_array(&w);
        for (; *parts != NULL; parts++)
            jw_str(&w, *parts);
        jw_array_end(&w);
    }
    jw_object_end(&w);
    int r = jw_end(&w) < 0
                ? err_set(err, ERR_INVALID, "Invalid Box shared Workspace probe basename")
                : json_parse(text.data, text.len, &data, err);
    if (r < 0) {
        jobs_act_for(s, NULL); /* that call is not made */
        return r;
    }
    request.data = data;
    request.zip_fd = -1;
    return jobs_submit(s, &request, done, arg, err);
}

int hostdir_ensure(struct jobs *s, const char *path, jobs_done_fn *done, void *arg, struct err *err)
{
    return submit(s, (struct job_request){.kind = &ensure_kind, .dir = path}, NULL, done, arg, err);
}

int hostdir_measure(struct jobs *s, const char *path, const char *const *parts, jobs_done_fn *done,
                    void *arg, struct err *err)
{
    return submit(s, (struct job_request){.kind = &measure_kind, .dir = path}, parts, done, arg,
                  err);
}

int hostdir_verify_marker(struct jobs *s, const char *path, const char *marker_name,
                          jobs_done_fn *done, void *arg, struct err *err)
{
    const struct job_request request = {.kind = &marker_kind, .dir = path, .note = marker_name};
    return submit(s, request, NULL, done, arg, err);
}
