/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/common.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"

/* What a receipt says of walls that a session lacks. */

static struct json *written(const struct walls *facts)
{
    AUTO_DONE(buf) struct buf text;
    struct json *made = NULL;
    struct err err = {0};
    struct jw w;
    buf_init(&text, 65536);
    jw_init(&w, &text);
    jw_object(&w);
    walls_write(&w, facts);
    jw_object_end(&w);
    assert_int_equal(jw_end(&w), 0);
    assert_int_equal(json_parse(text.data, text.len, &made, &err), 0);
    return made;
}

/* The reason why a wall is missing; NULL: it is not said to be. */
static const char *reason(const struct json *made, const char *wall)
{
    const struct json *list = json_get(made, "weaker_than_native");
    for (size_t i = 0; i < json_len(list); i++)
        if (str_eq(json_str(json_get(json_at(list, i), "wall")), wall))
            return json_str(json_get(json_at(list, i), "reason"));
    return NULL;
}

static void assert_says(const struct json *made, const char *wall, const char *part)
{
    const char *why = reason(made, wall);
    assert_non_null(why);
    if (strstr(why, part) == NULL)
        fail_msg("%s: '%s' without '%s'", wall, why, part);
}

static void what_box_guest_could_not_make_is_named_with_its_reason(void **state)
{
    struct json *made = written(&(struct walls){
        .posture = "Ns-user:\t4026531837\nNs-time:\t4026531834\nNs-cgroup:\t4026531835\n"
                   "Ns-errno-user:\t1\nNs-errno-time:\t28\nNs-errno-cgroup:\t38\n"});
    assert_says(made, "user-namespace", "AppArmor");
    assert_says(made, "time-namespace", "limit");
    assert_says(made, "cgroup-namespace", "kernel");
    assert_string_equal(json_str(json_get(json_get(made, "namespaces"), "user")),
                        "shared with the host");
    json_free(made);
}

static void root_can_have_no_user_namespace(void **state)
{
    struct json *made = written(
        &(struct walls){.posture = "Ns-user:\t4026531837\nNs-errno-user:\t1\n", .root = true});
    assert_says(made, "user-namespace", "programs are root");
    json_free(made);
}

static void the_namespaces_of_boxd_count_as_the_hosts(void **state)
{
    char posture[64];
    struct stat st;
    assert_int_equal(stat("/proc/self/ns/net", &st), 0);
    (void)snprintf(posture, sizeof(posture), "Ns-net:\t%llu\n", (unsigned long long)st.st_ino);
    struct json *made = written(&(struct walls){.posture = posture});
    assert_says(made, "net-namespace", "engine");
    json_free(made);
}

static void a_session_with_all_of_them_lacks_what_engines_lack(void **state)
{
    struct json *made = written(&(struct walls){.posture = "Ns-user:\t17\nNs-time:\t18\n"});
    assert_null(reason(made, "user-namespace"));
    assert_null(reason(made, "time-namespace"));
    assert_null(reason(made, "private-ids"));
    assert_null(reason(made, "read-only-dev"));
    assert_non_null(reason(made, "landlock"));
    assert_string_equal(json_str(json_get(json_get(made, "namespaces"), "user")), "private");
    json_free(made);
}

static void nonsense_of_a_witness_is_no_namespace(void **state)
{
    struct json *made =
        written(&(struct walls){.posture = "Ns-user:\t-1\nNs-user:\nNs-pid:\t0x4\n"});
    assert_string_equal(json_str(json_get(json_get(made, "namespaces"), "user")), "unknown");
    assert_string_equal(json_str(json_get(json_get(made, "namespaces"), "pid")), "unknown");
    assert_says(made, "user-namespace", "does not tell");
    json_free(made);
}

static void ids_and_devices_are_said(void **state)
{
    struct json *made =
        written(&(struct walls){.posture = "", .writable_dev = true, .ids_shared = "because"});
    assert_says(made, "private-ids", "because");
    assert_says(made, "read-only-dev", "API");
    json_free(made);
}

static void gvisor_has_gaps_of_its_own(void **state)
{
    struct json *made = written(&(struct walls){.posture = "", .gvisor = true});
    assert_null(json_get(made, "namespaces"));
    assert_says(made, "masks", "gVisor's own");
    assert_null(reason(made, "no-control-groups"));
    json_free(made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_box_guest_could_not_make_is_named_with_its_reason),
        cmocka_unit_test(root_can_have_no_user_namespace),
        cmocka_unit_test(the_namespaces_of_boxd_count_as_the_hosts),
        cmocka_unit_test(a_session_with_all_of_them_lacks_what_engines_lack),
        cmocka_unit_test(nonsense_of_a_witness_is_no_namespace),
        cmocka_unit_test(ids_and_devices_are_said),
        cmocka_unit_test(gvisor_has_gaps_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
