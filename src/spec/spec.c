/* SPDX-License-Identifier: Apache-2.0 */

/* The tables of fields of a spec and its mounts, their parsers, and the text that identifies the
 * configuration of a session. */

#include "spec/spec.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "spec/alnum.h"
#include "spec/model.h"

#define SKILL_NAME_CHARS_MAX 64

static bool is_alnum(uint32_t c)
{
    size_t low = 0;
    size_t high = alnum_n_ranges;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (c < alnum_ranges[middle].first)
            high = middle;
        else if (c > alnum_ranges[middle].last)
            low = middle + 1;
        else
            return true;
    }
    return false;
}

bool skill_name_valid(const char *name)
{
    size_t chars = 0;

    for (size_t left = strlen(name); left > 0; chars++) {
        bool incomplete;
        int n = utf8_next(name, left, &incomplete);
        uint32_t c = n > 0 ? utf8_point(name, n) : 0;
        if (chars == SKILL_NAME_CHARS_MAX || !(c == '-' || c == '_' || is_alnum(c)))
            return false;
        name += n;
        left -= (size_t)n;
    }
    return chars > 0;
}

const char *const network_names[] = {"off", "on", NULL};
const char *const mount_mode_names[] = {"none", "ro", "rw", NULL};

/* Accepts a path that posixpath.normpath() does not change. normpath() keeps two slashes at the
 * start, which name no root here; the backend refuses them. */
static const char *not_normal(const char *s)
{
    static const char text[] = "mount_path must be normalized";
    size_t len = strlen(s);
    if (str_eq(s, "/") || str_eq(s, "//"))
        return NULL;
    if (s[len - 1] == '/' || strstr(s + 1, "//") || str_starts(s, "///"))
        return text;
    for (const char *at = s; *at == '/'; at += 1 + strcspn(at + 1, "/")) {
        size_t n = strcspn(at + 1, "/");
        if ((n == 1 && at[1] == '.') || (n == 2 && at[1] == '.' && at[2] == '.'))
            return text;
    }
    return NULL;
}

static const char *bad_digest(const char *s)
{
    static const char prefix[] = "sha256:";
    const char *digits = s + strlen(prefix);
    if (!str_starts(s, prefix))
        return "content_digest must use sha256:<hex>";
    if (strlen(digits) != 64 || strspn(digits, "0123456789abcdef") != 64)
        return "content_digest must use sha256:<64 lowercase hex>";
    return NULL;
}

/* clang-format off */
static const struct field mount_fields[] = {
    {"host_path", FIELD_STR, FIELD_REQUIRED | FIELD_TRIM, offsetof(struct mount_spec, host_path),
     .max = SPEC_PATH_MAX, .valid = host_path_valid, .rule = "host_path must be an absolute host path",
     .doc = "Directory or file of the host."},
    {"mount_path", FIELD_STR, FIELD_REQUIRED | FIELD_TRIM, offsetof(struct mount_spec, mount_path),
     .max = SPEC_PATH_MAX, .valid = text_absolute, .rule = "mount_path must be an absolute path inside the sandbox",
     .wrong = not_normal,
     .doc = "Where it appears inside the sandbox, normalised. At or below `" SPEC_ARTIFACTS "` only as `mode` `ro`, with "
            "`content_digest` and `manifest_path`, at the place that is called like the digest."},
    {"mode", FIELD_ENUM, 0, offsetof(struct mount_spec, mode),
     .number = MOUNT_RW, .names = mount_mode_names,
     .doc = "`none` leaves this mount out."},
    {"content_digest", FIELD_STR, FIELD_NULLABLE | FIELD_TRIM, offsetof(struct mount_spec, content_digest),
     .max = SPEC_DIGEST_MAX, .wrong = bad_digest,
     .doc = "`sha256:` and 64 digits: what the caller says the content is. On the LangBot wire it is verified for mounts "
            "below `" SPEC_ARTIFACTS "`, see Artifacts; otherwise it is recorded and compared."},
    {"manifest_path", FIELD_STR, FIELD_NULLABLE | FIELD_TRIM, offsetof(struct mount_spec, manifest_path),
     .max = SPEC_PATH_MAX, .valid = host_path_valid, .rule = "manifest_path must be an absolute host path",
     .doc = "File of the host that lists the content. It is read where the digest is verified."},
};

