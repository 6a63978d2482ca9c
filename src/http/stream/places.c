/* SPDX-License-Identifier: Apache-2.0 */

/* Keeps a list of addresses and walks it, beginning with the one that worked last. */

#include "http/stream/places.h"

#include <errno.h>
#include <string.h>

static size_t current(const struct places_walk *w)
{
    return (w->first + w->tried) % w->places->n;
}

bool places_add(struct places *p, const struct sockaddr *address, socklen_t len)
{
    if (p->n == PLACES_MAX || len > sizeof(p->list[0].address))
        return false;
    struct place *place = &p->list[p->n++];
    memcpy(&place->address, address, len);
    place->len = len;
    return true;
}

struct places_walk places_begin(struct places *p)
{
    return (struct places_walk){.places = p, .first = p->at};
}

int places_socket(const struct places_walk *w)
{
    const struct place *to = &w->places->list[current(w)];
    int fd = socket(to->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd < 0 ? -errno : fd;
}

int places_connect(const struct places_walk *w, int fd)
{
    const struct place *to = &w->places->list[current(w)];
    return connect(fd, (const struct sockaddr *)&to->address, to->len) < 0 ? -errno : 0;
}

uint64_t places_share(const struct places_walk *w, uint64_t ns)
{
    return ns / (w->places->n - w->tried);
}

bool places_next(struct places_walk *w)
{
    return ++w->tried < w->places->n;
}

void places_arrived(const struct places_walk *w)
{
    w->places->at = current(w);
}
