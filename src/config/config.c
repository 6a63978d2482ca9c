/* SPDX-License-Identifier: Apache-2.0 */

/* The tables of settings and options of boxd, and their interpretation. */

#include "config/config.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/host_path.h"
#include "base/json.h"
#include "base/log.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"
#include "base/user.h"
#include "config/config_file.h"
#include "config/tokens.h"
#include "policy/policy.h"

#define TOKEN_MIN 32U
#define ROOTS_MAX 64U
#define ALIASES_MAX 32U
#define ALIAS_LEN_MAX 64U
#define YEAR_SEC 31536000U

/* Where people keep their work. Only what lies below these may be mounted, and system directories
 * are refused again when a mount is asked for. */
static const char builtin_roots[] =
    "/home,/srv,/mnt,/media,/opt,/data,/work,/workspace,/tmp,/var/tmp";

struct settings {
    char *values[CONFIG_KEY_MAX]; /* owned; text of each setting, NULL: not given */
};

/* The value of a setting, and where it comes from. */
struct config_source {
    char *value; /* owned */
    char *where; /* owned */
};

/* clang-format off */
#define TEXT(m) .kind = CONFIG_IS_TEXT, .member = offsetof(struct config, m)
#define NUMBER(m, most) .kind = CONFIG_IS_NUMBER, .member = offsetof(struct config, m), .max = (most)
#define CHOICE(m, off, on) .kind = CONFIG_IS_CHOICE, .member = offsetof(struct config, m), .no = (off), .yes = (on)

