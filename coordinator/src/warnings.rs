//! What objects of others are or do that costs decisions about them and stops nothing else. The status says it while a migration goes on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use api::migration::Warnings;
use engine::words::cut;

use crate::cache::Cache;

/// The time from one look at the cluster to the next. What a kind has found is told at once; the pace of words bounds its writes.
const INTERVAL: Duration = Duration::from_secs(5);
/// More warnings than this are counted, not listed.
const LISTED: usize = 20;
/// More warnings than this about one namespace, or one node, are counted, not listed: one tenant does not hide the others.
const OF_ONE: usize = 4;
/// A warning is cut behind so many bytes.
const LINE_BYTES: usize = 512;

/// The warnings of the last look.
#[derive(Default)]
pub struct Looks {
    looked: Option<Instant>,
    /// By namespace or node.
    of_cluster: BTreeMap<String, About>,
    /// What the kind of a Migration has found, by what it is about; and the name of the Migration.
    of_kind: (String, BTreeMap<String, About>),
    /// The same of workloads whose moved pods do not become Ready.
    of_stalls: (String, BTreeMap<String, About>),
    /// Nodes that watch no traffic although they should.
    of_traffic: BTreeMap<String, About>,
}

impl Looks {
    /// The warnings as they are now, or as they were up to five seconds ago. `migration` is the name of the Migration that goes on.
    pub fn look(&mut self, cache: &Cache, migration: &str) -> Option<Warnings> {
        if self.looked.is_none_or(|looked| looked.elapsed() >= INTERVAL) {
            self.looked = Some(Instant::now());
            self.of_cluster = read(cache, migration);
        }
        let of_migration = [&self.of_kind, &self.of_stalls].into_iter();
        let of_migration = of_migration.filter(|(of, _)| of == migration);
        let of_migration = of_migration.flat_map(|(_, found)| found.values());
        let of_traffic = self.of_traffic.values();
        listed(self.of_cluster.values().chain(of_migration).chain(of_traffic))
    }

    /// What this Migration's kind has found at its last look in the objects that it reads: what each warning is about, like their kind or a
    /// namespace, and the words.
    pub fn of_kind(&mut self, migration: &str, found: impl IntoIterator<Item = (impl Into<String>, String)>) {
        self.of_kind = (migration.to_owned(), by_subject(found));
    }

    /// What it has found at another look of the same pass.
    pub fn also(&mut self, found: impl IntoIterator<Item = (impl Into<String>, String)>) {
        for (about, line) in found {
            self.of_kind.1.entry(about.into()).or_default().add(|| line);
        }
    }

    /// Workloads of this Migration whose moved pods do not become Ready, likewise.
    pub fn of_stalls(
        &mut self,
        migration: &str,
        found: impl IntoIterator<Item = (impl Into<String>, String)>,
    ) {
        self.of_stalls = (migration.to_owned(), by_subject(found));
    }

    /// Which nodes watch no traffic although they should, and why.
    pub fn of_traffic<'silent>(&mut self, silent: impl Iterator<Item = (&'silent str, &'silent str)>) {
        self.of_traffic.clear();
        for (node, why) in silent {
            let about = self.of_traffic.entry(format!("node {node}")).or_default();
            about.add(|| format!("node {node}: {why}; traffic is watched without it"));
        }
    }

    /// The next look is a new one.
    pub fn forget(&mut self) {
        self.looked = None;
    }
}

fn by_subject(found: impl IntoIterator<Item = (impl Into<String>, String)>) -> BTreeMap<String, About> {
    let mut warnings: BTreeMap<String, About> = BTreeMap::new();
    for (about, line) in found {
        warnings.entry(about.into()).or_default().add(|| line);
    }
    warnings
}

/// What is told of one namespace or node.
#[derive(Default)]
struct About {
    count: usize,
    /// The first of them: the others are counted.
    lines: Vec<String>,
}

impl About {
    fn add(&mut self, line: impl FnOnce() -> String) {
        self.count += 1;
        if self.lines.len() < OF_ONE {
            self.lines.push(line());
        }
    }
}

