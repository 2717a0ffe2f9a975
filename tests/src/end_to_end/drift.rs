//! Somebody else changes what the migration wrote, by kubectl: labels of a node that waits and of one that is done, the pool, what
//! IPAM and the tunnels go by, a node selector. The API server refuses each; without its policies each is written again, and the rollout
//! stops and says so.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use api::names::NODE_NETWORK_LABEL as NETWORK_LABEL;

use super::Tally;
use super::look::Looker;
use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};

/// From the change to its being written again. Labels and DaemonSets are watched, Calico's objects looked at every second.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_mins(2);
const POLICIES: [&str; 3] = [
    "replumb-drift-nodes",
    "replumb-drift-daemonsets",
    "replumb-drift-calico",
];

/// One change, as somebody would make it.
struct Change {
    what: &'static str,
    made_by: Vec<String>,
    /// Where to look.
    seen_by: Vec<String>,
    /// What stands there again.
    needed: &'static str,
    /// What the Migration says.
    told: String,
    /// Whether a moment of it costs traffic, however soon it is written again.
    costs_traffic: bool,
}

/// `done` is on Calico, `waits` on flannel.
fn changes(done: &str, waits: &str) -> [Change; 6] {
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
            what: "a node that waits is labelled for Calico",
            made_by: words(&[
                "label",
                "--overwrite",
                "node",
                waits,
                &format!("{NETWORK_LABEL}=calico"),
            ]),
            seen_by: label_of(waits),
            needed: "flannel",
            told: format!("Node {waits}: label"),
            costs_traffic: false,
        },
        Change {
            what: "the label of a node that is done is removed",
            made_by: words(&["label", "node", done, &format!("{NETWORK_LABEL}-")]),
            seen_by: label_of(done),
            needed: "calico",
            told: format!("Node {done}: label"),
            costs_traffic: false,
        },
        Change {
            what: "addresses from anywhere are allowed",
            made_by: calico("ipamconfigs", "default", r#"{"spec":{"strictAffinity":false}}"#),
            seen_by: field("ipamconfigs", "default", "strictAffinity"),
            needed: "true",
            told: "IPAMConfig default: strictAffinity".to_owned(),
            costs_traffic: false,
        },
        Change {
            what: "flannel's manifest is applied again, without the node selector",
            made_by: flannel(&["patch", "--type=merge", "-p", &selector]),
            seen_by: flannel(&["get", "-o", &selected]),
            needed: "flannel",
            told: "DaemonSet kube-flannel/kube-flannel-ds: node selector".to_owned(),
            costs_traffic: false,
        },
        Change {
            what: "the IPPool is deleted",
            made_by: words(&["delete", "ippools.crd.projectcalico.org", pool]),
            seen_by: field("ippools", pool, "vxlanMode"),
            needed: "Always",
            told: format!("IPPool {pool} was deleted"),
            costs_traffic: true,
        },
        Change {
            what: "another VXLAN port is configured",
            made_by: calico("felixconfigurations", "default", r#"{"spec":{"vxlanPort":4789}}"#),
            seen_by: field("felixconfigurations", "default", "vxlanPort"),
            needed: "8472",
            told: "FelixConfiguration default: vxlanPort".to_owned(),
            costs_traffic: true,
        },
    ]
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// While nobody is started: each is refused, and once the policies are gone, put back. What costs traffic is only refused.
pub(super) async fn somebody_else(cluster: &Cluster, look: &Looker, done: &str, waits: &str) -> Tally {
    let mut tally = Tally::default();
    for change in &changes(done, waits) {
        let name = format!("drift: {}, which the API server refuses", change.what);
        tally.count(name, is_refused(cluster, change).await);
    }
    let delete = [&["delete", "validatingadmissionpolicybinding"][..], &POLICIES].concat();
    let away = cluster.api().kubectl(&delete).await.map(|_| ());
    tally.count("drift: the policies are taken away", away);
    let harmless = changes(done, waits)
        .into_iter()
        .filter(|change| !change.costs_traffic);
    let not_there = [flannel_not_on(done), calico_not_on(waits)];
    tally.add(are_put_back(cluster, look, harmless, &not_there).await);
    let clean = no_conflist_of_calicos(look, waits).await;
    tally.count("drift: no conflist of Calico's is on the node that waits", clean);
    tally
}

/// Once every node is done, the policies are gone and the losses are counted: what costs traffic is put back, too.
pub(super) async fn somebody_else_harms(cluster: &Cluster, look: &Looker, done: &str, other: &str) -> Tally {
    let harmful = changes(done, other)
        .into_iter()
        .filter(|change| change.costs_traffic);
    are_put_back(
        cluster,
        look,
        harmful,
        &[flannel_not_on(done), flannel_not_on(other)],
    )
    .await
}

/// A daemon's pods, and a node that is not theirs.
type NotThere<'node> = (&'static str, &'static str, &'node str);

fn flannel_not_on(node: &str) -> NotThere<'_> {
    ("kube-flannel", "app=flannel", node)
}

fn calico_not_on(node: &str) -> NotThere<'_> {
    ("kube-system", "k8s-app=calico-node", node)
}

async fn are_put_back(
    cluster: &Cluster,
    look: &Looker,
    changes: impl Iterator<Item = Change>,
    not_there: &[NotThere<'_>],
) -> Tally {
    let mut tally = Tally::default();
    for change in changes {
        let name = format!("drift: {}, which is put back and told", change.what);
        let mended = async {
            put_back(cluster, look, &change).await?;
            // A daemon that is started anew meanwhile would go by what the next one changes.
            settles(cluster, not_there).await
        };
        tally.count(name, mended.await);
    }
    tally
}

fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// Words of the migration, and of what to do instead.
async fn is_refused(cluster: &Cluster, change: &Change) -> Result<()> {
    let Err(refused) = cluster.api().kubectl(&borrowed(&change.made_by)).await else {
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

async fn put_back(cluster: &Cluster, look: &Looker, change: &Change) -> Result<()> {
    // An API server hears of a policy that has gone a moment later.
    until("it is let pass", STEP, &cluster.directory().logs(), async || {
        cluster
            .api()
            .kubectl(&borrowed(&change.made_by))
            .await
            .map(Observation::Done)
    })
    .await?;
    until(
        &format!("it says {} again", change.needed),
        WRITTEN_WITHIN,
        &cluster.directory().logs(),
        async || {
            let found = cluster.api().kubectl(&borrowed(&change.seen_by)).await?;
            Ok(if found.trim() == change.needed {
                Observation::Done(())
            } else {
                Observation::NotYet(format!("it says {found:?}"))
            })
        },
    )
    .await?;
    let migration = look
        .until_migration("the Migration says so", WRITTEN_WITHIN, |migration| {
            let drift = migration.status.as_ref().and_then(|status| status.drift.as_ref());
            drift.is_some_and(|drift| drift.differences.iter().any(|what| what.contains(&change.told)))
        })
        .await?;
    let status = migration.status.context("its status")?;
    ensure!(
        status.reason == "Drift" && status.paused,
        "the rollout is not stopped by it but by {:?}: {}",
        status.reason,
        status.message
    );
    Ok(())
}

/// What the DaemonSets' controller had begun is over: each network's daemon runs on its own nodes again, and nowhere else.
async fn settles(cluster: &Cluster, not_there: &[NotThere<'_>]) -> Result<()> {
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
