/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The whole of box-files but its main function. */

/* Serves one request of wire.h, from `in` to `out`, with whatever rights the process has. The exit
 * status for main(): 0 when an answer was given, also one that says no. */
int files_serve(int in, int out);
