/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Requests that may be repeated: with an Idempotency-Key header a second one of the same caller,
 * method, path and body gets the answer of the first, and does nothing. One that comes while the
 * first is at work waits for it. Only answers of success are kept: whoever failed may try again.
 * Answers are kept for a day, so many of them, and survive a restart. */

#include <stdbool.h>

#include "base/cleanup.h"

struct http_request;
struct idem;
struct loop;
struct store;

struct idem *idem_new(struct loop *loop, struct store *store); /* store borrowed; NULL: in memory */
void idem_free(struct idem *d);                                /* nobody may wait any more */
DEFINE_CLEANUP(idem)

/* True: the handler is to do its work, and what it answers is kept if the caller wants that. False:
 * answered, or it will be. `who` names the caller. */
bool idem_begin(struct idem *d, struct http_request *req, const char *who);
