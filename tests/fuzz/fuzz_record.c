/* SPDX-License-Identifier: Apache-2.0 */

/* Records of sessions and processes, as somebody may have edited them. What is accepted is within
 * the bounds that core relies on, and can be written and read again without a change. */

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "fuzz.h"
#include "session/process.h"
#include "session/record.h"
#include "spec/process.h"
#include "spec/spec.h"
#include "store/store.h"

static void check_same(const struct buf *a, const struct buf *b)
{
    assert(a->len == b->len && memcmp(a->data, b->data, a->len) == 0);
}

static void try_session(const char *text, size_t len)
{
    AUTO_DONE(session_record) struct session_record record = {0};
    AUTO_DONE(session_record) struct session_record again = {0};
    AUTO_DONE(buf) struct buf first;
    AUTO_DONE(buf) struct buf second;
    struct err err = {0};

    buf_init(&first, 64U << 20);
    buf_init(&second, 64U << 20);
    if (session_record_read(text, len, &record, &err) < 0) {
        assert(err.code != ERR_NONE && record.spec == NULL && record.sandbox == NULL);
        return;
    }
    assert(record.numbers_end >= 1 && record.numbers_end <= UINT32_MAX && record.created_ns >= 0);
    assert(strlen(record.sandbox) <= RECORD_NAME_MAX && !strchr(record.sandbox, '/'));
    int r = session_record_write(&record, &first);
    assert(r == 0);
    if (first.len > STORE_RECORD_MAX)
        return; /* it would not be written */
    r = session_record_read(first.data, first.len, &again, &err);
    assert(r == 0);
    r = session_record_write(&again, &second);
    assert(r == 0);
    check_same(&first, &second);
}

static void try_process(const char *text, size_t len)
{
    AUTO_DONE(process_record) struct process_record record = {0};
    AUTO_DONE(process_record) struct process_record again = {0};
    AUTO_DONE(buf) struct buf first;
    AUTO_DONE(buf) struct buf second;
    struct err err = {0};

    buf_init(&first, 64U << 20);
    buf_init(&second, 64U << 20);
    if (process_record_read(text, len, &record, &err) < 0) {
        assert(err.code != ERR_NONE && record.spec == NULL && record.stderr_text == NULL);
        return;
    }
    assert(record.number >= 1 && record.number <= UINT32_MAX && record.exited_ns >= 0);
    assert(record.exit_code >= INT8_MIN && record.exit_code <= UINT8_MAX);
    assert(strlen(record.stderr_text) <= PROCESS_STDERR_CHARS * 4U);
    assert(utf8_valid(record.stderr_text, strlen(record.stderr_text)));
    int r = process_record_write(&record, &first);
    assert(r == 0);
    if (first.len > STORE_RECORD_MAX)
        return;
    r = process_record_read(first.data, first.len, &again, &err);
    assert(r == 0);
    for (size_t i = 0; again.spec->env != NULL && again.spec->env[i] != NULL; i++)
        assert(str_ends(again.spec->env[i], "=")); /* no value was written */
    r = process_record_write(&again, &second);
    assert(r == 0);
    check_same(&first, &second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_session((const char *)data, size);
    try_process((const char *)data, size);
    return 0;
}
