/* SPDX-License-Identifier: Apache-2.0 */

/* The tables of members of each answer of the HTTP API. tests/integration/test_http_openapi.py
 * compares them with the answers of boxd. */

#include "openapi.h"

/* clang-format off */
#define OUTCOME_MEMBERS(opt) \
    {"outcome", opt "exited|signaled|timed_out|oom_killed|quota_exceeded|session_lost", "How it ended."}, \
    {"exit_code", opt "?integer", "Of the command; null unless it exited."}, \
    {"signal", opt "?integer", "That ended it; null unless one did."}, \
    {"error", opt "?string", "Why it could not be run."}, \
    {"duration_ms", opt "integer", "Wall clock."}, \
    {"cpu_ms", opt "integer", "User and system time."}, \
    {"max_rss_kb", opt "integer", "Largest resident size of a process."}, \
    {"remaining", opt "integer", "Processes it left running; -1: not known."}, \
    {"stdout_bytes", opt "integer", "Produced, kept or not."}, \
    {"stderr_bytes", opt "integer", "Produced, kept or not."}

static const struct oa_member problem[] = {
    {"type", "string", "about:blank: the code says it."},
    {"title", "string", "Of the status."},
    {"status", "integer", "Of the answer."},
    {"detail", "string", "What happened, for people."},
    {"code", "string", "What happened, for programs; stable."},
    {"cause", "string", "What kind of failure it is."},
    {"remediation", "string", "What to do about it."},
    {0},
};
static const struct oa_member health[] = {
    {"status", "ok", "It is there."},
    {"version", "~string", "Of boxd; on the unix socket only."},
    {0},
};
static const struct oa_member status_backend[] = {
    {"name", "string", "Of the backend."}, {"available", "boolean", "Whether it can be used."}, {0}};
static const struct oa_member audit_log[] = {
    {"records", "~integer", "Number of the last record."},
    {"head", "~string", "SHA-256 of the last line: note it elsewhere, and `box audit verify --head` proves the log."},
    {"lost", "~integer", "Records that could not be written by this boxd."},
    {"full", "boolean", "Whether the disk was full at the last attempt."},
    {"on_full", "refuse|continue", "What happens to commands then."},
    {"error", "?string", "The last failure."},
    {0},
};
static const struct oa_member status[] = {
    {"enabled", "boolean", "By the configuration."},
    {"available", "boolean", "Whether a command would be run."},
    {"profile", "?string", "Of requests that name none."},
    {"recent_error_count", "integer", "In the ring that GET /v1/errors shows."},
    {"connector_error", "~string", "Why it is not available."},
    {"degraded", "~string", "What is not as it was configured."},
    {"backend", "~StatusBackend", "That runs the sandboxes."},
    {"active_sessions", "~integer", "Sessions there are."},
    {"managed_processes", "~integer", "That run."},
    {"session_ttl_sec", "~integer", "Idle time after which a session is removed; 0: never."},
    {"audit", "~AuditLog", "State of the audit log."},
    {0},
};
static const struct oa_member error_entry[] = {
    {"timestamp", "string", "ISO 8601."}, {"type", "string", "Class of the error."}, {"message", "string", "In words."},
    {"query_id", "string", "Of the tool call; may be empty."}, {0}};
static const struct oa_member error_list[] = {{"errors", "[ErrorEntry]", "Oldest first; the last 50."}, {0}};
static const struct oa_member unenforced[] = {
    {"field", "string", "Member of the session that is not in force."}, {"reason", "string", "Why not."}, {0}};
