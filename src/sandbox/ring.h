/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The output of a managed process, in memory that PID 1 writes and boxd reads, addressed by
 * absolute byte offsets. stdout: nothing is overwritten before it was released, a full ring holds
 * the writer back. stderr: the last bytes, never full.
 *
 * The memory is a memfd that nobody can resize, so that reading it cannot fault. It outlives every
 * boxd. Both sides are here; no allocation. */

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
    uint32_t out_eof; /* nothing follows out_end */
    uint32_t pad;
};

/* PID 1's side. */
struct ring_writer {
    struct ring_head *head; /* mapped; NULL: none */
    uint64_t out_begin, out_end, err_end;
    bool out_eof;
};

/* Returns the descriptor that readers get, the caller's to close. */
int ring_writer_init(struct ring_writer *w);
void ring_writer_done(struct ring_writer *w);
size_t ring_room(const struct ring_writer *w);
/* One read(2) of a pipe into the ring: bytes read, 0 at the end of file, -EAGAIN when there is
 * nothing, -ENOBUFS when the ring is full; -EFAULT when there was no memory for it just now. */
ssize_t ring_fill_out(struct ring_writer *w, int fd);
ssize_t ring_fill_err(struct ring_writer *w, int fd);
/* 0; -ERANGE for what is not there. */
int ring_release(struct ring_writer *w, uint64_t until);

/* boxd's side. Every value in the memory is hostile: each is read once, must make sense together
 * with what was seen before, and only moves forward. */
struct ring_reader {
    const struct ring_head *head; /* mapped, read-only; NULL: none */
    uint64_t begin;               /* ours: what lies before was released */
    uint64_t end;                 /* as last seen */
    bool eof, broken;
};

/* Borrows the descriptor for the call. -EBADMSG when it is not what a ring_writer makes, or does
 * not fit `begin`. */
int ring_reader_init(struct ring_reader *r, int fd, uint64_t begin);
void ring_reader_done(struct ring_reader *r);
/* Looks: 1 when there is more than before, or the end has come; 0; -EBADMSG, from then on always,
 * when the head makes no sense. */
int ring_reader_look(struct ring_reader *r);
/* Bytes copied, 0 at the end, -ERANGE outside of begin .. end as last seen. */
ssize_t ring_read(const struct ring_reader *r, uint64_t from, char *buf, size_t size);
size_t ring_read_err(const struct ring_reader *r, char *buf, size_t size); /* the last bytes */
/* From offset *at on, or from the first byte that is still there; *at is then behind what was
 * copied. What was lost in between is the difference. */
size_t ring_read_err_from(const struct ring_reader *r, uint64_t *at, char *buf, size_t size);
int ring_reader_release(struct ring_reader *r, uint64_t until);
