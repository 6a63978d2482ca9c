/* SPDX-License-Identifier: Apache-2.0 */

/* Prints the completion of a shell, from the tables of verbs and options: gen-completion SHELL.
 * `ninja completion` writes the files of completion/ with it. What comes from boxd (names of
 * sessions) is hostile: only plain names get through, and no shell ever expands them. */

#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "cli/args/args.h"

/* Asks only a boxd that is there: `box ps` would start one. */
#define SESSION_NAMES                                                                              \
    "    [ -n \"$BOX_HOST\" ] || [ -S /run/box/boxd.sock ] ||\n"                                   \
    "        [ -S \"$XDG_RUNTIME_DIR/box/boxd.sock\" ] ||\n"                                       \
    "        [ -S \"$HOME/.local/state/box/boxd.sock\" ] || return 0\n"                            \
    "    box ps --json 2>/dev/null | tr '{,' '\\n\\n' |\n"                                         \
    "        sed -n 's/^ *\"session_id\": *\"\\([A-Za-z0-9_.-]*\\)\" *[]}]*$/\\1/p'\n"

static void put(const char *text)
{
    (void)fputs(text, stdout);
}

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

static void put_choice(const struct arg_option *o)
{
    for (const char *c = o->value; *c != '\0'; c++)
        (void)putchar(*c == '|' ? ' ' : *c);
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
static void put_words(bool of_group)
{
    const char *blank = "";
    for (int i = 0; i < VERB_MAX; i++) {
        const char *name = arg_verbs[i].name;
        if (of_group ? !is_grouped((enum verb)i) : is_repeated((enum verb)i))
            continue;
        if (of_group)
            (void)printf("%s%s", blank, name + strlen(GROUP " "));
        else
            (void)printf("%s%.*s", blank, first_word((enum verb)i), name);
        blank = " ";
        if (!of_group && arg_verbs[i].alias != NULL)
            (void)printf(" %s", arg_verbs[i].alias);
    }
}

static void put_verbs(void)
{
    put_words(false);
}

/* As a word of a shell. */
static void put_name(enum verb verb)
{
    for (const char *c = arg_verbs[verb].name; *c != '\0'; c++)
        (void)printf("%s%c", *c == ' ' ? "\\" : "", *c);
}

/* The same as a pattern of `case`. */
static void put_pattern(enum verb verb)
{
    put_name(verb);
    if (arg_verbs[verb].alias != NULL)
        (void)printf("|%s", arg_verbs[verb].alias);
}

static void put_options(enum verb verb)
{
    for (size_t i = 0; i < arg_n_options; i++)
        if (arg_fits(&arg_options[i], verb))
            (void)printf(" --%s", arg_options[i].name);
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
static void bash_values(enum verb verb)
{
    for (size_t i = 0; i < arg_n_options; i++) {
        const struct arg_option *o = &arg_options[i];
        if (!arg_fits(o, verb) || o->value == NULL)
            continue;
        put("    ");
        put_name(verb);
        (void)printf(":--%s) ", o->name);
        if (is_choice(o)) {
            put("mapfile -t COMPREPLY < <(compgen -W '");
            put_choice(o);
            put("' -- \"$cur\"); ");
        } else if (takes_file(o)) {
            put("mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); ");
        }
        put("return ;;\n");
    }
}

static void bash_words(enum verb verb)
{
    const struct arg_verb *v = &arg_verbs[verb];

    put("    ");
    put_pattern(verb);
    put(") words='");
    if (verb == VERB_HELP)
        put_verbs();
    else if (v->words != NULL)
        put(v->words);
    put_options(verb);
    if (v->wants_command)
        put(" --");
    (void)printf("'%s ;;\n", takes_sessions(v) ? "; [[ $cur == -* ]] || _box_names" : "");
}

static void write_bash(void)
{
    put(bash_head);
    for (int i = 0; i < VERB_MAX; i++)
        bash_values((enum verb)i);
    put("    esac\n    local words=''\n    case $verb in\n    '') words='");
    put_verbs();
    put_options(VERB_HELP);
    put("' ;;\n    " GROUP ") words='");
    put_words(true);
    put("' ;;\n");
    for (int i = 0; i < VERB_MAX; i++)
        bash_words((enum verb)i);
    put("    esac\n"
        "    mapfile -t -O \"${#COMPREPLY[@]}\" COMPREPLY < <(compgen -W "
        "\"$words\" -- \"$cur\")\n"
        "}\n\ncomplete -F _box box\n");
}

/* Zsh. */

/* Inside of '…'; `special` is what else would end the text. */
static void zsh_text(const char *text, const char *special)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            put("'\\''");
        else
            (void)printf("%s%c", strchr(special, *text) != NULL ? "\\" : "", *text);
    }
}

static void zsh_option(const struct arg_option *o)
{
    (void)printf("            '%s--%s%s[", o->many ? "*" : "", o->name,
                 o->value != NULL ? "=" : "");

    zsh_text(o->doc, ":[]\\");
    (void)putchar(']');
    if (o->value != NULL) {
        (void)putchar(':');
        zsh_text(o->value, ":[]\\");
        (void)putchar(':');
        if (takes_file(o))
            put("_files");
        if (is_choice(o)) {
            (void)putchar('(');
            put_choice(o);
            (void)putchar(')');
        }
    }
    put("' \\\n");
}

