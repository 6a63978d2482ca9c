/* SPDX-License-Identifier: Apache-2.0 */

/* Prints the generated sections of the manuals, of docs/reference/config.md and of the example of a
 * configuration, from the tables that parse command lines and files: gen-ops-doc SECTION.
 * tools/gen-protocol-doc.py puts them in their place. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
/* NOLINTNEXTLINE(bugprone-suspicious-include): for parts of help that manuals have too. */
#include "cli/args/help.c"
#include "config/config_file.h"
#include "policy/policy.h"

/* Text that does not begin with a blank, as mdoc(7). */
static void man_text(struct buf *out, const char *text)
{
    if (*text == '.' || *text == '\'')
        (void)buf_puts(out, "\\&");
    for (; *text != '\0'; text++) {
        if (*text == '\\')
            (void)buf_puts(out, "\\e");
        else if (*text == ' ' && text[-1] == '.')
            (void)buf_putc(out, '\n'); /* each sentence has a line */
        else
            (void)buf_putc(out, *text);
    }
}

static void box_option(const struct arg_option *o, enum verb verb, struct buf *out)
{
    AUTO_DONE(buf) struct buf more;

    (void)buf_puts(out, ".It ");
    if (o->letter != '\0')
        (void)buf_printf(out, "Fl %c , ", o->letter);
    (void)buf_printf(out, "Fl -%s", o->name);
    if (o->value != NULL) {
        (void)buf_puts(out, " Ar ");
        man_text(out, o->value);
    }
    (void)buf_putc(out, '\n');
    man_text(out, o->doc);
    buf_init(&more, 256);
    put_default(o, verb, &more);
    if (more.len > 0)
        (void)buf_printf(out, "\n%s", buf_str(&more) + 1); /* without its blank */
    (void)buf_puts(out, o->many ? "\nMay be repeated.\n" : "\n");
}

static void box_verbs(struct buf *out)
{
    for (int verb = 0; verb < VERB_MAX; verb++) {
        (void)buf_printf(out, ".Ss box %s", arg_verbs[verb].name);
        put_synopsis((enum verb)verb, out);
        (void)buf_putc(out, '\n');
        man_text(out, arg_verbs[verb].doc);
        (void)buf_puts(out, "\n.Bl -tag -width Ds\n");
        for (size_t i = 0; i < arg_n_options; i++)
            if (arg_fits(&arg_options[i], (enum verb)verb))
                box_option(&arg_options[i], (enum verb)verb, out);
        (void)buf_puts(out, ".El\n");
    }
}

static void boxd_options(struct buf *out)
{
    (void)buf_puts(out, ".Bl -tag -width Ds\n");
    for (size_t i = 0; i < config_n_flags; i++) {
        const struct config_flag *f = &config_flags[i];
        (void)buf_puts(out, ".It ");
        if (f->letter != '\0')
            (void)buf_printf(out, "Fl %c , ", f->letter);
        (void)buf_printf(out, "Fl -%s", f->name);
        if (f->value != NULL)
            (void)buf_printf(out, " Ar %s", f->value);
        (void)buf_putc(out, '\n');
        man_text(out, f->doc);
        (void)buf_putc(out, '\n');
    }
    (void)buf_puts(out, ".El\n");
}

static void man_row(struct buf *out, const char *name, const char *env, const char *text,
                    const char *doc)
{
    (void)buf_printf(out, ".It Cm %s", name);
    if (env != NULL)
        (void)buf_printf(out, " Pq Ev %s", env);
    (void)buf_putc(out, '\n');
    man_text(out, doc);
    if (text != NULL && *text != '\0') {
        (void)buf_puts(out, ".\nDefault: ");
        man_text(out, text);
    }
    (void)buf_puts(out, ".\n");
}

/* The settings of the policy with their defaults: no file, no environment. */
static struct policy *defaults(void)
{
    const struct policy_options options = {.file_name = "(none)", .cwd = "/"};
    struct policy *p = NULL;
    struct err err = {0};

    if (policy_new(&options, &p, &err) < 0) {
        (void)fprintf(stderr, "%s\n", err.msg);
        abort();
    }
    return p;
}

static void config_man(struct buf *out)
{
    (void)buf_puts(out, ".Bl -tag -width Ds\n");
    for (size_t i = 0; i < CONFIG_KEY_MAX; i++)
        man_row(out, config_keys[i].name, config_keys[i].env, config_keys[i].text,
                config_keys[i].doc);
    (void)buf_puts(out, ".El\n");
}

static void policy_man(struct buf *out)
{
    AUTO(policy) struct policy *p = defaults();
    struct policy_row row;

    (void)buf_puts(out, ".Bl -tag -width Ds\n");
    for (size_t i = 0; policy_explain(p, i, &row); i++)
        man_row(out, row.key, NULL, row.value, row.doc);
    (void)buf_puts(out, ".El\n");
}

static void cell(struct buf *out, const char *text)
{
    for (; *text != '\0'; text++)
        (void)buf_printf(out, "%s%c", *text == '|' ? "\\" : "", *text);
}

static void config_md(struct buf *out)
{
    (void)buf_puts(out, "| setting | variable | default | meaning |\n|---|---|---|---|\n");
    for (size_t i = 0; i < CONFIG_KEY_MAX; i++) {
        const struct config_key *k = &config_keys[i];
        (void)buf_printf(out, "| `%s` | `%s` | %s%s%s | ", k->name, k->env, k->text ? "`" : "",
                         k->text ? k->text : "", k->text ? "`" : "");
        cell(out, k->doc);
        (void)buf_puts(out, " |\n");
    }
}

static void policy_md(struct buf *out)
{
    AUTO(policy) struct policy *p = defaults();
    struct policy_row row;

    (void)buf_puts(out, "| setting | default | meaning |\n|---|---|---|\n");
    for (size_t i = 0; policy_explain(p, i, &row); i++) {
        const char *quote = row.value[0] != '\0' ? "`" : "";
        (void)buf_printf(out, "| `%s` | %s%s%s | ", row.key, quote, row.value, quote);
        cell(out, row.doc);
        (void)buf_puts(out, " |\n");
    }
}

/* Everything is a comment: the defaults are those of the program, also of its next version. */
static void config_yaml(struct buf *out)
{
    for (size_t i = 0; i < CONFIG_KEY_MAX; i++)
        if (i != CONFIG_PORT)
            (void)buf_printf(out, "\n# %s\n#%s:%s%s\n", config_keys[i].doc, config_keys[i].name,
                             config_keys[i].text != NULL ? " " : "",
                             config_keys[i].text != NULL ? config_keys[i].text : "");
}

static const struct {
    const char *name;
    void (*write)(struct buf *out);
} sections[] = {
    {"box-verbs", box_verbs},     {"boxd-options", boxd_options}, {"config-man", config_man},
    {"policy-man", policy_man},   {"config-md", config_md},       {"policy-md", policy_md},
    {"config-yaml", config_yaml},
};

int main(int argc, char **argv)
{
    AUTO_DONE(buf) struct buf out;

    buf_init(&out, 1U << 20);
    for (size_t i = 0; argc == 2 && i < ARRAY_SIZE(sections); i++) {
        if (!str_eq(argv[1], sections[i].name))
            continue;
        sections[i].write(&out);
        return fputs(buf_str(&out), stdout) < 0;
    }
    (void)fprintf(stderr, "usage: gen-ops-doc SECTION\n");
    return 2;
}
