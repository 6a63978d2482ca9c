#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: syscall_names.sh CC [ARG...]: "[0] = "read"," and so on, for the compiler's architecture.
echo '#include <asm/unistd.h>' | "$@" -E -dM -x c - |
    sed -n 's/^#define __NR_\([a-z0-9_]*\) \([0-9][0-9]*\)$/[\2] = "\1",/p' | sort
