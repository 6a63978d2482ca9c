/* SPDX-License-Identifier: Apache-2.0 */

/* Finds the line of a dead server's standard error that says why it died. Each language has its own
 * way to write a stack; a table of finders is tried in order, over lines without colours and
 * without the frames that some print around them. */

#include "cli/mcp/failure.h"

#include <ctype.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/host_path.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/mcp/path.h"
#include "cli/mcp/plan.h"
#include "spec/spec.h"

#define SAID_MAX (64U << 10) /* of the end of the text; boxd keeps less */
#define LINES_MAX 2048U
#define MORE_LINES 3U /* that belong to the line that was found */
#define NEAR_END 10U  /* lines; an error before was got over */

/* A line of the text, without its frame. */
struct said_line {
    const char *text;
    size_t len;
    size_t indent; /* bytes in front of it, frame included */
    bool drawn;    /* a box is drawn around it */
};

struct said {
    struct buf clean; /* owned; what the lines point into */
    struct said_line lines[LINES_MAX];
    size_t n;
};

/* Without escape sequences (colours) and carriage returns. */
static void clean_text(const char *said, struct buf *ret)
{
    size_t len = strlen(said);

    if (len > SAID_MAX)
        said += len - SAID_MAX;
    while (*said != '\0') {
        if (*said == '\033') {
            said += said[1] == '[' ? 2 + strspn(said + 2, "0123456789;:?") : 1;
            said += *said != '\0' ? 1 : 0;
            continue;
        }
        if (*said != '\r')
            (void)buf_putc(ret, *said);
        said++;
    }
}

/* Bytes of a frame (│, ╭, ╰, ─, ╮, ╯: U+2500 to U+257F) at the beginning; 0: none. */
static size_t frame_at(const char *text)
{
    const unsigned char *u = (const unsigned char *)text;

    return u[0] == 0xe2 && (u[1] == 0x94 || u[1] == 0x95) && u[2] != 0 ? 3 : 0;
}

/* Groups of exceptions are drawn with "|" and "+-" in front of each line. */
static struct said_line strip_line(const char *text, size_t len)
{
    const char *at = text, *end = text + len;
    bool drawn = len >= 3 && frame_at(text) > 0;

    for (;;) {
        size_t frame = frame_at(at);
        if (at < end && (*at == ' ' || *at == '\t' || *at == '|'))
            at++;
        else if (at + 1 < end && *at == '+' && (at[1] == '-' || at[1] == ' '))
            at += 1 + strspn(at + 1, "-+");
        else if (frame > 0 && at + frame <= end)
            at += frame;
        else
            break;
    }
    while (end > at && isspace((unsigned char)end[-1]))
        end--;
    while (end - at >= 3 && frame_at(end - 3) > 0)
        for (end -= 3; end > at && isspace((unsigned char)end[-1]);)
            end--;
    return (struct said_line){at, (size_t)(end - at), (size_t)(at - text), drawn};
}

static void said_init(struct said *s, const char *text)
{
    buf_init(&s->clean, SAID_MAX + 1);
    clean_text(text, &s->clean);
    s->n = 0;
    for (const char *at = buf_str(&s->clean); *at != '\0';) {
        size_t len = strcspn(at, "\n");
        if (s->n == LINES_MAX) /* the last ones matter */
            memmove(s->lines, s->lines + 1, --s->n * sizeof(s->lines[0]));
        s->lines[s->n++] = strip_line(at, len);
        at += len + (at[len] != '\0' ? 1 : 0);
    }
}

static void said_done(struct said *s)
{
    buf_done(&s->clean);
}

static bool begins(const struct said_line *l, const char *word)
{
    return l->len >= strlen(word) && strncmp(l->text, word, strlen(word)) == 0;
}

static bool holds(const struct said_line *l, const char *word)
{
    return memmem(l->text, l->len, word, strlen(word)) != NULL;
}

/* Words joined by dots, as the names of exceptions: of its length, or 0. */
static size_t name_length(const struct said_line *l)
{
    size_t n = 0;

    while (n < l->len && (isalnum((unsigned char)l->text[n]) || strchr("._$", l->text[n]) != NULL))
        n++;
    return n;
}

