/* SPDX-License-Identifier: Apache-2.0 */

/* A container engine's own API, asked for the least that runs a command or makes a container: what
 * a session on that engine is compared with. */

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"
#include "load.h"

#define API "/v1.41"
#define ID_MAX 72
#define EXEC_BODY "{\"AttachStdout\":true,\"Cmd\":[\"/bin/echo\",\"hello\"]}"
/* What LangBot's runtime asks its engine for. */
#define CREATE_BODY                                                                                \
    "{\"Image\":\"%s\",\"Cmd\":[\"/bin/sh\",\"-c\",\"while true; do sleep 3600; done\"],"          \
    "\"HostConfig\":{\"NetworkMode\":\"none\",\"NanoCpus\":1000000000,\"Memory\":536870912,"       \
    "\"PidsLimit\":128,\"ReadonlyRootfs\":true,\"Tmpfs\":{\"/tmp\":\"size=64m\"}}}"

static int take_id(const char *text, char ret[ID_MAX], struct err *err)
{
    static const char key[] = "\"Id\":\"";
    const char *at = strstr(text, key);
    size_t len = at != NULL ? strcspn(at + strlen(key), "\"") : 0;
    if (len == 0 || len >= ID_MAX)
        return err_set(err, ERR_BACKEND, "the engine answered: %.300s", text);
    (void)str_fmt(ret, ID_MAX, "%.*s", (int)len, at + strlen(key));
    return 0;
}

struct ask {
    const char *method, *target, *body;
    unsigned status; /* that is expected */
};

static int call(int fd, const struct ask *ask, struct buf *reply, struct err *err)
{
    int r = load_http_send(fd, ask->method, ask->target, ask->body, err);
    return r < 0 ? r : load_http_receive(fd, reply, ask->status, err);
}

/* The stream ends with the connection, so each has one of its own. */
static int read_stream(int fd, struct buf *reply, struct err *err)
{
    char chunk[4096];
    ssize_t n;
    buf_reset(reply);
    while ((n = read(fd, chunk, sizeof(chunk))) > 0)
        if (buf_append(reply, chunk, (size_t)n) < 0)
            break;
    if (n != 0 || memmem(reply->data, reply->len, LOAD_EXPECTED, strlen(LOAD_EXPECTED)) == NULL)
        return err_set(err, ERR_BACKEND, "the command in the container printed something else");
    return 0;
}

static int exec_once(int fd, const char *socket, const char *container, struct buf *reply,
                     struct err *err)
{
    char target[160], id[ID_MAX] = "";
    int r = str_fmt(target, sizeof(target), API "/containers/%s/exec", container);
    if (r == 0)
        r = call(fd, &(struct ask){"POST", target, EXEC_BODY, 201}, reply, err);
    if (r == 0)
        r = take_id(buf_str(reply), id, err);
    if (r < 0)
        return r;
    AUTO_CLOSE int stream = load_connect(socket, err);
    if (stream < 0)
        return stream;
    (void)str_fmt(target, sizeof(target), API "/exec/%s/start", id);
    r = load_http_send(stream, "POST", target, "{\"Detach\":false,\"Tty\":false}", err);
    return r < 0 ? r : read_stream(stream, reply, err);
}

/* engine-exec COUNT SOCKET CONTAINER */
int load_engine_exec(struct job *j, struct err *err)
{
    uint64_t count;
    int r = load_count(j->words[0], &count, err);
    AUTO_CLOSE int fd = r == 0 ? load_connect(j->words[1], err) : r;
    r = fd < 0 ? fd : exec_once(fd, j->words[1], j->words[2], &j->reply, err);
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        uint64_t start = load_now();
        r = exec_once(fd, j->words[1], j->words[2], &j->reply, err);
        load_note(j, start);
    }
    return r;
}

static int container_once(int fd, const char *image, struct job *j, struct err *err)
{
    char text[1024], id[ID_MAX] = "";
    uint64_t start = load_now();
    int r = str_fmt(text, sizeof(text), CREATE_BODY, image);
    if (r == 0)
        r = call(fd, &(struct ask){"POST", API "/containers/create", text, 201}, &j->reply, err);
    if (r == 0)
        r = take_id(buf_str(&j->reply), id, err);
    (void)str_fmt(text, sizeof(text), API "/containers/%s/start", id);
    if (r == 0)
        r = call(fd, &(struct ask){"POST", text, NULL, 204}, &j->reply, err);
    load_note(j, start);
    (void)str_fmt(text, sizeof(text), API "/containers/%s?force=1&v=1", id);
    start = load_now();
    if (r == 0)
        r = call(fd, &(struct ask){"DELETE", text, NULL, 204}, &j->reply, err);
    load_note(j, start);
    return r;
}

/* engine-create COUNT SOCKET IMAGE: two times each, made and removed. */
int load_engine_create(struct job *j, struct err *err)
{
    uint64_t count;
    int r = load_count(j->words[0], &count, err);
    AUTO_CLOSE int fd = r == 0 ? load_connect(j->words[1], err) : r;
    r = fd < 0 ? fd : 0;
    for (uint64_t i = 0; r == 0 && i < count; i++)
        r = container_once(fd, j->words[2], j, err);
    return r;
}

static int session_once(int fd, uint64_t i, struct job *j, struct err *err)
{
    char text[512];
    uint64_t start = load_now();
    int r = str_fmt(text, sizeof(text), "{\"session_id\":\"%s%" PRIu64 "\",\"image\":\"%s\"}",
                    j->words[2], i, j->words[3]);
    if (r == 0)
        r = call(fd, &(struct ask){"POST", "/v1/sessions", text, 201}, &j->reply, err);
    load_note(j, start);
    (void)str_fmt(text, sizeof(text), "/v1/sessions/%s%" PRIu64, j->words[2], i);
    start = load_now();
    if (r == 0)
        r = call(fd, &(struct ask){"DELETE", text, NULL, 204}, &j->reply, err);
    load_note(j, start);
    return r;
}

/* session COUNT SOCKET PREFIX IMAGE: the same of boxd. */
int load_session(struct job *j, struct err *err)
{
    uint64_t count;
    int r = load_count(j->words[0], &count, err);
    AUTO_CLOSE int fd = r == 0 ? load_connect(j->words[1], err) : r;
    r = fd < 0 ? fd : 0;
    for (uint64_t i = 0; r == 0 && i < count; i++)
        r = session_once(fd, i, j, err);
    return r;
}
