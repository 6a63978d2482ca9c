/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include "lib/plan_print.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"

enum { OP_BIND, OP_DIR, OP_LINK, OP_SCRATCH, OP_PROC, OP_DEV, OP_OVERLAY, OP_PRIVATE, OP_ALLOWED };

static struct plan_op *add(struct plan *p, enum plan_op_kind kind, const char *target,
                           enum plan_source class, const char *source)
{
    struct plan_op *op = plan_add(p, kind, target);
    op->source_class = (uint8_t) class;
    if (source != NULL)
        op->source = plan_string(p, source);
    return op;
}

/* One of each kind. */
static void make_good(struct plan *p)
{
    plan_init(p);
    memcpy(p->name, "0123456789abcdef", PLAN_NAME_LEN + 1);
    p->payload_uid = p->payload_gid = 1000;
    p->pids = 10;
    p->memory_bytes = p->root_bytes = 1 << 20;
    p->root_inodes = 16;
    p->n_rlimits = 1;
    p->rlimits[0] = (struct inside_rlimit){.resource = 4, .soft = 0, .hard = 0};
    add(p, PLAN_OP_BIND, "/usr", PLAN_SRC_HOST, "/usr")->flags = PLAN_OP_RDONLY | PLAN_OP_RECURSIVE;
    add(p, PLAN_OP_DIR, "/var", PLAN_SRC_NONE, NULL)->mode = 0755;
    (void)add(p, PLAN_OP_SYMLINK, "/bin", PLAN_SRC_NONE, "usr/bin");
    struct plan_op *op = add(p, PLAN_OP_SCRATCH, "/tmp", PLAN_SRC_NONE, NULL);
    op->mode = 01777;
    (void)add(p, PLAN_OP_PROC, "/proc", PLAN_SRC_NONE, NULL);
    (void)add(p, PLAN_OP_DEV, "/dev", PLAN_SRC_NONE, NULL);
    (void)add(p, PLAN_OP_OVERLAY, "/usr", PLAN_SRC_PRIVATE, "layer-usr");
    (void)add(p, PLAN_OP_BIND, "/workspace", PLAN_SRC_PRIVATE, "workspace");
    op = add(p, PLAN_OP_BIND, "/data", PLAN_SRC_ALLOWED, "a/b");
    op->root = 3;
    op->flags = PLAN_OP_LANDLOCK_RW;
}

/* As it arrives: a block of exactly that many bytes, so that a sanitizer sees a step outside. */
static int check_received(const struct plan *p, size_t len, struct err *err)
{
    struct plan *received = malloc(len > 0 ? len : 1);
    assert_non_null(received);
    memcpy(received, p, len);
    *err = (struct err){0};
    int r = plan_check(received, len, err);
    free(received);
    return r;
}

static void whole_plan_is_accepted(void **state)
{
    static struct plan p;
    struct err err;
    make_good(&p);
    assert_int_equal(plan_wire_size(&p), PLAN_HEAD_SIZE + p.strings_len);
    assert_int_equal(check_received(&p, plan_wire_size(&p), &err), 0);
    /* So is one with nothing but /proc. */
    plan_init(&p);
    memcpy(p.name, "ffffffffffffffff", PLAN_NAME_LEN + 1);
    p.payload_uid = p.payload_gid = 65533;
    p.pids = 1;
    p.memory_bytes = p.root_bytes = 1;
    p.root_inodes = 1;
    (void)add(&p, PLAN_OP_PROC, "/proc", PLAN_SRC_NONE, NULL);
    assert_int_equal(check_received(&p, plan_wire_size(&p), &err), 0);
}

/* The number of user namespaces inside is limited through the session's own /proc. */
static void plan_without_proc_is_refused(void **state)
{
    static struct plan p;
    struct err err;
    make_good(&p);
    p.ops[OP_PROC].kind = PLAN_OP_DIR;
    assert_int_equal(check_received(&p, plan_wire_size(&p), &err), err_code_errno(ERR_INVALID));
    assert_string_equal(err.msg, "plan: no /proc");
    p.flags |= PLAN_GVISOR; /* the launcher adds its own */
    assert_int_equal(check_received(&p, plan_wire_size(&p), &err), 0);
}