static const struct oa_member session[] = {
    {"session_id", "string", "Its name."},
    {"backend_name", "string", "That runs it."},
    {"state", "creating|ready|stopping|paused|halting|stopped", "Where it is in its life."},
    {"image", "string", "Root file system."},
    {"network", "string", "on or off."},
    {"host_path", "?string", "Directory of the host that is its workspace."},
    {"host_path_mode", "string", "How it is mounted."},
    {"mount_path", "string", "Where."},
    {"persistent", "boolean", "Whether it stays when it is idle."},
    {"cpus", "number", "Limit."},
    {"memory_mb", "integer", "Limit, in MiB."},
    {"pids_limit", "integer", "Limit."},
    {"read_only_rootfs", "boolean", "Whether the root file system is read-only."},
    {"workspace_quota_mb", "integer", "Limit of its disk, in MiB; 0: none."},
    {"allow_hosts", "[string]", "Services of the host that it may reach, each ADDRESS:PORT or ADDRESS:PORT:INSIDE_PORT."},
    {"durable", "boolean", "Whether it stays until it is removed."},
    {"disk_bytes", "~integer", "That its files take; of a stopped session."},
    {"start", "~Start", "The command that it is for; only if it is for one."},
    {"unenforced", "[Unenforced]", "Limits, and an image, that the session has by name only: its backend cannot enforce them here."},
    {"created_at", "string", "ISO 8601."},
    {"last_used_at", "string", "ISO 8601."},
    {"execs", "integer", "Commands that run in it."},
    {"content_unverified", "~[string]", "Mounts whose digest boxd has not checked."},
    {"artifacts", "~[string]", "Digests of the verified trees that it has below `/opt/langbot-artifacts`; only of a session that can have some."},
    {"receipt", "~object", "What is in force, read back; of one session only."},
    {0},
};
static const struct oa_member start[] = {
    {"process_id", "string", "Always main."},
    {"command", "string", "Program."},
    {"args", "[string]", "Arguments."},
    {"restart", "no|on-failure|always", "When it runs again."},
    {"remove", "boolean", "Whether the session goes when it ends."},
    {"wanted", "boolean", "Whether it runs, or is to run again."},
    {0},
};
static const struct oa_member session_list[] = {{"sessions", "[Session]", "In order of creation."}, {0}};
static const struct oa_member exec_result[] = {
    {"session_id", "string", "Where it ran."},
    OUTCOME_MEMBERS(""),
    {"stdout", "string", "As far as it was kept; what is no UTF-8 is replaced."},
    {"stdout_truncated_bytes", "integer", "That are not in stdout."},
    {"stdout_id", "~string", "Of the whole, for …/outputs/{output}."},
    {"stderr", "string", "The same of standard error."},
    {"stderr_truncated_bytes", "integer", "That are not in stderr."},
    {"stderr_id", "~string", "Of the whole."},
    {"exec_id", "~string", "Where processes remain: what they are known by, for …/execs/{exec}."},
    {0},
};
static const struct oa_member output_range[] = {
    {"begin", "integer", "Position of the first byte that is kept."},
    {"end", "integer", "Behind the last."},
    {"eof", "~boolean", "Nothing follows."},
    {0},
};
static const struct oa_member short_problem[] = {
    {"code", "string", "As in problem documents."}, {"detail", "string", "In words."}, {"remediation", "string", "What to do."}, {0}};
static const struct oa_member exec[] = {
    {"session_id", "string", "Where it runs."},
    {"exec_id", "string", "Its name."},
    {"status", "starting|running|ended", "Where it is in its life."},
    {"on_disconnect", "kill|keep", "What becomes of it without readers."},
    {"started_at", "string", "ISO 8601."},
    {"output", "OutputRange", "What is kept, by position over both streams."},
    {"stdin_bytes", "integer", "That were taken."},
    {"problem", "~ShortProblem", "Why it never ran, or may not have."},
    OUTCOME_MEMBERS("~"),
    {0},
};
static const struct oa_member exec_list[] = {{"execs", "[ExecInfo]", "Oldest first."}, {0}};
static const struct oa_member process[] = {
    {"session_id", "string", "Where it runs."},
    {"process_id", "string", "Its name."},
    {"status", "running|exited", "Where it is in its life."},
    {"command", "string", "Program."},
    {"args", "[string]", "Arguments."},
    {"cwd", "?string", "Working directory."},
    {"log", "boolean", "Whether it keeps a log, read at …/log, instead of output."},
    {"tty", "boolean", "Whether it has a terminal."},
    {"attached", "boolean", "Whether somebody reads it."},
    {"started_at", "string", "ISO 8601."},
    {"exited_at", "~string", "ISO 8601."},
    {"exit_code", "~integer", "Or minus the signal."},
    {"stderr_preview", "string", "The end of its standard error."},
    {"reason", "~string", "Why boxd has killed it; only then."},
    {"output", "OutputRange", "What is kept of its standard output, by byte offset."},
    {0},
};
static const struct oa_member port[] = {
    {"host", "string", "Address of the host."},
    {"host_port", "integer", "Port of the host."},
    {"port", "integer", "Port in the session."},
    {"protocol", "string", "Always tcp."},
    {"listening", "boolean", "false: another program had the host's port when boxd was restarted."},
    {"connections", "integer", "That are open now."},
    {0},
};
static const struct oa_member port_list[] = {{"ports", "[Port]", "In the order they were published."}, {0}};
static const struct oa_member process_list[] = {{"processes", "[Process]", "In order of start."}, {0}};
static const struct oa_member running[] = {
    {"pid", "integer", "Its number in the session."},
    {"parent_pid", "integer", "That of its parent; 1 is the session's own supervisor."},
    {"state", "string", "A letter, as ps(1) has it: R, S, D, T, Z, …"},
    {"exec_id", "?string", "The command that started it, or its parents."},
    {"process_id", "?string", "The managed process that did."},
    {"background", "boolean", "Neither runs any more, or it is not known which it was."},
    {"user_ms", "integer", "Time of the processor in the program."},
    {"system_ms", "integer", "And in the kernel, for it."},
    {"age_ms", "integer", "Since it was started."},
    {"memory_bytes", "integer", "Resident, with what it shares."},
    {"command", "string", "Its arguments, cut at 191 bytes, or [name]."},
    {0},
};
static const struct oa_member running_list[] = {
    {"session_id", "string", "Where they run."},
    {"processes", "[Running]", "In the order of their numbers."},
    {"truncated", "boolean", "There are more."},
    {0},
};
static const struct oa_member stats[] = {
    {"session_id", "string", "Its name."},
    {"state", "string", "Where it is in its life; only of one that is ready anything is known."},
    {"cpus", "number", "Limit."},
    {"time_usec", "integer", "When it was so, by a clock that never jumps."},
    {"cpu_usec", "?integer", "Time of processors since it was made; the share is the difference of two answers."},
    {"memory_bytes", "?integer", "With the files that the kernel keeps in memory for it, as the limit counts."},
    {"memory_limit_bytes", "?integer", "Limit."},
    {"pids", "?integer", "Processes and threads."},
    {"pids_limit", "?integer", "Limit."},
    {"disk_bytes", "?integer", "That its files take, where it has a disk of its own."},
    {"disk_limit_bytes", "?integer", "Limit."},
    {"network_received_bytes", "?integer", "By all interfaces but the loopback."},
    {"network_sent_bytes", "?integer", "The same."},
    {0},
};
static const struct oa_member stats_list[] = {{"stats", "[Stats]", "In order of creation."}, {0}};
static const struct oa_member signal_request[] = {
    {"signal", "INT|TERM|HUP|QUIT|KILL|USR1|USR2|TSTP|CONT|STOP|ALRM|WINCH", "KILL ends all that the command started."}, {0}};
