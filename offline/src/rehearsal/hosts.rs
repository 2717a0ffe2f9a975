//! The agents: each brings its host to its goal, phase by phase, and answers probes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::NodeMigration;
use flannel_to_calico::phase::{Goal, Phase};
use serde_json::{Value, json};

use super::state::State;
use crate::paths::{NODE_MIGRATIONS, PODS};
use crate::snapshot::is_ready;

/// The hosts, by name of the node.
#[derive(Default)]
pub struct Hosts(BTreeMap<String, Host>);

/// One host.
struct Host {
    phase: Phase,
    /// The next phase, and its time.
    next: Option<(Phase, Duration)>,
}

impl Hosts {
    /// The time of the next change of a phase.
    pub fn next(&self) -> Option<Duration> {
        let next = self.0.values().filter_map(|host| host.next);
        next.map(|(_, at)| at).min()
    }

    /// Whether a new pod on this node gets an address.
    pub fn serves_pods(&self, state: &State, node: &str) -> bool {
        match self.0.get(node).map(|host| host.phase) {
            None => true,
            Some(Phase::Flannel) => has_daemon(state, node, "flannel", false),
            Some(Phase::Mixed | Phase::Calico) => has_daemon(state, node, "calico", true),
            Some(Phase::Held | Phase::Swapped | Phase::Detached) => false,
        }
    }

    /// Each agent does what is due, and reports. Returns whether anything changed.
    pub fn act(&mut self, state: &mut State) -> bool {
        let mut has_changed = false;
        for object in state.objects.below(NODE_MIGRATIONS).cloned().collect::<Vec<_>>() {
            let Ok(read) = serde_json::from_value::<NodeMigration>(object.clone()) else {
                continue;
            };
            let node = read.spec.node_name.clone();
            let of_kind = read
                .status
                .as_ref()
                .and_then(|status| status.flannel_to_calico.as_ref());
            let reported = of_kind.and_then(|status| status.phase).unwrap_or(Phase::Flannel);
            let goal = read
                .spec
                .flannel_to_calico
                .as_ref()
                .map(|spec| spec.goal)
                .unwrap_or_default();
            let host = self.0.entry(node.clone()).or_insert(Host {
                phase: reported,
                next: None,
            });
            host.act(state, &node, goal);
            has_changed |= report(state, &node, &object, host.phase, goal);
        }
        has_changed
    }
}

impl Host {
    fn act(&mut self, state: &State, node: &str, goal: Goal) {
        let now = state.clock.passed();
        if let Some((phase, _)) = self.next.take_if(|(_, at)| *at <= now) {
            self.phase = phase;
        }
        let wanted = next_phase(state, node, self.phase, goal);
        let is_under_way = self.next.is_some_and(|(phase, _)| Some(phase) == wanted);
        if !is_under_way {
            self.next = wanted.map(|phase| (phase, now + takes(state, node, self.phase, phase)));
        }
    }
}

/// The next phase on the way to the goal; `None` while the host waits, or has reached it.
fn next_phase(state: &State, node: &str, phase: Phase, goal: Goal) -> Option<Phase> {
    let is_wanted = goal
        .phase()
        .is_some_and(|wanted| goal.is_forward() && !phase.reaches(wanted));
    if !is_wanted {
        return None;
    }
    match phase {
        Phase::Flannel => (!has_daemon(state, node, "flannel", true)).then_some(Phase::Held),
        Phase::Held if goal == Goal::Swapped || goal == Goal::Mixed => Some(Phase::Swapped),
        Phase::Held => Some(Phase::Detached),
        Phase::Swapped => has_daemon(state, node, "calico", true).then_some(Phase::Mixed),
        Phase::Detached => has_daemon(state, node, "calico", true).then_some(Phase::Calico),
        Phase::Mixed => Some(Phase::Calico),
        Phase::Calico => None,
    }
}