static void wrong_lengths_are_refused(void **state)
{
    static struct plan p;
    struct err err;
    make_good(&p);
    size_t len = plan_wire_size(&p);
    const size_t lengths[] = {0,       1,       4,        PLAN_HEAD_SIZE - 1, PLAN_HEAD_SIZE,
                              len - 1, len + 1, sizeof(p)};
    for (size_t i = 0; i < ARRAY_SIZE(lengths); i++) {
        assert_int_equal(check_received(&p, lengths[i], &err), -EINVAL);
        assert_int_equal(err.code, ERR_INVALID);
    }
}

/* Corruptions of the head. */

#define HEAD(name, member, value)                                                                  \
    static void name(struct plan *p)                                                               \
    {                                                                                              \
        p->member = (value);                                                                       \
    }

HEAD(version_old, version, PLAN_VERSION - 1)
HEAD(version_new, version, PLAN_VERSION + 1)
HEAD(flags_unknown, flags, PLAN_FLAGS_ALL + 1U)
HEAD(flags_high, flags, 1U << 31)
HEAD(name_upper, name[3], 'A')
HEAD(name_not_hex, name[15], 'g')
HEAD(name_dot, name[0], '.')
HEAD(name_slash, name[7], '/')
HEAD(name_short, name[15], '\0')
HEAD(name_endless, name[16], '0')
HEAD(payload_uid_nobody, payload_uid, 65534)
HEAD(payload_gid_nobody, payload_gid, 65534)
HEAD(init_uid_high, init_uid, 65534)
HEAD(init_gid_high, init_gid, UINT32_MAX)
HEAD(same_uid, init_uid, 1000)
HEAD(same_gid, init_gid, 1000)
HEAD(no_pids, pids, 0)
HEAD(no_memory, memory_bytes, 0)
HEAD(no_root, root_bytes, 0)
HEAD(no_root_inodes, root_inodes, 0)
HEAD(many_rlimits, n_rlimits, INSIDE_RLIMITS_MAX + 1)
HEAD(many_ops, n_ops, PLAN_OPS_MAX + 1)
HEAD(endless_ops, n_ops, UINT32_MAX)
HEAD(no_strings, strings_len, 0)
HEAD(fewer_strings, strings_len, p->strings_len - 1)
HEAD(more_strings, strings_len, p->strings_len + 1)
HEAD(too_many_strings, strings_len, PLAN_STRINGS_MAX + 1)
HEAD(first_string, strings[0], 'x')
HEAD(last_string, strings[p->strings_len - 1], 'x')

/* Of operations. */

#define OP(name, op, member, value)                                                                \
    static void name(struct plan *p)                                                               \
    {                                                                                              \
        p->ops[op].member = (value);                                                               \
    }

OP(kind_unknown, OP_DIR, kind, PLAN_OP_MAX)
OP(kind_high, OP_DIR, kind, 255)
OP(class_unknown, OP_DIR, source_class, PLAN_SRC_MAX)
OP(class_high, OP_DIR, source_class, 255)
OP(op_flags_unknown, OP_DIR, flags, PLAN_OP_FLAGS_ALL + 1U)
OP(op_flags_high, OP_DIR, flags, 1U << 31)
OP(mode_setuid, OP_DIR, mode, 04755)
OP(mode_setgid, OP_DIR, mode, 02755)
OP(mode_high, OP_DIR, mode, 1U << 31)
OP(target_outside, OP_DIR, target, p->strings_len)
OP(target_far, OP_DIR, target, UINT32_MAX)
OP(source_outside, OP_DIR, source, p->strings_len)
OP(source_far, OP_LINK, source, UINT32_MAX)
OP(target_none, OP_DIR, target, 0)
OP(bind_of_nothing, OP_BIND, source_class, PLAN_SRC_NONE)
OP(overlay_on_host, OP_OVERLAY, source_class, PLAN_SRC_HOST)
OP(overlay_on_allowed, OP_OVERLAY, source_class, PLAN_SRC_ALLOWED)
OP(overlay_on_nothing, OP_OVERLAY, source_class, PLAN_SRC_NONE)
OP(image_writable, OP_BIND, flags, PLAN_OP_RECURSIVE)
OP(etc_writable, OP_PRIVATE, source_class, PLAN_SRC_ETC)
OP(private_unnamed, OP_PRIVATE, source, 0)

