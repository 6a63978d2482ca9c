/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of disk images share: mounting an image, checking a name. */

#include <stdint.h>

struct err;

#define LOOPIMG_BLOCK 4096

/* Mounts an open image; used for templates as well. */
int loopimg_mount_fd(int image_fd, int *ret_mnt_fd, struct err *err);

/* One path component that is neither "." nor "..". */
int loopimg_name_check(const char *name, struct err *err);
