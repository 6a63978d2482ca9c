/* SPDX-License-Identifier: Apache-2.0 */

/* Completion for shells, from the tables of verbs and options. What comes from boxd (names of
 * sessions) is hostile: only plain names get through, and no shell ever expands them. */

#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "cli/args/box_args_internal.h"
#include "cli/io/app.h"
#include "cli/io/text.h"

#define SCRIPT_MAX (256U << 10)

/* Asks only a boxd that is there: `box ps` would start one. */
#define SESSION_NAMES                                                                              \
    "    [ -n \"$BOX_HOST\" ] || [ -S /run/box/boxd.sock ] ||\n"                                   \
    "        [ -S \"$XDG_RUNTIME_DIR/box/boxd.sock\" ] ||\n"                                       \
    "        [ -S \"$HOME/.local/state/box/boxd.sock\" ] || return 0\n"                            \
    "    box ps --json 2>/dev/null | tr '{,' '\\n\\n' |\n"                                         \
    "        sed -n 's/^ *\"session_id\": *\"\\([A-Za-z0-9_.-]*\\)\" *[]}]*$/\\1/p'\n"

static bool takes_sessions(const struct arg_verb *v)
{
    return v->max_names > 0 && str_eq(v->name_word, "SESSION");
}

static bool takes_file(const struct arg_option *o)
{
    return o->value != NULL && (str_eq(o->value, "FILE") || str_starts(o->value, "HOST:"));
}

static bool is_choice(const struct arg_option *o)
{
    return o->value != NULL && strchr(o->value, '|') != NULL && strpbrk(o->value, ":[") == NULL;
}

static int put_choice(struct buf *out, const struct arg_option *o)
{
    int r = 0;
    for (const char *c = o->value; r >= 0 && *c != '\0'; c++)
        r = buf_putc(out, *c == '|' ? ' ' : *c);
    return r;
}

static bool fits(const struct arg_option *o, enum verb verb)
{
    return (o->verbs & (1U << verb)) != 0;
}

/* Some verbs have two words, of which the first is this. */
#define GROUP "mcp"

static bool is_grouped(enum verb verb)
{
    return str_starts(arg_verbs[verb].name, GROUP " ");
}

/* Whether a list of first words has this one already. */
static bool is_repeated(enum verb verb)
{
    return is_grouped(verb) && verb > 0 && is_grouped(verb - 1);
}

static int first_word(enum verb verb)
{
    return (int)strcspn(arg_verbs[verb].name, " ");
}

/* The first words, or the second ones of the group. */
static int put_words(struct buf *out, bool of_group)
{
    const char *blank = "";
    int r = 0;

    for (int i = 0; i < VERB_MAX && r >= 0; i++) {
        const char *name = arg_verbs[i].name;
        if (of_group ? !is_grouped((enum verb)i) : is_repeated((enum verb)i))
            continue;
        if (of_group)
            r = buf_printf(out, "%s%s", blank, name + strlen(GROUP " "));
        else
            r = buf_printf(out, "%s%.*s", blank, first_word((enum verb)i), name);
        blank = " ";
    }
    return r;
}

static int put_verbs(struct buf *out)
{
    return put_words(out, false);
}

/* As a word of a shell. */
static int put_name(struct buf *out, enum verb verb)
{
    int r = 0;
    for (const char *c = arg_verbs[verb].name; r >= 0 && *c != '\0'; c++)
        r = buf_printf(out, "%s%c", *c == ' ' ? "\\" : "", *c);
    return r;
}

static int put_options(struct buf *out, enum verb verb)
{
    int r = 0;
    for (size_t i = 0; i < arg_n_options && r >= 0; i++)
        if (fits(&arg_options[i], verb))
            r = buf_printf(out, " --%s", arg_options[i].name);
    return r;
}

/* Bash. */

static const char bash_head[] =
    "# bash completion for box; made by `box completion bash`.\n\n"
    "_box_sessions() {\n" SESSION_NAMES "}\n\n"
    "# compgen -W would expand what boxd says.\n"
    "_box_names() {\n"
    "    local name\n"
    "    while IFS= read -r name; do\n"
    "        [[ $name == \"$cur\"* ]] && COMPREPLY+=(\"$name\")\n"
    "    done < <(_box_sessions)\n"
    "}\n\n"
    "_box() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb='' i\n"
    "    COMPREPLY=()\n"
    "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
    "        if [[ ${COMP_WORDS[i]} == -- ]]; then\n"
    "            if ((i + 1 == COMP_CWORD)); then\n"
    "                mapfile -t COMPREPLY < <(compgen -c -- \"$cur\")\n"
    "            else\n"
    "                mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
    "            fi\n"
    "            return\n"
    "        fi\n"
    "        [[ ${COMP_WORDS[i]} != -* ]] || continue\n"
    "        if [[ -z $verb ]]; then\n"
    "            verb=${COMP_WORDS[i]}\n"
    "        elif [[ $verb == " GROUP " ]]; then\n"
    "            verb+=\" ${COMP_WORDS[i]}\"\n"
    "        fi\n"
    "    done\n"
    "    case $verb:$prev in\n";

