/* SPDX-License-Identifier: Apache-2.0 */

/* Parses and checks the central directory of a zip archive. */

#include "fetch/zipdir.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"

/* Signatures and fixed sizes of the format (PKWARE's APPNOTE). */
#define END_SIGNATURE 0x06054b50U
#define END_SIZE 22U
#define END64_LOCATOR_SIGNATURE 0x07064b50U
#define END64_LOCATOR_SIZE 20U
#define END64_SIGNATURE 0x06064b50U
#define END64_SIZE 56U
#define CENTRAL_SIGNATURE 0x02014b50U
#define CENTRAL_SIZE 46U
#define LOCAL_SIGNATURE 0x04034b50U
#define LOCAL_SIZE 30U
#define COMMENT_MAX 65535U
#define EXTRA_ZIP64 1U
#define NONE16 0xffffU
#define NONE32 0xffffffffU

struct bytes {
    const uint8_t *data;
    size_t len;
};

static uint16_t get16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)get16(p) | (uint32_t)get16(p + 2) << 16;
}

static uint64_t get64(const uint8_t *p)
{
    return (uint64_t)get32(p) | (uint64_t)get32(p + 4) << 32;
}

void zipdir_done(struct zipdir *d)
{
    free(d->entries);
    *d = (struct zipdir){0};
}

/* Where the directory is, by the record at the end. */
struct directory {
    uint64_t n, size, offset;
    uint64_t end; /* where it must end */
};

/* The record whose comment ends exactly where the archive ends. */
static int find_end(const struct bytes *b, size_t *ret)
{
    if (b->len < END_SIZE)
        return -EINVAL;
    for (size_t comment = 0; comment <= COMMENT_MAX && comment <= b->len - END_SIZE; comment++) {
        const uint8_t *p = b->data + b->len - END_SIZE - comment;
        if (get32(p) == END_SIGNATURE && get16(p + 20) == comment) {
            *ret = (size_t)(p - b->data);
            return 0;
        }
    }
    return -EINVAL;
}

static int read_end64(const struct bytes *b, size_t end, struct directory *ret)
{
    if (end < END64_LOCATOR_SIZE + END64_SIZE)
        return -EINVAL;
    const uint8_t *locator = b->data + end - END64_LOCATOR_SIZE;
    uint64_t at = get64(locator + 8);
    if (get32(locator) != END64_LOCATOR_SIGNATURE || get32(locator + 4) != 0 ||
        get32(locator + 16) > 1 || at != end - END64_LOCATOR_SIZE - END64_SIZE)
        return -EINVAL;
    const uint8_t *p = b->data + at;
    if (get32(p) != END64_SIGNATURE || get64(p + 4) != END64_SIZE - 12 || get32(p + 16) != 0 ||
        get32(p + 20) != 0 || get64(p + 24) != get64(p + 32))
        return -EINVAL;
    *ret = (struct directory){
        .n = get64(p + 32), .size = get64(p + 40), .offset = get64(p + 48), .end = at};
    return 0;
}

static int find_directory(const struct bytes *b, struct directory *ret)
{
    size_t end = 0;
    if (find_end(b, &end) < 0)
        return -EINVAL;
    const uint8_t *p = b->data + end;
    if (get16(p + 8) == NONE16 || get16(p + 10) == NONE16 || get32(p + 12) == NONE32 ||
        get32(p + 16) == NONE32)
        return read_end64(b, end, ret);
    if (get16(p + 4) != 0 || get16(p + 6) != 0 || get16(p + 8) != get16(p + 10))
        return -EINVAL;
    *ret = (struct directory){
        .n = get16(p + 10), .size = get32(p + 12), .offset = get32(p + 16), .end = end};
    return 0;
}

/* Values of 64 bits stand in an extra field, in this order, for those that say so. */
static int read_extra64(const uint8_t *extra, size_t len, struct zipdir_entry *e)
{
    uint64_t *wanted[] = {&e->size, &e->compressed, &e->offset};
    bool missing = false;
    for (size_t i = 0; i < 3; i++)
        missing |= *wanted[i] == NONE32;
    while (missing && len >= 4) {
        size_t size = get16(extra + 2);
        if (size > len - 4)
            return -EINVAL;
        if (get16(extra) == EXTRA_ZIP64) {
            const uint8_t *p = extra + 4;
            for (size_t i = 0; i < 3; i++) {
                if (*wanted[i] != NONE32)
                    continue;
                if (size < 8)
                    return -EINVAL;
                *wanted[i] = get64(p);
                p += 8;
                size -= 8;
            }
            return 0;
        }
        extra += 4 + size;
        len -= 4 + size;
    }
    return missing ? -EINVAL : 0;
}

