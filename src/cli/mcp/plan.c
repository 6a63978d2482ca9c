/* SPDX-License-Identifier: Apache-2.0 */

/* Reads options, configuration files and variables, and plans `box mcp run` from them. */

#include "cli/mcp/plan.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/host_path.h"
#include "base/json.h"
#include "base/sha256.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/args/args.h"
#include "cli/io/text.h"
#include "spec/model.h"
#include "spec/spec.h"

#define NAME_MAX_LEN 64

/* The server, as configuration files describe it. */

/* clang-format off */
static const struct field box_fields[] = {
    {"image", FIELD_STR, FIELD_NULLABLE, offsetof(struct mcp_box, image), .max = SPEC_IMAGE_MAX},
    {"network", FIELD_ENUM, 0, offsetof(struct mcp_box, network), .number = ARGS_MCP_NETWORK, .names = network_names},
    {"host_path", FIELD_STR, FIELD_NULLABLE | FIELD_TRIM, offsetof(struct mcp_box, host_path),
     .max = SPEC_PATH_MAX, .valid = host_path_valid, .rule = "host_path must be an absolute host path"},
    {"host_path_mode", FIELD_ENUM, 0, offsetof(struct mcp_box, host_path_mode), .number = ARGS_MCP_HOST_PATH_MODE,
     .names = mount_mode_names},
    {"env", FIELD_ENV, 0, offsetof(struct mcp_box, env), .max = SPEC_ENV_ENTRIES_MAX,
     .max_bytes = SPEC_ENV_BYTES_MAX},
    {"startup_timeout_sec", FIELD_INT, 0, offsetof(struct mcp_box, startup_timeout_sec),
     .number = ARGS_MCP_STARTUP_SEC, .min = 1, .max = SPEC_TIMEOUT_MAX, .rule = "startup_timeout_sec must be greater than 0"},
    {"cpus", FIELD_REAL, 0, offsetof(struct mcp_box, cpus), .real = 1, .max = SPEC_CPUS_MAX, .rule = "cpus must be greater than 0"},
    {"memory_mb", FIELD_INT, 0, offsetof(struct mcp_box, memory_mb), .number = 32, .min = 32, .max = SPEC_SIZE_MB_MAX,
     .rule = "memory_mb must be at least 32"},
    {"pids_limit", FIELD_INT, 0, offsetof(struct mcp_box, pids_limit), .number = 1, .min = 1, .max = SPEC_PIDS_MAX,
     .rule = "pids_limit must be at least 1"},
};

static const struct field server_fields[] = {
    {"command", FIELD_STR, FIELD_REQUIRED | FIELD_TRIM, offsetof(struct mcp_server, command), .max = SPEC_PATH_MAX},
    {"args", FIELD_STRV, 0, offsetof(struct mcp_server, args), .max = SPEC_ARGS_ENTRIES_MAX,
     .max_bytes = SPEC_ARGS_BYTES_MAX},
    {"env", FIELD_ENV, 0, offsetof(struct mcp_server, env), .max = SPEC_ENV_ENTRIES_MAX,
     .max_bytes = SPEC_ENV_BYTES_MAX},
};
/* clang-format on */

static const struct model box_model = {.name = "box",
                                       .fields = box_fields,
                                       .n_fields = ARRAY_SIZE(box_fields),
                                       .size = sizeof(struct mcp_box)};
static const struct model server_model = {.name = "server",
                                          .fields = server_fields,
                                          .n_fields = ARRAY_SIZE(server_fields),
                                          .size = sizeof(struct mcp_server)};

/* Rules hold for what is given: null has no place in a number. */
static void put_nulls(struct mcp_box *b, const struct json *given)
{
    if (json_type(json_get(given, "cpus")) == JSON_NULL)
        b->cpus = 0;
    if (json_type(json_get(given, "memory_mb")) == JSON_NULL)
        b->memory_mb = 0;
    if (json_type(json_get(given, "pids_limit")) == JSON_NULL)
        b->pids_limit = 0;
}

static void mcp_box_init(struct mcp_box *b)
{
    *b = (struct mcp_box){0};
    model_init(&box_model, b);
    b->read_only_rootfs = ARGS_MCP_READ_ONLY_ROOT;
    put_nulls(b, NULL);
}

static void mcp_box_done(struct mcp_box *b)
{
    model_done(&box_model, b);
    *b = (struct mcp_box){0};
}

