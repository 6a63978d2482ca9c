/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Reads the output of a managed process for a front. Any number of readers look at the same output
 * by byte offset, and looking takes nothing away. A reader may claim the process besides: one at a
 * time has its turn, may write to stdin and says how much of the output is not needed again; the
 * others wait in the order they came. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "loop/loop.h"

struct err;
struct process;
struct process_reader;

#define READER_ROOM 16U /* free bytes before the data of take(), for a header of the front */

/*   STOPPED ──► BESIDE ──► WAITING ──► ACTIVE
 *      ▲          │  ▲        │          │     its turn is over: to BESIDE where it `stays`,
 *      └──────────┴──┴────────┴──────────┘     else to STOPPED, as when the process is forgotten */
enum reader_state { READER_STOPPED, READER_BESIDE, READER_WAITING, READER_ACTIVE, READER_MAX };

enum reader_pumped {
    READER_HELD, /* the front takes no more for now, or others have their turn first */
    READER_ALL,  /* all that is there has been taken */
    READER_END,  /* and nothing follows */
    READER_LOST, /* the output at this offset was released */
};

/* All members except `ended` may be NULL. Each may start and stop any reader, also its own. */
struct process_reader_events {
    /* The output has grown or ended, or the process has exited. Also when process_reader_pump()
     * goes on in another turn of the loop. */
    void (*output)(struct process_reader *r);
    void (*due)(struct process_reader *r);     /* the time of process_reader_wait() is over */
    void (*active)(struct process_reader *r);  /* its turn has come; from the loop */
    void (*drained)(struct process_reader *r); /* process_reader_write() may be called again */
    /* The last call, from the loop and exactly once: the reader has been stopped, because the
     * process was forgotten, or because the turn of one that does not stay is over. */
    void (*ended)(struct process_reader *r);
    /* A turn is over when the process is to end, or has exited and all of its output was released.
     * One that stays goes on reading until the process is forgotten. */
    bool stays;
    /* For process_reader_pump(): whether the front takes more; and how much of this it has taken,
     * after which `at` has moved. `last`: nothing follows. Neither stops the reader. */
    bool (*ready)(const struct process_reader *r);
    size_t (*take)(struct process_reader *r, char *data, size_t len, bool last);
};

/* Lives inside its owner, zero-initialised. */
struct process_reader {
    struct process *process; /* borrowed; NULL once stopped */
    uint64_t at;             /* offset of the next byte to read; the owner's to set */
    enum reader_state state; /* read only, and the rest is private */
    const struct process_reader_events *events;
    struct loop *loop;
    LIST_ENTRY(process_reader) link; /* of the process; the newest comes first */
    struct loop_defer news;          /* calls back for its turn or its end */
    struct loop_defer again;
    struct loop_timer timer;
};

void process_reader_start(struct process_reader *r, struct process *p,
                          const struct process_reader_events *events);
/* Gets in line. ERR_STATE when the process does not run. */
int process_reader_claim(struct process_reader *r, struct err *err);
/* The next in line becomes active. Fine on a stopped one. */
void process_reader_stop(struct process_reader *r);

/* Hands output to take() until there is no more or the front is not ready(). */
enum reader_pumped process_reader_pump(struct process_reader *r);
void process_reader_wait(struct process_reader *r, uint64_t ns); /* once; see `due` */
/* The peer has these bytes: no reader needs them again. Ignored while another has claimed the
 * process: only that one knows what its peer has. */
void process_reader_release(struct process_reader *r, uint64_t upto);

/* Not while it waits for its turn. As proc_write() of the backend; -EPIPE when the turn is over. */
int process_reader_write(struct process_reader *r, const char *data, size_t len);
size_t process_reader_unwritten(const struct process_reader *r); /* as proc_unwritten() */
void process_reader_close_stdin(struct process_reader *r);