/* Of strings: each keeps its length. */

#define TEXT(name, op, member, text)                                                               \
    static void name(struct plan *p)                                                               \
    {                                                                                              \
        char *at = p->strings + p->ops[op].member;                                                 \
        assert_int_equal(strlen(at), strlen(text));                                                \
        memcpy(at, text, strlen(text));                                                            \
    }

TEXT(target_relative, OP_DIR, target, "xvar")
TEXT(target_up, OP_DIR, target, "/.. ")
TEXT(target_parent, OP_ALLOWED, target, "/a/..")
TEXT(target_dot, OP_DIR, target, "/a/.")
TEXT(target_double, OP_DIR, target, "/a//")
TEXT(target_slash, OP_DIR, target, "/ab/")
TEXT(private_parent, OP_PRIVATE, source, "../../../")
TEXT(private_below, OP_PRIVATE, source, "work/pace")
TEXT(private_hidden, OP_PRIVATE, source, ".orkspace")
TEXT(allowed_absolute, OP_ALLOWED, source, "/ab")
TEXT(allowed_slash, OP_ALLOWED, source, "ab/")
TEXT(allowed_double, OP_ALLOWED, source, "a//")
TEXT(allowed_dot, OP_ALLOWED, source, "./a")
TEXT(allowed_onto_proc, OP_ALLOWED, target, "/proc")
TEXT(allowed_below_usr, OP_ALLOWED, target, "/usr/")
TEXT(allowed_onto_boot, OP_ALLOWED, target, "/boot")
TEXT(allowed_onto_guest, OP_ALLOWED, target, "/.box")

/* box-guest is for gVisor alone, and for nobody to write to. */
static void guest_without_gvisor(struct plan *p)
{
    p->ops[OP_BIND].source_class = PLAN_SRC_GUEST;
}

static void guest_writable(struct plan *p)
{
    p->flags |= PLAN_GVISOR;
    p->ops[OP_BIND].source_class = PLAN_SRC_GUEST;
    p->ops[OP_BIND].flags = 0;
}

/* Only root inside may share its id with runsc, and only there. */
static void gvisor_shared_id(struct plan *p)
{
    p->flags |= PLAN_GVISOR;
    p->init_uid = p->init_gid = p->payload_uid;
}

static void shared_root(struct plan *p)
{
    p->payload_uid = p->payload_gid = 0;
}

static void allowed_up(struct plan *p)
{
    p->ops[OP_ALLOWED].source = plan_string(p, "../etc");
}

static void allowed_through(struct plan *p)
{
    p->ops[OP_ALLOWED].source = plan_string(p, "a/../../etc");
}

static void allowed_onto_root(struct plan *p)
{
    p->ops[OP_ALLOWED].target = plan_string(p, "/");
}

static void allowed_below_etc(struct plan *p)
{
    p->ops[OP_ALLOWED].target = plan_string(p, "/etc/ssl/certs");
}

static void ran_out(struct plan *p)
{
    static char big[PLAN_STRINGS_MAX];
    memset(big, 'x', sizeof(big) - 1);
    assert_int_equal(plan_string(p, big), 0);
    assert_int_equal(plan_string(p, "more"), 0); /* it stays that way */
}