/* What is null keeps its default. */
static uint64_t skipped(const struct json *box)
{
    uint64_t set = 0;

    for (size_t i = 0; i < ARRAY_SIZE(box_fields); i++) {
        const struct json *v = json_get(box, box_fields[i].name);
        if (v == NULL || json_type(v) == JSON_NULL)
            set |= FIELD_BIT(i);
    }
    return set;
}

/* NULL, or null, is all defaults. Members that are not known are ignored. ERR_INVALID. */
static int parse_box(const struct json *box, struct mcp_box *ret, struct err *err)
{
    struct report report;
    const struct json *rootfs = json_get(box, "read_only_rootfs");

    mcp_box_init(ret);
    if (box == NULL || json_type(box) == JSON_NULL)
        return 0;
    model_init(&box_model, ret);
    if (model_parse(&box_model, box, skipped(box), ret, &report) < 0) {
        mcp_box_done(ret);
        return report_fail_plain(&report, err);
    }
    put_nulls(ret, box);
    if (rootfs != NULL && json_type(rootfs) == JSON_BOOL) {
        ret->read_only_rootfs = json_bool(rootfs);
    } else if (rootfs != NULL && json_type(rootfs) != JSON_NULL) {
        mcp_box_done(ret);
        return err_set(err, ERR_INVALID, "read_only_rootfs must be true or false");
    }
    return 0;
}

static void mcp_server_done(struct mcp_server *s)
{
    model_done(&server_model, s);
    mcp_box_done(&s->box);
    *s = (struct mcp_server){0};
}

/* The server of that name in {"mcpServers": {...}}, or {"servers": {...}} as some have it. */
static int mcp_server_find(const struct json *file, const char *name, struct mcp_server *ret,
                           struct err *err)
{
    static const char *const lists[] = {"mcpServers", "servers", "context_servers"};
    const struct json *server = NULL;
    struct report report;

    for (size_t i = 0; i < ARRAY_SIZE(lists) && server == NULL; i++)
        server = json_get(json_get(file, lists[i]), name);
    if (server == NULL)
        return err_set(err, ERR_NOT_FOUND, "the file has no server '%s' in mcpServers", name);
    if (json_get(server, "command") == NULL && json_get(server, "url") != NULL)
        return err_set(err, ERR_INVALID, "server '%s' is remote: only stdio servers are boxed",
                       name);
    *ret = (struct mcp_server){0};
    model_init(&server_model, ret);
    if (model_parse(&server_model, server, 0, ret, &report) < 0) {
        mcp_server_done(ret);
        return report_fail_plain(&report, err);
    }
    int r = parse_box(json_get(server, "box"), &ret->box, err);
    if (r < 0)
        mcp_server_done(ret);
    return r;
}

/* Variables. */

static bool name_valid(const char *name, size_t len)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
    static const char all[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789.-";

    return len > 0 && strchr(letters, name[0]) != NULL && strspn(name, all) >= len;
}

int mcp_env_set(char ***env, const char *text, struct err *err)
{
    size_t len = strcspn(text, "=");

    if (text[len] != '=' || !name_valid(text, len))
        return err_set(err, ERR_INVALID, "env entries must be NAME=value");
    if (!utf8_valid(text, strlen(text)))
        return err_set(err, ERR_INVALID, "the value of %.*s is not valid UTF-8", (int)len, text);
    return args_set_variable(env, text, err);
}

/* A name alone: its value is that of `getenv`; where there is none nothing is set. */
static int mcp_env_pass(char ***env, const char *name, struct err *err)
{
    if (!name_valid(name, strlen(name)))
        return err_set(err, ERR_INVALID, "env entries must be NAME=value or NAME");
    const char *value = getenv(name);
    if (value == NULL)
        return 0;
    AUTO_FREE char *text = xasprintf("%s=%s", name, value);
    return mcp_env_set(env, text, err);
}

static int read_line(char ***env, const char *line, struct err *err)
{
    if (line[0] == '\0' || line[0] == '#')
        return 0;
    if (str_starts(line, "export "))
        line += strlen("export ");
    AUTO_FREE char *text = str_strip(line);
    char *value = strchr(text, '=');
    size_t len = value != NULL ? strlen(++value) : 0;
    if (len >= 2 && (value[0] == '"' || value[0] == '\'') && value[len - 1] == value[0]) {
        memmove(value, value + 1, len - 2);
        value[len - 2] = '\0';
    }
    return mcp_env_set(env, text, err);
}