const struct config_key config_keys[CONFIG_KEY_MAX] = {
    [CONFIG_HOST] = {"host", "BOX_LISTEN_HOST", "127.0.0.1", "Address to listen on", TEXT(host)},
    [CONFIG_PORT] = {"port", "BOX_LISTEN_PORT", "5410", "TCP port; 0: no TCP listener", NUMBER(port, UINT16_MAX)},
    [CONFIG_BACKEND] = {"backend", "BOX_BACKEND", "auto", "native, docker, podman or runsc; auto: the first that works of native, docker and podman", TEXT(backend)},
    [CONFIG_STATE_DIR] = {"state_dir", "BOX_STATE_DIR", NULL, "Where everything is kept: new, empty or made by Box"},
    [CONFIG_TOKEN_FILE] = {"token_file", "BOX_TOKEN_FILE", NULL, "File with the token that TCP clients send; read again when it changes"},
    [CONFIG_MOUNT_ROOTS] = {"allowed_mount_roots", "BOX_ALLOWED_MOUNT_ROOTS", NULL, "Directories of the host that may be mounted"},
    [CONFIG_IMAGE_POLICY] = {"image_policy", "BOX_IMAGE_POLICY", "fallback", "What to do if an image that LangBot's clients, profiles or settings name is missing. strict: refuse the session; fallback: run it on 'host'. A missing image that box or HTTP names is always refused", CHOICE(strict_images, "fallback", "strict")},
    [CONFIG_REQUIRE_LIMITS] = {"require_limits", "BOX_REQUIRE_LIMITS", "false", "Refuse sessions whose limits cannot be enforced", CHOICE(require_limits, "false", "true")},
    [CONFIG_MAX_SESSIONS] = {"max_sessions", "BOX_MAX_SESSIONS", "8000", "Sessions at a time", NUMBER(max_sessions, 8000)},
    [CONFIG_MAX_KEPT] = {"max_kept_sessions", "BOX_MAX_KEPT_SESSIONS", "1000", "Durable sessions, stopped or not; 0: no limit", NUMBER(max_kept, 100000)},
    [CONFIG_KEPT_DISK] = {"kept_disk_mb", "BOX_KEPT_DISK_MB", "0", "Disk that stopped sessions may take together before no other durable one is made, in MiB; 0: no limit", NUMBER(kept_disk_mb, UINT32_MAX)},
    [CONFIG_SESSION_TTL] = {"session_ttl_sec", "BOX_SESSION_TTL_SEC", "300", "Idle time after which a session is removed, or stopped where it is durable; 0: never", NUMBER(session_ttl_sec, YEAR_SEC)},
    [CONFIG_ENGINE_SOCKET] = {"engine_socket", "BOX_ENGINE_SOCKET", NULL, "Docker's or Podman's: a path, unix://path or tcp://host:port", TEXT(engine_socket)},
    [CONFIG_ENGINE_RUNTIME] = {"engine_runtime", "BOX_ENGINE_RUNTIME", NULL, "Runtime that the engine uses, such as runsc", TEXT(engine_runtime)},
    [CONFIG_ENGINE_TLS_CA] = {"engine_tls_ca", "BOX_ENGINE_TLS_CA", NULL, "PEM file: authorities that may vouch for an engine at tcp://", TEXT(engine_tls_ca)},
    [CONFIG_ENGINE_TLS_CERT] = {"engine_tls_cert", "BOX_ENGINE_TLS_CERT", NULL, "PEM file: our certificate for it", TEXT(engine_tls_cert)},
    [CONFIG_ENGINE_TLS_KEY] = {"engine_tls_key", "BOX_ENGINE_TLS_KEY", NULL, "PEM file: its key", TEXT(engine_tls_key)},
    [CONFIG_IMAGE_PULL] = {"image_pull", "BOX_IMAGE_PULL", "never", "missing: let the engine fetch an image that it does not have", CHOICE(image_pull, "never", "missing")},
    [CONFIG_MAX_PROCESSES] = {"max_managed_processes", "BOX_MAX_MANAGED_PROCESSES", "64", "Managed processes at a time", NUMBER(max_processes, 100000)},
    [CONFIG_MAX_EXITED] = {"max_completed_processes", "BOX_MAX_COMPLETED_PROCESSES", "256", "Ended ones that are remembered", NUMBER(max_exited, 100000)},
    [CONFIG_EXITED_SEC] = {"completed_process_retention_sec", "BOX_COMPLETED_PROCESS_RETENTION_SEC", "300", "And for how long; 0: not at all", NUMBER(exited_sec, YEAR_SEC)},
    [CONFIG_REPORT_BACKEND] = {"report_backend_as", "BOX_REPORT_BACKEND_AS", NULL, "Name of the backend that boxd reports to LangBot", TEXT(report_backend)},
    [CONFIG_LEGACY] = {"legacy_protocol", "BOX_LEGACY_PROTOCOL", "false", "Serve LangBot clients of the first release too, whose requests carry no client identity", CHOICE(legacy_protocol, "false", "true")},
    [CONFIG_TOKENS_FILE] = {"tokens_file", "BOX_TOKENS_FILE", NULL, "File of tokens and what each may do; read again when it changes"},
    [CONFIG_LOG_LEVEL] = {"log_level", "BOX_LOG_LEVEL", "info", "error, warn, info or debug: this level and all graver ones are logged", TEXT(log_level)},
    [CONFIG_LOG_FORMAT] = {"log_format", "BOX_LOG_FORMAT", "auto", "json, human, or auto: human on a terminal, JSON elsewhere", TEXT(log_format)},
    [CONFIG_ACCESS_LOG] = {"access_log", "BOX_ACCESS_LOG", "debug", "Level of one record per request, or off", TEXT(access_log)},
    [CONFIG_ALLOWED_USERS] = {"allowed_users", "BOX_ALLOWED_USERS", NULL, "Users served without a token beside root and boxd's own: names or numbers", TEXT(allowed_users)},
    [CONFIG_ALLOWED_GROUPS] = {"allowed_groups", "BOX_ALLOWED_GROUPS", NULL, "Groups whose members are served like that", TEXT(allowed_groups)},
    [CONFIG_SOCKET_GROUP] = {"socket_group", "BOX_SOCKET_GROUP", NULL, "Group whose members may use a boxd that root runs, each with sessions of its own: it has the socket (0660). Default: box, where there is such a group; none: no group", TEXT(socket_group)},
    [CONFIG_LANGBOT_BASE] = {"langbot_base_dir", "BOX_LANGBOT_BASE_DIR", NULL, "Directory that LangBot runs in, if boxd cannot find it; may be mounted"},
    [CONFIG_ALIASES] = {"command_aliases", "BOX_COMMAND_ALIASES", "python=python3", "Further names of commands in the image 'host': name=command, commas between them; none: no names"},
    [CONFIG_LINGER] = {"linger_sec", "BOX_LINGER_SEC", "86400", "How long sessions outlive a boxd that was killed; 0: not at all", NUMBER(linger_sec, YEAR_SEC)},
};

