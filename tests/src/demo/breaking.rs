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

/// One change to the lab, from outside of the tool.
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
    /// Words that the refusal has to contain: object, value found, value needed.
    pub says: &'static [&'static str],
    /// What spoils the cluster.
    pub spoil: &'static [Change],
    /// What mends it.
    pub mend: &'static [Change],
    /// Merged into the Migration's spec, as JSON.
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
    let missing: Vec<&str> = std::iter::once(case.check)
        .chain(case.says.iter().copied())
        .filter(|word| !output.text.contains(word))
        .collect();
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
    match change {
        Change::Kubectl(arguments) => cluster.api().kubectl(arguments).await.map(|_| ()),
        Change::UntilRefused(arguments, words) => until_refused(cluster, arguments, words).await,
        Change::Apply(manifest) => cluster.api().apply(manifest).await,
        Change::Delete(manifest) => delete(cluster, manifest).await,
        Change::Node(node, script) => cluster.run_in_node(node, &["sh", "-c", script]).await.map(|_| ()),
        Change::Etcd(method, path, body) => Etcd::of(cluster).await?.tell(method, path, body).await,
    }
}

async fn until_refused(cluster: &Cluster, arguments: &[&str], words: &str) -> Result<()> {
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

/// Looks whether every case says enough.
///
/// # Panics
///
/// When one does not.
#[cfg(test)]
pub fn assert_complete(cases: &'static [Case]) {
    let names: std::collections::BTreeSet<&str> = cases.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases.len());
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
    }
    let error = find(cases, "nothing").unwrap_err().to_string();
    assert!(error.contains(cases[0].name), "{error}");
}
