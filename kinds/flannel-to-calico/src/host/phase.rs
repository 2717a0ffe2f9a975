//! The phase that the facts of a host prove.

use super::device::{calico_device_problem, flannel_devices};
use super::{CALICO_DEVICE, HostSettings, adopt};
use crate::cni;
use crate::facts::HostFacts;
use crate::phase::Phase;

/// The phase that the facts prove.
pub fn phase(facts: &HostFacts, settings: &HostSettings) -> Phase {
    let new_pods_held = facts.subnet_environment.is_absent() && !facts.flanneld_running;
    if !new_pods_held {
        return Phase::Flannel;
    }
    if flannel_devices(facts, settings).next().is_some() {
        return Phase::Held;
    }
    let calico_wins = facts.cni.winner().is_some_and(cni::is_calico);
    let calico_alone = calico_wins
        && cni::flannel_files(&facts.cni).next().is_none()
        && calico_device_problem(facts, settings).is_none();
    let serves_adopted = facts.has_adopted_pods();
    let old_pods_served = !facts.bridge.is_absent()
        || !facts.firewall.is_empty()
        || (!serves_adopted && (facts.leases > 0 || facts.delegates > 0))
        || facts.legacy_pods.iter().any(|pod| !pod.is_adopted())
        || adopt::clean(facts).is_some();
    match (old_pods_served, calico_alone) {
        (true, true) => Phase::Mixed,
        (true, false) if facts.vxlan(CALICO_DEVICE).is_some() => Phase::Swapped,
        (true, false) => Phase::Held,
        (false, true) => Phase::Calico,
        (false, false) => Phase::Detached,
    }
}
