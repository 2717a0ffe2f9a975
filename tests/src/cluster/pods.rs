//! Pods as the API shows them.

use k8s_openapi::api::core::v1::Pod;

/// Where the lab's flannel is.
pub const FLANNEL_NAMESPACE: &str = "kube-flannel";
/// Where the lab's Calico is.
pub const CALICO_NAMESPACE: &str = "kube-system";

/// How often a pod's containers were started again.
pub fn restarts(pod: &Pod) -> i32 {
    pod.status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten())
        .map(|container| container.restart_count)
        .sum()
}
