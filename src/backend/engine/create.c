/* SPDX-License-Identifier: Apache-2.0 */

/* From a spec to the request for a container: names of images, what an image declares, and the body
 * of the request. All of it is pure. */

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/json.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"
#include "sandbox/cgroup/cgroup.h"
#include "sandbox/setup/gvisor.h"
#include "sandbox/setup/masks.h"

#define MIB (1024LL * 1024LL)
#define NANO 1e9
#define TMP_SIZE "64m"
#define VOLUME_MIB 64
#define NAME_PART_MAX 32U

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
#define LAYERS_MAX 127U  /* that engines can stack, too */
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

/* Paths that no mount may cover. */
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

/* box-guest, and those of its children that are not programs yet. Where a limit per user id keeps
 * programs off them, there is place for some. */
#define RESERVE_OWN 16
#define RESERVE_SHARED 4

/* langbot-box-<32 characters of the sanitised id>-<8 random hex digits>. */
void engine_container_name(const char *session_id, const char *random, char *ret, size_t size)
{
    char part[NAME_PART_MAX + 1];
    size_t n = 0;
    bool gap = false;
    for (const char *s = session_id; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;
        bool plain = c < 128 && (isalnum(c) || c == '_' || c == '.' || c == '-');
        if (!plain || (c == '-' && n == 0)) {
            gap = n > 0;
            continue;
        }
        if (gap && n < NAME_PART_MAX)
            part[n++] = '-';
        gap = false;
        if (n == NAME_PART_MAX)
            break;
        part[n++] = (char)tolower(c);
    }
    while (n > 0 && part[n - 1] == '-')
        n--;
    part[n] = '\0';
    (void)snprintf(ret, size, "langbot-box-%s-%.8s", n > 0 ? part : "session", random);
}

/* A volume belongs to root, so only root can use one; a size has only memory. */
enum engine_workspace engine_workspace(const struct spec *spec, bool root)
{
    if (spec->host_path != NULL && spec->host_path_mode != MOUNT_NONE)
        return ENGINE_WORKSPACE_HOST;
    return root && spec->workspace_quota_mb == 0 ? ENGINE_WORKSPACE_VOLUME
                                                 : ENGINE_WORKSPACE_MEMORY;
}

int64_t engine_pids_reserve(bool own_id)
{
    return own_id ? RESERVE_OWN : RESERVE_SHARED;
}

/* gVisor's sandbox is one container to the host: its kernel is a program with threads, and with the
 * ptrace platform each process inside has more than ten tasks outside. When it gets no more of them
 * it ends, and the session with it. So the host's limit is one that only a broken gVisor comes
 * near; RLIMIT_NPROC, which gVisor counts by itself, is the session's. */
int64_t engine_pids_max(const struct spec *spec, bool own_id, bool gvisor)
{
    int64_t inside = spec->pids_limit + engine_pids_reserve(own_id);
    return gvisor ? gvisor_host_tasks((uint32_t)inside) : inside;
}

uint64_t engine_workspace_bytes(const struct spec *spec)
{
    return (uint64_t)(spec->workspace_quota_mb > 0 ? spec->workspace_quota_mb * MIB
                                                   : spec->memory_mb * MIB / 2);
}

/* How large an image that is being fetched is. */

struct engine_pull {
    size_t n;
    struct {
        uint64_t id, bytes;
    } layers[LAYERS_MAX];
};

bool engine_pull_excess(struct engine_pull **pull, const char *layer, uint64_t bytes)
{
    uint64_t id = str_hash(layer), sum = 0;
    size_t i = 0;
    if (*pull == NULL)
        *pull = xnew(struct engine_pull);
    struct engine_pull *p = *pull;
    while (i < p->n && p->layers[i].id != id)
        i++;
    if (i == LAYERS_MAX)
        return true;
    if (i == p->n)
        p->layers[p->n++].id = id;
    if (bytes > p->layers[i].bytes)
        p->layers[i].bytes = bytes;
    for (i = 0; i < p->n; i++)
        sum = p->layers[i].bytes > UINT64_MAX - sum ? UINT64_MAX : sum + p->layers[i].bytes;
    return sum > ENGINE_PULL_MAX;
}

