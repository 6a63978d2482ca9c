/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "inside/files/files.h"
#include "inside/files/files_internal.h"

/* box-files as boxd sees it: a process with a request on stdin and frames on stdout. */

struct answer {
    struct files_stat stat;
    bool has_stat;
    char data[256 << 10];
    size_t n_data;
    char names[64][256]; /* of entries, matches, events */
    struct files_match matches[64];
    uint32_t changes[64];
    char lines[64][512];
    size_t n_names;
    bool done;
    struct files_done result;
    struct files_fail fail;
    char text[256];
};

struct running {
    pid_t pid;
    int in, out;
};

static char dir[] = "/tmp/test-files-XXXXXX";
static struct answer got;

static const char *at(const char *name)
{
    static char path[8][512];
    static unsigned next;
    char *p = path[next++ % 8];
    (void)snprintf(p, sizeof(path[0]), "%s/%s", dir, name);
    return p;
}

static void put(const char *name, const char *text)
{
    int fd = open(at(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
    (void)close(fd);
}

static const char *content(const char *name)
{
    static char text[4096];
    ssize_t n = fd_read_file_at(AT_FDCWD, at(name), text, sizeof(text));
    return n < 0 ? NULL : text;
}

static struct running begin(struct files_request q, const char *path, const char *a, const char *b)
{
    int in[2], out[2];
    struct running r;
    assert_true(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    r.pid = fork();
    assert_true(r.pid >= 0);
    if (r.pid == 0) {
        (void)close(in[1]);
        (void)close(out[0]);
        _exit(files_serve(in[0], out[1]));
    }
    (void)close(in[0]);
    (void)close(out[1]);
    r.in = in[1];
    r.out = out[0];
    q.version = q.version == 0 ? FILES_WIRE_VERSION : q.version;
    q.root_len = (uint32_t)strlen(dir);
    q.path_len = (uint32_t)strlen(path);
    q.a_len = a != NULL ? (uint32_t)strlen(a) : 0;
    q.b_len = b != NULL ? (uint32_t)strlen(b) : 0;
    assert_int_equal(fd_write_all(r.in, &q, sizeof(q)), 0);
    assert_int_equal(fd_write_all(r.in, dir, q.root_len), 0);
    assert_int_equal(fd_write_all(r.in, path, q.path_len), 0);
    assert_int_equal(fd_write_all(r.in, a != NULL ? a : "", q.a_len), 0);
    assert_int_equal(fd_write_all(r.in, b != NULL ? b : "", q.b_len), 0);
    return r;
}

static void send_data(struct running *r, const char *text)
{
    struct files_head h = {.type = FILES_FRAME_DATA, .len = (uint32_t)strlen(text)};
    (void)fd_write_all(r->in, &h, sizeof(h));
    (void)fd_write_all(r->in, text, h.len);
}

static void send_end(struct running *r)
{
    struct files_head h = {.type = FILES_FRAME_END};
    (void)fd_write_all(r->in, &h, sizeof(h));
}

static void copy_name(const char *name, size_t len)
{
    assert_true(got.n_names < 64 && len < 256);
    memcpy(got.names[got.n_names], name, len);
    got.names[got.n_names][len] = '\0';
}

/* One frame; false at the end. */
static bool take(struct running *r)
{
    static char data[FILES_FRAME_MAX];
    struct files_head h;
    struct files_entry e;
    struct files_match m;
    struct files_event v;

    if (fd_read_full(r->out, &h, sizeof(h)) != (ssize_t)sizeof(h))
        return false;
    assert_true(h.len <= FILES_FRAME_MAX);
    assert_int_equal(fd_read_full(r->out, data, h.len), h.len);
    switch (h.type) {
    case FILES_FRAME_STAT:
        memcpy(&got.stat, data, sizeof(got.stat));
        got.has_stat = true;
        break;
    case FILES_FRAME_DATA:
        assert_true(got.n_data + h.len <= sizeof(got.data));
        memcpy(got.data + got.n_data, data, h.len);
        got.n_data += h.len;
        break;
    case FILES_FRAME_ENTRY:
        memcpy(&e, data, sizeof(e));
        copy_name(data + sizeof(e), e.name_len);
        got.n_names++;
        break;
    case FILES_FRAME_MATCH:
        memcpy(&m, data, sizeof(m));
        copy_name(data + sizeof(m), m.path_len);
        got.matches[got.n_names] = m;
        memcpy(got.lines[got.n_names], data + sizeof(m) + m.path_len,
               m.text_len < 511 ? m.text_len : 511);
        got.n_names++;
        break;
    case FILES_FRAME_EVENT:
        memcpy(&v, data, sizeof(v));
        copy_name(data + sizeof(v), v.path_len);
        got.changes[got.n_names] = v.change;
        got.n_names++;
        break;
    case FILES_FRAME_DONE:
        got.done = true;
        memcpy(&got.result, data, sizeof(got.result));
        break;
    case FILES_FRAME_FAIL:
        memcpy(&got.fail, data, sizeof(got.fail));
        memcpy(got.text, data + sizeof(got.fail), h.len - sizeof(got.fail));
        break;
    default:
        fail_msg("frame %u", h.type);
    }
    return true;
}

static void finish(struct running *r)
{
    int status;
    if (r->in >= 0)
        (void)close(r->in);
    while (take(r))
        ;
    (void)close(r->out);
    assert_int_equal(waitpid(r->pid, &status, 0), r->pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void ask(struct files_request q, const char *path, const char *a, const char *b)
{
    memset(&got, 0, sizeof(got));
    struct running r = begin(q, path, a, b);
    finish(&r);
}

static void write_file(struct files_request q, const char *path, const char *text)
{
    memset(&got, 0, sizeof(got));
    q.op = FILES_WRITE;
    struct running r = begin(q, path, NULL, NULL);
    send_data(&r, text);
    send_end(&r);
    finish(&r);
}

static void read_all(const char *path)
{
    ask((struct files_request){.op = FILES_READ}, path, NULL, NULL);
}

static void expect_why(enum files_why why, int error)
{
    if (got.done || got.fail.why != why || got.fail.error != error)
        fail_msg("not %u (%s), but %u (%s)", why, strerrorname_np(error), got.fail.why,
                 strerrorname_np(got.fail.error));
}

static size_t entries_of(const char *name)
{
    ask((struct files_request){.op = FILES_LIST, .length = 1000}, name, NULL, NULL);
    assert_true(got.done);
    return (size_t)got.result.total;
}

static int set_up(void **state)
{
    memcpy(dir + strlen(dir) - 6, "XXXXXX", 6);
    return mkdtemp(dir) == NULL;
}

static int tear_down(void **state)
{
    return path_remove_tree_at(AT_FDCWD, dir) < 0;
}

static void reads_all_and_ranges(void **state)
{
    static const struct {
        uint64_t offset, length;
        uint32_t flags;
        const char *want; /* NULL: no such range */
    } cases[] = {
        {0, UINT64_MAX, 0, "0123456789"},
        {3, 4, 0, "3456"},
        {8, 100, 0, "89"},
        {9, 1, 0, "9"},
        {10, 1, 0, NULL},
        {0, 0, 0, NULL},
        {0, 3, FILES_SUFFIX, "789"},
        {0, 99, FILES_SUFFIX, "0123456789"},
        {0, 0, FILES_SUFFIX, NULL},
        {UINT64_MAX, UINT64_MAX, 0, NULL},
    };
    put("f", "0123456789");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        ask((struct files_request){.op = FILES_READ,
                                   .offset = cases[i].offset,
                                   .length = cases[i].length,
                                   .flags = cases[i].flags | FILES_RANGE},
            "f", NULL, NULL);
        if (cases[i].want == NULL) {
            expect_why(FILES_WHY_RANGE, ERANGE);
            assert_int_equal(got.fail.n, 10);
            continue;
        }
        assert_true(got.done && got.has_stat);
        assert_int_equal(got.n_data, strlen(cases[i].want));
        assert_memory_equal(got.data, cases[i].want, got.n_data);
        assert_int_equal(got.stat.end - got.stat.begin, got.n_data);
    }
}

static void refuses_what_is_no_file(void **state)
{
    assert_int_equal(mkfifo(at("fifo"), 0644), 0);
    assert_int_equal(symlink("fifo", at("to-fifo")), 0);
    read_all("fifo");
    expect_why(FILES_WHY_SPECIAL, EINVAL);
    read_all("to-fifo");
    expect_why(FILES_WHY_SPECIAL, EINVAL);
    write_file((struct files_request){0}, "fifo", "x");
    expect_why(FILES_WHY_SPECIAL, EINVAL);
    read_all(".");
    expect_why(FILES_WHY_ERRNO, EISDIR);
    read_all("none");
    expect_why(FILES_WHY_ERRNO, ENOENT);
    put("file", "x");
    read_all("file/");
    expect_why(FILES_WHY_ERRNO, ENOTDIR);
    read_all("file/x");
    expect_why(FILES_WHY_ERRNO, ENOTDIR);
}

static void links_are_followed_but_not_out(void **state)
{
    char absolute[600];
    assert_int_equal(mkdir(at("d"), 0755), 0);
    assert_int_equal(mkdir(at("d/e"), 0755), 0);
    put("d/e/f", "deep");
    put("top", "top");
    assert_int_equal(symlink("e/f", at("d/in")), 0);
    assert_int_equal(symlink("../top", at("d/up")), 0);
    assert_int_equal(symlink("../../../etc/passwd", at("d/out")), 0);
    assert_int_equal(symlink("/etc/passwd", at("etc")), 0);
    assert_int_equal(symlink("loop", at("loop")), 0);
    assert_int_equal(symlink("/proc/self/root", at("magic")), 0);
    (void)snprintf(absolute, sizeof(absolute), "%s/top", dir);
    assert_int_equal(symlink(absolute, at("d/abs")), 0);
    static const char *const good[] = {"d/in",          "d/up", "d/abs",   "d/e/../in",
                                       "d/e/../../top", "/top", "./d/./in"};
    for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
        read_all(good[i]);
        if (!got.done)
            fail_msg("%s: %u %d", good[i], got.fail.why, got.fail.error);
    }
    static const char *const bad[] = {"d/out", "etc",  "magic/etc/passwd",
                                      "..",    "../x", "d/../../x"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        read_all(bad[i]);
        expect_why(FILES_WHY_ESCAPE, EXDEV);
        write_file((struct files_request){0}, bad[i], "x");
        expect_why(FILES_WHY_ESCAPE, EXDEV);
    }
    read_all("loop");
    expect_why(FILES_WHY_ERRNO, ELOOP);
    /* Removing a link removes the link. */
    ask((struct files_request){.op = FILES_REMOVE}, "etc", NULL, NULL);
    assert_true(got.done);
    assert_int_equal(access("/etc/passwd", F_OK), 0);
    assert_int_equal(faccessat(AT_FDCWD, at("etc"), F_OK, AT_SYMLINK_NOFOLLOW), -1);
}

static void writes_in_one_step_and_keeps_the_mode(void **state)
{
    struct stat before, after;
    write_file((struct files_request){.flags = FILES_PARENTS, .mode = 0640}, "a/b/new", "one");
    assert_true(got.done && got.result.created);
    assert_string_equal(content("a/b/new"), "one");
    assert_int_equal(stat(at("a/b/new"), &before), 0);
    assert_int_equal(before.st_mode & 0777, 0640);
    assert_int_equal(chmod(at("a/b/new"), 0600), 0);
    write_file((struct files_request){.flags = FILES_SYNC}, "a/b/new", "two");
    assert_true(got.done && !got.result.created);
    assert_int_equal(stat(at("a/b/new"), &after), 0);
    assert_int_equal(after.st_mode & 0777, 0600);
    assert_true(after.st_ino != before.st_ino); /* a reader of the old one keeps it whole */
    assert_int_equal(got.stat.tag.ino, after.st_ino);
    assert_string_equal(content("a/b/new"), "two");
    assert_int_equal(entries_of("a/b"), 1);
    write_file((struct files_request){0}, "no/such/dir", "x");
    expect_why(FILES_WHY_ERRNO, ENOENT);
    write_file((struct files_request){.flags = FILES_APPEND}, "a/b/new", "+");
    assert_true(got.done);
    assert_string_equal(content("a/b/new"), "two+");
    write_file((struct files_request){.flags = FILES_APPEND}, "a/b/fresh", "f");
    assert_true(got.done && got.result.created);
}

/* An upload that breaks off leaves everything as it was. */
static void content_without_an_end_is_dropped(void **state)
{
    put("f", "old");
    for (int append = 0; append < 2; append++) {
        memset(&got, 0, sizeof(got));
        struct running r =
            begin((struct files_request){.op = FILES_WRITE, .flags = append ? FILES_APPEND : 0},
                  "f", NULL, NULL);
        send_data(&r, "new");
        finish(&r);
        expect_why(FILES_WHY_CUT_OFF, 0);
        assert_string_equal(content("f"), "old");
    }
    assert_int_equal(entries_of("."), 1);
}

static void conditions_hold(void **state)
{
    put("f", "old");
    ask((struct files_request){.op = FILES_STAT}, "f", NULL, NULL);
    struct files_tag tag = got.stat.tag;
    write_file((struct files_request){.flags = FILES_MUST_NOT_EXIST}, "f", "x");
    expect_why(FILES_WHY_CHANGED, EEXIST);
    write_file((struct files_request){.flags = FILES_MUST_EXIST}, "g", "x");
    expect_why(FILES_WHY_CHANGED, ENOENT);
    write_file((struct files_request){.flags = FILES_MUST_MATCH, .expect = tag}, "f", "new");
    assert_true(got.done);
    write_file((struct files_request){.flags = FILES_MUST_MATCH, .expect = tag}, "f", "newer");
    expect_why(FILES_WHY_CHANGED, 0);
    assert_string_equal(content("f"), "new");
    ask((struct files_request){.op = FILES_REMOVE, .flags = FILES_MUST_MATCH, .expect = tag}, "f",
        NULL, NULL);
    expect_why(FILES_WHY_CHANGED, 0);
    write_file((struct files_request){.flags = FILES_MUST_NOT_EXIST}, "g", "x");
    assert_true(got.done && got.result.created);
}

/* Two who read the same state: one of them loses, also when they come at once. */
static void of_two_conditional_writes_one_wins(void **state)
{
    for (int i = 0; i < 20; i++) {
        put("f", "old");
        ask((struct files_request){.op = FILES_STAT}, "f", NULL, NULL);
        struct files_request q = {
            .op = FILES_WRITE, .flags = FILES_MUST_MATCH, .expect = got.stat.tag};
        memset(&got, 0, sizeof(got));
        struct running a = begin(q, "f", NULL, NULL), b = begin(q, "f", NULL, NULL);
        send_data(&a, "a");
        send_data(&b, "b");
        send_end(&a);
        send_end(&b);
        finish(&a);
        bool first = got.done;
        memset(&got, 0, sizeof(got));
        finish(&b);
        assert_int_equal(first + got.done, 1);
        assert_string_equal(content("f"), first ? "a" : "b");
    }
}

static void lists_by_pages(void **state)
{
    char name[32];
    for (int i = 0; i < 25; i++) {
        (void)snprintf(name, sizeof(name), "f%02d", i);
        put(name, "");
    }
    put("odd\nname\xff", "");
    ask((struct files_request){.op = FILES_LIST, .length = 10}, ".", NULL, NULL);
    assert_true(got.done && got.result.cut == FILES_CUT_ENTRIES && got.n_names == 10);
    assert_int_equal(got.result.total, 26);
    assert_string_equal(got.names[0], "f00");
    ask((struct files_request){.op = FILES_LIST, .length = 10}, ".", "f19", NULL);
    assert_true(got.done && got.result.cut == FILES_CUT_NONE && got.n_names == 6);
    assert_string_equal(got.names[0], "f20");
    assert_string_equal(got.names[5], "odd\nname\xff");
    ask((struct files_request){.op = FILES_LIST, .length = 0}, ".", NULL, NULL);
    expect_why(FILES_WHY_ERRNO, EINVAL);
}

static void lines_come_by_number_and_size(void **state)
{
    static const struct {
        uint64_t offset, length, max;
        const char *want;
        uint64_t last, next;
        enum files_cut cut;
    } cases[] = {
        {1, 10, 100, "one\n\nthree\nfour", 4, 0, FILES_CUT_NONE},
        {2, 2, 100, "\nthree", 3, 4, FILES_CUT_LINES},
        {1, 10, 4, "one", 1, 2, FILES_CUT_BYTES},
        {1, 10, 5, "one\n", 2, 3, FILES_CUT_BYTES},
        {3, 10, 3, "", 2, 3, FILES_CUT_BYTES},
        {4, 1, 4, "four", 4, 0, FILES_CUT_NONE},
        {9, 1, 100, "", 8, 0, FILES_CUT_NONE},
    };
    put("f", "one\n\nthree\nfour");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        ask((struct files_request){.op = FILES_LINES,
                                   .offset = cases[i].offset,
                                   .length = cases[i].length,
                                   .max = cases[i].max},
            "f", NULL, NULL);
        assert_true(got.done);
        got.data[got.n_data] = '\0';
        assert_string_equal(got.data, cases[i].want);
        assert_int_equal(got.result.last, cases[i].last);
        assert_int_equal(got.result.next, cases[i].next);
        assert_int_equal(got.result.cut, cases[i].cut);
    }
}

static void edits_what_is_unique(void **state)
{
    char *large = xcalloc(1, FILES_EDIT_MAX + 2);
    put("f", "a b a");
    ask((struct files_request){.op = FILES_EDIT}, "f", "b", "B");
    assert_true(got.done && got.result.total == 1);
    assert_string_equal(content("f"), "a B a");
    ask((struct files_request){.op = FILES_EDIT}, "f", "a", "x");
    expect_why(FILES_WHY_PLACES, EEXIST);
    assert_int_equal(got.fail.n, 2);
    ask((struct files_request){.op = FILES_EDIT}, "f", "none", "x");
    expect_why(FILES_WHY_NO_PLACE, ENOENT);
    ask((struct files_request){.op = FILES_EDIT, .flags = FILES_ALL}, "f", "a", "");
    assert_true(got.done && got.result.total == 2);
    assert_string_equal(content("f"), " B ");
    ask((struct files_request){.op = FILES_EDIT}, "g", "a", "b");
    expect_why(FILES_WHY_ERRNO, ENOENT);
    memset(large, 'x', FILES_EDIT_MAX + 1);
    put("large", large);
    ask((struct files_request){.op = FILES_EDIT}, "large", "y", "z");
    expect_why(FILES_WHY_TOO_LARGE, EFBIG);
    large[FILES_EDIT_MAX] = '\0';
    large[0] = 'y';
    put("large", large);
    ask((struct files_request){.op = FILES_EDIT}, "large", "y", "zz");
    expect_why(FILES_WHY_TOO_LARGE, EOVERFLOW);
    free(large);
}

static void changes_trees(void **state)
{
    ask((struct files_request){.op = FILES_MKDIR}, "a/b", NULL, NULL);
    expect_why(FILES_WHY_ERRNO, ENOENT);
    ask((struct files_request){.op = FILES_MKDIR, .flags = FILES_PARENTS}, "a/b", NULL, NULL);
    assert_true(got.done && got.result.created);
    ask((struct files_request){.op = FILES_MKDIR, .flags = FILES_PARENTS}, "a/b/", NULL, NULL);
    assert_true(got.done && !got.result.created);
    ask((struct files_request){.op = FILES_MKDIR}, "a/b", NULL, NULL);
    expect_why(FILES_WHY_ERRNO, EEXIST);
    put("a/b/f", "x");
    put("g", "y");
    ask((struct files_request){.op = FILES_MOVE, .flags = FILES_MUST_NOT_EXIST}, "g", "a/b/f",
        NULL);
    expect_why(FILES_WHY_CHANGED, EEXIST);
    ask((struct files_request){.op = FILES_MOVE}, "g", "a/b/f", NULL);
    assert_true(got.done);
    assert_string_equal(content("a/b/f"), "y");
    ask((struct files_request){.op = FILES_REMOVE}, "a", NULL, NULL);
    expect_why(FILES_WHY_ERRNO, ENOTEMPTY);
    ask((struct files_request){.op = FILES_REMOVE, .flags = FILES_RECURSIVE}, "a", NULL, NULL);
    assert_true(got.done);
    assert_int_equal(entries_of("."), 0);
    ask((struct files_request){.op = FILES_REMOVE, .flags = FILES_RECURSIVE}, ".", NULL, NULL);
    expect_why(FILES_WHY_ERRNO, EBUSY);
}

static void globs(void **state)
{
    static const struct {
        const char *pattern, *path;
        bool match;
    } cases[] = {
        {"*.py", "a.py", true},
        {"*.py", "d/a.py", true},
        {"*.py", "a.pyc", false},
        {"src/*.c", "src/a.c", true},
        {"src/*.c", "x/src/a.c", true},
        {"src/*.c", "src/x/a.c", false},
        {"src/**/*.c", "src/a.c", true},
        {"src/**/*.c", "src/x/y/a.c", true},
        {"**/*.c", "a.c", true},
        {"**", "a/b", true},
        {"a/**", "a/b/c", true},
        {"a/**", "b", false},
        {"*.{c,h}", "d/a.h", true},
        {"*.{c,h}", "a.o", false},
        {"{a,b{c,d}}/x", "bd/x", true},
        {"{a,b{c,d}}/x", "b/x", false},
        {"[a-c]?", "bz", true},
        {"[!a-c]?", "bz", false},
        {"[]x]", "]", true},
        {"?", "\xc3\xa9", true},
        {"a\\*", "a*", true},
        {"a\\*", "ab", false},
        {"[", "[", true},
        {".*", ".hidden", true},
        {"*", ".hidden", true},
        {"/abs/*.c", "abs/a.c", true},
        {"*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false},
        {"**/a/**/a/**/b", "a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a", false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct globs *g = globs_new(cases[i].pattern);
        assert_non_null(g);
        if (globs_match(g, cases[i].path) != cases[i].match)
            fail_msg("%s %s", cases[i].pattern, cases[i].path);
        globs_free(g);
    }
    assert_null(globs_new("{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}"));
}

static void finds_the_newest_first(void **state)
{
    static const char *const names[] = {"old.c", "mid.c", "sub/new.c"};
    assert_int_equal(mkdir(at("sub"), 0755), 0);
    assert_int_equal(mkdir(at("node_modules"), 0755), 0);
    put("node_modules/x.c", "");
    for (int i = 0; i < 3; i++) {
        struct timespec t[2] = {{.tv_sec = 1000 + i}, {.tv_sec = 1000 + i}};
        put(names[i], "");
        assert_int_equal(utimensat(AT_FDCWD, at(names[i]), t, 0), 0);
    }
    ask((struct files_request){.op = FILES_GLOB, .length = 2}, ".", "*.c", NULL);
    assert_true(got.done && got.n_names == 2 && got.result.total == 3);
    assert_int_equal(got.result.cut, FILES_CUT_MATCHES);
    assert_string_equal(got.names[0], "sub/new.c");
    assert_string_equal(got.names[1], "mid.c");
}

static void searches_lines(void **state)
{
    char line[1200];
    assert_int_equal(mkdir(at("s"), 0755), 0);
    put("s/a.txt", "first\nneedle one  \nlast needle");
    put("b.py", "needle\n");
    int fd = open(at("bin"), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_int_equal(write(fd, "needle\0x\n", 9), 9);
    (void)close(fd);
    assert_int_equal(mkfifo(at("fifo"), 0644), 0);
    struct files_request q = {.op = FILES_GREP, .length = 200};
    ask(q, ".", "needle", NULL);
    assert_true(got.done && got.n_names == 3 && got.result.cut == FILES_CUT_NONE);
    assert_string_equal(got.names[0], "b.py");
    assert_string_equal(got.names[1], "s/a.txt");
    assert_int_equal(got.matches[1].line, 2);
    assert_string_equal(got.lines[1], "needle one");
    assert_int_equal(got.matches[2].line, 3);
    ask(q, ".", "^needle$", "*.py");
    assert_int_equal(got.n_names, 1);
    ask(q, "s/a.txt", "needle", NULL);
    assert_true(got.n_names == 2 && got.names[0][0] == '\0');
    q.flags = FILES_GREP_NAMES;
    ask(q, ".", "needle", NULL);
    assert_true(got.n_names == 2 && got.matches[1].line == 2);
    q.flags = FILES_LITERAL;
    ask(q, ".", "n.edle", NULL);
    assert_true(got.done && got.n_names == 0);
    q.flags = 0;
    ask(q, ".", "(", NULL);
    expect_why(FILES_WHY_PATTERN, EINVAL);
    assert_true(strlen(got.text) > 0);
    q.length = 1;
    ask(q, ".", "needle", NULL);
    assert_true(got.n_names == 1 && got.result.cut == FILES_CUT_MATCHES);
    memset(line, 'x', sizeof(line) - 1);
    line[sizeof(line) - 1] = '\0';
    put("long", line);
    q.length = 10;
    ask(q, "long", "x$", NULL);
    assert_int_equal(got.n_names, 1);
    assert_int_equal(got.matches[0].text_len, FILES_GREP_LINE_MAX);
    assert_int_equal(got.matches[0].flags, FILES_MATCH_CUT);
    assert_int_equal(got.result.cut, FILES_CUT_LINE);
}

/* Waits until an event of that kind about that name has come. */
static void await(struct running *r, enum files_change change, const char *name)
{
    for (size_t seen = 0;; seen++) {
        while (seen == got.n_names)
            assert_true(take(r));
        if (got.changes[seen] == change && str_eq(got.names[seen], name))
            return;
    }
}

static void watches_below(void **state)
{
    memset(&got, 0, sizeof(got));
    assert_int_equal(mkdir(at("w"), 0755), 0);
    assert_int_equal(mkdir(at("w/d"), 0755), 0);
    struct running r =
        begin((struct files_request){.op = FILES_WATCH, .flags = FILES_RECURSIVE}, "w", NULL, NULL);
    while (!got.has_stat)
        assert_true(take(&r));
    put("w/d/f", "x");
    await(&r, FILES_CREATED, "d/f");
    await(&r, FILES_CLOSED, "d/f");
    assert_int_equal(rename(at("w/d/f"), at("w/g")), 0);
    await(&r, FILES_MOVED_FROM, "d/f");
    await(&r, FILES_MOVED_TO, "g");
    assert_int_equal(unlink(at("w/g")), 0);
    await(&r, FILES_DELETED, "g");
    got.n_names = 0;
    assert_int_equal(path_remove_tree_at(AT_FDCWD, at("w")), 0);
    await(&r, FILES_GONE, "");
    finish(&r);
    assert_true(got.done);
    /* It ends when nobody listens. */
    memset(&got, 0, sizeof(got));
    r = begin((struct files_request){.op = FILES_WATCH}, ".", NULL, NULL);
    while (!got.has_stat)
        assert_true(take(&r));
    finish(&r);
    assert_true(got.done);
}

static void nonsense_is_refused(void **state)
{
    ask((struct files_request){.op = FILES_OP_MAX}, ".", NULL, NULL);
    expect_why(FILES_WHY_REQUEST, EBADMSG);
    ask((struct files_request){.op = FILES_STAT, .version = 77}, ".", NULL, NULL);
    expect_why(FILES_WHY_REQUEST, EBADMSG);
    memset(&got, 0, sizeof(got));
    struct running r = begin((struct files_request){.op = FILES_WRITE}, "f", NULL, NULL);
    struct files_head h = {.type = FILES_FRAME_DATA, .len = FILES_FRAME_MAX + 1};
    (void)fd_write_all(r.in, &h, sizeof(h));
    finish(&r);
    expect_why(FILES_WHY_REQUEST, EBADMSG);
    assert_int_equal(entries_of("."), 0);
}

#define IN_DIR(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(reads_all_and_ranges),
        IN_DIR(refuses_what_is_no_file),
        IN_DIR(links_are_followed_but_not_out),
        IN_DIR(writes_in_one_step_and_keeps_the_mode),
        IN_DIR(content_without_an_end_is_dropped),
        IN_DIR(conditions_hold),
        IN_DIR(of_two_conditional_writes_one_wins),
        IN_DIR(lists_by_pages),
        IN_DIR(lines_come_by_number_and_size),
        IN_DIR(edits_what_is_unique),
        IN_DIR(changes_trees),
        cmocka_unit_test(globs),
        IN_DIR(finds_the_newest_first),
        IN_DIR(searches_lines),
        IN_DIR(watches_below),
        IN_DIR(nonsense_is_refused),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
