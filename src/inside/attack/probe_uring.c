/* SPDX-License-Identifier: Apache-2.0 */

/* B04b: a ring makes sockets that the filter of socket(2) never sees. When a ring can be had, this
 * shows what it is good for. */

#include "probe.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

struct ring {
    int fd;
    struct io_uring_params params;
    unsigned char *sq, *cq;
    struct io_uring_sqe *sqes;
};

static long ring_init(struct ring *ring)
{
    struct io_uring_params *p = &ring->params;
    size_t sq_size, cq_size;

    ring->fd = (int)syscall(SYS_io_uring_setup, 1, p);
    if (ring->fd < 0)
        return -errno;
    sq_size = p->sq_off.array + p->sq_entries * sizeof(unsigned);
    cq_size = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    ring->sq =
        mmap(NULL, sq_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
    ring->cq =
        mmap(NULL, cq_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_CQ_RING);
    ring->sqes = mmap(NULL, p->sq_entries * sizeof(*ring->sqes), PROT_READ | PROT_WRITE, MAP_SHARED,
                      ring->fd, IORING_OFF_SQES);
    if (ring->sq == MAP_FAILED || ring->cq == MAP_FAILED || ring->sqes == MAP_FAILED)
        return -errno;
    return 0;
}

/* What the ring answers: a descriptor or a negative errno. */
static long ring_socket(const void *family)
{
    struct ring ring = {0};
    long r = ring_init(&ring);
    unsigned *tail, *array;

    if (r < 0)
        return r;
    ring.sqes[0].opcode = IORING_OP_SOCKET;
    ring.sqes[0].fd = *(const int *)family;
    ring.sqes[0].off = SOCK_STREAM;
    tail = (unsigned *)(ring.sq + ring.params.sq_off.tail);
    array = (unsigned *)(ring.sq + ring.params.sq_off.array);
    array[0] = 0;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
        return -errno;
    return ((const struct io_uring_cqe *)(ring.cq + ring.params.cq_off.cqes))->res;
}

void probe_uring(const struct probe_options *opt)
{
    static const int inet = AF_INET, vsock = AF_VSOCK;

    EXPECT("B04b.inet", probe_forked(ring_socket, &inet), ENOSYS, EPERM);
    EXPECT("B04b.vsock", probe_forked(ring_socket, &vsock), ENOSYS, EPERM);
}
