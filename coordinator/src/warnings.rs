//! Foreign objects that affect decisions about themselves only. The status reports them while a migration is active.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use api::migration::Warnings;
use engine::words::cut;

use crate::cache::Cache;

/// Interval of reads of the cluster. Findings of a kind are reported at once; the interval of messages limits their writes.
const INTERVAL: Duration = Duration::from_secs(5);
/// Most warnings listed; further ones are counted.
const LISTED: usize = 20;
/// Most warnings listed about one namespace or node; further ones are counted, so that one tenant does not hide the others.
const OF_ONE: usize = 4;
/// Most bytes of a warning.
const LINE_BYTES: usize = 512;

/// The warnings of the last read.
#[derive(Default)]
pub struct WarningCache {
    looked: Option<Instant>,
    /// By namespace or node.
    of_cluster: BTreeMap<String, About>,
    /// Name of a Migration, and the findings of its kind, by subject.
    of_kind: (String, BTreeMap<String, About>),
    /// The same for workloads whose moved pods do not become Ready.
    of_stalls: (String, BTreeMap<String, About>),
    /// Nodes that should watch traffic and do not.
    of_traffic: BTreeMap<String, About>,
}

impl WarningCache {
    /// The current warnings, up to five seconds old. `migration` is the name of the active Migration.
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

    /// Sets the findings of this Migration's kind from its last read: the subject of each warning, such as a kind or a namespace,
    /// and the message.
    pub fn of_kind(&mut self, migration: &str, found: impl IntoIterator<Item = (impl Into<String>, String)>) {
        self.of_kind = (migration.to_owned(), by_subject(found));
    }

    /// Adds findings of another read in the same pass.
    pub fn add(&mut self, found: impl IntoIterator<Item = (impl Into<String>, String)>) {
        for (about, line) in found {
            self.of_kind.1.entry(about.into()).or_default().add(|| line);
        }
    }

    /// Sets the workloads of this Migration whose moved pods do not become Ready, in the same form.
    pub fn of_stalls(
        &mut self,
        migration: &str,
        found: impl IntoIterator<Item = (impl Into<String>, String)>,
    ) {
        self.of_stalls = (migration.to_owned(), by_subject(found));
    }

    /// Sets the nodes that should watch traffic and do not, with the reason.
    pub fn of_traffic<'silent>(&mut self, silent: impl Iterator<Item = (&'silent str, &'silent str)>) {
        self.of_traffic.clear();
        for (node, why) in silent {
            let about = self.of_traffic.entry(format!("node {node}")).or_default();
            about.add(|| format!("node {node}: {why}; traffic is watched without it"));
        }
    }

    /// Makes the next read due at once.
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

/// Warnings about one namespace or node.
#[derive(Default)]
struct About {
    count: usize,
    /// The first warnings; further ones are counted.
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

/// Warnings by subject: a namespace or a node.
fn read(cache: &Cache, migration: &str) -> BTreeMap<String, About> {
    let mut warnings: BTreeMap<String, About> = BTreeMap::new();
    let index = cache.pods.index();
    for pod in index.unreadable() {
        let about = warnings
            .entry(format!("namespace {}", pod.namespace))
            .or_default();
        for field in &pod.not_understood {
            about.add(|| format!("Pod {}: {field}; {}", pod.key(), field.needed.effect()));
        }
    }
    for unclear in cache.node_migrations.unreadable() {
        let name = &unclear.name;
        let about = warnings.entry(format!("node {name}")).or_default();
        about.add(|| {
            let meanwhile = if unclear.is_unusable {
                "its node gets no orders"
            } else {
                "its agent counts as silent"
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

/// The warnings that fit into a status, and the number of all.
fn listed<'warnings>(warnings: impl Iterator<Item = &'warnings About> + Clone) -> Option<Warnings> {
    let count: usize = warnings.clone().map(|about| about.count).sum();
    (count > 0).then(|| Warnings {
        count: u32::try_from(count).unwrap_or(u32::MAX),
        items: warnings
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
    fn an_unreadable_pod_is_named_with_the_assumed_value() {
        let api = api([pod("shop", "peta", "20P"), pod("shop", "fair", "2")]);
        let warnings = WarningCache::default().look(&api.cache(), "demo").unwrap();
        assert_eq!(warnings.count, 1);
        assert_eq!(
            warnings.items,
            [
                "Pod shop/peta: container c: resources.requests.cpu: found \"20P\", needed a quantity that the scheduler can count; the \
                 value counts as 0 in comparisons"
            ]
        );
    }

    #[test]
    fn one_tenant_does_not_hide_another() {
        let many = (0..1000).map(|number| pod("aaa", &format!("odd-{number}"), "abc"));
        let api = api(many.chain([pod("shop", "peta", "20P")]));
        let warnings = WarningCache::default().look(&api.cache(), "demo").unwrap();
        assert_eq!((warnings.count, warnings.items.len()), (1001, OF_ONE + 1));
        assert!(warnings.items[OF_ONE].contains("shop/peta"), "{warnings:?}");
    }

    #[test]
    fn a_flood_on_a_node_of_the_migration_is_reported() {
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
        let warnings = WarningCache::default().look(&api.cache(), "demo").unwrap();
        assert_eq!(warnings.items, ["node a: 10.244.1.9 sends too much"]);
    }

    #[test]
    fn a_corrected_object_is_not_reported_after_the_next_read() {
        let api = api([pod("shop", "peta", "20P")]);
        let mut reads = WarningCache::default();
        assert!(reads.look(&api.cache(), "demo").is_some());
        let (path, corrected) = pod("shop", "peta", "2");
        api.put(&path, corrected);
        assert!(reads.look(&api.cache(), "demo").is_some(), "the read is not due");
        reads.forget();
        assert_eq!(reads.look(&api.cache(), "demo"), None);
    }
}
