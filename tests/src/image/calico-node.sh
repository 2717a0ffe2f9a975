#!/bin/sh
# The start of the lab's calico-node container. It runs the parts that a node needs, and starts a part again when it ends:
# Felix ends itself (code 129) whenever its configuration changes.

calico-node -startup || exit 1
if [ ! -f /var/lib/calico/nodename ]; then
    echo "lab: calico-node -startup left no /var/lib/calico/nodename"
    exit 1
fi
NODENAME=$(cat /var/lib/calico/nodename)
export NODENAME
export FELIX_FELIXHOSTNAME="$NODENAME"
export FELIX_DATASTORETYPE="${DATASTORE_TYPE:-kubernetes}"
# With etcd: Felix alone does not know these by the names that the manifest has.
export FELIX_ETCDENDPOINTS="$ETCD_ENDPOINTS"
export FELIX_ETCDCAFILE="$ETCD_CA_CERT_FILE"
export FELIX_ETCDCERTFILE="$ETCD_CERT_FILE"
export FELIX_ETCDKEYFILE="$ETCD_KEY_FILE"
calico-node -allocate-tunnel-addrs -allocate-tunnel-addrs-run-once || exit 1

keep() {
    while :; do
        calico-node "$@"
        echo "lab: calico-node $* ended with code $?, starting it again in a second"
        sleep 1
    done
}

# Runs until it has succeeded once.
once() {
    until calico-node "$@"; do
        echo "lab: calico-node $* failed, trying again in a second"
        sleep 1
    done
}

trap 'trap - TERM INT; kill 0; exit 0' TERM INT
once -complete-startup &
keep -felix &
if [ "$CALICO_NETWORKING_BACKEND" != none ]; then
    keep -monitor-addresses &
fi
keep -allocate-tunnel-addrs &
if [ "$CALICO_NETWORKING_BACKEND" = bird ]; then
    echo "lab: there is no BIRD: routes between nodes are those of replumb's stand-in"
    keep -bird &
fi
if [ "$CALICO_MANAGE_CNI" != false ]; then
    keep -monitor-token &
fi
echo "Calico node started successfully"
wait
