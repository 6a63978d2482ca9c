#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# LangBot's own client, unmodified, from PyPI: tests/interop runs once for each release, in a virtual environment of its
# own (tools/langbot.sh), some at once. A release is named here when the protocol changed with
# it, or LangBot ships it; one that is newer than all of them is driven as well. Part of tools/interop.sh.

client_releases=(0.4.0 0.5.0 0.5.5 0.5.8 0.6.1 0.7.0 0.7.11 0.7.13 0.7.16 0.7.18)
if [[ -n ${INTEROP_RELEASES:-} ]]; then
    read -ra client_releases <<<"$INTEROP_RELEASES"
elif newest=$(tools/langbot.sh newest); then
    newest=${newest%/bin/python}
    newest=${newest##*/langbot-}
    [[ " ${client_releases[*]} " == *" $newest "* ]] || client_releases+=("$newest")
else
    result "langbot-plugin newest" 1
fi

# The cases of one release in the background; what they print waits in a file until those before have been shown.
drive_client() {
    drive "langbot-plugin $1" "$(tools/langbot.sh install "$1")" tests/interop >"build/interop/client-$1.log" 2>&1
}

tools/langbot.sh shared >/dev/null # once, before all ask for it at the same time
lanes=${INTEROP_JOBS:-$(($(nproc) + 1))} # a part of the time goes into waiting
running=()
for release in "${client_releases[@]}"; do
    if ((${#running[@]} >= lanes)); then
        wait "${running[0]}"
        running=("${running[@]:1}")
    fi
    drive_client "$release" &
    running+=($!)
done
wait "${running[@]}"
for release in "${client_releases[@]}"; do cat "build/interop/client-$release.log"; done
