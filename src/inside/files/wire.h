/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The protocol between boxd and box-files. box-files runs inside the sandbox, for one request, as
 * an ordinary exec: the session's ids, filter, limits and view of the file system. So there is no
 * path, link, mount or race by which it could reach what the session itself cannot.
 *
 * boxd sends one request on its stdin and reads frames from its stdout; it treats each of them as
 * hostile, because programs of the same user id run beside box-files. Native byte order: both sides
 * come from one build and run on one machine. */

#include <stdint.h>

#define FILES_WIRE_VERSION 1U
#define FILES_PATH_MAX 4096U        /* with the NUL */
#define FILES_STRING_MAX (2U << 20) /* each of a and b */
#define FILES_FRAME_MAX (64U << 10) /* bytes of a frame behind its head */
#define FILES_DATA_MAX (60U << 10)  /* of content in one frame */
#define FILES_LINKS_MAX 40U         /* as the kernel */
#define FILES_LIST_MAX 10000U       /* entries of one LIST */
#define FILES_LIST_DEFAULT 1000U    /* for a request without a number */
#define FILES_EDIT_MAX (1U << 20)   /* bytes of a file that EDIT changes */
#define FILES_WALK_MAX 100000U      /* entries that GLOB and GREP look at */
#define FILES_DEPTH_MAX 128U        /* directories below each other that they enter */
#define FILES_GREP_FILES_MAX 5000U
#define FILES_GREP_LINE_MAX 500U /* characters of a line that are shown */
#define FILES_GREP_FILE_BYTES (10U << 20)
#define FILES_GREP_TOTAL_BYTES (50U << 20)
#define FILES_WATCH_DIRS_MAX 1024U

enum files_op {
    FILES_STAT = 1, /* one STAT */
    FILES_READ,     /* STAT, DATA…; offset, length: which bytes */
    FILES_LINES,    /* STAT, DATA…; offset: first line, from 1; length: lines; max: bytes */
    FILES_LIST,     /* ENTRY…; a: the name after which it goes on; length: entries */
    FILES_WRITE,    /* takes DATA… END; STAT of what is there then; mode: of a new file */
    FILES_EDIT,     /* a becomes b; STAT of what is there then */
    FILES_REMOVE,
    FILES_MKDIR, /* mode */
    FILES_MOVE,  /* a: where to */
    FILES_GLOB,  /* ENTRY…, newest first; a: pattern; length: entries */
    FILES_GREP,  /* MATCH…; a: pattern; b: glob of names; length: matches */
    FILES_WATCH, /* STAT, EVENT… until stdin ends */
    FILES_OP_MAX,
};

enum files_flag {
    FILES_NOFOLLOW = 1U << 0,       /* a link at the end of the path is meant itself */
    FILES_PARENTS = 1U << 1,        /* directories on the way are made */
    FILES_APPEND = 1U << 2,         /* WRITE: behind what is there; not in one step */
    FILES_SYNC = 1U << 3,           /* WRITE: it is on disk when it is done */
    FILES_MUST_EXIST = 1U << 4,     /* WRITE, REMOVE: else CHANGED */
    FILES_MUST_NOT_EXIST = 1U << 5, /* WRITE, MOVE: else CHANGED */
    FILES_MUST_MATCH = 1U << 6,     /* WRITE, EDIT, REMOVE: `expect` is the tag, else CHANGED */
    FILES_IF_MATCH = 1U << 7,       /* READ: the range only if `expect` is the tag, else all */
    FILES_SUFFIX = 1U << 8,         /* with RANGE: the last `length` bytes */
    FILES_RECURSIVE = 1U << 9,      /* REMOVE, WATCH */
    FILES_ALL = 1U << 10,           /* EDIT: every place */
    FILES_LITERAL = 1U << 11,       /* GREP: no regular expression */
    FILES_IGNORE_CASE = 1U << 12,   /* GREP */
    FILES_GREP_NAMES = 1U << 13,    /* GREP: one MATCH per file, with its number of lines */
    FILES_RANGE = 1U << 14,         /* READ: offset and length count; else it is all */
};

/* Changes when the content does: no program inside can turn back ctime. */
struct files_tag {
    uint64_t ino, size;
    int64_t mtime_ns, ctime_ns;
};

