/* SPDX-License-Identifier: Apache-2.0 */

/* Writes what LangBot asks for into the audit log, as for every other front. LangBot has applied
 * its own policy before; nothing here changes what it gets, except that a command which cannot be
 * recorded does not run where the policy demands records. */

#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "command/policy_gate.h"
#include "command/policy_service.h"
#include "front/langbot/langbot_internal.h"
#include "policy/audit/audit.h"
#include "session/run.h"
#include "spec/process.h"

static struct audit_record record_of(const struct langbot_call *c, enum audit_event event)
{
    const char *workspace = c->msg.scoped ? c->msg.ctx.workspace_uuid : NULL;

    return (struct audit_record){.event = event,
                                 .who = workspace != NULL ? workspace : "langbot",
                                 .via = "rpc",
                                 .session = c->id};
}

static struct audit *audit_of(const struct langbot_call *c)
{
    return c->rpc->o.service != NULL ? c->rpc->o.service->audit : NULL;
}

static int write_command(const struct langbot_call *c, struct audit_record *r, const char *command,
                         struct err *err)
{
    struct audit *a = audit_of(c);

    if (a == NULL)
        return 0;
    r->command = command;
    r->command_len = strlen(command);
    int e = audit_ready(a, err);
    return e < 0 ? e : audit_write(a, r, err);
}

int langbot_audit_exec(const struct langbot_call *c, struct err *err)
{
    struct audit_record r = record_of(c, AUDIT_EXEC_START);

    return write_command(c, &r, c->cmd, err);
}

void langbot_audit_exec_end(const struct langbot_call *c, const struct run_result *result)
{
    struct audit_record r = record_of(c, AUDIT_EXEC_END);

    if (c->rpc->o.service != NULL)
        policy_record_outcome(c->rpc->o.service, &r, &result->outcome, result->produced);
}

int langbot_audit_process(const struct langbot_call *c, const struct process_spec *spec,
                          struct err *err)
{
    AUTO_FREE char *args = policy_command_text(spec->args, NULL);
    AUTO_FREE char *command = xasprintf("%s %s", spec->command, args);
    struct audit_record r = record_of(c, AUDIT_PROCESS_START);

    r.process = spec->process_id;
    return write_command(c, &r, command, err);
}

void langbot_audit_session(const struct langbot_call *c, enum audit_event event)
{
    struct audit_record r = record_of(c, event);

    if (audit_of(c) != NULL)
        (void)audit_write(audit_of(c), &r, NULL); /* it has happened; losses are counted */
}

void langbot_audit_failed(const struct langbot_call *c, enum audit_event event,
                          const struct err *err)
{
    struct audit_record r = record_of(c, event);

    if (c->rpc->o.service != NULL)
        policy_service_failed(c->rpc->o.service, err, NULL, &r);
}