const struct config_flag config_flags[] = {
    {"host", 0, CONFIG_HOST + 256, "ADDR", "Address to listen on, numeric."},
    {"port", 0, CONFIG_PORT + 256, "PORT", "TCP port; 0: no TCP listener."},
    {"ws-control-port", 0, CONFIG_PORT + 256, "PORT", "The same, as LangBot's runtime calls it."},
    {"stdio-control", 's', 's', NULL, "Serve one LangBot host over standard input and output, and end with it."},
    {"backend", 0, CONFIG_BACKEND + 256, "NAME", "Backend to use."},
    {"state-dir", 0, CONFIG_STATE_DIR + 256, "DIR", "Where everything is kept, the unix socket too."},
    {"config", 0, 'c', "FILE", "Configuration file, see box-config(5)."},
    {"log-level", 0, CONFIG_LOG_LEVEL + 256, "LEVEL", "error, warn, info or debug."},
    {"log-format", 0, CONFIG_LOG_FORMAT + 256, "FORMAT", "auto, human or json."},
    {"ready-fd", 0, 'r', "N", "Write one byte to this descriptor when serving."},
    {"help", 'h', 'h', NULL, "Show the options and settings."},
    {"version", 'v', 'v', NULL, "Show the version."},
};
/* clang-format on */
const size_t config_n_flags = ARRAY_SIZE(config_flags);

static void usage(void)
{
    (void)printf("usage: boxd [OPTION...]\n\n");
    for (size_t i = 0; i < config_n_flags; i++) {
        const struct config_flag *f = &config_flags[i];
        char left[64];
        (void)snprintf(left, sizeof(left), "%c%c%c --%s%s%s", f->letter != '\0' ? '-' : ' ',
                       f->letter != '\0' ? f->letter : ' ', f->letter != '\0' ? ',' : ' ', f->name,
                       f->value != NULL ? " " : "", f->value != NULL ? f->value : "");
        (void)printf("  %-32s %s\n", left, f->doc);
    }
    (void)printf("\nEach setting of the configuration file (YAML) can also come from the "
                 "environment:\n");
    for (size_t i = 0; i < CONFIG_KEY_MAX; i++)
        (void)printf("  %-32s %-36s %s%s%s%s\n", config_keys[i].name, config_keys[i].env,
                     config_keys[i].doc, config_keys[i].text != NULL ? " (default: " : "",
                     config_keys[i].text != NULL ? config_keys[i].text : "",
                     config_keys[i].text != NULL ? ")" : "");
}

/* No program that we start may hold it open: its end of file is the sign that we died. */
static int take_ready_fd(const char *text, int *ret, struct err *err)
{
    uint64_t fd;
    if (str_to_u64(text, &fd) < 0 || fd < 3 || fd > INT_MAX ||
        fcntl((int)fd, F_SETFD, FD_CLOEXEC) < 0)
        return err_set(err, ERR_INVALID,
                       "--ready-fd must be an open descriptor above 2, not '%.40s'", text);
    *ret = (int)fd;
    return 0;
}

static int parse_command_line(int argc, char **argv, struct settings *s, const char **ret_file,
                              struct config *c, struct err *err)
{
    struct option options[ARRAY_SIZE(config_flags) + 1] = {0};
    int o;
    for (size_t i = 0; i < config_n_flags; i++)
        options[i] = (struct option){
            config_flags[i].name, config_flags[i].value != NULL ? required_argument : no_argument,
            NULL, config_flags[i].code};
    opterr = 0;
    optind = 1;
    while ((o = getopt_long(argc, argv, "shv", options, NULL)) != -1) {
        if (o >= 256) {
            free(s->values[o - 256]);
            s->values[o - 256] = xstrdup(optarg);
        } else if (o == 'c') {
            *ret_file = optarg;
        } else if (o == 's') {
            c->stdio_control = true;
        } else if (o == 'r') {
            int r = take_ready_fd(optarg, &c->ready_fd, err);
            if (r < 0)
                return r;
        } else if (o == 'h') {
            usage();
            return 1;
        } else if (o == 'v') {
            (void)printf("boxd %s\n", config_version);
            return 1;
        } else {
            return err_set(err, ERR_INVALID, "unknown or incomplete option '%s'; see boxd --help",
                           argv[optind - 1]);
        }
    }
    if (optind < argc)
        return err_set(err, ERR_INVALID, "unexpected argument '%s'; see boxd --help", argv[optind]);
    return 0;
}

