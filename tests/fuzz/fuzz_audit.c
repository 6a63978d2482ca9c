/* SPDX-License-Identifier: Apache-2.0 */

/* A file that claims to be an audit log: read to its end or to its first bad line, never beyond. */

#include <assert.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "fuzz.h"
#include "policy/audit/audit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct audit_chain chain = {0};
    struct err err = {0};
    AUTO_CLOSE int fd = memfd_create("log", MFD_CLOEXEC);
    int r = fd < 0 ? -1 : fd_write_all(fd, data, size);

    assert(r == 0 && lseek(fd, 0, SEEK_SET) == 0);
    r = audit_verify(&chain, fd, "log", &err);
    assert(r == 0 || r == 1);
    assert((r == 1) == (chain.bad_file != NULL));
    assert(r == 0 || (chain.bad_line > 0 && chain.bad_reason != NULL));
    assert(chain.last >= chain.first);
    return 0;
}