/* What may follow an option, or another word of the verb. */
static int bash_values(struct buf *out, enum verb verb)
{
    int r = 0;

    for (size_t i = 0; i < arg_n_options && r >= 0; i++) {
        const struct arg_option *o = &arg_options[i];
        if (!fits(o, verb) || o->value == NULL)
            continue;
        r = buf_puts(out, "    ");
        if (r >= 0)
            r = put_name(out, verb);
        if (r >= 0)
            r = buf_printf(out, ":--%s) ", o->name);
        if (r >= 0 && is_choice(o)) {
            r = buf_puts(out, "mapfile -t COMPREPLY < <(compgen -W '");
            if (r >= 0)
                r = put_choice(out, o);
            if (r >= 0)
                r = buf_puts(out, "' -- \"$cur\"); ");
        } else if (r >= 0 && takes_file(o)) {
            r = buf_puts(out, "mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); ");
        }
        if (r >= 0)
            r = buf_puts(out, "return ;;\n");
    }
    return r;
}

static int bash_words(struct buf *out, enum verb verb)
{
    const struct arg_verb *v = &arg_verbs[verb];
    int r = buf_puts(out, "    ");

    if (r >= 0)
        r = put_name(out, verb);
    if (r >= 0)
        r = buf_puts(out, ") words='");
    if (r >= 0 && verb == VERB_HELP)
        r = put_verbs(out);
    else if (r >= 0 && v->words != NULL)
        r = buf_puts(out, v->words);
    if (r >= 0)
        r = put_options(out, verb);
    if (r >= 0 && v->wants_command)
        r = buf_puts(out, " --");
    return r < 0 ? r
                 : buf_printf(out, "'%s ;;\n",
                              takes_sessions(v) ? "; [[ $cur == -* ]] || _box_names" : "");
}

static int write_bash(struct buf *out)
{
    int r = buf_puts(out, bash_head);

    for (int i = 0; i < VERB_MAX && r >= 0; i++)
        r = bash_values(out, (enum verb)i);
    if (r >= 0)
        r = buf_puts(out, "    esac\n    local words=''\n    case $verb in\n    '') words='");
    if (r >= 0)
        r = put_verbs(out);
    if (r >= 0)
        r = put_options(out, VERB_HELP);
    if (r >= 0)
        r = buf_puts(out, "' ;;\n    " GROUP ") words='");
    if (r >= 0)
        r = put_words(out, true);
    if (r >= 0)
        r = buf_puts(out, "' ;;\n");
    for (int i = 0; i < VERB_MAX && r >= 0; i++)
        r = bash_words(out, (enum verb)i);
    if (r >= 0)
        r = buf_puts(out, "    esac\n"
                          "    mapfile -t -O \"${#COMPREPLY[@]}\" COMPREPLY < <(compgen -W "
                          "\"$words\" -- \"$cur\")\n"
                          "}\n\ncomplete -F _box box\n");
    return r;
}

/* Zsh. */

/* Inside of '…'; `special` is what else would end the text. */
static int zsh_text(struct buf *out, const char *text, const char *special)
{
    int r = 0;
    for (; r >= 0 && *text != '\0'; text++) {
        if (*text == '\'')
            r = buf_puts(out, "'\\''");
        else
            r = buf_printf(out, "%s%c", strchr(special, *text) != NULL ? "\\" : "", *text);
    }
    return r;
}

static int zsh_option(struct buf *out, const struct arg_option *o)
{
    int r = buf_printf(out, "            '%s--%s%s[", o->many ? "*" : "", o->name,
                       o->value != NULL ? "=" : "");

    if (r >= 0)
        r = zsh_text(out, o->doc, ":[]\\");
    if (r >= 0)
        r = buf_putc(out, ']');
    if (r >= 0 && o->value != NULL) {
        r = buf_putc(out, ':');
        if (r >= 0)
            r = zsh_text(out, o->value, ":[]\\");
        if (r >= 0)
            r = buf_putc(out, ':');
        if (r >= 0 && takes_file(o))
            r = buf_puts(out, "_files");
        if (r >= 0 && is_choice(o)) {
            r = buf_putc(out, '(');
            if (r >= 0)
                r = put_choice(out, o);
            if (r >= 0)
                r = buf_putc(out, ')');
        }
    }
    return r < 0 ? r : buf_puts(out, "' \\\n");
}

