//! Every pod of the cluster as decisions see it, by node. Whole objects are dropped on arrival.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::drain;
use engine::evict::PodName;
use engine::pods::Pods;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use tokio::sync::watch;

use crate::facts;
use crate::facts::pods::PodDetails;
use crate::intern::Interned;
use crate::lenient::Lenient;
use crate::own_pods;

/// The pods of a watch. Clones share them.
#[derive(Clone)]
pub struct PodStore(Arc<Shared>);

struct Shared {
    /// The coordinator's namespace.
    namespace: String,
    state: Mutex<State>,
    filled: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    /// The index for readers. Changed in place while no reader holds it, otherwise copied node by node.
    index: Arc<Index>,
    /// The index of an incomplete list. A pod that is already known is shared with `index`.
    listed: Option<Index>,
    interned: Interned,
}

/// The pods at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Index {
    /// By node, in the order of namespace and name; pods without a node are under the empty name.
    by_node: BTreeMap<Arc<str>, Arc<Pods>>,
    /// Details of some pods, by namespace and name.
    more: BTreeMap<Name, Arc<PodDetails>>,
    /// Pods with unreadable fields, by namespace and name.
    odd: BTreeMap<Name, Arc<drain::Pod>>,
    /// Probe pods and traffic pods of the coordinator, by namespace and name: in none of the maps above.
    own: BTreeMap<Name, Arc<Pod>>,
}

/// Namespace and name.
type Name = (String, String);

/// One pod as it is stored.
enum Known {
    /// A probe pod or traffic pod of the coordinator.
    Own(Name, Box<Pod>),
    /// Any other pod.
    Other(Box<drain::Pod>, Option<PodDetails>),
}

static NONE: Pods = Pods::new();

impl Index {
    /// Pods without the coordinator's probe and traffic pods, in the order of node, namespace and name.
    pub fn pods(&self) -> Pods {
        self.by_node
            .values()
            .flat_map(|pods| pods.shared())
            .cloned()
            .collect()
    }

    /// Pods of one node, in the order of namespace and name.
    pub fn on(&self, node: &str) -> &Pods {
        self.by_node.get(node).map_or(&NONE, AsRef::as_ref)
    }

    /// Nodes with pods, and their pods.
    pub fn by_node(&self) -> impl Iterator<Item = (&str, &Pods)> {
        self.by_node.iter().map(|(node, pods)| (&**node, pods.as_ref()))
    }

    /// Namespaces and names of pods with details, and the details.
    pub fn more(&self) -> impl Iterator<Item = (&Name, &PodDetails)> {
        self.more.iter().map(|(name, more)| (name, more.as_ref()))
    }

    /// Details of this pod.
    pub fn details_of(&self, pod: &drain::Pod) -> Option<&PodDetails> {
        self.more.get(&name_of(pod)).map(AsRef::as_ref)
    }

    /// Pods with unreadable fields, in the order of namespace and name.
    pub fn unreadable(&self) -> impl Iterator<Item = &drain::Pod> {
        self.odd.values().map(AsRef::as_ref)
    }

    /// Probe pods and traffic pods of the coordinator.
    pub fn own(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.own.values()
    }

    /// Whether the index has exactly this content for the pod.
    fn says(&self, pod: &drain::Pod, more: Option<&PodDetails>) -> bool {
        self.same(pod).is_some() && self.details_of(pod) == more
    }

    /// The known pod, if it is equal to this one.
    fn same(&self, pod: &drain::Pod) -> Option<&Arc<drain::Pod>> {
        let here = self.on(&pod.node);
        let place = here.place(&pod.namespace, &pod.name).ok()?;
        here.shared().nth(place).filter(|known| ***known == *pod)
    }

