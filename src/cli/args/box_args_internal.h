/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The rows of the tables of verbs and options, and the functions that set a value. */

#include "cli/args/args.h"

#define FOR(verb) (1u << VERB_##verb)

struct arg_option;
typedef int arg_set_fn(const struct arg_option *o, const char *value, struct args *a,
                       struct err *err);

struct arg_option {
    const char *name;  /* without the dashes */
    const char *value; /* how help calls the value; NULL: a flag */
    arg_set_fn *set;
    size_t where; /* enum spec_field, or the offset of a bool or text in struct args */
    const char *doc;
    unsigned verbs; /* set of FOR() */
    char letter;    /* 0: none */
    bool many;      /* may be given several times */
};

struct arg_verb {
    const char *name;
    const char *synopsis; /* what follows the options */
    const char *doc;
    bool wants_command;    /* "-- CMD [ARG...]" */
    bool makes_session;    /* takes the options of one, without a command */
    unsigned min_names;    /* unless --all */
    unsigned max_names;    /* 0: none are taken */
    const char *name_word; /* what a name is, for messages */
    bool any_word;         /* names need not be those of sessions */
    const char *words;     /* what the first name can be, for shells; NULL: anything */
    bool maybe_command;    /* with wants_command: something else may stand for it */
};

extern const struct arg_verb arg_verbs[VERB_MAX];
extern const struct arg_option arg_options[];
extern const size_t arg_n_options;

/* help.c: what manuals and help say alike. */
int args_put_default(const struct arg_option *o, struct buf *out);
int args_put_synopsis(enum verb verb, struct buf *out);

/* Setters, of values.c. */
int arg_set_flag(const struct arg_option *o, const char *value, struct args *a, struct err *err);
int arg_set_text(const struct arg_option *o, const char *value, struct args *a, struct err *err);
int arg_set_field(const struct arg_option *o, const char *value, struct args *a, struct err *err);
int arg_set_session(const struct arg_option *o, const char *value, struct args *a, struct err *err);
int arg_set_env(const struct arg_option *o, const char *value, struct args *a, struct err *err);
int arg_set_host_path(const struct arg_option *o, const char *value, struct args *a,
                      struct err *err);
/* Into a vector of args; the argument itself is overwritten where it holds a value of a variable,
 * so that no list of processes shows it. */
int arg_add_text(const struct arg_option *o, const char *value, struct args *a, struct err *err);
int arg_add_secret(const struct arg_option *o, const char *value, struct args *a, struct err *err);
int arg_set_mount(const struct arg_option *o, const char *value, struct args *a, struct err *err);
