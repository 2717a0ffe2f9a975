//! `version`: prints the versions of this tool and of the agents.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cluster::Cluster;
use crate::error::CliError;
use crate::exit::Outcome;
use crate::output::{Output, OutputFlags};
use crate::say;

/// The JSON output.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    client: &'static str,
    /// Version → nodes.
    agents: BTreeMap<String, Vec<String>>,
    /// Why the versions of the agents are unknown.
    error: Option<String>,
}

pub(super) async fn run(cluster: Result<Cluster, CliError>, shown: OutputFlags) -> Result<Outcome, CliError> {
    let mut document = Document {
        client: env!("CARGO_PKG_VERSION"),
        agents: BTreeMap::new(),
        error: None,
    };
    let nodes = match cluster {
        Ok(cluster) => cluster.all_nodes().await,
        Err(error) => Err(error),
    };
    match nodes {
        Ok(nodes) => {
            for object in nodes {
                let version = object
                    .status
                    .map(|report| report.agent_version)
                    .unwrap_or_default();
                let version = if version.is_empty() {
                    "no report".to_owned()
                } else {
                    version
                };
                document
                    .agents
                    .entry(version)
                    .or_default()
                    .push(object.spec.node_name);
            }
        }
        Err(error) => document.error = Some(error.to_string()),
    }
    match shown.output {
        Output::Json => say::json(&document)?,
        Output::Table => {
            let mut text = format!("kubectl-replumb {}\n", document.client);
            for (version, nodes) in &document.agents {
                text.push_str(&format!("agent {version} on {}\n", nodes.join(", ")));
            }
            if document.agents.is_empty() && document.error.is_none() {
                text.push_str("no agents: there is no Migration with nodes yet\n");
            }
            say::answer(&text)?;
        }
    }
    // The version of this tool needs no cluster: a missing kubeconfig or a failed request is only a note.
    if let Some(error) = document.error.filter(|_| shown.output == Output::Table) {
        say::note(&format!("agent versions are unknown: {error}"));
    }
    Ok(Outcome::Done)
}
