//! A pod of a `DaemonSet` on its node, as the decisions about that node see it.

use crate::words;

/// One pod of a `DaemonSet`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonPod {
    /// Namespace and name: `namespace/name`.
    pub name: String,
    /// What the pod does.
    pub state: DaemonPodState,
}

/// The state of a pod of a `DaemonSet`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DaemonPodState {
    /// Starts, or has a problem.
    NotReady,
    /// Serves.
    Ready,
    /// Is being deleted: once the kubelet knows it, it ends the containers and starts none again.
    Terminating,
}

/// The names of these pods.
pub fn names(pods: &[DaemonPod]) -> String {
    let names: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
    words::names(&names)
}

/// Whether one of these pods is Ready.
pub fn any_is_ready(pods: &[DaemonPod]) -> bool {
    pods.iter().any(|pod| pod.state == DaemonPodState::Ready)
}
