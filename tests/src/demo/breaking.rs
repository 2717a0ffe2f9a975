//! Cases in which a cluster is spoiled first: each says which check has to refuse and with which words, and mends the cluster
//! again. What is refused changes nothing.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::calico_datastore::stores::Etcd;
use super::operator::{Exit, Operator};
use super::untouched;
use crate::cluster::Cluster;
use crate::cluster::wait::{Look, until};

/// Within this time every API server obeys a new policy.
const OBEYED: Duration = Duration::from_mins(1);

/// One change to the lab, from outside of the tool. In each text a machine's name in double braces, as in `{{ lab-control }}`, stands for
/// its address, which differs from lab to lab.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// kubectl with these arguments.
    Kubectl(&'static [&'static str]),
    /// kubectl with these arguments, until the API server refuses it with these words: a policy that was just made is not obeyed yet,
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
    /// What is wrong, in one line.
    pub about: &'static str,
    /// The check that has to refuse.
    pub check: &'static str,
    /// Words that the refusal has to contain: object, value found, value needed. Addresses as in [`Change`].
    pub says: &'static [&'static str],
    /// What spoils the cluster.
    pub spoil: &'static [Change],
    /// What mends it.
    pub mend: &'static [Change],
    /// Merged into the Migration's spec, as JSON. Addresses as in [`Change`].
    pub spec: &'static str,
}

/// What a case has when it does not say another thing.
pub const PLAIN: Case = Case {
    name: "",
    about: "",
    check: "",
    says: &[],
    spoil: &[],
    mend: &[],
    spec: "{}",
};

/// The case of this name; the error lists the names.
pub fn find(cases: &'static [Case], name: &str) -> Result<&'static Case> {
    cases.iter().find(|case| case.name == name).with_context(|| {
        let names: Vec<&str> = cases.iter().map(|case| case.name).collect();
        format!(
            "--break {name}: there is no such case; there is {}",
            names.join(", ")
        )
    })
}

/// What the case says of the Migration's spec.
pub async fn spec(cluster: &Cluster, case: &Case) -> Result<Value> {
    let text = cluster.values().await.fill(case.spec)?;
    serde_json::from_str(&text).with_context(|| format!("parse the spec of case {}", case.name))
}

/// Spoils the cluster as the case says, asks for the migration, mends the cluster, and returns what the tool answered.
pub async fn spoil(
    cluster: &Cluster,
    operator: &Operator,
    case: &Case,
    manifest: &Value,
) -> Result<Result<String>> {
    for change in case.spoil {
        apply(cluster, change)
            .await
            .with_context(|| format!("spoil the cluster for case {}", case.name))?;
    }
    let answer = refused(cluster, operator, case, manifest).await;
    for change in case.mend {
        apply(cluster, change)
            .await
            .with_context(|| format!("mend the cluster after case {}", case.name))?;
    }
    Ok(answer.with_context(|| format!("case {} ({})", case.name, case.about)))
}

/// Deletes the Migration of a case: a refused one keeps the next from being asked for.
pub async fn forget(cluster: &Cluster) -> Result<()> {
    cluster
        .api()
        .kubectl(&["delete", "migrations.replumb.dev", "--all", "--wait"])
        .await
        .map(|_| ())
        .context("delete the Migration of the case")
}

async fn refused(cluster: &Cluster, operator: &Operator, case: &Case, manifest: &Value) -> Result<String> {
    let file = operator.write_manifest(manifest)?;
    let before = untouched::fingerprint(cluster).await?;
    let output = operator
        .run(&["apply", "--filename", &file.to_string_lossy(), "--yes"])
        .await?;
    let after = untouched::fingerprint(cluster).await?;
    if output.exit != Exit::Refused {
        bail!(
            "expected exit code 2, found {:?}; it said:\n{}",
            output.exit,
            output.text
        );
    }
    let mut missing = filled(cluster, case.says).await?;
    missing.insert(0, case.check.to_owned());
    missing.retain(|word| !output.text.contains(word));
    if !missing.is_empty() {
        bail!(
            "the refusal does not say {}; it said:\n{}",
            missing.join(", "),
            output.text
        );
    }
    let changed = untouched::differences(&before, &after);
    if !changed.is_empty() {
        bail!(
            "it was refused and the cluster changed all the same: {}",
            changed.join("; ")
        );
    }
    Ok(output.text)
}

async fn apply(cluster: &Cluster, change: &Change) -> Result<()> {
    let api = cluster.api();
    match change {
        Change::Kubectl(arguments) => {
            let arguments = filled(cluster, arguments).await?;
            api.kubectl(&texts(&arguments)).await.map(|_| ())
        }
        Change::UntilRefused(arguments, words) => {
            let arguments = filled(cluster, arguments).await?;
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
            Etcd::of(cluster).await?.tell(method, path, &body).await
        }
    }
}

/// A text with the addresses of this lab.
async fn fill(cluster: &Cluster, text: &str) -> Result<String> {
    cluster.values().await.fill(text)
}

async fn filled(cluster: &Cluster, all: &[&str]) -> Result<Vec<String>> {
    let values = cluster.values().await;
    all.iter().map(|text| values.fill(text)).collect()
}

fn texts(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

/// Runs kubectl until the API server refuses it with these words.
pub async fn until_refused(cluster: &Cluster, arguments: &[&str], words: &str) -> Result<()> {
    let what = format!("`kubectl {}` is refused", arguments.join(" "));
    until(&what, OBEYED, &cluster.directory().logs(), async || {
        Ok(match cluster.api().kubectl(arguments).await {
            Err(error) if format!("{error:#}").contains(words) => Look::Done(()),
            Err(error) => Look::NotYet(format!("{error:#}")),
            Ok(_) => Look::NotYet("it is done".to_owned()),
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
fn a_lab(subnet: &str) -> crate::cluster::Values {
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

/// Looks whether every case says enough.
///
/// # Panics
///
/// When one does not.
#[cfg(test)]
pub fn assert_complete(cases: &'static [Case]) {
    let names: std::collections::BTreeSet<&str> = cases.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases.len());
    let lab = a_lab("172.30.9");
    for case in cases {
        assert!(
            !case.says.is_empty() && !case.check.is_empty() && !case.about.is_empty(),
            "{}",
            case.name
        );
        assert!(
            !case.spoil.is_empty() || case.spec != "{}",
            "{} spoils nothing",
            case.name
        );
        serde_json::from_str::<Value>(case.spec).unwrap();
        // A lab beside another one has another subnet of this range.
        let said = lab.fill(&format!("{case:?}")).unwrap();
        let written = format!("{case:?}").replace("172.30.0.0/16", "");
        assert!(
            !written.contains("172.30."),
            "{} says an address of one lab: {written}",
            case.name
        );
        assert!(!said.contains("{{ "), "{said}");
    }
    let error = find(cases, "nothing").unwrap_err().to_string();
    assert!(error.contains(cases[0].name), "{error}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_says_the_addresses_of_the_lab_that_it_is_in() {
        let said = |subnet: &str| {
            let lab = a_lab(subnet);
            lab.fill("via {{ lab-worker-1 }} of {{ lab-control }} and {{ control-plane }}")
                .unwrap()
        };
        assert_eq!(said("172.30.0"), "via 172.30.0.12 of 172.30.0.11 and 172.30.0.2");
        assert_eq!(said("172.30.7"), "via 172.30.7.12 of 172.30.7.11 and 172.30.7.2");
        let other = a_lab("172.30.0").fill("{{ lab-worker-9 }}");
        assert!(other.unwrap_err().to_string().contains("lab-worker-9"));
    }
}