    fn put(&mut self, pod: Arc<drain::Pod>, more: Option<Arc<PodDetails>>) {
        let name = name_of(&pod);
        self.own.remove(&name);
        match more {
            Some(more) => self.more.insert(name, more),
            None => self.more.remove(&name),
        };
        if !pod.node.is_empty() {
            // The pod was bound to its node.
            self.take("", &pod.namespace, &pod.name);
        } else if !pod.not_understood.is_empty() {
            // The unreadable field may be its node.
            self.take_anywhere(&pod.namespace, &pod.name, |_| true);
        }
        if pod.not_understood.is_empty() {
            self.odd.remove(&name_of(&pod));
        } else {
            self.odd.insert(name_of(&pod), Arc::clone(&pod));
        }
        let here = match self.by_node.get_mut(pod.node.as_str()) {
            Some(here) => here,
            None => self.by_node.entry(Arc::from(pod.node.as_str())).or_default(),
        };
        let here = Arc::make_mut(here);
        match here.place(&pod.namespace, &pod.name) {
            Ok(place) => here.replace(place, pod),
            Err(place) => here.insert(place, pod),
        }
    }

    fn put_own(&mut self, name: Name, pod: Pod) {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        self.take(&node.unwrap_or_default(), &name.0, &name.1);
        self.more.remove(&name);
        self.own.insert(name, Arc::new(pod));
    }

    /// Removes a pod from any node if `meant` accepts it; returns whether it was there.
    fn take_anywhere(&mut self, namespace: &str, name: &str, meant: impl Fn(&drain::Pod) -> bool) -> bool {
        let mut nodes = self.by_node.iter();
        let node = nodes.find_map(|(node, pods)| {
            let place = pods.place(namespace, name).ok()?;
            let is_meant = pods.shared().nth(place).is_some_and(|pod| meant(pod));
            is_meant.then(|| Arc::clone(node))
        });
        node.is_some_and(|node| self.take(&node, namespace, name))
    }

    /// Removes a pod from this node; returns whether it was there.
    fn take(&mut self, node: &str, namespace: &str, name: &str) -> bool {
        let Some(here) = self.by_node.get_mut(node) else {
            return false;
        };
        let Ok(place) = here.place(namespace, name) else {
            return false;
        };
        let here = Arc::make_mut(here);
        let taken = here.remove(place);
        if here.is_empty() {
            self.by_node.remove(node);
        }
        if !taken.not_understood.is_empty() {
            self.odd.remove(&name_of(&taken));
        }
        true
    }
}

fn name_of(pod: &drain::Pod) -> Name {
    (pod.namespace.clone(), pod.name.clone())
}

impl State {
    fn apply(&mut self, known: Known) -> bool {
        match known {
            Known::Own(name, pod) => Arc::make_mut(&mut self.index).put_own(name, *pod),
            Known::Other(pod, more) => {
                if self.index.says(&pod, more.as_ref()) {
                    return false;
                }
                let pod = self.share(*pod);
                Arc::make_mut(&mut self.index).put(pod, more.map(Arc::new));
            }
        }
        true
    }

    fn list(&mut self, known: Known) {
        match known {
            Known::Own(name, pod) => self.listed.get_or_insert_default().put_own(name, *pod),
            Known::Other(pod, more) => {
                let pod = match self.index.same(&pod) {
                    Some(same) => Arc::clone(same),
                    None => self.share(*pod),
                };
                self.listed.get_or_insert_default().put(pod, more.map(Arc::new));
            }
        }
    }

    fn delete(&mut self, known: &Known) -> bool {
        let index = Arc::make_mut(&mut self.index);
        match known {
            Known::Own(name, _) => index.own.remove(name).is_some(),
            Known::Other(pod, _) => {
                index.more.remove(&name_of(pod));
                // The last event of it may have its node, or unreadable fields.
                index.take(&pod.node, &pod.namespace, &pod.name)
                    || index.take_anywhere(&pod.namespace, &pod.name, |known| known.uid == pod.uid)
            }
        }
    }

    fn share(&mut self, mut pod: drain::Pod) -> Arc<drain::Pod> {
        pod.labels = self.interned.labels(&pod.labels);
        Arc::new(pod)
    }
}

