/* SPDX-License-Identifier: Apache-2.0 */
#include "util/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "util/buf.h"
#include "util/clock.h"
#include "util/json.h"
#include "util/str.h"

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
    enum log_level level;
    bool json;
    bool colour;
} config = {.program = "box", .level = LOG_LEVEL_INFO};

void log_init(const char *program)
{
    const char *format = getenv("BOX_LOG_FORMAT");
    const char *level = getenv("BOX_LOG_LEVEL");
    bool terminal = isatty(STDERR_FILENO) == 1;

    config.program = program;
    config.json = !terminal;
    if (str_eq(format, "json"))
        config.json = true;
    else if (str_eq(format, "text"))
        config.json = false;
    config.colour = terminal && !getenv("NO_COLOR");
    config.level = LOG_LEVEL_INFO;
    for (size_t i = 0; i < ARRAY_SIZE(levels); i++)
        if (str_eq(level, levels[i].name))
            config.level = (enum log_level)i;
}

static int write_json(struct buf *out, enum log_level level, const char *context, const char *text)
{
    char now[40];
    struct jw w;

    clock_format(clock_real(&clock_system), now, sizeof(now));
    jw_init(&w, out);
    jw_object(&w);
    jw_kstr(&w, "time", now);
    jw_kstr(&w, "level", levels[level].name);
    jw_kstr(&w, "program", config.program);
    if (context)
        jw_kstr(&w, "session", context);
    jw_kstr(&w, "msg", text);
    jw_object_end(&w);
    return jw_end(&w);
}

/* The code point when it must not reach a terminal, 0 otherwise: controls of both sets, line
 * separators, and the marks that make a line read as what it is not (U+200E, 200F, 202A-202E,
 * 2066-2069). */
static unsigned unsafe_point(const char *s, int n)
{
    unsigned c = (unsigned char)s[0];

    if (n == 1)
        return c < 0x20 || c == 0x7f ? c : 0;
    if (n == 2) /* U+0080 to U+009F */
        return c == 0xc2 && (unsigned char)s[1] < 0xa0 ? (unsigned char)s[1] : 0;
    if (n != 3 || c != 0xe2)
        return 0;
    unsigned point = 0x2000U | ((unsigned)s[1] & 0x3f) << 6 | ((unsigned)s[2] & 0x3f);
    bool unsafe = point == 0x200e || point == 0x200f || (point >= 0x2028 && point <= 0x202e) ||
                  (point >= 0x2066 && point <= 0x2069);
    return unsafe ? point : 0;
}

/* Text from anywhere, harmless to a terminal and on one line. */
static int put_safe(struct buf *out, const char *text)
{
    bool incomplete;
    int r = 0;

    for (size_t len = strlen(text); len > 0 && r == 0;) {
        int n = utf8_next(text, len, &incomplete);
        size_t step = (size_t)abs(n);
        unsigned point = n > 0 ? unsafe_point(text, n) : 0;
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

/* 08:32:43 warn  s1: text */
static int write_text(struct buf *out, enum log_level level, const char *context, const char *text)
{
    time_t now = (time_t)(clock_real(&clock_system) / NSEC_PER_SEC);
    struct tm tm = {0};

    (void)localtime_r(&now, &tm);
    int r = buf_printf(out, "%s%02d:%02d:%02d %-5s%s ", config.colour ? levels[level].colour : "",
                       tm.tm_hour, tm.tm_min, tm.tm_sec, levels[level].name,
                       config.colour ? "\033[0m" : "");
    if (r == 0 && context) {
        r = put_safe(out, context);
        if (r == 0)
            r = buf_puts(out, ": ");
    }
    return r < 0 ? r : put_safe(out, text);
}

void log_at(enum log_level level, const char *context, const char *fmt, ...)
{
    if (level > config.level)
        return;

    int saved = errno;
    char text[MESSAGE_MAX];
    AUTO_DONE(buf) struct buf out;
    va_list ap;

    buf_init(&out, RECORD_MAX);
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (n < 0)
        text[0] = '\0';
    if ((size_t)n >= sizeof(text))
        text[utf8_boundary(text, sizeof(text) - 1)] = '\0';

    int r = config.json ? write_json(&out, level, context, text)
                        : write_text(&out, level, context, text);
    if (r == 0)
        r = buf_putc(&out, '\n');
    /* One write for one record, so that several processes can share a pipe. What does not get out
     * is lost: there is nobody to tell. */
    if (r == 0)
        while (write(STDERR_FILENO, out.data, out.len) < 0 && errno == EINTR)
            ;
    errno = saved;
}
