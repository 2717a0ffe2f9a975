//! The node that each walk makes its view from, and the parts of such a view.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::super::facts::LegacyPod;
use super::super::node::{AgentReport, Direction, NetworkLabel, NodeView, Policy};
use super::super::phase::Goal;
use super::super::settings::{LegacyPods, Strategy};
use engine::daemon_pod::{DaemonPod, DaemonPodState};
use engine::drain::{Permissions, Residents};
use engine::evict::{OnBlocked, Refusal};
use engine::probe::{ProbePod, Prober};

/// The address of the flannel pod of each walk.
pub(super) const LEGACY: &str = "10.244.1.7";

pub(super) const POLICY: Policy = Policy {
    strategy: Strategy::InPlace,
    legacy_pods: LegacyPods::Keep,
    step_timeout: SignedDuration::from_secs(600),
    drain_timeout: SignedDuration::from_secs(900),
    on_blocked: OnBlocked::Pause,
    permissions: Permissions {
        delete_empty_dir_data: false,
        force: false,
    },
    grace_period_seconds: None,
    resumed_at: None,
};

pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

pub(super) fn now() -> Timestamp {
    at(0)
}

/// A Ready node on flannel without pods, whose agent has reported nothing.
pub(super) fn node(refusals: &BTreeMap<String, Refusal>) -> NodeView<'_> {
    NodeView {
        name: "a",
        direction: Direction::Forward,
        was_done_at: None,
        ready: true,
        ready_changed: None,
        unschedulable: false,
        cordoned_by_replumb: false,
        network: NetworkLabel::Flannel,
        goal: Goal::Hold,
        agent: AgentReport::default(),
        residents: Residents::default(),
        budgets: &[],
        refusals,
        flannel_pods: Vec::new(),
        calico_pods: Vec::new(),
        to_import: Vec::new(),
        to_release: Vec::new(),
        legacy_pods: Vec::new(),
        pods_that_stay: Vec::new(),
        probe_pod: None,
        probers: Vec::new(),
        stage: None,
    }
}

/// The pod of flannel on the node, if there is one.
pub(super) fn flannel_pods(state: Option<DaemonPodState>) -> Vec<DaemonPod> {
    daemon_pods("kube-flannel/x", state)
}

/// The pod of Calico on the node, if there is one, and whether it is Ready.
pub(super) fn calico_pods(ready: Option<bool>) -> Vec<DaemonPod> {
    daemon_pods("kube-system/calico-node-x", ready.map(readiness))
}

/// The state of a pod that is not being deleted.
pub(super) fn readiness(ready: bool) -> DaemonPodState {
    if ready {
        DaemonPodState::Ready
    } else {
        DaemonPodState::NotReady
    }
}

fn daemon_pods(name: &str, state: Option<DaemonPodState>) -> Vec<DaemonPod> {
    let pod = |state| DaemonPod {
        name: name.to_owned(),
        state,
    };
    state.map(pod).into_iter().collect()
}

/// The agent's record of a flannel pod.
pub(super) fn legacy_pod(name: &str, address: &str, attached: bool) -> LegacyPod {
    LegacyPod {
        other_link: None,
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        sandbox: "s1".to_owned(),
        link: "veth1".to_owned(),
        addresses: vec![address.parse().unwrap()],
        attached,
        routed: true,
        mac: String::new(),
        pod_link: None,
        obstacle: None,
        not_taken_within: None,
    }
}

/// The probe pod of the node; without an address while it starts.
pub(super) fn probe_pod(has_address: bool) -> ProbePod {
    ProbePod {
        uid: "p".to_owned(),
        address: has_address.then(|| "10.244.1.9".parse().unwrap()),
        message: String::new(),
    }
}

/// The prober of the probe pod, and whether it reaches the pod.
pub(super) fn probers(reached: Option<bool>) -> Vec<Prober> {
    vec![Prober {
        node: "b".to_owned(),
        side: "old",
        reached,
        message: String::new(),
    }]
}