/* Lines of NAME=value. Blank lines and those that begin with # are left out, so is "export ";
 * quotes around a value are taken off. Says the number of a line that is wrong. */
static int mcp_env_read(char ***env, const char *text, size_t len, struct err *err)
{
    const char *end = text + len;

    if (memchr(text, '\0', len) != NULL)
        return err_set(err, ERR_INVALID, "the file holds a NUL");
    for (unsigned number = 1; text < end; number++) {
        size_t n = strcspn(text, "\n");
        AUTO_FREE char *raw = xstrndup(text, n);
        AUTO_FREE char *line = str_strip(raw);
        int r = read_line(env, line, err);
        if (r < 0)
            return err_wrap(err, "line %u", number);
        text += n + 1;
    }
    return 0;
}

/* Options and files. */

static int read_text(const char *path, struct buf *ret, struct err *err)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    int r = fd < 0 ? -errno : fd_read_to_buf(fd, ret);

    if (r == -ENOBUFS)
        return err_set(err, ERR_LIMIT, "'%s' is larger than %d bytes", path, MCP_FILE_MAX);
    return r < 0 ? err_sys(err, -r, "%s '%s'", fd < 0 ? "open" : "read", path) : 0;
}

static int read_config(struct mcp_plan *p, const struct args *args, struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(MCP_FILE_MAX);
    AUTO(json) struct json *file = NULL;
    const char *path = args->config_file;

    int r = read_text(path, &text, err);
    if (r < 0)
        return r;
    r = json_parse(buf_str(&text), text.len, &file, err);
    if (r >= 0 && args->name == NULL)
        r = err_set(err, ERR_INVALID, "--config wants --name, too: which of its servers");
    if (r >= 0)
        r = mcp_server_find(file, args->name, &p->server, err);
    return r < 0 ? err_wrap(err, "%s", path) : 0;
}

static int read_command(struct mcp_plan *p, const struct args *args, struct err *err)
{
    char *const *argv = args->command;

    if (args->config_file != NULL && argv != NULL)
        return err_set(err, ERR_INVALID, "--config and a command exclude each other");
    if (args->config_file != NULL)
        return read_config(p, args, err);
    if (argv == NULL || argv[0] == NULL)
        return err_set(err, ERR_INVALID,
                       "no command: box mcp run [OPTION...] [--] COMMAND [ARG...]");
    mcp_box_init(&p->server.box);
    p->server.command = xstrdup(argv[0]);
    p->server.args = strv_copy(argv + 1);
    return 0;
}

/* Options say more than a file. */
static void apply_options(struct mcp_plan *p, const struct args *a)
{
    struct mcp_box *b = &p->server.box;

    if (args_given(a, SPEC_IMAGE)) {
        free(b->image);
        b->image = xstrdup(a->spec->image);
    }
    if (args_given(a, SPEC_NETWORK))
        b->network = (int)a->spec->network;
    if (args_given(a, SPEC_HOST_PATH)) {
        free(b->host_path);
        b->host_path = xstrdup(a->spec->host_path);
    }
    if (args_given(a, SPEC_HOST_PATH_MODE))
        b->host_path_mode = (int)a->spec->host_path_mode;
    if (args_given(a, SPEC_CPUS))
        b->cpus = a->spec->cpus;
    if (args_given(a, SPEC_MEMORY_MB))
        b->memory_mb = a->spec->memory_mb;
    if (args_given(a, SPEC_PIDS_LIMIT))
        b->pids_limit = a->spec->pids_limit;
    if (args_given(a, SPEC_READ_ONLY_ROOTFS))
        b->read_only_rootfs = a->spec->read_only_rootfs;
    if (args_given(a, SPEC_TIMEOUT_SEC))
        b->startup_timeout_sec = a->spec->timeout_sec;
}

/* Each later source replaces an earlier one: the file of the server, --env-file, --env. */
static int read_env(struct mcp_plan *p, const struct args *args, struct err *err)
{
    int r = 0;

    for (size_t i = 0; i < strv_len(args->env_files) && r >= 0; i++) {
        AUTO_DONE(buf) struct buf text = BUF_INIT(MCP_FILE_MAX);
        r = read_text(args->env_files[i], &text, err);
        if (r >= 0 && text.len > 0)
            r = mcp_env_read(&p->server.env, buf_str(&text), text.len, err);
        if (r < 0)
            return err_wrap(err, "--env-file %s", args->env_files[i]);
    }
    for (size_t i = 0; i < strv_len(args->envs) && r >= 0; i++) {
        const char *text = args->envs[i];
        r = strchr(text, '=') != NULL ? mcp_env_set(&p->server.env, text, err)
                                      : mcp_env_pass(&p->server.env, text, err);
    }
    return r;
}

