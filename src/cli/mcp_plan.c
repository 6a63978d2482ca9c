/* SPDX-License-Identifier: Apache-2.0 */

/* Plans `box mcp run`: from options and configuration files to the session and process to ask
 * for. */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/args/args.h"
#include "cli/mcp.h"
#include "cli/mcp/chain.h"
#include "cli/mcp/env.h"
#include "cli/mcp/payload.h"
#include "spec/model.h"
#include "spec/spec.h"

#define NAME_MAX_LEN 64

/* From arguments to what is asked of boxd. */

static bool given(const struct args *a, enum spec_field field)
{
    return (a->given & FIELD_BIT(field)) != 0;
}

static int read_text(const char *path, struct buf *ret, struct err *err)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return err_sys(err, errno, "open '%s'", path);
    for (;;) {
        if (buf_reserve(ret, 65536) < 0)
            return err_set(err, ERR_LIMIT, "'%s' is larger than %d bytes", path, MCP_FILE_MAX);
        ssize_t n = read(fd, ret->data + ret->len, 65536);
        if (n < 0)
            return err_sys(err, errno, "read '%s'", path);
        if (n == 0)
            return 0;
        ret->len += (size_t)n;
    }
}

static int read_config(struct mcp_run *m, struct err *err)
{
    AUTO_DONE(buf) struct buf text;
    AUTO(json) struct json *file = NULL;
    const char *path = m->args->config_file;

    buf_init(&text, MCP_FILE_MAX + 65536);
    int r = read_text(path, &text, err);
    if (r < 0)
        return r;
    r = json_parse(buf_str(&text), text.len, &file, err);
    if (r >= 0 && m->args->name == NULL)
        r = err_set(err, ERR_INVALID, "--config wants --name, too: which of its servers");
    if (r >= 0)
        r = mcp_server_find(file, m->args->name, &m->server, err);
    return r < 0 ? err_wrap(err, "%s", path) : 0;
}

static int read_command(struct mcp_run *m, struct err *err)
{
    char *const *argv = m->args->command;

    if (m->args->config_file != NULL && argv != NULL)
        return err_set(err, ERR_INVALID, "--config and a command exclude each other");
    if (m->args->config_file != NULL)
        return read_config(m, err);
    if (argv == NULL || argv[0] == NULL)
        return err_set(err, ERR_INVALID, "no command: box mcp run [OPTION...] -- COMMAND [ARG...]");
    mcp_box_init(&m->server.box);
    m->server.command = xstrdup(argv[0]);
    m->server.args = strv_copy(argv + 1);
    return 0;
}

/* Options say more than a file. */
static void apply_options(struct mcp_run *m)
{
    const struct args *a = m->args;
    struct mcp_box *b = &m->server.box;

    if (given(a, SPEC_IMAGE)) {
        free(b->image);
        b->image = xstrdup(a->spec->image);
    }
    if (given(a, SPEC_NETWORK))
        b->network = (int)a->spec->network;
    if (given(a, SPEC_HOST_PATH)) {
        free(b->host_path);
        b->host_path = xstrdup(a->spec->host_path);
    }
    if (given(a, SPEC_HOST_PATH_MODE))
        b->host_path_mode = (int)a->spec->host_path_mode;
    if (given(a, SPEC_CPUS))
        b->cpus = a->spec->cpus;
    if (given(a, SPEC_MEMORY_MB))
        b->memory_mb = a->spec->memory_mb;
    if (given(a, SPEC_PIDS_LIMIT))
        b->pids_limit = a->spec->pids_limit;
    if (given(a, SPEC_READ_ONLY_ROOTFS))
        b->read_only_rootfs = a->spec->read_only_rootfs;
    if (given(a, SPEC_TIMEOUT_SEC))
        b->startup_timeout_sec = a->spec->timeout_sec;
}

