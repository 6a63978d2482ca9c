/* SPDX-License-Identifier: Apache-2.0 */

/* The output schemas of the agent's tools, for programs (docs/reference/tools.md has them for
 * people). A tool that refuses answers `ok` and `error` alone. */

#include <string.h>

#include "base/str.h"
#include "front/mcp/mcp_internal.h"

/* clang-format off */
#define OK {"ok", "boolean", "Whether it worked.", false}
#define CUT \
    {"truncated", "boolean", "Not all is shown.", true}, \
    {"truncated_by", "string?", "Which limit cut it.", true}
#define ERROR {"error", "string", "Why not.", true}

static const struct mcp_output exec_output[] = {
    OK, ERROR, CUT,
    {"session_id", "string", "Where it ran.", true},
    {"backend", "string", "What isolates the session.", true},
    {"status", "string", "completed or timed_out.", true},
    {"exit_code", "integer?", "Of the command; null when it ran out of time.", true},
    {"stdout", "string", "Standard output, shortened in the middle where it is long.", true},
    {"stderr", "string", "Standard error, likewise.", true},
    {"stdout_truncated", "boolean", "More was written than is shown.", true},
    {"stderr_truncated", "boolean", "More was written than is shown.", true},
    {"stdout_id", "string", "Name of the whole output, where it was kept.", true},
    {"stderr_id", "string", "Name of the whole output, where it was kept.", true},
    {"duration_ms", "number", "How long it ran.", true},
    {"outcome", "string", "How it ended: exited, signaled, timed_out, …", true},
    {"preview", "string", "Both streams as one text.", true},
    {0},
};

static const struct mcp_output read_output[] = {
    OK, ERROR, CUT,
    {"content", "string", "Lines of the file, names in the directory, or base64.", true},
    {"start_line", "integer", "First line shown.", true},
    {"end_line", "integer", "Last line shown.", true},
    {"next_offset", "integer?", "Go on with this offset; null at the end.", true},
    {"max_lines", "integer", "Lines that were asked for.", true},
    {"max_bytes", "integer", "Bytes that were asked for.", true},
    {"is_directory", "boolean", "It is a directory.", true},
    {"total", "integer", "Entries of the directory.", true},
    {"encoding", "string", "base64.", true},
    {"byte_offset", "integer", "base64: first byte shown.", true},
    {"length", "integer", "base64: bytes shown.", true},
    {"size_bytes", "integer", "base64: of the file.", true},
    {"has_more", "boolean", "base64: there is more.", true},
    {"next_byte_offset", "integer?", "base64: go on with this byte_offset; null at the end.", true},
    {0},
};

static const struct mcp_output write_output[] = {
    OK, ERROR,
    {"path", "string", "The file.", true},
    {"size_bytes", "integer", "Its size now.", true},
    {"created", "boolean", "It was not there before.", true},
    {0},
};

static const struct mcp_output edit_output[] = {
    OK, ERROR,
    {"path", "string", "The file.", true},
    {"size_bytes", "integer", "Its size now.", true},
    {"replacements", "integer", "Places that were changed.", true},
    {0},
};

static const struct mcp_output glob_output[] = {
    OK, ERROR, CUT,
    {"matches", "array", "Paths, newest first.", true},
    {"preview", "string", "The same, one a line.", true},
    {"total", "integer", "Of all that match.", true},
    {0},
};

static const struct mcp_output grep_output[] = {
    OK, ERROR, CUT,
    {"matches", "array", "Lines, files, or counts of lines.", true},
    {"total", "integer", "Of those shown.", true},
    {0},
};
/* clang-format on */

const struct mcp_output *mcp_agent_output(const char *name)
{
    static const struct {
        const char *name;
        const struct mcp_output *output;
    } tools[] = {{"exec", exec_output}, {"read", read_output}, {"write", write_output},
                 {"edit", edit_output}, {"glob", glob_output}, {"grep", grep_output}};

    for (size_t i = 0; i < ARRAY_SIZE(tools); i++)
        if (str_eq(tools[i].name, name))
            return tools[i].output;
    return NULL;
}

static void write_type(const char *type, struct jw *w)
{
    size_t n = strlen(type);
    bool nullable = type[n - 1] == '?';

    jw_key(w, "type");
    if (nullable)
        jw_array(w);
    jw_strn(w, type, nullable ? n - 1 : n);
    if (nullable) {
        jw_str(w, "null");
        jw_array_end(w);
    }
}

void mcp_output_write(const struct mcp_output *output, struct jw *w)
{
    jw_object(w);
    jw_kstr(w, "type", "object");
    jw_key(w, "properties");
    jw_object(w);
    for (const struct mcp_output *o = output; o != NULL && o->name != NULL; o++) {
        jw_key(w, o->name);
        jw_object(w);
        write_type(o->type, w);
        jw_kstr(w, "description", o->doc);
        jw_object_end(w);
    }
    jw_object_end(w);
    jw_key(w, "required");
    jw_array(w);
    for (const struct mcp_output *o = output; o != NULL && o->name != NULL; o++)
        if (!o->optional)
            jw_str(w, o->name);
    jw_array_end(w);
    jw_object_end(w);
}
