/* SPDX-License-Identifier: Apache-2.0 */

/* The table of policy settings, a parser for each kind of them, and their reading from the file and
 * the environment, with their sources. */

#include <arpa/inet.h>
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "policy/policy_internal.h"
#include "spec/coerce.h"

struct setting;

struct value {
    const struct json *json;
    const char *where; /* it was found */
    bool flat;         /* under the older spelling of its name */
    struct policy *policy;
    const struct policy_options *options;
};

/* Sets the member at `dst` and writes to `shown` what it is now. An error names the setting and
 * where its value came from: several places may have to be looked at. */
typedef int value_fn(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
                     struct err *err);

struct setting {
    const char *path;  /* nested shape */
    const char *alias; /* flat shape; NULL: there is none */
    value_fn *set;
    size_t offset;
    const char *text; /* default, as it could be given; NULL: not set */
    int64_t min, max;
    const char *const *names; /* two of them */
    const char *env;          /* a variable that says it too, whole; NULL: none */
    const char *doc;
};

/* Kinds of settings ---------------------------------------------------------------------------- */

/* NULL when it is no text, or one that C would take for a shorter one. */
static const char *text_of(const struct json *v)
{
    const char *s = json_str(v);

    return s != NULL && strlen(s) == json_str_len(v) ? s : NULL;
}

/* `rule` says what the value of the setting must be. */
static int value_wrong(const struct setting *s, const char *where, const char *rule,
                       struct err *err)
{
    return err_set(err, ERR_INVALID, "%s %s (from %s)", s->path, rule, where);
}

static int value_too_long(const struct setting *s, const char *where, struct err *err)
{
    return err_set(err, ERR_LIMIT, "%s is too long (from %s)", s->path, where);
}

/* The error is a sentence about the value already. */
static int value_blame(const struct setting *s, const char *where, struct err *err)
{
    struct err cause = *err;
    return err_set(err, cause.code, "%s (%s from %s)", cause.msg, s->path, where);
}

static int show(const struct setting *s, const struct value *v, const char *text, struct buf *shown,
                struct err *err)
{
    return buf_puts(shown, text) < 0 ? value_too_long(s, v->where, err) : 0;
}

static int show_number(struct buf *shown, int64_t n)
{
    return buf_printf(shown, "%lld", (long long)n);
}

static int set_bool(bool on, void *dst, struct buf *shown)
{
    *(bool *)dst = on;
    return buf_puts(shown, on ? "true" : "false");
}

/* bool; anything that does not say no means yes */
static int value_enabled(const struct setting *s, const struct value *v, void *dst,
                         struct buf *shown, struct err *err)
{
    static const char *const no[] = {"", "0", "false", "no", "off"};
    bool on = json_type(v->json) != JSON_BOOL || json_bool(v->json);

    if (text_of(v->json) != NULL) {
        AUTO_FREE char *word = str_strip(text_of(v->json));
        for (size_t i = 0; i < ARRAY_SIZE(no); i++)
            on = on && strcasecmp(word, no[i]) != 0;
    }
    return set_bool(on, dst, shown);
}

/* bool */
static int value_bool(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
                      struct err *err)
{
    bool on;

    if (coerce_bool(v->json, &on) != ISSUE_NONE)
        return value_wrong(s, v->where, "must be true or false", err);
    return set_bool(on, dst, shown);
}

/* bool; anything that is not clearly yes means no */
static int value_gate(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
                      struct err *err)
{
    bool on = false;

    (void)coerce_bool(v->json, &on);
    return set_bool(on, dst, shown);
}

/* int64_t */
static int value_int(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
                     struct err *err)
{
    int64_t n;

    if (coerce_int(v->json, &n) != ISSUE_NONE || n < s->min || n > s->max)
        return err_set(err, ERR_INVALID, "%s must be a number from %lld to %lld (from %s)", s->path,
                       (long long)s->min, (long long)s->max, v->where);
    *(int64_t *)dst = n;
    return show_number(shown, n);
}

/* int64_t; nonsense is the default, beyond a bound is that bound */
static int value_clamped(const struct setting *s, const struct value *v, void *dst,
                         struct buf *shown, struct err *err)
{
    int64_t n = 0;