bool mount_content_addressed(const struct mount_spec *m)
{
    char place[sizeof(SPEC_ARTIFACTS "/") + 64];
    return m->mode == MOUNT_RO && m->content_digest && m->manifest_path &&
           str_fmt(place, sizeof(place), SPEC_ARTIFACTS "/%s",
                   m->content_digest + strlen("sha256:")) == 0 &&
           str_eq(m->mount_path, place);
}

static const char *check_mount(const void *object)
{
    const struct mount_spec *m = object;
    const char *rest = m->mount_path + strlen(SPEC_ARTIFACTS);
    if (!str_starts(m->mount_path, SPEC_ARTIFACTS) || (*rest != '\0' && *rest != '/'))
        return NULL;
    return mount_content_addressed(m)
               ? NULL
               : "Artifact paths require a read-only digest-addressed mount and manifest";
}

const struct model mount_spec_model = {
    .name = "BoxMountSpec",
    .doc = "One host path that is visible inside the sandbox.",
    .fields = mount_fields,
    .n_fields = ARRAY_SIZE(mount_fields),
    .size = sizeof(struct mount_spec),
    .check = check_mount,
};

static const struct field fields[SPEC_FIELD_MAX] = {
    [SPEC_CMD] = {"cmd", FIELD_STR, FIELD_TRIM, offsetof(struct spec, cmd),
     .text = "", .max = SPEC_CMD_MAX,
     .doc = "Shell command. May be empty where only a session is made."},
    [SPEC_WORKDIR] = {"workdir", FIELD_STR, FIELD_TRIM, offsetof(struct spec, workdir),
     .text = SPEC_DEFAULT_MOUNT, .max = SPEC_PATH_MAX, .valid = text_absolute,
     .rule = "workdir must be an absolute path inside the sandbox",
     .doc = "Directory the command starts in, made when missing. Absent, null or empty: `mount_path`."},
    [SPEC_TIMEOUT_SEC] = {"timeout_sec", FIELD_INT, 0, offsetof(struct spec, timeout_sec),
     .number = 30, .min = 1, .max = SPEC_TIMEOUT_MAX, .rule = "timeout_sec must be greater than 0",
     .doc = "Seconds after which the command and all it started are killed."},
    [SPEC_NETWORK] = {"network", FIELD_ENUM, 0, offsetof(struct spec, network),
     .number = NETWORK_OFF, .names = network_names,
     .doc = "Whether the sandbox reaches the internet."},
    [SPEC_SESSION_ID] = {"session_id", FIELD_STR, FIELD_REQUIRED | FIELD_TRIM, offsetof(struct spec, session_id),
     .max = SPEC_ID_MAX, .valid = text_not_empty, .rule = "session_id must not be empty",
     .doc = "The session to use; it is made when it does not exist."},
    [SPEC_ENV] = {"env", FIELD_ENV, 0, offsetof(struct spec, env),
     .max = SPEC_ENV_ENTRIES_MAX, .max_bytes = SPEC_ENV_BYTES_MAX,
     .doc = "Environment variables of the command."},
    [SPEC_IMAGE] = {"image", FIELD_STR, 0, offsetof(struct spec, image),
     .text = SPEC_DEFAULT_IMAGE, .max = SPEC_IMAGE_MAX,
     .doc = "Root filesystem."},
    [SPEC_HOST_PATH] = {"host_path", FIELD_STR, FIELD_NULLABLE | FIELD_TRIM, offsetof(struct spec, host_path),
     .max = SPEC_PATH_MAX, .valid = host_path_valid, .rule = "host_path must be an absolute host path",
     .doc = "Host directory to show at `mount_path`."},
    [SPEC_HOST_PATH_MODE] = {"host_path_mode", FIELD_ENUM, 0, offsetof(struct spec, host_path_mode),
     .number = MOUNT_RW, .names = mount_mode_names,
     .doc = "`none`: `host_path` is recorded but not mounted, and `workdir` may be anywhere."},
    [SPEC_MOUNT_PATH] = {"mount_path", FIELD_STR, FIELD_TRIM, offsetof(struct spec, mount_path),
     .text = SPEC_DEFAULT_MOUNT, .max = SPEC_PATH_MAX, .valid = text_absolute,
     .rule = "mount_path must be an absolute path inside the sandbox",
     .doc = "Where the workspace is inside the sandbox."},
    [SPEC_EXTRA_MOUNTS] = {"extra_mounts", FIELD_LIST, 0, offsetof(struct spec, extra_mounts),
     .count_offset = offsetof(struct spec, n_extra_mounts), .max = SPEC_MOUNTS_MAX, .items = &mount_spec_model,
     .doc = "Further host paths."},
    [SPEC_SKILL_NAME] = {"skill_name", FIELD_STR, FIELD_NULLABLE | FIELD_TRIM | FIELD_BLANK_NULL, offsetof(struct spec, skill_name),
     .max = SPEC_ID_MAX, .valid = skill_name_valid,
     .rule = "skill_name can only contain up to 64 letters, numbers, hyphens and underscores",
     .doc = "Skill package to show read-only, where admission grants are enforced. Blank: null."},
    [SPEC_PERSISTENT] = {"persistent", FIELD_BOOL, 0, offsetof(struct spec, persistent),
     .number = false,
     .doc = "Whether the session is kept when idle."},
    [SPEC_CPUS] = {"cpus", FIELD_REAL, 0, offsetof(struct spec, cpus),
     .real = 1.0, .max = SPEC_CPUS_MAX, .rule = "cpus must be greater than 0",
     .doc = "Processor share."},
    [SPEC_MEMORY_MB] = {"memory_mb", FIELD_INT, 0, offsetof(struct spec, memory_mb),
     .number = 512, .min = 32, .max = SPEC_SIZE_MB_MAX, .rule = "memory_mb must be at least 32",
     .doc = "Memory of the whole session, in MiB."},
    [SPEC_PIDS_LIMIT] = {"pids_limit", FIELD_INT, 0, offsetof(struct spec, pids_limit),
     .number = 128, .min = 1, .max = SPEC_PIDS_MAX, .rule = "pids_limit must be at least 1",
     .doc = "Processes and threads of the whole session."},
    [SPEC_READ_ONLY_ROOTFS] = {"read_only_rootfs", FIELD_BOOL, 0, offsetof(struct spec, read_only_rootfs),
     .number = true,
     .doc = "Whether everything but the workspace and `/tmp` is read-only."},
    [SPEC_WORKSPACE_QUOTA_MB] = {"workspace_quota_mb", FIELD_INT, 0, offsetof(struct spec, workspace_quota_mb),
     .number = 0, .min = 0, .max = SPEC_SIZE_MB_MAX, .rule = "workspace_quota_mb must be greater than or equal to 0",
     .doc = "Disk space of the workspace, in MiB. 0: no limit."},
};
/* clang-format on */

