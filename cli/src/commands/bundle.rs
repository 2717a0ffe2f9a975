//! `bundle`: writes what the checks read to a file, without secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use api::node_migration::NodeMigrationStatus;
use engine::check::Check;
use engine::words::number;
use offline::bundle;
use offline::judge::Judgement;
use offline::snapshot::{Coordinator, Document};
use serde::Serialize;

use super::planning;
use crate::args::Bundle;
use crate::cluster::Cluster;
use crate::error::CliError;
use crate::exit::Outcome;
use crate::output::Output;
use crate::planned::Planned;
use crate::say;

/// The JSON output.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'text> {
    file: String,
    migration: String,
    objects: usize,
    hosts: usize,
    redacted: bool,
    plan_hash: Option<&'text str>,
    /// Checks that have other results on the file than in the cluster.
    differences: Vec<String>,
}

pub(super) async fn run(
    cluster: &Cluster,
    wanted: &Bundle,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Outcome, CliError> {
    // Before the reads: a command that fails at its end has written nothing.
    let mut file = create(&wanted.path)?;
    let done = Box::pin(write(cluster, wanted, variables, &mut file)).await;
    if done.is_err() {
        // The file was created by this command, and is not complete.
        let _ = std::fs::remove_file(&wanted.path);
    }
    done
}

async fn write(
    cluster: &Cluster,
    wanted: &Bundle,
    variables: impl IntoIterator<Item = (String, String)>,
    file: &mut std::fs::File,
) -> Result<Outcome, CliError> {
    let planned = planning::look(cluster, &wanted.look, variables).await?;
    let name = planned.name();
    let mut document = collect(cluster, &planned).await?;
    let judged = bundle::judge(&document, &name).await.map_err(offline)?;
    let mut differences = differences(&planned, &judged);
    if wanted.redact {
        bundle::hide_names(&mut document, &salt());
        // Texts of checks have other names now, and the plan another order: the verdicts are the same.
        let redacted = bundle::judge(&document, &redacted_name(&document))
            .await
            .map_err(offline)?;
        differences.extend(other_verdicts(&judged, &redacted));
    }
    let text = text(&document).map_err(offline)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(|error| not_written(&wanted.path, &error))?;
    let written = Written {
        file: wanted.path.display().to_string(),
        migration: name,
        objects: document.objects.len(),
        hosts: document.hosts.len(),
        redacted: wanted.redact,
        plan_hash: judged.plan_hash.as_deref(),
        differences,
    };
    match wanted.look.shown.output {
        Output::Json => say::json(&written)?,
        Output::Table => say::answer(&report(&written))?,
    }
    Ok(Outcome::Done)
}

/// The document of the cluster, for a Migration that has not started.
pub(super) async fn collect(cluster: &Cluster, planned: &Planned) -> Result<Document, CliError> {
    if planned.has_begun() {
        return Err(CliError::BundleAfterStart { name: planned.name() });
    }
    let collected = bundle::collect(bundle::Cluster {
        client: cluster.client(),
        coordinator: Coordinator {
            namespace: cluster.namespace.clone(),
            node: cluster.node_of_the_leader().await?,
        },
        migration: planned.migration.clone(),
        reports: reports(planned),
    });
    collected.await.map_err(|error| offline(error.into()))
}

/// The error of work on a cluster in memory.
pub(super) fn offline(source: anyhow::Error) -> CliError {
    CliError::Offline { source }
}

fn create(path: &Path) -> Result<std::fs::File, CliError> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| not_written(path, &error))
}

fn not_written(path: &Path, error: &std::io::Error) -> CliError {
    CliError::File {
        file: path.display().to_string(),
        why: format!("cannot be written: {error}"),
    }
}

fn reports(planned: &Planned) -> BTreeMap<String, NodeMigrationStatus> {
    let nodes = planned.nodes.iter();
    nodes
        .filter_map(|node| Some((node.spec.node_name.clone(), node.status.clone()?)))
        .collect()
}

