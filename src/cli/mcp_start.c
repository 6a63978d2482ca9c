/* SPDX-License-Identifier: Apache-2.0 */

/* Prepares a box for an MCP server (dependencies, its command) and starts the server's process. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/io/outcome.h"
#include "cli/mcp.h"
#include "cli/mcp/env.h"
#include "cli/mcp/npm_errors.h"
#include "cli/mcp/payload.h"
#include "spec/spec.h"

#define INSTALL_TEXT 500 /* characters of what an installer said */
#define INSTALL_LINES 12 /* of its last words, on standard error */
#define SAY_MAX 1024

/* Dependencies, and whether the command is there. */

static int answer_error(const struct mcp_run *m, unsigned status, const struct err *err, char *ret,
                        size_t size)
{
    AUTO(json) struct json *v = NULL;
    struct err ignored;

    if (err == NULL && status >= 200 && status <= 299)
        return 0;
    ret[0] = '\0';
    (void)json_parse(buf_str(&m->answer), m->answer.len, &v, &ignored);
    const char *detail = err != NULL ? err->msg : json_str(json_get(v, "detail"));
    const char *remedy = err != NULL ? NULL : json_str(json_get(v, "remediation"));
    (void)snprintf(ret, size, "%s%s%s", detail != NULL ? detail : "boxd gave no reason",
                   remedy != NULL ? "; " : "", remedy != NULL ? remedy : "");
    return -EIO;
}

static void missing_command(struct mcp_run *m)
{
    AUTO_FREE char *why = xasprintf(
        "command '%s' was not found inside the box (image '%s'); install it there, or name another "
        "image with --image",
        m->command, m->server.box.image != NULL ? m->server.box.image : "host");

    mcp_set_phase(m, MCP_PROCESS_START);
    mcp_fatal(m, 127, why);
}

static bool has_variable(char *const *env, const char *name)
{
    size_t len = strlen(name);

    for (size_t i = 0; i < strv_len(env); i++)
        if (strncmp(env[i], name, len) == 0 && env[i][len] == '=')
            return true;
    return false;
}

const char *mcp_download_hint(const struct mcp_run *m)
{
    static const char *const proxies[] = {"HTTPS_PROXY", "https_proxy"};
    bool set = false, given = false;

    if (m->server.box.network == NETWORK_OFF)
        return "the network of this box is off, so nothing can be downloaded (--network on allows "
               "it)";
    for (size_t i = 0; i < ARRAY_SIZE(proxies); i++) {
        set = set || getenv(proxies[i]) != NULL;
        given = given || has_variable(m->server.env, proxies[i]);
    }
    return set && !given ? "HTTPS_PROXY is set here, but the server was not given it (--env "
                           "HTTPS_PROXY)"
                         : NULL;
}

/* All that fits in an error is a sentence; whoever has to mend it wants to see more. */
static void show_installer(struct mcp_run *m, const char *said)
{
    for (const char *line = mcp_npm_tail(said, INSTALL_LINES); *line != '\0';) {
        size_t len = strcspn(line, "\n");
        if (len > 0)
            mcp_say(m, "  | %.*s", (int)(len < INSTALL_TEXT ? len : INSTALL_TEXT), line);
        line += len + (line[len] != '\0' ? 1 : 0);
    }
}

static void install_failed(struct mcp_run *m, const struct json *v)
{
    const char *said = json_str(json_get(v, "stderr")), *outcome = json_str(json_get(v, "outcome"));
    const char *from = mcp_npm_failure(said != NULL ? said : "");
    size_t len = strlen(from);
    const char *hint = mcp_download_hint(m);
    AUTO_FREE char *why = NULL;

    show_installer(m, said != NULL ? said : "");
    len = len > INSTALL_TEXT ? utf8_boundary(from, INSTALL_TEXT) : len;
    if (str_eq(outcome, "timed_out"))
        why = xasprintf("dependencies were not installed within %lld s (--startup-timeout)%s%s",
                        (long long)m->server.box.startup_timeout_sec, hint != NULL ? "; " : "",
                        hint != NULL ? hint : "");
    else
        why = xasprintf("Dependency install failed (exit code %lld): %s%s%.*s",
                        (long long)json_int(json_get(v, "exit_code")), hint != NULL ? hint : "",
                        hint != NULL ? "; --install off starts without: " : "", (int)len, from);
    for (size_t end = strlen(why); end > 0 && why[end - 1] == '\n';)
        why[--end] = '\0';
    for (char *c = strchr(why, '\n'); c != NULL; c = strchr(c, '\n'))
        *c = ' '; /* the lines themselves were shown */
    mcp_step_failed(m, why);
}

