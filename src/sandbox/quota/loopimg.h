/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A hard disk quota: one ext4 file system per session, in an image file of exactly the quota's
 * size, loop-mounted. What the session writes can never take more of the host's disk than the
 * image, and the image is fully allocated when it is made, so what the session was promised is
 * there. A breach is ENOSPC inside and nothing outside.
 *
 * Called by box-priv: root, single-threaded, host mount namespace with /proc.
 *
 * Making a file system with mkfs.ext4 takes about 20 ms, so it is done once per size into a sparse
 * template, and an image is a copy of the few blocks that a template has. There is no journal:
 * after a crash of the host (not of our programs) an image that was kept is checked before it is
 * mounted again. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct err;

/* The smallest image: below this the metadata would leave nothing to use. 1 MiB leaves about
 * 900 KiB. */
#define LOOPIMG_BYTES_MIN (1ULL << 20)
#define LOOPIMG_BYTES_MAX (15ULL << 40) /* what ext4 hosts allow in one file, less a margin */

struct loopimg_spec {
    uint64_t bytes;  /* size of the image on the host; a multiple of 4096, else rounded down */
    uint64_t inodes; /* files, directories, links; rounded up by mkfs.ext4. 0: one per 16 KiB */
    uid_t uid;       /* owner of the root directory */
    gid_t gid;
};

struct loopimg_usage {
    uint64_t bytes_total; /* below the image size: metadata is not counted */
    uint64_t bytes_used;
    uint64_t inodes_total;
    uint64_t inodes_used;
};

/* Opens the directory of templates in state_fd, made when missing; the descriptor. A user who could
 * write there would choose what the kernel is made to mount, and boxd, which owns the state
 * directory, can put anything in its place: what is not ours alone is ERR_DENIED. */
int loopimg_templates(int state_fd, struct err *err);

/* Makes the image `name` (one component, must not exist) in dirfd. Templates are kept in
 * template_dirfd, as loopimg_templates() opens it; a bounded number of them, the oldest goes
 * first. ERR_LIMIT when the host lacks the space plus a reserve (the lesser of 1 GiB
 * and 5 % of that file system), ERR_INVALID for sizes that cannot be. Leaves nothing on failure.
 *
 * Then mounts it (ret_mnt_fd NULL: not that), by one descriptor from the first byte to the mount:
 * dirfd may belong to a user who would like another image to be mounted. *ret_mnt_fd is a detached
 * mount (as from fsmount(2)) with nosuid and nodev, to be placed with move_mount(2); closing it
 * unplaced unmounts. The loop device clears itself when the last mount is gone. */
int loopimg_create_mounted(int dirfd, int template_dirfd, const char *name,
                           const struct loopimg_spec *spec, int *ret_mnt_fd, struct err *err);

/* Notes, beside an image that is to be kept, in which life of the host it was mounted last.
 * *ret_same tells whether that was this one: then an image that is not clean is still mounted. */
int loopimg_note_boot(int dirfd, bool *ret_same);

/* Mounts the image `name` again that loopimg_create_mounted() once made in dirfd, where it was
 * kept. Both must be ours alone, or ERR_DENIED: boxd must not choose what the kernel is made to
 * mount. An image that the host's end has left mounted, or in which the kernel found errors, is
 * checked by e2fsck first, in a child. ERR_STATE while that goes on, and while the kernel still has
 * the image mounted: nothing here waits, the caller tries again. */
int loopimg_mount_kept(int dirfd, const char *name, const struct loopimg_spec *spec,
                       int *ret_mnt_fd, struct err *err);

/* `fd`: anything on the mounted file system. */
int loopimg_usage(int fd, struct loopimg_usage *ret, struct err *err);

/* Whether this host can do all this, found out by doing it on a small image. ERR_UNSUPPORTED with
 * the reason when not. */
int loopimg_probe(int dirfd, int template_dirfd, struct err *err);
