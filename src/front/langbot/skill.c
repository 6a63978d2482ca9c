/* SPDX-License-Identifier: Apache-2.0 */

/* The table of skill actions, each with the job it starts, and the mount of a skill in a
 * sandbox. */

#include "jobs/jobs.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "spec/spec.h"

static const struct skill_row {
    const char *action;
    enum skills_op op;
    bool zip; /* an upload goes with it */
} rows[] = {
    {"box_list_skills", SKILLS_LIST, false},
    {"box_get_skill", SKILLS_GET, false},
    {"box_create_skill", SKILLS_CREATE, false},
    {"box_update_skill", SKILLS_UPDATE, false},
    {"box_delete_skill", SKILLS_DELETE, false},
    {"box_scan_skill_directory", SKILLS_SCAN, false},
    {"box_list_skill_files", SKILLS_LIST_FILES, false},
    {"box_read_skill_file", SKILLS_READ_FILE, false},
    {"box_write_skill_file", SKILLS_WRITE_FILE, false},
    {"box_preview_skill_zip", SKILLS_PREVIEW_ZIP, true},
    {"box_install_skill_zip", SKILLS_INSTALL_ZIP, true},
};

/* Every action that comes here has one. */
static const struct skill_row *row_of(const struct langbot_call *c)
{
    size_t i = 0;
    while (i + 1 < ARRAY_SIZE(rows) && !str_eq(rows[i].action, c->action->name))
        i++;
    return &rows[i];
}

static void on_done(void *arg, const char *json, size_t len, const char *message)
{
    struct langbot_call *c = arg;
    if (json == NULL)
        langbot_fail_named(c, message);
    else
        langbot_reply_json(c, json, len);
}

/* The upload, which is used up. False: the call has failed. */
static bool take_upload(struct langbot_call *c)
{
    const struct json *v = json_get(c->msg.data, "file_key");
    const char *key = json_str(v);
    if (v == NULL) {
        langbot_fail(c, LANGBOT_VALIDATION, "'file_key'");
        return false;
    }
    bool good = key != NULL && strlen(key) == json_str_len(v);
    int fd = good ? langbot_file_take(c->conn, key) : -ENOENT;
    if (fd < 0) {
        langbot_fail(c, LANGBOT_VALIDATION, "[Errno %d] %s: '%.255s'", -fd, err_errno_text(-fd),
                     key != NULL ? key : "");
        return false;
    }
    c->fd = fd;
    return true;
}

static const char *workspace_of(const struct langbot_call *c)
{
    return c->ns[0] != '\0' ? c->ns : NULL;
}

void langbot_skill(struct langbot_call *c)
{
    const struct skill_row *row = row_of(c);
    struct err err = {0};
    if (c->rpc->o.skills == NULL) {
        langbot_fail(c, LANGBOT_ERROR, "this boxd has no skill store: box-fetch is missing");
        return;
    }
    if (row->zip && !take_upload(c))
        return;
    if (jobs_skill(langbot_skills(c), workspace_of(c), row->op, c->msg.data, c->fd, on_done, c,
                   &err) < 0)
        langbot_fail_err(c, &err);
}

/* A skill inside a managed sandbox. */

static void add_mount(struct spec *spec, const char *package_root)
{
    spec->extra_mounts =
        xreallocarray(spec->extra_mounts, spec->n_extra_mounts + 1, sizeof(*spec->extra_mounts));
    spec->extra_mounts[spec->n_extra_mounts++] = (struct mount_spec){
        .host_path = xstrdup(package_root),
        .mount_path = xasprintf("%s/.skills/%s", SPEC_DEFAULT_MOUNT, spec->skill_name),
        .mode = MOUNT_RO,
    };
}

static void on_found(void *arg, const char *json, size_t len, const char *message)
{
    struct langbot_call *c = arg;
    AUTO(json) struct json *data = NULL;
    struct err err = {0};
    const char *root = NULL;
    if (json != NULL && json_parse(json, len, &data, &err) == 0)
        root = json_str(json_get(json_get(data, "skill"), "package_root"));
    if (root == NULL) {
        langbot_fail(c, LANGBOT_ADMISSION,
                     "Managed sandbox skill is unavailable in this Workspace");
        return;
    }
    if (c->cancelled) {
        langbot_call_end(c);
        return;
    }
    add_mount(c->spec, root);
    c->then(c);
}

void langbot_mount_skill(struct langbot_call *c, void (*then)(struct langbot_call *c))
{
    AUTO_DONE(buf) struct buf text;
    AUTO(json) struct json *request = NULL;
    struct err err = {0};
    struct jw w;
    buf_init(&text, 4096);
    if (c->spec->skill_name == NULL) {
        then(c);
        return;
    }
    jw_init(&w, &text);
    jw_object(&w);
    jw_kstr(&w, "name", c->spec->skill_name);
    jw_object_end(&w);
    c->then = then;
    if (c->rpc->o.skills == NULL || jw_end(&w) < 0 ||
        json_parse(text.data, text.len, &request, &err) < 0 ||
        jobs_skill(langbot_skills(c), workspace_of(c), SKILLS_GET, request, -1, on_found, c, &err) <
            0)
        on_found(c, NULL, 0, NULL);
}
