/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The service that all fronts share, on the fake backend, with its log in a directory of its own.
 */

#include "core_fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/path.h"
#include "command/command.h"
#include "command/policy_service.h"
#include "policy/audit/audit.h"
#include "policy/error_ring.h"
#include "policy/outputs.h"
#include "policy/policy.h"
#include "policy_fixture.h"

/* The service of the seeds, on the fake backend. */
struct stage {
    struct fixture f;
    struct policy *policy;
    struct error_ring *errors;
    struct outputs *outputs;
    struct audit *audit;
    struct policy_service service;
    char dir[64];
    int dir_fd;
    /* What came of the last call. */
    struct command *command;
    int n;
    bool ok;
    struct err err;
    char json[65536];
    char id[2][OUTPUT_ID_SIZE];
};

static inline void stage_start(struct stage *s, const char *config)
{
    const struct outputs_options keep = {.dir_fd = -1, .max_bytes = 1 << 20, .each_bytes = 1 << 20};
    memset(s, 0, sizeof(*s));
    fixture_start(&s->f, NULL, NULL);
    (void)snprintf(s->dir, sizeof(s->dir), "/tmp/box-exec-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    s->dir_fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    AUTO_FREE char *text = NULL;
    const char *at = strstr(config, "%D");
    if (at != NULL) {
        text = xasprintf("%.*s%s%s", (int)(at - config), config, s->dir, at + 2);
        config = text;
    }
    s->policy = policy_good(config);
    s->errors = error_ring_new();
    assert_int_equal(outputs_new(&keep, &s->outputs, NULL), 0);
    assert_int_equal(mkdirat(s->dir_fd, "log", 0700), 0);
    AUTO_CLOSE int log_fd = openat(s->dir_fd, "log", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const struct audit_options log = {.dir_fd = log_fd, .clock = &s->f.clock.clock};
    assert_int_equal(audit_open(&log, &s->audit, NULL), 0);
    s->service = (struct policy_service){.policy = s->policy,
                                         .manager = s->f.m,
                                         .errors = s->errors,
                                         .audit = s->audit,
                                         .outputs = s->outputs,
                                         .session_ttl_sec = 300};
}

static inline void stage_stop(struct stage *s)
{
    command_cancel(s->command);
    pump(&s->f);
    fixture_stop(&s->f);
    policy_free(s->policy);
    error_ring_free(s->errors);
    outputs_free(s->outputs);
    audit_free(s->audit);
    (void)close(s->dir_fd);
    assert_int_equal(path_remove_tree_at(AT_FDCWD, s->dir), 0);
}

static inline void fill(struct stage *s, const char *name, off_t size)
{
    AUTO_CLOSE int fd = openat(s->dir_fd, name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(fd, size), 0);
}

static inline void expect_log(struct stage *s, const char *part)
{
    AUTO_DONE(buf) struct buf text;
    AUTO_CLOSE int fd = openat(s->dir_fd, "log/audit.log", O_RDONLY | O_CLOEXEC);
    buf_init(&text, 1 << 20);
    assert_int_equal(fd_read_to_buf(fd, &text), 0);
    if (strstr(buf_str(&text), part) == NULL)
        fail_msg("'%s' is not in\n%s", part, buf_str(&text));
}