static char **text_member(struct config *c, size_t i)
{
    return (char **)(void *)((char *)c + config_keys[i].member);
}

/* Settings that need nothing but their own text. */
static int read_plain(struct config *c, const struct settings *s, struct err *err)
{
    for (size_t i = 0; i < CONFIG_KEY_MAX; i++)
        if (config_keys[i].kind == CONFIG_IS_TEXT && s->values[i] != NULL)
            *text_member(c, i) = xstrdup(s->values[i]);
    for (size_t i = 0; i < CONFIG_KEY_MAX; i++) {
        const struct config_key *k = &config_keys[i];
        uint64_t n;
        if (k->kind != CONFIG_IS_NUMBER)
            continue;
        if (str_to_u64(s->values[i], &n) < 0 || n > k->max)
            return err_set(err, ERR_INVALID, "%s must be a number from 0 to %llu, not '%.40s'",
                           k->name, (unsigned long long)k->max, s->values[i]);
        *(uint64_t *)(void *)((char *)c + k->member) = n;
    }
    for (size_t i = 0; i < CONFIG_KEY_MAX; i++) {
        const struct config_key *k = &config_keys[i];
        if (k->kind != CONFIG_IS_CHOICE)
            continue;
        if (!str_eq(s->values[i], k->no) && !str_eq(s->values[i], k->yes))
            return err_set(err, ERR_INVALID, "%s must be %s or %s, not '%.40s'", k->name, k->no,
                           k->yes, s->values[i]);
        *(bool *)(void *)((char *)c + k->member) = str_eq(s->values[i], k->yes);
    }
    return 0;
}

/* A variable without blanks around it; NULL when nothing is left. */
static char *environment(const char *name)
{
    const char *value = getenv(name);
    char *text = value != NULL ? str_strip(value) : NULL;
    if (text != NULL && text[0] == '\0') {
        free(text);
        return NULL;
    }
    return text;
}

static bool is_on(const char *text)
{
    static const char *const words[] = {"1", "true", "yes", "on"};
    for (size_t i = 0; text != NULL && i < ARRAY_SIZE(words); i++)
        if (strcasecmp(text, words[i]) == 0)
            return true;
    return false;
}

static int check_log(const struct config *c, struct err *err)
{
    if (log_level_find(c->log_level) < 0)
        return err_set(err, ERR_INVALID,
                       "log_level must be error, warn, info or debug, not '%.40s'", c->log_level);
    if (log_level_find(c->access_log) < 0 && !str_eq(c->access_log, "off"))
        return err_set(err, ERR_INVALID,
                       "access_log must be error, warn, info, debug or off, not '%.40s'",
                       c->access_log);
    if (!log_format_known(c->log_format))
        return err_set(err, ERR_INVALID, "log_format must be auto, human or json, not '%.40s'",
                       c->log_format);
    return 0;
}

void config_apply_log(const struct config *c)
{
    (void)log_set_level(c->log_level);
    (void)log_set_format(c->log_format);
    (void)log_set_access(c->access_log);
    /* What we start logs as we do. */
    (void)setenv("BOX_LOG_LEVEL", c->log_level, 1);
    (void)setenv("BOX_LOG_FORMAT", c->log_format, 1);
}

