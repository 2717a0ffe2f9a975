//! Drift: another user changes objects of the migration with kubectl: the labels of a waiting and of a migrated node, the pool,
//! settings of IPAM and of the tunnels, a node selector. The API server refuses each change. Without its policies each change is
//! reverted, and the rollout halts and names it.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use api::names::NODE_NETWORK_LABEL as NETWORK_LABEL;

use super::Tally;
use super::migration_reader::MigrationReader;
use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};

/// Longest time from the change to its reversion. Labels and DaemonSets are watched, Calico's objects are read every second.
const REVERTED_WITHIN: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_mins(2);
const POLICIES: [&str; 3] = [
    "replumb-drift-nodes",
    "replumb-drift-daemonsets",
    "replumb-drift-calico",
];

/// One change by another user.
struct Change {
    what: &'static str,
    /// The arguments of kubectl that make the change.
    made_by: Vec<String>,
    /// The arguments of kubectl that read the value.
    read_by: Vec<String>,
    /// The value after the reversion.
    needed: &'static str,
    /// A fragment of `status.drift`.
    reported: String,
    /// Whether the change causes losses of traffic, however soon it is reverted.
    causes_losses: bool,
}

/// The changes; node `done` is on Calico, node `waiting` on flannel.
fn changes(done: &str, waiting: &str) -> [Change; 6] {
    let label_of = |node: &str| {
        let path = format!("jsonpath={{.metadata.labels.{}}}", escaped());
        words(&["get", "node", node, "-o", &path])
    };
    let selector =
        format!(r#"{{"spec":{{"template":{{"spec":{{"nodeSelector":{{"{NETWORK_LABEL}":null}}}}}}}}}}"#);
    let selected = format!("jsonpath={{.spec.template.spec.nodeSelector.{}}}", escaped());
    let flannel = |command: &[&str]| {
        let daemon_set = ["daemonset", "kube-flannel-ds"];
        words(&[&["-n", "kube-flannel"], &command[..1], &daemon_set, &command[1..]].concat())
    };
    let calico = |kind: &str, name: &str, patch: &str| {
        let kind = format!("{kind}.crd.projectcalico.org");
        words(&["patch", &kind, name, "--type=merge", "-p", patch])
    };
    let field = |kind: &str, name: &str, field: &str| {
        let kind = format!("{kind}.crd.projectcalico.org");
        words(&["get", &kind, name, "-o", &format!("jsonpath={{.spec.{field}}}")])
    };
    let pool = "default-ipv4-ippool";
    [
        Change {
            what: "a waiting node is labelled for Calico",
            made_by: words(&[
                "label",
                "--overwrite",
                "node",
                waiting,
                &format!("{NETWORK_LABEL}=calico"),
            ]),
            read_by: label_of(waiting),
            needed: "flannel",
            reported: format!("Node {waiting}: label"),
            causes_losses: false,
        },
        Change {
            what: "the label of a migrated node is removed",
            made_by: words(&["label", "node", done, &format!("{NETWORK_LABEL}-")]),
            read_by: label_of(done),
            needed: "calico",
            reported: format!("Node {done}: label"),
            causes_losses: false,
        },
        Change {
            what: "strictAffinity of IPAM is switched off",
            made_by: calico("ipamconfigs", "default", r#"{"spec":{"strictAffinity":false}}"#),
            read_by: field("ipamconfigs", "default", "strictAffinity"),
            needed: "true",
            reported: "IPAMConfig default: strictAffinity".to_owned(),
            causes_losses: false,
        },
        Change {
            what: "the node selector of flannel's DaemonSet is removed",
            made_by: flannel(&["patch", "--type=merge", "-p", &selector]),
            read_by: flannel(&["get", "-o", &selected]),
            needed: "flannel",
            reported: "DaemonSet kube-flannel/kube-flannel-ds: node selector".to_owned(),
            causes_losses: false,
        },
        Change {
            what: "the IPPool is deleted",
            made_by: words(&["delete", "ippools.crd.projectcalico.org", pool]),
            read_by: field("ippools", pool, "vxlanMode"),
            needed: "Always",
            reported: format!("IPPool {pool} was deleted"),
            causes_losses: true,
        },
        Change {
            what: "another VXLAN port is configured",
            made_by: calico("felixconfigurations", "default", r#"{"spec":{"vxlanPort":4789}}"#),
            read_by: field("felixconfigurations", "default", "vxlanPort"),
            needed: "8472",
            reported: "FelixConfiguration default: vxlanPort".to_owned(),
            causes_losses: true,
        },
    ]
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Drift while no node is started: each change is refused, and without the policies reverted. Changes that cause losses are only
/// refused.
pub(super) async fn foreign_changes(
    cluster: &Cluster,
    reader: &MigrationReader,
    done: &str,
    waiting: &str,
) -> Tally {
    let mut tally = Tally::default();
    for change in &changes(done, waiting) {
        let name = format!("drift: the API server refuses: {}", change.what);
        tally.count(name, verify_refused(cluster, change).await);
    }
    let delete = [&["delete", "validatingadmissionpolicybinding"][..], &POLICIES].concat();
    let deleted = cluster.api().kubectl(&delete).await.map(|_| ());
    tally.count("drift: the policies are deleted", deleted);
    let harmless = changes(done, waiting)
        .into_iter()
        .filter(|change| !change.causes_losses);
    let not_there = [flannel_not_on(done), calico_not_on(waiting)];
    tally.add(all_reverted(cluster, reader, harmless, &not_there).await);
    let clean = verify_no_conflist_of_calico(reader, waiting).await;
    tally.count("drift: the waiting node has no conflist of Calico", clean);
    tally
}

/// Drift after the last node, without the policies and after the losses were counted: changes that cause losses are reverted,
/// too.
pub(super) async fn harmful_foreign_changes(
    cluster: &Cluster,
    reader: &MigrationReader,
    done: &str,
    other: &str,
) -> Tally {
    let harmful = changes(done, other)
        .into_iter()
        .filter(|change| change.causes_losses);
    all_reverted(
        cluster,
        reader,
        harmful,
        &[flannel_not_on(done), flannel_not_on(other)],
    )
    .await
}

/// The namespace and the labels of a DaemonSet's pods, and a node on which these must not run.
type NotThere<'node> = (&'static str, &'static str, &'node str);

fn flannel_not_on(node: &str) -> NotThere<'_> {
    ("kube-flannel", "app=flannel", node)
}

fn calico_not_on(node: &str) -> NotThere<'_> {
    ("kube-system", "k8s-app=calico-node", node)
}

async fn all_reverted(
    cluster: &Cluster,
    reader: &MigrationReader,
    changes: impl Iterator<Item = Change>,
    not_there: &[NotThere<'_>],
) -> Tally {
    let mut tally = Tally::default();
    for change in changes {
        let name = format!("drift: reverted and reported: {}", change.what);
        let reverted = async {
            verify_reverted(cluster, reader, &change).await?;
            // A daemon that restarts later would use the value of the next change.
            settle(cluster, not_there).await
        };
        tally.count(name, reverted.await);
    }
    tally
}

fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// Makes the change, and checks that the refusal names the Migration and the fix.
async fn verify_refused(cluster: &Cluster, change: &Change) -> Result<()> {
    let Err(refused) = cluster.api().kubectl(&borrowed(&change.made_by)).await else {
        bail!("`kubectl {}` was not refused", change.made_by.join(" "));
    };
    let message = format!("{refused:#}");
    for word in ["Migration demo", "under way", "kubectl replumb rollback"] {
        ensure!(
            message.contains(word),
            "the refusal does not contain {word:?}: {message}"
        );
    }
    Ok(())
}

fn escaped() -> String {
    NETWORK_LABEL.replace('.', "\\.")
}

async fn verify_reverted(cluster: &Cluster, reader: &MigrationReader, change: &Change) -> Result<()> {
    // The API server enforces a deleted policy for a moment longer.
    until(
        "the change is not refused",
        STEP,
        &cluster.directory().logs(),
        async || {
            cluster
                .api()
                .kubectl(&borrowed(&change.made_by))
                .await
                .map(Observation::Done)
        },
    )
    .await?;
    until(
        &format!("the value is {} again", change.needed),
        REVERTED_WITHIN,
        &cluster.directory().logs(),
        async || {
            let found = cluster.api().kubectl(&borrowed(&change.read_by)).await?;
            Ok(if found.trim() == change.needed {
                Observation::Done(())
            } else {
                Observation::NotYet(format!("the value is {found:?}"))
            })
        },
    )
    .await?;
    let migration = reader
        .until_migration("the Migration reports the drift", REVERTED_WITHIN, |migration| {
            let drift = migration.status.as_ref().and_then(|status| status.drift.as_ref());
            drift.is_some_and(|drift| {
                drift
                    .differences
                    .iter()
                    .any(|what| what.contains(&change.reported))
            })
        })
        .await?;
    let status = migration.status.context("the Migration has no status")?;
    ensure!(
        status.reason == "Drift" && status.paused,
        "reason of the halt: found {:?}, needed Drift: {}",
        status.reason,
        status.message
    );
    Ok(())
}

/// Waits until the DaemonSet controller has finished: each network's daemon runs on its own nodes again, and only there.
async fn settle(cluster: &Cluster, not_there: &[NotThere<'_>]) -> Result<()> {
    for (workload, namespace) in [
        ("daemonset/kube-flannel-ds", "kube-flannel"),
        ("daemonset/calico-node", "kube-system"),
    ] {
        cluster.api().rolled_out(workload, namespace, STEP).await?;
    }
    for (namespace, selector, node) in not_there {
        let fields = format!("--field-selector=spec.nodeName={node}");
        let pods = [
            "-n", namespace, "get", "pods", "-l", selector, &fields, "-o", "name",
        ];
        until(
            &format!("no pod of {selector} is on {node}"),
            STEP,
            &cluster.directory().logs(),
            async || {
                let found = cluster.api().kubectl(&pods).await?;
                Ok(if found.trim().is_empty() {
                    Observation::Done(())
                } else {
                    Observation::NotYet(found)
                })
            },
        )
        .await?;
    }
    Ok(())
}

/// Checks that new pods on the waiting node get no addresses of Calico.
async fn verify_no_conflist_of_calico(reader: &MigrationReader, waiting: &str) -> Result<()> {
    let facts = reader.facts(waiting).await?;
    let files: Vec<&str> = facts.cni.files.iter().map(|file| file.name.as_str()).collect();
    ensure!(
        !files.iter().any(|file| file.contains("calico")),
        "the agent of node {waiting} has observed the conflists {files:?}"
    );
    Ok(())
}
