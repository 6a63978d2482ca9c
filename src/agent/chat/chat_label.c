/* SPDX-License-Identifier: Apache-2.0 */

/* The labels of a chat sandbox, and the UUIDs and times in them. */

#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "agent/chat/chat_internal.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "base/strv.h"
#include "spec/coerce.h"

#define UUID_DIGITS 32
#define USEC_NS 1000U

enum label { LABEL_SESSION, LABEL_CHAT, LABEL_EXPIRES };
const char *const chat_label_names[] = {
    [LABEL_SESSION] = "session_id", [LABEL_CHAT] = "chat_id", [LABEL_EXPIRES] = "expires_at", NULL};

/* Takes "urn:uuid:" and braces away; the length of what is left. */
static size_t unwrap(const char **text)
{
    static const char prefix[] = "urn:uuid:";
    if (str_starts(*text, prefix))
        *text += strlen(prefix);
    size_t len = strlen(*text);
    if (len < 2 || (*text)[0] != '{' || (*text)[len - 1] != '}')
        return len;
    ++*text;
    return len - 2;
}

/* Hyphens may stand anywhere. */
int chat_uuid_parse(const char *text, char ret[static CHAT_UUID_SIZE])
{
    size_t digits = 0, at = 0, len = unwrap(&text);
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '-')
            continue;
        if (!isxdigit((unsigned char)text[i]) || digits == UUID_DIGITS)
            return -EINVAL;
        if (digits >= 8 && digits <= 20 && digits % 4 == 0)
            ret[at++] = '-';
        ret[at++] = (char)tolower((unsigned char)text[i]);
        digits++;
    }
    ret[at] = '\0';
    return digits == UUID_DIGITS ? 0 : -EINVAL;
}

/* Version 4 (RFC 9562). */
void chat_uuid_random(char ret[static CHAT_UUID_SIZE])
{
    char digits[UUID_DIGITS + 1];
    id_random(digits);
    id_random(digits + UUID_DIGITS / 2);
    digits[12] = '4';
    digits[16] = "89ab"[(unsigned char)digits[16] % 4];
    (void)chat_uuid_parse(digits, ret);
}

void chat_time_format(uint64_t real_ns, char ret[static CHAT_TIME_SIZE])
{
    static const char none[] = ".000000";
    clock_format(real_ns, ret, CHAT_TIME_SIZE);
    char *dot = strchr(ret, '.');
    if (dot != NULL && str_starts(dot, none))
        memmove(dot, dot + strlen(none), strlen(dot + strlen(none)) + 1);
}

static const char *chat_label(char *const *labels, const char *name)
{
    size_t len = strlen(name);
    for (; labels != NULL && *labels != NULL; labels++)
        if (strncmp(*labels, name, len) == 0 && (*labels)[len] == '=')
            return *labels + len + 1;
    return NULL;
}

int chat_labels_parse(char *const *labels, struct chat_labels *ret)
{
    const char *session = chat_label(labels, chat_label_names[LABEL_SESSION]);
    const char *chat = chat_label(labels, chat_label_names[LABEL_CHAT]);
    const char *expires = chat_label(labels, chat_label_names[LABEL_EXPIRES]);
    int64_t usec = 0;
    bool zoned = false;
    if (session == NULL || chat == NULL || expires == NULL ||
        chat_uuid_parse(session, ret->session_id) < 0 || chat_uuid_parse(chat, ret->chat_id) < 0 ||
        coerce_time_text(expires, &usec, &zoned) != ISSUE_NONE || !zoned || usec <= 0 ||
        usec > INT64_MAX / (int64_t)USEC_NS)
        return -EINVAL;
    ret->expires_ns = (uint64_t)usec * USEC_NS;
    return 0;
}

char **chat_labels_new(const struct chat_labels *l)
{
    char when[CHAT_TIME_SIZE];
    char **labels = NULL;
    chat_time_format(l->expires_ns, when);
    strv_push(&labels, xasprintf("%s=%s", chat_label_names[LABEL_SESSION], l->session_id));
    strv_push(&labels, xasprintf("%s=%s", chat_label_names[LABEL_CHAT], l->chat_id));
    strv_push(&labels, xasprintf("%s=%s", chat_label_names[LABEL_EXPIRES], when));
    return labels;
}