static void zsh_verb(enum verb verb)
{
    const struct arg_verb *v = &arg_verbs[verb];

    put("    ");
    put_pattern(verb);
    put(")\n        _arguments \\\n");
    for (size_t i = 0; i < arg_n_options; i++)
        if (arg_fits(&arg_options[i], verb))
            zsh_option(&arg_options[i]);
    if (takes_sessions(v))
        (void)printf("            '%s:session:_box_sessions' \\\n", v->max_names > 1 ? "*" : "1");
    else if (verb == VERB_HELP)
        put("            '1:verb:_box_verbs' \\\n");
    else if (v->words != NULL)
        (void)printf("            '1:word:(%s)' \\\n", v->words);
    put(v->wants_command ? "            '*::command:_normal' ;;\n"
                         : "            '*:file:_files' ;;\n");
}

static void write_zsh(void)
{
    put("#compdef box\n# zsh completion for box; made by `box completion zsh`.\n\n"
        "_box_session_names() {\n" SESSION_NAMES "}\n\n"
        "_box_sessions() {\n"
        "    local -a names\n"
        "    names=(${(f)\"$(_box_session_names)\"})\n"
        "    compadd -a names\n"
        "}\n\n"
        "_box_verbs() {\n    local -a verbs\n    verbs=(\n");

    for (int i = 0; i < VERB_MAX; i++) {
        if (is_repeated((enum verb)i))
            continue;
        (void)printf("        '%.*s:", first_word((enum verb)i), arg_verbs[i].name);
        zsh_text(arg_verbs[i].doc, ":");
        put("'\n");
    }
    put("    )\n    _describe verb verbs\n}\n\n"
        "_box() {\n"
        "    if ((CURRENT == 2)); then\n        _box_verbs\n        return\n    fi\n"
        "    local verb=$words[2]\n"
        "    shift words\n    ((CURRENT--))\n"
        "    if [[ $verb == " GROUP " ]]; then\n"
        "        if ((CURRENT == 2)); then\n            compadd ");
    put_words(true);
    put("\n            return\n        fi\n"
        "        verb+=\" $words[2]\"\n"
        "        shift words\n        ((CURRENT--))\n    fi\n"
        "    case $verb in\n");
    for (int i = 0; i < VERB_MAX; i++)
        zsh_verb((enum verb)i);
    put("    esac\n}\n\n"
        "if [[ $funcstack[1] == _box ]]; then\n    _box \"$@\"\nelse\n"
        "    compdef _box box\nfi\n");
}

/* Fish. */

static void fish_text(const char *text)
{
    (void)putchar('\'');
    for (; *text != '\0'; text++)
        (void)printf("%s%c", strchr("'\\", *text) != NULL ? "\\" : "", *text);
    (void)putchar('\'');
}

/* Where the verb was given. */
static void fish_where(enum verb verb)
{
    const char *name = arg_verbs[verb].name;

    if (!is_grouped(verb))
        (void)printf("complete -c box -n '__fish_seen_subcommand_from %s%s%s'", name,
                     arg_verbs[verb].alias != NULL ? " " : "",
                     arg_verbs[verb].alias != NULL ? arg_verbs[verb].alias : "");
    else
        (void)printf("complete -c box -n '__fish_seen_subcommand_from " GROUP
                     "; and __fish_seen_subcommand_from %s'",
                     name + strlen(GROUP " "));
}

static void fish_option(const struct arg_option *o, enum verb verb)
{
    fish_where(verb);
    (void)printf(" -l %s", o->name);
    if (o->letter != '\0')
        (void)printf(" -s %c", o->letter);
    if (o->value != NULL)
        put(takes_file(o) ? " -r -F" : " -x");
    if (is_choice(o)) {
        put(" -a '");
        put_choice(o);
        (void)putchar('\'');
    }
    put(" -d ");
    fish_text(o->doc);
    (void)putchar('\n');
}

/* Its name; the first of a group stands for the group, too. */
static void fish_name(enum verb verb)
{
    const struct arg_verb *v = &arg_verbs[verb];
    const char *second = is_grouped(verb) ? v->name + strlen(GROUP " ") : NULL;
    if (!is_repeated(verb)) {
        (void)printf("complete -c box -n __fish_use_subcommand -a %.*s -d ", first_word(verb),
                     v->name);
        fish_text(second == NULL ? v->doc : "Model Context Protocol");
    }
    if (second != NULL) {
        (void)printf("\ncomplete -c box -n '__fish_seen_subcommand_from " GROUP "' -a %s -d ",
                     second);
        fish_text(v->doc);
    }
    (void)putchar('\n');
}

/* What may follow it. */
static void fish_words(enum verb verb)
{
    const struct arg_verb *v = &arg_verbs[verb];

    if (!takes_sessions(v) && v->words == NULL && verb != VERB_HELP)
        return;
    fish_where(verb);
    put(" -a '");
    if (takes_sessions(v))
        put("(__box_sessions)");
    else if (verb == VERB_HELP)
        put_verbs();
    else
        put(v->words);
    put("'\n");
}

static void fish_verb(enum verb verb)
{
    fish_name(verb);
    for (size_t i = 0; i < arg_n_options; i++)
        if (arg_fits(&arg_options[i], verb))
            fish_option(&arg_options[i], verb);
    fish_words(verb);
}

static void write_fish(void)
{
    put("# fish completion for box; made by `box completion fish`.\n\n"
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

    for (int i = 0; i < VERB_MAX; i++)
        fish_verb((enum verb)i);
}

static const struct {
    const char *name;
    void (*write)(void);
} shells[] = {{"bash", write_bash}, {"zsh", write_zsh}, {"fish", write_fish}};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc == 2 && i < ARRAY_SIZE(shells); i++)
        if (str_eq(argv[1], shells[i].name)) {
            shells[i].write();
            return fflush(stdout) == 0 ? 0 : 1;
        }
    (void)fprintf(stderr, "usage: gen-completion bash|zsh|fish\n");
    return 2;
}