static void on_prepared(struct mcp_run *m, unsigned status, const struct err *err)
{
    AUTO(json) struct json *v = NULL;
    char why[SAY_MAX];
    struct err bad;

    if (answer_error(m, status, err, why, sizeof(why)) < 0) {
        mcp_step_failed(m, why);
        return;
    }
    if (json_parse(buf_str(&m->answer), m->answer.len, &v, &bad) < 0) {
        mcp_step_failed(m, bad.msg);
        return;
    }
    bool exited = str_eq(json_str(json_get(v, "outcome")), "exited");
    int64_t code = json_int(json_get(v, "exit_code"));
    if (exited && code == MCP_PREPARE_MISSING) {
        missing_command(m);
        return;
    }
    if (!exited || code != 0) {
        install_failed(m, v);
        return;
    }
    mcp_prepared_done(&m->prepared);
    const char *said = json_str(json_get(v, "stdout"));
    if (mcp_prepare_read(said != NULL ? said : "", &m->prepared, &bad) < 0) {
        mcp_step_failed(m, bad.msg);
        return;
    }
    m->is_prepared = true;
    mcp_start(m);
}

static void put_env(struct jw *w, char *const *env)
{
    jw_key(w, "env");
    jw_object(w);
    for (size_t i = 0; i < strv_len(env); i++) {
        AUTO_FREE char *name = xstrndup(env[i], strcspn(env[i], "="));
        jw_kstr(w, name, env[i] + strlen(name) + 1);
    }
    jw_object_end(w);
}

void mcp_prepare_box(struct mcp_run *m)
{
    AUTO_DONE(buf) struct buf body;
    AUTO_DONE(buf) struct buf script;
    AUTO_STRV char **given = mcp_env_for_install(m->server.env);
    AUTO_STRV char **env = mcp_env_with(mcp_env_defaults(m->server.box.network), given);
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s/exec", m->session_id);
    struct jw w;

    mcp_enter(m, STEP_PREPARE);
    buf_init(&body, 1 << 20);
    buf_init(&script, 65536);
    (void)mcp_prepare_script(&m->prepare, &script);
    jw_init(&w, &body);
    jw_object(&w);
    jw_key(&w, "argv");
    jw_array(&w);
    jw_str(&w, "/bin/sh");
    jw_str(&w, "-c");
    jw_str(&w, buf_str(&script));
    jw_str(&w, "sh");
    jw_str(&w, m->command);
    jw_str(&w, m->venv);
    jw_str(&w, m->chain_path);
    jw_array_end(&w);
    put_env(&w, env);
    jw_kreal(&w, "timeout_sec", (double)m->server.box.startup_timeout_sec);
    jw_object_end(&w);
    (void)jw_end(&w);
    mcp_call(m, "POST", target, &body, on_prepared);
}

/* The process. */

static void on_started(struct mcp_run *m, unsigned status, const struct err *err)
{
    char why[SAY_MAX];

    if (answer_error(m, status, err, why, sizeof(why)) < 0) {
        m->process_number = 0;
        mcp_step_failed(m, why);
        return;
    }
    mcp_enter(m, STEP_ATTACH);
    mcp_link_attach(m);
}

/* What the server's own environment says comes last and wins. */
static char **process_env(const struct mcp_run *m)
{
    char **env = mcp_env_defaults(m->server.box.network);

    strv_push(&env, xasprintf("PATH=%s", m->prepared.path));
    if (m->prepared.python_path != NULL)
        strv_push(&env, xasprintf("PYTHONPATH=%s", m->prepared.python_path));
    return mcp_env_with(env, m->server.env);
}

static void on_forgotten(struct mcp_run *m, unsigned status, const struct err *err)
{
    if (err != NULL) {
        mcp_step_failed(m, err->msg);
        return;
    }
    m->has_remains = false;
    mcp_start(m);
}

/* What it has left behind in the background goes with its record, which was kept so far for who
 * wants to read its last words. */
static void end_remains(struct mcp_run *m)
{
    AUTO_FREE char *target =
        xasprintf("/v1/sessions/%s/processes/%s", m->session_id, m->process_id);

    mcp_call(m, "DELETE", target, NULL, on_forgotten);
}

void mcp_start(struct mcp_run *m)
{
    AUTO_DONE(buf) struct buf body;
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s/processes", m->session_id);
    AUTO_STRV char **env = process_env(m);
    struct jw w;

    buf_init(&body, 4 << 20);
    if (m->step != STEP_START)
        mcp_enter(m, STEP_START);
    if (m->has_remains) {
        end_remains(m);
        return;
    }
    m->process_number = ++m->starts;
    (void)str_fmt(m->process_id, sizeof(m->process_id), "server-%u", m->starts);
    m->at = m->received = m->err_at = m->sent_bytes = 0;
    m->eof_sent = false;
    const struct mcp_process_payload payload = {.process_id = m->process_id,
                                                .command = m->prepared.command,
                                                .args = m->inside_args,
                                                .env = env,
                                                .cwd = m->cwd};
    jw_init(&w, &body);
    mcp_write_process(&w, &payload);
    if (jw_end(&w) < 0) {
        mcp_fatal(m, STATUS_FAILED, "arguments and environment are larger than 4 MiB");
        return;
    }
    mcp_call(m, "POST", target, &body, on_started);
}
