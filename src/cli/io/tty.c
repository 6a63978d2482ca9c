/* SPDX-License-Identifier: Apache-2.0 */

/* Makes the caller's terminal raw, restores it, and tells its size. */

#include "cli/io/tty.h"

#include <errno.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/err.h"

#define DEFAULT_ROWS 24
#define DEFAULT_COLS 80

int tty_make_raw(struct tty *t, struct err *err)
{
    struct termios raw;

    if (tcgetattr(STDIN_FILENO, &t->saved) < 0)
        return err_sys(err, errno, "read the settings of the terminal");
    raw = t->saved;
    cfmakeraw(&raw);
    if (tcsetattr(STDIN_FILENO, TCSANOW, &raw) < 0)
        return err_sys(err, errno, "change the settings of the terminal");
    t->raw = true;
    return 0;
}

void tty_restore(struct tty *t)
{
    if (!t->raw)
        return;
    t->raw = false;
    (void)tcsetattr(STDIN_FILENO, TCSANOW, &t->saved);
}

void tty_size(uint16_t *ret_rows, uint16_t *ret_cols)
{
    struct winsize size;

    *ret_rows = DEFAULT_ROWS;
    *ret_cols = DEFAULT_COLS;
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (ioctl(fd, TIOCGWINSZ, &size) < 0)
            continue;
        if (size.ws_row > 0 && size.ws_col > 0) {
            *ret_rows = size.ws_row < TTY_SIDE_MAX ? size.ws_row : TTY_SIDE_MAX;
            *ret_cols = size.ws_col < TTY_SIDE_MAX ? size.ws_col : TTY_SIDE_MAX;
        }
        return;
    }
}
