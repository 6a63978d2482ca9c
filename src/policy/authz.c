/* SPDX-License-Identifier: Apache-2.0 */

/* Parses the file of tokens into scopes, finds the scope of a token, and checks requests against
 * it. */

#include "policy/authz.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"
#include "http/codec/crypto.h"
#include "spec/model.h"

#define DIGEST_LEN 64U
#define LIST_MAX 256
#define CAP_MAX (1 << 20)
#define ENTRY_MAX (16U << 20) /* of one token, as JSON */
#define LIST_BYTES (64 << 10)
#define NSEC_PER_USEC 1000U

struct authz_mount {
    char *path; /* owned */
    enum mount_mode mode;
};

struct authz_scope {
    struct authz *all; /* borrowed; that it is one of */
    char *name;        /* owned */
    char *token;       /* owned; NULL once it was read */
    char *sha256;      /* owned; lower-case hex */
    char **profiles, **tools, **denied_tools, **networks, **sessions, **hosts; /* owned */
    struct authz_mount *mounts;                                                /* owned */
    size_t n_mounts;
    struct authz_caps caps;
    int64_t expires;                /* microseconds since 1970; 0: never */
    char all_of_it[DIGEST_LEN + 1]; /* digest of the whole entry */
    bool is_user;                   /* no token: */
    uid_t uid;
};

struct authz {
    struct authz_scope *scopes; /* owned */
    size_t n;
    size_t held;                           /* by the holders of its scopes, and by the owner */
    const struct authz_sessions *sessions; /* borrowed; whose they are; NULL: no user's */
};

static bool is_clean(const char *path)
{
    return path_is_clean_absolute(path) && !str_eq(path, "/");
}

static bool is_digest(const char *s)
{
    return strlen(s) == DIGEST_LEN && strspn(s, "0123456789abcdef") == DIGEST_LEN;
}

static bool is_token(const char *s)
{
    for (const char *c = s; *c != '\0'; c++)
        if (*c <= ' ' || *c >= 0x7f)
            return false;
    return strlen(s) >= AUTHZ_TOKEN_MIN;
}

/* clang-format off */
static const struct field mount_fields[] = {
    {"path", FIELD_STR, FIELD_REQUIRED, offsetof(struct authz_mount, path), .max = SPEC_PATH_MAX, .valid = is_clean,
     .rule = "path must be absolute and without '.', '..' and double or trailing slashes",
     .doc = "Directory of the host; what lies below is meant, too."},
    {"mode", FIELD_ENUM, 0, offsetof(struct authz_mount, mode), .number = MOUNT_RO, .names = mount_mode_names,
     .doc = "`ro`, or `rw` for both."},
};

static const struct model mount_model = {
    .name = "TokenMount", .fields = mount_fields, .n_fields = ARRAY_SIZE(mount_fields),
    .size = sizeof(struct authz_mount), .closed = true,
};

#define LIST(member, text) {#member, FIELD_STRV, 0, offsetof(struct authz_scope, member), .max = LIST_MAX, \
    .max_bytes = LIST_BYTES, .doc = (text)}

#define CAP(member, key, text) {key, FIELD_INT, FIELD_STRICT, offsetof(struct authz_scope, caps.member), .number = -1, \
    .min = -1, .max = CAP_MAX, .rule = key " must be at least 0, or -1 for the share of tokens that name none", .max_rule = key " is larger than anything boxd has", \
    .strict_text = key " must be a whole number", .doc = (text)}

static const struct field scope_fields[] = {
    {"name", FIELD_STR, FIELD_REQUIRED, offsetof(struct authz_scope, name), .max = 64, .valid = id_valid,
     .rule = "name must be up to 64 letters, digits, '-' and '_'", .doc = "For messages and records."},
    {"token", FIELD_STR, FIELD_NULLABLE, offsetof(struct authz_scope, token), .max = AUTHZ_TOKEN_MAX, .valid = is_token,
     .rule = "token must be at least 32 printable characters without blanks", .doc = "The token itself."},
    {"sha256", FIELD_STR, FIELD_NULLABLE, offsetof(struct authz_scope, sha256), .max = DIGEST_LEN, .valid = is_digest,
     .rule = "sha256 must be 64 lower-case hex digits", .doc = "Or its digest."},
    LIST(profiles, "Profiles it may choose."),
    LIST(tools, "Tools and calls it may use."),
    LIST(denied_tools, "Tools it may not use, whatever `tools` says."),
    LIST(networks, "`off`, `on`; only `off` without this."),
    LIST(sessions, "Names of sessions; a `*` at the end stands for the rest."),
    LIST(hosts, "Services of the host, as `127.0.0.1:5432`, that its sessions may be allowed to reach."),
    {"mounts", FIELD_LIST, 0, offsetof(struct authz_scope, mounts), .count_offset = offsetof(struct authz_scope, n_mounts),
     .max = LIST_MAX, .items = &mount_model, .doc = "Directories of the host it may mount."},
    CAP(sessions, "max_sessions", "Sessions it may have."),
    CAP(execs, "max_execs", "Commands it may run at once."),
    CAP(processes, "max_processes", "Managed processes it may run at once."),
    CAP(output_mb, "max_output_mb", "Kept outputs, in MiB."),
    {"expires", FIELD_TIME, 0, offsetof(struct authz_scope, expires), .rule = "expires must name its time zone",
     .doc = "When it stops to be valid."},
};

