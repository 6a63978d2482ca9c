/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/path.h"
#include "base/regex.h"
#include "base/str.h"
#include "lib/fault.h"
#include "policy/outputs.c"
#include "policy/share.h"

#define KB 1024U

static char dir[64];
static int dir_fd = -1;

static int make_dir(void **state)
{
    (void)snprintf(dir, sizeof(dir), "/tmp/box-outputs-XXXXXX");
    if (mkdtemp(dir) == NULL)
        return -1;
    dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return dir_fd < 0 ? -1 : 0;
}

static int remove_dir(void **state)
{
    fault_reset();
    (void)close(dir_fd);
    return path_remove_tree_at(AT_FDCWD, dir);
}

static struct outputs *make(uint64_t max, uint64_t each)
{
    const struct outputs_options options = {.dir_fd = dir_fd, .max_bytes = max, .each_bytes = each};
    struct outputs *o = NULL;
    assert_int_equal(outputs_new(&options, &o, NULL), 0);
    return o;
}

static char *bytes(size_t n)
{
    char *text = xcalloc(n + 1, 1);
    for (size_t i = 0; i < n; i++)
        text[i] = (char)('a' + i * 7 % 26);
    return text;
}

static bool exists(const char *id)
{
    struct stat st;
    return fstatat(dir_fd, id, &st, 0) == 0;
}

/* Stores a text as a whole. */
static void outputs_put(struct outputs *o, const char *owner, const char *data, size_t len,
                        char ret_id[static OUTPUT_ID_SIZE])
{
    struct output *out = output_new(o, owner, NULL);
    output_append(out, data, len);
    output_finish(out, ret_id);
}

static void put(struct outputs *o, const char *owner, size_t n, char id[static OUTPUT_ID_SIZE])
{
    AUTO_FREE char *text = bytes(n);
    outputs_put(o, owner, text, n, id);
}

static bool known(struct outputs *o, const char *owner, const char *id)
{
    struct output_info info;
    struct err err = {0};
    int r = outputs_stat(o, &(struct output_ref){owner, id}, &info, &err);
    assert_true(r == 0 || err.code == ERR_NOT_FOUND);
    return r == 0;
}

static void what_was_put_can_be_read_by_range(void **state)
{
    static const size_t sizes[] = {0, 1, 1000, 64 * KB, 64 * KB + 1, 300 * KB};
    AUTO(outputs) struct outputs *o = make(1 << 20, 1 << 20);
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        AUTO_FREE char *text = bytes(sizes[i]), *got = xcalloc(sizes[i] + 10, 1);
        char id[OUTPUT_ID_SIZE];
        struct output_info info;
        outputs_put(o, "s", text, sizes[i], id);
        assert_int_equal(exists(id), sizes[i] > 64 * KB);
        assert_int_equal(outputs_stat(o, &(struct output_ref){"s", id}, &info, NULL), 0);
        assert_int_equal(info.produced, sizes[i]);
        assert_int_equal(info.kept, sizes[i]);
        assert_int_equal(
            outputs_read(o, &(struct output_ref){"s", id}, 0, got, sizes[i] + 10, NULL), sizes[i]);
        assert_memory_equal(got, text, sizes[i]);
        if (sizes[i] > 500) {
            assert_int_equal(
                outputs_read(o, &(struct output_ref){"s", id}, sizes[i] - 500, got, 200, NULL),
                200);
            assert_memory_equal(got, text + sizes[i] - 500, 200);
        }
        assert_int_equal(outputs_read(o, &(struct output_ref){"s", id}, sizes[i], got, 10, NULL),
                         0);
        assert_int_equal(outputs_read(o, &(struct output_ref){"s", id}, UINT64_MAX, got, 10, NULL),
                         0);
    }
}

