/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the shell script that prepares a box, and reads what it found. */

#include "cli/mcp/prepare.h"

#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "cli/mcp/path.h"

#define MARK_COMMAND "box-mcp-command "
#define MARK_PATH "box-mcp-path "
#define MARK_PYTHON "box-mcp-pythonpath "

static bool has_file(const struct mcp_fs *fs, const char *dir, const char *name)
{
    AUTO_FREE char *path = xasprintf("%s/%s", dir, name);

    return fs->kind(path) == MCP_FILE;
}

void mcp_project_look(const struct mcp_fs *fs, const char *host_path, struct mcp_project *ret)
{
    *ret = (struct mcp_project){0};
    if (host_path == NULL)
        return;
    AUTO_FREE char *modules = xasprintf("%s/node_modules", host_path);
    ret->python_package = has_file(fs, host_path, "pyproject.toml") ||
                          has_file(fs, host_path, "setup.py") ||
                          has_file(fs, host_path, "setup.cfg");
    ret->requirements = !ret->python_package && has_file(fs, host_path, "requirements.txt");
    ret->node = has_file(fs, host_path, "package.json") && fs->kind(modules) != MCP_DIR;
}

bool mcp_command_installs(const char *command)
{
    static const char *const names[] = {"npx", "uvx", "uv", "bunx", "pnpm", "yarn", "pipx"};
    const char *slash = strrchr(command, '/');

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (str_eq(slash != NULL ? slash + 1 : command, names[i]))
            return true;
    return false;
}

bool mcp_command_builds(const char *command)
{
    const char *slash = strrchr(command, '/');
    const char *name = slash != NULL ? slash + 1 : command;

    return str_eq(name, "uv") || str_eq(name, "uvx");
}

bool mcp_prepare_stages(const struct mcp_prepare *p)
{
    return !p->writable &&
           ((p->install && p->project.node) || (p->builds && p->project.python_package));
}

/* stdout is ours: descriptor 3 from here on. */
static const char head[] = "set -e\n"
                           "exec 3>&1 1>&2\n"
                           "[ -z \"$3\" ] || PATH=$3:$PATH\n"
                           "state=$HOME/.box-mcp\n"
                           "mkdir -p \"$state\"\n";

/* A read-only project cannot be built where it is, and /tmp is small. */
static const char stage[] =
    "rm -rf \"$state/project\"; mkdir -p \"$state/project\"\n"
    "tar -C /workspace --exclude=./.venv --exclude=./venv --exclude=./.git "
    "--exclude=__pycache__ --exclude=./node_modules --exclude=./.tox --exclude=./.nox "
    "--exclude='*.egg-info' --exclude=./.uv-cache -cf - . | tar -C \"$state/project\" -xf -\n"
    "project=$state/project\n";

static const char in_place[] = "project=/workspace\n";

static const char venv[] =
    "python=$(command -v python3 || command -v python) || "
    "{ echo 'there is no python in this image'; exit 126; }\n"
    "[ -x \"$state/venv/bin/python\" ] || \"$python\" -m venv \"$state/venv\"\n"
    "export VIRTUAL_ENV=\"$state/venv\" PATH=\"$state/venv/bin:$PATH\" "
    "PIP_DISABLE_PIP_VERSION_CHECK=1\n";

static const char pip_package[] = "python -m pip install --no-cache-dir \"$project\"\n"
                                  "[ \"$project\" = /workspace ] || rm -rf \"$project\"\n";
static const char pip_requirements[] =
    "python -m pip install --no-cache-dir -r /workspace/requirements.txt\n";

static const char npm[] =
    "cd \"$project\"\n"
    "if [ -f package-lock.json ]; then npm ci --omit=dev --no-audit --no-fund; "
    "else npm install --omit=dev --no-audit --no-fund; fi\n"
    "cd /workspace\n";

static const char tail[] =
    "found=$(command -v -- \"$1\") || found=\n"
    "[ -n \"$found\" ] || [ \"$1\" != python ] || found=$(command -v python3) || found=\n"
    "[ -n \"$found\" ] && [ -x \"$found\" ] || exit 127\n"
    "printf '" MARK_COMMAND "%s\\n" MARK_PATH "%s\\n' \"$found\" \"$PATH\" >&3\n";

/* Packages are built for one version of python. */
static const char packages[] =
    "if [ -n \"$2\" ]; then\n"
    "  v=$(\"$found\" -c 'import sys; print(\"python%d.%d\" % sys.version_info[:2])')\n"
    "  [ ! -d \"$2/lib/$v/site-packages\" ] || "
    "printf '" MARK_PYTHON "%s\\n' \"$2/lib/$v/site-packages\" >&3\n"
    "fi\n";

static int put_python(const struct mcp_prepare *p, struct buf *out)
{
    int r = 0;

    if (p->project.python_package)
        r = buf_puts(out, p->writable ? in_place : stage);
    if (r >= 0)
        r = buf_puts(out, venv);
    return r < 0 ? r : buf_puts(out, p->project.python_package ? pip_package : pip_requirements);
}

static int put_node(const struct mcp_prepare *p, struct buf *out)
{
    int r = buf_puts(out, p->writable ? in_place : stage);

    return r < 0 ? r : buf_puts(out, npm);
}

int mcp_prepare_script(const struct mcp_prepare *p, struct buf *out)
{
    bool python = p->install && (p->project.python_package || p->project.requirements);
    int r = buf_puts(out, head);

    if (r >= 0 && python)
        r = put_python(p, out);
    if (r >= 0 && p->install && p->project.node)
        r = put_node(p, out);
    else if (r >= 0 && mcp_prepare_stages(p))
        r = buf_puts(out, stage);
    if (r >= 0)
        r = buf_puts(out, tail);
    return r < 0 || python ? r : buf_puts(out, packages);
}

/* The rest of the line behind the last such mark. */
static char *behind(const char *text, const char *mark)
{
    const char *found = NULL;

    for (const char *at = strstr(text, mark); at != NULL; at = strstr(at + 1, mark))
        if (at == text || at[-1] == '\n')
            found = at + strlen(mark);
    return found != NULL ? xstrndup(found, strcspn(found, "\n")) : NULL;
}

void mcp_prepared_done(struct mcp_prepared *p)
{
    free(p->command);
    free(p->path);
    free(p->python_path);
    *p = (struct mcp_prepared){0};
}

int mcp_prepare_read(const char *text, struct mcp_prepared *ret, struct err *err)
{
    struct mcp_prepared p = {.command = behind(text, MARK_COMMAND),
                             .path = behind(text, MARK_PATH),
                             .python_path = behind(text, MARK_PYTHON)};

    if (p.command == NULL || p.command[0] == '\0' || p.path == NULL) {
        mcp_prepared_done(&p);
        return err_set(err, ERR_BACKEND, "the step that looks for the command said nothing");
    }
    *ret = p;
    return 0;
}