/* "Error: ...", "redis.exceptions.ConnectionError: ...", "TypeError [CODE]: ...". */
static bool names_error(const struct said_line *l)
{
    static const char *const endings[] = {"Error", "Exception", "Interrupt", "Exit"};
    size_t n = name_length(l);
    bool known = false;

    for (size_t i = 0; i < ARRAY_SIZE(endings); i++) {
        size_t len = strlen(endings[i]);
        known = known || (n >= len && strncmp(l->text + n - len, endings[i], len) == 0);
    }
    if (!known)
        return false;
    if (n < l->len && l->text[n] == ' ' && n + 1 < l->len && l->text[n + 1] == '[') {
        const char *close = memchr(l->text + n, ']', l->len - n);
        n = close != NULL ? (size_t)(close - l->text) + 1 : n;
    }
    return n == l->len || l->text[n] == ':';
}

/* Finders: the number of a line, or `n` for none ---------------------------------------------- */

/* The exception stands behind the frames, at the column of the heading or behind the box that is
 * drawn around them. The last traceback counts: that of the exception which was not caught, and in
 * a group the innermost. */
static size_t find_python(const struct said *s)
{
    size_t found = s->n;

    for (size_t i = 0; i < s->n; i++) {
        const struct said_line *head = &s->lines[i];
        if (!holds(head, "Traceback (most recent call last)"))
            continue;
        bool group = holds(head, "Exception Group");
        size_t at = i + 1;
        while (at < s->n &&
               (s->lines[at].len == 0 || (group && !names_error(&s->lines[at])) ||
                (head->drawn ? s->lines[at].drawn : s->lines[at].indent > head->indent)))
            at++;
        if (at < s->n && name_length(&s->lines[at]) > 0)
            found = at;
    }
    return found;
}

static bool is_frame(const struct said_line *l)
{
    return l->indent > 0 && begins(l, "at ");
}

/* Node and Java: the error, perhaps of several lines, then "    at ...". */
static size_t find_stack(const struct said *s)
{
    for (size_t i = s->n; i-- > 0;) {
        if (!is_frame(&s->lines[i]))
            continue;
        while (i > 0 && is_frame(&s->lines[i]))
            i--;
        if (is_frame(&s->lines[i]))
            return s->n;
        for (size_t at = i + 1; at-- > 0 && i - at <= 8;)
            if (names_error(&s->lines[at]) || begins(&s->lines[at], "Exception in thread"))
                return at;
        return s->lines[i].len > 0 ? i : s->n;
    }
    return s->n;
}

static size_t find_panic(const struct said *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (begins(&s->lines[i], "panic: ") || begins(&s->lines[i], "fatal error: ") ||
            (begins(&s->lines[i], "thread '") && holds(&s->lines[i], "panicked at")))
            return i;
    return s->n;
}

static size_t find_error(const struct said *s)
{
    static const char *const words[] = {"error:", "fatal:", "Fatal"};

    for (size_t i = s->n; i-- > 0 && s->n - i <= NEAR_END;) {
        const struct said_line *l = &s->lines[i];
        bool error =
            (names_error(l) && l->len > name_length(l)) || holds(l, "ERROR") || holds(l, "FATAL");
        for (size_t w = 0; w < ARRAY_SIZE(words) && !error; w++)
            error = begins(l, words[w]);
        if (error)
            return i;
    }
    return s->n;
}

static bool says_nothing(const struct said_line *l)
{
    bool words = false;

    for (size_t i = 0; i < l->len; i++)
        words = words || isalnum((unsigned char)l->text[i]) || (l->text[i] & 0x80) != 0;
    return !words || begins(l, "npm notice") || begins(l, "Node.js v") || is_frame(l);
}

static size_t find_last(const struct said *s)
{
    for (size_t i = s->n; i-- > 0;)
        if (!says_nothing(&s->lines[i]))
            return i;
    return s->n;
}

/* npm says what is wrong first, then what one might do about it, then where its log is, which no
 * user outside can read. It counts where npm has the last word. */
static size_t find_npm(const struct said *s)
{
    static const char *const words[] = {"npm error ", "npm ERR! "};
    size_t last = find_last(s);

    if (last == s->n || !(begins(&s->lines[last], words[0]) || begins(&s->lines[last], words[1])))
        return s->n;
    for (size_t i = 0; i < s->n; i++)
        for (size_t w = 0; w < ARRAY_SIZE(words); w++)
            if (begins(&s->lines[i], words[w]) &&
                strncmp(s->lines[i].text + strlen(words[w]), "code ", strlen("code ")) != 0)
                return i;
    return s->n;
}

/* What behind the line belongs to it, where a message has several lines. */
enum more {
    MORE_NOTHING,
    MORE_BLOCK, /* lines that are indented, and those above them */
    MORE_STACK, /* everything up to the frames */
    MORE_LINE,  /* the next one */
};

static bool is_indented(const struct said *s, size_t i)
{
    return i < s->n && s->lines[i].len > 0 && s->lines[i].indent > 0 && !s->lines[i].drawn;
}