fn takes(state: &State, node: &str, from: Phase, to: Phase) -> Duration {
    let pace = &state.pace;
    match (from, to) {
        (Phase::Flannel, _) => pace.holds,
        (_, Phase::Swapped) => pace.swaps,
        (_, Phase::Detached) => pace.detaches,
        (Phase::Mixed, _) => {
            let pods = state
                .objects
                .below(PODS)
                .filter(|pod| pod["spec"]["nodeName"] == node && pod["spec"]["hostNetwork"] != true);
            let pods = u32::try_from(pods.count()).unwrap_or(u32::MAX);
            pace.adopts + pace.adopts_pod.saturating_mul(pods)
        }
        (_, _) => pace.attaches,
    }
}

/// Whether the node has a pod of flannel or Calico that is not ending, and is Ready if that is needed.
fn has_daemon(state: &State, node: &str, network: &str, has_to_be_ready: bool) -> bool {
    let namespace = state.setting(&format!("{network}DaemonSetNamespace"));
    let name = state.setting(&format!("{network}DaemonSetName"));
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let mut pods = state.objects.below(&path);
    pods.any(|pod| {
        pod["spec"]["nodeName"] == node
            && pod["metadata"]["ownerReferences"][0]["name"] == name
            && pod["metadata"]["deletionTimestamp"].is_null()
            && (is_ready(pod) || !has_to_be_ready)
    })
}

/// The report of the traffic pods of a node: each path answers.
fn traffic(object: &Value) -> Value {
    let flows = object["spec"]["flows"].as_array().cloned().unwrap_or_default();
    if flows.is_empty() {
        return object["status"]["traffic"].clone();
    }
    let sources: BTreeSet<&str> = flows.iter().filter_map(|flow| flow["source"].as_str()).collect();
    json!({
        "lossesCountedSince": object["spec"]["lossesCountedSince"],
        "flows": flows.len(), "reporting": sources, "breaches": [], "classes": [], "at": "1970-01-01T00:00:00Z",
    })
}

/// Writes the report of a host, if it differs.
fn report(state: &mut State, node: &str, object: &Value, phase: Phase, goal: Goal) -> bool {
    let mut status = object["status"].clone();
    let probes = object["spec"]["probes"].as_array().cloned().unwrap_or_default();
    let known = status["probes"].as_array().cloned().unwrap_or_default();
    let answers = probes.iter().map(|target| {
        let answered = known.iter().find(|answer| answer["target"] == *target);
        answered.cloned().unwrap_or_else(|| {
            json!({ "target": target, "reached": true, "message": "answered", "at": state.clock.now().to_string() })
        })
    });
    status["probes"] = answers.collect();
    status["observedGeneration"] = object["metadata"]["generation"].clone();
    status["traffic"] = traffic(object);
    let of_kind = &mut status["flannelToCalico"];
    of_kind["phase"] = json!(phase);
    of_kind["goal"] = json!(goal);
    // Checks of a host are about its state before the start.
    of_kind["checks"] = json!([]);
    if phase == Phase::Calico {
        of_kind["leftovers"] = json!([]);
    }
    of_kind["changes"] = match phase {
        Phase::Flannel => json!([]),
        Phase::Held | Phase::Swapped | Phase::Mixed | Phase::Detached | Phase::Calico => {
            json!(["the rehearsal"])
        }
    };
    let is_alive = |pod: &Value| {
        let name = format!(
            "/api/v1/namespaces/{}/pods/{}",
            pod["namespace"].as_str().unwrap_or_default(),
            pod["name"].as_str().unwrap_or_default()
        );
        let there = state.objects.get(&name);
        there.is_some_and(|there| there["spec"]["nodeName"] == node)
    };
    let facts = &mut of_kind["facts"];
    if let Value::Array(pods) = &mut facts["legacyPods"] {
        pods.retain(|pod| is_alive(pod) && phase != Phase::Calico && phase != Phase::Detached);
    }
    if matches!(phase, Phase::Calico | Phase::Detached) && !facts.is_null() {
        facts["bridge"] = json!({ "absent": true });
    }
    if status == object["status"] {
        return false;
    }
    let mut object = object.clone();
    object["status"] = status;
    state.objects.put(&format!("{NODE_MIGRATIONS}/{node}"), object);
    true
}
