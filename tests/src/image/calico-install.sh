#!/bin/sh
# The lab's installer for Calico's CNI plugins: the same inputs and the same files as the real one. Its kubeconfig has
# the pod's own token, as Calico's had before it asked for one of its own.
set -eu

host_plugins=/host/opt/cni/bin
host_configuration=/host/etc/cni/net.d
network_folder=${CNI_NET_DIR:-/etc/cni/net.d}
credentials=/var/run/secrets/kubernetes.io/serviceaccount

for source in /opt/cni/bin/*; do
    name=${source##*/}
    [ "$name" = install ] && continue
    # By renaming: the plugin may be running at this moment.
    cp "$source" "$host_plugins/$name.tmp"
    chmod 755 "$host_plugins/$name.tmp"
    mv "$host_plugins/$name.tmp" "$host_plugins/$name"
    echo "Installed $host_plugins/$name"
done

umask 077
if [ -f "$credentials/token" ]; then
    cat > "$host_configuration/calico-kubeconfig.tmp" << CONFIGURATION
# Kubeconfig file for Calico CNI plugin.
apiVersion: v1
kind: Config
clusters:
- name: local
  cluster:
    server: https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT
    certificate-authority-data: $(base64 < "$credentials/ca.crt" | tr -d '\n')
users:
- name: calico
  user:
    token: $(cat "$credentials/token")
contexts:
- name: calico-context
  context:
    cluster: local
    user: calico
current-context: calico-context
CONFIGURATION
    mv "$host_configuration/calico-kubeconfig.tmp" "$host_configuration/calico-kubeconfig"
fi

name=${CNI_CONF_NAME:-10-calico.conflist}
if [ -z "${CNI_NETWORK_CONFIG:-}" ]; then
    echo "CNI_NETWORK_CONFIG is not set: there is no network configuration to install" >&2
    exit 1
fi
printf '%s\n' "$CNI_NETWORK_CONFIG" | sed \
    -e "s#__LOG_LEVEL__#${LOG_LEVEL:-info}#g" \
    -e "s#__LOG_FILE_PATH__#${LOG_FILE_PATH:-/var/log/calico/cni/cni.log}#g" \
    -e "s#__LOG_FILE_MAX_SIZE__#${LOG_FILE_MAX_SIZE:-100}#g" \
    -e "s#__LOG_FILE_MAX_AGE__#${LOG_FILE_MAX_AGE:-30}#g" \
    -e "s#__LOG_FILE_MAX_COUNT__#${LOG_FILE_MAX_COUNT:-10}#g" \
    -e "s#__DATASTORE_TYPE__#${DATASTORE_TYPE:-kubernetes}#g" \
    -e "s#__KUBERNETES_NODE_NAME__#${KUBERNETES_NODE_NAME:-$(hostname)}#g" \
    -e "s#__KUBECONFIG_FILEPATH__#$network_folder/calico-kubeconfig#g" \
    -e "s#__CNI_MTU__#${CNI_MTU:-1500}#g" \
    > "$host_configuration/$name.tmp"
mv "$host_configuration/$name.tmp" "$host_configuration/$name"
echo "Created $host_configuration/$name"

[ "${SLEEP:-true}" = true ] || exit 0
trap 'exit 0' TERM INT
while :; do
    sleep 3600 &
    wait $!
done
