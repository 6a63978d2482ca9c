/* SPDX-License-Identifier: Apache-2.0 */

/* Digests, base64, random bytes and comparison of secrets, by libcrypto. */

#include "http/codec/crypto.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/random.h>

/* Something to be digested, in two pieces. */
struct input {
    const void *a;
    size_t a_len;
    const void *b;
    size_t b_len;
};

static int digest(const EVP_MD *md, const struct input *in,
                  unsigned char ret[static EVP_MAX_MD_SIZE], unsigned *ret_len)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    int ok = ctx != NULL && EVP_DigestInit_ex(ctx, md, NULL) &&
             EVP_DigestUpdate(ctx, in->a, in->a_len) && EVP_DigestUpdate(ctx, in->b, in->b_len) &&
             EVP_DigestFinal_ex(ctx, ret, ret_len);

    EVP_MD_CTX_free(ctx);
    return ok ? 0 : -EIO;
}

int http_sha1_base64(const void *a, size_t a_len, const void *b, size_t b_len, char ret[static 29])
{
    const struct input in = {a, a_len, b, b_len};
    unsigned char md[EVP_MAX_MD_SIZE];
    unsigned len = 0;
    int r = digest(EVP_sha1(), &in, md, &len);
    if (r < 0)
        return r;
    (void)EVP_EncodeBlock((unsigned char *)ret, md, (int)len);
    return 0;
}

int http_sha256_hex(const void *data, size_t len, char ret[static 65])
{
    static const char digits[] = "0123456789abcdef";
    const struct input in = {data, len, "", 0};
    unsigned char md[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    int r = digest(EVP_sha256(), &in, md, &n);
    if (r < 0)
        return r;
    for (unsigned i = 0; i < n; i++) {
        ret[2 * i] = digits[md[i] >> 4];
        ret[2 * i + 1] = digits[md[i] & 15];
    }
    ret[2 * n] = '\0';
    return 0;
}

void http_base64(const void *data, size_t len, char *ret)
{
    assert(len <= INT_MAX / 2);
    (void)EVP_EncodeBlock((unsigned char *)ret, data, (int)len);
}

void http_random(void *ret, size_t len)
{
    assert(len <= 256); /* up to there getrandom(2) is all or nothing */
    ssize_t n;
    do
        n = getrandom(ret, len, 0);
    while (n < 0 && errno == EINTR);
    assert(n == (ssize_t)len);
}

void http_random_base64(char ret[static 25])
{
    unsigned char raw[16];

    http_random(raw, sizeof(raw));
    (void)EVP_EncodeBlock((unsigned char *)ret, raw, sizeof(raw));
}

bool http_secret_eq(const char *given, size_t given_len, const char *expected, size_t expected_len)
{
    unsigned char a[EVP_MAX_MD_SIZE] = {0};
    unsigned char b[EVP_MAX_MD_SIZE] = {0};
    unsigned a_len = 0;
    unsigned b_len = 0;

    /* Digests have one length, so the comparison does not depend on where or whether the secrets
     * differ in size. */
    const struct input ours = {expected, expected_len, "", 0};
    const struct input theirs = {given, given_len, "", 0};
    if (digest(EVP_sha256(), &theirs, a, &a_len) < 0 || digest(EVP_sha256(), &ours, b, &b_len) < 0)
        return false;
    return expected_len > 0 && CRYPTO_memcmp(a, b, sizeof(a)) == 0;
}

static int digit_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

ssize_t http_base64_decode(const char *s, size_t len, unsigned char *ret)
{
    size_t n = 0;
    if (len % 4 != 0)
        return -EINVAL;
    for (size_t i = 0; i < len; i += 4) {
        bool last = i + 4 == len;
        int pad = last && s[i + 3] == '=' ? (s[i + 2] == '=' ? 2 : 1) : 0;
        uint32_t bits = 0;
        for (int k = 0; k < 4 - pad; k++) {
            int v = digit_value(s[i + (size_t)k]);
            if (v < 0)
                return -EINVAL;
            bits |= (uint32_t)v << (18 - 6 * k);
        }
        for (int k = 0; k < 3 - pad; k++)
            ret[n++] = (unsigned char)(bits >> (16 - 8 * k));
    }
    return (ssize_t)n;
}