/* How many lines behind `at` belong to it. */
static size_t count_more(const struct said *s, size_t at, enum more more)
{
    size_t base = s->lines[at].indent, n = 0;

    if (more == MORE_LINE)
        return at + 1 < s->n && !says_nothing(&s->lines[at + 1]) ? 1 : 0;
    for (size_t i = at + 1; more == MORE_STACK && i < s->n && i <= at + MORE_LINES + 1; i++)
        if (is_frame(&s->lines[i]))
            return i - at - 1;
    while (more == MORE_BLOCK && base == 0 && n < MORE_LINES && at + n + 1 < s->n &&
           !says_nothing(&s->lines[at + n + 1]) &&
           (is_indented(s, at + n + 1) || is_indented(s, at + n + 2)))
        n++;
    return n;
}

static char *join(const struct said *s, size_t at, enum more more)
{
    AUTO_DONE(buf) struct buf out = BUF_INIT(SAID_MAX * 2);
    size_t n = count_more(s, at, more);

    for (size_t i = at; i <= at + n; i++) {
        (void)buf_puts(&out, i > at ? " " : "");
        (void)buf_append(&out, s->lines[i].text, s->lines[i].len);
    }
    size_t len = out.len < MCP_FAILURE_MAX ? out.len : utf8_boundary(out.data, MCP_FAILURE_MAX);
    return xstrndup(buf_str(&out), len);
}

char *mcp_failure_text(const char *said)
{
    static const struct {
        size_t (*find)(const struct said *s);
        enum more more;
    } finders[] = {{find_npm, MORE_NOTHING}, {find_python, MORE_BLOCK},  {find_stack, MORE_STACK},
                   {find_panic, MORE_LINE},  {find_error, MORE_NOTHING}, {find_last, MORE_NOTHING}};
    AUTO_FREE struct said *s = xnew(struct said);
    char *text = NULL;

    said_init(s, said);
    for (size_t i = 0; i < ARRAY_SIZE(finders) && text == NULL; i++) {
        size_t at = finders[i].find(s);
        if (at < s->n)
            text = join(s, at, finders[i].more);
    }
    said_done(s);
    return text != NULL ? text : xstrdup("");
}

/* What may help ------------------------------------------------------------------------------- */

/* Names of errors are written in capitals; "FileNotFound" is not "ENOTFOUND". */
static bool says_any(const char *said, const char *const *words)
{
    for (; *words != NULL; words++)
        if (isupper((unsigned char)(*words)[1]) ? strstr(said, *words) != NULL
                                                : strcasestr(said, *words) != NULL)
            return true;
    return false;
}

/* Whether the box has something of its own, or of ours, at that name. */
static bool is_inside(const char *path, const struct mcp_plan *plan, const struct spec *spec)
{
    static const char *const system[] = {"/usr",  "/bin", "/sbin", "/lib", "/lib64", "/etc",
                                         "/proc", "/dev", "/sys",  "/run", MCP_MOUNT};

    for (size_t i = 0; i < ARRAY_SIZE(system); i++)
        if (path_at_or_below(path, system[i]))
            return true;
    for (size_t i = 0; i < plan->roots.n; i++)
        if (path_at_or_below(path, plan->roots.list[i].inside))
            return true;
    for (size_t i = 0; i < plan->chain.n; i++)
        if (path_at_or_below(path, plan->chain.list[i].inside))
            return true;
    for (size_t i = 0; i < spec->n_extra_mounts; i++)
        if (path_at_or_below(path, spec->extra_mounts[i].mount_path))
            return true;
    return false;
}

/* Those that --mount has put elsewhere; owned, NULL: none. */
static char *name_inside(const char *path, const struct mcp_plan *plan, const struct spec *spec)
{
    AUTO_FREE char *real = mcp_fs_host.real(path);

    for (size_t i = 0; i < plan->roots.n && real != NULL; i++)
        if (path_at_or_below(real, plan->roots.list[i].host))
            return xasprintf("%s%s", plan->roots.list[i].inside,
                             real + strlen(plan->roots.list[i].host));
    for (size_t i = 0; i < spec->n_extra_mounts; i++) {
        const struct mount_spec *m = &spec->extra_mounts[i];
        if (path_at_or_below(path, m->host_path))
            return xasprintf("%s%s", m->mount_path, path + strlen(m->host_path));
    }
    return NULL;
}

