/* SPDX-License-Identifier: Apache-2.0 */

/* An archive as somebody uploaded it, through the whole job: judged, extracted, installed and
 * listed, in a directory that is empty again afterwards. */

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/path.h"
#include "fetch/job.h"
#include "fetch/zipdir.h"
#include "fuzz.h"

static char place[64];

static void tidy(void)
{
    (void)path_remove_tree_at(AT_FDCWD, place);
}

static void run(int fd, const char *request, const uint8_t *zip, size_t len)
{
    AUTO_DONE(buf) struct buf out;
    AUTO(json) struct json *answer = NULL;
    struct err err = {0};
    const struct fetch_input in = {.request = request,
                                   .request_len = strlen(request),
                                   .zip = len > 0 ? (const char *)zip : NULL,
                                   .zip_len = len};
    buf_init(&out, FETCH_ANSWER_MAX);
    fetch_run(fd, &in, &out);
    int r = json_parse(out.data, out.len, &answer, &err);
    assert(r == 0 && json_len(answer) > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    AUTO_DONE(zipdir) struct zipdir dir = {0};
    if (place[0] == '\0') {
        (void)snprintf(place, sizeof(place), "%s/box-fuzz-zip-XXXXXX",
                       access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        if (mkdtemp(place) == NULL)
            abort();
        (void)atexit(tidy);
    }
    if (zipdir_read(data, size, 64, &dir) == 0)
        for (size_t i = 0; i < dir.n; i++)
            assert(dir.entries[i].end <= size && dir.entries[i].offset < dir.entries[i].end);
    AUTO_CLOSE int outer = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    AUTO_CLOSE int fd = path_make_dir_at(outer, "store", 0755);
    assert(fd >= 0);
    run(fd, "{\"op\":\"install_zip\",\"root\":\"/s\",\"data\":{\"source_paths\":[]}}", data, size);
    run(fd, "{\"op\":\"list\",\"root\":\"/s\",\"data\":{}}", NULL, 0);
    int r = path_remove_tree_at(outer, "store");
    assert(r == 0);
    return 0;
}