/* What LangBot gives its runtime when it starts one; the names are theirs. */
static int read_langbot(struct config *c, struct err *err)
{
    AUTO_FREE char *unsafe = environment("LANGBOT_BOX_ALLOW_UNSAFE_SOFT_STORAGE_LIMITS");
    c->control_token = environment("LANGBOT_BOX_CONTROL_TOKEN");
    c->instance = environment("LANGBOT_BOX_TRUSTED_INSTANCE_UUID");
    c->box_config = environment("LANGBOT_BOX_CONFIG");
    c->unsafe_storage = is_on(unsafe);
    if (c->control_token != NULL &&
        (strlen(c->control_token) < TOKEN_MIN || strpbrk(c->control_token, " \t\r\n\v\f") != NULL))
        return err_set(err, ERR_INVALID,
                       "LANGBOT_BOX_CONTROL_TOKEN must be a non-whitespace secret of at least %u "
                       "characters",
                       TOKEN_MIN);
    if (c->stdio_control && c->instance == NULL)
        return err_set(err, ERR_INVALID,
                       "LANGBOT_BOX_TRUSTED_INSTANCE_UUID is required for stdio Box control");
    return 0;
}

static int add_root(struct config *c, const char *real, struct err *err)
{
    if (strv_len(c->mount_roots) >= ROOTS_MAX)
        return err_set(err, ERR_LIMIT, "allowed_mount_roots: more than %u entries", ROOTS_MAX);
    strv_add(&c->mount_roots, real);
    return 0;
}

static int read_roots(struct config *c, const char *list, bool builtin, struct err *err)
{
    AUTO_FREE char *copy = xstrdup(list);
    char *save = NULL;
    for (char *item = strtok_r(copy, ",", &save); item != NULL; item = strtok_r(NULL, ",", &save)) {
        char real[PATH_MAX];
        while (*item == ' ')
            item++;
        if (*item != '/')
            return err_set(err, ERR_INVALID,
                           "allowed_mount_roots: '%.200s' is not an absolute path", item);
        if (realpath(item, real) == NULL) {
            if (builtin)
                continue;
            return err_sys(err, errno, "allowed_mount_roots: '%.200s'", item);
        }
        if (str_eq(real, "/"))
            return err_set(err, ERR_DENIED,
                           "allowed_mount_roots: the whole file system cannot be allowed");
        int r = add_root(c, real, err);
        if (r < 0)
            return r;
    }
    c->mount_roots_builtin = builtin;
    return 0;
}

/* A user who says where LangBot runs means that its files there can be mounted. */
static int read_langbot_base(struct config *c, const char *text, struct err *err)
{
    char real[PATH_MAX], cwd[PATH_MAX];
    /* A LangBot that starts us for itself runs where we do. */
    bool own = text == NULL && c->stdio_control && getcwd(cwd, sizeof(cwd)) != NULL;
    if (own)
        text = cwd;
    if (text == NULL)
        return 0;
    if (text[0] != '/' || realpath(text, real) == NULL)
        return err_set(err, ERR_INVALID,
                       "langbot_base_dir must be the absolute path of a directory that is there, "
                       "not '%.200s'",
                       text);
    c->langbot_base = xstrdup(real);
    if (str_eq(real, "/") || (own && !c->mount_roots_builtin))
        return 0;
    return add_root(c, real, err);
}

static bool is_plain_name(const char *s)
{
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || (s[n] != '\0' && strchr("._+-", s[n]) != NULL))
        n++;
    return n > 0 && n <= ALIAS_LEN_MAX && s[n] == '\0' && !str_eq(s, ".") && !str_eq(s, "..");
}

static int check_alias(char *const *have, const char *name, const char *target, struct err *err)
{
    if (!is_plain_name(name))
        return err_set(err, ERR_INVALID,
                       "command_aliases: '%.80s' is no plain name of a command (letters, digits, "
                       "'.', '_', '+', '-')",
                       name);
    if (!is_plain_name(target) && (!path_is_clean_absolute(target) || str_eq(target, "/")))
        return err_set(err, ERR_INVALID,
                       "command_aliases: %.64s must be the name of a command or an absolute path "
                       "without '.', '..' or '//', not '%.80s'",
                       name, target);
    if (str_eq(name, target))
        return err_set(err, ERR_INVALID, "command_aliases: '%.64s' is given as itself", name);
    for (; have != NULL && *have != NULL; have++)
        if (strncmp(*have, name, strlen(name)) == 0 && (*have)[strlen(name)] == '=')
            return err_set(err, ERR_INVALID, "command_aliases: '%.64s' is given twice", name);
    return 0;
}

