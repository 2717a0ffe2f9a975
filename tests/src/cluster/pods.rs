//! Pods as the API reports them.

use k8s_openapi::api::core::v1::Pod;

/// The namespace of the lab's flannel.
pub const FLANNEL_NAMESPACE: &str = "kube-flannel";
/// The namespace of the lab's Calico.
pub const CALICO_NAMESPACE: &str = "kube-system";

/// The number of restarts of a pod's containers.
pub fn restarts(pod: &Pod) -> i32 {
    pod.status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten())
        .map(|container| container.restart_count)
        .sum()
}
