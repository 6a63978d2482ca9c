/* SPDX-License-Identifier: Apache-2.0 */

/* The main function of box-files. */

#include <unistd.h>

#include "inside/files/files.h"

int main(void)
{
    return files_serve(STDIN_FILENO, STDOUT_FILENO);
}