/* Each later source replaces an earlier one: the file of the server, --env-file, --env. */
static int read_env(struct mcp_run *m, struct err *err)
{
    int r = 0;

    for (size_t i = 0; i < strv_len(m->args->env_files) && r >= 0; i++) {
        AUTO_DONE(buf) struct buf text;
        buf_init(&text, MCP_FILE_MAX + 65536);
        r = read_text(m->args->env_files[i], &text, err);
        if (r >= 0 && text.len > 0)
            r = mcp_env_read(&m->server.env, buf_str(&text), text.len, err);
        if (r < 0)
            return err_wrap(err, "--env-file %s", m->args->env_files[i]);
    }
    for (size_t i = 0; i < strv_len(m->args->envs) && r >= 0; i++) {
        const char *text = m->args->envs[i];
        r = strchr(text, '=') != NULL ? mcp_env_set(&m->server.env, text, err)
                                      : mcp_env_pass(&m->server.env, text, err);
    }
    return r;
}

/* Names. */

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

/* The first word that says more than the tool that runs it: a package or a program. */
static const char *telling_word(const struct mcp_server *s)
{
    if (!mcp_command_installs(s->command) && !str_starts(base_of(s->command), "python") &&
        !str_eq(base_of(s->command), "node"))
        return s->command;
    for (size_t i = 0; i < strv_len(s->args); i++)
        if (s->args[i][0] != '-' && !str_eq(s->args[i], "run") && !str_eq(s->args[i], "exec"))
            return s->args[i];
    return s->command;
}

/* What can be typed and shown. */
static void name_it(struct mcp_run *m)
{
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const char *word = m->args->name != NULL ? m->args->name : base_of(telling_word(&m->server));
    size_t at = word[0] != '\0' ? strcspn(word + 1, "@") + 1 : 0; /* a version is no name */
    char *name = xstrndup(word, at < NAME_MAX_LEN ? at : NAME_MAX_LEN);

    for (char *c = name; *c != '\0'; c++)
        if (strchr(good, *c) == NULL)
            *c = '-';
    for (size_t i = 0; m->args->name == NULL && i < 3; i++) {
        static const char *const endings[] = {".py", ".js", ".mjs"};
        if (str_ends(name, endings[i]) && strlen(name) > strlen(endings[i]))
            name[strlen(name) - strlen(endings[i])] = '\0';
    }
    m->name = name;
}

/* Paths. */

static int find_roots(struct mcp_run *m, struct err *err)
{
    const struct mcp_box *b = &m->server.box;
    AUTO_STRV char **words = NULL;

    if (b->host_path_mode == MOUNT_NONE)
        return 0;
    if (b->host_path != NULL) {
        AUTO_FREE char *real = realpath(b->host_path, NULL);
        if (real == NULL || mcp_fs_host.kind(real) != MCP_DIR)
            return err_set(err, ERR_INVALID,
                           "MCP host_path does not exist or is not a directory: %s", b->host_path);
        mcp_roots_add(&m->roots, real, MCP_MOUNT);
        return 0;
    }
    AUTO_FREE char *home = getenv("HOME") != NULL ? realpath(getenv("HOME"), NULL) : NULL;
    strv_add(&words, m->server.command);
    for (size_t i = 0; i < strv_len(m->server.args); i++)
        strv_add(&words, m->server.args[i]);
    mcp_infer_roots(&mcp_fs_host, words, home, MCP_MOUNT, &m->roots);
    return 0;
}

/* A tool that the system has not, and the user has. */
static void find_chain(struct mcp_run *m)
{
    AUTO_FREE char *home = getenv("HOME") != NULL ? realpath(getenv("HOME"), NULL) : NULL;

    /* Another image need not be able to run it, and a name with a slash is found there. */
    if ((m->server.box.image == NULL || str_eq(m->server.box.image, "host")) &&
        m->server.box.host_path_mode != MOUNT_NONE && strchr(m->command, '/') == NULL)
        m->chain_path =
            mcp_chain_find(&mcp_fs_host, m->server.command, getenv("PATH"), home, &m->chain);
    if (m->chain_path == NULL)
        m->chain_path = xstrdup("");
}