static int zsh_verb(struct buf *out, enum verb verb)
{
    const struct arg_verb *v = &arg_verbs[verb];
    int r = buf_puts(out, "    ");

    if (r >= 0)
        r = put_name(out, verb);
    if (r >= 0)
        r = buf_puts(out, ")\n        _arguments \\\n");
    for (size_t i = 0; i < arg_n_options && r >= 0; i++)
        if (fits(&arg_options[i], verb))
            r = zsh_option(out, &arg_options[i]);
    if (r >= 0 && takes_sessions(v))
        r = buf_printf(out, "            '%s:session:_box_sessions' \\\n",
                       v->max_names > 1 ? "*" : "1");
    else if (r >= 0 && verb == VERB_HELP)
        r = buf_puts(out, "            '1:verb:_box_verbs' \\\n");
    else if (r >= 0 && v->words != NULL)
        r = buf_printf(out, "            '1:word:(%s)' \\\n", v->words);
    return r < 0 ? r
                 : buf_puts(out, v->wants_command ? "            '*::command:_normal' ;;\n"
                                                  : "            '*:file:_files' ;;\n");
}

static int write_zsh(struct buf *out)
{
    int r =
        buf_puts(out, "#compdef box\n# zsh completion for box; made by `box completion zsh`.\n\n"
                      "_box_session_names() {\n" SESSION_NAMES "}\n\n"
                      "_box_sessions() {\n"
                      "    local -a names\n"
                      "    names=(${(f)\"$(_box_session_names)\"})\n"
                      "    compadd -a names\n"
                      "}\n\n"
                      "_box_verbs() {\n    local -a verbs\n    verbs=(\n");

    for (int i = 0; i < VERB_MAX && r >= 0; i++) {
        if (is_repeated((enum verb)i))
            continue;
        r = buf_printf(out, "        '%.*s:", first_word((enum verb)i), arg_verbs[i].name);
        if (r >= 0)
            r = zsh_text(out, arg_verbs[i].doc, ":");
        if (r >= 0)
            r = buf_puts(out, "'\n");
    }
    if (r >= 0)
        r = buf_puts(out,
                     "    )\n    _describe verb verbs\n}\n\n"
                     "_box() {\n"
                     "    if ((CURRENT == 2)); then\n        _box_verbs\n        return\n    fi\n"
                     "    local verb=$words[2]\n"
                     "    shift words\n    ((CURRENT--))\n"
                     "    if [[ $verb == " GROUP " ]]; then\n"
                     "        if ((CURRENT == 2)); then\n            compadd ");
    if (r >= 0)
        r = put_words(out, true);
    if (r >= 0)
        r = buf_puts(out, "\n            return\n        fi\n"
                          "        verb+=\" $words[2]\"\n"
                          "        shift words\n        ((CURRENT--))\n    fi\n"
                          "    case $verb in\n");
    for (int i = 0; i < VERB_MAX && r >= 0; i++)
        r = zsh_verb(out, (enum verb)i);
    return r < 0 ? r
                 : buf_puts(out, "    esac\n}\n\n"
                                 "if [[ $funcstack[1] == _box ]]; then\n    _box \"$@\"\nelse\n"
                                 "    compdef _box box\nfi\n");
}

/* Fish. */

static int fish_text(struct buf *out, const char *text)
{
    int r = buf_putc(out, '\'');
    for (; r >= 0 && *text != '\0'; text++)
        r = buf_printf(out, "%s%c", strchr("'\\", *text) != NULL ? "\\" : "", *text);
    return r < 0 ? r : buf_putc(out, '\'');
}

/* Where the verb was given. */
static int fish_where(struct buf *out, enum verb verb)
{
    const char *name = arg_verbs[verb].name;

    if (!is_grouped(verb))
        return buf_printf(out, "complete -c box -n '__fish_seen_subcommand_from %s'", name);
    return buf_printf(out,
                      "complete -c box -n '__fish_seen_subcommand_from " GROUP
                      "; and __fish_seen_subcommand_from %s'",
                      name + strlen(GROUP " "));
}