/* A name inside that can be mounted at: its own, where the box has nothing else there. */
static char *target_for(const char *path)
{
    static const char *const taken[] = {"/tmp", "/var", "/opt", "/home/box"};

    for (size_t i = 0; i < ARRAY_SIZE(taken); i++)
        if (path_at_or_below(path, taken[i]))
            return xasprintf("/mnt%s", strrchr(path, '/'));
    return xstrdup(path);
}

char *mcp_path_hint(const char *path, const struct mcp_plan *plan, const struct spec *spec)
{
    if (path[0] != '/' || path[1] == '\0' || strlen(path) > SPEC_PATH_MAX ||
        is_inside(path, plan, spec) || mcp_fs_host.kind(path) == MCP_MISSING)
        return NULL;
    AUTO_FREE char *inside = name_inside(path, plan, spec);
    if (inside != NULL)
        return xasprintf("'%s' of this host is called '%s' in the box", path, inside);
    if (host_path_blocked(path, NULL))
        return xasprintf("'%s' of this host is not in the box, and no box may have it", path);
    AUTO_FREE char *target = target_for(path);
    return xasprintf(
        "'%s' of this host is not in the box: '--mount %s:%s:ro' shows it there, ':rw' "
        "also lets the server write it",
        path, path, target);
}

/* Paths that the user has given to the server, where it speaks of them. */
static char *given_path_hint(const char *said, const struct mcp_plan *plan, const struct spec *spec)
{
    char *const *lists[] = {plan->server.args, plan->server.env};

    for (size_t l = 0; l < ARRAY_SIZE(lists); l++)
        for (size_t i = 0; i < strv_len(lists[l]); i++) {
            const char *at = strchr(lists[l][i], '/');
            char *hint =
                at != NULL && strstr(said, at) != NULL ? mcp_path_hint(at, plan, spec) : NULL;
            if (hint != NULL)
                return hint;
        }
    return NULL;
}

/* Whether a word that the user gave to the server, such as the URL of a service, says one of these.
 */
static bool given_any(const struct mcp_plan *plan, const char *const *words)
{
    char *const *lists[] = {plan->server.args, plan->server.env};

    for (size_t l = 0; l < ARRAY_SIZE(lists); l++)
        for (size_t i = 0; i < strv_len(lists[l]); i++)
            if (says_any(lists[l][i], words))
                return true;
    return false;
}

/* The number behind one of these names and a colon; 0: there is none. */
static unsigned port_behind(const char *text, const char *const *names)
{
    for (; *names != NULL; names++)
        for (const char *at = text; (at = strstr(at, *names)) != NULL;) {
            uint64_t port = 0;
            at += strlen(*names);
            at += *at == ']';
            if (*at != ':')
                continue;
            AUTO_FREE char *number = xstrndup(at + 1, strspn(at + 1, "0123456789"));
            if (str_to_u64(number, &port) == 0 && port > 0 && port <= UINT16_MAX)
                return (unsigned)port;
        }
    return 0;
}

static char *refused_hint(const char *said, const struct mcp_plan *plan, const char *const *own)
{
    char *const *lists[] = {plan->server.args, plan->server.env};
    unsigned port = port_behind(said, own);

    for (size_t l = 0; l < ARRAY_SIZE(lists); l++)
        for (size_t i = 0; port == 0 && i < strv_len(lists[l]); i++)
            port = port_behind(lists[l][i], own);
    AUTO_FREE char *number = port > 0 ? xasprintf("%u", port) : xstrdup("PORT");
    return xasprintf("localhost in the box is the box itself: '--allow-host 127.0.0.1:%s' lets the "
                     "server reach that port of this host",
                     number);
}

char *mcp_failure_hint(const char *said, const struct mcp_plan *plan, const struct spec *spec)
{
    static const char *const refused[] = {"ECONNREFUSED", "connection refused", "Error 111", NULL};
    static const char *const own[] = {"127.0.0.1", "localhost", "::1", NULL};
    static const char *const frozen[] = {"EROFS", "read-only file system", "readonly database",
                                         "read-only database", NULL};
    static const char *const cut_off[] = {
        "ENOTFOUND", "EAI_AGAIN", "ENETUNREACH", "name resolution", "network is unreachable", NULL};

    if (says_any(said, refused) && (says_any(said, own) || given_any(plan, own)))
        return refused_hint(said, plan, own);
    if (says_any(said, frozen))
        return xstrdup("directories of this host are read-only in the box: '--host-path-mode rw', "
                       "or '--mount HOST:BOX:rw' for one of them, lets the server write there");
    if (plan->server.box.network == NETWORK_OFF && says_any(said, cut_off))
        return xstrdup("the network of this box is off ('--network on' allows it)");
    return given_path_hint(said, plan, spec);
}