/* "name=command,…" as a list of its checked pairs. */
static int read_aliases(const char *list, char ***ret, struct err *err)
{
    AUTO_FREE char *copy = xstrdup(list);
    AUTO_STRV char **aliases = NULL;
    char *save = NULL;
    if (str_eq(list, "none"))
        return 0;
    for (char *item = strtok_r(copy, ",", &save); item != NULL; item = strtok_r(NULL, ",", &save)) {
        AUTO_FREE char *pair = str_strip(item);
        char *equals = strchr(pair, '=');
        if (equals == NULL)
            return err_set(err, ERR_INVALID,
                           "command_aliases: '%.80s' is not name=command (none: no aliases)", pair);
        *equals = '\0';
        int r = check_alias(aliases, pair, equals + 1, err);
        if (r < 0)
            return r;
        if (strv_len(aliases) >= ALIASES_MAX)
            return err_set(err, ERR_LIMIT, "command_aliases: more than %u entries", ALIASES_MAX);
        *equals = '=';
        strv_add(&aliases, pair);
    }
    *ret = TAKE_PTR(aliases);
    return 0;
}

static char *default_dir(bool runtime)
{
    const char *home = getenv("HOME"),
               *xdg = getenv(runtime ? "XDG_RUNTIME_DIR" : "XDG_STATE_HOME");
    if (user_is_host_root())
        return xstrdup(runtime ? "/run/box" : "/var/lib/box");
    if (xdg != NULL && xdg[0] == '/')
        return xasprintf("%s/box", xdg);
    return xasprintf("%s/.local/state/box", home != NULL && home[0] == '/' ? home : "/tmp");
}

static int set_paths(struct config *c, const struct settings *s, struct err *err)
{
    const char *dir = s->values[CONFIG_STATE_DIR];
    if (dir == NULL) {
        AUTO_FREE char *run = default_dir(true);
        c->state_dir = default_dir(false);
        c->socket_path = xasprintf("%s/boxd.sock", run);
        return 0;
    }
    if (dir[0] == '\0' || strspn(dir, "/") == strlen(dir))
        return err_set(err, ERR_INVALID, "state_dir must be a directory of its own, not '%.40s'",
                       dir);
    if (dir[0] == '/') {
        c->state_dir = xstrdup(dir);
    } else {
        char cwd[PATH_MAX];
        if (getcwd(cwd, sizeof(cwd)) == NULL)
            return err_sys(err, errno, "current directory");
        c->state_dir = xasprintf("%s/%s", cwd, dir);
    }
    for (size_t n = strlen(c->state_dir); n > 1 && c->state_dir[n - 1] == '/'; n--)
        c->state_dir[n - 1] = '\0';
    c->socket_path = xasprintf("%s/boxd.sock", c->state_dir);
    return 0;
}

static int interpret(struct config *c, const struct settings *s, struct err *err)
{
    struct in6_addr address;
    const char *roots = s->values[CONFIG_MOUNT_ROOTS];
    int r = read_plain(c, s, err);
    if (r == 0 && s->values[CONFIG_TOKEN_FILE] != NULL)
        r = token_file_open(s->values[CONFIG_TOKEN_FILE], &c->token_file, err);
    if (r == 0)
        r = check_log(c, err);
    if (r == 0)
        r = read_langbot(c, err);
    if (r == 0)
        r = read_roots(c, roots != NULL ? roots : builtin_roots, roots == NULL, err);
    if (r == 0)
        r = read_langbot_base(c, s->values[CONFIG_LANGBOT_BASE], err);
    if (r == 0)
        r = read_aliases(s->values[CONFIG_ALIASES], &c->aliases, err);
    if (r == 0)
        r = set_paths(c, s, err);
    if (r == 0 && inet_pton(AF_INET, c->host, &address) != 1 &&
        inet_pton(AF_INET6, c->host, &address) != 1)
        r = err_set(err, ERR_INVALID, "host must be a numeric address, not '%.80s'", c->host);
    return r;
}

