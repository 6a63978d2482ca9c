/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Chat sandboxes in the log: an event for each thing that was done, its spans at level debug. */

struct chat_observer;

extern const struct chat_observer chat_log;
