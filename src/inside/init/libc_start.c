/* SPDX-License-Identifier: Apache-2.0 */

/* From the kernel's hands to main(), and what the compiler's own checks call; libc.c says why. */

#include <elf.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE_BYTES 4096UL /* the smallest there is; a larger one leaves a part unprotected */

int main(int argc, char **argv);
__attribute__((used)) _Noreturn void init_start(uintptr_t *stack);
extern const Elf64_Ehdr __ehdr_start __attribute__((visibility("hidden")));

#if defined(__x86_64__)
#include <asm/prctl.h>
#define RELATIVE R_X86_64_RELATIVE
__asm__(".pushsection .text\n.globl _start\n.hidden _start\n.type _start, @function\n_start:\n"
        "xor %ebp, %ebp\nmov %rsp, %rdi\nand $-16, %rsp\ncall init_start\nhlt\n.popsection\n");

/* The stack protector looks for its secret at a fixed place of the thread's own block. */
static struct {
    void *self;
    uintptr_t unused[4];
    uintptr_t secret;
} thread;

__attribute__((no_stack_protector)) static void set_secret(uintptr_t secret)
{
    thread.self = &thread;
    thread.secret = secret;
    if (syscall(SYS_arch_prctl, ARCH_SET_FS, &thread) < 0)
        _exit(125);
}
#elif defined(__aarch64__)
#define RELATIVE R_AARCH64_RELATIVE
__asm__(".pushsection .text\n.globl _start\n.hidden _start\n.type _start, %function\n_start:\n"
        "mov x29, #0\nmov x30, #0\nmov x0, sp\nand sp, x0, #-16\nb init_start\n.popsection\n");
uintptr_t __stack_chk_guard;

__attribute__((no_stack_protector)) static void set_secret(uintptr_t secret)
{
    __stack_chk_guard = secret;
}
#endif

static const Elf64_Phdr *find_segment(uint32_t type)
{
    const Elf64_Phdr *segments =
        (const Elf64_Phdr *)(const void *)((const char *)&__ehdr_start + __ehdr_start.e_phoff);
    for (unsigned i = 0; i < __ehdr_start.e_phnum; i++)
        if (segments[i].p_type == type)
            return &segments[i];
    return NULL;
}

/* We are linked for address zero and loaded anywhere: pointers in our data get the difference.
 * Other kinds of relocation do not occur in what we link, and are not known here. */
__attribute__((no_stack_protector)) static void relocate(uintptr_t base)
{
    const Elf64_Phdr *dynamic = find_segment(PT_DYNAMIC);
    uintptr_t table = 0, size = 0;
    if (dynamic == NULL)
        return;
    for (const Elf64_Dyn *d = (const Elf64_Dyn *)(base + dynamic->p_vaddr); d->d_tag != DT_NULL;
         d++) {
        table = d->d_tag == DT_RELA ? base + d->d_un.d_ptr : table;
        size = d->d_tag == DT_RELASZ ? d->d_un.d_val : size;
    }
    if (table == 0)
        return;
    for (const Elf64_Rela *r = (const Elf64_Rela *)table; (uintptr_t)r < table + size; r++) {
        if (ELF64_R_TYPE(r->r_info) != RELATIVE)
            _exit(125);
        *(uintptr_t *)(base + r->r_offset) = base + (uintptr_t)r->r_addend;
    }
}

/* What was only written to be relocated is constant from here on. */
static void protect(uintptr_t base)
{
    const Elf64_Phdr *relro = find_segment(PT_GNU_RELRO);
    if (relro == NULL)
        return;
    uintptr_t from = (base + relro->p_vaddr) & ~(PAGE_BYTES - 1);
    uintptr_t to = (base + relro->p_vaddr + relro->p_memsz) & ~(PAGE_BYTES - 1);
    if (to > from && syscall(SYS_mprotect, from, to - from, PROT_READ) < 0)
        _exit(125);
}

/* On the stack are argc, argv, the environment and the auxiliary vector, as execve left them. */
__attribute__((no_stack_protector)) void init_start(uintptr_t *stack)
{
    uintptr_t base = (uintptr_t)&__ehdr_start;
    uintptr_t *at = stack + 1 + stack[0] + 1;
    uintptr_t secret = 0;

    relocate(base);
    while (*at++ != 0)
        ;
    for (; at[0] != AT_NULL; at += 2)
        if (at[0] == AT_RANDOM)
            memcpy(&secret, (const void *)at[1], sizeof(secret));
    set_secret(secret & ~(uintptr_t)0xff); /* a zero byte stops strings that run over */
    protect(base);
    _exit(main((int)stack[0], (char **)(stack + 1)));
}

/* _FORTIFY_SOURCE: the compiler knows how large the target is, and we look. */

void *__memcpy_chk(void *to, const void *from, size_t n, size_t room);
void *__memcpy_chk(void *to, const void *from, size_t n, size_t room)
{
    if (n > room)
        abort();
    return memcpy(to, from, n);
}

void *__memmove_chk(void *to, const void *from, size_t n, size_t room);
void *__memmove_chk(void *to, const void *from, size_t n, size_t room)
{
    if (n > room)
        abort();
    return memmove(to, from, n);
}

void *__memset_chk(void *to, int c, size_t n, size_t room);
void *__memset_chk(void *to, int c, size_t n, size_t room)
{
    if (n > room)
        abort();
    return memset(to, c, n);
}

ssize_t __read_chk(int fd, void *data, size_t len, size_t room);
ssize_t __read_chk(int fd, void *data, size_t len, size_t room)
{
    if (len > room)
        abort();
    return read(fd, data, len);
}

ssize_t __pread64_chk(int fd, void *data, size_t len, off_t offset, size_t room);
ssize_t __pread64_chk(int fd, void *data, size_t len, off_t offset, size_t room)
{
    if (len > room)
        abort();
    return pread(fd, data, len, offset);
}

int __poll_chk(struct pollfd *fds, nfds_t n, int timeout_ms, size_t room);
int __poll_chk(struct pollfd *fds, nfds_t n, int timeout_ms, size_t room)
{
    if (n > room / sizeof(*fds))
        abort();
    return poll(fds, n, timeout_ms);
}

int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask,
                size_t room);
int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask,
                size_t room)
{
    if (n > room / sizeof(*fds))
        abort();
    return ppoll(fds, n, timeout, mask);
}

int __snprintf_chk(char *ret, size_t size, int flag, size_t room, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
int __snprintf_chk(char *ret, size_t size, int flag, size_t room, const char *fmt, ...)
{
    va_list ap;
    if (size > room)
        abort();
    va_start(ap, fmt);
    int n = vsnprintf(ret, size, fmt, ap);
    va_end(ap);
    return n;
}

int __open64_2(const char *path, int flags);
int __open64_2(const char *path, int flags)
{
    return open(path, flags & ~O_CREAT);
}

int __openat64_2(int dirfd, const char *path, int flags);
int __openat64_2(int dirfd, const char *path, int flags)
{
    return openat(dirfd, path, flags & ~O_CREAT);
}
