//! Cases that break a cluster before the migration. Each names the check that must refuse and the words of its refusal, and
//! repairs the cluster afterwards. A refusal must change nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::calico_datastore::stores::Etcd;
use super::operator::{Exit, Operator};
use super::untouched;
use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};

/// Longest time until every API server enforces a new policy.
const ENFORCED_WITHIN: Duration = Duration::from_mins(1);

/// Pause between two requests of a migration that is refused for another reason first.
const REQUEST_AGAIN: Duration = Duration::from_secs(3);

/// One change to the lab that replumb does not make. In each text a machine's name in double braces, as in `{{ lab-control }}`,
/// stands for its address, which differs from lab to lab.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// kubectl with these arguments.
    Kubectl(&'static [&'static str]),
    /// kubectl with these arguments, until the API server refuses it with these words: a new policy is not enforced at once,
    /// whatever its status says.
    UntilRefused(&'static [&'static str], &'static str),
    /// `kubectl apply` of this manifest.
    Apply(&'static str),
    /// `kubectl delete` of this manifest.
    Delete(&'static str),
    /// A shell script on a node.
    Node(&'static str, &'static str),
    /// One request to Calico's etcd: method, path, body.
    Etcd(&'static str, &'static str, &'static str),
}

/// One case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Name on the command line.
    pub name: &'static str,
    /// The fault, in one line.
    pub about: &'static str,
    /// The check that must refuse.
    pub check: &'static str,
    /// Words that the refusal must contain: object, value found, value needed. Addresses as in [`Change`].
    pub says: &'static [&'static str],
    /// Changes that break the cluster.
    pub breaks: &'static [Change],
    /// Changes that repair the cluster.
    pub repair: &'static [Change],
    /// Merged into the Migration's spec, as JSON. Addresses as in [`Change`].
    pub spec: &'static str,
    /// Time until the refusal contains all words; zero if the first one must. The migration is requested again and again.
    pub within: Duration,
}

/// Defaults of a case.
pub const DEFAULT_CASE: Case = Case {
    name: "",
    about: "",
    check: "",
    says: &[],
    breaks: &[],
    repair: &[],
    spec: "{}",
    within: Duration::ZERO,
};

