/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Explains the failure of a file operation; private to the file operations. */

#include <stddef.h>

struct files_failure;

/* files_text.c: fills err from the rest; `text` is what box-files said of a pattern. */
void files_explain(struct files_failure *f, const char *text, size_t len);
