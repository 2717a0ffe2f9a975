//! Checks of Calico in the cluster: calico-node, the manifest, and other writers of the same objects.

use std::collections::{BTreeMap, BTreeSet};

use super::{CheckName, controllers};
use crate::cluster::facts::{ClusterFacts, Workload};
use crate::cluster::manifest::{KOPS, Manifest, Name, version_of};
use crate::cluster::settings::Settings;
use engine::check::{Check, Finding, Report, Verdict, names, owner};

/// Fix for a missing permission of the coordinator.
const RIGHTS: &str =
    "add the permissions of this kind: `kubectl apply --server-side -k deploy/calico-datastore`";
/// The first major version whose nodes work with etcd v3.
const NEW_MODEL: u64 = 3;

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let (Some(manifest), Some(found)) = (facts.understood(), &facts.daemon_set) else {
        // Without them, detection has failed and reported it already.
        return Vec::new();
    };
    [
        node(settings, facts, found),
        images(settings, manifest, found),
        controllers::check(settings, facts, manifest),
        objects(facts, manifest),
        owners(settings, facts, found),
    ]
    .concat()
}

/// Checks that calico-node runs on every node, Ready and in one version.
fn node(settings: &Settings, facts: &ClusterFacts, found: &Workload) -> Vec<Check> {
    let object = format!("DaemonSet {}", settings.daemon_set.value);
    let mut report = Report::new(CheckName::CalicoNode);
    let mut images: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for pod in &facts.pods {
        images.entry(&pod.image).or_default().push(&pod.node);
        if !pod.ready {
            report.fail(
                "Node",
                &pod.node,
                Finding::new(
                    "calico-node",
                    "not Ready",
                    "Ready before the migration",
                    "check its log: `kubectl logs -n kube-system -l k8s-app=calico-node -c calico-node`",
                ),
            );
        }
    }
    other_images(settings, &object, &images, &mut report);
    let with_pods: BTreeSet<&str> = facts.pods.iter().map(|pod| pod.node.as_str()).collect();
    for (name, node) in &facts.nodes {
        if !with_pods.contains(name.as_str()) {
            report.fail(
                "Node",
                &node.name,
                Finding::new(
                    "",
                    "no pod of calico-node",
                    "a pod of the DaemonSet on every Node: any other calico-node stays paused for ever",
                    "check node selector and taints, or replace that calico-node by a pod of the DaemonSet first",
                ),
            );
        }
    }
    for other in &facts.other_daemon_sets {
        report.fail(
            "",
            other.clone(),
            Finding::new(
                "",
                "another DaemonSet with calico-node",
                "one DaemonSet",
                "let the DaemonSet of the manifest run on these nodes, and delete this one: its pods would stay paused for ever",
            ),
        );
    }
    hosts_without_node(facts, &mut report);
    let (desired, pods) = (found.object.desired, facts.pods.len());
    if desired == 0 || usize::try_from(desired).ok() != Some(pods) {
        report.fail(
            "",
            object.clone(),
            Finding::new(
                "number of pods",
                pods.to_string(),
                format!("{desired}, the desired number"),
                "find out why the numbers differ: `kubectl describe daemonset`",
            ),
        );
    }
    report.finish(
        object,
        format!(
            "all pods Ready with {}, number of pods {pods}",
            settings.from_image.value
        ),
    )
}

/// Pods of calico-node with another image than the one of the DaemonSet.
fn other_images(settings: &Settings, object: &str, images: &BTreeMap<&str, Vec<&str>>, report: &mut Report) {
    for (image, nodes) in images
        .iter()
        .filter(|(image, _)| **image != settings.from_image.value)
    {
        report.fail(
            "",
            object,
            Finding::new(
                "pods",
                format!("{image} on {}", names(nodes)),
                format!("{} on every node, as in the DaemonSet", settings.from_image.value),
                "finish the rollout first (`kubectl rollout status`; with updateStrategy OnDelete, delete the old pods one after \
                 the other)",
            ),
        );
    }
}

/// Hosts of etcd v2 that are not Nodes.
fn hosts_without_node(facts: &ClusterFacts, report: &mut Report) {
    let hosts = facts
        .read_stores()
        .and_then(|stores| stores.conversion.as_ref().ok());
    let lowercase: BTreeSet<String> = facts.nodes.keys().map(|node| node.to_lowercase()).collect();
    for host in hosts.iter().flat_map(|converted| &converted.hosts) {
        if !lowercase.contains(host) {
            report.warn(
                "host",
                host.clone(),
                Finding::new(
                    "etcd v2",
                    "a host that is not a Node",
                    "only Nodes",
                    "if a calico-node runs there, it stays paused until you upgrade it; otherwise remove the host from etcd v2 \
                     (`calicoctl delete node`)",
                ),
            );
        }
    }
}

