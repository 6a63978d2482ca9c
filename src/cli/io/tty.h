/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The caller's terminal while a command has one too. */

#include <stdbool.h>
#include <stdint.h>
#include <termios.h>

struct err;

#define TTY_SIDE_MAX 4096 /* rows or columns; more is refused */

struct tty {
    bool raw;
    struct termios saved;
};

/* Every key goes to the command, Ctrl-C as well. tty_restore() is due on every way out. */
int tty_make_raw(struct tty *t, struct err *err);
void tty_restore(struct tty *t);

/* Of the first of standard input, output and error that is a terminal; 24 by 80 without one. */
void tty_size(uint16_t *ret_rows, uint16_t *ret_cols);