impl PodStore {
    /// An empty store. `namespace` is the coordinator's own.
    pub fn new(namespace: &str) -> Self {
        Self(Arc::new(Shared {
            namespace: namespace.to_owned(),
            state: Mutex::default(),
            filled: watch::Sender::new(false),
        }))
    }

    /// A store with these pods.
    pub fn of(namespace: &str, pods: impl IntoIterator<Item = impl Into<Lenient<Pod>>>) -> Self {
        let store = Self::new(namespace);
        for pod in pods {
            store.keep(Event::Apply(pod.into()));
        }
        store
    }

    /// The current pods. Later events do not change it.
    pub fn index(&self) -> Arc<Index> {
        Arc::clone(&self.lock().index)
    }

    /// Waits until the first list is complete.
    pub async fn filled(&self) {
        // The sender lives as long as the store.
        let _ = self.0.filled.subscribe().wait_for(|filled| *filled).await;
    }

    /// Applies an event of the watch. Returns whether decisions may read something new.
    pub fn keep(&self, event: Event<Lenient<Pod>>) -> bool {
        let mut state = self.lock();
        match event {
            Event::Init => {
                state.listed = Some(Index::default());
                false
            }
            Event::InitApply(pod) => {
                let known = self.known(pod);
                state.list(known);
                false
            }
            Event::InitDone => {
                let Some(listed) = state.listed.take() else {
                    return false;
                };
                let is_first = !self.0.filled.send_replace(true);
                let is_same = listed == *state.index;
                state.index = Arc::new(listed);
                state.interned.forget_unused();
                is_first || !is_same
            }
            Event::Apply(pod) => {
                let known = self.known(pod);
                state.apply(known)
            }
            Event::Delete(pod) => {
                let known = self.known(pod);
                state.delete(&known)
            }
        }
    }

    /// Removes a pod that the API server does not have, independent of the watch. Returns whether it was there.
    pub fn forget(&self, pod: &PodName) -> bool {
        let mut state = self.lock();
        let index = Arc::make_mut(&mut state.index);
        let was_there = index.take_anywhere(&pod.namespace, &pod.name, |known| known.uid == pod.uid);
        if was_there {
            index.more.remove(&(pod.namespace.clone(), pod.name.clone()));
        }
        was_there
    }

    fn known(&self, read: Lenient<Pod>) -> Known {
        if own_pods::is_own(&read.object, &self.0.namespace) {
            let pod = facts::pods::pruned(read.object);
            let name = (pod.namespace().unwrap_or_default(), pod.name_any());
            return Known::Own(name, Box::new(pod));
        }
        Known::Other(
            Box::new(facts::pods::read(&read)),
            facts::pods::details(&read.object),
        )
    }

