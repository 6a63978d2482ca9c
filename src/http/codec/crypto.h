/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The only door to libcrypto in this module. */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Base64 of the SHA-1 of a followed by b: 28 characters and NUL. 0 or a negative errno. */
int http_sha1_base64(const void *a, size_t a_len, const void *b, size_t b_len, char ret[static 29]);

/* SHA-256 in 64 lower-case digits and NUL. 0 or a negative errno. */
int http_sha256_hex(const void *data, size_t len, char ret[static 65]);

/* Base64 of any bytes: HTTP_BASE64_SIZE(len) with the NUL. */
#define HTTP_BASE64_SIZE(len) (((len) + 2) / 3 * 4 + 1)
void http_base64(const void *data, size_t len, char *ret);

/* Padded base64 and nothing else; `ret` holds 3 bytes for every 4 characters. The length, or
 * -EINVAL. */
ssize_t http_base64_decode(const char *s, size_t len, unsigned char *ret);

/* Base64 of 16 bytes from the kernel's random source: 24 characters and NUL. */
void http_random_base64(char ret[static 25]);
void http_random(void *ret, size_t len); /* at most 256 bytes; cannot fail */

/* Compares secrets in a time that tells nothing about `expected`, not even its length. */
bool http_secret_eq(const char *given, size_t given_len, const char *expected, size_t expected_len);