/* The request. */

static void put_labels(struct jw *w, const struct engine_plan *p)
{
    AUTO_DONE(buf) struct buf own = BUF_INIT(ENGINE_OWN_LABELS_MAX);
    jw_kobject(w, "Labels");
    jw_kstr(w, LABEL_BOX, "true");
    jw_kstr(w, LABEL_SESSION, p->spec->session_id);
    jw_kstr(w, LABEL_INSTANCE, p->instance);
    jw_kstr(w, LABEL_HASH, p->hash);
    jw_kstr(w, LABEL_NAME, p->name);
    for (char *const *l = p->spec->own.labels; l != NULL && *l != NULL; l++) {
        AUTO_FREE char *key = xstrndup(*l, strcspn(*l, "="));
        jw_kstr(w, key, *l + strlen(key) + 1);
        (void)buf_printf(&own, "%s%s", own.len > 0 ? "," : "", key);
    }
    jw_kstr(w, LABEL_OWN, buf_str(&own)); /* also where there are none: an image's is replaced */
    jw_object_end(w);
}

/* What every request has, as JSON. */
struct constant {
    const char *key, *json;
};

static const struct constant of_request[] = {
    {"Entrypoint", "[\"" GUEST_PROGRAM "\"]"},
    {"Cmd", "[]"},
    {"WorkingDir", "\"/\""},
    {"Hostname", "\"box\""},
    /* box-guest has nothing to tidy up. A forced removal by Podman 5 waits ten seconds for what
     * another signal would do, and that signal is otherwise the image's choice. */
    {"StopSignal", "\"SIGKILL\""},
    {"Healthcheck", "{\"Test\":[\"NONE\"]}"}, /* an image must not run programs by itself */
    {"AttachStdin", "false"},
    {"AttachStdout", "false"},
    {"AttachStderr", "false"},
    {"OpenStdin", "false"},
    {"Tty", "false"},
};

static const struct constant home_of_user = {"Env", "[\"HOME=/tmp\"]"};

static const struct constant of_host_config[] = {
    {"CapDrop", "[\"ALL\"]"},
    {"Privileged", "false"},
    {"IpcMode", "\"private\""},
    {"CgroupnsMode", "\"private\""},
    /* box-guest is one that reaps. The engine's could be looked into by programs, and killed. */
    {"Init", "false"},
    {"RestartPolicy", "{\"Name\":\"no\"}"},
    {"LogConfig", "{\"Type\":\"none\"}"},
};

/* What Docker has by itself, which a list of one's own replaces, and /dev: what is mounted below it
 * stays as it is, and a device can be written to all the same. */
static const struct constant read_only_paths = {
    "ReadonlyPaths", "[\"/proc/bus\",\"/proc/fs\",\"/proc/irq\",\"/proc/sys\","
                     "\"/proc/sysrq-trigger\",\"/dev\"]"};

static void put_constants(struct jw *w, const struct constant *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        jw_kraw(w, list[i].key, list[i].json, strlen(list[i].json));
}

static void put_mount(struct jw *w, const char *source, const char *target, bool read_only,
                      bool flat)
{
    jw_object(w);
    jw_kstr(w, "Type", "bind");
    jw_kstr(w, "Source", source);
    jw_kstr(w, "Target", target);
    jw_kbool(w, "ReadOnly", read_only);
    jw_kobject(w, "BindOptions");
    jw_kstr(w, "Propagation", "rprivate");
    jw_kbool(w, "CreateMountpoint", false); /* of the source: nothing is made on the host */
    /* What is mounted below it would come along, and would not be read-only. A
     * rootless engine has to take it along; then box-guest looks. */
    jw_kbool(w, "NonRecursive", flat);
    jw_object_end(w);
    jw_object_end(w);
}

