/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Published ports as the option -p spells them: [ADDRESS:][HOST_PORT:]PORT[/tcp]. */

#include <stdint.h>

struct args;
struct err;
struct json;
struct jw;

/* Of `box run -p`: checks all of them; writes them as the member `ports` of a request. ERR_INVALID
 * says how one is spelled; ERR_UNSUPPORTED: not TCP. */
int port_args_check(const struct args *args, struct err *err);
void port_args_write(const struct args *args, struct jw *w);
/* The answer to that member: the host's port of each, 0 for those that are not there. */
#define PORT_NUMBERS_MAX 32
void port_numbers_read(const struct json *ports, uint16_t ret[static PORT_NUMBERS_MAX]);
/* Tells, on standard error, which ports of the host were chosen for those that named none. */
void port_args_tell(const struct args *args, const uint16_t host_ports[static PORT_NUMBERS_MAX]);