/// Warnings by what they are about: a namespace or a node.
fn read(cache: &Cache, migration: &str) -> BTreeMap<String, About> {
    let mut warnings: BTreeMap<String, About> = BTreeMap::new();
    let index = cache.pods.index();
    for pod in index.odd() {
        let about = warnings
            .entry(format!("namespace {}", pod.namespace))
            .or_default();
        for field in &pod.not_understood {
            about.add(|| format!("Pod {}: {field}; {}", pod.key(), field.needed.meanwhile()));
        }
    }
    for unclear in cache.node_migrations.unclear() {
        let name = &unclear.name;
        let about = warnings.entry(format!("node {name}")).or_default();
        about.add(|| {
            let meanwhile = if unclear.is_lost {
                "nothing is asked of its node"
            } else {
                "its node counts as one whose agent is silent"
            };
            format!("NodeMigration {name}: {}; {meanwhile}", unclear.words)
        });
    }
    let objects = cache.node_migrations.state();
    for object in objects.iter().filter(|object| object.spec.migration == migration) {
        let node = &object.spec.node_name;
        let report = object.status.as_ref().and_then(|status| status.traffic.as_ref());
        for flood in report.iter().flat_map(|report| &report.floods) {
            let about = warnings.entry(format!("node {node}")).or_default();
            about.add(|| format!("node {node}: {flood}"));
        }
    }
    warnings
}

/// As many of them as a status has room for, and the number of all.
fn listed<'warnings>(warnings: impl Iterator<Item = &'warnings About> + Clone) -> Option<Warnings> {
    let count: usize = warnings.clone().map(|about| about.count).sum();
    (count > 0).then(|| Warnings {
        count: u32::try_from(count).unwrap_or(u32::MAX),
        first: warnings
            .flat_map(|about| &about.lines)
            .take(LISTED)
            .map(|line| cut(line, LINE_BYTES).into_owned())
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake_api::FakeApi;

    fn pod(namespace: &str, name: &str, cpu: &str) -> (String, serde_json::Value) {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let pod = json!({
            "metadata": { "namespace": namespace, "name": name, "uid": name },
            "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] },
        });
        (path, pod)
    }

    fn api(pods: impl IntoIterator<Item = (String, serde_json::Value)>) -> FakeApi {
        let api = FakeApi::default();
        for (path, pod) in pods {
            api.put(&path, pod);
        }
        api
    }

    #[test]
    fn a_pod_that_is_not_understood_is_named_with_what_it_counts_as() {
        let api = api([pod("shop", "peta", "20P"), pod("shop", "fair", "2")]);
        let warnings = Looks::default().look(&api.cache(), "demo").unwrap();
        assert_eq!(warnings.count, 1);
        assert_eq!(
            warnings.first,
            [
                "Pod shop/peta: container c: resources.requests.cpu: found \"20P\", needed a quantity that the scheduler can count; it counts \
                 as nothing where amounts are compared"
            ]
        );
    }

    #[test]
    fn one_tenant_does_not_hide_another() {
        let many = (0..1000).map(|number| pod("aaa", &format!("odd-{number}"), "abc"));
        let api = api(many.chain([pod("shop", "peta", "20P")]));
        let warnings = Looks::default().look(&api.cache(), "demo").unwrap();
        assert_eq!((warnings.count, warnings.first.len()), (1001, OF_ONE + 1));
        assert!(warnings.first[OF_ONE].contains("shop/peta"), "{warnings:?}");
    }

    #[test]
    fn what_floods_a_node_of_this_migration_is_named() {
        let api = FakeApi::default();
        for (node, migration) in [("a", "demo"), ("b", "another")] {
            let object = json!({
                "metadata": { "name": node }, "spec": { "nodeName": node, "migration": migration },
                "status": { "traffic": { "at": "2026-03-01T10:00:00Z", "floods": ["10.244.1.9 sends too much"] } },
            });
            api.put(
                &format!("/apis/replumb.dev/v1alpha1/nodemigrations/{node}"),
                object,
            );
        }
        let warnings = Looks::default().look(&api.cache(), "demo").unwrap();
        assert_eq!(warnings.first, ["node a: 10.244.1.9 sends too much"]);
    }

    #[test]
    fn what_was_corrected_is_told_no_more_at_the_next_look() {
        let api = api([pod("shop", "peta", "20P")]);
        let mut looks = Looks::default();
        assert!(looks.look(&api.cache(), "demo").is_some());
        let (path, corrected) = pod("shop", "peta", "2");
        api.put(&path, corrected);
        assert!(looks.look(&api.cache(), "demo").is_some(), "the look is not due");
        looks.forget();
        assert_eq!(looks.look(&api.cache(), "demo"), None);
    }
}