/// The case with this name; the error lists the names.
pub fn find(cases: &'static [Case], name: &str) -> Result<&'static Case> {
    cases.iter().find(|case| case.name == name).with_context(|| {
        let names: Vec<&str> = cases.iter().map(|case| case.name).collect();
        format!("--break {name}: no such case; the cases are {}", names.join(", "))
    })
}

/// The fields that the case adds to the Migration's spec.
pub async fn spec(cluster: &Cluster, case: &Case) -> Result<Value> {
    let text = cluster.values().await.fill(case.spec)?;
    serde_json::from_str(&text).with_context(|| format!("parse the spec of case {}", case.name))
}

/// Breaks the cluster as the case says, requests the migration, repairs the cluster, and returns the output of the refusal.
pub async fn break_and_repair(
    cluster: &Cluster,
    operator: &Operator,
    case: &Case,
    manifest: &Value,
) -> Result<Result<String>> {
    for change in case.breaks {
        apply(cluster, change)
            .await
            .with_context(|| format!("break the cluster for case {}", case.name))?;
    }
    let answer = expect_refusal(cluster, operator, case, manifest).await;
    for change in case.repair {
        apply(cluster, change)
            .await
            .with_context(|| format!("repair the cluster after case {}", case.name))?;
    }
    Ok(answer.with_context(|| format!("case {} ({})", case.name, case.about)))
}

/// Breaks the cluster as the case says, repairs it, deletes the Migration, and returns the output of the refusal.
pub async fn refuse(cluster: &Cluster, operator: &Operator, case: &Case, manifest: &Value) -> Result<String> {
    let answer = break_and_repair(cluster, operator, case, manifest).await?;
    let deleted = delete_migration(cluster).await;
    let text = answer?;
    deleted.map(|()| text)
}

/// Deletes the Migration of a case: a refused Migration blocks the next one.
pub async fn delete_migration(cluster: &Cluster) -> Result<()> {
    cluster
        .api()
        .kubectl(&["delete", "migrations.replumb.dev", "--all", "--wait"])
        .await
        .map(|_| ())
        .context("delete the Migration of the case")
}

async fn expect_refusal(
    cluster: &Cluster,
    operator: &Operator,
    case: &Case,
    manifest: &Value,
) -> Result<String> {
    let file = operator.write_manifest(manifest)?;
    let before = untouched::fingerprint(cluster).await?;
    let mut words = fill_all(cluster, case.says).await?;
    words.insert(0, case.check.to_owned());
    let deadline = Instant::now() + case.within;
    let output = loop {
        let output = operator
            .run(&["apply", "--filename", &file.to_string_lossy(), "--yes"])
            .await?;
        if output.exit != Exit::Refused {
            bail!(
                "expected exit code 2, found {:?}; output:\n{}",
                output.exit,
                output.text
            );
        }
        let missing: Vec<&str> = words
            .iter()
            .map(String::as_str)
            .filter(|word| !output.text.contains(word))
            .collect();
        if missing.is_empty() {
            break output;
        }
        if Instant::now() > deadline {
            bail!(
                "the refusal does not contain {}; output:\n{}",
                missing.join(", "),
                output.text
            );
        }
        tokio::time::sleep(REQUEST_AGAIN).await;
    };
    let after = untouched::fingerprint(cluster).await?;
    let changed = untouched::differences(&before, &after);
    if !changed.is_empty() {
        bail!(
            "the migration was refused, but the cluster changed: {}",
            changed.join("; ")
        );
    }
    Ok(output.text)
}

async fn apply(cluster: &Cluster, change: &Change) -> Result<()> {
    let api = cluster.api();
    match change {
        Change::Kubectl(arguments) => {
            let arguments = fill_all(cluster, arguments).await?;
            api.kubectl(&texts(&arguments)).await.map(|_| ())
        }
        Change::UntilRefused(arguments, words) => {
            let arguments = fill_all(cluster, arguments).await?;
            until_refused(cluster, &texts(&arguments), words).await
        }
        Change::Apply(manifest) => api.apply(&fill(cluster, manifest).await?).await,
        Change::Delete(manifest) => delete(cluster, &fill(cluster, manifest).await?).await,
        Change::Node(node, script) => {
            let script = fill(cluster, script).await?;
            let command = ["sh", "-c", &script];
            cluster.run_in_node(node, &command).await.map(|_| ())
        }
        Change::Etcd(method, path, body) => {
            let body = fill(cluster, body).await?;
            Etcd::of(cluster).await?.send(method, path, &body).await
        }
    }
}

/// The text with the addresses of this lab.
async fn fill(cluster: &Cluster, text: &str) -> Result<String> {
    cluster.values().await.fill(text)
}

async fn fill_all(cluster: &Cluster, all: &[&str]) -> Result<Vec<String>> {
    let values = cluster.values().await;
    all.iter().map(|text| values.fill(text)).collect()
}

fn texts(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

/// Runs kubectl until the API server refuses it with these words.
pub async fn until_refused(cluster: &Cluster, arguments: &[&str], words: &str) -> Result<()> {
    let what = format!("`kubectl {}` is refused", arguments.join(" "));
    until(&what, ENFORCED_WITHIN, &cluster.directory().logs(), async || {
        Ok(match cluster.api().kubectl(arguments).await {
            Err(error) if format!("{error:#}").contains(words) => Observation::Done(()),
            Err(error) => Observation::NotYet(format!("{error:#}")),
            Ok(_) => Observation::NotYet("the command succeeded".to_owned()),
        })
    })
    .await
}

async fn delete(cluster: &Cluster, manifest: &str) -> Result<()> {
    let file = cluster.directory().path().join("delete.yaml");
    std::fs::write(&file, manifest).with_context(|| format!("write {}", file.display()))?;
    cluster
        .api()
        .kubectl(&["delete", "--wait", "--filename", &file.to_string_lossy()])
        .await
        .map(|_| ())
}

/// The values of a lab with three machines in this subnet.
#[cfg(test)]
fn lab_in(subnet: &str) -> crate::cluster::Values {
    use crate::cluster::state::{CONTROL_PLANE, Machine};
    use crate::cluster::{
        Images, IpFamilies, PacketFilter, PodNetwork, ProxyMode, Tunnel, Values, node_name,
    };
    let machine = |host: u8| Machine {
        address: format!("{subnet}.{host}").parse().unwrap(),
        on: true,
    };
    let machines = [
        (CONTROL_PLANE.to_owned(), machine(2)),
        (node_name(0), machine(11)),
        (node_name(1), machine(12)),
    ];
    Values::new(
        &Images::default(),
        machine(2).address,
        ProxyMode::default(),
        PacketFilter::default(),
        IpFamilies::default(),
        PodNetwork::default(),
        Tunnel::default(),
    )
    .with_machines(&machines.into())
}

/// Asserts that every case has all its fields and names no address of one lab.
///
/// # Panics
///
/// When a case does not.
#[cfg(test)]
pub fn assert_complete(cases: &'static [Case]) {
    let names: std::collections::BTreeSet<&str> = cases.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases.len());
    let lab = lab_in("172.30.9");
    for case in cases {
        assert!(
            !case.says.is_empty() && !case.check.is_empty() && !case.about.is_empty(),
            "{}",
            case.name
        );
        assert!(
            !case.breaks.is_empty() || case.spec != "{}",
            "{} breaks nothing",
            case.name
        );
        serde_json::from_str::<Value>(case.spec).unwrap();
        // Labs that run at the same time have different subnets of this range.
        let filled = lab.fill(&format!("{case:?}")).unwrap();
        let written = format!("{case:?}").replace("172.30.0.0/16", "");
        assert!(
            !written.contains("172.30."),
            "{} contains an address of one lab: {written}",
            case.name
        );
        assert!(!filled.contains("{{ "), "{filled}");
    }
    let error = find(cases, "nothing").unwrap_err().to_string();
    assert!(error.contains(cases[0].name), "{error}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_become_addresses_of_the_lab() {
        let filled = |subnet: &str| {
            let lab = lab_in(subnet);
            lab.fill("via {{ lab-worker-1 }} of {{ lab-control }} and {{ control-plane }}")
                .unwrap()
        };
        assert_eq!(
            filled("172.30.0"),
            "via 172.30.0.12 of 172.30.0.11 and 172.30.0.2"
        );
        assert_eq!(
            filled("172.30.7"),
            "via 172.30.7.12 of 172.30.7.11 and 172.30.7.2"
        );
        let other = lab_in("172.30.0").fill("{{ lab-worker-9 }}");
        assert!(other.unwrap_err().to_string().contains("lab-worker-9"));
    }
}
