/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The output of a managed process, in memory that PID 1 writes and boxd reads, addressed by
 * absolute byte offsets. stdout: nothing is overwritten before it was released, a full ring holds
 * the writer back. stderr: the last bytes, never full. A log (struct inside_log) takes the place of
 * stdout and has both streams: its last records, never full.
 *
 * What was released stands in the same memory, so that it costs no call and a boxd that is killed
 * has said it or not. Likewise how far boxd has looked: the writer tells it of more only when it
 * had seen everything, and it looks again after it has said so; each side writes, then reads what
 * the other wrote, and one of them notices.
 *
 * The memory is a memfd that is sealed against resizing, so that reading it cannot fault. It
 * outlives every boxd. Both sides are here; no allocation. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define RING_OUT_SIZE (256U << 10) /* powers of two */
#define RING_ERR_SIZE (16U << 10)
#define RING_HEAD_SIZE 4096U
#define RING_SIZE (RING_HEAD_SIZE + RING_OUT_SIZE + RING_ERR_SIZE)

/* At the start of the memory; stdout and stderr follow. The writer keeps its own copies and never
 * reads these. */
struct ring_head {
    uint64_t out_end;   /* behind the last byte of stdout */
    uint64_t err_begin; /* what lies before may be overwritten just now */
    uint64_t err_end;
    uint32_t out_eof;   /* nothing follows out_end */
    uint32_t held;      /* the writer waits for room, and to be told that there is some */
    uint64_t log_begin; /* of a log: its first record; what lies before may be overwritten now */
};

/* The reader's part of the first page, which never reads it. */
struct ring_tail {
    uint64_t begin; /* what lies before was released */
    uint64_t waits; /* 1 + the position from which on it wants to be told; 0: it does not */
};
#define RING_TAIL_AT 2048U

/* The end of the output counts as one byte. */
static inline uint64_t ring_position(uint64_t end, bool eof)
{
    return end + (eof ? 1 : 0);
}

/* PID 1's side. */
struct ring_writer {
    struct ring_head *head; /* mapped; NULL: none */
    uint64_t out_begin, out_end, err_end;
    uint64_t told; /* position of which the reader was told last */
    bool out_eof, held;
};

/* Returns the descriptor that readers get, the caller's to close. */
int ring_writer_init(struct ring_writer *w);
void ring_writer_done(struct ring_writer *w);
/* Asks to be told when there is room again where there is none. */
size_t ring_room(struct ring_writer *w);
/* One read(2) of a pipe into the ring: bytes read, 0 at the end of file, -EAGAIN when there is
 * nothing, -ENOBUFS when the ring is full; -EFAULT when there was no memory for it just now. */
ssize_t ring_fill_out(struct ring_writer *w, int fd);
ssize_t ring_fill_err(struct ring_writer *w, int fd);
ssize_t ring_fill_log(struct ring_writer *w, int fd, uint32_t stream); /* a record; never full */
void ring_end_log(struct ring_writer *w);                              /* no record follows */
uint64_t ring_released(struct ring_writer *w);
/* The reader waits and does not know of what is there; ring_told() when it has been told. */
bool ring_must_tell(const struct ring_writer *w);
void ring_told(struct ring_writer *w);
/* It is gone; the next one says itself what it waits for. */
void ring_reader_left(struct ring_writer *w);

/* boxd's side. Every value in the memory is hostile: each is read once, must make sense together
 * with what was seen before, and only moves forward. */
struct ring_reader {
    const struct ring_head *head; /* mapped, the first page to be written too; NULL: none */
    uint64_t begin;               /* ours: what lies before was released */
    uint64_t end;                 /* as last seen */
    bool eof, broken;
    bool log; /* records; `begin` is the writer's, see ring_reader_begin() */
};

/* Borrows the descriptor for the call. -EBADMSG when it is not what a ring_writer makes, or does
 * not fit `begin`. */
int ring_reader_init(struct ring_reader *r, int fd, uint64_t begin, bool log);
void ring_reader_done(struct ring_reader *r);
/* Looks: 1 when there is more than before, or the end has come; 0; -EBADMSG, from then on always,
 * when the head makes no sense. */
int ring_reader_look(struct ring_reader *r);
/* Says that we want to be told of more than was seen, then looks once more: only after 0 is there
 * something to be told of. */
int ring_reader_wait(struct ring_reader *r);
/* Where the first byte is that can be read; of a log the first record, which moves on. */
uint64_t ring_reader_begin(const struct ring_reader *r);
/* Bytes copied, 0 at the end, -ERANGE outside of ring_reader_begin() .. end as last seen. */
ssize_t ring_read(const struct ring_reader *r, uint64_t from, char *buf, size_t size);
size_t ring_read_err(const struct ring_reader *r, char *buf, size_t size); /* the last bytes */
/* From offset *at on, or from the first byte that is still there; *at is then behind what was
 * copied. What was lost in between is the difference. */
size_t ring_read_err_from(const struct ring_reader *r, uint64_t *at, char *buf, size_t size);
/* 0; 1 when the writer waits for it and has to be told; -ERANGE for what is not there, and for a
 * log. */
int ring_reader_release(struct ring_reader *r, uint64_t until);