/* The header before an entry's data: it must be there and tell the same name. */
static int check_local(const struct bytes *b, const struct directory *dir, struct zipdir_entry *e)
{
    if (e->offset > dir->offset || dir->offset - e->offset < LOCAL_SIZE)
        return -EINVAL;
    const uint8_t *p = b->data + e->offset;
    size_t name = get16(p + 26), extra = get16(p + 28);
    uint64_t room = dir->offset - e->offset - LOCAL_SIZE;
    if (get32(p) != LOCAL_SIGNATURE || name + extra > room || e->compressed > room - name - extra ||
        name != e->name_len || memcmp(p + LOCAL_SIZE, e->name, name) != 0 ||
        get16(p + 8) != e->method)
        return -EINVAL;
    e->end = e->offset + LOCAL_SIZE + name + extra + e->compressed;
    return 0;
}

/* One header of the directory. Returns its length. */
static int read_central(const struct bytes *b, const struct directory *dir, uint64_t at,
                        struct zipdir_entry *ret)
{
    if (dir->end - at < CENTRAL_SIZE)
        return -EINVAL;
    const uint8_t *p = b->data + at;
    size_t name = get16(p + 28), extra = get16(p + 30), comment = get16(p + 32);
    if (get32(p) != CENTRAL_SIGNATURE || dir->end - at - CENTRAL_SIZE < name + extra + comment ||
        get16(p + 34) != 0)
        return -EINVAL;
    *ret = (struct zipdir_entry){.name = (const char *)p + CENTRAL_SIZE,
                                 .name_len = name,
                                 .flags = get16(p + 8),
                                 .method = get16(p + 10),
                                 .crc = get32(p + 16),
                                 .compressed = get32(p + 20),
                                 .size = get32(p + 24),
                                 .attributes = get32(p + 38),
                                 .offset = get32(p + 42)};
    int r = read_extra64(p + CENTRAL_SIZE + name, extra, ret);
    if (r == 0)
        r = check_local(b, dir, ret);
    return r < 0 ? r : (int)(CENTRAL_SIZE + name + extra + comment);
}

static int by_offset(const void *a, const void *b)
{
    const struct zipdir_entry *const *x = a, *const *y = b;
    return ((*x)->offset > (*y)->offset) - ((*x)->offset < (*y)->offset);
}

/* Entries that share bytes are how a small archive becomes a large one without any ratio. */
static int check_apart(const struct zipdir *d)
{
    AUTO_FREE const struct zipdir_entry **sorted = xnew_n(const struct zipdir_entry *, d->n + 1);
    for (size_t i = 0; i < d->n; i++)
        sorted[i] = &d->entries[i];
    if (d->n > 0)
        qsort(sorted, d->n, sizeof(*sorted), by_offset);
    for (size_t i = 1; i < d->n; i++)
        if (sorted[i]->offset < sorted[i - 1]->end)
            return -EINVAL;
    return 0;
}

int zipdir_read(const uint8_t *data, size_t len, size_t max, struct zipdir *ret)
{
    const struct bytes b = {data, len};
    struct directory dir = {0};
    AUTO_DONE(zipdir) struct zipdir d = {0};
    int r = find_directory(&b, &dir);
    if (r < 0)
        return r;
    if (dir.n > max)
        return -E2BIG;
    if (dir.offset > dir.end || dir.size != dir.end - dir.offset)
        return -EINVAL;
    d.entries = xnew_n(struct zipdir_entry, (size_t)dir.n + 1);
    uint64_t at = dir.offset;
    for (; d.n < dir.n; d.n++) {
        r = read_central(&b, &dir, at, &d.entries[d.n]);
        if (r < 0)
            return r;
        at += (uint64_t)r;
    }
    if (at != dir.end || check_apart(&d) < 0)
        return -EINVAL;
    *ret = d;
    d = (struct zipdir){0};
    return 0;
}