/* Names. */

static const char *last_part_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

/* The first word that says more than the tool that runs it: a package or a program. */
static const char *telling_word(const struct mcp_server *s)
{
    if (!mcp_command_installs(s->command) && !str_starts(last_part_of(s->command), "python") &&
        !str_eq(last_part_of(s->command), "node"))
        return s->command;
    for (size_t i = 0; i < strv_len(s->args); i++)
        if (s->args[i][0] != '-' && !str_eq(s->args[i], "run") && !str_eq(s->args[i], "exec"))
            return s->args[i];
    return s->command;
}

/* What can be typed and shown. */
static void name_server(struct mcp_plan *p, const struct args *args)
{
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const char *word = args->name != NULL ? args->name : last_part_of(telling_word(&p->server));
    size_t at = word[0] != '\0' ? strcspn(word + 1, "@") + 1 : 0; /* a version is no name */
    char *name = xstrndup(word, at < NAME_MAX_LEN ? at : NAME_MAX_LEN);

    for (char *c = name; *c != '\0'; c++)
        if (strchr(good, *c) == NULL)
            *c = '-';
    for (size_t i = 0; args->name == NULL && i < 3; i++) {
        static const char *const endings[] = {".py", ".js", ".mjs"};
        if (str_ends(name, endings[i]) && strlen(name) > strlen(endings[i]))
            name[strlen(name) - strlen(endings[i])] = '\0';
    }
    p->name = name;
}

/* Paths. */

static char **words_of(const struct mcp_server *s)
{
    char **words = NULL;

    strv_add(&words, s->command);
    for (size_t i = 0; i < strv_len(s->args); i++)
        strv_add(&words, s->args[i]);
    return words;
}

static char *real_home(void)
{
    const char *home = getenv("HOME");

    return home != NULL ? realpath(home, NULL) : NULL;
}

static int find_roots(struct mcp_plan *p, struct err *err)
{
    const struct mcp_box *b = &p->server.box;

    if (b->host_path_mode == MOUNT_NONE)
        return 0;
    if (b->host_path != NULL) {
        AUTO_FREE char *real = realpath(b->host_path, NULL);
        if (real == NULL || mcp_fs_host.kind(real) != MCP_DIR)
            return err_set(err, ERR_INVALID,
                           "MCP host_path does not exist or is not a directory: %s", b->host_path);
        mcp_roots_add(&p->roots, real, MCP_MOUNT);
        return 0;
    }
    AUTO_FREE char *home = real_home();
    AUTO_STRV char **words = words_of(&p->server);
    mcp_infer_roots(&mcp_fs_host, words, home, MCP_MOUNT, &p->roots);
    return 0;
}

/* A tool that the system has not, and the user has. */
static void find_chain(struct mcp_plan *p)
{
    AUTO_FREE char *home = real_home();

    /* Another image need not be able to run it, and a name with a slash is found there. */
    if ((p->server.box.image == NULL || str_eq(p->server.box.image, "host")) &&
        p->server.box.host_path_mode != MOUNT_NONE && strchr(p->command, '/') == NULL)
        p->chain_path =
            mcp_chain_find(&mcp_fs_host, p->server.command, getenv("PATH"), home, &p->chain);
    if (p->chain_path == NULL)
        p->chain_path = xstrdup("");
}

/* The project, when there is one: what is mounted as the workspace. */
static const char *project_of(const struct mcp_plan *p)
{
    return p->roots.n == 1 && str_eq(p->roots.list[0].inside, MCP_MOUNT) ? p->roots.list[0].host
                                                                         : NULL;
}

static bool has_file(const struct mcp_fs *fs, const char *dir, const char *name)
{
    AUTO_FREE char *path = xasprintf("%s/%s", dir, name);

    return fs->kind(path) == MCP_FILE;
}

