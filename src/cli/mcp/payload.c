/* SPDX-License-Identifier: Apache-2.0 */

/* Writes what boxd is asked for on behalf of an MCP server: the session, the shell script that
 * prepares it, and the process; reads what the script found. */

#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/args/args.h"
#include "cli/mcp/plan.h"
#include "spec/spec.h"

static void put_env(struct jw *w, char *const *env)
{
    jw_kobject(w, "env");
    for (size_t i = 0; env != NULL && env[i] != NULL; i++) {
        size_t len = strcspn(env[i], "=");
        AUTO_FREE char *name = xstrndup(env[i], len);
        jw_kstr(w, name, env[i][len] == '=' ? env[i] + len + 1 : "");
    }
    jw_object_end(w);
}

/* The list is begun with its first mount. */
static void put_mount(struct jw *w, bool *begun, const struct mcp_root *root, int mode)
{
    if (!*begun) {
        jw_karray(w, "extra_mounts");
        *begun = true;
    }
    jw_object(w);
    jw_kstr(w, "host_path", root->host);
    jw_kstr(w, "mount_path", root->inside);
    jw_kstr(w, "mode", mount_mode_names[mode]);
    jw_object_end(w);
}

static void put_mounts(struct jw *w, const struct mcp_plan *p, const struct spec *spec)
{
    bool begun = false;

    for (size_t i = 0; i < p->roots.n; i++)
        if (!str_eq(p->roots.list[i].inside, MCP_MOUNT))
            put_mount(w, &begun, &p->roots.list[i], p->server.box.host_path_mode);
    for (size_t i = 0; i < p->chain.n; i++) /* read-only, whatever the others are */
        put_mount(w, &begun, &p->chain.list[i], MOUNT_RO);
    for (size_t i = 0; i < p->cache.n; i++)
        put_mount(w, &begun, &p->cache.list[i], MOUNT_RW);
    for (size_t i = 0; i < spec->n_extra_mounts; i++) {
        const struct mount_spec *m = &spec->extra_mounts[i];
        const struct mcp_root root = {.host = m->host_path, .inside = m->mount_path};
        put_mount(w, &begun, &root, (int)m->mode);
    }
    if (begun)
        jw_array_end(w);
}

void mcp_write_session(struct jw *w, const struct mcp_plan *p, const struct args *args)
{
    const struct mcp_box *b = &p->server.box; /* what is null is left out */

    jw_object(w);
    jw_kstr(w, "session_id", p->session_id);
    jw_kstr(w, "workdir", MCP_MOUNT);
    put_env(w, b->env);
    jw_kstr(w, "network", network_names[b->network]);
    jw_kbool(w, "read_only_rootfs", b->read_only_rootfs == 1);
    for (size_t i = 0; i < p->roots.n; i++) {
        if (!str_eq(p->roots.list[i].inside, MCP_MOUNT))
            continue;
        jw_kstr(w, "host_path", p->roots.list[i].host);
        jw_kstr(w, "host_path_mode", mount_mode_names[b->host_path_mode]);
    }
    put_mounts(w, p, args->spec);
    if (b->image != NULL)
        jw_kstr(w, "image", b->image);
    if (b->cpus > 0)
        jw_kreal(w, "cpus", b->cpus);
    if (b->memory_mb > 0)
        jw_kint(w, "memory_mb", b->memory_mb);
    if (b->pids_limit > 0)
        jw_kint(w, "pids_limit", b->pids_limit);
    if (args->spec->workspace_quota_mb > 0)
        jw_kint(w, "workspace_quota_mb", args->spec->workspace_quota_mb);
    if (args->profile != NULL)
        jw_kstr(w, "profile", args->profile);
    if (args->best_effort)
        jw_kbool(w, "best_effort", true);
    args_put_hosts(args, w);
    jw_object_end(w);
}

void mcp_write_process(struct jw *w, const char *process_id, const char *command, char *const *args,
                       char *const *env, const char *cwd)
{
    jw_object(w);
    jw_kstr(w, "process_id", process_id);
    jw_kstr(w, "command", command);
    jw_karray(w, "args");
    for (size_t i = 0; i < strv_len(args); i++)
        jw_str(w, args[i]);
    jw_array_end(w);
    put_env(w, env);
    jw_kstr(w, "cwd", cwd);
    jw_object_end(w);
}