    if (coerce_int(v->json, &n) != ISSUE_NONE)
        (void)str_to_i64(s->text, &n);
    n = n < s->min ? s->min : n;
    n = n > s->max ? s->max : n;
    *(int64_t *)dst = n;
    return show_number(shown, n);
}

/* int64_t and has_quota */
static int value_quota(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
                       struct err *err)
{
    struct policy_settings *to = &v->policy->settings;
    int r = quota_parse(v->json, &to->has_quota, &to->workspace_quota_mb, err);

    if (r < 0)
        return value_blame(s, v->where, err);
    return to->has_quota ? show_number(shown, to->workspace_quota_mb) : 0;
}

/* An enum of the size of int */
static int value_choice(const struct setting *s, const struct value *v, void *dst,
                        struct buf *shown, struct err *err)
{
    int choice;

    if (coerce_enum(v->json, s->names, &choice) != ISSUE_NONE)
        return err_set(err, ERR_INVALID, "%s must be %s or %s (from %s)", s->path, s->names[0],
                       s->names[1], v->where);
    *(int *)dst = choice;
    return show(s, v, s->names[choice], shown, err);
}

/* char *; blank is NULL */
static int value_text(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
                      struct err *err)
{
    if (text_of(v->json) == NULL)
        return value_wrong(s, v->where, "must be text", err);
    AUTO_FREE char *text = str_strip(text_of(v->json));
    if (text[0] == '\0')
        return 0;
    int r = show(s, v, text, shown, err);
    *(char **)dst = TAKE_PTR(text);
    return r;
}

/* char * */
static int value_template(const struct setting *s, const struct value *v, void *dst,
                          struct buf *shown, struct err *err)
{
    int r = value_text(s, v, dst, shown, err);

    if (r == 0 && *(char **)dst != NULL && policy_template_check(*(char **)dst, err) < 0)
        return value_blame(s, v->where, err);
    return r;
}

/* char *; absolute and resolved */
static int value_path(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
                      struct err *err)
{
    const struct policy_settings *have = &v->policy->settings;
    const char *base = v->options->cwd;

    if (text_of(v->json) == NULL)
        return value_wrong(s, v->where, "must be a path", err);
    AUTO_FREE char *text = str_strip(text_of(v->json));
    if (text[0] == '\0')
        return 0;
    /* In the nested shape what is relative lies below host_root, which the table has before. */
    if (dst == &have->default_workspace && have->host_root != NULL && !v->flat)
        base = have->host_root;
    AUTO_FREE char *plain = policy_plain_path(base, text);
    *(char **)dst = v->options->resolve != NULL ? v->options->resolve(plain) : TAKE_PTR(plain);
    return show(s, v, *(char **)dst, shown, err);
}

static void add_path(const char *item, const struct value *v, char ***list)
{
    AUTO_FREE char *text = str_strip(item);

    if (text[0] != '\0')
        strv_push(list, policy_plain_path(v->options->cwd, text));
}

/* A list, or one text with commas. */
static int add_paths(const struct value *v, char ***list)
{
    if (text_of(v->json) != NULL) {
        AUTO_FREE char *copy = xstrdup(text_of(v->json));
        char *save = NULL;
        for (char *item = strtok_r(copy, ",", &save); item; item = strtok_r(NULL, ",", &save))
            add_path(item, v, list);
        return 0;
    }
    bool ok = json_type(v->json) == JSON_ARRAY;
    for (size_t i = 0; i < json_len(v->json) && ok; i++) {
        const char *item = text_of(json_at(v->json, i));
        ok = item != NULL;
        if (ok)
            add_path(item, v, list);
    }
    return ok ? 0 : -1;
}

/* char **; absolute, as spelled */
static int value_paths(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
                       struct err *err)
{
    if (add_paths(v, dst) < 0)
        return value_wrong(s, v->where, "must be a list of paths", err);
    if (strv_len(*(char ***)dst) > POLICY_ROOTS_MAX)
        return err_set(err, ERR_LIMIT, "%s may have at most %d entries (from %s)", s->path,
                       POLICY_ROOTS_MAX, v->where);
    v->policy->flat = v->flat;
    return 0;
}

