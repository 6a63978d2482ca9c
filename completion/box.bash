# bash completion for box; made by `box completion bash`.

_box_sessions() {
    [ -n "$BOX_HOST" ] || [ -S /run/box/boxd.sock ] ||
        [ -S "$XDG_RUNTIME_DIR/box/boxd.sock" ] ||
        [ -S "$HOME/.local/state/box/boxd.sock" ] || return 0
    box ps --json 2>/dev/null | tr '{,' '\n\n' |
        sed -n 's/^ *"session_id": *"\([A-Za-z0-9_.-]*\)" *[]}]*$/\1/p'
}

# compgen -W would expand what boxd says.
_box_names() {
    local name
    while IFS= read -r name; do
        [[ $name == "$cur"* ]] && COMPREPLY+=("$name")
    done < <(_box_sessions)
}

_box() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb='' i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} == -- ]]; then
            if ((i + 1 == COMP_CWORD)); then
                mapfile -t COMPREPLY < <(compgen -c -- "$cur")
            else
                mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            fi
            return
        fi
        [[ ${COMP_WORDS[i]} != -* ]] || continue
        if [[ -z $verb ]]; then
            verb=${COMP_WORDS[i]}
        elif [[ $verb == mcp ]]; then
            verb+=" ${COMP_WORDS[i]}"
        fi
    done
    case $verb:$prev in
    run:--session) return ;;
    run:--name) return ;;
    run:--restart) mapfile -t COMPREPLY < <(compgen -W 'no on-failure always' -- "$cur"); return ;;
    run:--image) return ;;
    run:--network) mapfile -t COMPREPLY < <(compgen -W 'on off' -- "$cur"); return ;;
    run:--memory) return ;;
    run:--memory-mb) return ;;
    run:--cpus) return ;;
    run:--pids) return ;;
    run:--pids-limit) return ;;
    run:--quota) return ;;
    run:--quota-mb) return ;;
    run:--read-only-root) mapfile -t COMPREPLY < <(compgen -W 'on off' -- "$cur"); return ;;
    run:--mount) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    run:--volume) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    run:--publish) return ;;
    run:--allow-host) return ;;
    run:--timeout) return ;;
    run:--env) return ;;
    run:--env-file) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    run:--workdir) return ;;
    run:--user) return ;;
    run:--entrypoint) return ;;
    exec:--timeout) return ;;
    exec:--env) return ;;
    exec:--env-file) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    exec:--workdir) return ;;
    exec:--user) return ;;
    agent:--session) return ;;
    agent:--keys) mapfile -t COMPREPLY < <(compgen -W 'on off' -- "$cur"); return ;;
    agent:--cache) mapfile -t COMPREPLY < <(compgen -W 'own shared' -- "$cur"); return ;;
    agent:--image) return ;;
    agent:--network) mapfile -t COMPREPLY < <(compgen -W 'on off' -- "$cur"); return ;;
    agent:--memory) return ;;
    agent:--memory-mb) return ;;
    agent:--cpus) return ;;
    agent:--pids) return ;;
    agent:--pids-limit) return ;;
    agent:--quota) return ;;
    agent:--quota-mb) return ;;
    agent:--read-only-root) mapfile -t COMPREPLY < <(compgen -W 'on off' -- "$cur"); return ;;
    agent:--mount) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    agent:--volume) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    agent:--publish) return ;;
    agent:--allow-host) return ;;
    agent:--timeout) return ;;
    agent:--env) return ;;
    agent:--env-file) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    logs:--since) return ;;
    logs:--tail) return ;;
    kill:--signal) return ;;
    ps:--format) mapfile -t COMPREPLY < <(compgen -W 'json table TEMPLATE' -- "$cur"); return ;;
    update:--memory) return ;;
    update:--memory-mb) return ;;
    update:--cpus) return ;;
    update:--pids) return ;;
    update:--pids-limit) return ;;
    inspect:--format) mapfile -t COMPREPLY < <(compgen -W 'json TEMPLATE' -- "$cur"); return ;;
    top:--format) mapfile -t COMPREPLY < <(compgen -W 'json table TEMPLATE' -- "$cur"); return ;;
    stats:--format) mapfile -t COMPREPLY < <(compgen -W 'json table TEMPLATE' -- "$cur"); return ;;
    events:--format) mapfile -t COMPREPLY < <(compgen -W 'json TEMPLATE' -- "$cur"); return ;;
    doctor:--backend) mapfile -t COMPREPLY < <(compgen -W 'native runsc docker podman' -- "$cur"); return ;;
    doctor:--image) return ;;
    doctor:--format) mapfile -t COMPREPLY < <(compgen -W 'text json junit' -- "$cur"); return ;;
    doctor:--output) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    config:--config) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    audit:--config) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    audit:--head) return ;;
    mcp\ run:--cache) mapfile -t COMPREPLY < <(compgen -W 'own off' -- "$cur"); return ;;
    mcp\ run:--image) return ;;
    mcp\ run:--network) mapfile -t COMPREPLY < <(compgen -W 'on off' -- "$cur"); return ;;
    mcp\ run:--memory) return ;;
    mcp\ run:--memory-mb) return ;;
    mcp\ run:--cpus) return ;;
    mcp\ run:--pids) return ;;
    mcp\ run:--pids-limit) return ;;
    mcp\ run:--quota) return ;;
    mcp\ run:--quota-mb) return ;;
    mcp\ run:--read-only-root) mapfile -t COMPREPLY < <(compgen -W 'on off' -- "$cur"); return ;;
    mcp\ run:--mount) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    mcp\ run:--volume) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    mcp\ run:--allow-host) return ;;
    mcp\ run:--name) return ;;
    mcp\ run:--host-path) return ;;
    mcp\ run:--host-path-mode) mapfile -t COMPREPLY < <(compgen -W 'ro rw none' -- "$cur"); return ;;
    mcp\ run:--env) return ;;
    mcp\ run:--env-file) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    mcp\ run:--workdir) return ;;
    mcp\ run:--startup-timeout) return ;;
    mcp\ run:--install) mapfile -t COMPREPLY < <(compgen -W 'auto off' -- "$cur"); return ;;
    mcp\ run:--profile) return ;;
    mcp\ run:--fallback) mapfile -t COMPREPLY < <(compgen -W 'refuse host' -- "$cur"); return ;;
    mcp\ run:--retry-delays) return ;;
    mcp\ run:--config) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    mcp\ serve:--session) return ;;
    mcp\ serve:--image) return ;;
    mcp\ serve:--network) mapfile -t COMPREPLY < <(compgen -W 'on off' -- "$cur"); return ;;
    mcp\ serve:--memory) return ;;
    mcp\ serve:--memory-mb) return ;;
    mcp\ serve:--cpus) return ;;
    mcp\ serve:--pids) return ;;
    mcp\ serve:--pids-limit) return ;;
    mcp\ serve:--quota) return ;;
    mcp\ serve:--quota-mb) return ;;
    mcp\ serve:--read-only-root) mapfile -t COMPREPLY < <(compgen -W 'on off' -- "$cur"); return ;;
    mcp\ serve:--mount) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    mcp\ serve:--volume) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    esac
    local words=''
    case $verb in
    '') words='run exec agent cp port logs attach wait kill ps ls rm stop start pause unpause rename update diff inspect top stats events doctor info config audit mcp completion help --help --version' ;;
    mcp) words='run ls logs serve' ;;
    run) words=' --session --temporary --name --detach --restart --rm --image --network --memory --memory-mb --cpus --pids --pids-limit --quota --quota-mb --read-only-root --mount --volume --publish --allow-host --best-effort --timeout --env --env-file --workdir --user --entrypoint --tty --interactive --quiet --help --' ;;
    exec) words=' --detach --timeout --env --env-file --workdir --user --tty --interactive --help --'; [[ $cur == -* ]] || _box_names ;;
    agent) words='claude codex gemini opencode --session --rm --settings --keys --cache --image --network --memory --memory-mb --cpus --pids --pids-limit --quota --quota-mb --read-only-root --mount --volume --publish --allow-host --best-effort --timeout --env --env-file --quiet --help --' ;;
    cp) words=' --recursive --quiet --help' ;;
    port) words=' --json --help'; [[ $cur == -* ]] || _box_names ;;
    logs) words=' --follow --since --tail --help'; [[ $cur == -* ]] || _box_names ;;
    attach) words=' --help'; [[ $cur == -* ]] || _box_names ;;
    wait) words=' --help'; [[ $cur == -* ]] || _box_names ;;
    kill) words=' --signal --help'; [[ $cur == -* ]] || _box_names ;;
    ps|ls) words=' --all --quiet --format --json --help' ;;
    rm) words=' --all --force --help'; [[ $cur == -* ]] || _box_names ;;
    stop) words=' --help'; [[ $cur == -* ]] || _box_names ;;
    start) words=' --help'; [[ $cur == -* ]] || _box_names ;;
    pause) words=' --help'; [[ $cur == -* ]] || _box_names ;;
    unpause) words=' --help'; [[ $cur == -* ]] || _box_names ;;
    rename) words=' --help' ;;
    update) words=' --memory --memory-mb --cpus --pids --pids-limit --help'; [[ $cur == -* ]] || _box_names ;;
    diff) words=' --json --help'; [[ $cur == -* ]] || _box_names ;;
    inspect) words=' --format --help'; [[ $cur == -* ]] || _box_names ;;
    top) words=' --format --help'; [[ $cur == -* ]] || _box_names ;;
    stats) words=' --format --no-stream --help'; [[ $cur == -* ]] || _box_names ;;
    events) words=' --format --json --help'; [[ $cur == -* ]] || _box_names ;;
    doctor) words=' --attack --backend --image --format --output --json --help' ;;
    info) words=' --json --help' ;;
    config) words=' --json --config --explain --help' ;;
    audit) words='verify --json --config --head --help' ;;
    mcp\ run) words=' --cache --image --network --memory --memory-mb --cpus --pids --pids-limit --quota --quota-mb --read-only-root --mount --volume --allow-host --best-effort --name --host-path --host-path-mode --env --env-file --workdir --startup-timeout --install --profile --fallback --retry-delays --config --help --' ;;
    mcp\ ls) words=' --json --help' ;;
    mcp\ logs) words=' --follow --help' ;;
    mcp\ serve) words=' --session --image --network --memory --memory-mb --cpus --pids --pids-limit --quota --quota-mb --read-only-root --mount --volume --help' ;;
    completion) words='bash zsh fish --help' ;;
    help) words='run exec agent cp port logs attach wait kill ps ls rm stop start pause unpause rename update diff inspect top stats events doctor info config audit mcp completion help --help --version' ;;
    esac
    mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -W "$words" -- "$cur")
}

complete -F _box box
