/* SPDX-License-Identifier: Apache-2.0 */

/* Formats and writes log records, and keeps the id of the current request. */

#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"

#define MESSAGE_MAX 4096
#define RECORD_MAX (8 * MESSAGE_MAX) /* every byte escaped, and the frame around it */

static const struct {
    const char *name;
    const char *colour;
} levels[] = {
    [LOG_LEVEL_ERROR] = {"error", "\033[31m"},
    [LOG_LEVEL_WARN] = {"warn", "\033[33m"},
    [LOG_LEVEL_INFO] = {"info", "\033[32m"},
    [LOG_LEVEL_DEBUG] = {"debug", "\033[2m"},
};

/* One thread per process: no lock. Before log_init() everything up to info goes out as text. */
static struct {
    const char *program;
    enum log_level level, access;
    bool json;
    bool colour;
    struct log_scope request;
} config = {.program = "box", .level = LOG_LEVEL_INFO, .access = LOG_LEVEL_DEBUG};

int log_level_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(levels); i++)
        if (str_eq(name, levels[i].name))
            return (int)i;
    return -EINVAL;
}

int log_set_level(const char *name)
{
    int level = log_level_find(name);
    if (level >= 0)
        config.level = (enum log_level)level;
    return level < 0 ? level : 0;
}

int log_set_access(const char *name)
{
    int level = str_eq(name, "off") ? LOG_LEVEL_OFF : log_level_find(name);
    if (level >= 0)
        config.access = (enum log_level)level;
    return level < 0 ? level : 0;
}

enum log_level log_access_level(void)
{
    return config.access;
}

bool log_format_known(const char *name)
{
    return str_eq(name, "json") || str_eq(name, "human") || str_eq(name, "text") ||
           str_eq(name, "auto");
}

int log_set_format(const char *name)
{
    bool terminal = isatty(STDERR_FILENO) == 1;

    if (!log_format_known(name))
        return -EINVAL;
    config.json = str_eq(name, "json") || (str_eq(name, "auto") && !terminal);
    config.colour = terminal && !config.json && !getenv("NO_COLOR");
    return 0;
}

void log_init(const char *program)
{
    config.program = program;
    config.level = LOG_LEVEL_INFO;
    (void)log_set_level(getenv("BOX_LOG_LEVEL"));
    if (log_set_format(getenv("BOX_LOG_FORMAT")) < 0)
        (void)log_set_format("auto");
}

struct record {
    enum log_level level;
    const char *context; /* NULL: none */
    const char *text;
    const struct log_field *fields;
    size_t n_fields;
};

static int write_json(struct buf *out, const struct record *r)
{
    char now[40];
    struct jw w = JW_INIT(out);

    clock_format(clock_real(&clock_system), now, sizeof(now));
    jw_object(&w);
    jw_kstr(&w, "time", now);
    jw_kstr(&w, "level", levels[r->level].name);
    jw_kstr(&w, "program", config.program);
    if (config.request.id[0] != '\0')
        jw_kstr(&w, "request", config.request.id);
    if (r->context)
        jw_kstr(&w, "session", r->context);
    jw_kstr(&w, "msg", r->text);
    for (size_t i = 0; i < r->n_fields; i++) {
        if (r->fields[i].text != NULL)
            jw_kstr(&w, r->fields[i].key, r->fields[i].text);
        else
            jw_kint(&w, r->fields[i].key, r->fields[i].number);
    }
    jw_object_end(&w);
    return jw_end(&w);
}

/* Text from anywhere, harmless to a terminal and on one line. */
static int put_safe(struct buf *out, const char *text)
{
    bool incomplete;
    int r = 0;

    for (size_t len = strlen(text); len > 0 && r == 0;) {
        int n = utf8_next(text, len, &incomplete);
        size_t step = (size_t)abs(n);
        unsigned point = n > 0 ? utf8_unsafe(text, n) : 0;
        if (n < 0)
            r = buf_puts(out, "\xef\xbf\xbd");
        else if (point == '\n')
            r = buf_puts(out, "\\n");
        else if (point > 0)
            r = buf_printf(out, "\\u%04x", point);
        else
            r = buf_append(out, text, step);
        text += step;
        len -= step;
    }
    return r;
}

