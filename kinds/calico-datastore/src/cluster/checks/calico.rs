//! Calico in the cluster: calico-node, and what is written to both.

use std::collections::{BTreeMap, BTreeSet};

use super::{CheckName, controllers};
use crate::cluster::facts::{ClusterFacts, Found};
use crate::cluster::manifest::{KOPS, Manifest, Name, version_of};
use crate::cluster::settings::Settings;
use engine::check::{Check, Finding, Report, Verdict, names, owner};

/// What gives the coordinator its rights.
const RIGHTS: &str = "`kubectl apply --server-side -k deploy/calico-datastore` gives it the rights that this kind needs beside";
/// The first version whose nodes work with etcd v3.
const NEW_MODEL: u64 = 3;

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let (Some(manifest), Some(found)) = (facts.understood(), &facts.daemon_set) else {
        // Without them there are no settings either.
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

/// One version on every node, each Ready.
fn node(settings: &Settings, facts: &ClusterFacts, found: &Found) -> Vec<Check> {
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
                    "Ready, before its version changes",
                    "see its log: `kubectl logs -n kube-system -l k8s-app=calico-node -c calico-node`",
                ),
            );
        }
    }
    for (image, nodes) in images
        .iter()
        .filter(|(image, _)| **image != settings.from_image.value)
    {
        report.fail(
            "",
            object.clone(),
            Finding::new(
                "its pods",
                format!("{image} on {}", names(nodes)),
                format!("{} on every node, as the DaemonSet says", settings.from_image.value),
                "roll it out first: calico-node of one version everywhere (`kubectl rollout status`; where updateStrategy is OnDelete, delete the \
                 old pods one after the other)",
            ),
        );
    }
    let with_pods: BTreeSet<&str> = facts.pods.iter().map(|pod| pod.node.as_str()).collect();
    for (name, node) in &facts.nodes {
        if !with_pods.contains(name.as_str()) {
            report.fail(
                "Node",
                &node.name,
                Finding::new(
                    "",
                    "no pod of it",
                    "one on every Node: what is not changed by the DaemonSet stays paused for ever",
                    "see why there is none (node selector, taints), or change that calico-node to a pod of the DaemonSet first",
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
                "it runs calico-node, too",
                "one DaemonSet",
                "its pods would stay paused for ever: let the one DaemonSet run on its nodes first, and delete it",
            ),
        );
    }
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
                    "Calico knows it, and it is no Node",
                    "Nodes alone",
                    "if a calico-node runs there, it stays paused until you upgrade it; if not, remove it from etcd v2 (`calicoctl delete node`)",
                ),
            );
        }
    }
    let (desired, there) = (found.object.desired, facts.pods.len());
    if desired == 0 || usize::try_from(desired).ok() != Some(there) {
        report.fail(
            "",
            object.clone(),
            Finding::new(
                "",
                format!("{there} pods"),
                format!("{desired}, as many as it has to have"),
                "see why they are not there: `kubectl describe daemonset`",
            ),
        );
    }
    report.finish(
        object,
        format!("{there} pods of {}, all Ready", settings.from_image.value),
    )
}

/// Another image, of v3, for the same pods; and that the API server takes it.
fn images(settings: &Settings, manifest: &Manifest, found: &Found) -> Vec<Check> {
    let name = Name::of(&manifest.daemon_set).words();
    let mut report = Report::new(CheckName::Manifest);
    let (from, to) = (&settings.from_image.value, &settings.to_image.value);
    match version_of(to) {
        Some((major, _)) if major >= NEW_MODEL => {}
        Some((major, minor)) => report.fail(
            "",
            name.clone(),
            Finding::new(
                "the image of calico-node",
                format!("{to}, of v{major}.{minor}"),
                "one of v3",
                "give the manifest of Calico v3 for etcd",
            ),
        ),
        None => report.warn(
            "",
            name.clone(),
            Finding::new(
                "the image of calico-node",
                to.clone(),
                "a tag that says its version",
                "see to it that it is of v3: a calico-node of v2 would wait for ever",
            ),
        ),
    }
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
                "calico-node of v2 and of v3 read it, and their etcds differ",
                "another ConfigMap for v3: whoever of v2 starts again before its turn would read v3's endpoints",
                "give the ConfigMap of the manifest another name, and apply it before",
            ),
        );
    }
    if from == to {
        report.fail(
            "",
            name.clone(),
            Finding::new(
                "the image of calico-node",
                format!("{to}, the same as in the cluster"),
                "another one",
                "is the manifest the one of v3, and was it not applied already?",
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
                "a selector cannot be changed: write the one of the cluster into the manifest, and its labels into the pod template",
            ),
        );
    }
    for what in &manifest.left_out {
        report.warn(
            "",
            what.clone(),
            Finding::new(
                "",
                "Calico's own upgrade",
                "nothing of it: this migration does the same, and would wait for it",
                "nothing is to be done: it is left out",
            ),
        );
    }
    report.finish(format!("manifest: {to}"), format!("in place of {from}"))
}

/// What else the manifest has is in the cluster, and the API server would take what is written.
fn objects(facts: &ClusterFacts, manifest: &Manifest) -> Vec<Check> {
    let mut report = Report::new(CheckName::ManifestObjects);
    for (object, what) in &facts.not_applied {
        report.fail(
            "",
            object.clone(),
            Finding::new(
                "",
                what.clone(),
                "as in the manifest",
                "calico-node of v3 needs it, and that of v2 does not mind: `kubectl replumb generate calico-v3-objects --calico-v3-manifest FILE | kubectl \
                 apply -f -`",
            ),
        );
    }
    for object in &facts.unseen {
        report.unknown(
            "",
            object.clone(),
            Finding::new(
                "",
                "the coordinator may not read it",
                "that it may, to see whether it is as in the manifest",
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
                format!("the API server would not take it: {why}"),
                "that it does",
                "mend the manifest, or see who refuses it: an admission webhook, or a right that is missing (`kubectl apply --server-side -k \
                 deploy/calico-datastore`)",
            ),
        );
    }
    report.finish(
        "what the manifest needs",
        format!("{} objects are in the cluster", manifest.others.len()),
    )
}

/// Who would write the objects again.
fn owners(settings: &Settings, facts: &ClusterFacts, found: &Found) -> Vec<Check> {
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
                format!("{controller} writes it ({mark})"),
                "nobody else writes it while the migration runs",
                format!("pause {controller} for it, or let it ignore the object; at the end let it say what the manifest of v3 says"),
            ));
        }
        if let Some(mark) = KOPS.iter().find(|mark| found.object.labels.contains_key(**mark)) {
            checks.push(CheckName::DatastoreOwners.not_pass(
                Verdict::Warn,
                object,
                format!("kops has applied it (label {mark})"),
                "no `kops update cluster --yes` while the migration runs",
                "afterwards `kops edit cluster`, spec.networking.calico.majorVersion: v3, and update: until then kops has v2 in its hands, and \
                 from now on its own upgrade would do the same again, without a lock",
            ));
        }
    }
    if checks.is_empty() {
        checks.push(CheckName::DatastoreOwners.pass(
            format!("DaemonSet {}", settings.daemon_set.value),
            "nobody is seen to write it again and again",
        ));
    }
    checks
}
