/* SPDX-License-Identifier: Apache-2.0 */

/* Gives boxd-fake, which is boxd for tests, the fake backend as `--backend fake`. */

#include "backend/choice.h"
#include "base/log.h"
#include "daemon/boxd_backend.h"
#include "fake/fake.h"

static int make_fake(void *arg, struct loop *loop, const char *name, struct backend **ret,
                     struct err *err)
{
    static const struct fake_options at_once = {0};
    log_warn(NULL, "backend 'fake': commands are simulated, nothing runs");
    return fake_new(loop, &at_once, ret, err);
}

const struct choice_candidate boxd_extra_backend = {
    .name = "fake", .make = make_fake, .program = "pwd"};
