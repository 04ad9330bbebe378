# complete.zsh ROOT LINE...: what zsh makes of each line when Tab is pressed, with the completion that is
# installed under ROOT.
zmodload zsh/zpty
root=$1
shift
zpty inner "PATH=$root/usr/bin:\$PATH PS1= zsh -f -i"
zpty -w inner "fpath=($root/usr/share/zsh/site-functions \$fpath); autoload -U compinit; compinit -u -d $root/zcompdump; echo rea''dy"
while zpty -r inner line; do [[ $line == *ready* ]] && break; done
for typed in "$@"; do
    zpty -w -n inner "$typed"$'\t'
    shown=
    for (( i = 0; i < 100; i++ )); do
        sleep 0.1
        while zpty -rt inner part; do shown+=$part; done
        # Done when something follows what was typed.
        [[ ${${shown//$'\a'/}//$'\e'*} == *$typed?* ]] && break
    done
    print -r -- ${shown//$'\a'/}
    zpty -w -n inner $'\x15'
    sleep 0.2
    while zpty -rt inner part; do :; done
done
zpty -d inner
