#!/bin/sh
# calico-node of the lab's Calico v3 with etcd: Calico's own program does everything but the part of BIRD, which is played by
# replumb's stand-in. Routes between nodes are the stand-in's: no BGP is spoken.

bird=
own=
for option; do
    case $option in
    -bird*) bird="$bird $option" ;;
    *) own="$own $option" ;;
    esac
done
# Calico's probes ask about both at once. Options are single words: they are split on purpose.
if [ -n "$bird" ]; then
    [ -n "$own" ] || exec /usr/lib/stand-in/calico-node $bird
    /usr/lib/stand-in/calico-node $bird || exit
fi
exec /usr/lib/calico/calico-node $own