static const struct model scope_model = {
    .name = "Token", .fields = scope_fields, .n_fields = ARRAY_SIZE(scope_fields),
    .size = sizeof(struct authz_scope), .closed = true,
};

struct authz_file {
    struct authz_scope *tokens;
    size_t n_tokens;
};

static const struct field file_fields[] = {
    {"tokens", FIELD_LIST, FIELD_REQUIRED, offsetof(struct authz_file, tokens), .count_offset = offsetof(struct authz_file, n_tokens),
     .max = AUTHZ_TOKENS_MAX, .items = &scope_model, .doc = "One entry per token."},
};

static const struct model file_model = {
    .name = "TokenFile", .fields = file_fields, .n_fields = ARRAY_SIZE(file_fields),
    .size = sizeof(struct authz_file), .closed = true,
};
/* clang-format on */

static void wipe(char **secret)
{
    if (*secret != NULL)
        explicit_bzero(*secret, strlen(*secret));
    free(*secret);
    *secret = NULL;
}

/* From here on only the digest is known. */
static int take_token(struct authz_scope *s, struct err *err)
{
    char digest[DIGEST_LEN + 1];

    if ((s->token == NULL) == (s->sha256 == NULL))
        return err_set(err, ERR_INVALID, "token '%s' must have either token or sha256", s->name);
    if (s->token == NULL)
        return 0;
    int r = http_sha256_hex(s->token, strlen(s->token), digest);
    wipe(&s->token);
    if (r < 0)
        return err_sys(err, -r, "digest of token '%s'", s->name);
    s->sha256 = xstrdup(digest);
    return 0;
}

/* Digest of the whole entry, to notice a change in it. The token is a digest by now. */
static int take_digest(struct authz_scope *s, struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(ENTRY_MAX);
    struct jw w = JW_INIT(&text);

    model_write_json(&scope_model, s, &w);
    int r = jw_end(&w);
    if (r == 0)
        r = http_sha256_hex(text.data, text.len, s->all_of_it);
    return r < 0 ? err_sys(err, -r, "digest of the entry of token '%s'", s->name) : 0;
}

static int check_networks(const struct authz_scope *s, struct err *err)
{
    for (char **n = s->networks; n != NULL && *n != NULL; n++)
        if (!str_eq(*n, "off") && !str_eq(*n, "on") && !str_eq(*n, "*"))
            return err_set(err, ERR_INVALID, "token '%s': networks are 'off' and 'on'", s->name);
    return 0;
}

/* Each in the one spelling that requests are compared in. */
static int check_hosts(struct authz_scope *s, struct err *err)
{
    for (char **h = s->hosts; h != NULL && *h != NULL; h++) {
        char text[SPEC_HOST_TEXT_MAX];
        struct host_service at;
        if (str_eq(*h, "*"))
            continue;
        if (!host_service_parse(*h, &at) || at.inside != at.port)
            return err_set(err, ERR_INVALID,
                           "token '%s': hosts are numeric addresses with a port, such as "
                           "127.0.0.1:5432",
                           s->name);
        host_service_write(&at, false, text);
        free(*h);
        *h = xstrdup(text);
    }
    return 0;
}

/* Names that records and kept answers give to callers without a scope. */
static int check_name(const struct authz_scope *s, struct err *err)
{
    static const char *const ours[] = {"local", "token", "anyone", "nobody", "boxd"};

    for (size_t i = 0; i < ARRAY_SIZE(ours); i++)
        if (str_eq(s->name, ours[i]) || str_starts(s->name, "uid-")) /* AUTHZ_USER_NAME */
            return err_set(err, ERR_INVALID, "a token cannot have the name '%s'; choose another",
                           s->name);
    return 0;
}

/* Two scopes for one name or token would leave it to chance which one holds. */
static int check_unique(const struct authz *a, size_t i, struct err *err)
{
    for (size_t k = 0; k < i; k++) {
        if (str_eq(a->scopes[k].name, a->scopes[i].name))
            return err_set(err, ERR_INVALID, "token '%s' is there twice", a->scopes[i].name);
        if (str_eq(a->scopes[k].sha256, a->scopes[i].sha256))
            return err_set(err, ERR_INVALID, "tokens '%s' and '%s' are the same", a->scopes[k].name,
                           a->scopes[i].name);
    }
    return 0;
}

