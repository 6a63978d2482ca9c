/* SPDX-License-Identifier: Apache-2.0 */

/* The table that documents each route of the HTTP API. A route that is missing here, or is only
 * here, fails the build of docs/api/openapi.json and its test. */

#include "openapi.h"

#include "front/v1/v1_internal.h"
#include "spec/process.h"
#include "spec/spec.h"

/* clang-format off */
#define BYTES "application/octet-stream"
#define EVENTS "text/event-stream"
#define KEY {"Idempotency-Key", "header", "~string", "The same key and body get the same answer again, for a day."}

static const struct oa_param idem_params[] = {KEY, {0}};
static const struct oa_param exec_params[] = {
    {"Idempotency-Key", "header", "~string", "With detach: the same key and body get the same answer again, for a day."},
    {0},
};
static const struct oa_param stream_params[] = {
    {"from", "query", "~integer", "Position to go on from; default: behind Last-Event-ID, else all that is kept."},
    {"stdin_acks", "query", "~integer", "WebSocket, 1: acknowledge standard input."},
    {"Last-Event-ID", "header", "~string", "The id of the last event that the caller has."},
    {0},
};
static const struct oa_param process_output_params[] = {
    {"from", "query", "~integer", "Byte offset to begin at."},
    {"max", "query", "~integer", "Bytes at most."},
    {"wait_ms", "query", "~integer", "How long to wait for the first of them."},
    {"release", "query", "~integer", "1: what lies before `from` was received and makes room."},
    {0},
};
static const struct oa_param log_params[] = {
    {"since_ms", "query", "~integer", "Only what was written since then, in milliseconds since 1970; of a process with a log."},
    {"tail", "query", "~integer", "Only the last lines."},
    {"follow", "query", "~integer", "WebSocket, 1: until the process ends."},
    {"stdin", "query", "~integer", "WebSocket, 1: with its stdin or terminal, when no other client has it."},
    {"stdin_acks", "query", "~integer", "WebSocket, 1: acknowledge standard input."},
    {0},
};
static const struct oa_param output_params[] = {
    {"Range", "header", "~string", "bytes=FROM-TO, bytes=FROM- or bytes=-LAST."}, {0}};
static const struct oa_param grep_params[] = {
    {"pattern", "query", "string", "Regular expression; no back references."},
    {"ignore_case", "query", "~integer", "1: letters of either case."},
    {"literal", "query", "~integer", "1: the pattern is plain text."},
    {"max_matches", "query", "~integer", "Lines at most."},
    {"offset", "query", "~integer", "next_offset of an earlier answer."},
    {"line", "query", "~integer", "next_line of an earlier answer."},
    {0},
};
static const struct oa_param audit_params[] = {
    {"after", "query", "~integer", "Number of the last record that the caller has."},
    {"cursor", "query", "~string", "`next` of an earlier answer, for tokens that see only some of the records."},
    {"limit", "query", "~integer", "Records at most, up to 1000."},
    {0},
};
static const struct oa_param event_params[] = {
    {"session_id", "query", "~string", "Only of this session."},
    {"type", "query", "~string", "Only these, separated by commas: session.created, session.deleted, session.expired, "
     "session.lost, session.stopped, session.started, session.paused, session.unpaused, session.renamed, session.updated, process.started, process.exited, exec.ended."},
    {"Last-Event-ID", "header", "~string", "The id of the last event that the caller has."},
    {0},
};
static const struct oa_param list_params[] = {
    {"running", "query", "~boolean", "Leave out stopped sessions."},
    {0},
};
static const struct oa_param top_params[] = {
    {"background", "query", "~boolean", "Only what belongs to no command or managed process that runs."},
    {0},
};
static const struct oa_param stats_params[] = {
    {"sessions", "query", "~string", "Names with commas between them; default: all that run. Others than the caller's are left out."},
    {0},
};
static const struct oa_param file_get_params[] = {
    {"path", "query", "~string", "File to read. One of path, list and stat is needed."},
    {"list", "query", "~string", "Directory to list."},
    {"stat", "query", "~string", "File to describe."},
    {"after", "query", "~string", "list: `next` of an earlier answer."},
    {"limit", "query", "~integer", "list: entries at most."},
    {"follow", "query", "~boolean", "stat: what a symbolic link leads to."},
    {"Range", "header", "~string", "path: bytes=FROM-TO, bytes=FROM- or bytes=-LAST."},
    {0},
};
static const struct oa_param file_put_params[] = {
    {"path", "query", "string", "File to write; it is replaced in one step."},
    {"mode", "query", "~string", "Permissions, octal."},
    {"parents", "query", "~boolean", "Make missing directories; default: true."},
    {"append", "query", "~boolean", "Add to its end instead."},
    {"fsync", "query", "~boolean", "Answer when it is on disk."},
    {"If-Match", "header", "~string", "ETag that the file must have."},
    {"If-None-Match", "header", "~string", "* : only if it is not there."},
    {0},
};
static const struct oa_param file_delete_params[] = {
    {"path", "query", "string", "What to remove."},
    {"recursive", "query", "~boolean", "With all that is in it."},
    {"If-Match", "header", "~string", "ETag that the file must have."},
    {0},
};
static const struct oa_param watch_params[] = {
    {"path", "query", "string", "File or directory to watch."},
    {"recursive", "query", "~boolean", "With the directories below."},
    {0},
};
static const struct oa_param stderr_params[] = {
    {"from", "query", "~integer", "Position of the first byte; 0: all that is kept."},
    {"wait_ms", "query", "~integer", "How long to wait for the first byte."},
    {0},
};