#define C(name) #name, name
static const struct {
    const char *name;
    void (*corrupt)(struct plan *p);
    enum err_code code;
} corruptions[] = {
    {C(version_old), ERR_INVALID},
    {C(version_new), ERR_INVALID},
    {C(flags_unknown), ERR_INVALID},
    {C(flags_high), ERR_INVALID},
    {C(name_upper), ERR_INVALID},
    {C(name_not_hex), ERR_INVALID},
    {C(name_dot), ERR_INVALID},
    {C(name_slash), ERR_INVALID},
    {C(name_short), ERR_INVALID},
    {C(name_endless), ERR_INVALID},
    {C(payload_uid_nobody), ERR_INVALID},
    {C(payload_gid_nobody), ERR_INVALID},
    {C(init_uid_high), ERR_INVALID},
    {C(init_gid_high), ERR_INVALID},
    {C(same_uid), ERR_INVALID},
    {C(same_gid), ERR_INVALID},
    {C(no_pids), ERR_INVALID},
    {C(no_memory), ERR_INVALID},
    {C(no_root), ERR_INVALID},
    {C(no_root_inodes), ERR_INVALID},
    {C(many_rlimits), ERR_INVALID},
    {C(many_ops), ERR_INVALID},
    {C(endless_ops), ERR_INVALID},
    {C(no_strings), ERR_INVALID},
    {C(fewer_strings), ERR_INVALID},
    {C(more_strings), ERR_INVALID},
    {C(too_many_strings), ERR_INVALID},
    {C(first_string), ERR_INVALID},
    {C(last_string), ERR_INVALID},
    {C(kind_unknown), ERR_INVALID},
    {C(kind_high), ERR_INVALID},
    {C(class_unknown), ERR_INVALID},
    {C(class_high), ERR_INVALID},
    {C(op_flags_unknown), ERR_INVALID},
    {C(op_flags_high), ERR_INVALID},
    {C(mode_setuid), ERR_INVALID},
    {C(mode_setgid), ERR_INVALID},
    {C(mode_high), ERR_INVALID},
    {C(target_outside), ERR_INVALID},
    {C(target_far), ERR_INVALID},
    {C(source_outside), ERR_INVALID},
    {C(source_far), ERR_INVALID},
    {C(target_none), ERR_INVALID},
    {C(bind_of_nothing), ERR_INVALID},
    {C(overlay_on_host), ERR_INVALID},
    {C(overlay_on_allowed), ERR_INVALID},
    {C(overlay_on_nothing), ERR_INVALID},
    {C(image_writable), ERR_DENIED},
    {C(etc_writable), ERR_DENIED},
    {C(private_unnamed), ERR_INVALID},
    {C(target_relative), ERR_INVALID},
    {C(target_parent), ERR_INVALID},
    {C(target_dot), ERR_INVALID},
    {C(target_double), ERR_INVALID},
    {C(target_slash), ERR_INVALID},
    {C(private_parent), ERR_INVALID},
    {C(private_below), ERR_INVALID},
    {C(private_hidden), ERR_INVALID},
    {C(allowed_absolute), ERR_INVALID},
    {C(allowed_slash), ERR_INVALID},
    {C(allowed_double), ERR_INVALID},
    {C(allowed_dot), ERR_INVALID},
    {C(allowed_up), ERR_INVALID},
    {C(allowed_through), ERR_INVALID},
    {C(allowed_onto_proc), ERR_DENIED},
    {C(allowed_below_usr), ERR_INVALID}, /* the slash at the end */
    {C(allowed_onto_boot), ERR_DENIED},
    {C(allowed_onto_root), ERR_DENIED},
    {C(allowed_below_etc), ERR_DENIED},
    {C(allowed_onto_guest), ERR_DENIED},
    {C(guest_without_gvisor), ERR_DENIED},
    {C(guest_writable), ERR_DENIED},
    {C(gvisor_shared_id), ERR_INVALID},
    {C(shared_root), ERR_INVALID},
    {C(ran_out), ERR_LIMIT},
};

static void every_corruption_is_refused(void **state)
{
    static struct plan p;
    struct err err;
    for (size_t i = 0; i < ARRAY_SIZE(corruptions); i++) {
        make_good(&p);
        size_t len = plan_wire_size(&p);
        corruptions[i].corrupt(&p);
        if (p.strings_len > len - PLAN_HEAD_SIZE && p.strings_len <= PLAN_STRINGS_MAX &&
            corruptions[i].corrupt != more_strings)
            len = plan_wire_size(&p); /* it has added a string of its own */
        int r = check_received(&p, len, &err);
        if (r >= 0 || err.code != corruptions[i].code || r != err_code_errno(err.code))
            fail_msg("%s: %d, %s", corruptions[i].name, r, err.msg);
    }
}

static void name_that_only_looks_upward_is_fine(void **state)
{
    static struct plan p;
    struct err err;
    make_good(&p);
    target_up(&p); /* "/.. ", with a blank */
    assert_int_equal(check_received(&p, plan_wire_size(&p), &err), 0);
}