static const struct oa_member grep_match[] = {
    {"line", "integer", "From 1."}, {"offset", "integer", "Where the line begins."}, {"text", "string", "Its beginning."}, {0}};
static const struct oa_member grep[] = {
    {"matches", "[GrepMatch]", "In order."},
    {"next_offset", "~integer", "Where a search that was cut goes on."},
    {"next_line", "~integer", "And the number of that line."},
    {0},
};
static const struct oa_member audit_page[] = {
    {"records", "[object]", "As they stand in the log, oldest first."},
    {"next_after", "~integer", "For `after` of the next page."},
    {"next", "~string", "For `cursor` of the next page; a token that sees only some of the records gets this instead."},
    {"more", "~boolean", "With `next`: whether to ask again now."},
    {"log", "AuditLog", "State of the log."},
    {0},
};
static const struct oa_member tool[] = {
    {"name", "string", "Of the tool."}, {"title", "string", "For people."}, {"description", "string", "For the model."},
    {"class", "reads|writes|runs", "What it can do to the session."},
    {"idempotent", "~boolean", "Twice is the same as once."}, {"parameters", "object", "JSON Schema of the arguments."}, {0}};
static const struct oa_member tool_list[] = {{"tools", "[Tool]", "That the caller may use."}, {0}};
static const struct oa_member tool_request[] = {
    {"tool", "string", "Its name."},
    {"arguments", "~object", "As its parameters say."},
    {"query", "~object", "What the session is named after (query_id, launcher_type, launcher_id, sender_id, variables); made "
     "if need be."},
    {"session_id", "~string", "Instead of the query: a session that is there."},
    {"profile", "~string", "Of a session that has to be made."},
    {0},
};
static const struct oa_member tool_result[] = {
    {"tool", "string", "Its name."},
    {"is_error", "boolean", "The tool says no."},
    {"result", "object", "What it says, for programs."},
    {"text", "string", "The same for a model."},
    {0},
};
static const struct oa_member file_stat[] = {
    {"path", "string", "Inside the sandbox."},
    {"path_base64", "~string", "Its bytes, where they are no UTF-8."},
    {"type", "string", "file, directory, symlink, …"},
    {"size", "integer", "Bytes."},
    {"mode", "string", "Permissions, octal."},
    {"uid", "integer", "Inside the sandbox."},
    {"gid", "integer", "Inside the sandbox."},
    {"modified_at", "string", "ISO 8601."},
    {"etag", "string", "For If-Match."},
    {0},
};
static const struct oa_member file_entry[] = {
    {"name", "string", "In its directory."},
    {"name_base64", "~string", "Its bytes, where they are no UTF-8."},
    {"type", "string", "file, directory, symlink, …"},
    {"size", "integer", "Bytes."},
    {"mode", "string", "Permissions, octal."},
    {"uid", "integer", "Inside the sandbox."},
    {"gid", "integer", "Inside the sandbox."},
    {"modified_at", "string", "ISO 8601."},
    {"etag", "string", "For If-Match."},
    {"target", "~string", "Of a symbolic link."},
    {"target_base64", "~string", "Its bytes, where they are no UTF-8."},
    {0},
};
static const struct oa_member file_list[] = {
    {"entries", "[FileEntry]", "By name."},
    {"path", "string", "Of the directory."},
    {"path_base64", "~string", "Its bytes, where they are no UTF-8."},
    {"total", "integer", "Entries there are."},
    {"truncated", "boolean", "Whether there are more."},
    {"next", "~string", "For `after` of the next page."},
    {"next_base64", "~string", "Its bytes, where they are no UTF-8."},
    {0},
};