/// Checks that the manifest has another image, of v3, for the same pods.
fn images(settings: &Settings, manifest: &Manifest, found: &Workload) -> Vec<Check> {
    let name = Name::of(&manifest.daemon_set).display();
    let mut report = Report::new(CheckName::Manifest);
    let (from, to) = (&settings.from_image.value, &settings.to_image.value);
    is_of_new_model(to, &name, &mut report);
    let reads_same = found.object.referred_config_maps();
    let is_shared = manifest
        .configuration
        .as_ref()
        .is_some_and(|map| reads_same.contains(Name::of(map).name.as_str()));
    if is_shared && settings.etcd_v2.value.endpoints != settings.etcd_v3.value.endpoints {
        report.fail(
            "",
            name.clone(),
            Finding::new(
                "ConfigMap",
                "the same for calico-node of v2 and of v3, whose etcds differ",
                "a ConfigMap of its own for v3: a calico-node of v2 that restarts would read v3's endpoints",
                "rename the ConfigMap in the manifest, and apply it before",
            ),
        );
    }
    if from == to {
        report.fail(
            "",
            name.clone(),
            Finding::new(
                "image of calico-node",
                format!("{to}, the same as in the cluster"),
                "another image",
                "check that the manifest is of v3, and that it was not applied already",
            ),
        );
    }
    let wanted = &manifest.daemon_set["spec"]["selector"];
    if *wanted != found.selector {
        report.fail(
            "",
            name,
            Finding::new(
                "selector",
                wanted.to_string(),
                found.selector.to_string(),
                "a selector is immutable: copy the one of the cluster to the manifest, and its labels to the pod template",
            ),
        );
    }
    for what in &manifest.omitted {
        report.warn(
            "",
            what.clone(),
            Finding::new(
                "",
                "a part of Calico's own upgrade",
                "no such part: this migration does the same, and would wait for it",
                "nothing to do: replumb omits this part",
            ),
        );
    }
    report.finish("manifest", format!("{to} in place of {from}"))
}

/// Checks that the image is of v3.
fn is_of_new_model(to: &str, name: &str, report: &mut Report) {
    match version_of(to) {
        Some((major, _)) if major >= NEW_MODEL => {}
        Some((major, minor)) => report.fail(
            "",
            name,
            Finding::new(
                "image of calico-node",
                format!("{to}, of v{major}.{minor}"),
                "an image of v3",
                "use the manifest of Calico v3 for etcd",
            ),
        ),
        None => report.warn(
            "",
            name,
            Finding::new(
                "image of calico-node",
                to,
                "a tag with the version",
                "make sure that the image is of v3: a calico-node of v2 would wait for ever",
            ),
        ),
    }
}

/// Checks that the other objects of the manifest are in the cluster, and that the API server accepts the writes of the migration.
fn objects(facts: &ClusterFacts, manifest: &Manifest) -> Vec<Check> {
    let mut report = Report::new(CheckName::ManifestObjects);
    for (object, what) in &facts.differing {
        report.fail(
            "",
            object.clone(),
            Finding::new(
                "",
                what.clone(),
                "as in the manifest",
                "apply it: `kubectl replumb generate calico-v3-objects --calico-v3-manifest FILE | kubectl apply -f -` \
                 (calico-node of v3 needs it, v2 ignores it)",
            ),
        );
    }
    for object in &facts.unreadable {
        report.unknown(
            "",
            object.clone(),
            Finding::new(
                "",
                "no permission of the coordinator to read it",
                "this permission, to compare the object with the manifest",
                RIGHTS,
            ),
        );
    }
    for (object, why) in &facts.refused {
        report.fail(
            "",
            object.clone(),
            Finding::new(
                "",
                format!("refused by the API server: {why}"),
                "accepted by the API server",
                "correct the manifest, the admission webhook that refuses it, or the missing permission (`kubectl apply \
                 --server-side -k deploy/calico-datastore`)",
            ),
        );
    }
    report.finish(
        "other objects of the manifest",
        format!("all in the cluster, number of objects {}", manifest.others.len()),
    )
}

/// Checks for other programs that write the same objects again.
fn owners(settings: &Settings, facts: &ClusterFacts, found: &Workload) -> Vec<Check> {
    let mut checks = Vec::new();
    let all = std::iter::once(("DaemonSet", found))
        .chain(facts.controllers.iter().map(|found| ("Deployment", found)));
    for (kind, found) in all {
        let object = format!("{kind} {}", found.object.key());
        for (mark, controller) in owner::controllers(
            &found.object.labels,
            &found.object.annotations,
            &found.object.managers,
        ) {
            checks.push(CheckName::DatastoreOwners.not_pass(
                Verdict::Fail,
                object.clone(),
                format!("managed by {controller} ({mark})"),
                "no other writer while the migration runs",
                format!(
                    "pause {controller} for this object, or let it ignore the object; at the end, give it the manifest of v3"
                ),
            ));
        }
        if let Some(mark) = KOPS.iter().find(|mark| found.object.labels.contains_key(**mark)) {
            checks.push(CheckName::DatastoreOwners.not_pass(
                Verdict::Warn,
                object,
                format!("applied by kops (label {mark})"),
                "no `kops update cluster --yes` while the migration runs",
                "afterwards set spec.networking.calico.majorVersion: v3 (`kops edit cluster`), and update: until then kops would \
                 restore v2, or run its own upgrade again, without a lock",
            ));
        }
    }
    if checks.is_empty() {
        checks.push(CheckName::DatastoreOwners.pass(
            format!("DaemonSet {}", settings.daemon_set.value),
            "no controller that writes it again and again",
        ));
    }
    checks
}