static int fish_option(struct buf *out, const struct arg_option *o, enum verb verb)
{
    int r = fish_where(out, verb);

    if (r >= 0)
        r = buf_printf(out, " -l %s", o->name);

    if (r >= 0 && o->letter != '\0')
        r = buf_printf(out, " -s %c", o->letter);
    if (r >= 0 && o->value != NULL)
        r = buf_puts(out, takes_file(o) ? " -r -F" : " -x");
    if (r >= 0 && is_choice(o)) {
        r = buf_puts(out, " -a '");
        if (r >= 0)
            r = put_choice(out, o);
        if (r >= 0)
            r = buf_putc(out, '\'');
    }
    if (r >= 0)
        r = buf_puts(out, " -d ");
    if (r >= 0)
        r = fish_text(out, o->doc);
    return r < 0 ? r : buf_putc(out, '\n');
}

/* Its name; the first of a group stands for the group, too. */
static int fish_name(struct buf *out, enum verb verb)
{
    const struct arg_verb *v = &arg_verbs[verb];
    const char *second = is_grouped(verb) ? v->name + strlen(GROUP " ") : NULL;
    int r = 0;

    if (!is_repeated(verb))
        r = buf_printf(out, "complete -c box -n __fish_use_subcommand -a %.*s -d ",
                       first_word(verb), v->name);
    if (r >= 0 && !is_repeated(verb))
        r = fish_text(out, second == NULL ? v->doc : "Model Context Protocol");
    if (r >= 0 && second != NULL)
        r = buf_printf(
            out, "\ncomplete -c box -n '__fish_seen_subcommand_from " GROUP "' -a %s -d ", second);
    if (r >= 0 && second != NULL)
        r = fish_text(out, v->doc);
    return r < 0 ? r : buf_putc(out, '\n');
}

/* What may follow it. */
static int fish_words(struct buf *out, enum verb verb)
{
    const struct arg_verb *v = &arg_verbs[verb];

    if (!takes_sessions(v) && v->words == NULL && verb != VERB_HELP)
        return 0;
    int r = fish_where(out, verb);
    if (r >= 0)
        r = buf_puts(out, " -a '");
    if (r >= 0 && takes_sessions(v))
        r = buf_puts(out, "(__box_sessions)");
    else if (r >= 0 && verb == VERB_HELP)
        r = put_verbs(out);
    else if (r >= 0)
        r = buf_puts(out, v->words);
    return r < 0 ? r : buf_puts(out, "'\n");
}

static int fish_verb(struct buf *out, enum verb verb)
{
    int r = fish_name(out, verb);

    for (size_t i = 0; i < arg_n_options && r >= 0; i++)
        if (fits(&arg_options[i], verb))
            r = fish_option(out, &arg_options[i], verb);
    return r < 0 ? r : fish_words(out, verb);
}

static int write_fish(struct buf *out)
{
    int r = buf_puts(out, "# fish completion for box; made by `box completion fish`.\n\n"
                          "function __box_sessions\n"
                          "    sh -c '\n"
                          "    [ -n \"$BOX_HOST\" ] || [ -S /run/box/boxd.sock ] ||\n"
                          "        [ -S \"$XDG_RUNTIME_DIR/box/boxd.sock\" ] ||\n"
                          "        [ -S \"$HOME/.local/state/box/boxd.sock\" ] || exit 0\n"
                          "    box ps --json 2>/dev/null | tr \"{,\" \"\\n\\n\" |\n"
                          "        sed -n \"s/^ *\\\"session_id\\\": "
                          "*\\\"\\([A-Za-z0-9_.-]*\\)\\\" *[]}]*$/\\1/p\"\n"
                          "    '\n"
                          "end\n\n"
                          "complete -c box -f\n");

    for (int i = 0; i < VERB_MAX && r >= 0; i++)
        r = fish_verb(out, (enum verb)i);
    return r;
}

static const struct {
    const char *name;
    int (*write)(struct buf *out);
} shells[] = {{"bash", write_bash}, {"zsh", write_zsh}, {"fish", write_fish}};

int verb_completion(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(buf) struct buf out;

    buf_init(&out, SCRIPT_MAX);
    for (size_t i = 0; i < ARRAY_SIZE(shells); i++) {
        if (!str_eq(args->names[0], shells[i].name))
            continue;
        int r = shells[i].write(&out);
        return r < 0 ? err_sys(err, -r, "write the script") : text_print(&out, err);
    }
    return err_set(err, ERR_INVALID, "no completion for '%.40s'; there is one for bash, zsh, fish",
                   args->names[0]);
}
