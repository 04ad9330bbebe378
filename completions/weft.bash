# Completion for bash. Commands, options and config keys come from the program itself, so that this file
# has none to forget.

_weft_commands() { "$1" help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\)  *.*/\1/p'; }

_weft_options() { "$1" help "$2" 2>/dev/null | grep -o -E '(^|[ (,;])--?[a-z][a-z-]*' | tr -d ' (,;' | sort -u; }

_weft_keys() { "$1" help config 2>/dev/null | sed -n 's/^  CONFIG_\([A-Z0-9_]*\)=.*/\1=/p'; }

# The studies that came with the program; --config takes them by name.
_weft_defconfigs() {
    local bin file
    bin=$(dirname "$(readlink -f "$(type -P "$1")")") || return
    for file in "$bin"/../share/weft/defconfigs/* "$bin"/../defconfigs/*; do
        [ -f "$file" ] && echo "${file##*/}"
    done
}

_weft() {
    local program=${COMP_WORDS[0]} command=${COMP_WORDS[1]-} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local words=
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        words=$(_weft_commands "$program")
    elif [ "$command" = help ]; then
        words="$(_weft_commands "$program") config $(_weft_keys "$program" | tr -d =)"
    else
        case $before in
            --device) words='cpu cuda auto' ;;
            --dtype) words='f32 bf16 f64' ;;
            -o)
                words=$(_weft_keys "$program")
                compopt -o nospace ;;
            --config) words=$(_weft_defconfigs "$program") ;;
            *) case $word in -*) words=$(_weft_options "$program" "$command") ;; esac ;;
        esac
        case $command in
            bench) [ "$COMP_CWORD" -eq 2 ] && words='train decode attention serve' ;;
            tokenizer) [ "$COMP_CWORD" -eq 2 ] && words='train' ;;
        esac
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    # Where nothing fits, or a file may stand as well, files.
    case $before in --config) mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word") ;; esac
    [ "${#COMPREPLY[@]}" -gt 0 ] || compopt -o default
}

complete -F _weft weft