/* 08:32:43 warn  [request] s1: text key=value */
static int write_text(struct buf *out, const struct record *r)
{
    time_t now = (time_t)(clock_real(&clock_system) / NSEC_PER_SEC);
    struct tm tm = {0};

    (void)localtime_r(&now, &tm);
    int e = buf_printf(out, "%s%02d:%02d:%02d %-5s%s ",
                       config.colour ? levels[r->level].colour : "", tm.tm_hour, tm.tm_min,
                       tm.tm_sec, levels[r->level].name, config.colour ? "\033[0m" : "");
    if (e == 0 && config.request.id[0] != '\0')
        e = buf_printf(out, "[%s] ", config.request.id);
    if (e == 0 && r->context) {
        e = put_safe(out, r->context);
        if (e == 0)
            e = buf_puts(out, ": ");
    }
    if (e == 0)
        e = put_safe(out, r->text);
    for (size_t i = 0; e == 0 && i < r->n_fields; i++) {
        const struct log_field *f = &r->fields[i];
        e = buf_printf(out, " %s=", f->key);
        if (e == 0)
            e = f->text != NULL ? put_safe(out, f->text)
                                : buf_printf(out, "%lld", (long long)f->number);
    }
    return e;
}

static void emit(const struct record *r)
{
    int saved = errno;
    AUTO_DONE(buf) struct buf out = BUF_INIT(RECORD_MAX);
    AUTO_DONE(buf) struct buf json = BUF_INIT(RECORD_MAX);

    int e = config.json ? write_json(&json, r) : write_text(&out, r);
    if (e == 0 && config.json)
        e = json_plain(&out, json.data, json.len); /* it will be read in a terminal */
    if (e == 0)
        e = buf_putc(&out, '\n');
    /* One write for one record, so that several processes can share a pipe. What does not get out
     * is lost: there is no other place to say so. */
    if (e == 0)
        while (write(STDERR_FILENO, out.data, out.len) < 0 && errno == EINTR)
            ;
    errno = saved;
}

void log_event(enum log_level level, const char *context, const struct log_field *fields, size_t n,
               const char *text)
{
    if (level <= config.level)
        emit(&(struct record){level, context, text, fields, n});
}

void log_at(enum log_level level, const char *context, const char *fmt, ...)
{
    if (level > config.level)
        return;

    int saved = errno;
    char text[MESSAGE_MAX];
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (n < 0)
        text[0] = '\0';
    if ((size_t)n >= sizeof(text))
        text[utf8_boundary(text, sizeof(text) - 1)] = '\0';
    emit(&(struct record){.level = level, .context = context, .text = text});
    errno = saved;
}

/* Requests. */

struct log_scope log_scope_enter(const char *id)
{
    struct log_scope before = config.request;

    if (str_copy(config.request.id, sizeof(config.request.id), id != NULL ? id : "") < 0)
        config.request.id[0] = '\0';
    return before;
}

void log_scope_leave(const struct log_scope *before)
{
    config.request = *before;
}

struct log_scope log_scope_now(void)
{
    return config.request;
}

bool log_request_valid(const char *id)
{
    size_t n = strlen(id);

    return n > 0 && n < LOG_REQUEST_SIZE &&
           strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

void log_request_make(char ret[LOG_REQUEST_SIZE])
{
    static uint32_t process, count;

    /* An id is no secret: guessing one gains nothing. */
    if (process == 0 && getrandom(&process, sizeof(process), GRND_NONBLOCK) < 0)
        process = (uint32_t)clock_real(&clock_system) | 1U;
    (void)str_fmt(ret, LOG_REQUEST_SIZE, "%08" PRIx32 "%08" PRIx32, process, ++count);
}