/* In place of a volume of the image: of a size, and gone with the container. */
static void put_memory(struct jw *w, const char *target)
{
    jw_object(w);
    jw_kstr(w, "Type", "tmpfs");
    jw_kstr(w, "Target", target);
    jw_kobject(w, "TmpfsOptions");
    jw_kint(w, "SizeBytes", VOLUME_MIB * MIB);
    jw_kint(w, "Mode", 01777);
    jw_object_end(w);
    jw_object_end(w);
}

static enum engine_workspace workspace_of(const struct engine_plan *p)
{
    return engine_workspace(p->spec, str_eq(p->user, "0:0"));
}

/* Typed, never "source:target:mode" strings: a ':' in a path is nothing but a ':'. */
static void put_mounts(struct jw *w, const struct engine_plan *p)
{
    jw_karray(w, "Mounts");
    put_mount(w, p->guest_program, GUEST_PROGRAM, true, p->flat);
    put_mount(w, p->run_dir, GUEST_DIR, true, p->flat);
    for (size_t i = 0; i < p->mounts->n; i++) {
        const struct engine_mount *m = &p->mounts->list[i];
        put_mount(w, m->bind != NULL ? m->bind : m->source, m->target, m->read_only, p->flat);
    }
    if (workspace_of(p) == ENGINE_WORKSPACE_VOLUME) {
        jw_object(w); /* without a name: it goes with the container */
        jw_kstr(w, "Type", "volume");
        jw_kstr(w, "Target", p->spec->mount_path);
        jw_object_end(w);
    }
    for (size_t i = 0; p->volumes != NULL && p->volumes[i] != NULL; i++)
        put_memory(w, p->volumes[i]);
    jw_array_end(w);
}

static void put_tmpfs(struct jw *w, const struct engine_plan *p)
{
    const struct spec *spec = p->spec;
    char options[96];
    jw_kobject(w, "Tmpfs");
    if (spec->read_only_rootfs)
        jw_kstr(w, "/tmp", "rw,exec,nosuid,nodev,mode=1777,size=" TMP_SIZE);
    if (workspace_of(p) == ENGINE_WORKSPACE_MEMORY) {
        (void)snprintf(options, sizeof(options), "rw,exec,nosuid,nodev,mode=1777,size=%llu",
                       (unsigned long long)engine_workspace_bytes(spec));
        jw_kstr(w, spec->mount_path, options);
    }
    /* gVisor heeds no masks. box-guest needs nothing there: its kernel has no control groups. */
    if (p->gvisor)
        jw_kstr(w, "/sys", "ro,nosuid,nodev,noexec,mode=555,size=4k");
    jw_object_end(w);
}

static void put_ulimit(struct jw *w, const char *name, uint64_t soft, uint64_t hard)
{
    jw_object(w);
    jw_kstr(w, "Name", name);
    jw_ku64(w, "Soft", soft);
    jw_ku64(w, "Hard", hard);
    jw_object_end(w);
}

/* All that an engine would otherwise set to more than its own limit and fail. */
static void put_ulimits(struct jw *w, const struct engine_plan *p)
{
    jw_karray(w, "Ulimits");
    put_ulimit(w, "core", 0, 0);
    put_ulimit(w, "nofile", 1024, 4096);
    put_ulimit(w, "nproc", p->nproc_max, p->nproc_max);
    jw_array_end(w);
}

/* Of /proc and of /sys. "timer_stats" is what engines mask by themselves, unless they are told what
 * to mask. */
static const char *const masked[] = {SANDBOX_MASKED_FILES, SANDBOX_MASKED_DIRS, "timer_stats"};
static const char *const masked_sys[] = {SANDBOX_MASKED_SYS};