/* The project, when there is one: what is mounted as the workspace. */
static const char *project_of(const struct mcp_run *m)
{
    return m->roots.n == 1 && str_eq(m->roots.list[0].inside, MCP_MOUNT) ? m->roots.list[0].host
                                                                         : NULL;
}

static void rewrite(struct mcp_run *m)
{
    const struct mcp_server *s = &m->server;
    struct mcp_roots staged = {0};
    const struct mcp_roots *roots = &m->roots;

    if (mcp_prepare_stages(&m->prepare)) {
        mcp_roots_add(&staged, m->roots.list[0].host, MCP_STAGE);
        roots = &staged;
    }
    m->command = mcp_rewrite_command(&mcp_fs_host, s->command, roots);
    for (size_t i = 0; i < strv_len(s->args); i++)
        strv_push(&m->inside_args, mcp_rewrite_arg(&mcp_fs_host, s->args[i], roots));
    m->cwd = xstrdup(m->args->inside_dir != NULL       ? m->args->inside_dir
                     : mcp_prepare_stages(&m->prepare) ? MCP_STAGE
                                                       : MCP_MOUNT);
    m->venv = xstrdup("");
    if (!str_eq(m->command, s->command) && str_eq(m->command, "python")) {
        AUTO_FREE char *place = mcp_rewrite_arg(&mcp_fs_host, s->command, &m->roots);
        char *bin = strrchr(place, '/');
        if (bin != NULL)
            *bin = '\0';
        bin = strrchr(place, '/');
        if (bin != NULL)
            *bin = '\0';
        free(m->venv);
        m->venv = xstrdup(place[0] == '/' ? place : "");
    }
    mcp_roots_done(&staged);
}

static int set_delays(struct mcp_run *m, struct err *err)
{
    const char *delays =
        m->args->retry_delays != NULL ? m->args->retry_delays : getenv("BOX_MCP_RETRY_DELAYS");
    mcp_retry_init(&m->retry);
    if (delays != NULL && mcp_retry_parse(&m->retry, delays) < 0)
        return err_set(err, ERR_INVALID,
                       "--retry-delays: '%s' is not a list of seconds such as 2,4,8,60", delays);
    return 0;
}

static int check_options(const struct args *a, struct err *err)
{
    if (a->fallback != NULL && !str_eq(a->fallback, "host") && !str_eq(a->fallback, "refuse"))
        return err_set(err, ERR_INVALID, "--fallback: '%s' is not one of refuse, host",
                       a->fallback);
    if (a->install != NULL && !str_eq(a->install, "auto") && !str_eq(a->install, "off"))
        return err_set(err, ERR_INVALID, "--install: '%s' is not one of auto, off", a->install);
    if (a->inside_dir != NULL && a->inside_dir[0] != '/')
        return err_set(err, ERR_INVALID, "--workdir must be an absolute path inside the sandbox");
    return 0;
}

int mcp_plan(struct mcp_run *m, struct err *err)
{
    char random[17];
    int r = check_options(m->args, err);

    if (r >= 0)
        r = read_command(m, err);
    if (r < 0)
        return r;
    apply_options(m);
    r = read_env(m, err);
    if (r >= 0)
        r = find_roots(m, err);
    if (r >= 0)
        r = set_delays(m, err);
    if (r < 0)
        return r;
    name_it(m);
    m->prepare.writable = m->server.box.host_path_mode == MOUNT_RW;
    bool wanted = !str_eq(m->args->install, "off");
    m->prepare.install = wanted && !mcp_command_installs(m->server.command);
    m->prepare.builds = wanted && mcp_command_builds(m->server.command);
    mcp_project_look(&mcp_fs_host, project_of(m), &m->prepare.project);
    rewrite(m);
    find_chain(m);
    id_random(random);
    (void)str_fmt(m->session_id, sizeof(m->session_id), "mcp-%s", random);
    return 0;
}