static const struct oa_param unpublish_params[] = {
    {"host_port", "query", "~integer", "Only the one at this port of the host; default: all that lead to the port."},
    {0},
};

#define PASS(method, id) \
    {method, "/v1/sessions/{id}/ports/{port}/{path}", id, "ports", "Pass a request on to a server in the session", \
     "The server's own answer, or 502. A WebSocket is passed on as it is. docs/reference/ports.md has the rules.", \
     .body_type = BYTES, .answers = {{200, "What the server answers, whatever its status.", NULL, BYTES}}}

const struct oa_route oa_routes[] = {
    {"GET", "/v1/health", "get_health", "daemon", "Whether boxd is there", "Needs no token.",
     .answers = {{200, "It is.", "Health"}}},
    {"GET", "/metrics", "get_metrics", "daemon", "Counters for Prometheus", NULL,
     .answers = {{200, "Text exposition format.", NULL, "text/plain"}}},
    {"GET", "/api/v1/health", "get_chat_health", "chats", "Whether chat sandboxes are served", "Needs no token.",
     .answers = {{200, "They are.", "object"}}},
    {"POST", "/api/v1/create", "create_chat_sandbox", "chats", "The sandbox of a chat, made if there is none", NULL,
     .body_name = "ChatRequest",
     .answers = {{201, "It is new.", "ChatSandbox"}, {200, "It was there.", "ChatSandbox"}}},
    {"DELETE", "/api/v1/sandboxes/{chat_id}", "delete_chat_sandbox", "chats", "End the sandbox of a chat", NULL,
     .answers = {{200, "There is none now.", "ChatDeleted"}}},
    {"GET", "/v1/doctor", "get_doctor", "daemon", "What this host can and cannot enforce", NULL,
     .answers = {{200, "The report, as `box doctor --json` shows it.", "object"}}},
    {"GET", "/v1/status", "get_status", "daemon", "Whether commands can be run, and with what", NULL,
     .answers = {{200, "The state.", "Status"}}},
    {"GET", "/v1/errors", "list_errors", "daemon", "The last failures", NULL, .answers = {{200, "At most 50.", "ErrorList"}}},
    {"GET", "/v1/audit", "read_audit", "daemon", "The audit log, page by page", NULL, audit_params,
     .answers = {{200, "A page.", "AuditPage"}}},
    {"GET", "/v1/events", "watch_events", "daemon", "What happens, as it happens",
     "Server-sent events. A reader that is too slow gets `missed` with the number of events it did not see.", event_params,
     .answers = {{200, "Events, until the caller leaves.", NULL, EVENTS}}},
    {"GET", "/v1/openapi.json", "get_openapi", "daemon", "This document", NULL,
     .answers = {{200, "OpenAPI 3.1.", "object"}}},
    {"GET", "/v1/sessions", "list_sessions", "sessions", "List the sessions", NULL, list_params,
     .answers = {{200, "Those of the caller.", "SessionList"}}},
    {"POST", "/v1/sessions", "create_session", "sessions", "Make a session, or find it",
     "A session of that name that was made otherwise is a conflict. With `durable: true` it stays until it is removed: "
     "docs/reference/sessions.md. With `start`, a process without `process_id`, the session is for that command, which is "
     "its process `main` and keeps a log; `restart` (`no`, `on-failure`, `always`) says when it runs again, "
     "`remove: true` that the session goes when it ends, `ports` which ports to publish. What the request asks for (`image`, `memory_mb`, `cpus`, "
     "`pids_limit`, `workspace_quota_mb`) and this host cannot enforce is an error, 501, unless the request has `\"best_effort\": true`, too: "
     "the member `unenforced` of the answer then tells. With `allow_hosts`, a list of texts such as `127.0.0.1:5432`, its programs reach "
     "these services of the host: docs/reference/ports.md.", idem_params, &spec_model,
     .answers = {{201, "It is ready.", "Session"}}},
    {"GET", "/v1/sessions/{id}", "get_session", "sessions", "One session, and what is in force in it", NULL,
     .answers = {{200, "With a receipt, unless it is stopped or paused.", "Session"}}},
    {"DELETE", "/v1/sessions/{id}", "delete_session", "sessions", "Remove a session: every process, file and trace of it", NULL,
     .answers = {{204, "Nothing is left.", NULL}}},
    {"PATCH", "/v1/sessions/{id}", "update_session", "sessions", "Change the limits of a session",
     "Of one that runs at once, of one that is stopped from its next start on; all that is given, or nothing. 409 where it "
     "uses more memory than it shall have, 403 where its profile locks a limit, 501 where it cannot be enforced.", NULL,
     &spec_limits_model, .answers = {{204, "They are in force, and on record.", NULL}}},
    {"GET", "/v1/sessions/{id}/changes", "list_changes", "sessions", "Files of the image that the session has changed",
     "Where its root is writable; with a read-only root there are none. Natively these are files of `/usr` and `/etc`, all else "
     "is the session's own. At most 10,000.", .answers = {{200, "The changes.", "ChangeList"}}},
    {"POST", "/v1/sessions/{id}/stop", "stop_session", "sessions", "End everything that runs in a durable session",
     "Its files and its name stay. One that is not durable is a conflict.",
     .answers = {{204, "Nothing of it runs.", NULL}}},
    {"POST", "/v1/sessions/{id}/start", "start_session", "sessions", "Make a stopped session run again, and the command that it is for",
     "Any request for its commands, files or processes starts the session, too; the command only when a client has not stopped it.", .answers = {{200, "It is ready.", "Session"}}},
    {"POST", "/v1/sessions/{id}/pause", "pause_session", "sessions", "Freeze every process of a session", NULL,
     .answers = {{204, "Nothing of it runs on.", NULL}}},
    {"POST", "/v1/sessions/{id}/unpause", "unpause_session", "sessions", "Let them go on", NULL,
     .answers = {{204, "They do.", NULL}}},
    {"POST", "/v1/sessions/{id}/rename", "rename_session", "sessions", "Give a session another name",
     "Refused while commands, processes or clients know it by the old one.", NULL, &v1_rename_model,
     .answers = {{204, "It has the new name.", NULL}}},
    {"POST", "/v1/sessions/{id}/exec", "exec_command", "execs", "Run a command",
     "With `Accept: text/event-stream` the answer is a stream; with `detach` it comes at once.", exec_params,
     &v1_exec_model, .answers = {{200, "It has ended.", "ExecResult"}, {202, "detach: it runs.", "ExecInfo"}}},
    {"GET", "/v1/exec", "stream_command", "execs", "Run a command over a WebSocket",
     "The first message is the request. docs/reference/http.md describes the messages.",
     .answers = {{101, "The WebSocket is open.", NULL}}},
    {"GET", "/v1/sessions/{id}/execs", "list_execs", "execs", "Commands that are known by their id", NULL,
     .answers = {{200, "Those that run, and those that ended a while ago.", "ExecList"}}},
    {"GET", "/v1/sessions/{id}/execs/{exec}", "get_exec", "execs", "One of them", NULL, .answers = {{200, "Its state.", "ExecInfo"}}},
    {"DELETE", "/v1/sessions/{id}/execs/{exec}", "delete_exec", "execs", "Kill it if it runs, and what it has left, and forget it",
     "Also for an exec that boxd does not list any more, such as one without an id of its own: `exec_id` of its answer names it.",
     .answers = {{204, "Nothing of it runs any more.", NULL}}},
    {"POST", "/v1/sessions/{id}/execs/{exec}/signal", "signal_exec", "execs", "Send it a signal", NULL,
     .body_name = "SignalRequest", .answers = {{204, "Sent; after KILL nothing of it runs any more.", NULL}}},
    {"GET", "/v1/sessions/{id}/execs/{exec}/stream", "stream_exec", "execs", "Go on with its output",
     "Server-sent events, or a WebSocket for those who ask for one.", stream_params,
     .answers = {{200, "Events up to the end.", NULL, EVENTS}, {101, "The WebSocket is open.", NULL},
                 {204, "The caller has everything.", NULL}}},
    {"GET", "/v1/sessions/{id}/top", "list_running", "execs", "Every process in the session, and what started it",
     "The first 1024. `command` is the process's own word.", top_params,
     .answers = {{200, "In the order of their numbers.", "RunningList"}}},
    {"GET", "/v1/stats", "get_stats", "sessions", "What sessions use",
     "Cheap enough to ask each second. What is not known is null.", stats_params,
     .answers = {{200, "Those of the caller.", "StatsList"}}},
    {"GET", "/v1/sessions/{id}/outputs/{output}", "read_output", "execs", "The whole of an output that was shown in part", NULL,
     output_params, .answers = {{200, "All of it.", NULL, BYTES}, {206, "The range.", NULL, BYTES}}},
    {"GET", "/v1/sessions/{id}/outputs/{output}/grep", "grep_output", "execs", "Search it", NULL, grep_params,
     .answers = {{200, "Lines that match.", "GrepResult"}}},
    {"GET", "/v1/sessions/{id}/processes", "list_processes", "processes", "List the managed processes", NULL,
     .answers = {{200, "In order of start.", "ProcessList"}}},
    {"POST", "/v1/sessions/{id}/processes", "start_process", "processes", "Start one",
     "One of the same id is ended first.", idem_params, &process_request_model, .answers = {{201, "It runs.", "Process"}}},
    {"GET", "/v1/sessions/{id}/processes/{process}", "get_process", "processes", "One of them", NULL,
     .answers = {{200, "Its state.", "Process"}}},
    {"DELETE", "/v1/sessions/{id}/processes/{process}", "stop_process", "processes", "End it, and forget it", NULL,
     .answers = {{204, "It is gone.", NULL}}},
    {"GET", "/v1/sessions/{id}/processes/{process}/output", "read_process_output", "processes",
     "Its standard output by byte offset",
     "Box-Next-Offset tells where to go on, Box-End whether that is the end. At most 256 KiB (1 MiB in a container) are kept: "
     "when they are full the process waits in its next write until a client sends `release=1`. A process with a log never waits.",
     process_output_params, .answers = {{200, "Bytes.", NULL, BYTES}}},
    {"GET", "/v1/sessions/{id}/processes/{process}/stderr", "read_process_stderr", "processes",
     "What is kept of its standard error, by position", NULL, stderr_params,
     .answers = {{200, "Bytes; Box-Next-Offset says where the next ones begin.", NULL, BYTES}}},
    {"GET", "/v1/sessions/{id}/processes/{process}/log", "read_process_log", "processes",
     "What it has written to both streams", "The end of it, at most 256 KiB (1 MiB in a container). A WebSocket for those who ask "
     "for one, with the messages of /v1/exec. `main` stands for the only process of a session that is for no command.", log_params,
     .answers = {{200, "Bytes, in the order in which they were written.", NULL, BYTES}, {101, "The WebSocket is open.", NULL}}},
    {"POST", "/v1/sessions/{id}/processes/{process}/signal", "signal_process", "processes", "Send it a signal", NULL,
     .body_name = "SignalRequest", .answers = {{204, "Sent; KILL is for all that it started, too.", NULL}}},
    {"GET", "/v1/hold", "hold_session", "sessions", "A session that ends when its connection is lost",
     "A WebSocket; docs/reference/mcp.md has the messages.", .answers = {{101, "The WebSocket is open.", NULL}}},
    {"GET", "/v1/holds", "list_holds", "sessions", "Sessions that belong to connections", NULL,
     .answers = {{200, "Those of the caller.", "HoldList"}}},
    {"GET", "/v1/sessions/{id}/files", "read_files", "files", "Read a file, list a directory, or describe a file", NULL,
     file_get_params, .answers = {{200, "Bytes for path, else FileList or FileStat.", NULL, BYTES},
                                  {206, "The range.", NULL, BYTES}}},
    {"PUT", "/v1/sessions/{id}/files", "write_file", "files", "Write a file", NULL, file_put_params, .body_type = BYTES,
     .answers = {{200, "It was replaced.", "FileStat"}, {201, "It is new.", "FileStat"}}},
    {"DELETE", "/v1/sessions/{id}/files", "remove_file", "files", "Remove a file or directory", NULL, file_delete_params,
     .answers = {{204, "It is gone.", NULL}}},
    {"POST", "/v1/sessions/{id}/files", "change_files", "files", "Make a directory, or move something", NULL, NULL,
     &v1_change_model, .answers = {{200, "It is done.", "FileStat"}, {201, "The directory is new.", "FileStat"}}},
    {"GET", "/v1/sessions/{id}/files/watch", "watch_files", "files", "What changes, as it changes", "Server-sent events.",
     watch_params, .answers = {{200, "Events, until the caller leaves.", NULL, EVENTS}}},
    {"GET", "/v1/sessions/{id}/ports", "list_ports", "ports", "Ports of the host that lead to the session", NULL,
     .answers = {{200, "In the order they were published.", "PortList"}}},
    {"POST", "/v1/sessions/{id}/ports", "publish_port", "ports", "Publish a port of the session on the host",
     "It stays as long as the session, also when boxd is restarted.", .body = &v1_publication_model,
     .answers = {{201, "boxd listens.", "Port"}}},
    {"DELETE", "/v1/sessions/{id}/ports/{port}", "unpublish_port", "ports", "Publish it no more",
     "Connections that are there stay.", unpublish_params, .answers = {{204, "No new connection is taken.", NULL}}},
    {"GET", "/v1/sessions/{id}/ports/{port}/{path}", "get_at_port", "ports", "Pass a request on to a server in the session",
     "The server's own answer, or 502. A WebSocket is passed on as it is. docs/reference/ports.md has the rules.",
     .answers = {{200, "What the server answers, whatever its status.", NULL, BYTES}, {101, "The WebSocket is open.", NULL}}},
    PASS("POST", "post_at_port"),
    PASS("PUT", "put_at_port"),
    PASS("PATCH", "patch_at_port"),
    PASS("DELETE", "delete_at_port"),
    PASS("OPTIONS", "options_at_port"),
    {"GET", "/v1/tools", "list_tools", "tools", "The agent's tools", NULL, .answers = {{200, "With their schemas.", "ToolList"}}},
    {"POST", "/v1/sessions/{id}/tools/{tool}", "call_tool", "tools", "Call a tool in a session that is there",
     "The body is its arguments.", .body_name = "object", .answers = {{200, "What it says, also when that is no.", "object"}}},
    {"POST", "/v1/execute-tool", "execute_tool", "tools", "Call a tool of the agent",
     "In the session of a query, which is made if need be, or in one that is there.", .body_name = "ToolRequest",
     .answers = {{200, "What it says, also when that is no.", "ToolResult"}}},
    {0},
};
/* clang-format on */