static bool is_blank(const char *s)
{
    AUTO_FREE char *stripped = str_strip(s);
    return stripped[0] == '\0';
}

/* A workdir that was left open follows the mount path. */
static const struct json *lookup(const struct json *object, const struct field *f, const void *arg)
{
    const struct json *v = json_get(object, f->name);

    if (f != &fields[SPEC_WORKDIR])
        return v;
    if (v && json_type(v) != JSON_NULL && !(json_type(v) == JSON_STRING && json_str_len(v) == 0))
        return v;
    const struct json *mount = json_get(object, "mount_path");
    if (json_type(mount) != JSON_STRING || is_blank(json_str(mount)))
        return v;
    return mount;
}

/* Compared as text, unresolved, as the sandbox side will see it. */
static const char *check_workdir(const void *object)
{
    const struct spec *s = object;
    size_t len = strlen(s->mount_path);

    if (!s->host_path || s->host_path_mode == MOUNT_NONE)
        return NULL;
    if (str_eq(s->workdir, s->mount_path) ||
        (str_starts(s->workdir, s->mount_path) && s->workdir[len] == '/'))
        return NULL;
    return "workdir must stay under mount_path when host_path is provided";
}

const struct model spec_model = {
    .name = "BoxSpec",
    .doc = "A session, and one command in it.",
    .fields = fields,
    .n_fields = ARRAY_SIZE(fields),
    .size = sizeof(struct spec),
    .lookup = lookup,
    .check = check_workdir,
};