static void project_look(const struct mcp_fs *fs, const char *host_path, struct mcp_project *ret)
{
    *ret = (struct mcp_project){0};
    if (host_path == NULL)
        return;
    AUTO_FREE char *modules = xasprintf("%s/node_modules", host_path);
    ret->python_package = has_file(fs, host_path, "pyproject.toml") ||
                          has_file(fs, host_path, "setup.py") ||
                          has_file(fs, host_path, "setup.cfg");
    ret->requirements = !ret->python_package && has_file(fs, host_path, "requirements.txt");
    ret->node = has_file(fs, host_path, "package.json") && fs->kind(modules) != MCP_DIR;
}

static void plan_preparation(struct mcp_plan *p, const struct args *args)
{
    bool wanted = !str_eq(args->install, "off");

    p->prepare.writable = p->server.box.host_path_mode == MOUNT_RW;
    p->prepare.install = wanted && !mcp_command_installs(p->server.command);
    p->prepare.builds = wanted && mcp_command_builds(p->server.command);
    project_look(&mcp_fs_host, project_of(p), &p->prepare.project);
}

/* The virtual environment of a python that was rewritten to plain "python"; "": none. */
static char *venv_inside(const struct mcp_plan *p)
{
    if (str_eq(p->command, p->server.command) || !str_eq(p->command, "python"))
        return xstrdup("");
    char *place = mcp_rewrite_arg(&mcp_fs_host, p->server.command, &p->roots);
    for (int i = 0; i < 2; i++) { /* without "/bin/python" */
        char *slash = strrchr(place, '/');
        if (slash != NULL)
            *slash = '\0';
    }
    if (place[0] != '/')
        place[0] = '\0';
    return place;
}

static void rewrite_paths(struct mcp_plan *p, const struct args *args)
{
    const struct mcp_server *s = &p->server;
    struct mcp_roots staged = {0};
    const struct mcp_roots *roots = &p->roots;

    if (mcp_prepare_stages(&p->prepare)) {
        mcp_roots_add(&staged, p->roots.list[0].host, MCP_STAGE);
        roots = &staged;
    }
    p->command = mcp_rewrite_command(&mcp_fs_host, s->command, roots);
    for (size_t i = 0; i < strv_len(s->args); i++)
        strv_push(&p->inside_args, mcp_rewrite_arg(&mcp_fs_host, s->args[i], roots));
    p->cwd = xstrdup(args->inside_dir != NULL          ? args->inside_dir
                     : mcp_prepare_stages(&p->prepare) ? MCP_STAGE
                                                       : MCP_MOUNT);
    p->venv = venv_inside(p);
    mcp_roots_done(&staged);
}

/* The cache. */

static void add_part(struct sha256 *s, const char *kind, const char *text, size_t len)
{
    sha256_add(s, kind, strlen(kind) + 1);
    sha256_add(s, text, len);
    sha256_add(s, "", 1);
}

/* Of all that makes this box what it is, but for the values of variables: another command line,
 * other rights or another directory of the host is another box, which need not trust this one. */
static char *cache_name(const struct mcp_plan *p, const struct spec *spec)
{
    const struct mcp_box *b = &p->server.box;
    AUTO_STRV char **words = words_of(&p->server);
    AUTO_FREE char *rights =
        xasprintf("%s %s %s", network_names[b->network], mount_mode_names[b->host_path_mode],
                  b->image != NULL ? b->image : "");
    char digest[SHA256_HEX + 1];
    struct sha256 s;

    sha256_init(&s);
    add_part(&s, "box", rights, strlen(rights));
    for (size_t i = 0; i < strv_len(words); i++)
        add_part(&s, "word", words[i], strlen(words[i]));
    for (size_t i = 0; i < strv_len(p->server.env); i++)
        add_part(&s, "env", p->server.env[i], strcspn(p->server.env[i], "="));
    for (size_t i = 0; i < p->roots.n; i++)
        add_part(&s, "root", p->roots.list[i].host, strlen(p->roots.list[i].host));
    for (size_t i = 0; i < spec->n_extra_mounts; i++) {
        const struct mount_spec *m = &spec->extra_mounts[i];
        add_part(&s, mount_mode_names[m->mode], m->host_path, strlen(m->host_path));
    }
    sha256_hex(&s, digest);
    return xasprintf("mcp/%s-%.16s", p->name, digest);
}

static bool target_taken(const struct spec *spec, const char *target)
{
    for (size_t i = 0; i < spec->n_extra_mounts; i++)
        if (path_at_or_below(spec->extra_mounts[i].mount_path, target) ||
            path_at_or_below(target, spec->extra_mounts[i].mount_path))
            return true;
    return false;
}

