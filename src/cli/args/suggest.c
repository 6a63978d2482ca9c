/* SPDX-License-Identifier: Apache-2.0 */

/* What to say of a verb or an option that there is none of: the word that was probably meant, or
 * what Box has in place of a word of Docker. */

#include "cli/args/args_internal.h"

#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

#define WORD_MAX 32

/* Words of Docker that Box has no use for, each with what to do. */
struct docker_word {
    const char *name;
    const char *say;
};

/* clang-format off */
static const struct docker_word docker_verbs[] = {
    {"pull", "Box has no images of its own; fetch one with 'docker pull' or 'podman pull', and run it with 'box run --image IMAGE'"},
    {"push", "Box has no images of its own; use 'docker push' or 'podman push'"},
    {"build", "Box builds no images; build with 'docker build' or 'podman build', and run with 'box run --image IMAGE'"},
    {"images", "Box has no images of its own; 'docker images' or 'podman images' lists those that 'box run --image' can use"},
    {"image", "Box has no images of its own; manage them with Docker or Podman, and run one with 'box run --image IMAGE'"},
    {"commit", "Box makes no images; a session keeps its files under its name: 'box run --name NAME CMD'"},
    {"create", "there is no session without a command; make one with 'box run --name NAME true'"},
    {"container", "leave the word out: 'box ps', 'box rm', 'box inspect'"},
    {"network", "there are no networks to manage; 'box run --network on|off' decides for one session"},
    {"volume", "there are no volumes to manage; show a directory of the host with 'box run -v HOST:BOX', or keep files in a named session"},
    {"compose", "there is none; name each session: 'box run --name NAME CMD'"},
    {"login", "Box talks to no registry; use 'docker login' or 'podman login'"},
    {"logout", "Box talks to no registry; use 'docker logout' or 'podman logout'"},
    {"info", "'box doctor' tells what this host can enforce"},
    {"version", "'box --version' prints it"},
    {"system", "'box doctor' tells what this host can enforce, 'box ps' what there is"},
    {"prune", "sessions without a name leave nothing behind; remove others with 'box rm'"},
    {"export", "copy the files with 'box cp -r SESSION:/workspace DIR'"},
};

static const struct docker_word docker_options[] = {
    {"--privileged", "no command in a box has privileges"},
    {"--cap-add", "no command in a box has capabilities"},
    {"--cap-drop", "no command in a box has capabilities: leave it out"},
    {"--device", "a box has no devices of the host"},
    {"--add-host", "'--allow-host 127.0.0.1:PORT' lets the session reach that service of the host, at its own 127.0.0.1:PORT"},
    {"--net", "write --network on or --network off"},
    {"--init", "every box has an init: leave it out"},
};

static const struct docker_word update_options[] = {
    {"--quota-mb", "the disk of a session has its size from the start; make another session, and copy the files there"},
    {"--quota", "the disk of a session has its size from the start; make another session, and copy the files there"},
    {"--timeout", "a time limit is one command's; give it to 'box run' or 'box exec'"},
    {"--memory-swap", "sessions have no swap: leave it out"},
};
/* clang-format on */

static const char *docker_says(const struct docker_word *words, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (str_eq(words[i].name, name))
            return words[i].say;
    return NULL;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Letters to add, drop, change, or swap with their neighbour. More than the words can hold where
 * one of them is too long. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t rows[3][WORD_MAX + 1];
    size_t n = strlen(a), m = strlen(b);

    if (n > WORD_MAX || m > WORD_MAX)
        return n + m;
    for (size_t j = 0; j <= m; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *row = rows[i % 3], *before = rows[(i + 2) % 3], *earlier = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            row[j] =
                least(before[j - 1] + (a[i - 1] != b[j - 1]), 1 + least(before[j], row[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], earlier[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

/* The nearest word so far. */
struct guess {
    const char *typed; /* borrowed */
    const char *word;  /* borrowed; NULL: none is near */
    size_t distance;
};

static void guess_init(struct guess *g, const char *typed)
{
    size_t len = strlen(typed);

    *g = (struct guess){.typed = typed, .distance = len < 3 ? 1 : len < 5 ? 2 : 3};
}

/* A word that goes on where the typed one ends is as near as one with a letter wrong. */
static void guess_try(struct guess *g, const char *word)
{
    size_t d = edit_distance(g->typed, word);

    if (strlen(g->typed) > 2 && str_starts(word, g->typed))
        d = 1;
    if (d < g->distance) {
        g->distance = d;
        g->word = word;
    }
}

/* "mcp": the words that can follow it. False where no verb of two words begins with that. */
static bool put_group(const char *first, struct buf *out)
{
    size_t len = strcspn(first, " ");

    for (size_t i = 0; i < VERB_MAX; i++) {
        const char *name = arg_verbs[i].name;
        if (strncmp(name, first, len) == 0 && name[len] == ' ')
            (void)buf_printf(out, "%s%s", out->len > 0 ? ", " : "", name + len + 1);
    }
    return out->len > 0;
}

int args_unknown_verb(const char *name, struct err *err)
{
    const char *say = docker_says(docker_verbs, ARRAY_SIZE(docker_verbs), name);
    AUTO_DONE(buf) struct buf group = BUF_INIT(256);
    struct guess g;

    if (say != NULL)
        return err_set(err, ERR_INVALID, "there is no 'box %s': %s", name, say);
    if (put_group(name, &group) && strchr(name, ' ') == NULL)
        return err_set(err, ERR_INVALID, "'box %s' wants one of: %s; see 'box help %s %.*s'", name,
                       buf_str(&group), name, (int)strcspn(buf_str(&group), ","), buf_str(&group));
    guess_init(&g, name);
    for (size_t i = 0; i < VERB_MAX; i++) {
        guess_try(&g, arg_verbs[i].name);
        if (arg_verbs[i].alias != NULL)
            guess_try(&g, arg_verbs[i].alias);
    }
    if (g.word != NULL)
        return err_set(err, ERR_INVALID, "unknown verb '%s'; did you mean 'box %s'?", name, g.word);
    if (group.len > 0)
        return err_set(err, ERR_INVALID, "unknown verb '%s'; 'box %.*s' has: %s", name,
                       (int)strcspn(name, " "), name, buf_str(&group));
    return err_set(err, ERR_INVALID, "unknown verb '%s', see 'box --help'", name);
}

int args_unknown_option(enum verb verb, const char *option, struct err *err)
{
    const char *name = arg_verbs[verb].name;
    const char *say = NULL;
    struct guess g = {.distance = 0};

    if (arg_verbs[verb].wants_command)
        say = docker_says(docker_options, ARRAY_SIZE(docker_options), option);
    if (verb == VERB_UPDATE)
        say = docker_says(update_options, ARRAY_SIZE(update_options), option);
    if (say != NULL)
        return err_set(err, ERR_INVALID, "there is no %s: %s", option, say);
    if (str_starts(option, "--"))
        guess_init(&g, option + 2);
    for (size_t i = 0; i < arg_n_options && g.typed != NULL; i++)
        if (arg_fits(&arg_options[i], verb))
            guess_try(&g, arg_options[i].name);
    if (verb == VERB_HELP)
        name = NULL;
    if (g.word != NULL)
        return err_set(err, ERR_INVALID, "unknown option '%s'%s%s; did you mean '--%s'?", option,
                       name != NULL ? " of " : "", name != NULL ? name : "", g.word);
    if (name == NULL)
        return err_set(err, ERR_INVALID, "unknown option '%s', see 'box --help'", option);
    return err_set(err, ERR_INVALID, "unknown option '%s' of '%s', see 'box help %s'", option, name,
                   name);
}
