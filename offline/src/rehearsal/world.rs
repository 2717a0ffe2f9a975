//! The cluster around the coordinator: its API server, and what controllers, kubelets and agents do next.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use api::MigrationStatus;
use coordinator::clock::Rehearsed;
use coordinator::facts;
use engine::drain::Budget;
use http::{Method, StatusCode};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Client;
use memory_api::{Answer, Call, Objects, failure_of};
use serde_json::{Value, json};

use super::budgets;
use super::daemons::Daemons;
use super::hosts::Hosts;
use super::pace::Pace;
use super::pods;
use super::record::Rehearsal;
use super::state::{State, path_of};
use crate::lock::lock;
use crate::{agents, cluster};

/// Where budgets are.
const BUDGETS: &str = "/apis/policy/v1/namespaces/*/poddisruptionbudgets";

/// The cluster. Clones share it.
#[derive(Clone)]
pub struct World(Arc<Mutex<Parts>>);

/// The parts of the cluster.
struct Parts {
    state: State,
    reports: BTreeMap<String, Value>,
    daemons: Daemons,
    hosts: Hosts,
    /// The number of pods of each budget before the migration, by path.
    expected: BTreeMap<String, i32>,
    writes: u64,
    /// The version of the objects after which there was nothing to do.
    settled: Option<u64>,
}

impl World {
    /// A cluster with these objects and these reports of hosts.
    pub fn new(objects: Objects, reports: BTreeMap<String, Value>, pace: Pace, clock: Rehearsed) -> Self {
        let daemons = Daemons::of(&objects);
        let mut state = State::of(objects, pace, clock);
        let pods = state.pods();
        state.record.begin(&state.objects, &pods);
        let budgets = state.objects.below(BUDGETS);
        let expected = budgets.map(|object| (path_of(BUDGETS, object), budgets::expected(object, &pods)));
        let parts = Parts {
            expected: expected.collect(),
            state,
            reports,
            daemons,
            hosts: Hosts::default(),
            writes: 0,
            settled: None,
        };
        Self(Arc::new(Mutex::new(parts)))
    }

    /// A client of its API server.
    pub fn client(&self) -> Client {
        let world = self.clone();
        memory_api::client(move |call| {
            let answer = world.lock().answer(&call);
            std::future::ready(Ok(answer))
        })
        .build()
    }

    /// The objects at this moment.
    pub fn objects(&self) -> Objects {
        self.lock().state.objects.clone()
    }

    /// The object at this path.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.lock().state.objects.get(path).cloned()
    }

    /// Puts an object.
    pub fn put(&self, path: &str, object: Value) {
        self.lock().state.objects.put(path, object);
    }

    /// The number of writes of the coordinator.
    pub fn writes(&self) -> u64 {
        self.lock().writes
    }

    /// The agents report the hosts of the snapshot.
    ///
    /// # Errors
    ///
    /// A report is not one.
    pub fn report_before_start(&self) -> anyhow::Result<()> {
        let parts = &mut *self.lock();
        agents::report(&mut parts.state.objects, &parts.reports)
    }

    /// Does what is due. Returns whether anything changed.
    pub fn act(&self) -> bool {
        self.lock().act()
    }

    /// The time until something else is due.
    pub fn until_next_event(&self) -> Option<Duration> {
        let parts = self.lock();
        let now = parts.state.clock.passed();
        let due = [parts.state.life.next(), parts.hosts.next()];
        let next = due.into_iter().flatten().filter(|at| *at > now).min()?;
        Some(next.saturating_sub(now))
    }

    /// What happened, from the start of the migration.
    pub fn rehearsal(&self, status: &MigrationStatus, started: Duration) -> Rehearsal {
        let state = &mut self.lock().state;
        let (now, objects) = (state.clock.passed(), state.objects.clone());
        let begun = state.clock.now() - now;
        for network in ["flannel", "calico"] {
            let namespace = state.setting(&format!("{network}DaemonSetNamespace"));
            let name = state.setting(&format!("{network}DaemonSetName"));
            state.record.leave_out(&format!("DaemonSet {namespace}/{name}"));
        }
        std::mem::take(&mut state.record).end(
            &objects,
            status,
            begun + started,
            now.saturating_sub(started),
            started,
        )
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        lock(&self.0)
    }
}

