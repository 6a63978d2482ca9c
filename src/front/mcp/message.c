/* SPDX-License-Identifier: Apache-2.0 */

/* Parses and checks MCP messages, and negotiates the protocol version. */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "front/mcp/mcp_internal.h"
#include "http/codec/crypto.h"

#define META_VERSION "io.modelcontextprotocol/protocolVersion"
#define META_CAPABILITIES "io.modelcontextprotocol/clientCapabilities"

const char *const mcp_legacy_versions[] = {"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05",
                                           NULL};

const char *mcp_negotiate(const char *asked)
{
    for (const char *const *v = mcp_legacy_versions; *v != NULL; v++)
        if (str_eq(*v, asked))
            return *v;
    return mcp_legacy_versions[0];
}

bool mcp_version_known(const char *version)
{
    return str_eq(version, MCP_MODERN) || str_eq(version, mcp_negotiate(version));
}

int mcp_fail(struct mcp_error *why, enum mcp_code code, const char *fmt, ...)
{
    va_list ap;

    *why = (struct mcp_error){.code = code};
    va_start(ap, fmt);
    (void)vsnprintf(why->text, sizeof(why->text), fmt, ap);
    va_end(ap);
    return -EINVAL;
}

/* Reading. */

static bool is_id(const struct json *v)
{
    return json_type(v) == JSON_INT ||
           (json_type(v) == JSON_STRING && json_str_len(v) <= MCP_ID_MAX);
}

/* What every message has, and which of the three it is. */
static int read_envelope(struct mcp_message *m, struct mcp_error *why)
{
    const struct json *method = json_get(m->root, "method");
    const struct json *id = json_get(m->root, "id");
    const struct json *version = json_get(m->root, "jsonrpc");
    bool answers = json_get(m->root, "result") != NULL || json_get(m->root, "error") != NULL;

    if (id != NULL && is_id(id))
        m->id = id;
    if (!str_eq(json_str(version), "2.0"))
        return mcp_fail(why, MCP_INVALID_REQUEST, "jsonrpc must be \"2.0\"");
    if (id != NULL && m->id == NULL)
        return mcp_fail(why, MCP_INVALID_REQUEST,
                        "id must be an integer, or a string of at most %u bytes", MCP_ID_MAX);
    if (method == NULL && answers) {
        m->kind = MCP_RESPONSE;
        return 0;
    }
    m->method = json_str(method);
    if (m->method == NULL || strlen(m->method) != json_str_len(method))
        return mcp_fail(why, MCP_INVALID_REQUEST, "method must be a string");
    m->kind = id != NULL ? MCP_REQUEST : MCP_NOTIFICATION;
    return 0;
}

/* The fields that tell the eras apart, and what the modern one asks of every request. */
static int read_meta(struct mcp_message *m, struct mcp_error *why)
{
    const struct json *meta = json_get(m->params, "_meta");
    const struct json *version = json_get(meta, META_VERSION);
    const struct json *token = json_get(meta, "progressToken");

    if (meta != NULL && json_type(meta) != JSON_OBJECT)
        return mcp_fail(why, MCP_INVALID_PARAMS, "_meta must be an object");
    if (token != NULL && !is_id(token))
        return mcp_fail(why, MCP_INVALID_PARAMS,
                        "progressToken must be an integer, or a string of at most %u bytes",
                        MCP_ID_MAX);
    m->token = token;
    if (version == NULL)
        return 0;
    m->version = json_str(version);
    if (m->version == NULL)
        return mcp_fail(why, MCP_INVALID_PARAMS, META_VERSION " must be a string");
    if (m->kind != MCP_REQUEST)
        return 0;
    if (!str_eq(m->version, MCP_MODERN)) {
        (void)mcp_fail(why, MCP_UNSUPPORTED_VERSION, "Unsupported protocol version");
        (void)snprintf(why->requested, sizeof(why->requested), "%.63s", m->version);
        return -EINVAL;
    }
    if (json_type(json_get(meta, META_CAPABILITIES)) != JSON_OBJECT)
        return mcp_fail(why, MCP_INVALID_PARAMS, "_meta lacks " META_CAPABILITIES ", an object");
    return 0;
}

int mcp_message_parse(const char *text, size_t len, struct mcp_message *ret, struct mcp_error *why)
{
    struct err err = {0};

    *ret = (struct mcp_message){0};
    if (len > MCP_MESSAGE_MAX)
        return mcp_fail(why, MCP_INVALID_REQUEST, "a message has at most %u bytes",
                        MCP_MESSAGE_MAX);
    if (json_parse(text, len, &ret->root, &err) < 0) {
        if (err.sys == ENOMEM)
            return mcp_fail(why, MCP_INTERNAL, "%s", err.msg);
        return mcp_fail(why, err.code == ERR_LIMIT ? MCP_INVALID_REQUEST : MCP_PARSE_ERROR, "%s",
                        err.msg);
    }
    if (json_type(ret->root) == JSON_ARRAY)
        return mcp_fail(why, MCP_INVALID_REQUEST,
                        "batches are not taken: send one message at a time");
    if (json_type(ret->root) != JSON_OBJECT)
        return mcp_fail(why, MCP_INVALID_REQUEST, "a message is a JSON object");
    int r = read_envelope(ret, why);
    if (r < 0 || ret->kind == MCP_RESPONSE)
        return r;
    ret->params = json_get(ret->root, "params");
    if (ret->params != NULL && json_type(ret->params) != JSON_OBJECT) {
        ret->params = NULL;
        return mcp_fail(why, MCP_INVALID_PARAMS, "params must be an object");
    }
    return read_meta(ret, why);
}

void mcp_message_done(struct mcp_message *m)
{
    json_free(m->root);
    *m = (struct mcp_message){0};
}

/* Headers. */

bool mcp_header_matches(const char *header, const char *body)
{
    static const char before[] = "=?base64?", after[] = "?=";
    size_t len = header != NULL ? strlen(header) : 0;

    if (header == NULL || body == NULL)
        return false;
    if (len < sizeof(before) + sizeof(after) - 2 || !str_starts(header, before) ||
        !str_eq(header + len - (sizeof(after) - 1), after))
        return str_eq(header, body);
    header += sizeof(before) - 1;
    len -= sizeof(before) + sizeof(after) - 2;
    AUTO_FREE unsigned char *plain = xcalloc(1, len + 1);
    ssize_t n = http_base64_decode(header, len, plain);
    return n >= 0 && (size_t)n == strlen(body) && memcmp(plain, body, (size_t)n) == 0;
}
