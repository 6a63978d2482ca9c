/* SPDX-License-Identifier: Apache-2.0 */

/* Checks image references, and the labels and volumes that an image declares. */

#include <assert.h>
#include <string.h>

#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/json.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"

/* The grammar of distribution/reference:
 *
 *   reference := [domain "/"] component ("/" component)* [":" tag] ["@" digest]
 *   domain    := host [":" port], told from a component by a '.', a ':' or "localhost"
 *   component := [a-z0-9]+ (("." | "_" | "__" | "-"+) [a-z0-9]+)*
 *   tag       := [A-Za-z0-9_][A-Za-z0-9_.-]{0,127}
 *   digest    := "sha256:" 64 lower-case hex digits
 *
 * An id, "sha256:" and hex digits or the digits alone, is a name too. */

#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define UPPER "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS "0123456789"
#define REFERENCE_MAX 512U
#define NAME_MAX_LEN 255U
#define TAG_MAX 128U
#define DIGEST_LEN 64U
#define VOLUMES_MAX 32U
#define LABEL_BYTES_MAX (64U * 1024U)
#define ESCAPE_MAX 6U    /* bytes that JSON may need for one */
#define LISTED_MAX 8192U /* what else a list says of a container */

static_assert((LABEL_BYTES_MAX * ESCAPE_MAX + LISTED_MAX) * ENGINE_PAGE < ENGINE_BODY_MAX,
              "a page of containers fits into an answer, whatever labels their images have");

static bool digest_valid(const char *s)
{
    size_t len = strlen(s);
    return len == DIGEST_LEN && strspn(s, DIGITS "abcdef") == len;
}

static bool tag_valid(const char *s, size_t len)
{
    return len > 0 && len <= TAG_MAX && s[0] != '.' && s[0] != '-' &&
           strspn(s, LOWER UPPER DIGITS "_.-") >= len;
}

static bool component_valid(const char *s, size_t len)
{
    size_t at = 0;
    for (;;) {
        size_t word = strspn(s + at, LOWER DIGITS);
        word = word < len - at ? word : len - at;
        if (word == 0)
            return false;
        at += word;
        if (at == len)
            return true;
        size_t dashes = strspn(s + at, "-");
        if (dashes > 0)
            at += dashes;
        else if (s[at] == '_' && s[at + 1] == '_')
            at += 2;
        else if (s[at] == '_' || s[at] == '.')
            at++;
        else
            return false;
        if (at >= len)
            return false;
    }
}

static bool domain_valid(const char *s, size_t len)
{
    size_t host = strspn(s, LOWER UPPER DIGITS ".-");
    if (host == 0 || host > len || s[0] == '.' || s[0] == '-' || s[host - 1] == '.' ||
        s[host - 1] == '-')
        return false;
    if (host == len)
        return true;
    size_t port = strspn(s + host + 1, DIGITS);
    return s[host] == ':' && port > 0 && port <= 5 && host + 1 + port == len;
}

static bool is_domain(const char *s, size_t len)
{
    return memchr(s, '.', len) != NULL || memchr(s, ':', len) != NULL ||
           (len == strlen("localhost") && strncmp(s, "localhost", len) == 0);
}

/* Without tag and digest. */
static bool name_valid(const char *s, size_t len)
{
    const char *slash = memchr(s, '/', len);
    if (len == 0 || len > NAME_MAX_LEN)
        return false;
    if (slash != NULL && is_domain(s, (size_t)(slash - s))) {
        if (!domain_valid(s, (size_t)(slash - s)))
            return false;
        len -= (size_t)(slash - s) + 1;
        s = slash + 1;
    }
    for (;;) {
        slash = len > 0 ? memchr(s, '/', len) : NULL;
        size_t part = slash != NULL ? (size_t)(slash - s) : len;
        if (part == 0 || !component_valid(s, part))
            return false;
        if (slash == NULL)
            return true;
        s += part + 1;
        len -= part + 1;
    }
}