impl Parts {
    fn act(&mut self) -> bool {
        let now = self.state.clock.passed();
        let is_due = [self.state.life.next(), self.hosts.next()]
            .into_iter()
            .flatten()
            .any(|at| at <= now);
        if !is_due && self.settled == Some(self.state.objects.version()) {
            self.state.record.observe_again(now);
            return false;
        }
        let mut has_changed = self.daemons.act(&mut self.state);
        has_changed |= pods::act(&mut self.state, &self.hosts);
        has_changed |= self.hosts.act(&mut self.state);
        has_changed |= self.update_budgets();
        let pods = self.state.pods();
        self.state.record.observe(now, &pods);
        self.settled = (!has_changed).then(|| self.state.objects.version());
        has_changed
    }

    fn update_budgets(&mut self) -> bool {
        let pods = self.state.pods();
        let mut changed = Vec::new();
        for object in self.state.objects.below(BUDGETS) {
            let path = path_of(BUDGETS, object);
            let expected = self.expected.get(&path).copied().unwrap_or_default();
            let status = budgets::status(object, &pods, expected);
            if let Some(status) = status.filter(|status| *status != object["status"]) {
                changed.push((path, status));
            }
        }
        for (path, status) in &changed {
            let mut object = self.state.objects.get(path).cloned().unwrap_or_default();
            object["status"] = status.clone();
            self.state.objects.put(path, object);
        }
        !changed.is_empty()
    }

    fn answer(&mut self, call: &Call) -> Answer {
        if call.method == Method::POST
            && let Some(pod) = call.path.strip_suffix("/eviction")
        {
            return self.evict(pod, &call.body);
        }
        // What these write, no decision reads.
        let is_unread = ["/events", "/selfsubjectaccessreviews"]
            .iter()
            .any(|part| call.path.contains(part));
        if call.method != Method::GET && !is_unread && !call.query.contains("dryRun=All") {
            self.writes += 1;
        }
        cluster::answer(&mut self.state.objects, call)
    }

    fn evict(&mut self, path: &str, body: &Value) -> Answer {
        let Some(object) = self.state.objects.get(path).cloned() else {
            return failure_of(StatusCode::NOT_FOUND, "NotFound", "the pod does not exist");
        };
        let wanted = &body["deleteOptions"]["preconditions"]["uid"];
        if !wanted.is_null() && *wanted != object["metadata"]["uid"] {
            return failure_of(StatusCode::CONFLICT, "Conflict", "the UID is another one");
        }
        let now = self.state.clock.passed();
        let Ok(parsed) = serde_json::from_value(object.clone()) else {
            return failure_of(
                StatusCode::UNPROCESSABLE_ENTITY,
                "Invalid",
                "the pod cannot be read",
            );
        };
        let pod = facts::pods::pod(&parsed);
        if let Some(budget) = budgets::refusing(&pod, &self.budgets()) {
            let name = format!("{}/{}", budget.namespace, budget.name);
            self.state.record.refused(now, &pod, &name);
            let words = "Cannot evict pod as it would violate the pod's disruption budget.";
            return failure_of(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", words);
        }
        self.writes += 1;
        let asked = body["deleteOptions"]["gracePeriodSeconds"].as_u64();
        let grace = asked.unwrap_or_else(|| u64::from(pod.grace_seconds));
        let after = Duration::from_secs(grace).min(self.state.pace.pod_ends);
        pods::terminate(&mut self.state, path, after, grace);
        self.state.record.evicted(now, &pod);
        self.update_budgets();
        (
            StatusCode::CREATED,
            json!({ "kind": "Status", "status": "Success" }),
        )
    }

    fn budgets(&self) -> Vec<Budget> {
        let objects = self.state.objects.below(BUDGETS);
        let parsed =
            objects.filter_map(|object| serde_json::from_value::<PodDisruptionBudget>(object.clone()).ok());
        parsed.map(|budget| facts::pods::budget(&budget)).collect()
    }
}