/* The command line over the environment over the file over the defaults. */
static void settle_value(struct settings *s, struct settings *file, const char *path, size_t i,
                         struct config_source *source)
{
    const char *env = getenv(config_keys[i].env);
    if (s->values[i] != NULL) {
        source->where = xstrdup("command line");
    } else if (env != NULL && *env != '\0') {
        s->values[i] = xstrdup(env);
        source->where = xasprintf("environment %s", config_keys[i].env);
    } else if (file->values[i] != NULL) {
        s->values[i] = TAKE_PTR(file->values[i]);
        source->where = xasprintf("file %s", path);
    } else {
        if (config_keys[i].text != NULL)
            s->values[i] = xstrdup(config_keys[i].text);
        source->where = xstrdup("default");
    }
    source->value = xstrdup(s->values[i] != NULL ? s->values[i] : "");
}

static bool may_be_mounted(const struct config *c, const char *path)
{
    AUTO_FREE char *real = path_real(path);
    for (char *const *root = c->mount_roots; root != NULL && *root != NULL; root++) {
        size_t len = strlen(*root);
        if (str_starts(real, *root) &&
            (real[len] == '/' || (real[len] == '\0' && !c->mount_roots_builtin)))
            return true;
    }
    return false;
}

/* What every sandbox of a chat would fail at is said at once. */
static int check_chat(const struct config *c, struct err *err)
{
    const struct chat_config *chat = &policy_settings(c->policy)->chat;
    const char *const paths[] = {chat->chats_root, chat->dependencies_host_path,
                                 chat->lambda_tools_host_path};
    int r = chat_config_check(chat, err);
    for (size_t i = 0; r == 0 && chat_configured(chat) && i < ARRAY_SIZE(paths); i++)
        if (!may_be_mounted(c, paths[i]))
            r = err_set(err, ERR_INVALID,
                        "'%.200s' of the section sandbox is outside the directories that may be "
                        "mounted; add it to allowed_mount_roots",
                        paths[i]);
    return r;
}

/* After the rest of the configuration, which the policy builds on. `sections` is NULL without a
 * file. */
static int read_policy(struct config *c, const struct json *sections, const char *path,
                       struct err *err)
{
    char cwd[PATH_MAX];
    if (getcwd(cwd, sizeof(cwd)) == NULL)
        return err_sys(err, errno, "current directory");
    const struct policy_options options = {.file = sections,
                                           .file_name = path != NULL ? path : "(none)",
                                           .env = environ,
                                           .cwd = cwd,
                                           .resolve = path_real,
                                           .outer_roots = c->mount_roots};
    int r = policy_new(&options, &c->policy, err);
    return r < 0 ? r : check_chat(c, err);
}

static void set_source(struct config_source *s, const char *value)
{
    free(s->value);
    s->value = xstrdup(value);
}

static int read_all(struct config *c, const struct settings *s, const struct json *sections,
                    const char *path, struct err *err)
{
    int r = interpret(c, s, err);
    if (r == 0)
        r = read_policy(c, sections, path, err);
    if (r == 0 && s->values[CONFIG_TOKENS_FILE] != NULL)
        r = tokens_file_open(s->values[CONFIG_TOKENS_FILE], &c->tokens, err);
    if (r == 0 && s->values[CONFIG_STATE_DIR] == NULL)
        set_source(&c->sources[CONFIG_STATE_DIR], c->state_dir);
    if (r == 0 && c->mount_roots_builtin)
        set_source(&c->sources[CONFIG_MOUNT_ROOTS], builtin_roots);
    return r;
}

int config_load(int argc, char **argv, struct config **ret, struct err *err)
{
    AUTO(config) struct config *c = xnew(struct config);
    AUTO(json) struct json *sections = NULL;
    struct settings s = {0}, file = {0};
    const char *path = NULL;
    c->ready_fd = -1;
    c->sources = xnew_n(struct config_source, CONFIG_KEY_MAX);
    int r = parse_command_line(argc, argv, &s, &path, c, err);
    if (r == 0 && path != NULL)
        r = config_file_read(path, file.values, &sections, err);
    for (size_t i = 0; r == 0 && i < CONFIG_KEY_MAX; i++)
        settle_value(&s, &file, path, i, &c->sources[i]);
    if (r == 0)
        r = read_all(c, &s, sections, path, err);
    for (size_t i = 0; i < CONFIG_KEY_MAX; i++) {
        free(s.values[i]);
        free(file.values[i]);
    }
    if (r == 0)
        *ret = TAKE_PTR(c);
    return r;
}