/* Whatever a byte becomes, the answer is yes or no, and yes means that everything lies inside. */
static void any_byte_may_be_wrong(void **state)
{
    static const uint8_t values[] = {0, 1, 0x2f, 0x7f, 0x80, 0xff};
    static struct plan good, p;
    struct err err;
    AUTO_DONE(buf) struct buf text;
    size_t refused = 0;
    make_good(&good);
    buf_init(&text, 1 << 20);
    size_t len = plan_wire_size(&good),
           used = offsetof(struct plan, ops) + good.n_ops * sizeof(struct plan_op);
    for (size_t at = 0; at < len; at++) {
        if (at == used)
            at = PLAN_HEAD_SIZE; /* operations that are not there */
        for (size_t v = 0; v < ARRAY_SIZE(values); v++) {
            p = good;
            ((uint8_t *)&p)[at] = values[v];
            if (check_received(&p, len, &err) < 0) {
                refused++;
                continue;
            }
            buf_reset(&text);
            assert_int_equal(plan_print(&p, &text), 0);
        }
    }
    assert_true(refused > 500);
}

static void builder_tells_of_too_many_operations(void **state)
{
    static struct plan p;
    struct err err;
    make_good(&p);
    while (p.n_ops < PLAN_OPS_MAX)
        (void)plan_add(&p, PLAN_OP_DIR, "/d");
    assert_int_equal(check_received(&p, plan_wire_size(&p), &err), 0);
    struct plan_op *spill = plan_add(&p, PLAN_OP_DIR, "/one-too-many");
    spill->mode = 0777; /* may be written to all the same */
    assert_int_equal(p.n_ops, PLAN_OPS_MAX);
    assert_int_equal(plan_wire_size(&p), PLAN_HEAD_SIZE);
    assert_int_equal(plan_check(&p, plan_wire_size(&p), &err), err_code_errno(ERR_LIMIT));
    assert_string_equal(err.msg, "too many mounts, or paths too long in all");
}

static void builder_fills_the_strings_to_the_last_byte(void **state)
{
    static struct plan p;
    static char big[PLAN_STRINGS_MAX + 1];
    plan_init(&p);
    memset(big, 'x', PLAN_STRINGS_MAX - 2);
    assert_int_equal(plan_string(&p, big), 1);
    assert_int_equal(p.strings_len, PLAN_STRINGS_MAX);
    assert_int_equal(plan_string(&p, ""), 0);
    assert_int_equal(plan_wire_size(&p), PLAN_HEAD_SIZE);
    plan_init(&p);
    memset(big, 'x', PLAN_STRINGS_MAX - 1);
    assert_int_equal(plan_string(&p, big), 0); /* one too long */
}

static void plan_is_shown_a_line_per_fact(void **state)
{
    static struct plan p;
    AUTO_DONE(buf) struct buf text;
    make_good(&p);
    p.flags = PLAN_FLAGS_ALL;
    buf_init(&text, 4096);
    assert_int_equal(plan_print(&p, &text), 0);
    assert_string_equal(buf_str(&text),
                        "flags net-on root-writable require-limits gvisor\n"
                        "ids payload=1000:1000 init=0:0\n"
                        "limits memory=1048576 pids=10 cpu=0/100000 quota=0/0 root=1048576/16\n"
                        "rlimit 4 0 0\n"
                        "bind /usr host:/usr ro rec\n"
                        "dir /var mode=755\n"
                        "symlink /bin -:usr/bin\n"
                        "scratch /tmp mode=1777\n"
                        "proc /proc\n"
                        "dev /dev\n"
                        "overlay /usr private:layer-usr\n"
                        "bind /workspace private:workspace\n"
                        "bind /data allowed[3]:a/b landlock-rw\n");
    for (size_t max = 0; max < text.len; max++) {
        AUTO_DONE(buf) struct buf small;
        buf_init(&small, max);
        assert_int_equal(plan_print(&p, &small), -ENOBUFS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_plan_is_accepted),
        cmocka_unit_test(plan_without_proc_is_refused),
        cmocka_unit_test(wrong_lengths_are_refused),
        cmocka_unit_test(every_corruption_is_refused),
        cmocka_unit_test(name_that_only_looks_upward_is_fine),
        cmocka_unit_test(any_byte_may_be_wrong),
        cmocka_unit_test(builder_tells_of_too_many_operations),
        cmocka_unit_test(builder_fills_the_strings_to_the_last_byte),
        cmocka_unit_test(plan_is_shown_a_line_per_fact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
