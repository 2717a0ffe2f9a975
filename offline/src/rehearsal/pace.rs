//! How long the parts of a cluster take. Measured in the lab with real Calico v3.31.7, flannel v0.28.4, kubelet v1.36.3 and containerd
//! v2.4.2, release build (docs/limits.md); the times of pods are assumptions, because their programs decide.

use std::time::Duration;

/// One set of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// From the deletion of flannel's pod to the end of flanneld.
    pub flannel_ends: Duration,
    /// From the creation of a pod of flannel to Ready.
    pub flannel_starts: Duration,
    /// From the deletion of a pod of calico-node to its end.
    pub calico_ends: Duration,
    /// From the creation of a pod of calico-node to Ready.
    pub calico_starts: Duration,
    /// From the goal to the phase: new pods wait.
    pub holds: Duration,
    /// From the goal to the phase: the tunnel has the name of Calico's.
    pub swaps: Duration,
    /// From the goal to the phase: bridge, chains and leases of flannel are gone.
    pub detaches: Duration,
    /// From the goal to the phase: Calico's conflist is in use.
    pub attaches: Duration,
    /// Adoption on a node, and for each pod.
    pub adopts: Duration,
    /// The part of the adoption for each pod.
    pub adopts_pod: Duration,
    /// From the creation of the probe pod to Ready.
    pub probe_starts: Duration,
    /// From the creation of a traffic pod to Ready.
    pub traffic_starts: Duration,
    /// From the eviction of a pod to its end, if its grace period is not shorter.
    pub pod_ends: Duration,
    /// From the place of a pod to Ready.
    pub pod_starts: Duration,
    /// From a request to the reaction of a controller or of the scheduler.
    pub controller: Duration,
}

impl Pace {
    /// The usual times.
    pub const USUAL: Self = Self {
        flannel_ends: Duration::from_millis(300),
        flannel_starts: Duration::from_secs(3),
        calico_ends: Duration::from_secs(1),
        calico_starts: Duration::from_millis(4900),
        holds: Duration::from_millis(400),
        swaps: Duration::from_millis(500),
        detaches: Duration::from_millis(800),
        attaches: Duration::from_millis(100),
        adopts: Duration::from_millis(600),
        adopts_pod: Duration::from_millis(40),
        probe_starts: Duration::from_millis(400),
        traffic_starts: Duration::from_secs(2),
        pod_ends: Duration::from_secs(2),
        pod_starts: Duration::from_secs(3),
        controller: Duration::from_millis(100),
    };

    /// A quiet cluster, and pods that end and start at once.
    pub const QUICK: Self = Self {
        flannel_ends: Duration::from_millis(100),
        flannel_starts: Duration::from_secs(2),
        calico_ends: Duration::from_millis(500),
        calico_starts: Duration::from_millis(4200),
        holds: Duration::from_millis(300),
        swaps: Duration::from_millis(200),
        detaches: Duration::from_millis(400),
        attaches: Duration::ZERO,
        adopts: Duration::from_millis(300),
        adopts_pod: Duration::from_millis(20),
        probe_starts: Duration::from_millis(200),
        traffic_starts: Duration::from_secs(1),
        pod_ends: Duration::from_millis(500),
        pod_starts: Duration::from_secs(1),
        controller: Duration::from_millis(50),
    };

    /// A busy cluster, and pods that use their whole grace period.
    pub const SLOW: Self = Self {
        flannel_ends: Duration::from_secs(2),
        flannel_starts: Duration::from_secs(6),
        calico_ends: Duration::from_secs(4),
        calico_starts: Duration::from_secs(15),
        holds: Duration::from_millis(1500),
        swaps: Duration::from_millis(2500),
        detaches: Duration::from_secs(3),
        attaches: Duration::from_secs(1),
        adopts: Duration::from_secs(4),
        adopts_pod: Duration::from_millis(100),
        probe_starts: Duration::from_secs(6),
        traffic_starts: Duration::from_secs(8),
        pod_ends: Duration::MAX,
        pod_starts: Duration::from_secs(20),
        controller: Duration::from_millis(500),
    };
}