const struct model spec_limits_model = {
    .name = "BoxLimits",
    .doc = "Limits of a session. What is left out stays as it is.",
    .fields = fields + SPEC_CPUS,
    .n_fields = SPEC_PIDS_LIMIT - SPEC_CPUS + 1,
    .size = sizeof(struct spec),
    .partial = true,
    .closed = true,
};

struct spec *spec_new(void)
{
    struct spec *s = xnew(struct spec);
    model_init(&spec_model, s);
    return s;
}

void spec_free(struct spec *s)
{
    if (!s)
        return;
    model_done(&spec_model, s);
    strv_free(s->own.labels);
    free(s->own.owner);
    free(s->own.profile);
    free(s->own.place);
    free(s->own.artifacts);
    strv_free(s->own.artifact_digests);
    strv_free(s->own.allow_hosts);
    free(s);
}

static int spec_parse_by(const struct model *m, const struct json *object, struct spec **ret,
                         struct report *report, struct err *err)
{
    AUTO(spec) struct spec *s = spec_new();

    if (model_parse(m, object, 0, s, report) < 0)
        return report_fail(report, err);
    *ret = TAKE_PTR(s);
    return 0;
}

int spec_parse_report(const struct json *object, struct spec **ret, struct report *report,
                      struct err *err)
{
    return spec_parse_by(&spec_model, object, ret, report, err);
}

int spec_parse_closed(const struct json *object, uint64_t gone, struct spec **ret,
                      struct report *report, struct err *err)
{
    struct model closed = spec_model;
    closed.closed = true;
    closed.gone = gone;
    return spec_parse_by(&closed, object, ret, report, err);
}

int spec_parse(const struct json *object, struct spec **ret, struct err *err)
{
    struct report report;
    return spec_parse_report(object, ret, &report, err);
}

int spec_validate(struct spec *s, struct err *err)
{
    struct report report;

    if ((!s->workdir || s->workdir[0] == '\0') && s->mount_path && !is_blank(s->mount_path)) {
        free(s->workdir);
        s->workdir = xstrdup(s->mount_path);
    }
    if (model_check(&spec_model, s, &report) < 0)
        return report_fail_plain(&report, err);
    return 0;
}

int spec_check_id(const char *id, struct err *err)
{
    if (id_valid(id))
        return 0;
    return err_set(
        err, ERR_INVALID,
        "an id has 1 to 64 letters, digits, '-' or '_', and starts with a letter or digit");
}

bool host_path_valid(const char *path)
{
    if (path[0] == '/')
        return true;
    if (path[0] == '\\' && path[1] == '\\')
        return true;
    bool drive = (path[0] >= 'A' && path[0] <= 'Z') || (path[0] >= 'a' && path[0] <= 'z');
    return drive && path[1] == ':' && (path[2] == '\\' || path[2] == '/');
}

/* Services of the host ------------------------------------------------------------------------- */

static bool take_port(const char *text, uint16_t *ret)
{
    uint64_t n;

    if (str_to_u64(text, &n) < 0 || n == 0 || n > UINT16_MAX)
        return false;
    *ret = (uint16_t)n;
    return true;
}

/* Fills what follows from the address. ::ffff:127.0.0.1 leads to 127.0.0.1, and is called so. */
static bool take_address(const char *text, struct host_service *ret)
{
    struct in_addr v4;
    struct in6_addr v6;
    bool is_v4 = inet_pton(AF_INET, str_eq(text, "localhost") ? "127.0.0.1" : text, &v4) == 1;

    if (!is_v4 && inet_pton(AF_INET6, text, &v6) != 1)
        return false;
    if (!is_v4 && IN6_IS_ADDR_V4MAPPED(&v6)) {
        memcpy(&v4, &v6.s6_addr[12], sizeof(v4));
        is_v4 = true;
    }
    ret->loopback = is_v4 ? ntohl(v4.s_addr) >> 24 == 127 : IN6_IS_ADDR_LOOPBACK(&v6);
    return inet_ntop(is_v4 ? AF_INET : AF_INET6, is_v4 ? (void *)&v4 : (void *)&v6, ret->address,
                     sizeof(ret->address)) != NULL;
}