/* The next path to mask, or NULL; `at` begins with 0. */
static char *next_mask(size_t *at)
{
    size_t i = (*at)++;
    if (i < ARRAY_SIZE(masked))
        return xasprintf("/proc/%s", masked[i]);
    i -= ARRAY_SIZE(masked);
    return i < ARRAY_SIZE(masked_sys) ? xasprintf("/sys/%s", masked_sys[i]) : NULL;
}

static void put_masks(struct jw *w)
{
    char *path = NULL;
    jw_karray(w, "MaskedPaths");
    for (size_t at = 0; (path = next_mask(&at)) != NULL; free(path))
        jw_str(w, path);
    jw_array_end(w);
}

/* The masks as one option, in addition to its own. */
static void put_mask_option(struct jw *w)
{
    AUTO_DONE(buf) struct buf option = BUF_INIT(4096);
    char *path = NULL;
    (void)buf_puts(&option, "mask=");
    for (size_t at = 0; (path = next_mask(&at)) != NULL; free(path))
        (void)buf_printf(&option, "%s%s", at > 1 ? ":" : "", path);
    jw_str(w, buf_str(&option));
}

static void put_security(struct jw *w, const struct engine_plan *p)
{
    AUTO_FREE char *seccomp = xasprintf("seccomp=%s", p->seccomp);
    jw_karray(w, "SecurityOpt");
    jw_str(w, "no-new-privileges");
    jw_str(w, seccomp);
    if (p->masks_by_option)
        put_mask_option(w);
    jw_array_end(w);
    if (!p->masks_by_option) {
        put_masks(w);
        put_constants(w, &read_only_paths, 1);
    }
    jw_kbool(w, "ReadonlyRootfs", p->spec->read_only_rootfs);
    if (p->runtime != NULL)
        jw_kstr(w, "Runtime", p->runtime);
}

void engine_put_limits(struct jw *w, const struct spec *spec, int64_t pids)
{
    jw_kint(w, "Memory", spec->memory_mb * MIB);
    jw_kint(w, "MemorySwap", spec->memory_mb * MIB); /* of both together: no swap */
    jw_kint(w, "NanoCpus", (int64_t)(spec->cpus * NANO));
    jw_kint(w, "PidsLimit", pids);
}

static void put_host_config(struct jw *w, const struct engine_plan *p)
{
    jw_kobject(w, "HostConfig");
    put_constants(w, of_host_config, ARRAY_SIZE(of_host_config));
    put_security(w, p);
    if (p->v1)
        jw_kint(w, "KernelMemoryTCP",
                (int64_t)cgroup_socket_bytes((uint64_t)p->spec->memory_mb * MIB));
    engine_put_limits(w, p->spec, engine_pids_max(p->spec, p->own_id, p->gvisor));
    put_ulimits(w, p);
    put_mounts(w, p);
    put_tmpfs(w, p);
    if (p->spec->network == NETWORK_OFF)
        jw_kstr(w, "NetworkMode", "none");
    jw_kbool(w, "AutoRemove", !p->keep);
    jw_object_end(w);
}

int engine_create_body(const struct engine_plan *plan, struct buf *ret, struct err *err)
{
    struct jw w = JW_INIT(ret);
    jw_object(&w);
    jw_kstr(&w, "Image", plan->image);
    put_constants(&w, of_request, ARRAY_SIZE(of_request));
    /* Nothing of the caller's environment: that goes with each command, to the command alone. */
    if (plan->user != NULL) {
        jw_kstr(&w, "User", plan->user);
        if (!str_eq(plan->user, "0:0"))
            put_constants(&w, &home_of_user, 1);
    }
    put_labels(&w, plan);
    put_host_config(&w, plan);
    jw_object_end(&w);
    if (jw_end(&w) < 0)
        return err_set(err, ERR_LIMIT, "what the engine would be asked for is too large");
    return 0;
}
