/* SPDX-License-Identifier: Apache-2.0 */

/* Part of programs that are linked statically, before main: users, groups and hosts come from files
 * and DNS, which are built in. For what else /etc/nsswitch.conf names glibc would load plug-ins,
 * and with them the host's C library, which is another one than ours: the process would end there.
 */

#include <nss.h>

__attribute__((constructor)) static void use_built_in_services(void)
{
    static const char *const services[][2] = {
        {"passwd", "files"},    {"group", "files"},    {"initgroups", "files"},
        {"hosts", "files dns"}, {"services", "files"},
    };
    for (unsigned i = 0; i < sizeof(services) / sizeof(services[0]); i++)
        (void)__nss_configure_lookup(services[i][0], services[i][1]);
}
