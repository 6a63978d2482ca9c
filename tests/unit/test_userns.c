/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include "sandbox/setup/userns.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/str.h"

static void ranges_do_not_overlap_and_fit(void **state)
{
    assert_int_equal(userns_init_id(0), USERNS_BLOCK);
    assert_int_equal(userns_payload_id(0), USERNS_BLOCK + 1);
    assert_int_equal(userns_init_id(1), userns_init_id(0) + USERNS_STRIDE);
    assert_true(userns_payload_id(5) < userns_init_id(6));
    /* Below 2^31: some tools take ids for signed numbers. */
    assert_true(userns_init_id(USERNS_INDEX_MAX - 1) + USERNS_STRIDE - 1 < (1U << 31));
    assert_true(userns_init_id(USERNS_INDEX_MAX - 1) > userns_init_id(0));
}

static int dev_null(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void known_map_is_used_again(void **state)
{
    struct idmaps maps = {0};
    struct err err = {0};
    for (size_t i = 0; i < IDMAPS_MAX; i++) {
        maps.maps[i].key = (struct idmap_key){.index = 7, .uid = (uid_t)i, .gid = 100};
        maps.maps[i].fd = dev_null();
    }
    maps.n = IDMAPS_MAX;
    for (size_t i = 0; i < IDMAPS_MAX; i++) {
        struct idmap_key key = maps.maps[i].key;
        assert_int_equal(idmaps_get(&maps, &key, &err), maps.maps[i].fd);
    }
    /* Each part of the key counts; and there is no room for another. */
    const struct idmap_key others[] = {
        {.index = 8, .uid = 1, .gid = 100},
        {.index = 7, .uid = IDMAPS_MAX, .gid = 100},
        {.index = 7, .uid = 1, .gid = 101},
        {.index = 7, .uid = 1, .gid = 100, .root_too = true},
    };
    for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
        assert_int_equal(idmaps_get(&maps, &others[i], &err), err_code_errno(ERR_LIMIT));
        assert_string_equal(err.msg, "mount sources of more than 8 owners");
    }
    int fd = maps.maps[0].fd;
    idmaps_done(&maps);
    assert_int_equal(maps.n, 0);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    idmaps_done(&maps);
}

static void map_is_made_or_refused_whole(void **state)
{
    struct idmaps maps = {0};
    struct err err = {0};
    int fd = idmaps_get(&maps, &(struct idmap_key){.index = 3, .uid = 1000, .gid = 1000}, &err);
    if (fd < 0) { /* not allowed to map ids that are not ours */
        assert_int_not_equal(err.code, ERR_NONE);
        assert_int_equal(maps.n, 0);
    } else {
        assert_int_equal(maps.n, 1);
        assert_int_equal(
            idmaps_get(&maps, &(struct idmap_key){.index = 3, .uid = 1000, .gid = 1000}, &err), fd);
        int other = idmaps_get(
            &maps, &(struct idmap_key){.index = 3, .uid = 0, .gid = 0, .root_too = true}, &err);
        assert_true(other >= 0 && other != fd);
    }
    /* Whatever happened, the helper that held the namespace is gone. */
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    idmaps_done(&maps);
}

static void process_that_is_not_there_cannot_be_mapped(void **state)
{
    const struct id_pair pair = {0, 0};
    struct err err = {0};
    assert_int_equal(userns_map(0x7ffffffe, &pair, &pair, 1, &err), -ENOENT);
    assert_string_equal(err.msg, "map the session's ids: No such file or directory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_do_not_overlap_and_fit),
        cmocka_unit_test(known_map_is_used_again),
        cmocka_unit_test(map_is_made_or_refused_whole),
        cmocka_unit_test(process_that_is_not_there_cannot_be_mapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
