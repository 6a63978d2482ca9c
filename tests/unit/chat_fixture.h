/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Chat sandboxes on the fake backend, on a clock that the test moves, with directories and a store
 * of their own. */

#include "core_process.h"

#include <sys/stat.h>

/* The tests move the clock and clean up themselves. */
#include "agent/chat/chat.c"
#include "policy/chat_config.h"

#define CHAT_A "123e4567-e89b-12d3-a456-426614174000"
#define CHAT_A_OTHERWISE "123E4567E89B12D3A456426614174000"
#define CHAT_B "00000000-0000-0000-0000-00000000000b"
#define CHAT_C "00000000-0000-0000-0000-00000000000c"
#define TTL (300 * SEC)

struct span_count {
    int begun, ended, open_now;
    char last[64];
};

static inline void on_span_begin(void *arg, struct chat_span *span)
{
    struct span_count *n = arg;
    assert_string_equal(span->backend, "fake");
    assert_int_equal(strlen(span->chat_id), CHAT_UUID_SIZE - 1);
    span->user = n;
    n->begun++;
    n->open_now++;
}

static inline void on_span_end(void *arg, struct chat_span *span)
{
    struct span_count *n = arg;
    assert_ptr_equal(span->user, n);
    assert_true(span->end_ns >= span->begin_ns);
    assert_true((span->failure != NULL) == (span->result == CHAT_FAILED));
    n->ended++;
    n->open_now--;
    (void)str_copy(n->last, sizeof(n->last), span->name);
}

struct chats {
    struct fixture f;
    struct place place; /* chats, dependencies and lambda-tools are in there, and the store */
    struct manager_options options;
    struct chat_config config;
    struct chat_observer observer;
    struct span_count spans;
    int root_fd;
    struct chat *chat;
};

static inline char *below(const struct chats *w, const char *name)
{
    return xasprintf("%s/%s", w->place.path, name);
}

static inline bool is_dir(const struct chats *w, const char *name)
{
    struct stat st;
    return fstatat(w->place.fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static inline unsigned mode_of(const struct chats *w, const char *name)
{
    struct stat st;
    assert_int_equal(fstatat(w->place.fd, name, &st, AT_SYMLINK_NOFOLLOW), 0);
    return st.st_mode & 0777;
}

static inline void chats_open(struct chats *w)
{
    struct err err = {0};
    const struct chat_options options = {
        .config = &w->config, .chats_fd = w->root_fd, .observer = &w->observer};
    assert_int_equal(chat_new(w->f.m, &options, &w->chat, &err), 0);
}

static inline void chats_start(struct chats *w, const struct fake_options *fake)
{
    *w = (struct chats){0};
    place_start(&w->place);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(mkdirat(w->place.fd,
                                 (const char *const[]){"chats", "dependencies", "lambda-tools"}[i],
                                 0755),
                         0);
    w->root_fd = openat(w->place.fd, "chats", O_PATH | O_DIRECTORY | O_CLOEXEC);
    assert_true(w->root_fd >= 0);
    w->config = (struct chat_config){.image = xstrdup("sandbox:latest"),
                                     .ttl_seconds = 300,
                                     .cleanup_interval_seconds = 60,
                                     .chats_root = below(w, "chats"),
                                     .dependencies_host_path = below(w, "dependencies"),
                                     .lambda_tools_host_path = below(w, "lambda-tools"),
                                     .chat_mount_path = xstrdup("/workspace/chat"),
                                     .dependencies_mount_path = xstrdup("/workspace/dependencies"),
                                     .lambda_tools_mount_path = xstrdup("/workspace/lambda-tools")};
    w->observer = (struct chat_observer){on_span_begin, on_span_end, &w->spans};
    w->options = proc_options;
    w->options.store = w->place.store;
    fixture_start(&w->f, fake, &w->options);
    chats_open(w);
}

static inline void chats_stop(struct chats *w)
{
    chat_free(w->chat);
    fixture_stop(&w->f);
    chat_config_done(&w->config);
    (void)close(w->root_fd);
    place_stop(&w->place);
}

/* What a callback has heard; each is told exactly once. */
struct answer {
    int n;
    struct chat_session session;
    enum chat_result result;
    struct chat_failure failure;
};

static inline void on_chat_created(void *arg, const struct chat_session *s, enum chat_result result,
                                   const struct chat_failure *failure)
{
    struct answer *a = arg;
    a->n++;
    a->result = result;
    assert_true((s == NULL) == (failure != NULL));
    if (s != NULL)
        a->session = *s;
    else
        a->failure = *failure;
}

static inline void on_chat_deleted(void *arg, enum chat_result result,
                                   const struct chat_failure *failure)
{
    struct answer *a = arg;
    a->n++;
    a->result = result;
    if (failure != NULL)
        a->failure = *failure;
}

static inline void ask(struct chats *w, const char *chat_id, struct answer *a)
{
    struct err err = {0};
    *a = (struct answer){0};
    if (chat_create(w->chat, chat_id, on_chat_created, a, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(a->n, 0); /* from the loop */
}

static inline void ask_delete(struct chats *w, const char *chat_id, struct answer *a)
{
    struct err err = {0};
    *a = (struct answer){0};
    if (chat_delete(w->chat, chat_id, on_chat_deleted, a, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(a->n, 0);
}

static inline void expect(const struct answer *a, enum chat_result result)
{
    assert_int_equal(a->n, 1);
    if (a->result != result)
        fail_msg("%s: %s", chat_result_name(a->result), a->failure.err.msg);
}

/* The answer, at once. */
static inline struct answer create(struct chats *w, const char *chat_id, enum chat_result result)
{
    struct answer a;
    ask(w, chat_id, &a);
    pump(&w->f);
    expect(&a, result);
    return a;
}

static inline struct answer end_chat(struct chats *w, const char *chat_id, enum chat_result result)
{
    struct answer a;
    ask_delete(w, chat_id, &a);
    pump(&w->f);
    expect(&a, result);
    return a;
}

static inline uint64_t metric(const struct chats *w, const char *name, const char *result)
{
    struct chat_metric m;
    for (size_t i = 0; chat_metric(w->chat, i, &m); i++)
        if (str_eq(m.name, name) && str_eq(m.result, result))
            return m.value;
    fail_msg("no metric %s", name);
    return 0;
}
