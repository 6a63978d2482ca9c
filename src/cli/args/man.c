/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the verbs as mdoc(7), from the tables that parse them. The manual page man/box.1 is made
 * with this. */

#include <string.h>

#include "base/buf.h"
#include "base/str.h"
#include "cli/args/box_args_internal.h"

/* Text that does not begin with a blank. */
int man_text(struct buf *out, const char *text)
{
    int r = *text == '.' || *text == '\'' ? buf_puts(out, "\\&") : 0;

    for (; r >= 0 && *text != '\0'; text++) {
        if (*text == '\\')
            r = buf_puts(out, "\\e");
        else if (*text == ' ' && text[-1] == '.')
            r = buf_putc(out, '\n'); /* each sentence has a line */
        else
            r = buf_putc(out, *text);
    }
    return r;
}

/* What stands for a value is one word to mdoc, whatever is in it. */
static int put_value(struct buf *out, const char *value)
{
    int r = buf_puts(out, " Ar ");
    return r < 0 ? r : man_text(out, value);
}

static int put_option(const struct arg_option *o, struct buf *out)
{
    AUTO_DONE(buf) struct buf more;
    int r = buf_puts(out, ".It ");

    if (r >= 0 && o->letter != '\0')
        r = buf_printf(out, "Fl %c , ", o->letter);
    if (r >= 0)
        r = buf_printf(out, "Fl -%s", o->name);
    if (r >= 0 && o->value != NULL)
        r = put_value(out, o->value);
    if (r >= 0)
        r = buf_putc(out, '\n');
    if (r >= 0)
        r = man_text(out, o->doc);
    buf_init(&more, 256);
    if (r >= 0)
        r = args_put_default(o, &more);
    if (r >= 0 && more.len > 0)
        r = buf_printf(out, "\n%s", buf_str(&more) + 1); /* without its blank */
    if (r >= 0 && o->many)
        r = buf_puts(out, "\nMay be repeated.");
    return r < 0 ? r : buf_putc(out, '\n');
}

static int put_verb(enum verb verb, struct buf *out)
{
    const struct arg_verb *v = &arg_verbs[verb];
    int r = buf_printf(out, ".Ss box %s", v->name);

    if (r >= 0)
        r = args_put_synopsis(verb, out);
    if (r >= 0)
        r = buf_putc(out, '\n');
    if (r >= 0)
        r = man_text(out, v->doc);
    if (r >= 0)
        r = buf_puts(out, "\n.Bl -tag -width Ds\n");
    for (size_t i = 0; i < arg_n_options && r >= 0; i++)
        if ((arg_options[i].verbs & (1U << verb)) != 0)
            r = put_option(&arg_options[i], out);
    return r < 0 ? r : buf_puts(out, ".El\n");
}

int args_man(struct buf *out)
{
    int r = 0;

    for (int i = 0; i < VERB_MAX && r >= 0; i++)
        r = put_verb((enum verb)i, out);
    return r;
}