/* Preparation. */

#define MARK_COMMAND "box-mcp-command "
#define MARK_PATH "box-mcp-path "
#define MARK_PYTHON "box-mcp-pythonpath "

bool mcp_prepare_stages(const struct mcp_prepare *p)
{
    return !p->writable &&
           ((p->install && p->project.node) || (p->builds && p->project.python_package));
}

/* stdout is ours: descriptor 3 from here on. */
static const char head[] = "set -e\n"
                           "exec 3>&1 1>&2\n"
                           "[ -z \"$3\" ] || PATH=$3:$PATH\n"
                           "state=$HOME/.box-mcp\n"
                           "mkdir -p \"$state\"\n";

/* A read-only project cannot be built where it is, and /tmp is small. */
static const char stage[] =
    "rm -rf \"$state/project\"; mkdir -p \"$state/project\"\n"
    "tar -C /workspace --exclude=./.venv --exclude=./venv --exclude=./.git "
    "--exclude=__pycache__ --exclude=./node_modules --exclude=./.tox --exclude=./.nox "
    "--exclude='*.egg-info' --exclude=./.uv-cache -cf - . | tar -C \"$state/project\" -xf -\n"
    "project=$state/project\n";

static const char in_place[] = "project=/workspace\n";

static const char venv[] =
    "python=$(command -v python3 || command -v python) || "
    "{ echo 'there is no python in this image'; exit 126; }\n"
    "[ -x \"$state/venv/bin/python\" ] || \"$python\" -m venv \"$state/venv\"\n"
    "export VIRTUAL_ENV=\"$state/venv\" PATH=\"$state/venv/bin:$PATH\" "
    "PIP_DISABLE_PIP_VERSION_CHECK=1\n";

static const char pip_package[] = "python -m pip install \"$project\"\n"
                                  "[ \"$project\" = /workspace ] || rm -rf \"$project\"\n";
static const char pip_requirements[] = "python -m pip install -r /workspace/requirements.txt\n";

static const char npm[] =
    "cd \"$project\"\n"
    "if [ -f package-lock.json ]; then npm ci --omit=dev --no-audit --no-fund; "
    "else npm install --omit=dev --no-audit --no-fund; fi\n"
    "cd /workspace\n";

static const char tail[] =
    "found=$(command -v -- \"$1\") || found=\n"
    "[ -n \"$found\" ] || [ \"$1\" != python ] || found=$(command -v python3) || found=\n"
    "[ -n \"$found\" ] && [ -x \"$found\" ] || exit 127\n"
    "printf '" MARK_COMMAND "%s\\n" MARK_PATH "%s\\n' \"$found\" \"$PATH\" >&3\n";

/* Packages are built for one version of python. */
static const char packages[] =
    "if [ -n \"$2\" ]; then\n"
    "  v=$(\"$found\" -c 'import sys; print(\"python%d.%d\" % sys.version_info[:2])')\n"
    "  [ ! -d \"$2/lib/$v/site-packages\" ] || "
    "printf '" MARK_PYTHON "%s\\n' \"$2/lib/$v/site-packages\" >&3\n"
    "fi\n";

static void write_script(const struct mcp_prepare *p, struct buf *out)
{
    bool python = p->install && (p->project.python_package || p->project.requirements);

    (void)buf_puts(out, head);
    if (python && p->project.python_package)
        (void)buf_puts(out, p->writable ? in_place : stage);
    if (python) {
        (void)buf_puts(out, venv);
        (void)buf_puts(out, p->project.python_package ? pip_package : pip_requirements);
    }
    if (p->install && p->project.node) {
        (void)buf_puts(out, p->writable ? in_place : stage);
        (void)buf_puts(out, npm);
    } else if (mcp_prepare_stages(p)) {
        (void)buf_puts(out, stage);
    }
    (void)buf_puts(out, tail);
    if (!python)
        (void)buf_puts(out, packages);
}

/* The rest of the line behind the last such mark. */
static char *behind(const char *text, const char *mark)
{
    const char *found = NULL;

    for (const char *at = strstr(text, mark); at != NULL; at = strstr(at + 1, mark))
        if (at == text || at[-1] == '\n')
            found = at + strlen(mark);
    return found != NULL ? xstrndup(found, strcspn(found, "\n")) : NULL;
}