/* For a server that downloads when it starts. Without a cache it only starts more slowly. */
static void find_cache(struct mcp_plan *p, const struct args *args)
{
    const struct mcp_project *project = &p->prepare.project;
    bool installs =
        p->prepare.install && (project->python_package || project->requirements || project->node);
    AUTO_DONE(mcp_roots) struct mcp_roots all = {0};
    struct err err;

    if (str_eq(args->cache, "off") || !(installs || mcp_command_installs(p->server.command)))
        return;
    AUTO_FREE char *name = cache_name(p, args->spec);
    if (mcp_cache_open(name, &all, &err) < 0) {
        text_say("%s: no package cache: %s", p->name, err.msg);
        return;
    }
    for (size_t i = 0; i < all.n; i++)
        if (!target_taken(args->spec, all.list[i].inside))
            mcp_roots_add(&p->cache, all.list[i].host, all.list[i].inside);
}

static int set_delays(struct mcp_plan *p, const struct args *args, struct err *err)
{
    const char *delays =
        args->retry_delays != NULL ? args->retry_delays : getenv("BOX_MCP_RETRY_DELAYS");
    mcp_retry_init(&p->retry);
    if (delays != NULL && mcp_retry_parse(&p->retry, delays) < 0)
        return err_set(err, ERR_INVALID,
                       "--retry-delays: '%s' is not a list of seconds such as 2,4,8,60", delays);
    return 0;
}

int mcp_plan_make(const struct args *args, struct mcp_plan *p, struct err *err)
{
    char random[17];

    *p = (struct mcp_plan){0};
    if (args->inside_dir != NULL && args->inside_dir[0] != '/')
        return err_set(err, ERR_INVALID, "--workdir must be an absolute path inside the sandbox");
    int r = read_command(p, args, err);
    if (r < 0)
        return r;
    apply_options(p, args);
    r = read_env(p, args, err);
    if (r >= 0)
        r = find_roots(p, err);
    if (r >= 0)
        r = set_delays(p, args, err);
    if (r < 0)
        return r;
    name_server(p, args);
    plan_preparation(p, args);
    rewrite_paths(p, args);
    find_chain(p);
    find_cache(p, args);
    id_random(random);
    (void)str_fmt(p->session_id, sizeof(p->session_id), "mcp-%s", random);
    return 0;
}

void mcp_plan_done(struct mcp_plan *p)
{
    mcp_server_done(&p->server);
    mcp_roots_done(&p->roots);
    mcp_roots_done(&p->chain);
    mcp_roots_done(&p->cache);
    free(p->chain_path);
    free(p->name);
    free(p->command);
    strv_free(p->inside_args);
    free(p->venv);
    free(p->cwd);
}

static bool has_variable(char *const *env, const char *name)
{
    size_t len = strlen(name);

    for (size_t i = 0; i < strv_len(env); i++)
        if (strncmp(env[i], name, len) == 0 && env[i][len] == '=')
            return true;
    return false;
}

const char *mcp_plan_download_hint(const struct mcp_plan *p)
{
    static const char *const proxies[] = {"HTTPS_PROXY", "https_proxy"};
    bool set = false, given = false;

    if (p->server.box.network == NETWORK_OFF)
        return "the network of this box is off, so nothing can be downloaded (--network on allows "
               "it)";
    for (size_t i = 0; i < ARRAY_SIZE(proxies); i++) {
        set = set || getenv(proxies[i]) != NULL;
        given = given || has_variable(p->server.env, proxies[i]);
    }
    return set && !given ? "HTTPS_PROXY is set here, but the server was not given it (--env "
                           "HTTPS_PROXY)"
                         : NULL;
}

int mcp_plan_run_on_host(const struct mcp_plan *p, struct err *err)
{
    const struct sigaction by_default = {.sa_handler = SIG_DFL};
    AUTO_STRV char **argv = words_of(&p->server);
    sigset_t none;

    for (size_t i = 0; i < strv_len(p->server.env); i++) {
        AUTO_FREE char *name = xstrndup(p->server.env[i], strcspn(p->server.env[i], "="));
        (void)setenv(name, p->server.env[i] + strlen(name) + 1, 1);
    }
    (void)sigaction(SIGPIPE, &by_default, NULL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)execvp(argv[0], argv);
    return err_sys(err, errno, "run '%s'", argv[0]);
}