/* Followed by the strings, without NULs: root, path, a, b. `root` is absolute; a path that leaves
 * it is answered with ESCAPE. `path` is beneath it, with or without a leading slash. */
struct files_request {
    uint32_t version, op;
    uint32_t flags, mode;
    uint64_t offset, length, max;
    struct files_tag expect;
    uint32_t root_len, path_len, a_len, b_len;
};

struct files_head {
    uint32_t type;
    uint32_t len;
};

enum files_type {
    FILES_FRAME_DATA = 1, /* both ways: bytes */
    FILES_FRAME_END,      /* to box-files: that was all; without it nothing is kept */
    FILES_FRAME_STAT,     /* struct files_stat */
    FILES_FRAME_ENTRY,    /* struct files_entry, name, target of a link */
    FILES_FRAME_MATCH,    /* struct files_match, path, line */
    FILES_FRAME_EVENT,    /* struct files_event, path */
    FILES_FRAME_DONE,     /* struct files_done; the last one */
    FILES_FRAME_FAIL,     /* struct files_fail, text; the last one */
};

struct files_stat {
    struct files_tag tag;
    uint64_t begin, end; /* READ: the bytes that follow */
    uint32_t mode;       /* with the type, as of stat(2) */
    uint32_t uid, gid, nlink;
};

struct files_entry {
    struct files_stat stat;
    uint32_t name_len, target_len;
};

enum files_match_flag { FILES_MATCH_CUT = 1U << 0 /* the line is longer */ };

struct files_match {
    uint64_t line; /* from 1; with FILES_GREP_NAMES how many lines there are */
    uint32_t path_len, text_len;
    uint32_t flags, pad;
};

enum files_change {
    FILES_CREATED = 1,
    FILES_MODIFIED, /* more was written */
    FILES_CLOSED,   /* a file that was open for writing was closed */
    FILES_ATTRIBUTES,
    FILES_DELETED,
    FILES_MOVED_FROM, /* `cookie` joins it with a MOVED_TO */
    FILES_MOVED_TO,
    FILES_GONE,     /* what is watched is not there any more; the last event */
    FILES_OVERFLOW, /* events were lost */
    FILES_PARTIAL,  /* not every directory below is watched */
    FILES_CHANGE_MAX,
};

struct files_event {
    uint32_t change; /* enum files_change */
    uint32_t cookie;
    uint32_t is_dir, path_len; /* the path is relative to what is watched */
};

/* Why there is less than there could be. */
enum files_cut {
    FILES_CUT_NONE,
    FILES_CUT_LINES,
    FILES_CUT_BYTES,
    FILES_CUT_ENTRIES,
    FILES_CUT_MATCHES,
    FILES_CUT_LINE, /* a line was too long to be shown */
    FILES_CUT_SCAN, /* there was too much to look at */
    FILES_CUT_MAX,
};

struct files_done {
    uint32_t cut;         /* enum files_cut */
    uint32_t created;     /* WRITE: it was not there before */
    uint64_t total;       /* LIST, GLOB, GREP: of all that was found; EDIT: places changed */
    uint64_t first, last; /* LINES: of the lines given; last < first: none */
    uint64_t next;        /* LINES: where to go on, 0: that was all */
};

enum files_why {
    FILES_WHY_ERRNO = 1, /* `error` says it */
    FILES_WHY_ESCAPE,    /* the path leaves the root */
    FILES_WHY_SPECIAL,   /* neither a file nor a directory */
    FILES_WHY_CHANGED,   /* a condition does not hold */
    FILES_WHY_RANGE,     /* nothing there; n: the size */
    FILES_WHY_PATTERN,   /* the text says what is wrong with it */
    FILES_WHY_NO_PLACE,  /* EDIT: a is not in the file */
    FILES_WHY_PLACES,    /* EDIT: it is there n times */
    FILES_WHY_TOO_LARGE, /* EDIT: n: bytes it may have */
    FILES_WHY_BUSY,      /* another request holds the lock of the directory */
    FILES_WHY_CUT_OFF,   /* the content ended before its END */
    FILES_WHY_REQUEST,   /* box-files does not understand */
    FILES_WHY_MAX,
};

struct files_fail {
    uint32_t why;  /* enum files_why */
    int32_t error; /* errno */
    uint64_t n;
};