void mcp_prepared_done(struct mcp_prepared *p)
{
    free(p->command);
    free(p->path);
    free(p->python_path);
    *p = (struct mcp_prepared){0};
}

int mcp_prepare_read(const char *text, struct mcp_prepared *ret, struct err *err)
{
    struct mcp_prepared p = {.command = behind(text, MARK_COMMAND),
                             .path = behind(text, MARK_PATH),
                             .python_path = behind(text, MARK_PYTHON)};

    if (p.command == NULL || p.command[0] == '\0' || p.path == NULL) {
        mcp_prepared_done(&p);
        return err_set(err, ERR_BACKEND, "the step that looks for the command said nothing");
    }
    *ret = p;
    return 0;
}

/* What installers read (proxies, indexes, registries, certificates), for the step that installs. */
static char **mcp_env_for_install(char *const *env)
{
    static const char *const prefixes[] = {
        "PIP_",         "UV_",         "NPM_CONFIG_",   "npm_config_",          "NPM_TOKEN=",
        "HTTP_PROXY=",  "http_proxy=", "NO_PROXY=",     "NODE_AUTH_TOKEN=",     "SSL_CERT_",
        "HTTPS_PROXY=", "ALL_PROXY=",  "no_proxy=",     "NODE_EXTRA_CA_CERTS=", "CURL_CA_BUNDLE=",
        "https_proxy=", "all_proxy=",  "NODE_OPTIONS=", "REQUESTS_CA_BUNDLE="};
    char **some = NULL;

    for (size_t i = 0; i < strv_len(env); i++)
        for (size_t j = 0; j < ARRAY_SIZE(prefixes); j++)
            if (str_starts(env[i], prefixes[j])) {
                strv_add(&some, env[i]);
                break;
            }
    return some;
}

/* What a box tells installers before the user's own variables do; `network` is an enum
 * network. Without one they need not try. */
static char **mcp_env_defaults(int network)
{
    char **env = NULL;

    /* Trying again cannot help; installers take what their caches have. */
    if (network == NETWORK_OFF) {
        strv_add(&env, "PIP_RETRIES=0");
        strv_add(&env, "UV_OFFLINE=1");
        strv_add(&env, "npm_config_offline=true");
    }
    return env;
}

/* Takes `env`, and gives it back with `more` set over it. */
static char **mcp_env_with(char **env, char *const *more)
{
    for (; more != NULL && *more != NULL; more++)
        (void)mcp_env_set(&env, *more, NULL);
    return env;
}

int mcp_write_prepare(const struct mcp_plan *p, struct buf *out)
{
    AUTO_DONE(buf) struct buf script = BUF_INIT(65536);
    AUTO_STRV char **given = mcp_env_for_install(p->server.env);
    AUTO_STRV char **defaults = mcp_env_defaults(p->server.box.network);
    struct jw w = JW_INIT(out);

    if (p->cache.n == 0)
        strv_add(&defaults, "PIP_NO_CACHE_DIR=1"); /* it would fill a home that is thrown away */
    AUTO_STRV char **env = mcp_env_with(TAKE_PTR(defaults), given);
    write_script(&p->prepare, &script);
    const char *const argv[] = {"/bin/sh",  "-c",    buf_str(&script), "sh",
                                p->command, p->venv, p->chain_path};
    jw_object(&w);
    jw_karray(&w, "argv");
    for (size_t i = 0; i < ARRAY_SIZE(argv); i++)
        jw_str(&w, argv[i]);
    jw_array_end(&w);
    put_env(&w, env);
    jw_kreal(&w, "timeout_sec", (double)p->server.box.startup_timeout_sec);
    jw_object_end(&w);
    return jw_end(&w);
}

/* What the server's own environment says comes last and wins. */
char **mcp_env_of_process(int network, const struct mcp_prepared *prepared, char *const *own)
{
    char **env = mcp_env_defaults(network);

    strv_push(&env, xasprintf("PATH=%s", prepared->path));
    if (prepared->python_path != NULL)
        strv_push(&env, xasprintf("PYTHONPATH=%s", prepared->python_path));
    return mcp_env_with(env, own);
}