/* char **; numeric addresses */
static int value_addresses(const struct setting *s, const struct value *v, void *dst,
                           struct buf *shown, struct err *err)
{
    char ***list = dst;
    struct in6_addr ignored;
    bool ok = json_type(v->json) == JSON_ARRAY && json_len(v->json) <= POLICY_ROOTS_MAX;

    for (size_t i = 0; ok && i < json_len(v->json); i++) {
        const char *item = text_of(json_at(v->json, i));
        ok = item != NULL &&
             (inet_pton(AF_INET, item, &ignored) == 1 || inet_pton(AF_INET6, item, &ignored) == 1);
        if (ok && buf_printf(shown, "%s%s", i > 0 ? "," : "", item) < 0)
            return value_too_long(s, v->where, err);
        if (ok)
            strv_add(list, item);
    }
    return ok ? 0 : value_wrong(s, v->where, "must be a list of numeric addresses", err);
}

/* char **; services, as host_service_write() has them */
static int value_hosts(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
                       struct err *err)
{
    bool ok = json_type(v->json) == JSON_ARRAY && json_len(v->json) <= POLICY_ROOTS_MAX;

    for (size_t i = 0; ok && i < json_len(v->json); i++) {
        const char *item = text_of(json_at(v->json, i));
        char text[SPEC_HOST_TEXT_MAX];
        struct host_service at;
        ok = item != NULL && host_service_parse(item, &at) && at.inside == at.port;
        if (!ok)
            break;
        host_service_write(&at, false, text);
        if (buf_printf(shown, "%s%s", i > 0 ? "," : "", text) < 0)
            return value_too_long(s, v->where, err);
        strv_add(dst, text);
    }
    return ok ? 0
              : value_wrong(s, v->where,
                            "must be a list of numeric addresses with a port, such as "
                            "10.0.0.5:5432 or [fd00::5]:5432",
                            err);
}

/* The settings --------------------------------------------------------------------------------- */

#define PATH_KEY_MAX 128U /* of the dotted name of a setting */
#define VALUE_MAX 65536U  /* bytes of one value */

static const char *const fallback_names[] = {"refuse", "host", NULL};
static const char *const sync_names[] = {"none", "record", NULL};
static const char *const full_names[] = {"continue", "refuse", NULL};

