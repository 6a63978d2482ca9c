/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/sha256.h"
#include "base/str.h"

/* Of FIPS 180-4's examples. */
static const struct {
    const char *text;
    size_t times;
    const char *digest;
} vectors[] = {
    {"", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    {"a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
};

static void digests_are_those_of_the_standard(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(vectors); i++) {
        struct sha256 s;
        char hex[SHA256_HEX + 1];
        sha256_init(&s);
        for (size_t k = 0; k < vectors[i].times; k++)
            sha256_add(&s, vectors[i].text, strlen(vectors[i].text));
        sha256_hex(&s, hex);
        assert_string_equal(hex, vectors[i].digest);
    }
}

/* Every length around two blocks, in pieces of every size: where the pieces end does not matter. */
static void pieces_do_not_matter(void **state)
{
    char text[130], whole[SHA256_HEX + 1], parts[SHA256_HEX + 1];
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)(i * 7);
    for (size_t len = 0; len <= sizeof(text); len++) {
        struct sha256 s;
        sha256_init(&s);
        sha256_add(&s, text, len);
        sha256_hex(&s, whole);
        for (size_t piece = 1; piece <= 65; piece += 16) {
            sha256_init(&s);
            for (size_t at = 0; at < len; at += piece)
                sha256_add(&s, text + at, len - at < piece ? len - at : piece);
            sha256_hex(&s, parts);
            assert_string_equal(whole, parts);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_are_those_of_the_standard),
        cmocka_unit_test(pieces_do_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
