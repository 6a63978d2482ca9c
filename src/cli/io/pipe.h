/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Our own standard input and output on the loop. They are shared with other programs (the shell
 * above all), so the descriptors given to us are never switched to non-blocking. */

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "loop/loop.h"

struct sink;
struct intake;

/* The queue became empty, or writing failed: look at s->error. */
typedef void sink_fn(struct sink *s);

enum sink_kind {
    SINK_FILE,    /* never blocks for long: written at once */
    SINK_OWN,     /* a description of our own, which does not block */
    SINK_SOCKET,  /* each send does not block */
    SINK_BLOCKING /* neither: small pieces, when the kernel says there is room */
};

struct sink {
    struct loop *loop; /* borrowed */
    sink_fn *changed;
    struct loop_io io;
    struct buf queue;
    size_t pos; /* queue.data[pos..len) is still to be written */
    int fd;     /* what is written to */
    int own_fd; /* owned; -1: none */
    int error;  /* positive errno; nothing is written any more */
    enum sink_kind kind;
};

/* `max_queue` bounds what waits; sink_write() beyond it is an error. */
void sink_init(struct sink *s, struct loop *loop, int fd, size_t max_queue, sink_fn *changed);
void sink_done(struct sink *s);
/* Writes what goes now and queues the rest. 0, or a negative errno, which sticks. */
int sink_write(struct sink *s, const char *data, size_t len);
bool sink_busy(const struct sink *s); /* bytes wait: time to hold the producer back */

/* `len` bytes, at most INTAKE_CHUNK; 0: the end, and the last call. */
#define INTAKE_CHUNK 32768
typedef void intake_fn(struct intake *s, const char *data, size_t len);

struct intake {
    struct loop *loop; /* borrowed; NULL when stopped */
    intake_fn *got;
    struct loop_io io;
    struct loop_defer defer; /* for what cannot be waited for, such as a file */
    int fd;                  /* borrowed */
    bool paused;
    bool waits; /* the loop can wait for it */
};

int intake_start(struct intake *s, struct loop *loop, int fd, intake_fn *got);
void intake_pause(struct intake *s, bool paused);
void intake_stop(struct intake *s); /* fine on a zeroed or stopped one */