bool host_service_parse(const char *text, struct host_service *ret)
{
    char copy[SPEC_HOST_TEXT_MAX];
    struct host_service h = {0};

    if (str_copy(copy, sizeof(copy), text) < 0)
        return false;
    char *address = copy, *port;
    if (copy[0] == '[') {
        address++;
        port = strstr(copy, "]:");
        if (port == NULL || strchr(address, ':') > port)
            return false;
        *port++ = '\0';
    } else {
        port = strchr(copy, ':');
        if (port == NULL)
            return false;
    }
    *port++ = '\0';
    char *inside = strchr(port, ':');
    if (inside != NULL)
        *inside++ = '\0';
    if (!take_address(address, &h) || !take_port(port, &h.port) ||
        !take_port(inside != NULL ? inside : port, &h.inside))
        return false;
    *ret = h;
    return true;
}

void host_service_write(const struct host_service *h, bool inside, char ret[SPEC_HOST_TEXT_MAX])
{
    bool v6 = strchr(h->address, ':') != NULL;
    char tail[8] = "";

    if (inside && h->inside != h->port)
        (void)str_fmt(tail, sizeof(tail), ":%u", h->inside);
    (void)str_fmt(ret, SPEC_HOST_TEXT_MAX, "%s%s%s:%u%s", v6 ? "[" : "", h->address, v6 ? "]" : "",
                  h->port, tail);
}

/* Configuration -------------------------------------------------------------------------------- */

/* A string as json.dumps() of Python writes it: everything beyond ASCII escaped. */
static void put_string(struct buf *out, const char *s)
{
    static const char *const shorts[] = {
        ['\b'] = "\\b", ['\f'] = "\\f", ['\n'] = "\\n", ['\r'] = "\\r",
        ['\t'] = "\\t", ['"'] = "\\\"", ['\\'] = "\\\\"};
    if (s == NULL) {
        (void)buf_puts(out, "null");
        return;
    }
    (void)buf_putc(out, '"');
    for (size_t left = strlen(s); left > 0;) {
        bool incomplete;
        int n = utf8_next(s, left, &incomplete);
        uint32_t c = n > 0 ? utf8_point(s, n) : 0xfffd;
        if (c < ARRAY_SIZE(shorts) && shorts[c] != NULL)
            (void)buf_puts(out, shorts[c]);
        else if (c >= ' ' && c <= '~')
            (void)buf_putc(out, (char)c);
        else if (c < 0x10000)
            (void)buf_printf(out, "\\u%04x", c);
        else
            (void)buf_printf(out, "\\u%04x\\u%04x", 0xd800 | ((c - 0x10000) >> 10),
                             0xdc00 | ((c - 0x10000) & 0x3ff));
        s += n > 0 ? n : -n;
        left -= (size_t)(n > 0 ? n : -n);
    }
    (void)buf_putc(out, '"');
}

/* A number or a truth value as json.dumps() writes it, which is how we write it, too. */
static void put_value(struct buf *out, const struct spec *spec, const struct field *f)
{
    const void *value = (const char *)spec + f->offset;
    struct jw w = JW_INIT(out);
    if (f->kind == FIELD_STR)
        put_string(out, *(char *const *)value);
    else if (f->kind == FIELD_ENUM)
        put_string(out, f->names[*(const int *)value]);
    else if (f->kind == FIELD_BOOL)
        jw_bool(&w, *(const bool *)value);
    else if (f->kind == FIELD_REAL)
        jw_real(&w, *(const double *)value);
    else
        jw_int(&w, *(const int64_t *)value);
}

void spec_config_text(const struct spec *spec, struct buf *out)
{
    static const enum spec_field told[] = {
        /* sorted by name */
        SPEC_CPUS,      SPEC_HOST_PATH, SPEC_HOST_PATH_MODE, SPEC_IMAGE,
        SPEC_MEMORY_MB, SPEC_NETWORK,   SPEC_PIDS_LIMIT,     SPEC_READ_ONLY_ROOTFS,
    };
    for (size_t i = 0; i < ARRAY_SIZE(told); i++) {
        const struct field *f = &spec_model.fields[told[i]];
        (void)buf_printf(out, "%s\"%s\": ", i == 0 ? "{" : ", ", f->name);
        put_value(out, spec, f);
    }
    (void)buf_putc(out, '}');
}
