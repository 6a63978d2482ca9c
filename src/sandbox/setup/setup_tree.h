/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The file system of a sandbox: builds the tree of a plan below a directory descriptor. Runs in the
 * child. */

struct err;
struct setup;

/* Executes the operations of the plan, in order, below root_fd (a mounted, empty tmpfs). */
int setup_tree_child(const struct setup *s, int root_fd, struct err *err);

/* The few devices that everybody has, copied from the host's into a directory. */
int setup_tree_devices_child(int dev_fd, struct err *err);
