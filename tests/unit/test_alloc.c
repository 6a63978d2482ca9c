/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cleanup.h"

static void new_memory_is_zero(void **state)
{
    AUTO_FREE unsigned *v = xnew_n(unsigned, 1000);

    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(v[i], 0);
}

static void nothing_is_still_a_pointer(void **state)
{
    AUTO_FREE void *a = xcalloc(0, 8);
    AUTO_FREE void *b = xreallocarray(NULL, 0, 8);

    assert_non_null(a);
    assert_non_null(b);
}

static void strings_are_copied_and_cut(void **state)
{
    AUTO_FREE char *all = xstrdup("hello");
    AUTO_FREE char *cut = xstrndup("hello", 2);
    AUTO_FREE char *more = xstrndup("hello", 99);
    AUTO_FREE char *text = xasprintf("%s-%d", "a", 7);

    assert_string_equal(all, "hello");
    assert_string_equal(cut, "he");
    assert_string_equal(more, "hello");
    assert_string_equal(text, "a-7");
}

/* Runs in a child, which is expected to abort. */
static void assert_aborts(void (*fn)(void))
{
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit none = {0};
        (void)setrlimit(RLIMIT_CORE, &none);
        (void)signal(SIGABRT, SIG_DFL);
        (void)close(STDERR_FILENO);
        fn();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
}

/* Volatile, so that the compiler does not see the overflow coming. */
static volatile size_t huge = SIZE_MAX / 2;

static void overflow_calloc(void)
{
    free(xcalloc(huge, 4));
}

static void overflow_realloc(void)
{
    free(xreallocarray(NULL, huge, 4));
}

static void a_product_that_overflows_aborts(void **state)
{
    assert_aborts(overflow_calloc);
    assert_aborts(overflow_realloc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_memory_is_zero),
        cmocka_unit_test(nothing_is_still_a_pointer),
        cmocka_unit_test(strings_are_copied_and_cut),
        cmocka_unit_test(a_product_that_overflows_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