/// Name of the Migration in the document.
fn redacted_name(document: &Document) -> String {
    let mut migrations = document
        .objects
        .iter()
        .filter(|object| object["kind"] == "Migration");
    let name = migrations
        .next_back()
        .and_then(|object| object["metadata"]["name"].as_str());
    name.unwrap_or_default().to_owned()
}

/// Random bytes: the replacements of names cannot be computed from a list of names.
fn salt() -> [u8; 16] {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    let bytes = |_| RandomState::new().build_hasher().finish().to_le_bytes();
    let mut salt = [0; 16];
    for (part, bytes) in salt.chunks_exact_mut(8).zip((0..2).map(bytes)) {
        part.copy_from_slice(&bytes);
    }
    salt
}

/// What has another result on the file than in the cluster.
fn differences(planned: &Planned, judged: &Judgement) -> Vec<String> {
    let status = planned.migration.status.clone().unwrap_or_default();
    let results = |checks: &[Check]| -> BTreeSet<String> {
        let lines = checks.iter();
        lines
            .map(|check| format!("{} {}: {}", check.verdict.as_str(), check.name, check.object))
            .collect()
    };
    let (online, offline) = (results(&status.checks), results(&judged.checks));
    let only = |one: &BTreeSet<String>, other: &BTreeSet<String>, place: &str| -> Vec<String> {
        one.difference(other)
            .map(|line| format!("only {place}: {line}"))
            .collect()
    };
    let mut found = only(&online, &offline, "in the cluster");
    found.extend(only(&offline, &online, "on the file"));
    let hash = status.plan.map(|plan| plan.hash);
    if hash != judged.plan_hash {
        let shown = |hash: &Option<String>| hash.clone().unwrap_or_else(|| "none".to_owned());
        found.push(format!(
            "the hash of the plan: in the cluster {}, on the file {}",
            shown(&hash),
            shown(&judged.plan_hash)
        ));
    }
    found
}

/// The verdicts that differ after names were replaced.
fn other_verdicts(named: &Judgement, redacted: &Judgement) -> Vec<String> {
    let has = |judgement: &Judgement, wanted: &Check| {
        let mut checks = judgement.checks.iter();
        checks.any(|check| (&check.name, check.verdict) == (&wanted.name, wanted.verdict))
    };
    let only = |one: &Judgement, other: &Judgement, place: &str| -> Vec<String> {
        let checks = one.checks.iter().filter(|check| !has(other, check));
        checks
            .map(|check| {
                format!(
                    "only with {place}: {} {}: {}, found {}",
                    check.verdict.as_str(),
                    check.name,
                    check.object,
                    check.found
                )
            })
            .collect()
    };
    [
        only(named, redacted, "names"),
        only(redacted, named, "replaced names"),
    ]
    .concat()
}

fn text(document: &Document) -> anyhow::Result<String> {
    Ok(yaml_serde::to_string(&serde_json::to_value(document)?)?)
}

fn report(written: &Written<'_>) -> String {
    let Written {
        file,
        migration,
        objects,
        hosts,
        redacted,
        plan_hash,
        differences,
    } = written;
    let mut text = format!(
        "Bundle {file}: Migration {migration}, {}, reports of {}{}\n\
         Secrets, and values of variables that no check reads, are not in it. Read the file before you share it\n",
        number(*objects, "object", "objects"),
        number(*hosts, "host", "hosts"),
        if *redacted { ", names replaced" } else { "" },
    );
    if differences.is_empty() {
        text.push_str(&format!(
            "Judged on the file: the checks are those of the cluster{}\n",
            plan_hash.map_or(String::new(), |hash| if *redacted {
                ", the order of nodes is not".to_owned()
            } else {
                format!(", and plan {hash}")
            })
        ));
    } else {
        text.push_str("Judged on the file, these differ from the cluster:\n");
        text.extend(differences.iter().map(|line| format!("  {line}\n")));
    }
    text.push_str(&format!("next: `kubectl replumb plan --snapshot {file}`\n"));
    text
}
