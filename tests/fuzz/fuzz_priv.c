/* SPDX-License-Identifier: Apache-2.0 */

/* What box-priv checks of a plan, as if boxd had been taken over. The first byte chooses: raw bytes
 * for the whole plan, or changes to one that boxd would send. What passes must hold what the code
 * behind it relies on. */

#include <stdlib.h>
#include <string.h>

#include "../lib/plan_print.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/path.h"
#include "fuzz.h"
#include "plans.h"

static void check_text(const struct plan *p, uint32_t offset)
{
    assert(offset < p->strings_len);
    assert(strnlen(p->strings + offset, p->strings_len - offset) < p->strings_len - offset);
}

static void check_op(const struct plan *p, const struct plan_op *op)
{
    const char *target = plan_str(p, op->target);
    check_text(p, op->target);
    check_text(p, op->source);
    assert(op->kind < PLAN_OP_MAX && op->source_class < PLAN_SRC_MAX);
    assert(path_is_clean_absolute(target));
    if (op->source_class == PLAN_SRC_HOST || op->source_class == PLAN_SRC_ETC)
        assert(op->flags & PLAN_OP_RDONLY);
    if (op->source_class == PLAN_SRC_ALLOWED) {
        const char *source = plan_str(p, op->source);
        assert(!plan_target_reserved(target) && source[0] != '/');
        assert(strstr(source, "..") == NULL || strstr(source, "/../") == NULL);
        assert(strcmp(source, "..") != 0 && strncmp(source, "../", 3) != 0);
    }
    if (op->source_class == PLAN_SRC_PRIVATE)
        assert(strchr(plan_str(p, op->source), '/') == NULL && plan_str(p, op->source)[0] != '.');
    if (op->kind == PLAN_OP_OVERLAY)
        assert(op->source_class == PLAN_SRC_PRIVATE);
    if (op->kind == PLAN_OP_BIND)
        assert(op->source_class != PLAN_SRC_NONE);
}

static void check(const struct plan *p, size_t len)
{
    struct err err = {0};
    AUTO_DONE(buf) struct buf text;
    buf_init(&text, 4U << 20);
    if (plan_check(p, len, &err) < 0) {
        assert(err.code != ERR_NONE && err.msg[0] != '\0');
        return;
    }
    assert(p->n_ops <= PLAN_OPS_MAX && p->n_rlimits <= INSIDE_RLIMITS_MAX);
    assert(p->payload_uid != p->init_uid && p->payload_uid < 65534 && p->init_uid < 65534);
    assert(p->pids > 0 && p->memory_bytes > 0);
    assert(strspn(p->name, "0123456789abcdef") == PLAN_NAME_LEN && p->name[PLAN_NAME_LEN] == '\0');
    for (uint32_t i = 0; i < p->n_ops; i++)
        check_op(p, &p->ops[i]);
    (void)plan_print(p, &text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char root[] = "/srv/allowed";
    if (size == 0)
        return 0;
    if (data[0] % (PLANS_COUNT + 1) == PLANS_COUNT) {
        /* A block of exactly that size: one byte too many is seen. */
        AUTO_FREE struct plan *raw = xcalloc(1, size);
        memcpy(raw, data + 1, size - 1);
        check(raw, size - 1);
        return 0;
    }
    AUTO_FREE struct plan *p = xcalloc(1, sizeof(struct plan));
    plans_make(data[0], root, "0123456789abcdef", 0, p);
    plans_bend(p, data + 1, size - 1);
    size_t len = plan_wire_size(p);
    AUTO_FREE struct plan *exact = xcalloc(1, len);
    memcpy(exact, p, len);
    check(exact, len);
    return 0;
}