int config_load_file(const char *file, struct config **ret, struct err *err)
{
    char *argv[] = {(char *)(uintptr_t) "boxd", (char *)(uintptr_t) "--config",
                    (char *)(uintptr_t)file, NULL};

    return config_load(file != NULL ? 3 : 1, argv, ret, err);
}

void config_free(struct config *c)
{
    if (c == NULL)
        return;
    if (c->control_token != NULL)
        explicit_bzero(c->control_token, strlen(c->control_token));
    token_file_free(c->token_file);
    tokens_file_free(c->tokens);
    policy_free(c->policy);
    for (size_t i = 0; i < CONFIG_KEY_MAX; i++)
        if (config_keys[i].kind == CONFIG_IS_TEXT)
            free(*text_member(c, i));
    free(c->state_dir);
    free(c->socket_path);
    free(c->control_token);
    free(c->instance);
    free(c->box_config);
    free(c->langbot_base);
    strv_free(c->mount_roots);
    strv_free(c->aliases);
    for (size_t i = 0; i < CONFIG_KEY_MAX; i++) {
        free(c->sources[i].value);
        free(c->sources[i].where);
    }
    free(c->sources);
    fd_close_many(&c->ready_fd, 1);
    free(c);
}

bool config_explain(const struct config *c, size_t i, struct policy_row *ret)
{
    if (i >= CONFIG_KEY_MAX)
        return policy_explain(c->policy, i - CONFIG_KEY_MAX, ret);
    *ret = (struct policy_row){.key = config_keys[i].name,
                               .value = c->sources[i].value,
                               .source = c->sources[i].where,
                               .doc = config_keys[i].doc};
    return true;
}

int config_make_path(const char *path, mode_t mode, struct err *err)
{
    AUTO_FREE char *copy = xstrdup(path);
    for (char *at = copy + 1;; at++) {
        if (*at != '/' && *at != '\0')
            continue;
        char end = *at;
        *at = '\0';
        if (mkdir(copy, end == '\0' ? mode : 0755) < 0 && errno != EEXIST)
            return err_sys(err, errno, "make directory '%s'", copy);
        *at = end;
        if (end == '\0')
            return 0;
    }
}

int config_make_dirs(const struct config *c, struct err *err)
{
    AUTO_FREE char *run = xstrdup(c->socket_path);
    *strrchr(run, '/') = '\0';
    int r = config_make_path(c->state_dir, 0711, err);
    return r < 0 ? r : config_make_path(run, 0711, err);
}

int config_find_program(const char *name, char ret[static PATH_MAX], struct err *err)
{
    static const char *const beside[] = {"", "/../libexec/box"};
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n <= 0)
        return err_sys(err, errno, "find our own program");
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    for (size_t i = 0; i < ARRAY_SIZE(beside); i++)
        if (str_fmt(ret, PATH_MAX, "%s%s/%s", self, beside[i], name) >= 0 && access(ret, X_OK) == 0)
            return 0;
    if (str_fmt(ret, PATH_MAX, "%s/%s", BOX_LIBEXECDIR, name) >= 0 && access(ret, X_OK) == 0)
        return 0;
    return err_set(
        err, ERR_NOT_FOUND,
        "'%s' is missing: it should stand beside this program or in %s; install Box again", name,
        BOX_LIBEXECDIR);
}

bool config_host_is_loopback(const struct config *c)
{
    return str_starts(c->host, "127.") || str_eq(c->host, "::1");
}

bool config_needs_token(const struct config *c)
{
    return c->token_file != NULL || c->control_token != NULL || c->tokens != NULL;
}

void config_say_ready(struct config *c)
{
    if (c->ready_fd >= 0)
        (void)fd_write_all(c->ready_fd, "r", 1);
    fd_close_many(&c->ready_fd, 1);
}