static bool reference_valid(const char *s)
{
    size_t len = strlen(s);
    const char *at = strchr(s, '@');
    if (len > REFERENCE_MAX)
        return false;
    if (strncmp(s, "sha256:", strlen("sha256:")) == 0)
        return digest_valid(s + strlen("sha256:"));
    if (at != NULL) {
        if (strncmp(at, "@sha256:", strlen("@sha256:")) != 0 ||
            !digest_valid(at + strlen("@sha256:")))
            return false;
        len = (size_t)(at - s);
    }
    const char *colon = memrchr(s, ':', len), *slash = memrchr(s, '/', len);
    if (colon != NULL && (slash == NULL || colon > slash)) {
        if (!tag_valid(colon + 1, len - (size_t)(colon - s) - 1))
            return false;
        len = (size_t)(colon - s);
    }
    return name_valid(s, len);
}

int engine_image_check(const char *reference, struct err *err)
{
    if (reference[0] == '\0')
        return err_set(err, ERR_INVALID, "image must not be empty on this backend");
    if (!reference_valid(reference))
        return err_set(err, ERR_INVALID, "image '%.100s' is not a valid image reference",
                       reference);
    return 0;
}

int engine_image_labels(const struct json *image, const char *reference, struct err *err)
{
    const struct json *labels = json_get(json_get(image, "Config"), "Labels");
    size_t bytes = 0;
    for (void *it = json_iter(labels); it != NULL; it = json_iter_next(labels, it))
        bytes += strlen(json_iter_key(it)) + json_str_len(json_iter_value(it)) + 6;
    if (bytes > LABEL_BYTES_MAX)
        return err_set(err, ERR_LIMIT, "image %.100s has %zu bytes of labels; %u is the most",
                       reference, bytes, LABEL_BYTES_MAX);
    return 0;
}

/* What nobody may cover. */
static const char *const kept[] = {"/", "/.box", "/proc", "/sys", "/dev"};

static bool is_kept(const char *path)
{
    for (size_t i = 0; i < ARRAY_SIZE(kept); i++) {
        size_t len = strlen(kept[i]);
        if (str_eq(path, kept[i]) || (len > 1 && str_starts(path, kept[i]) && path[len] == '/'))
            return true;
    }
    return false;
}

static bool is_ours(const char *path, const struct spec *spec, const struct engine_mounts *mounts)
{
    bool ours = str_eq(path, "/tmp") || str_eq(path, spec->mount_path);
    for (size_t i = 0; i < mounts->n; i++)
        ours = ours || str_eq(path, mounts->list[i].target);
    return ours;
}

/* A volume is a writable directory on the engine's disk that nothing limits. Where the root is
 * read-only something else has to be in its place, so each is asked for by its path. */
int engine_image_volumes(const struct json *image, const struct spec *spec,
                         const struct engine_mounts *mounts, char ***ret, struct err *err)
{
    const struct json *volumes = json_get(json_get(image, "Config"), "Volumes");
    AUTO_STRV char **list = NULL;
    if (json_len(volumes) > VOLUMES_MAX)
        return err_set(err, ERR_LIMIT, "image %.100s declares %zu volumes; %u is the most",
                       spec->image, json_len(volumes), VOLUMES_MAX);
    for (void *it = json_iter(volumes); it != NULL; it = json_iter_next(volumes, it)) {
        AUTO_FREE char *path = xstrdup(json_iter_key(it));
        for (size_t len = strlen(path); len > 1 && path[len - 1] == '/'; len--)
            path[len - 1] = '\0';
        if (!path_is_clean_absolute(path) || is_kept(path))
            return err_set(err, ERR_DENIED,
                           "image %.100s declares a volume at '%.60s'; that is not "
                           "possible here",
                           spec->image, path);
        if (!is_ours(path, spec, mounts))
            strv_add(&list, path);
    }
    *ret = TAKE_PTR(list);
    return 0;
}
