/* SPDX-License-Identifier: Apache-2.0 */

/* The table of operations of box-fetch, and the running of one request. */

#include <errno.h>
#include <string.h>
#include <sys/file.h>

#include "base/err.h"
#include "base/path.h"
#include "base/str.h"
#include "fetch/fetch_internal.h"
#include "fetch/job.h"

/* Every operation there is. Those on a store take turns, also with the jobs of another boxd that
 * shares it. */
static const struct {
    const char *name;
    fetch_op_fn *run;
    bool locks;
} ops[] = {
    {"list", op_list, true},
    {"get", op_get, true},
    {"create", op_create, true},
    {"update", op_update, true},
    {"delete", op_delete, true},
    {"scan", op_scan, true},
    {"list_files", op_list_files, true},
    {"read_file", op_read_file, true},
    {"write_file", op_write_file, true},
    {"preview_zip", op_preview_zip, true},
    {"install_zip", op_install_zip, true},
    {"make_dir", op_make_dir, false},
    {"read_marker", op_read_marker, false},
    {"measure", op_measure, false},
    {"make_artifacts", op_make_artifacts, true},
    {"add_artifact", op_add_artifact, true},
    {"sweep_artifacts", op_sweep_artifacts, true},
};

static int take_lock(struct fetch *f)
{
    int r;
    do
        r = flock(f->root_fd, LOCK_EX);
    while (r < 0 && errno == EINTR);
    return r < 0 ? fetch_fail_sys(f, errno, "") : fetch_sweep(f);
}

static int run_op(struct fetch *f, const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(ops); i++) {
        if (!str_eq(name, ops[i].name))
            continue;
        int r = ops[i].locks ? take_lock(f) : 0;
        if (r == 0)
            r = ops[i].run(f);
        fetch_tmp_done(f);
        if (ops[i].locks)
            (void)flock(f->root_fd, LOCK_UN);
        return r;
    }
    return fetch_fail(f, "unknown operation");
}

static int read_request(struct fetch *f, const struct json *request, const char **ret_op)
{
    const struct json *data = json_get(request, "data");
    *ret_op = json_str(json_get(request, "op"));
    f->root = json_str(json_get(request, "root"));
    f->shared = json_bool(json_get(request, "shared"));
    if (*ret_op == NULL || f->root == NULL || !path_is_clean_absolute(f->root) ||
        json_type(data) != JSON_OBJECT) {
        f->root = "";
        return fetch_fail(f, "malformed request");
    }
    f->data = data;
    return 0;
}

static void write_error(struct fetch *f, struct buf *out)
{
    struct jw w;
    buf_reset(out);
    jw_init(&w, out);
    jw_object(&w);
    jw_kstr(&w, "error", f->why.len > 0 ? buf_str(&f->why) : "unknown error");
    jw_kstr(&w, "class", f->why_class);
    jw_object_end(&w);
    (void)jw_end(&w); /* a message always fits */
}

void fetch_run(int root_fd, const struct fetch_input *in, struct buf *out)
{
    struct fetch f = {.root_fd = root_fd,
                      .root = "",
                      .zip = in->zip,
                      .zip_len = in->zip_len,
                      .source = in->source};
    struct err err = {0};
    struct jw w;
    AUTO(json) struct json *request = NULL;
    const char *op = NULL;
    buf_init(&f.why, FETCH_WHY_MAX);
    jw_init(&w, out);
    f.out = &w;
    jw_object(&w);
    jw_key(&w, "data");
    int r = json_parse(in->request, in->request_len, &request, &err);
    if (r < 0)
        (void)fetch_fail(&f, "%s", err.msg);
    else
        r = read_request(&f, request, &op);
    if (r == 0)
        r = run_op(&f, op);
    if (r == 0) {
        jw_object_end(&w);
        r = jw_end(&w);
        if (r < 0)
            (void)fetch_fail(&f, "Skill listing exceeds the configured text limit");
    }
    if (r < 0)
        write_error(&f, out);
    buf_done(&f.why);
}
