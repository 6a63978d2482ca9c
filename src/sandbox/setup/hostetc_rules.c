/* SPDX-License-Identifier: Apache-2.0 */

/* The list of what stays on the host: accounts, what tells one host from another, networks,
 * services that keep credentials in their configuration, and names and contents of secrets. */

#include "sandbox/setup/hostetc_rules.h"

#include <fnmatch.h>
#include <string.h>

#include "base/host_path.h"
#include "base/str.h"

#define TOKEN_MIN 20 /* characters; names of users are shorter */

/* Relative to /etc; `*` does not match a slash. */
/* clang-format off */
static const char *const hidden_paths[] = {
    /* accounts: a session has its own */
    "passwd*", "group*", "shadow*", "gshadow*", "subuid*", "subgid*", "nsswitch.conf*", "shells",
    "sudo*", "doas.conf", "polkit-1", "security", "login.access", "nslcd.conf", "sssd",
    "libnss-*", "pam_*", "ldap", "krb5*", "samba", "aliases*", "mailname",
    /* what tells this host from others */
    "hostname", "hosts*", "hostid", "machine-id", "machine-info", "resolv*", "motd*", "update-motd*",
    "popularity-contest.conf", "adjtime", "fstab*", "crypttab*", "exports*", "auto.*", "autofs*",
    "mdadm", "lvm", "zfs", "iscsi", "nvme", "multipath*", "udev", "cloud", "ssh/ssh_host_*",
    "ssh/sshd*", "ssh/*known_hosts*", "ssh/*keys*", "salt", "puppet*", "chef", "waagent.conf",
    /* the environment of the host's users and services: a session has its own */
    "environment*", "profile", "profile.d", "default", "sysconfig", "systemd", "ld.so.preload",
    "init", "init.d", "rc*.d", "rc.local", "cron*", "anacrontab", "at.*", "supervisor*", "monit*",
    /* networks */
    "network", "networks", "NetworkManager", "netplan", "ethers", "dhcp*", "wpa_supplicant*",
    "hostapd*", "iwd", "wireguard", "openvpn", "ipsec*", "swanctl", "strongswan*", "tailscale",
    "zerotier*", "cloudflared", "nebula", "tinc", "ppp", "chatscripts", "nftables*", "iptables*",
    "ufw", "firewalld", "shorewall*", "frr", "bind", "unbound", "frp", "v2ray", "xray", "sing-box",
    "hysteria", "proxychains*",
    /* containers, clusters and Box itself */
    "box", "docker", "containerd", "containers", "crio", "cni", "kubernetes", "rancher", "k3s",
    "consul*", "nomad*", "vault*", "etcd*", "lxc", "libvirt", "pve", "ceph",
    /* services that keep credentials beside their settings */
    "letsencrypt", "acme*", "ssl/private", "pki/*/private", "apt/auth.conf*", "bluetooth", "chrony",
    "ntp*", "cups", "grub.d", "davfs2", "odbc.ini", "fetchmailrc", "msmtprc", "ssmtp", "nullmailer",
    "postfix", "exim4", "dovecot", "opendkim", "mail", "prosody", "ejabberd", "asterisk", "rsyncd*",
    "snmp", "nut", "zabbix", "telegraf", "grafana", "prometheus", "influxdb", "rabbitmq", "redis",
    "mongod*", "gitlab*", "gitea", "boto.cfg", "rclone*", "restic", "borg*", "ansible",
    "maven/settings.xml", "yum.conf", "yum.repos.d", "dnf/dnf.conf", "rhsm", "wgetrc",
    "subversion/servers",
};

/* A name anywhere below /etc, in upper or lower case. */
static const char *const hidden_names[] = {
    "private", "*secret*", "*password*", "*passwd*", "*credential*", "*token*", "*shadow*",
    "*.key", "*.keytab", "*.p12", "*.pfx", "*.jks", "*.kdbx", "*.ovpn", "id_rsa*", "id_dsa*",
    "id_ecdsa*", "id_ed25519*", "*netrc", ".pgpass", ".my.cnf", ".git-credentials", ".env",
    /* copies that editors and package managers leave of anything */
    "*~", "*.bak", "*.old", "*.orig", "*.save", "*.sw?", "*.dpkg-*", "*.ucf-*", "*.rpm*",
};
/* clang-format on */