#define AT(member) offsetof(struct policy_settings, member)
/* clang-format off */
static const struct setting settings[] = {
    {"box.enabled", NULL, value_enabled, AT(enabled), "true", .doc = "Whether sandboxes may be used at all"},
    {"box.local.profile", "box.profile", value_text, AT(profile), "default", .doc = "Profile of requests that name none"},
    {"box.local.image", NULL, value_text, AT(image), NULL, .doc = "Image of requests that name none, instead of the profile's"},
    {"box.local.host_root", "box.shared_host_root", value_path, AT(host_root), NULL, .doc = "Directory that the next two derive from"},
    {"box.local.default_workspace", "box.default_host_workspace", value_path, AT(default_workspace), NULL,
     .doc = "Directory of the host at /workspace when a request names none; without it each session has its own"},
    {"box.local.allowed_mount_roots", "box.allowed_host_mount_roots", value_paths, AT(mount_roots), NULL,
     .doc = "Directories of the host below which may be mounted"},
    {"box.local.workspace_quota_mb", "box.workspace_quota_mb", value_quota, AT(workspace_quota_mb), NULL,
     .doc = "Quota of requests that name none, in MiB"},
    {"box.local.session_id_template", NULL, value_template, AT(session_template), POLICY_TEMPLATE_DEFAULT,
     .doc = "Name of a query's session"},
    {"box.limits.max_workspace_entries", NULL, value_clamped, AT(max_workspace_entries), "100000", 1, 1000000,
     .doc = "Files of a workspace with a quota"},
    {"box.limits.session_disk_mb", NULL, value_int, AT(session_disk_mb), "4096", 0, 1 << 30,
     .doc = "Disk of a session without a quota, in MiB, and a file for each 16 KiB; counted; 0: no limit"},
    {"box.limits.disk_reserve_mb", NULL, value_int, AT(disk_reserve_mb), "1024", 0, 1 << 30,
     .doc = "What sessions leave free on the host's disk, in MiB, at most a twentieth of it"},
    {"box.output_limit_chars", NULL, value_int, AT(output_limit_chars), "4000", 0, 1 << 20,
     .doc = "Characters of each stream that an agent is shown"},
    {"system.limitation.force_box_session_id_template", NULL, value_template, AT(force_template), NULL,
     .doc = "Name of every query's session, whatever it asks for"},
    {"mcp.stdio.enabled", NULL, value_gate, AT(mcp_stdio_enabled), "true", .doc = "Whether stdio MCP servers may run"},
    {"mcp.stdio.fallback", NULL, value_choice, AT(mcp_stdio_fallback), "refuse", .names = fallback_names,
     .doc = "What becomes of them without a sandbox"},
    {"outputs.max_mb", NULL, value_int, AT(outputs_max_mb), "256", 0, 1 << 20, .doc = "Full outputs kept for reading, in MiB"},
    {"outputs.each_mb", NULL, value_int, AT(outputs_each_mb), "64", 0, 1 << 20, .doc = "Of one output, in MiB"},
    {"tokens.max_sessions", NULL, value_int, AT(token_sessions), "1000", 0, 1 << 20,
     .doc = "Sessions of a token that names no max_sessions; at most half of all"},
    {"tokens.max_execs", NULL, value_int, AT(token_execs), "256", 0, 1 << 20,
     .doc = "Commands at once of a token that names no max_execs"},
    {"tokens.max_processes", NULL, value_int, AT(token_processes), "256", 0, 1 << 20,
     .doc = "Managed processes of a token that names no max_processes; at most half of all"},
    {"tokens.max_output_mb", NULL, value_int, AT(token_output_mb), "64", 0, 1 << 20,
     .doc = "Kept outputs of a token that names no max_output_mb, in MiB; at most half of all"},
    {"audit.enabled", NULL, value_bool, AT(audit_enabled), "true", .doc = "Whether the audit log is written"},
    {"audit.file_mb", NULL, value_int, AT(audit_file_mb), "64", 1, 1 << 20, .doc = "Size at which a new file is begun, in MiB"},
    {"audit.keep_files", NULL, value_int, AT(audit_keep_files), "0", 0, 1 << 20, .doc = "Files kept; 0: all"},
    {"audit.sync", NULL, value_choice, AT(audit_sync), "none", .names = sync_names,
     .doc = "record: each record is on disk before the call goes on"},
    {"audit.on_full", NULL, value_choice, AT(audit_full), "continue", .names = full_names,
     .doc = "refuse: no command runs that cannot be recorded; continue: what is lost is counted"},
    {"ports.publish_addresses", NULL, value_addresses, AT(publish_addresses), NULL,
     .doc = "Addresses of the host, beside loopback, that ports of sessions may be published on (`box run -p`)"},
    {"ports.allow_hosts", NULL, value_hosts, AT(allow_hosts), NULL,
     .doc = "Services, beside those on the host's loopback, that sessions may be allowed to reach (`box run --allow-host`)"},
    {"sandbox.image", NULL, value_text, AT(chat.image), NULL, .env = "APP_SANDBOX_IMAGE",
     .doc = "Image of chat sandboxes; without it there are none"},
    {"sandbox.ttl_seconds", NULL, value_int, AT(chat.ttl_seconds), "300", 1, 31536000, .env = "APP_SANDBOX_TTL_SECONDS",
     .doc = "How long a chat sandbox lives, used or not"},
    {"sandbox.cleanup_interval_seconds", NULL, value_int, AT(chat.cleanup_interval_seconds), "60", 1, 86400,
     .env = "APP_SANDBOX_CLEANUP_INTERVAL_SECONDS", .doc = "How often those that have expired are ended"},
    {"sandbox.chats_root", NULL, value_path, AT(chat.chats_root), NULL, .env = "APP_SANDBOX_CHATS_ROOT",
     .doc = "Where each chat has a directory of its own"},
    {"sandbox.dependencies_host_path", NULL, value_text, AT(chat.dependencies_host_path), NULL,
     .env = "APP_SANDBOX_DEPENDENCIES_HOST_PATH", .doc = "Directory of dependencies, read-only in every chat sandbox"},
    {"sandbox.lambda_tools_host_path", NULL, value_text, AT(chat.lambda_tools_host_path), NULL,
     .env = "APP_SANDBOX_LAMBDA_TOOLS_HOST_PATH", .doc = "Directory of tools, read-only in every chat sandbox"},
    {"sandbox.chat_mount_path", NULL, value_text, AT(chat.chat_mount_path), "/workspace/chat",
     .env = "APP_SANDBOX_CHAT_MOUNT_PATH", .doc = "Where the chat's directory is inside"},
    {"sandbox.dependencies_mount_path", NULL, value_text, AT(chat.dependencies_mount_path), "/workspace/dependencies",
     .env = "APP_SANDBOX_DEPENDENCIES_MOUNT_PATH", .doc = "Where the dependencies are inside"},
    {"sandbox.lambda_tools_mount_path", NULL, value_text, AT(chat.lambda_tools_mount_path), "/workspace/lambda-tools",
     .env = "APP_SANDBOX_LAMBDA_TOOLS_MOUNT_PATH", .doc = "Where the tools are inside"},
};
/* clang-format on */