static const struct oa_member chat_request[] = {
    {"chat_id", "string", "A UUID, in any spelling."},
    {0},
};
static const struct oa_member chat_sandbox[] = {
    {"session_id", "string", "Of this sandbox; the next one of the chat has another."},
    {"chat_id", "string", "The UUID in its canonical spelling."},
    {"container_id", "string", "What the backend knows it by."},
    {"status", "running", "It runs."},
    {"created_at", "string", "ISO 8601, UTC."},
    {"expires_at", "string", "When it ends, used or not."},
    {0},
};
static const struct oa_member chat_deleted[] = {
    {"chat_id", "string", "The UUID in its canonical spelling."},
    {"result", "deleted|not_found", "Whether there was one."},
    {0},
};
static const struct oa_member hold[] = {
    {"session_id", "?string", "null: it is still being made."},
    {"held", "boolean", "Whether its connection is there."},
    {"since", "string", "RFC 3339."},
    {"info", "~object", "What the holder says of itself."},
    {0},
};
static const struct oa_member hold_list[] = {
    {"holds", "[Hold]", "In the order they came."},
    {0},
};

static const struct oa_member change[] = {
    {"kind", "added|changed|deleted", "What became of the file."},
    {"path", "string", "Inside the session. What is no UTF-8 in it is replaced."},
    {0},
};
static const struct oa_member change_list[] = {
    {"changes", "[Change]", "In no particular order."},
    {"truncated", "boolean", "There are more."},
    {"read_only_rootfs", "~boolean", "true: nothing of the image can change."},
    {0},
};

const struct oa_schema oa_schemas[] = {
    {"Problem", "RFC 9457: why a request failed.", problem},
    {"Health", "That boxd is there.", health},
    {"ChatRequest", "Which chat.", chat_request},
    {"ChatSandbox", "The sandbox of a chat.", chat_sandbox},
    {"ChatDeleted", "What became of it.", chat_deleted},
    {"Hold", "A session that belongs to a connection.", hold},
    {"HoldList", "Sessions that belong to connections.", hold_list},
    {"StatusBackend", "The backend.", status_backend},
    {"AuditLog", "State of the audit log.", audit_log},
    {"Status", "Whether commands can be run, and with what.", status},
    {"ErrorEntry", "One recent failure.", error_entry},
    {"Unenforced", "What a session was asked to have, and does not.", unenforced},
    {"ErrorList", "Recent failures.", error_list},
    {"Start", "The command that a session is for.", start},
    {"Session", "A sandbox.", session},
    {"SessionList", "Sandboxes.", session_list},
    {"ExecResult", "How a command ended.", exec_result},
    {"OutputRange", "Positions.", output_range},
    {"ShortProblem", "A failure inside an answer.", short_problem},
    {"ExecInfo", "A command that is known by its id.", exec},
    {"ExecList", "Commands that are known by their id.", exec_list},
    {"Process", "A managed process.", process},
    {"ProcessList", "Managed processes.", process_list},
    {"Running", "A process in a session.", running},
    {"RunningList", "Processes in a session.", running_list},
    {"Stats", "What a session uses.", stats},
    {"StatsList", "What sessions use.", stats_list},
    {"Port", "A port of the host that leads to a session.", port},
    {"PortList", "Published ports.", port_list},
    {"SignalRequest", "A signal for a command or a process.", signal_request},
    {"GrepMatch", "A line that matches.", grep_match},
    {"GrepResult", "Lines that match.", grep},
    {"AuditPage", "Records of the audit log.", audit_page},
    {"Tool", "A tool of the agent.", tool},
    {"ToolList", "The agent's tools.", tool_list},
    {"ToolRequest", "A call of a tool.", tool_request},
    {"ToolResult", "What a tool answers.", tool_result},
    {"Change", "A file that differs from the image.", change},
    {"ChangeList", "What differs from the image.", change_list},
    {"FileStat", "A file.", file_stat},
    {"FileEntry", "An entry of a directory.", file_entry},
    {"FileList", "A directory.", file_list},
    {0},
};
/* clang-format on */