/* What a session has of the host, and where links of /etc may lead. */
static const char *const image[] = {"/etc",   "/usr",   "/bin",    "/sbin", "/lib",
                                    "/lib32", "/lib64", "/libx32", "/proc", "/dev/null"};

bool hostetc_hides(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    for (size_t i = 0; i < ARRAY_SIZE(hidden_paths); i++)
        if (fnmatch(hidden_paths[i], path, FNM_PATHNAME) == 0)
            return true;
    for (size_t i = 0; i < ARRAY_SIZE(hidden_names); i++)
        if (fnmatch(hidden_names[i], name, FNM_CASEFOLD) == 0)
            return true;
    return false;
}

/* Puts the words of `path` behind what is in `out`; ".." takes one away. */
static bool walk_words(char *out, size_t size, size_t *len, const char *path)
{
    for (const char *word = path; *word != '\0';) {
        size_t n = strcspn(word, "/");
        if (n == 2 && word[0] == '.' && word[1] == '.') {
            while (*len > 0 && out[--*len] != '/')
                ;
        } else if (n > 0 && !(n == 1 && word[0] == '.')) {
            if (*len + n + 2 > size)
                return false;
            out[(*len)++] = '/';
            memcpy(out + *len, word, n);
            *len += n;
        }
        out[*len] = '\0';
        word += n + (word[n] == '/');
    }
    return true;
}

bool hostetc_link_fits(const char *path, const char *target)
{
    char real[8192] = "";
    size_t len = 0;
    bool fits = target[0] == '/' || (walk_words(real, sizeof(real), &len, "etc") &&
                                     walk_words(real, sizeof(real), &len, path) &&
                                     walk_words(real, sizeof(real), &len, ".."));
    if (!fits || !walk_words(real, sizeof(real), &len, target))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(image); i++)
        if (path_at_or_below(real, image[i]))
            return true;
    return false;
}

/* "-----BEGIN ... PRIVATE KEY-----" or "... PRIVATE KEY BLOCK-----" in one line. */
static bool has_private_key(const char *text, size_t len)
{
    static const char begin[] = "-----BEGIN ", what[] = "PRIVATE KEY";
    const char *end = text + len, *at = text;
    while ((at = memmem(at, (size_t)(end - at), begin, sizeof(begin) - 1)) != NULL) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (stop == NULL)
            stop = end;
        if (memmem(at, (size_t)(stop - at), what, sizeof(what) - 1) != NULL)
            return true;
        at = stop; /* each byte is looked at once, whatever a line repeats */
    }
    return false;
}

/* What follows "://": "user:password@host", or a token instead of the user. Moves `at` to its end.
 */
static bool is_login(const char **at, const char *end)
{
    const char *start = *at, *colon = NULL;
    for (; *at < end && strchr(" \t\r\n/?#\"'<>\\", **at) == NULL; (*at)++) {
        if (**at == '@' && (colon != NULL ? *at > colon + 1 : *at - start >= TOKEN_MIN))
            return true;
        if (**at == ':' && colon == NULL)
            colon = *at;
    }
    return false;
}

/* `mark` is "://", as it is written in JSON, too. */
static bool has_login(const char *text, size_t len, const char *mark)
{
    const char *end = text + len, *at = text;
    while ((at = memmem(at, (size_t)(end - at), mark, strlen(mark))) != NULL) {
        at += strlen(mark);
        if (is_login(&at, end))
            return true;
    }
    return false;
}

bool hostetc_is_secret(const char *text, size_t len)
{
    /* The first of npm; other programs have settings such as input_password, without a value. */
    static const char *const words[] = {
        "_authToken",     ":_password", "\n_password",         "_auth=",          "proxy_password",
        "proxy-password", "<password>", "PuTTY-User-Key-File", "client-key-data", "Authorization:",
    };
    if (len >= 9 && memcmp(text, "_password", 9) == 0)
        return true;
    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (memmem(text, len, words[i], strlen(words[i])) != NULL)
            return true;
    return has_private_key(text, len) || has_login(text, len, "://") ||
           has_login(text, len, ":\\/\\/");
}
