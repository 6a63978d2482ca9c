/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Managed processes in a session on the fake backend, and readers of them. */

#include "core_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"
#include "session/process.h"
#include "session/process_reader.h"
#include "spec/model.h"
#include "spec/process.h"
#include "store/store.h"

#define SEC NSEC_PER_SEC

static const struct manager_options proc_options = {.max_sessions = 100,
                                                    .max_processes = 10,
                                                    .max_exited = 5,
                                                    .exited_ns = 300 * SEC,
                                                    .ttl_ns = 60 * SEC};

/* A process of the fake backend: `sh -c STEPS`. */
static inline struct process_spec *steps_spec(const char *id, const char *steps)
{
    struct process_spec *p = xnew(struct process_spec);
    model_init(&process_spec_model, p);
    free(p->process_id);
    p->process_id = xstrdup(id);
    p->command = xstrdup("sh");
    strv_add(&p->args, "-c");
    strv_add(&p->args, steps);
    return p;
}

/* What a callback has heard; each is told exactly once. */
struct told {
    int n;
    struct process *process;
    struct err err;
};

static inline void on_started(void *arg, struct process *p, const struct err *err)
{
    struct told *t = arg;
    t->n++;
    t->process = p;
    t->err = err != NULL ? *err : (struct err){0};
    assert_true((p == NULL) == (err != NULL));
}

static inline void on_stopped(void *arg, const struct err *err)
{
    struct told *t = arg;
    t->n++;
    t->err = err != NULL ? *err : (struct err){0};
}

static inline int start_spec(struct session *s, struct process_spec *spec, struct told *t,
                             struct err *err)
{
    *t = (struct told){0};
    int r = process_start(s, &spec, on_started, t, err);
    assert_true((r == 0) == (spec == NULL)); /* taken on success only */
    process_spec_free(spec);
    assert_int_equal(t->n, 0); /* never from inside the call */
    return r;
}

static inline void begin(struct session *s, const char *id, const char *steps, struct told *t)
{
    struct err err = {0};
    if (start_spec(s, steps_spec(id, steps), t, &err) != 0)
        fail_msg("%s", err.msg);
}

static inline struct process *running(struct fixture *f, struct session *s, const char *id,
                                      const char *steps)
{
    struct told t;
    begin(s, id, steps, &t);
    pump(f);
    assert_int_equal(t.n, 1);
    assert_non_null(t.process);
    return process_find(s, id);
}

static inline void end_it(struct session *s, const char *id, struct told *t)
{
    struct err err = {0};
    *t = (struct told){0};
    assert_int_equal(process_stop(s, id, on_stopped, t, &err), 0);
    assert_int_equal(t->n, 0);
}

static inline void expect_preview(struct process *p, const char *want)
{
    AUTO_DONE(buf) struct buf text;
    buf_init(&text, 32768);
    process_stderr_preview(p, &text);
    assert_string_equal(buf_str(&text), want);
}

/* A reader that takes what comes. */
struct reader {
    struct process_reader r;
    int active, ended, drained;
    bool greedy; /* reads and releases by itself */
    struct buf got;
};

static inline struct reader *reader_of(struct process_reader *r)
{
    return container_of(r, struct reader, r);
}

static inline void read_all(struct reader *r)
{
    char chunk[4096];
    ssize_t n;
    while ((n = process_read(r->r.process, r->r.at, chunk, sizeof(chunk))) > 0) {
        assert_int_equal(buf_append(&r->got, chunk, (size_t)n), 0);
        r->r.at += (uint64_t)n;
    }
    assert_true(n >= 0);
}

static inline bool at_eof(const struct reader *r)
{
    struct proc_range range = process_range(r->r.process);
    return range.eof && r->r.at >= range.end;
}

static inline void read_greedily(struct reader *r)
{
    if (r->greedy) {
        read_all(r);
        process_reader_release(&r->r, r->r.at);
    }
}

static inline void on_active(struct process_reader *reader)
{
    struct reader *r = reader_of(reader);
    r->active++;
    assert_int_equal(reader->state, READER_ACTIVE);
    reader->at = process_range(reader->process).begin;
    read_greedily(r);
}

static inline void on_more(struct process_reader *reader)
{
    struct reader *r = reader_of(reader);
    assert_int_equal(r->ended, 0);
    if (reader->state == READER_ACTIVE)
        read_greedily(r);
}

static inline void on_room(struct process_reader *reader)
{
    reader_of(reader)->drained++;
}

static inline void on_end(struct process_reader *reader)
{
    reader_of(reader)->ended++;
    assert_null(reader->process);
    assert_int_equal(reader->state, READER_STOPPED);
}

static const struct process_reader_events reader_events = {
    .active = on_active, .output = on_more, .drained = on_room, .ended = on_end};

static inline void attach(struct process *p, struct reader *r, bool greedy)
{
    struct err err = {0};
    *r = (struct reader){.greedy = greedy};
    buf_init(&r->got, 1U << 20);
    process_reader_start(&r->r, p, &reader_events);
    assert_int_equal(process_reader_claim(&r->r, &err), 0);
    assert_int_equal(r->active, 0);
    assert_int_equal(r->r.state, READER_WAITING);
}

static inline void leave(struct reader *r)
{
    process_reader_stop(&r->r);
    buf_done(&r->got);
}

/* A store in a directory of its own. */
struct place {
    char path[64];
    int fd;
    struct store *store;
};

static inline void place_open(struct place *p)
{
    struct err err = {0};
    if (store_open(p->fd, &p->store, &err) != 0)
        fail_msg("%s", err.msg);
}

static inline void place_start(struct place *p)
{
    (void)str_fmt(p->path, sizeof(p->path), "/tmp/box-test-core-XXXXXX");
    assert_non_null(mkdtemp(p->path));
    p->fd = open(p->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(p->fd >= 0);
    place_open(p);
}

static inline void place_stop(struct place *p)
{
    store_free(p->store);
    (void)close(p->fd);
    assert_int_equal(path_remove_tree_at(AT_FDCWD, p->path), 0);
}
