//! Somebody else changes what the migration wrote, by kubectl: labels of a node that waits and of one that is done, the pool, what
//! IPAM goes by, a node selector. The API server refuses each; without its policies each is written again, and the rollout
//! stops and says so.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use api::names::NODE_NETWORK_LABEL as NETWORK_LABEL;

use super::Tally;
use super::look::Looker;
use crate::cluster::Cluster;
use crate::cluster::wait::{Look, until};

/// From the change to its being written again. Labels and DaemonSets are watched, Calico's objects looked at every second.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_mins(2);
const POLICIES: [&str; 3] = [
    "replumb-drift-nodes",
    "replumb-drift-daemonsets",
    "replumb-drift-calico",
];

/// One change, as somebody would make it.
struct Change<'case> {
    what: &'case str,
    made_by: Vec<&'case str>,
    /// Where to look.
    seen_by: Vec<&'case str>,
    /// What stands there again.
    needed: &'case str,
    /// What the Migration says.
    told: &'case str,
}

/// All of them, while nobody is started: `done` is on Calico, `waits` on flannel.
pub(super) async fn somebody_else(cluster: &Cluster, look: &Looker, done: &str, waits: &str) -> Tally {
    let mut tally = Tally::default();
    let to_calico = format!("{NETWORK_LABEL}=calico");
    let removed = format!("{NETWORK_LABEL}-");
    let selector =
        format!(r#"{{"spec":{{"template":{{"spec":{{"nodeSelector":{{"{NETWORK_LABEL}":null}}}}}}}}}}"#);
    let label = format!("jsonpath={{.metadata.labels.{}}}", escaped());
    let selected = format!("jsonpath={{.spec.template.spec.nodeSelector.{}}}", escaped());
    let told_of_waiting = format!("Node {waits}: label");
    let told_of_done = format!("Node {done}: label");
    let pool = "ippools.crd.projectcalico.org";
    let ipam = "ipamconfigs.crd.projectcalico.org";
    let changes = [
        Change {
            what: "a node that waits is labelled for Calico",
            made_by: vec!["label", "--overwrite", "node", waits, &to_calico],
            seen_by: vec!["get", "node", waits, "-o", &label],
            needed: "flannel",
            told: &told_of_waiting,
        },
        Change {
            what: "the label of a node that is done is removed",
            made_by: vec!["label", "node", done, &removed],
            seen_by: vec!["get", "node", done, "-o", &label],
            needed: "calico",
            told: &told_of_done,
        },
        Change {
            what: "the IPPool is deleted",
            made_by: vec!["delete", pool, "default-ipv4-ippool"],
            seen_by: vec![
                "get",
                pool,
                "default-ipv4-ippool",
                "-o",
                "jsonpath={.spec.vxlanMode}",
            ],
            needed: "Always",
            told: "IPPool default-ipv4-ippool was deleted",
        },
        // Not the port of the tunnels: without the policy a moment with another one costs traffic.
        Change {
            what: "addresses from anywhere are allowed",
            made_by: vec![
                "patch",
                ipam,
                "default",
                "--type=merge",
                "-p",
                r#"{"spec":{"strictAffinity":false}}"#,
            ],
            seen_by: vec!["get", ipam, "default", "-o", "jsonpath={.spec.strictAffinity}"],
            needed: "true",
            told: "IPAMConfig default: strictAffinity",
        },
        Change {
            what: "flannel's manifest is applied again, without the node selector",
            made_by: vec![
                "-n",
                "kube-flannel",
                "patch",
                "daemonset",
                "kube-flannel-ds",
                "--type=merge",
                "-p",
                &selector,
            ],
            seen_by: vec![
                "-n",
                "kube-flannel",
                "get",
                "daemonset",
                "kube-flannel-ds",
                "-o",
                &selected,
            ],
            needed: "flannel",
            told: "DaemonSet kube-flannel/kube-flannel-ds: node selector",
        },
    ];
    for change in &changes {
        let name = format!("drift: {}, which the API server refuses", change.what);
        tally.count(name, is_refused(cluster, change).await);
    }
    let delete = [&["delete", "validatingadmissionpolicybinding"][..], &POLICIES].concat();
    let away = cluster.api().kubectl(&delete).await.map(|_| ());
    tally.count("drift: the policies are taken away", away);
    for change in &changes {
        let name = format!("drift: {}, which is put back and told", change.what);
        let mended = async {
            put_back(cluster, look, change).await?;
            // A daemon that is started anew meanwhile would go by what the next one changes.
            settles(cluster, done, waits).await
        };
        tally.count(name, mended.await);
    }
    let clean = no_conflist_of_calicos(look, waits).await;
    tally.count("drift: no conflist of Calico's is on the node that waits", clean);
    tally
}

/// Words of the migration, and of what to do instead.
async fn is_refused(cluster: &Cluster, change: &Change<'_>) -> Result<()> {
    let Err(refused) = cluster.api().kubectl(&change.made_by).await else {
        bail!("`kubectl {}` was let pass", change.made_by.join(" "));
    };
    let said = format!("{refused:#}");
    for word in ["Migration demo", "under way", "kubectl replumb rollback"] {
        ensure!(said.contains(word), "the refusal does not say {word:?}: {said}");
    }
    Ok(())
}

fn escaped() -> String {
    NETWORK_LABEL.replace('.', "\\.")
}

async fn put_back(cluster: &Cluster, look: &Looker, change: &Change<'_>) -> Result<()> {
    // An API server hears of a policy that has gone a moment later.
    until("it is let pass", STEP, &cluster.directory().logs(), async || {
        cluster.api().kubectl(&change.made_by).await.map(Look::Done)
    })
    .await?;
    until(
        &format!("it says {} again", change.needed),
        WRITTEN_WITHIN,
        &cluster.directory().logs(),
        async || {
            let found = cluster.api().kubectl(&change.seen_by).await?;
            Ok(if found.trim() == change.needed {
                Look::Done(())
            } else {
                Look::NotYet(format!("it says {found:?}"))
            })
        },
    )
    .await?;
    let migration = look
        .until_migration("the Migration says so", WRITTEN_WITHIN, |migration| {
            let drift = migration.status.as_ref().and_then(|status| status.drift.as_ref());
            drift.is_some_and(|drift| drift.what.iter().any(|what| what.contains(change.told)))
        })
        .await?;
    let status = migration.status.context("its status")?;
    ensure!(
        status.blocked == "Drift" && status.paused,
        "the rollout is not stopped by it but by {:?}: {}",
        status.blocked,
        status.message
    );
    Ok(())
}

/// What the DaemonSets' controller had begun is over: each network's daemon runs on its own nodes again, and nowhere else.
async fn settles(cluster: &Cluster, done: &str, waits: &str) -> Result<()> {
    for (workload, namespace) in [
        ("daemonset/kube-flannel-ds", "kube-flannel"),
        ("daemonset/calico-node", "kube-system"),
    ] {
        cluster.api().rolled_out(workload, namespace, STEP).await?;
    }
    for (namespace, selector, node) in [
        ("kube-flannel", "app=flannel", done),
        ("kube-system", "k8s-app=calico-node", waits),
    ] {
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
                    Look::Done(())
                } else {
                    Look::NotYet(found)
                })
            },
        )
        .await?;
    }
    Ok(())
}

/// New pods there would get addresses of Calico's, and living ones have them.
async fn no_conflist_of_calicos(look: &Looker, waits: &str) -> Result<()> {
    let facts = look.facts(waits).await?;
    let files: Vec<&str> = facts.cni.files.iter().map(|file| file.name.as_str()).collect();
    ensure!(
        !files.iter().any(|file| file.contains("calico")),
        "the agent of node {waits} sees {files:?}"
    );
    Ok(())
}
