/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Reading and writing whole files, sealed memory files, and passing descriptors over sockets. All
 * of these return >= 0 or a negative errno, retry EINTR, and make only O_CLOEXEC descriptors. */

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct buf;

int fd_write_all(int fd, const void *data, size_t len);
ssize_t fd_read_full(int fd, void *data, size_t len); /* until len or end of file; bytes read */
int fd_set_nonblock(int fd, bool on);
int fd_read_to_buf(int fd, struct buf *b); /* until end of file or -ENOBUFS */

/* Small kernel files (cgroup, proc). `dirfd` may be AT_FDCWD. Text is NUL-terminated, trailing
 * newline kept. Returns the length; -E2BIG when it does not fit. */
ssize_t fd_read_file_at(int dirfd, const char *path, char *ret, size_t size);
int fd_write_file_at(int dirfd, const char *path, const char *text); /* one write(2), no O_CREAT */
int fd_read_u64_at(int dirfd, const char *path, uint64_t *ret);
/* The number behind that word, which begins a line; -ENOENT without one. */
int fd_read_counter_at(int dirfd, const char *path, const char *word, uint64_t *ret);
/* Writes a number and reads back what the kernel made of it, by one descriptor. */
int fd_set_u64_at(int dirfd, const char *path, uint64_t value, uint64_t *ret);

/* A memfd with the bytes, at its start, sealed against every change; not executable where the
 * kernel can say so. */
int fd_sealed_memfd(const char *name, const void *data, size_t len);

/* The program at that path as a memfd that can be executed and never changed. At most `max` bytes.
 */
int fd_sealed_program(const char *name, const char *path, size_t max);

/* One datagram or stream chunk with descriptors. At most FD_PASS_MAX. */
#define FD_PASS_MAX 32
ssize_t fd_send_msg(int sock, const void *data, size_t len, const int *fds, size_t n_fds,
                    int flags);

/* Received descriptors are O_CLOEXEC. *n_fds is capacity on entry, count on return; a message that
 * carried more descriptors or bytes than fit is dropped with its descriptors closed: -EMSGSIZE. So
 * is one of descriptors and no byte: -EBADMSG. 0 is end of file. n_fds NULL: none are wanted. */
ssize_t fd_recv_msg(int sock, void *data, size_t size, int *fds, size_t *n_fds, int flags);

/* A TCP socket, non-blocking, that listens on that port of 127.0.0.1 or ::1. */
int fd_listen_loopback(uint16_t port, bool ipv6);

void fd_close_many(int *fds, size_t n); /* closes those >= 0, sets them to -1 */

/* The directory opened once more, for readdir(3) from its start. NULL: errno says why. */
DIR *fd_opendir(int dir_fd);
