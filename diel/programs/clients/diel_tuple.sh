# diel_tuple.sh: the tuple space of a diel run, for shell scripts that use it often.
#
#     . "$(diel tuple client sh)"
#     diel_tuple_open
#     while length=$(diel_tuple get --nowait 'job/*'); do
#         diel_tuple put --json area $((length * length))
#     done
#
# `diel_tuple` takes the words of `diel tuple` and returns its exit code, in a fraction of its time:
# one `diel tuple session` serves them all. It prints values of one line. POSIX sh; the file
# descriptors 8 and 9 are taken.

diel_tuple_open() {
    diel_tuple_folder=$(mktemp -d) || return 2
    mkfifo "$diel_tuple_folder/asked" "$diel_tuple_folder/answered" || return 2
    diel tuple session <"$diel_tuple_folder/asked" >"$diel_tuple_folder/answered" 9>&- 8>&- &
    exec 8>"$diel_tuple_folder/asked" 9<"$diel_tuple_folder/answered"
    rm -r "$diel_tuple_folder"
}

diel_tuple() {
    diel_tuple_line=
    for diel_tuple_word; do
        case $diel_tuple_word in
        *'
'*)
            echo 'diel_tuple: a word of several lines: diel tuple put TAG - takes them' >&2
            return 2
            ;;
        *"'"*) diel_tuple_word=$(printf '%s.' "$diel_tuple_word" | sed "s/'/'\\\\''/g") &&
            diel_tuple_word=${diel_tuple_word%.} ;;
        esac
        diel_tuple_line="$diel_tuple_line '$diel_tuple_word'"
    done
    printf '%s\n' "$diel_tuple_line" >&8 || return 2
    IFS= read -r diel_tuple_answer <&9 || {
        echo 'diel_tuple: the session has ended' >&2
        return 2
    }
    case $diel_tuple_answer in
    0) ;;
    '0 '*) printf '%s\n' "${diel_tuple_answer#0 }" ;;
    '1 '*) return 1 ;;
    *)
        printf 'diel: %s\n' "${diel_tuple_answer#2 }" >&2
        return 2
        ;;
    esac
}

diel_tuple_close() {
    exec 8>&- 9<&-
}