static void output_is_kept_as_it_comes(void **state)
{
    AUTO(outputs) struct outputs *o = make(1 << 20, 1 << 20);
    AUTO_FREE char *text = bytes(200 * KB), *got = xcalloc(200 * KB, 1);
    struct output *out = output_new(o, "s", NULL);
    char id[OUTPUT_ID_SIZE];
    for (size_t at = 0; at < 200 * KB; at += 1000)
        output_append(out, text + at, at + 1000 < 200 * KB ? 1000 : 200 * KB - at);
    output_finish(out, id);
    assert_int_equal(outputs_read(o, &(struct output_ref){"s", id}, 0, got, 200 * KB, NULL),
                     200 * KB);
    assert_memory_equal(got, text, 200 * KB);
}

static void others_do_not_see_it(void **state)
{
    AUTO(outputs) struct outputs *o = make(1 << 20, 1 << 20);
    char id[OUTPUT_ID_SIZE], c;
    struct err err = {0};
    put(o, "mine", 10, id);
    assert_true(known(o, "mine", id));
    assert_false(known(o, "yours", id));
    assert_false(known(o, "mine", "0000000000000000"));
    assert_true(outputs_read(o, &(struct output_ref){"yours", id}, 0, &c, 1, &err) < 0);
    assert_int_equal(err.code, ERR_NOT_FOUND);
}

static void one_output_has_a_bound(void **state)
{
    static const uint64_t bounds[] = {0, 100, 100 * KB};
    for (size_t i = 0; i < ARRAY_SIZE(bounds); i++) {
        AUTO(outputs) struct outputs *o = make(1 << 20, bounds[i]);
        struct output *out = output_new(o, "s", NULL);
        struct output_info info;
        char id[OUTPUT_ID_SIZE];
        AUTO_FREE char *text = bytes(60 * KB);
        for (int k = 0; k < 3; k++)
            output_append(out, text, 60 * KB);
        output_append(out, "x", 1);
        output_finish(out, id);
        assert_int_equal(outputs_stat(o, &(struct output_ref){"s", id}, &info, NULL), 0);
        assert_int_equal(info.produced, 180 * KB + 1);
        assert_int_equal(info.kept, bounds[i]);
        assert_int_equal(o->bytes, bounds[i]);
    }
}

static void the_least_recently_used_goes_first(void **state)
{
    AUTO(outputs) struct outputs *o = make(250 * KB, 250 * KB);
    char a[OUTPUT_ID_SIZE], b[OUTPUT_ID_SIZE], c[OUTPUT_ID_SIZE];
    put(o, "s", 100 * KB, a);
    put(o, "s", 100 * KB, b);
    assert_true(known(o, "s", a)); /* used */
    put(o, "s", 100 * KB, c);
    assert_true(known(o, "s", a));
    assert_false(known(o, "s", b));
    assert_false(exists(b));
    assert_true(known(o, "s", c));
    assert_true(o->bytes <= 250 * KB);
    assert_int_equal(o->n, 2);
}

static void what_is_being_written_is_not_dropped(void **state)
{
    AUTO(outputs) struct outputs *o = make(150 * KB, 150 * KB);
    AUTO_FREE char *text = bytes(100 * KB);
    struct output *out = output_new(o, "s", NULL);
    struct output_info info;
    char a[OUTPUT_ID_SIZE], b[OUTPUT_ID_SIZE];
    output_append(out, text, 100 * KB);
    put(o, "s", 100 * KB, b); /* only half of it finds room */
    assert_int_equal(outputs_stat(o, &(struct output_ref){"s", b}, &info, NULL), 0);
    assert_int_equal(info.kept, 50 * KB);
    output_append(out, text, 10); /* now b goes */
    output_finish(out, a);
    assert_false(known(o, "s", b));
    assert_int_equal(outputs_stat(o, &(struct output_ref){"s", a}, &info, NULL), 0);
    assert_int_equal(info.kept, 100 * KB + 10);
}

static void the_number_of_outputs_is_bounded(void **state)
{
    AUTO(outputs) struct outputs *o = make(1 << 20, 1 << 20);
    char first[OUTPUT_ID_SIZE], id[OUTPUT_ID_SIZE];
    put(o, "s", 1, first);
    for (unsigned i = 0; i < OUTPUTS_COUNT_MAX; i++)
        put(o, "s", 1, id);
    assert_int_equal(o->n, OUTPUTS_COUNT_MAX);
    assert_false(known(o, "s", first));
}

