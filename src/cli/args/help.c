/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the texts of `box help` and `--help`. */

#include <string.h>

#include "base/buf.h"
#include "base/str.h"
#include "cli/args/box_args_internal.h"
#include "spec/model.h"
#include "spec/spec.h"

#define OPTION_COLUMN 32

static const char environment[] =
    "\nBOX_HOST names the boxd to talk to: unix:///path/boxd.sock or http://127.0.0.1:5410, with\n"
    "the token of the latter in the file BOX_TOKEN_FILE. Without it the usual socket is tried, "
    "and\n"
    "a private boxd is started when nobody listens there.\n";

static const char statuses[] =
    "\nExit status: that of the command; 128 + N when signal N killed it; 124 when it timed out;\n"
    "137 when it ran out of memory; 126 when it cannot be run; 127 when it is not found; 125 when\n"
    "box itself failed.\n";

/* The default of the spec, where it is a plain value. A command of ours has no time limit. */
int args_put_default(const struct arg_option *o, struct buf *out)
{
    const struct field *f = &spec_model.fields[o->where];

    if (o->set != arg_set_field || o->where == SPEC_TIMEOUT_SEC)
        return 0;
    switch (f->kind) {
    case FIELD_INT:
        return f->number != 0 ? buf_printf(out, " Default %lld.", (long long)f->number) : 0;
    case FIELD_REAL:
        return buf_printf(out, " Default %g.", f->real);
    case FIELD_BOOL:
        return buf_printf(out, " Default %s.", f->number != 0 ? "on" : "off");
    case FIELD_ENUM:
        return buf_printf(out, " Default %s.", f->names[f->number]);
    case FIELD_STR:
    case FIELD_ENV:
    case FIELD_STRV:
    case FIELD_LIST:
    case FIELD_TIME:
    default:
        return 0;
    }
}

static int put_option(const struct arg_option *o, struct buf *out)
{
    size_t start = out->len;
    int r = o->letter != '\0' ? buf_printf(out, "  -%c, --%s", o->letter, o->name)
                              : buf_printf(out, "      --%s", o->name);

    if (r >= 0 && o->value != NULL)
        r = buf_printf(out, " %s", o->value);
    size_t used = out->len - start;
    if (r >= 0 && used + 2 > OPTION_COLUMN) {
        r = buf_putc(out, '\n');
        used = 0;
    }
    if (r >= 0)
        r = buf_printf(out, "%*s%s", (int)(OPTION_COLUMN - used), "", o->doc);
    if (r >= 0)
        r = args_put_default(o, out);
    if (r >= 0 && o->many)
        r = buf_puts(out, " May be repeated.");
    return r < 0 ? r : buf_putc(out, '\n');
}

static int put_options(enum verb verb, struct buf *out)
{
    int r = 0;

    for (size_t i = 0; i < arg_n_options && r >= 0; i++)
        if ((arg_options[i].verbs & (1u << verb)) != 0)
            r = put_option(&arg_options[i], out);
    return r;
}

static int put_overview(struct buf *out)
{
    int r = buf_puts(out, "usage: box VERB [OPTION...]\n\nSandboxes on this computer.\n\n");

    for (size_t i = 0; i < VERB_MAX && r >= 0; i++)
        r = buf_printf(out, "  %-12s%s\n", arg_verbs[i].name, arg_verbs[i].doc);
    if (r >= 0)
        r = buf_putc(out, '\n');
    if (r >= 0)
        r = put_options(VERB_HELP, out);
    return r < 0 ? r : buf_puts(out, environment);
}

int args_put_synopsis(enum verb verb, struct buf *out)
{
    const struct arg_verb *v = &arg_verbs[verb];
    int r = 0;

    if (v->max_names > 0 && (v->synopsis == NULL || v->wants_command))
        r = buf_printf(out, " %s%s", v->name_word,
                       v->max_names > 1 && v->max_names > v->min_names ? "..." : "");
    return r < 0 ? r
                 : buf_printf(out, " [OPTION...]%s%s", v->synopsis != NULL ? " " : "",
                              v->synopsis != NULL ? v->synopsis : "");
}

int args_help(enum verb topic, struct buf *out)
{
    const struct arg_verb *v = &arg_verbs[topic];

    if (topic == VERB_HELP)
        return put_overview(out);
    int r = buf_printf(out, "usage: box %s", v->name);
    if (r >= 0)
        r = args_put_synopsis(topic, out);
    if (r >= 0)
        r = buf_printf(out, "\n\n%s\n\n", v->doc);
    if (r >= 0)
        r = put_options(topic, out);
    return r < 0 || !v->wants_command ? r : buf_puts(out, statuses);
}
