/* SPDX-License-Identifier: Apache-2.0 */

/* The tables of parameters of each tool. */

#include <stddef.h>

#include "agent/tools_internal.h"
#include "base/regex.h"
#include "base/str.h"
#include "spec/model.h"
#include "spec/spec.h"

#define CONTENT_MAX (8 << 20)
#define NUMBER_MAX 9007199254740991 /* what every JSON reader can count to */

static bool not_empty(const char *s)
{
    return s[0] != '\0';
}

/* clang-format off */
#define PATH_FIELD(type, member, more, deflt, what) \
    {#member, FIELD_STR, (more) | FIELD_TRIM, .offset = offsetof(struct type, member), .text = (deflt), \
     .max = FILES_PATH_MAX - 1, .valid = not_empty, .rule = #member " must not be empty", .doc = (what)}

static const char *const encodings[] = {"text", "base64", NULL};
static const char *const write_modes[] = {"overwrite", "append", NULL};
static const char *const grep_modes[] = {"content", "files_with_matches", "count", NULL};

static const struct field exec_fields[] = {
    {"command", FIELD_STR, FIELD_REQUIRED, .offset = offsetof(struct exec_args, command), .max = SPEC_CMD_MAX,
     .doc = "Shell command to run."},
    {"workdir", FIELD_STR, FIELD_TRIM, .offset = offsetof(struct exec_args, workdir), .text = SPEC_DEFAULT_MOUNT,
     .max = SPEC_PATH_MAX, .doc = "Working directory inside the sandbox."},
    {"timeout_sec", FIELD_INT, .offset = offsetof(struct exec_args, timeout_sec), .number = 30, .min = 1,
     .max = 86400, .rule = "timeout_sec must be at least 1",
     .doc = "Seconds until the command and all it started are killed. The policy may allow less."},
    {"env", FIELD_ENV, .offset = offsetof(struct exec_args, env), .max = SPEC_ENV_ENTRIES_MAX,
     .max_bytes = SPEC_ENV_BYTES_MAX, .doc = "Environment variables for this command."},
    {"description", FIELD_STR, FIELD_NULLABLE, .offset = offsetof(struct exec_args, description), .max = 4096,
     .doc = "What the command is for, in a few words."},
};

static const struct field read_fields[] = {
    PATH_FIELD(read_args, path, FIELD_REQUIRED, NULL, "File or directory, under /workspace."),
    {"offset", FIELD_INT, .offset = offsetof(struct read_args, offset), .number = 1, .min = 1, .max = NUMBER_MAX,
     .rule = "offset must be at least 1", .doc = "First line to show, counted from 1."},
    {"limit", FIELD_INT, .offset = offsetof(struct read_args, limit), .number = 2000, .min = 1, .max = 10000,
     .rule = "limit must be at least 1", .doc = "Lines to show at most."},
    {"max_bytes", FIELD_INT, .offset = offsetof(struct read_args, max_bytes), .number = TOOL_RESULT_BYTES, .min = 1,
     .max = TOOL_RESULT_BYTES, .rule = "max_bytes must be at least 1", .doc = "Bytes to show at most."},
    {"encoding", FIELD_ENUM, .offset = offsetof(struct read_args, encoding), .names = encodings,
     .doc = "base64 for files that are no text; byte_offset and max_bytes then say which part."},
    {"byte_offset", FIELD_INT, .offset = offsetof(struct read_args, byte_offset), .number = 0, .min = 0,
     .max = NUMBER_MAX, .rule = "byte_offset must not be negative", .doc = "base64: first byte, counted from 0."},
};

static const struct field write_fields[] = {
    PATH_FIELD(write_args, path, FIELD_REQUIRED, NULL, "File, under /workspace. Missing directories are made."),
    {"content", FIELD_STR, FIELD_REQUIRED, .offset = offsetof(struct write_args, content), .max = CONTENT_MAX,
     .doc = "What the file is to hold."},
    {"encoding", FIELD_ENUM, .offset = offsetof(struct write_args, encoding), .names = encodings,
     .doc = "How content is written here."},
    {"mode", FIELD_ENUM, .offset = offsetof(struct write_args, mode), .names = write_modes,
     .doc = "overwrite replaces the file in one step; append adds to its end."},
};

static const struct field edit_fields[] = {
    PATH_FIELD(edit_args, path, FIELD_REQUIRED, NULL, "File, under /workspace."),
    {"old_string", FIELD_STR, FIELD_REQUIRED, .offset = offsetof(struct edit_args, old_string), .max = FILES_EDIT_MAX,
     .valid = not_empty, .rule = "old_string must not be empty",
     .doc = "Text to replace, exactly as it is in the file. It must occur once, unless replace_all is set."},
    {"new_string", FIELD_STR, FIELD_REQUIRED, .offset = offsetof(struct edit_args, new_string), .max = FILES_EDIT_MAX,
     .doc = "What takes its place."},
    {"replace_all", FIELD_BOOL, .offset = offsetof(struct edit_args, replace_all),
     .doc = "Replace every occurrence."},
};

static const struct field glob_fields[] = {
    {"pattern", FIELD_STR, FIELD_REQUIRED, .offset = offsetof(struct glob_args, pattern), .max = FILES_PATH_MAX - 1,
     .valid = not_empty, .rule = "pattern must not be empty",
     .doc = "Glob, matched at any depth: *.py, src/**/*.ts, *.{c,h}."},
    PATH_FIELD(glob_args, path, 0, SPEC_DEFAULT_MOUNT, "Directory to search, under /workspace."),
};

static const struct field grep_fields[] = {
    {"pattern", FIELD_STR, FIELD_REQUIRED, .offset = offsetof(struct grep_args, pattern), .max = REGEX_PATTERN_MAX,
     .valid = not_empty, .rule = "pattern must not be empty",
     .doc = "Regular expression, matched against each line. No backreferences, no lookaround."},
    PATH_FIELD(grep_args, path, 0, SPEC_DEFAULT_MOUNT, "File or directory to search, under /workspace."),
    {"include", FIELD_STR, FIELD_NULLABLE, .offset = offsetof(struct grep_args, include), .max = FILES_PATH_MAX - 1,
     .doc = "Only files that match this glob: *.py."},
    {"ignore_case", FIELD_BOOL, .offset = offsetof(struct grep_args, ignore_case),
     .doc = "Upper and lower case (of ASCII) are the same."},
    {"output_mode", FIELD_ENUM, .offset = offsetof(struct grep_args, mode), .names = grep_modes,
     .doc = "The lines that match, or only the files, or how many lines each file has."},
};

#define PARAMS(tool, title) \
    const struct model tool_##tool##_params = {.name = (title), .doc = "Arguments of the tool " #tool ".", \
        .fields = tool##_fields, .n_fields = ARRAY_SIZE(tool##_fields), .size = sizeof(struct tool##_args), \
        .closed = true}
/* clang-format on */

PARAMS(exec, "ExecArguments");
PARAMS(read, "ReadArguments");
PARAMS(write, "WriteArguments");
PARAMS(edit, "EditArguments");
PARAMS(glob, "GlobArguments");
PARAMS(grep, "GrepArguments");
