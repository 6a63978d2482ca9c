/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A connected socket on the loop: what servers, clients and WebSockets have in common. Reads go
 * through one scratch buffer shared by all streams; a stream owns memory only while bytes wait to
 * be written. It never calls back from inside a call of its owner: failures of a write are told
 * later, through `kick`. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/buf.h"
#include "loop/loop.h"

struct stream;

/* Large enough for a frame with 64 KiB of payload and its head in one read. */
#define STREAM_SCRATCH (128u * 1024)

/* What a hangup of the peer means while we are not reading. */
enum stream_hangup {
    STREAM_HANGUP_FAIL, /* nothing, until the connection is lost for good: an error */
    STREAM_HANGUP_EOF,  /* eof(), as soon as the peer will send no more */
    STREAM_HANGUP_KEEP, /* nothing at all: what it sent before is read later */
};

struct stream_ops {
    void (*data)(struct stream *s, char *data, size_t len); /* in the scratch buffer; may change */
    void (*eof)(struct stream *s);   /* end of input, or the peer is gone while not reading */
    void (*sent)(struct stream *s);  /* queued bytes left; look at stream_queued() */
    void (*timer)(struct stream *s); /* what stream_arm() asked for */
    void (*kick)(struct stream *s);  /* what stream_kick() asked for, or s->error is set */
};

struct stream {
    struct loop *loop; /* borrowed */
    const struct stream_ops *ops;
    struct loop_io io;
    struct loop_timer timer;
    struct loop_defer defer;
    struct buf out; /* queued bytes, from out_pos on */
    size_t out_pos;
    size_t read_max;   /* bytes per read; 0: not reading */
    uint64_t sent;     /* bytes the kernel took */
    uint64_t last_out; /* when it last took some */
    int fd;            /* owned; -1 when closed */
    int error;         /* positive errno of a failed read or write; the stream is dead then */
    bool no_write;     /* `error` came from a write; what the peer sent may still be read */
    bool rest_read;    /* stream_read_rest() was used */
    uint8_t hangup;    /* enum stream_hangup, while not reading */
    bool hung_up;      /* the peer hung up while reading was paused; the watcher is stopped */
};

/* Takes fd, which must be non-blocking. `max_queue` bounds the queued bytes. */
int stream_init(struct stream *s, struct loop *loop, int fd, const struct stream_ops *ops,
                size_t max_queue);
void stream_done(struct stream *s);   /* closes; safe to repeat */
int stream_take_fd(struct stream *s); /* stops and gives the descriptor away; queue is dropped */

/* How much to read at a time. */
void stream_read(struct stream *s, size_t max);
void stream_pause(struct stream *s, enum stream_hangup hangup);
/* After a failed write: forgets the error and goes on reading, once. False when there is nothing to
 * go on with. */
bool stream_read_rest(struct stream *s);

/* Writes what the kernel takes now and queues the rest: all or nothing. 0, -ENOBUFS when it would
 * exceed max_queue, -EPIPE when the stream is dead. At most 4 pieces. */
int stream_writev(struct stream *s, const struct iovec *iov, size_t n);
int stream_write(struct stream *s, const void *data, size_t len);
/* Room for `len` bytes at the end of the queue, to be filled in place; NULL when it would exceed
 * max_queue. stream_flush() then tries to write. */
char *stream_reserve(struct stream *s, size_t len);
int stream_flush(struct stream *s);
size_t stream_queued(const struct stream *s);

/* Has `timer` called at that time or earlier: only an earlier time than the armed one costs
 * anything. UINT64_MAX means never. */
void stream_arm(struct stream *s, uint64_t due_ns);
void stream_kick(struct stream *s);

/* Drop the connection later rather than now: no more bytes out, input is thrown away by the owner
 * until its end. A plain close with unread input would reset the connection and could destroy
 * the answer on its way. */
void stream_shutdown(struct stream *s);
