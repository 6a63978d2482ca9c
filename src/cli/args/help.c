/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the texts of `box help` from the tables of verbs and options. */

#include "cli/args/args.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "spec/model.h"
#include "spec/spec.h"

#define OPTION_COLUMN 32

static const char environment[] =
    "\nBOX_HOST names the boxd to talk to: unix:///path/boxd.sock or http://127.0.0.1:5410, with\n"
    "the token of the latter in the file BOX_TOKEN_FILE. Without it the usual socket is tried, "
    "and\n"
    "a private boxd is started when none listens there.\n";

static const char statuses[] =
    "\nExit status: that of the command; 128 + N when signal N killed it; 124 when it timed out;\n"
    "137 when it ran out of memory; 126 when it cannot be run; 127 when it is not found; 125 when\n"
    "box itself failed.\n";

/* All of it is our own text, which has room in every buffer that it is written to. */

static const struct {
    enum verb verb;
    size_t field; /* enum spec_field */
    int64_t number;
} verb_defaults[] = {
    {VERB_AGENT, SPEC_NETWORK, ARGS_AGENT_NETWORK},
    {VERB_AGENT, SPEC_MEMORY_MB, ARGS_AGENT_MEMORY_MB},
    {VERB_AGENT, SPEC_CPUS, ARGS_AGENT_CPUS},
    {VERB_AGENT, SPEC_PIDS_LIMIT, ARGS_AGENT_PIDS},
    {VERB_MCP_RUN, SPEC_NETWORK, ARGS_MCP_NETWORK},
    {VERB_MCP_RUN, SPEC_READ_ONLY_ROOTFS, ARGS_MCP_READ_ONLY_ROOT},
    {VERB_MCP_RUN, SPEC_HOST_PATH_MODE, ARGS_MCP_HOST_PATH_MODE},
    {VERB_MCP_RUN, SPEC_TIMEOUT_SEC, ARGS_MCP_STARTUP_SEC},
};

/* The verb's own default, or else that of the spec, where it is a plain value. A command of ours
 * has no time limit: 0. */
static void put_default(const struct arg_option *o, enum verb verb, struct buf *out)
{
    const struct field *f = &spec_model.fields[o->where];

    if ((o->kind != ARG_FIELD && o->kind != ARG_SIZE && o->kind != ARG_TIME) || verb == VERB_UPDATE)
        return; /* an update leaves alone what is not given */
    int64_t number = o->where == SPEC_TIMEOUT_SEC ? 0 : f->number;
    double real = f->real;
    for (size_t i = 0; i < ARRAY_SIZE(verb_defaults); i++)
        if (verb_defaults[i].verb == verb && verb_defaults[i].field == o->where) {
            number = verb_defaults[i].number;
            real = (double)number;
        }
    const char *unit = o->kind == ARG_SIZE ? "m" : o->kind == ARG_TIME ? "s" : "";
    if (f->kind == FIELD_INT && number != 0)
        (void)buf_printf(out, " Default %lld%s.", (long long)number, unit);
    else if (f->kind == FIELD_REAL)
        (void)buf_printf(out, " Default %g.", real);
    else if (f->kind == FIELD_BOOL)
        (void)buf_printf(out, " Default %s.", number != 0 ? "on" : "off");
    else if (f->kind == FIELD_ENUM)
        (void)buf_printf(out, " Default %s.", f->names[number]);
}

static void put_option(const struct arg_option *o, enum verb verb, struct buf *out)
{
    size_t start = out->len;

    if (o->letter != '\0')
        (void)buf_printf(out, "  -%c, --%s", o->letter, o->name);
    else
        (void)buf_printf(out, "      --%s", o->name);
    if (o->value != NULL)
        (void)buf_printf(out, " %s", o->value);
    size_t used = out->len - start;
    if (used + 2 > OPTION_COLUMN) {
        (void)buf_putc(out, '\n');
        used = 0;
    }
    (void)buf_printf(out, "%*s%s", (int)(OPTION_COLUMN - used), "", o->doc);
    put_default(o, verb, out);
    (void)buf_puts(out, o->many ? " May be repeated.\n" : "\n");
}

static void put_options(enum verb verb, struct buf *out)
{
    for (size_t i = 0; i < arg_n_options; i++)
        if (arg_fits(&arg_options[i], verb))
            put_option(&arg_options[i], verb, out);
}

static void put_verb(const struct arg_verb *v, struct buf *out)
{
    AUTO_FREE char *names =
        v->alias != NULL ? xasprintf("%s, %s", v->name, v->alias) : xstrdup(v->name);

    (void)buf_printf(out, "  %-12s%s\n", names, v->doc);
}

static void put_overview(struct buf *out)
{
    (void)buf_puts(out, "usage: box VERB [OPTION...]\n\nSandboxes on this computer.\n\n");
    for (size_t i = 0; i < VERB_MAX; i++)
        put_verb(&arg_verbs[i], out);
    (void)buf_putc(out, '\n');
    put_options(VERB_HELP, out);
    (void)buf_puts(out, environment);
}

static void put_synopsis(enum verb verb, struct buf *out)
{
    const struct arg_verb *v = &arg_verbs[verb];

    if (v->max_names > 0 && (v->synopsis == NULL || v->wants_command))
        (void)buf_printf(out, v->min_names > 0 ? " %s%s" : " [%s%s]", v->name_word,
                         v->max_names > 1 && v->max_names > v->min_names ? "..." : "");
    (void)buf_printf(out, " [OPTION...]%s%s", v->synopsis != NULL ? " " : "",
                     v->synopsis != NULL ? v->synopsis : "");
}

void args_help(enum verb topic, struct buf *out)
{
    const struct arg_verb *v = &arg_verbs[topic];

    if (topic == VERB_HELP) {
        put_overview(out);
        return;
    }
    (void)buf_printf(out, "usage: box %s", v->name);
    put_synopsis(topic, out);
    (void)buf_printf(out, "\n\n%s\n\n", v->doc);
    put_options(topic, out);
    if (v->alias != NULL)
        (void)buf_printf(out, "\n'box %s' is the same.\n", v->alias);
    if (v->wants_command)
        (void)buf_puts(out, statuses);
}
