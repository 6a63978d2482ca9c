/* SPDX-License-Identifier: Apache-2.0 */

/* `box stop`, `start`, `pause`, `unpause`, `update` and `rename`: the states, limits and names of
 * sessions. */

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/text.h"
#include "spec/model.h"
#include "spec/spec.h"

#define ANSWER_MAX (1U << 20)

/* The ids are checked: they need no escaping in a path. The last word of the path is the verb. */
static int change_one(struct app *app, enum verb verb, const char *id, struct err *err)
{
    AUTO_DONE(buf) struct buf body = BUF_INIT(ANSWER_MAX);
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s/%s", id, arg_verbs[verb].name);

    return app_call(app, "POST", target, &body, err);
}

/* Only what was given: the rest stays as it is. */
static int update_one(struct app *app, const struct args *args, const char *id, struct err *err)
{
    AUTO_DONE(buf) struct buf want = BUF_INIT(ANSWER_MAX);
    AUTO_DONE(buf) struct buf answer = BUF_INIT(ANSWER_MAX);
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s", id);
    struct jw w = JW_INIT(&want);

    jw_object(&w);
    for (unsigned i = 0; i < SPEC_FIELD_MAX; i++)
        if (args_given(args, i))
            model_write_field(&spec_model.fields[i], args->spec, &w);
    jw_object_end(&w);
    if (jw_end(&w) < 0)
        return err_set(err, ERR_INVALID, "the limits are too long");
    const struct app_request req = {.method = "PATCH",
                                    .target = target,
                                    .type = "application/json",
                                    .body = want.data,
                                    .body_len = want.len};
    return app_send(app, &req, &answer, err);
}

int verb_state(struct app *app, const struct args *args, struct err *err)
{
    int status = 0;
    int r = app_connect(app, DAEMON_KEPT, err);

    for (size_t i = 0; r >= 0 && args->names[i] != NULL; i++) {
        r = args->verb == VERB_UPDATE ? update_one(app, args, args->names[i], err)
                                      : change_one(app, args->verb, args->names[i], err);
        if (r < 0 && app->signo == 0) {
            text_say_err(err); /* the others are changed all the same */
            status = STATUS_FAILED;
            r = 0;
        }
    }
    return r < 0 ? r : status;
}

int verb_rename(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(buf) struct buf want = BUF_INIT(ANSWER_MAX);
    AUTO_DONE(buf) struct buf answer = BUF_INIT(ANSWER_MAX);
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s/rename", args->names[0]);
    struct jw w = JW_INIT(&want);

    jw_object(&w);
    jw_kstr(&w, "name", args->names[1]);
    jw_object_end(&w);
    if (jw_end(&w) < 0)
        return err_set(err, ERR_INVALID, "the name is too long");
    int r = app_connect(app, DAEMON_KEPT, err);
    const struct app_request req = {.method = "POST",
                                    .target = target,
                                    .type = "application/json",
                                    .body = want.data,
                                    .body_len = want.len};
    return r < 0 ? r : app_send(app, &req, &answer, err);
}
