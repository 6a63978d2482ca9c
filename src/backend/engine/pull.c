/* SPDX-License-Identifier: Apache-2.0 */

/* Adds up the layers of an image that is being pulled, and says when they are too many bytes. */

#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/str.h"

#define LAYERS_MAX 127U /* that engines can stack, too */

struct engine_pull {
    size_t n;
    struct {
        uint64_t id, bytes;
    } layers[LAYERS_MAX];
};

void engine_pull_free(struct engine_pull *pull)
{
    free(pull);
}

bool engine_pull_excess(struct engine_pull **pull, const char *layer, uint64_t bytes)
{
    uint64_t id = str_hash(layer), sum = 0;
    size_t i = 0;
    if (*pull == NULL)
        *pull = xnew(struct engine_pull);
    struct engine_pull *p = *pull;
    while (i < p->n && p->layers[i].id != id)
        i++;
    if (i == LAYERS_MAX)
        return true;
    if (i == p->n)
        p->layers[p->n++].id = id;
    if (bytes > p->layers[i].bytes)
        p->layers[i].bytes = bytes;
    for (i = 0; i < p->n; i++)
        sum = p->layers[i].bytes > UINT64_MAX - sum ? UINT64_MAX : sum + p->layers[i].bytes;
    return sum > ENGINE_PULL_MAX;
}