int authz_parse(const struct json *object, struct authz **ret, struct err *err)
{
    AUTO(authz) struct authz *a = xnew(struct authz);
    struct authz_file file = {0};
    struct report report;

    model_init(&file_model, &file);
    int r = model_parse(&file_model, object, 0, &file, &report);
    a->scopes = file.tokens;
    a->n = file.n_tokens;
    a->held = 1;
    for (size_t i = 0; i < a->n; i++)
        a->scopes[i].all = a;
    if (r < 0)
        return report_fail_plain(&report, err);
    for (size_t i = 0; r == 0 && i < a->n; i++) {
        r = take_token(&a->scopes[i], err);
        if (r == 0)
            r = check_name(&a->scopes[i], err);
        if (r == 0)
            r = check_networks(&a->scopes[i], err);
        if (r == 0)
            r = check_hosts(&a->scopes[i], err);
        if (r == 0)
            r = check_unique(a, i, err);
        if (r == 0)
            r = take_digest(&a->scopes[i], err);
    }
    if (r == 0)
        *ret = TAKE_PTR(a);
    return r;
}

static void let_go(struct authz *a)
{
    if (--a->held > 0)
        return;
    for (size_t i = 0; i < a->n; i++) {
        wipe(&a->scopes[i].token);
        model_done(&scope_model, &a->scopes[i]);
    }
    free(a->scopes);
    free(a);
}

const struct authz_scope *authz_user(uid_t uid, const struct authz_sessions *sessions)
{
    struct authz *a = xnew(struct authz);
    struct authz_scope *s = a->scopes = xnew(struct authz_scope);

    model_init(&scope_model, s);
    *a = (struct authz){.scopes = s, .n = 1, .held = 1, .sessions = sessions};
    s->all = a;
    s->name = xasprintf(AUTHZ_USER_NAME, uid);
    strv_add(&s->profiles, "*");
    strv_add(&s->tools, "*");
    strv_add(&s->networks, "*");
    s->is_user = true;
    s->uid = uid;
    return s;
}

bool authz_is_user(const struct authz_scope *s, uid_t *ret)
{
    if (s == NULL || !s->is_user)
        return false;
    *ret = s->uid;
    return true;
}

void authz_set_sessions(struct authz *a, const struct authz_sessions *sessions)
{
    a->sessions = sessions;
}

void authz_free(struct authz *a)
{
    if (a == NULL)
        return;
    let_go(a);
}

static bool has_expired(const struct authz_scope *s, uint64_t now_real_ns)
{
    return s->expires != 0 && now_real_ns / NSEC_PER_USEC >= (uint64_t)s->expires;
}

const struct authz_scope *authz_find(const struct authz *a, const char *token, size_t len,
                                     uint64_t now_real_ns)
{
    const struct authz_scope *found = NULL;
    char digest[DIGEST_LEN + 1];

    if (len > AUTHZ_TOKEN_MAX || http_sha256_hex(token, len, digest) < 0)
        return NULL;
    for (size_t i = 0; i < a->n; i++)
        if (http_secret_eq(digest, DIGEST_LEN, a->scopes[i].sha256, DIGEST_LEN))
            found = &a->scopes[i];
    return found != NULL && !has_expired(found, now_real_ns) ? found : NULL;
}

const struct authz_scope *authz_hold(const struct authz_scope *s)
{
    if (s != NULL)
        s->all->held++;
    return s;
}

void authz_release(const struct authz_scope *s)
{
    if (s != NULL)
        let_go(s->all);
}

bool authz_counts(const struct authz_scope *s, const struct authz *now, uint64_t now_real_ns)
{
    if (s == NULL || s->is_user)
        return true;
    bool found = s->all == now;
    for (size_t i = 0; !found && now != NULL && i < now->n; i++)
        found = str_eq(now->scopes[i].all_of_it, s->all_of_it);
    return found && !has_expired(s, now_real_ns);
}

const char *authz_name(const struct authz_scope *s)
{
    return s != NULL ? s->name : "local";
}

const char *authz_share(const struct authz_scope *s)
{
    return s != NULL && !s->is_user ? s->name : NULL;
}

struct authz_caps authz_caps_of(const struct authz *a, const char *name)
{
    for (size_t i = 0; a != NULL && i < a->n; i++)
        if (str_eq(a->scopes[i].name, name))
            return a->scopes[i].caps;
    return (struct authz_caps){-1, -1, -1, -1};
}

static bool has(char *const *list, const char *word)
{
    for (; list != NULL && *list != NULL; list++)
        if (str_eq(*list, "*") || str_eq(*list, word))
            return true;
    return false;
}