    // No code panics while holding the lock: data behind a poisoned lock is consistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use api::names;
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, node: &str) -> Value {
        json!({
            "metadata": { "namespace": "shop", "name": name, "uid": name, "labels": { "app": "web" } },
            "spec": { "nodeName": node, "containers": [] },
            "status": { "phase": "Running" },
        })
    }

    fn own(name: &str, component: &str) -> Value {
        json!({
            "metadata": {
                "namespace": "replumb-system", "name": name, "uid": name, "labels": { names::COMPONENT_LABEL: component },
            },
            "spec": { "nodeName": "a", "containers": [] },
        })
    }

    fn from(value: &Value) -> Lenient<Pod> {
        serde_json::from_value(value.clone()).unwrap()
    }

    fn store(pods: &[Value]) -> PodStore {
        PodStore::of("replumb-system", pods.iter().map(from))
    }

    fn names_on(index: &Index, node: &str) -> Vec<String> {
        index.on(node).iter().map(|pod| pod.name.clone()).collect()
    }

    #[test]
    fn pods_are_grouped_by_node_and_sorted_by_name() {
        let index = store(&[pod("c", "a"), pod("b", "b"), pod("a", "a"), pod("d", "")]).index();
        assert_eq!(names_on(&index, "a"), ["a", "c"]);
        assert_eq!(names_on(&index, "b"), ["b"]);
        assert_eq!(names_on(&index, "nowhere"), [""; 0]);
        let all: Vec<String> = index.pods().iter().map(|pod| pod.name.clone()).collect();
        assert_eq!(all, ["d", "a", "c", "b"]);
    }

    #[test]
    fn a_bound_pod_is_listed_on_its_node_only() {
        let store = store(&[pod("a", "")]);
        assert!(store.keep(Event::Apply(from(&pod("a", "n")))));
        let index = store.index();
        assert_eq!((names_on(&index, "").len(), names_on(&index, "n").len()), (0, 1));
        assert!(store.keep(Event::Delete(from(&pod("a", "n")))));
        assert!(store.index().pods().is_empty());
        assert!(!store.keep(Event::Delete(from(&pod("a", "n")))));
    }

    #[test]
    fn a_change_of_unused_fields_wakes_no_pass() {
        let store = store(&[pod("a", "n")]);
        let mut again = pod("a", "n");
        again["metadata"]["resourceVersion"] = json!("2");
        again["metadata"]["annotations"] = json!({ "note": "x" });
        again["status"]["startTime"] = json!("2026-01-01T00:00:00Z");
        assert!(!store.keep(Event::Apply(from(&again))));
        again["status"]["phase"] = json!("Failed");
        assert!(store.keep(Event::Apply(from(&again))));
        assert!(store.index().pods()[0].finished);
    }

    #[test]
    fn a_taken_index_does_not_change() {
        let store = store(&[pod("a", "n"), pod("b", "m")]);
        let before = store.index();
        store.keep(Event::Delete(from(&pod("a", "n"))));
        store.keep(Event::Apply(from(&pod("c", "n"))));
        assert_eq!(names_on(&before, "n"), ["a"]);
        assert_eq!(names_on(&store.index(), "n"), ["c"]);
        // An unchanged node is shared.
        assert!(Arc::ptr_eq(&before.by_node["m"], &store.index().by_node["m"]));
    }

    /// A pod whose `metadata.managedFields` has a time that the types cannot read, as the API server returns it.
    fn with_unreadable_time(mut pod: Value) -> Lenient<Pod> {
        pod["metadata"]["managedFields"] = json!([{ "manager": "odd", "time": "10000-01-01T00:59:59Z" }]);
        assert!(serde_json::from_value::<Pod>(pod.clone()).is_err());
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_pod_with_an_unreadable_time_is_updated_and_deleted() {
        let store = store(&[pod("a", "n"), pod("b", "n")]);
        let mut finished = pod("a", "n");
        finished["status"]["phase"] = json!("Failed");
        assert!(store.keep(Event::Apply(with_unreadable_time(finished.clone()))));
        let index = store.index();
        assert!(index.on("n").iter().next().unwrap().finished);
        assert_eq!(
            index.unreadable().count(),
            0,
            "all fields that decisions read are readable"
        );
        assert!(store.keep(Event::Delete(with_unreadable_time(finished))));
        assert_eq!(names_on(&store.index(), "n"), ["b"]);
        store.keep(Event::Init);
        store.keep(Event::InitApply(with_unreadable_time(pod("c", "m"))));
        assert!(store.keep(Event::InitDone));
        assert_eq!(names_on(&store.index(), "m"), ["c"]);
    }

    #[test]
    fn a_pod_with_an_unreadable_node_is_kept_once_and_deleted() {
        let unreadable = || {
            let mut pod = pod("a", "n");
            pod["spec"]["nodeName"] = json!(7);
            serde_json::from_value::<Lenient<Pod>>(pod).unwrap()
        };
        let store = store(&[pod("a", "n")]);
        assert!(store.keep(Event::Apply(unreadable())));
        let index = store.index();
        assert_eq!((names_on(&index, "n").len(), names_on(&index, "").len()), (0, 1));
        let odd: Vec<String> = index
            .unreadable()
            .map(|pod| pod.not_understood[0].to_string())
            .collect();
        assert_eq!(
            odd,
            [
                "spec.nodeName: found invalid type: integer `7`, expected a string, needed a value that the coordinator can read"
            ]
        );
        // The last event has no readable node, unlike the one before.
        store.keep(Event::Apply(from(&pod("a", "n"))));
        assert!(store.keep(Event::Delete(unreadable())));
        assert!(store.index().pods().is_empty());
        assert_eq!(store.index().unreadable().count(), 0);
    }

    #[test]
    fn a_pod_missed_by_the_watch_is_forgotten_by_its_uid() {
        let store = store(&[pod("a", "n")]);
        let name = |uid: &str| PodName {
            namespace: "shop".to_owned(),
            name: "a".to_owned(),
            uid: uid.to_owned(),
        };
        assert!(
            !store.forget(&name("another")),
            "a pod of the same name is another pod"
        );
        assert!(store.forget(&name("a")));
        assert!(store.index().pods().is_empty());
        assert!(!store.forget(&name("a")));
    }

    #[test]
    fn a_new_list_shares_known_pods_and_drops_missing_ones() {
        let store = store(&[pod("a", "n"), pod("b", "n"), pod("c", "n")]);
        let before = store.index();
        assert!(!store.keep(Event::Init));
        let mut other = pod("b", "n");
        other["metadata"]["uid"] = json!("another");
        for pod in [pod("a", "n"), other] {
            assert!(!store.keep(Event::InitApply(from(&pod))));
        }
        assert_eq!(store.index().pods().len(), 3, "the list is not complete");
        assert!(store.keep(Event::InitDone));
        let after = store.index();
        assert_eq!(names_on(&after, "n"), ["a", "b"]);
        let at = |index: &Index, place| Arc::clone(index.on("n").shared().nth(place).unwrap());
        assert!(Arc::ptr_eq(&at(&before, 0), &at(&after, 0)));
        assert_eq!(at(&after, 1).uid, "another");
        // An equal list wakes no pass.
        store.keep(Event::Init);
        for pod in &after.pods() {
            let mut same = self::pod(&pod.name, "n");
            same["metadata"]["uid"] = json!(pod.uid);
            store.keep(Event::InitApply(from(&same)));
        }
        assert!(!store.keep(Event::InitDone));
    }

    #[test]
    fn an_interrupted_list_is_ignored() {
        let store = store(&[pod("a", "n")]);
        store.keep(Event::Init);
        store.keep(Event::InitApply(from(&pod("b", "n"))));
        store.keep(Event::Init);
        store.keep(Event::InitApply(from(&pod("c", "n"))));
        store.keep(Event::InitDone);
        assert_eq!(names_on(&store.index(), "n"), ["c"]);
    }

    #[test]
    fn probe_and_traffic_pods_are_kept_apart() {
        let ours = own("traffic", names::TRAFFIC_COMPONENT);
        let store = store(&[ours.clone(), own("agent", "agent")]);
        let index = store.index();
        assert_eq!(names_on(&index, "a"), ["agent"]);
        assert_eq!(index.own().count(), 1);
        // Without the label it is a pod like any other.
        let mut plain = ours;
        plain["metadata"]["labels"] = json!({});
        store.keep(Event::Apply(from(&plain)));
        let index = store.index();
        assert_eq!(names_on(&index, "a"), ["agent", "traffic"]);
        assert_eq!(index.own().count(), 0);
    }

    #[test]
    fn a_foreign_pod_with_the_component_label_is_foreign() {
        let mut pod = pod("x", "n");
        pod["metadata"]["labels"] = json!({ names::COMPONENT_LABEL: names::PROBE_COMPONENT });
        let index = store(&[pod]).index();
        assert_eq!((index.own().count(), names_on(&index, "n").len()), (0, 1));
    }

    /// An ordinary pod: two containers with 14 variables each and probes; about 12 KB of JSON.
    fn ordinary(number: usize) -> Vec<u8> {
        let variables: Vec<Value> = (0..14)
            .map(|index| json!({ "name": format!("SETTING_NUMBER_{index}"), "value": format!("https://service-{index}.shop.svc:8443/path") }))
            .collect();
        let probe = json!({ "httpGet": { "path": "/healthz", "port": 8080 }, "periodSeconds": 10, "timeoutSeconds": 1 });
        let container = |name: &str| {
            json!({
                "name": name, "image": format!("registry.example.com/shop/{name}:1.27.3"), "env": variables,
                "livenessProbe": probe, "readinessProbe": probe, "startupProbe": probe,
                "resources": { "requests": { "cpu": "250m", "memory": "256Mi" }, "limits": { "memory": "512Mi" } },
                "volumeMounts": [{ "name": "cache", "mountPath": "/cache" }],
            })
        };
        let fields: Value = (0..60)
            .map(|index| (format!("f:field-{index}"), json!({ "f:value": {}, ".": {} })))
            .collect();
        let workload = format!("web-{}-5d8f7c9b6d", number / 20);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "namespace": format!("team-{}", number / 200), "name": format!("{workload}-{number:05}"),
                "uid": format!("0f0e0d0c-0b0a-4908-8706-{number:012}"), "resourceVersion": number.to_string(),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": { "app.kubernetes.io/name": "web", "app.kubernetes.io/instance": workload, "pod-template-hash": "5d8f7c9b6d" },
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": workload, "uid": "u", "controller": true }],
                "managedFields": [{ "manager": "kubelet", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields }],
            },
            "spec": {
                "nodeName": format!("ip-10-0-{}-{}.eu-west-1.compute.internal", number / 30 / 250, number / 30 % 250),
                "containers": [container("web"), container("side")],
                "volumes": [{ "name": "cache", "emptyDir": {} }, { "name": "token", "projected": { "sources": [] } }],
            },
            "status": {
                "phase": "Running", "podIP": "10.244.1.5", "podIPs": [{ "ip": "10.244.1.5" }],
                "conditions": [{ "type": "Ready", "status": "True" }, { "type": "PodScheduled", "status": "True" }],
            },
        });
        serde_json::to_vec(&pod).unwrap()
    }

    /// Anonymous memory of this process.
    fn anonymous() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"))
            .unwrap();
        line.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<usize>()
            .unwrap()
            * 1024
    }

    /// `cargo test -p coordinator --lib pod_index::tests::memory -- --ignored --nocapture --exact`; docs/limits.md has the results.
    #[test]
    #[ignore = "a benchmark that needs memory and time"]
    fn memory() {
        let store = PodStore::new("replumb-system");
        let before = anonymous();
        store.keep(Event::Init);
        let mut count = 0;
        for next in [4_000, 150_000] {
            while count < next {
                store.keep(Event::InitApply(
                    serde_json::from_slice(&ordinary(count)).unwrap(),
                ));
                count += 1;
            }
            let more = anonymous() - before;
            println!(
                "{count} pods: {} MiB, {} bytes each; JSON of one: {} bytes",
                more >> 20,
                more / count,
                ordinary(0).len()
            );
        }
        store.keep(Event::InitDone);
        store.keep(Event::Init);
        for number in 0..count {
            store.keep(Event::InitApply(
                serde_json::from_slice(&ordinary(number)).unwrap(),
            ));
        }
        assert!(!store.keep(Event::InitDone), "an equal list wakes no pass");
        let more = anonymous() - before;
        println!("after a repeated list: {} MiB", more >> 20);
        let started = std::time::Instant::now();
        let index = store.index();
        println!("reading the index: {:?}; all pods as a list: ", started.elapsed());
        let pods = index.pods();
        println!("{:?} for {}", started.elapsed(), pods.len());
        assert!(more < 200 << 20, "{} MiB", more >> 20);
    }
}
