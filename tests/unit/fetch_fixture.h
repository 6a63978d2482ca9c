/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A store in a directory of its own, jobs in it without their confinement, and archives made by
 * hand, so that every field can lie. */

#include "lib/unit.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/path.h"
#include "base/str.h"
#include "fetch/job.h"

#define CALLED "/srv/store" /* what the store is called in answers */

static struct {
    char dir[64];
    int fd;
    struct buf zip; /* goes with the next job */
    struct buf out;
    struct json *answer;
    const struct fetch_source *source; /* of the next jobs; NULL: none */
} it;

static int store_start(void **state)
{
    (void)snprintf(it.dir, sizeof(it.dir), "/tmp/box-fetch-XXXXXX");
    if (mkdtemp(it.dir) == NULL)
        return -1;
    it.fd = open(it.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    buf_init(&it.zip, FETCH_ZIP_MAX + 1);
    buf_init(&it.out, FETCH_ANSWER_MAX);
    return it.fd < 0 ? -1 : 0;
}

static int store_stop(void **state)
{
    json_free(it.answer);
    it.answer = NULL;
    buf_done(&it.zip);
    buf_done(&it.out);
    (void)close(it.fd);
    return path_remove_tree_at(AT_FDCWD, it.dir);
}

static inline void put(const char *path, const char *text, size_t len)
{
    char copy[256];
    (void)snprintf(copy, sizeof(copy), "%s", path);
    for (char *s = copy; (s = strchr(s, '/')) != NULL; *s++ = '/') {
        *s = '\0';
        (void)mkdirat(it.fd, copy, 0755);
    }
    AUTO_CLOSE int fd = openat(it.fd, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0 && fd_write_all(fd, text, len) == 0);
}

static inline void put_text(const char *path, const char *text)
{
    put(path, text, strlen(text));
}

static inline bool there(const char *path)
{
    return faccessat(it.fd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* The answer to an operation whose data is this JSON. */
static inline const struct json *job(const char *op, const char *data)
{
    AUTO_DONE(buf) struct buf request;
    struct err err = {0};
    buf_init(&request, FETCH_REQUEST_MAX);
    assert_int_equal(
        buf_printf(&request, "{\"op\":\"%s\",\"root\":\"" CALLED "\",\"data\":%s}", op, data), 0);
    const struct fetch_input in = {.request = request.data,
                                   .request_len = request.len,
                                   .zip = it.zip.len > 0 ? it.zip.data : NULL,
                                   .zip_len = it.zip.len,
                                   .source = it.source};
    buf_reset(&it.out);
    fetch_run(it.fd, &in, &it.out);
    json_free(it.answer);
    it.answer = NULL;
    if (json_parse(it.out.data, it.out.len, &it.answer, &err) < 0)
        fail_msg("not an answer: %s", err.msg);
    return json_get(it.answer, "data");
}

static inline void job_fails(const char *op, const char *data, const char *sentence)
{
    assert_null(job(op, data));
    assert_string_equal(json_str(json_get(it.answer, "error")), sentence);
}

static inline const struct json *job_works(const char *op, const char *data)
{
    const struct json *v = job(op, data);
    if (v == NULL)
        fail_msg("%s failed: %s", op, json_str(json_get(it.answer, "error")));
    return v;
}

/* Archives ---------------------------------------------------------------------------------- */

/* 0 in a field: the truth. */
struct zip_lie {
    uint32_t flags, method, mode;
    uint32_t size, compressed, crc, offset;
    const char *local_name;
    bool deflate;
};

static struct {
    struct buf central;
    uint16_t n;
} made;

static inline void le(struct buf *b, uint64_t value, unsigned bytes)
{
    for (; bytes > 0; bytes--, value >>= 8)
        assert_int_equal(buf_putc(b, (char)(value & 0xff)), 0);
}

static inline void squeeze(const char *data, size_t len, struct buf *ret)
{
    assert_int_equal(buf_reserve(ret, len + 4096), 0);
    z_stream z = {.next_in = (unsigned char *)(uintptr_t)data,
                  .avail_in = (unsigned)len,
                  .next_out = (unsigned char *)ret->data,
                  .avail_out = (unsigned)len + 4096};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, -15, 9, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    (void)deflateEnd(&z);
    ret->len = z.total_out;
}

static inline void zip_start(void)
{
    buf_reset(&it.zip);
    buf_init(&made.central, 1U << 20);
    made.n = 0;
}

static inline void zip_add(const char *name, size_t name_len, const char *data, size_t len,
                           struct zip_lie lie)
{
    const char *local = lie.local_name != NULL ? lie.local_name : name;
    size_t local_len = lie.local_name != NULL ? strlen(local) : name_len;
    uint32_t crc =
        lie.crc != 0 ? lie.crc : (uint32_t)crc32(0, (const unsigned char *)data, (uInt)len);
    AUTO_DONE(buf) struct buf body;
    buf_init(&body, FETCH_ZIP_MAX);
    if (lie.deflate)
        squeeze(data, len, &body);
    else
        assert_int_equal(buf_append(&body, data, len), 0);
    size_t stored = body.len;
    uint32_t compressed = lie.compressed != 0 ? lie.compressed : (uint32_t)stored;
    uint32_t size = lie.size != 0 ? lie.size : (uint32_t)len;
    uint32_t method = lie.method != 0 ? lie.method : lie.deflate ? 8 : 0;
    uint32_t offset = lie.offset != 0 ? lie.offset : (uint32_t)it.zip.len;
    uint32_t flags = lie.flags ^ 0x800; /* so that a name can be one without the mark for UTF-8 */
    const struct {
        struct buf *to;
        bool central;
    } parts[] = {{&it.zip, false}, {&made.central, true}};
    for (size_t i = 0; i < 2; i++) {
        struct buf *b = parts[i].to;
        bool central = parts[i].central;
        le(b, central ? 0x02014b50 : 0x04034b50, 4);
        if (central)
            le(b, 0x0314, 2);
        le(b, 20, 2);
        le(b, flags, 2);
        le(b, method, 2);
        le(b, 0x00210000, 4);
        le(b, crc, 4);
        le(b, compressed, 4);
        le(b, size, 4);
        le(b, central ? name_len : local_len, 2);
        le(b, 0, 2);
        if (central) {
            le(b, 0, 6);
            le(b, 0, 0);
            le(b, (uint64_t)lie.mode << 16, 4);
            le(b, offset, 4);
        }
        assert_int_equal(buf_append(b, central ? name : local, central ? name_len : local_len), 0);
    }
    assert_int_equal(buf_append(&it.zip, buf_str(&body), body.len), 0);
    made.n++;
}

static inline void zip_file(const char *name, const char *text, struct zip_lie lie)
{
    zip_add(name, strlen(name), text, strlen(text), lie);
}

static inline void zip_end(void)
{
    uint64_t at = it.zip.len;
    assert_int_equal(buf_append(&it.zip, made.central.data, made.central.len), 0);
    le(&it.zip, 0x06054b50, 4);
    le(&it.zip, 0, 4);
    le(&it.zip, made.n, 2);
    le(&it.zip, made.n, 2);
    le(&it.zip, made.central.len, 4);
    le(&it.zip, at, 4);
    le(&it.zip, 0, 2);
    buf_done(&made.central);
}