int authz_check_profile(const struct authz_scope *s, const char *profile, struct err *err)
{
    if (s == NULL || has(s->profiles, profile))
        return 0;
    return err_set(err, ERR_DENIED, "token '%s' may not use the profile '%.64s'", s->name, profile);
}

int authz_check_tool(const struct authz_scope *s, const char *tool, struct err *err)
{
    if (s == NULL || (has(s->tools, tool) && !has(s->denied_tools, tool)))
        return 0;
    return err_set(err, ERR_DENIED, "token '%s' may not use '%.64s'", s->name, tool);
}

int authz_check_network(const struct authz_scope *s, enum network network, struct err *err)
{
    if (s == NULL || has(s->networks, network_names[network]) ||
        (s->networks == NULL && network == NETWORK_OFF))
        return 0;
    return err_set(err, ERR_DENIED, "token '%s' may not use sessions with network %s", s->name,
                   network_names[network]);
}

int authz_check_host(const struct authz_scope *s, const char *service, struct err *err)
{
    if (s == NULL || s->is_user || has(s->hosts, service))
        return 0;
    return err_set(err, ERR_DENIED,
                   "token '%s' may not let sessions reach %.64s: its scope has no such entry in "
                   "'hosts'",
                   s->name, service);
}

int authz_check_mount(const struct authz_scope *s, const char *path, enum mount_mode mode,
                      struct err *err)
{
    for (size_t i = 0; s != NULL && i < s->n_mounts; i++) {
        const struct authz_mount *m = &s->mounts[i];
        size_t n = strlen(m->path);
        if (strncmp(path, m->path, n) == 0 && (path[n] == '\0' || path[n] == '/') &&
            mode <= m->mode)
            return 0;
    }
    if (s == NULL || s->is_user || mode == MOUNT_NONE)
        return 0; /* what a user may mount is found out when it is mounted */
    return err_set(err, ERR_DENIED, "token '%s' may not mount '%.200s' %s", s->name, path,
                   mode == MOUNT_RW ? "for writing" : "at all");
}

static bool matches(const struct authz_scope *s, const char *id)
{
    bool ok = false;

    for (char **p = s->sessions; !ok && p != NULL && *p != NULL; p++) {
        size_t n = strlen(*p);
        ok = n > 0 && (*p)[n - 1] == '*' ? strncmp(id, *p, n - 1) == 0 : str_eq(id, *p);
    }
    return ok;
}

/* A user may take a name that a token's scope has; the session is no more the token's for that. */
static bool names_session(const struct authz_scope *s, const char *id)
{
    const struct authz_sessions *all = s->all->sessions;

    return matches(s, id) && (all == NULL || has(s->sessions, "*") || !all->is_users(all->arg, id));
}

static enum authz_owner owner_of(const struct authz_scope *s, const char *id)
{
    const struct authz_sessions *all = s->all->sessions;

    return all->owner(all->arg, id, s->uid);
}

int authz_check_session(const struct authz_scope *s, const char *id, struct err *err)
{
    if (s == NULL || (s->is_user ? owner_of(s, id) != AUTHZ_OTHERS : names_session(s, id)))
        return 0;
    return err_missing(err, ERR_THING_SESSION, "session %s not found", id);
}

int authz_check_name(const struct authz_scope *s, const char *id, struct err *err)
{
    int r = authz_check_session(s, id, err);

    if (r < 0 && (s->is_user || matches(s, id)))
        r = err_set(err, ERR_CONFLICT,
                    "the session name '%.100s' is taken by another user; choose another name", id);
    return r;
}

bool authz_sees(const struct authz_scope *s, const char *who, const char *session)
{
    if (s == NULL || has(s->sessions, "*"))
        return true;
    if (s->is_user)
        return who != NULL ? str_eq(who, s->name)
                           : session != NULL && owner_of(s, session) == AUTHZ_OWN;
    if (who != NULL && str_starts(who, "uid-")) /* AUTHZ_USER_NAME; it was that user's then */
        return false;
    return (who != NULL && str_eq(who, s->name)) || (session != NULL && names_session(s, session));
}

const char *authz_errors(const struct authz_scope *s)
{
    return authz_sees(s, NULL, NULL) ? NULL : s->name;
}

char *authz_session_name(const struct authz_scope *s, const char *tail)
{
    if (s == NULL || s->is_user)
        return xstrdup(tail);
    for (char **p = s->sessions; p != NULL && *p != NULL; p++) {
        size_t n = strlen(*p);
        if (n > 0 && (*p)[n - 1] == '*')
            return xasprintf("%.*s%s", (int)n - 1, *p, tail);
    }
    return s->sessions != NULL && s->sessions[0] != NULL ? xstrdup(s->sessions[0]) : NULL;
}