/* Read by other parts of a host, or by boxd elsewhere: known, but nothing of ours. */
static const char *const foreign[] = {
    "box.admission", "box.backend",           "box.default_memory_mb", "box.docker",      "box.e2b",
    "box.limits",    "box.local.skills_root", "box.runtime",           "box.runtime_url", "mcp",
    "system",
};

static bool is_or_below(const char *path, const char *root)
{
    size_t n = strlen(root);

    return strncmp(path, root, n) == 0 && (path[n] == '\0' || path[n] == '.');
}

static bool is_foreign(const char *path)
{
    for (size_t i = 0; i < ARRAY_SIZE(foreign); i++)
        if (is_or_below(path, foreign[i]))
            return true;
    return false;
}

static bool is_setting(const char *path)
{
    for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
        if (str_eq(settings[i].path, path) || str_eq(settings[i].alias, path))
            return true;
    return false;
}

/* A section above some setting. */
static bool is_section(const char *path)
{
    for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
        if (is_or_below(settings[i].path, path))
            return true;
    return false;
}

/* A setting that is misspelt would otherwise be a rule that is not there. */
static int check_known(const struct json *v, const char *at, struct err *err)
{
    for (void *it = json_iter(v); it != NULL; it = json_iter_next(v, it)) {
        char path[PATH_KEY_MAX];
        const struct json *child = json_iter_value(it);
        int r =
            str_fmt(path, sizeof(path), "%s%s%s", at, at[0] != '\0' ? "." : "", json_iter_key(it));
        if (r == 0 && (is_setting(path) || is_foreign(path) || str_eq(path, "profiles")))
            continue;
        if (r < 0 || !is_section(path))
            return err_set(err, ERR_INVALID, "unknown setting '%.100s'", r < 0 ? at : path);
        if (json_type(child) != JSON_OBJECT && json_type(child) != JSON_NULL)
            return err_set(err, ERR_INVALID, "'%.100s' must be a section", path);
        r = check_known(child, path, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static const struct json *find_in_file(const struct json *root, const char *path)
{
    char name[PATH_KEY_MAX];

    while (root != NULL && path != NULL) {
        size_t n = strcspn(path, ".");
        (void)snprintf(name, sizeof(name), "%.*s", (int)n, path);
        root = json_get(root, name);
        path = path[n] == '.' ? path + n + 1 : NULL;
    }
    return root;
}

/* BOX__LOCAL__HOST_ROOT is box.local.host_root; empty parts do not count. */
static bool env_names(const char *entry, const char *path)
{
    const char *end = strchr(entry, '=');
    char key[PATH_KEY_MAX];
    size_t n = 0;
    bool separated = false;

    for (const char *c = entry; c != end; c++) {
        if (n + 2 > sizeof(key) || islower((unsigned char)*c))
            return false;
        if (c[0] == '_' && c[1] == '_') {
            separated = true;
            c++;
            if (n > 0 && key[n - 1] != '.')
                key[n++] = '.';
            continue;
        }
        key[n++] = (char)tolower((unsigned char)*c);
    }
    while (n > 0 && key[n - 1] == '.')
        n--;
    key[n] = '\0';
    return separated && str_eq(key, path);
}

static const char *find_env(char *const *env, const char *path)
{
    for (; path != NULL && env != NULL && *env != NULL; env++)
        if (strchr(*env, '=') != NULL && env_names(*env, path))
            return *env;
    return NULL;
}

/* The text of a variable as a JSON value; *ret is owned. */
static int text_as_json(const char *text, struct json **ret)
{
    AUTO_DONE(buf) struct buf out = BUF_INIT(VALUE_MAX);
    struct jw w = JW_INIT(&out);

    jw_array(&w);
    jw_str(&w, text);
    jw_array_end(&w);
    int r = jw_end(&w);
    return r < 0 ? r : json_parse(out.data, out.len, ret, NULL);
}

struct picked {
    struct json *owned;   /* owned; NULL: the value is part of the file */
    const struct json *v; /* NULL: there is none */
    char *where;          /* owned */
    bool flat;            /* found under the older spelling */
};

/* Numbers and choices have no empty value, so an empty variable says nothing about them. */
static bool says_something(const struct setting *s, const char *entry)
{
    const char *is = entry != NULL ? strchr(entry, '=') : NULL;
    if (is == NULL)
        return false;
    return is[1] != '\0' || (s->set != value_int && s->set != value_clamped &&
                             s->set != value_choice && s->set != value_bool);
}

static int pick_text(const struct setting *s, const char *text, struct picked *ret, struct err *err)
{
    int r = text_as_json(text, &ret->owned);

    if (r < 0)
        return r == -ENOBUFS ? value_too_long(s, ret->where, err)
                             : value_wrong(s, ret->where, "must be valid UTF-8", err);
    ret->v = json_at(ret->owned, 0);
    return 0;
}

/* A variable of a name of its own. */
static const char *find_named(char *const *env, const char *name)
{
    size_t len = name != NULL ? strlen(name) : 0;

    for (; len > 0 && env != NULL && *env != NULL; env++)
        if (strncmp(*env, name, len) == 0 && (*env)[len] == '=')
            return *env;
    return NULL;
}

/* The environment wins over the file, and the nested shape over the flat. */
static int pick(const struct setting *s, const struct policy_options *options, struct picked *ret,
                struct err *err)
{
    const char *const spelt[] = {s->path, s->alias};

    for (int i = 0; i < 2; i++) {
        const char *entry = i == 0 ? find_named(options->env, s->env) : NULL;
        if (!says_something(s, entry))
            entry = find_env(options->env, spelt[i]);
        if (!says_something(s, entry))
            continue;
        const char *value = strchr(entry, '=');
        ret->where = xasprintf("environment %.*s", (int)(value - entry), entry);
        ret->flat = i == 1;
        return pick_text(s, value + 1, ret, err);
    }
    for (int i = 0; i < 2 && spelt[i] != NULL; i++) {
        const struct json *v = find_in_file(options->file, spelt[i]);
        if (json_type(v) == JSON_NULL)
            continue;
        ret->v = v;
        ret->where = xasprintf("file %s: %s", options->file_name, spelt[i]);
        ret->flat = i == 1;
        return 0;
    }
    ret->where = xstrdup("default");
    return s->text != NULL ? pick_text(s, s->text, ret, err) : 0;
}

static int read_setting(const struct setting *s, struct policy *p,
                        const struct policy_options *options, struct policy_source *source,
                        struct err *err)
{
    AUTO_DONE(buf) struct buf shown = BUF_INIT(VALUE_MAX);
    struct picked picked = {0};

    int r = pick(s, options, &picked, err);
    if (r == 0 && picked.v != NULL) {
        const struct value v = {.json = picked.v,
                                .where = picked.where,
                                .flat = picked.flat,
                                .policy = p,
                                .options = options};
        r = s->set(s, &v, (char *)&p->settings + s->offset, &shown, err);
    }
    json_free(picked.owned);
    source->where = picked.where;
    if (r == 0)
        source->value = buf_take(&shown);
    return r;
}

static struct policy_source *source_of(struct policy *p, size_t offset)
{
    size_t i = 0;

    while (settings[i].offset != offset) {
        i++;
        assert(i < ARRAY_SIZE(settings));
    }
    return &p->sources[i];
}

static void source_set(struct policy_source *s, char *value, char *where)
{
    free(s->value);
    free(s->where);
    s->value = value;
    s->where = where;
}

static int set_roots(struct policy *p, const struct policy_options *options, struct err *err)
{
    struct policy_settings *s = &p->settings;
    p->roots = xnew_n(struct policy_root, strv_len(s->mount_roots) + 1);
    for (size_t i = 0; s->mount_roots != NULL && s->mount_roots[i] != NULL; i++) {
        struct policy_root *root = &p->roots[p->n_roots++];
        root->given = s->mount_roots[i];
        root->real =
            options->resolve != NULL ? options->resolve(root->given) : xstrdup(root->given);
        s->mount_roots[i] = xstrdup(root->real);
        if (str_eq(root->real, "/"))
            return err_set(err, ERR_DENIED, "the whole file system cannot be allowed");
    }
    return 0;
}

/* What follows from host_root, and the list as it resolves. */
static int derive(struct policy *p, const struct policy_options *options, struct err *err)
{
    struct policy_settings *s = &p->settings;
    struct policy_source *roots = source_of(p, AT(mount_roots));
    AUTO_DONE(buf) struct buf list = BUF_INIT(VALUE_MAX);

    if (s->default_workspace == NULL && s->host_root != NULL) {
        AUTO_FREE char *plain = policy_plain_path(s->host_root, "default");
        s->default_workspace = options->resolve != NULL ? options->resolve(plain) : TAKE_PTR(plain);
        source_set(source_of(p, AT(default_workspace)), xstrdup(s->default_workspace),
                   xstrdup("derived from box.local.host_root"));
    }
    if (s->mount_roots == NULL && s->host_root != NULL) {
        strv_add(&s->mount_roots, s->host_root);
        source_set(roots, NULL, xstrdup("derived from box.local.host_root"));
    } else if (s->mount_roots == NULL && options->outer_roots != NULL) {
        s->mount_roots = strv_copy(options->outer_roots);
        source_set(roots, NULL, xstrdup("allowed_mount_roots of boxd"));
    }
    int r = set_roots(p, options, err);
    if (r < 0)
        return err_wrap(err, "box.local.allowed_mount_roots (from %s)", roots->where);
    for (size_t i = 0; i < p->n_roots; i++)
        (void)buf_printf(&list, "%s%s", i > 0 ? ", " : "", p->roots[i].real);
    free(roots->value);
    roots->value = buf_take(&list);
    return 0;
}

int policy_read_settings(struct policy *p, const struct policy_options *options, struct err *err)
{
    struct err local;
    int r = check_known(options->file, "", err);

    if (r < 0)
        return err_wrap(err, "%s", options->file_name);
    p->sources = xnew_n(struct policy_source, ARRAY_SIZE(settings));
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(settings); i++)
        r = read_setting(&settings[i], p, options, &p->sources[i], err != NULL ? err : &local);
    return r < 0 ? r : derive(p, options, err);
}

void policy_settings_done(struct policy *p)
{
    struct policy_settings *s = &p->settings;

    for (size_t i = 0; p->sources != NULL && i < ARRAY_SIZE(settings); i++)
        source_set(&p->sources[i], NULL, NULL);
    free(p->sources);
    free(s->profile);
    free(s->image);
    free(s->host_root);
    free(s->default_workspace);
    strv_free(s->mount_roots);
    strv_free(s->publish_addresses);
    strv_free(s->allow_hosts);
    chat_config_done(&s->chat);
    free(s->session_template);
    free(s->force_template);
    for (size_t i = 0; i < p->n_roots; i++) {
        free(p->roots[i].given);
        free(p->roots[i].real);
    }
    free(p->roots);
}

bool policy_explain(const struct policy *p, size_t i, struct policy_row *ret)
{
    if (i >= ARRAY_SIZE(settings))
        return false;
    *ret = (struct policy_row){.key = settings[i].path,
                               .value = p->sources[i].value,
                               .source = p->sources[i].where,
                               .doc = settings[i].doc};
    return true;
}
