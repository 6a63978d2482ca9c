/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sqlite3.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "store/store.h"

struct place {
    char path[64];
    int fd;
};

static int set_up(void **state)
{
    struct place *p = xnew(struct place);
    (void)str_fmt(p->path, sizeof(p->path), "/tmp/box-test-store-XXXXXX");
    assert_non_null(mkdtemp(p->path));
    p->fd = open(p->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(p->fd >= 0);
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    struct place *p = *state;
    (void)close(p->fd);
    assert_int_equal(path_remove_tree_at(AT_FDCWD, p->path), 0);
    free(p);
    return 0;
}

static struct store *opened(const struct place *p)
{
    struct store *s = NULL;
    struct err err = {0};
    if (store_open(p->fd, &s, &err) != 0)
        fail_msg("%s", err.msg);
    return s;
}

/* Everything in the store as one text: "id used record;" and "  id record;" for its processes. */
struct listing {
    struct store *s;
    char text[4096];
};

static void say(struct listing *l, const char *a, const char *b, uint64_t used)
{
    size_t n = strlen(l->text);
    (void)snprintf(l->text + n, sizeof(l->text) - n, "%s %llu %s;", a, (unsigned long long)used, b);
}

static int on_process(void *arg, const char *process_id, uint64_t when, const char *json,
                      size_t len)
{
    assert_int_equal(strlen(json), len);
    say(arg, process_id, json, 0);
    return 0;
}

static int on_session(void *arg, const char *id, uint64_t used, const char *json, size_t len)
{
    assert_int_equal(strlen(json), len);
    say(arg, id, json, used);
    return 0;
}

static int on_names(void *arg, const char *id, uint64_t used, const char *json, size_t len)
{
    char **names = arg;
    for (size_t i = 0; i < 8; i++)
        if (names[i] == NULL) {
            names[i] = xstrdup(id);
            return 0;
        }
    return -E2BIG;
}

static const char *list(struct store *s)
{
    static struct listing l;
    struct err err = {0};
    char *names[9] = {0};
    l = (struct listing){.s = s};
    assert_int_equal(store_each_session(s, on_session, &l, &err), 0);
    assert_int_equal(store_each_session(s, on_names, names, &err), 0);
    for (size_t i = 0; names[i] != NULL; i++) {
        assert_int_equal(store_each_process(s, names[i], on_process, &l, &err), 0);
        free(names[i]);
    }
    return l.text;
}

static void put(struct store *s, const char *id, const char *json)
{
    struct err err = {0};
    assert_int_equal(store_put_session(s, id, json, strlen(json), &err), 0);
}

static void put_process(struct store *s, const char *id, const char *process, const char *json)
{
    struct err err = {0};
    assert_int_equal(store_put_process(s, id, process, json, strlen(json), &err), 0);
}

/* What is written is there after a kill: the copy is of the files as they lie. */
static void records_outlive_the_daemon(void **state)
{
    const struct place *p = *state;
    struct err err = {0};
    AUTO(store) struct store *s = opened(p);
    put(s, "b", "{\"n\":1}");
    put(s, "a/\xc3\xa4 b", "{\"n\":2}");
    put_process(s, "b", "default", "{\"p\":1}");
    put_process(s, "b", "", "{\"p\":2}"); /* any text names a process */
    assert_int_equal(store_set_used(s, "b", 77, &err), 0);
    put(s, "b", "{\"n\":3}"); /* keeps its place and when it was used */
    static const char want[] =
        "b 77 {\"n\":3};a/\xc3\xa4 b 0 {\"n\":2};default 0 {\"p\":1}; 0 {\"p\":2};";
    assert_string_equal(list(s), want);

    struct place copy = {.path = "/tmp/box-test-store-XXXXXX"};
    char command[256];
    assert_non_null(mkdtemp(copy.path));
    (void)snprintf(command, sizeof(command), "cp %s/state.db* %s/", p->path, copy.path);
    assert_int_equal(system(command), 0);
    copy.fd = open(copy.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct store *again = opened(&copy);
    assert_string_equal(list(again), want);
    store_free(again);
    (void)close(copy.fd);
    assert_int_equal(path_remove_tree_at(AT_FDCWD, copy.path), 0);
}

static void dropped_records_are_gone_with_what_belongs_to_them(void **state)
{
    struct err err = {0};
    AUTO(store) struct store *s = opened(*state);
    put(s, "a", "{}");
    put(s, "b", "{}");
    put_process(s, "a", "x", "{}");
    put_process(s, "a", "y", "{}");
    put_process(s, "b", "x", "{}");
    assert_int_equal(store_drop_process(s, "a", "x", &err), 0);
    assert_string_equal(list(s), "a 0 {};b 0 {};y 0 {};x 0 {};");
    assert_int_equal(store_drop_session(s, "a", &err), 0);
    assert_string_equal(list(s), "b 0 {};x 0 {};");
    put(s, "a", "{}"); /* the name is free, and nothing of the old one comes back */
    assert_string_equal(list(s), "b 0 {};a 0 {};x 0 {};");
    assert_int_equal(store_drop_session(s, "nobody", &err), 0);
    assert_int_equal(store_drop_process(s, "b", "nobody", &err), 0);
}

static void process_without_a_session_is_refused(void **state)
{
    struct err err = {0};
    AUTO(store) struct store *s = opened(*state);
    assert_true(store_put_process(s, "a", "x", "{}", 2, &err) < 0);
    assert_non_null(strstr(err.msg, "write a process's record"));
    put(s, "a", "{}");
    put_process(s, "a", "x", "{}");
}

static void record_that_is_too_large_is_refused(void **state)
{
    struct err err = {0};
    AUTO(store) struct store *s = opened(*state);
    AUTO_FREE char *large = xcalloc(1, STORE_RECORD_MAX + 2);
    memset(large, 'x', STORE_RECORD_MAX + 1);
    put(s, "a", "{}");
    assert_int_equal(store_put_session(s, "b", large, STORE_RECORD_MAX + 1, &err),
                     err_code_errno(ERR_LIMIT));
    assert_int_equal(store_put_process(s, "a", "b", large, STORE_RECORD_MAX + 1, &err),
                     err_code_errno(ERR_LIMIT));
    assert_string_equal(list(s), "a 0 {};");
    assert_int_equal(store_put_session(s, "b", large, STORE_RECORD_MAX, &err), 0);
}

static void transaction_is_all_or_nothing(void **state)
{
    const struct place *p = *state;
    struct err err = {0};
    struct store *s = opened(p);
    put(s, "a", "{}");
    assert_int_equal(store_begin(s, &err), 0);
    put(s, "b", "{}");
    assert_int_equal(store_set_used(s, "a", 5, &err), 0);
    assert_int_equal(store_commit(s, &err), 0);
    assert_int_equal(store_begin(s, &err), 0);
    put(s, "c", "{}");
    store_free(s); /* killed in between */
    s = opened(p);
    assert_string_equal(list(s), "a 5 {};b 0 {};");
    store_free(s);
}

static void file_is_for_the_owner_only(void **state)
{
    const struct place *p = *state;
    AUTO(store) struct store *s = opened(p);
    struct stat st;
    put(s, "a", "{}");
    assert_int_equal(fstatat(p->fd, "state.db", &st, 0), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(fstatat(p->fd, "state.db-wal", &st, 0), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void write_file(const struct place *p, const char *name, const char *text)
{
    int fd = openat(p->fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
    (void)close(fd);
}

static void edit(const struct place *p, const char *sql)
{
    sqlite3 *db = NULL;
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/state.db", p->path);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s", sqlite3_errmsg(db));
    (void)sqlite3_close(db);
}

static void damaged_database_is_set_aside(void **state)
{
    const struct place *p = *state;
    char text[32] = "";
    write_file(p, "state.db", "this is no database, and it is longer than its header is\n");
    struct store *s = opened(p);
    put(s, "a", "{}");
    store_free(s);
    assert_true(fd_read_file_at(p->fd, "state.db.damaged", text, sizeof(text)) == -E2BIG);
    s = opened(p); /* the new one is sound */
    assert_string_equal(list(s), "a 0 {};");
    store_free(s);

    /* Tables that are not ours, under our version and under none. */
    edit(p, "DROP TABLE process");
    s = opened(p);
    assert_string_equal(list(s), "");
    store_free(s);
    edit(p, "PRAGMA user_version = 0");
    s = opened(p);
    assert_string_equal(list(s), "");
    store_free(s);

    /* A page in the middle overwritten. */
    s = opened(p);
    for (int i = 0; i < 200; i++) {
        char id[16], json[400];
        (void)snprintf(id, sizeof(id), "s%d", i);
        (void)snprintf(json, sizeof(json), "{\"x\":\"%0300d\"}", i);
        put(s, id, json);
    }
    store_free(s);
    int fd = openat(p->fd, "state.db", O_RDWR | O_CLOEXEC);
    char junk[4096];
    memset(junk, 0x5a, sizeof(junk));
    for (off_t at = 4096; at < 16 * 4096; at += 4096)
        assert_int_equal(pwrite(fd, junk, sizeof(junk), at), sizeof(junk));
    (void)close(fd);
    s = opened(p);
    assert_string_equal(list(s), "");
    store_free(s);
}

static void what_is_no_file_is_set_aside(void **state)
{
    const struct place *p = *state;
    assert_int_equal(symlinkat("/etc/hostname", p->fd, "state.db"), 0);
    store_free(opened(p));
    struct stat st;
    assert_int_equal(fstatat(p->fd, "state.db", &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_true(S_ISREG(st.st_mode));
    assert_int_equal(fstatat(p->fd, "state.db.damaged", &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_true(S_ISLNK(st.st_mode));
}

static void newer_database_is_refused_and_left_alone(void **state)
{
    const struct place *p = *state;
    struct store *s = opened(p);
    struct err err = {0};
    put(s, "a", "{}");
    store_free(s);
    edit(p, "PRAGMA user_version = 3");
    s = NULL;
    assert_int_equal(store_open(p->fd, &s, &err), err_code_errno(ERR_UNSUPPORTED));
    assert_non_null(strstr(err.msg, "newer boxd"));
    assert_null(s);
    edit(p, "PRAGMA user_version = 2");
    s = opened(p);
    assert_string_equal(list(s), "a 0 {};");
    store_free(s);
}

static void triggers_of_an_edited_file_do_not_run(void **state)
{
    const struct place *p = *state;
    store_free(opened(p));
    edit(p, "CREATE TRIGGER t AFTER INSERT ON session BEGIN"
            " INSERT INTO session VALUES (NULL, 'evil', 0, '{}'); END");
    struct store *s = opened(p);
    put(s, "a", "{}");
    assert_string_equal(list(s), "a 0 {};");
    store_free(s);
}

static void hostile_rows_come_back_harmless(void **state)
{
    const struct place *p = *state;
    store_free(opened(p));
    edit(p, "INSERT INTO session VALUES (1, 'a', -5, '{}');"
            "INSERT INTO session VALUES (2, 'a' || char(0) || 'b', 1, '{}');"
            "INSERT INTO session VALUES (3, 'large', 1, printf('%3000000d', 1));");
    AUTO(store) struct store *s = opened(p);
    assert_string_equal(list(s), "a 0 {};large 1 ;");
}

static int refuse(void *arg, const char *id, uint64_t used, const char *json, size_t len)
{
    ++*(int *)arg;
    return -ECANCELED;
}

static void reading_stops_when_asked_to(void **state)
{
    struct err err = {0};
    int n = 0;
    AUTO(store) struct store *s = opened(*state);
    put(s, "a", "{}");
    put(s, "b", "{}");
    assert_int_equal(store_each_session(s, refuse, &n, &err), -ECANCELED);
    assert_int_equal(n, 1);
    put(s, "a", "{\"again\":1}"); /* the reader is not in the way */
    assert_string_equal(list(s), "a 0 {\"again\":1};b 0 {};");
}

static void second_user_of_the_file_is_told(void **state)
{
    const struct place *p = *state;
    AUTO(store) struct store *s = opened(p);
    struct store *other = NULL;
    struct err err = {0};
    put(s, "a", "{}");
    assert_true(store_open(p->fd, &other, &err) < 0);
    assert_non_null(strstr(err.msg, "locked"));
    assert_string_equal(list(s), "a 0 {};"); /* it was not taken for damaged */
}

static int note_answer(void *arg, const char *key, uint64_t expires, const char *json, size_t len)
{
    char *text = arg;
    size_t used = strlen(text);
    (void)snprintf(text + used, 512 - used, "%s=%llu:%.*s;", key, (unsigned long long)expires,
                   (int)len, json);
    return 0;
}

static void answers_are_kept_until_they_expire(void **state)
{
    struct place *p = *state;
    AUTO(store) struct store *s = NULL;
    char text[512] = "";
    struct err err = {0};
    assert_int_equal(store_open(p->fd, &s, &err), 0);
    assert_int_equal(store_put_answer(s, "a", 10, "{}", 2, &err), 0);
    assert_int_equal(store_put_answer(s, "b", 30, "[1]", 3, &err), 0);
    assert_int_equal(store_put_answer(s, "a", 20, "[2]", 3, &err), 0);
    store_free(TAKE_PTR(s));
    assert_int_equal(store_open(p->fd, &s, &err), 0);
    assert_int_equal(store_each_answer(s, note_answer, text, &err), 0);
    assert_string_equal(text, "a=20:[2];b=30:[1];");
    text[0] = '\0';
    assert_int_equal(store_drop_answers(s, 20, 100, &err), 0);
    assert_int_equal(store_each_answer(s, note_answer, text, &err), 0);
    assert_string_equal(text, "b=30:[1];");
    text[0] = '\0';
    assert_int_equal(store_put_answer(s, "c", 40, "[3]", 3, &err), 0);
    assert_int_equal(store_drop_answers(s, 20, 1, &err), 0);
    assert_int_equal(store_each_answer(s, note_answer, text, &err), 0);
    assert_string_equal(text, "c=40:[3];");
    /* One that went makes room: it is the number that are there that counts. */
    text[0] = '\0';
    for (int i = 0; i < 5; i++)
        assert_int_equal(
            store_put_answer(s, "d", 40, "[4]", 3, &err) | store_drop_answer(s, "d", &err), 0);
    assert_int_equal(store_put_answer(s, "e", 40, "[5]", 3, &err), 0);
    assert_int_equal(store_drop_answers(s, 20, 2, &err), 0);
    assert_int_equal(store_each_answer(s, note_answer, text, &err), 0);
    assert_string_equal(text, "c=40:[3];e=40:[5];");
}

/* One that was made before there were answers gets the table, and keeps what it has. */
static void older_database_is_brought_up(void **state)
{
    struct place *p = *state;
    AUTO(store) struct store *s = NULL;
    char text[512] = "";
    struct err err = {0};
    assert_int_equal(store_open(p->fd, &s, &err), 0);
    assert_int_equal(store_put_session(s, "s", "{}", 2, &err), 0);
    store_free(TAKE_PTR(s));
    edit(p, "DROP TABLE answer");
    edit(p, "PRAGMA user_version = 1");
    assert_int_equal(store_open(p->fd, &s, &err), 0);
    assert_int_equal(store_put_answer(s, "a", 10, "{}", 2, &err), 0);
    assert_int_equal(store_each_session(s, note_answer, text, &err), 0);
    assert_string_equal(text, "s=0:{};");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(records_outlive_the_daemon, set_up, tear_down),
        cmocka_unit_test_setup_teardown(dropped_records_are_gone_with_what_belongs_to_them, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(process_without_a_session_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(record_that_is_too_large_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(transaction_is_all_or_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(file_is_for_the_owner_only, set_up, tear_down),
        cmocka_unit_test_setup_teardown(damaged_database_is_set_aside, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_no_file_is_set_aside, set_up, tear_down),
        cmocka_unit_test_setup_teardown(answers_are_kept_until_they_expire, set_up, tear_down),
        cmocka_unit_test_setup_teardown(older_database_is_brought_up, set_up, tear_down),
        cmocka_unit_test_setup_teardown(newer_database_is_refused_and_left_alone, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(triggers_of_an_edited_file_do_not_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(hostile_rows_come_back_harmless, set_up, tear_down),
        cmocka_unit_test_setup_teardown(reading_stops_when_asked_to, set_up, tear_down),
        cmocka_unit_test_setup_teardown(second_user_of_the_file_is_told, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
