/* SPDX-License-Identifier: Apache-2.0 */

/* Runs nft(8) to load a script, or to read rules. */

#include "sandbox/net/nft.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "sandbox/host/hostcmd.h"

/* Its first run on a host loads two dozen kernel modules, one after the other. */
#define NFT_TIMEOUT_MS 60000
#define NFT_ARGS_MAX 8

int nft_load(const struct buf *script, struct err *err)
{
    static const char *const argv[] = {"nft", "-f", "-", NULL};
    AUTO_CLOSE int fd = fd_sealed_memfd("nft", script->data, script->len);
    if (fd < 0)
        return err_sys(err, -fd, "memfd for nft");
    if (lseek(fd, 0, SEEK_SET) < 0)
        return err_sys(err, errno, "memfd for nft");
    return hostcmd_wait(argv, fd, NFT_TIMEOUT_MS, err);
}

int nft_query(const char *const args[], struct buf *out, struct err *err)
{
    const char *argv[NFT_ARGS_MAX + 2] = {"nft"};
    int r;

    for (unsigned i = 0; args[i] != NULL; i++) {
        if (i == NFT_ARGS_MAX)
            return err_set(err, ERR_INVALID, "too many arguments for nft");
        argv[i + 1] = args[i];
    }
    AUTO_CLOSE int fd = memfd_create("nft", MFD_CLOEXEC);
    if (fd < 0)
        return err_sys(err, errno, "memfd for nft");
    const struct hostcmd_opts opts = {
        .stdin_fd = -1, .stdout_fd = fd, .timeout_ms = NFT_TIMEOUT_MS, .max_status = 1};
    r = hostcmd_wait_opts(argv, &opts, err);
    if (r != 0)
        return r;
    if (lseek(fd, 0, SEEK_SET) < 0)
        return err_sys(err, errno, "memfd for nft");
    r = fd_read_to_buf(fd, out);
    return r < 0 && r != -ENOBUFS ? err_sys(err, -r, "read from nft") : 0;
}