static void memory_is_bounded_too(void **state)
{
    AUTO(outputs) struct outputs *o = make(1 << 30, 1 << 20);
    char id[OUTPUT_ID_SIZE];
    for (unsigned i = 0; i < OUTPUTS_MEMORY_MAX / (64 * KB); i++) {
        put(o, "s", 64 * KB, id);
        assert_false(exists(id));
    }
    put(o, "s", 10, id);
    assert_true(exists(id));
}

static void outputs_go_with_their_owner(void **state)
{
    AUTO(outputs) struct outputs *o = make(1 << 20, 1 << 20);
    char a[OUTPUT_ID_SIZE], b[OUTPUT_ID_SIZE], c[OUTPUT_ID_SIZE];
    put(o, "gone", 10, a);
    put(o, "stays", 10, b);
    put(o, "gone", 100 * KB, c);
    outputs_forget(o, "gone");
    assert_false(known(o, "gone", a));
    assert_false(known(o, "gone", c));
    assert_false(exists(c));
    assert_true(known(o, "stays", b));
    output_discard(output_new(o, "x", NULL));
    assert_int_equal(o->n, 1);
}

static void what_an_earlier_process_left_is_removed(void **state)
{
    int fd = openat(dir_fd, "0123456789abcdef", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    (void)close(fd);
    fd = openat(dir_fd, "not-ours", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    (void)close(fd);
    AUTO(outputs) struct outputs *o = make(1 << 20, 1 << 20);
    assert_false(exists("0123456789abcdef"));
    assert_true(exists("not-ours"));
    char id[OUTPUT_ID_SIZE];
    put(o, "s", 100 * KB, id);
    assert_true(exists(id));
    outputs_free(TAKE_PTR(o));
    assert_false(exists(id));
}

static void a_full_disk_costs_the_rest_and_nothing_else(void **state)
{
    AUTO(outputs) struct outputs *o = make(1 << 20, 1 << 20);
    AUTO_FREE char *text = bytes(100 * KB), *got = xcalloc(200 * KB, 1);
    struct output *out = output_new(o, "s", NULL);
    struct output_info info;
    char id[OUTPUT_ID_SIZE];
    output_append(out, text, 100 * KB);
    fault_set(FAULT_WRITE, 1, ENOSPC);
    output_append(out, text, 10);
    fault_reset();
    output_append(out, text, 10);
    output_finish(out, id);
    assert_int_equal(outputs_stat(o, &(struct output_ref){"s", id}, &info, NULL), 0);
    assert_int_equal(info.produced, 100 * KB + 20);
    assert_int_equal(info.kept, 100 * KB);
    assert_int_equal(outputs_read(o, &(struct output_ref){"s", id}, 0, got, 200 * KB, NULL),
                     100 * KB);
    assert_memory_equal(got, text, 100 * KB);

    fault_set(FAULT_WRITE, 1, ENOSPC); /* already when the file is begun */
    put(o, "s", 100 * KB, id);
    fault_reset();
    assert_int_equal(outputs_stat(o, &(struct output_ref){"s", id}, &info, NULL), 0);
    assert_int_equal(info.kept, 0);
}

static void without_a_directory_memory_has_to_do(void **state)
{
    const struct outputs_options options = {
        .dir_fd = -1, .max_bytes = 1 << 20, .each_bytes = 1 << 20};
    AUTO(outputs) struct outputs *o = NULL;
    struct output_info info;
    char id[OUTPUT_ID_SIZE];
    assert_int_equal(outputs_new(&options, &o, NULL), 0);
    put(o, "s", 64 * KB, id);
    assert_int_equal(outputs_stat(o, &(struct output_ref){"s", id}, &info, NULL), 0);
    assert_int_equal(info.kept, 64 * KB);
}

/* Searching. */

struct found {
    bool more; /* and where it goes on */
    uint64_t offset, line;
    size_t n;
    struct grep_match last;
    uint64_t lines[16];
    char text[GREP_LINE_MAX + 1];
};

static void on_match(void *arg, const struct grep_match *m)
{
    struct found *f = arg;
    if (f->n < ARRAY_SIZE(f->lines))
        f->lines[f->n] = m->line;
    f->n++;
    f->last = *m;
    memcpy(f->text, m->text, m->len);
    f->text[m->len] = '\0';
}

static size_t search(struct outputs *o, const char *id, const struct grep_options *options,
                     uint64_t work, struct found *f)
{
    AUTO(output_grep) struct output_grep *g = NULL;
    struct err err = {0};
    int r;
    *f = (struct found){0};
    if (output_grep_new(o, &(struct output_ref){"s", id}, options, &g, &err) < 0)
        fail_msg("%s", err.msg);
    while ((r = output_grep_step(g, work, on_match, f, &err)) > 0)
        continue;
    assert_int_equal(r, 0);
    f->more = output_grep_next(g, &f->offset, &f->line);
    return f->n;
}

static size_t grep(struct outputs *o, const char *id, const char *pattern, unsigned flags,
                   struct found *f)
{
    const struct grep_options options = {
        .pattern = pattern, .pattern_len = strlen(pattern), .flags = flags};
    size_t n = search(o, id, &options, GREP_STEP, f);
    struct found again;
    assert_int_equal(search(o, id, &options, 1, &again), n);
    return n;
}

static void put_text(struct outputs *o, const char *text, char id[static OUTPUT_ID_SIZE])
{
    outputs_put(o, "s", text, strlen(text), id);
}

static void lines_with_a_match_are_found(void **state)
{
    AUTO(outputs) struct outputs *o = make(1 << 20, 1 << 20);
    char id[OUTPUT_ID_SIZE];
    struct found f;
    put_text(o, "one\ntwo error\n\nthree ERROR 42\nerr\xc3\xb6r\nerror", id);
    assert_int_equal(grep(o, id, "error", 0, &f), 2);
    assert_int_equal(f.lines[0], 2);
    assert_int_equal(f.lines[1], 6);
    assert_int_equal(f.last.offset, 37);
    assert_string_equal(f.text, "error");
    assert_int_equal(grep(o, id, "error", REGEX_IGNORE_CASE, &f), 3);
    assert_int_equal(grep(o, id, "err.r$", 0, &f), 3);
    assert_int_equal(grep(o, id, "^$", 0, &f), 1);
    assert_int_equal(f.last.line, 3);
    assert_int_equal(grep(o, id, "\\d+$", 0, &f), 1);
    assert_string_equal(f.text, "three ERROR 42");
    assert_int_equal(grep(o, id, "o", REGEX_LITERAL, &f), 3);
    assert_int_equal(grep(o, id, "\\btwo\\b", 0, &f), 1);
    assert_int_equal(grep(o, id, "nothing", 0, &f), 0);
    put_text(o, "", id);
    assert_int_equal(grep(o, id, "^", 0, &f), 0);
    put_text(o, "\n", id);
    assert_int_equal(grep(o, id, "^", 0, &f), 1);
}

static void a_search_goes_on_where_it_stopped(void **state)
{
    AUTO(outputs) struct outputs *o = make(1 << 20, 1 << 20);
    struct grep_options options = {.pattern = "x", .pattern_len = 1, .max_matches = 2};
    char id[OUTPUT_ID_SIZE];
    struct found f;
    size_t total = 0;
    int rounds = 0;
    put_text(o, "x1\nx2\ny\nx3\ny\nx4\nx5", id);
    do {
        total += search(o, id, &options, GREP_STEP, &f);
        options.offset = f.offset;
        options.line = f.line;
        rounds++;
    } while (f.more);
    assert_int_equal(total, 5);
    assert_int_equal(rounds, 3);
    assert_int_equal(f.last.line, 7);
}

/* Lines across pieces of reading, and a line longer than all of them. */
static void long_lines_and_many_of_them(void **state)
{
    AUTO(outputs) struct outputs *o = make(8 << 20, 8 << 20);
    AUTO_DONE(buf) struct buf text;
    char id[OUTPUT_ID_SIZE];
    struct found f;
    buf_init(&text, 4 << 20);
    for (int i = 0; i < 20000; i++)
        assert_int_equal(buf_printf(&text, "line %d \xe2\x82\xac%s\n", i, i % 5000 ? "" : " hit"),
                         0);
    size_t at = text.len;
    for (int i = 0; i < 300000; i++)
        assert_int_equal(buf_putc(&text, 'z'), 0);
    assert_int_equal(buf_puts(&text, "needle\nlast"), 0);
    outputs_put(o, "s", text.data, text.len, id);
    assert_int_equal(grep(o, id, " hit$", 0, &f), 4);
    assert_int_equal(f.lines[3], 15001);
    assert_int_equal(grep(o, id, "\xe2\x82\xac$", 0, &f),
                     20000 - 4 > GREP_MATCHES_MAX ? GREP_MATCHES_MAX : 20000 - 4);
    assert_int_equal(grep(o, id, "needle", 0, &f), 1);
    assert_int_equal(f.last.line, 20001);
    assert_int_equal(f.last.offset, at);
    assert_int_equal(f.last.len, GREP_LINE_MAX);
    assert_int_equal(grep(o, id, "(z+)+!", 0, &f), 0);
    assert_int_equal(grep(o, id, "^last$", 0, &f), 1);
}

/* Each step is short, whatever the pattern. */
static void steps_are_short(void **state)
{
    AUTO(outputs) struct outputs *o = make(8 << 20, 8 << 20);
    AUTO_FREE char *text = xcalloc(100001, 1);
    AUTO(output_grep) struct output_grep *g = NULL;
    const struct grep_options options = {.pattern = "(a?){100}b", .pattern_len = 10};
    char id[OUTPUT_ID_SIZE];
    struct found f = {0};
    int steps = 0;
    memset(text, 'a', 100000);
    outputs_put(o, "s", text, 100000, id);
    assert_int_equal(output_grep_new(o, &(struct output_ref){"s", id}, &options, &g, NULL), 0);
    while (output_grep_step(g, 100000, on_match, &f, NULL) > 0)
        steps++;
    assert_true(steps > 100);
    assert_int_equal(f.n, 0);
}

static void what_is_searched_stays(void **state)
{
    AUTO(outputs) struct outputs *o = make(150 * KB, 150 * KB);
    const struct grep_options options = {.pattern = "^a", .pattern_len = 2};
    AUTO(output_grep) struct output_grep *g = NULL;
    struct found f = {0};
    char a[OUTPUT_ID_SIZE], b[OUTPUT_ID_SIZE];
    put(o, "s", 100 * KB, a);
    assert_int_equal(output_grep_new(o, &(struct output_ref){"s", a}, &options, &g, NULL), 0);
    put(o, "s", 100 * KB, b);
    outputs_forget(o, "s");
    assert_true(known(o, "s", a));
    assert_int_equal(output_grep_step(g, GREP_STEP, on_match, &f, NULL), 0);
    assert_int_equal(f.n, 1);
}

static void a_bad_pattern_is_told(void **state)
{
    AUTO(outputs) struct outputs *o = make(1 << 20, 1 << 20);
    const struct grep_options options = {.pattern = "(", .pattern_len = 1};
    AUTO(output_grep) struct output_grep *g = NULL;
    struct err err = {0};
    char id[OUTPUT_ID_SIZE];
    put(o, "s", 10, id);
    assert_true(output_grep_new(o, &(struct output_ref){"s", id}, &options, &g, &err) < 0);
    assert_string_equal(err.msg, "pattern: ( is not closed");
    assert_true(output_grep_new(o, &(struct output_ref){"other", id}, &options, &g, &err) < 0);
    assert_int_equal(err.code, ERR_NOT_FOUND);
}

static void small(void *arg, const char *name, uint64_t ret[SHARE_KIND_MAX])
{
    ret[SHARE_OUTPUT] = 1000;
}

static void put_for(struct outputs *o, const char *payer, size_t n, char id[static OUTPUT_ID_SIZE])
{
    AUTO_FREE char *text = bytes(n);
    struct output *out = output_new(o, "s", payer);
    output_append(out, text, n);
    output_finish(out, id);
}

/* Whoever has used up its share makes room at its own cost. */
static void a_share_is_filled_at_its_own_cost(void **state)
{
    AUTO(shares) struct shares *shares = shares_new();
    const struct outputs_options options = {
        .dir_fd = dir_fd, .max_bytes = 1 << 20, .each_bytes = 1 << 20, .shares = shares};
    char first[OUTPUT_ID_SIZE], mine[2][OUTPUT_ID_SIZE], other[OUTPUT_ID_SIZE],
        large[OUTPUT_ID_SIZE];
    AUTO(outputs) struct outputs *o = NULL;
    struct output_info info;
    shares_set_caps(shares, small, NULL);
    assert_int_equal(outputs_new(&options, &o, NULL), 0);
    put(o, "s", 5000, first);
    put_for(o, "a", 600, mine[0]);
    put_for(o, "b", 900, other);
    put_for(o, "a", 600, mine[1]);
    assert_true(known(o, "s", first) && known(o, "s", other) && known(o, "s", mine[1]));
    assert_false(known(o, "s", mine[0]));
    /* One that is larger than the share: as much as the share holds. */
    put_for(o, "a", 5000, large);
    assert_false(known(o, "s", mine[1]));
    assert_int_equal(outputs_stat(o, &(struct output_ref){"s", large}, &info, NULL), 0);
    assert_int_equal(info.kept, 1000);
    assert_int_equal(info.produced, 5000);
    assert_true(known(o, "s", first) && known(o, "s", other));
    outputs_forget(o, "s");
    assert_null(shares_next(shares, NULL));
}

/* Many tiny ones take a place each. */
static void a_share_is_a_number_too(void **state)
{
    AUTO(shares) struct shares *shares = shares_new();
    const struct outputs_options options = {
        .dir_fd = -1, .max_bytes = 1 << 20, .each_bytes = 1 << 20, .shares = shares};
    char first[OUTPUT_ID_SIZE], other[OUTPUT_ID_SIZE], id[OUTPUT_ID_SIZE];
    AUTO(outputs) struct outputs *o = NULL;
    assert_int_equal(outputs_new(&options, &o, NULL), 0);
    put_for(o, "b", 1, other);
    put_for(o, "a", 1, first);
    for (unsigned i = 1; i < OUTPUTS_COUNT_SHARE; i++)
        put_for(o, "a", 1, id);
    assert_true(known(o, "s", first) && known(o, "s", other));
    put_for(o, "b", 1, id); /* `first` was just used: it is not the oldest of all */
    put_for(o, "a", 1, id);
    assert_int_equal(o->n, OUTPUTS_COUNT_SHARE + 2);
    assert_true(known(o, "s", other));
}

#define IN_DIR(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(what_was_put_can_be_read_by_range),
        IN_DIR(output_is_kept_as_it_comes),
        IN_DIR(others_do_not_see_it),
        IN_DIR(one_output_has_a_bound),
        IN_DIR(the_least_recently_used_goes_first),
        IN_DIR(what_is_being_written_is_not_dropped),
        IN_DIR(the_number_of_outputs_is_bounded),
        IN_DIR(memory_is_bounded_too),
        IN_DIR(outputs_go_with_their_owner),
        IN_DIR(what_an_earlier_process_left_is_removed),
        IN_DIR(a_full_disk_costs_the_rest_and_nothing_else),
        IN_DIR(without_a_directory_memory_has_to_do),
        IN_DIR(lines_with_a_match_are_found),
        IN_DIR(a_search_goes_on_where_it_stopped),
        IN_DIR(long_lines_and_many_of_them),
        IN_DIR(steps_are_short),
        IN_DIR(what_is_searched_stays),
        IN_DIR(a_bad_pattern_is_told),
        IN_DIR(a_share_is_filled_at_its_own_cost),
        IN_DIR(a_share_is_a_number_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
