//! Errors of the commands: the attempt, the object, and a hint for the user.

mod hint;

use std::path::PathBuf;

use api::Kind;
use runtime::error::chain;
use thiserror::Error;

use crate::exit::Outcome;

/// Why a command failed.
#[derive(Debug, Error)]
pub enum CliError {
    /// There is no usable kubeconfig.
    #[error("no usable kubeconfig: {}", chain(&**.source))]
    Kubeconfig {
        /// The kubeconfig that was given, if any.
        path: Option<PathBuf>,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The cluster of a snapshot stopped.
    #[error("judging the snapshot: {source:#}")]
    Offline {
        /// The cause.
        source: anyhow::Error,
    },
    /// A bundle of a migration that has started.
    #[error("Migration {name} has started: a bundle has a cluster before the first change")]
    BundleAfterStart {
        /// Name of the Migration.
        name: String,
    },
    /// A request failed.
    #[error("{attempt} {object}: {}", words(.source))]
    Api {
        /// The attempt: `reading`, `patching`.
        attempt: &'static str,
        /// The object.
        object: String,
        /// The answer of the API server.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server does not serve the resources of replumb.
    #[error(
        "the API server has no resource {kind} ({}/{}): replumb is not installed in this cluster",
        api::names::GROUP,
        api::names::VERSION
    )]
    NotInstalled {
        /// Plural name of the resource.
        kind: &'static str,
    },
    /// There is no Migration with this name.
    #[error("Migration {name} not found; {}", listed(.existing))]
    NoSuchMigration {
        /// The given name.
        name: String,
        /// Name and phase of the existing Migrations.
        existing: Vec<(String, String)>,
    },
    /// There is no Migration.
    #[error("no Migration found in this cluster")]
    NoMigration,
    /// There are several Migrations, and no name is given.
    #[error("several Migrations found, name one: {}", listed(.existing))]
    NameNeeded {
        /// Name and phase of the existing Migrations.
        existing: Vec<(String, String)>,
    },
    /// A second Migration would be created while another one has not ended.
    #[error("Migration {name} cannot be created while another Migration has not ended; {}", listed(.existing))]
    OtherMigrationExists {
        /// The given name.
        name: String,
        /// Name and phase of the existing Migrations.
        existing: Vec<(String, String)>,
    },
    /// Immutable fields would be changed.
    #[error("Migration {name}: these fields are immutable: {}", .differences.join("; "))]
    Immutable {
        /// Name of the Migration.
        name: String,
        /// Field, current value and requested value.
        differences: Vec<String>,
        /// The progress of the Migration.
        life: MigrationProgress,
    },
    /// Flags of two kinds are given.
    #[error(
        "a Migration has one kind: found spec.{} from {}, and spec.{} from {}",
        .kinds[0].0, .kinds[0].1, .kinds[1].0, .kinds[1].1
    )]
    TwoKinds {
        /// Each kind with its flags.
        kinds: [(Kind, String); 2],
    },
    /// The requested kind differs from the existing one.
    #[error("{object}: found spec.{found}, requested spec.{asked} by {by}")]
    OtherKind {
        /// The Migration or the file.
        object: String,
        /// Its kind.
        found: Kind,
        /// The requested kind.
        asked: Kind,
        /// The source of the request: flags or a file.
        by: String,
        /// What the user does.
        hint: String,
    },
    /// The file cannot be used.
    #[error("file {file}: {why}")]
    File {
        /// Its name.
        file: String,
        /// The value found and the value needed.
        why: String,
    },
    /// No coordinator is active.
    #[error("no active coordinator, the leader Lease is not renewed: {found}")]
    NoLeader {
        /// The state of the Lease.
        found: String,
        /// Namespace of the Lease.
        namespace: String,
    },
    /// The coordinator did not reach the state in time.
    #[error("Migration {name} is not {wanted} after {}; last seen: {seen}", crate::age::seconds(*.waited))]
    Deadline {
        /// Name of the Migration.
        name: String,
        /// The awaited state.
        wanted: &'static str,
        /// Duration of the wait.
        waited: std::time::Duration,
        /// The last state.
        seen: String,
        /// Missing programs, with the command that helps.
        missing: Vec<String>,
    },
    /// The plan in the objects does not have the hash of the status.
    #[error("Migration {name}: the plan in the NodeMigrations has hash {found}, the status has {needed}")]
    TornPlan {
        /// Name of the Migration.
        name: String,
        /// Hash of what was read.
        found: String,
        /// Hash in the status.
        needed: String,
    },
    /// The plan has changed since its review.
    #[error(
        "Migration {name}: the plan has hash {found}, --plan-hash is {reviewed}: the plan has changed since its review"
    )]
    PlanChanged {
        /// Name of the Migration.
        name: String,
        /// Hash of the current plan.
        found: String,
        /// Hash of the reviewed plan.
        reviewed: String,
    },
    /// A confirmation is needed, and there is no terminal.
    #[error("confirmation needed, but standard input is not a terminal: nothing was started")]
    ConfirmationNeeded,
    /// The user did not confirm.
    #[error("not confirmed: nothing was started")]
    NotConfirmed,
    /// The Migration has no such node.
    #[error("Migration {name} has no node {node}; its nodes are {}", existing.join(", "))]
    NoSuchNode {
        /// Name of the Migration.
        name: String,
        /// The given name.
        node: String,
        /// The nodes of the Migration.
        existing: Vec<String>,
    },
    /// The command is not possible in this state.
    #[error("Migration {name} {state}")]
    NotPossible {
        /// Name of the Migration.
        name: String,
        /// The state.
        state: String,
        /// What the user does.
        hint: String,
    },
    /// Another client has changed the object.
    #[error("Migration {name} was changed by another client at the same time")]
    Changed {
        /// Name of the Migration.
        name: String,
    },
    /// The object was deleted.
    #[error("Migration {name} was deleted")]
    Gone {
        /// Name of the Migration.
        name: String,
    },
    /// An error of one kind.
    #[error("{0}")]
    OfKind(Box<dyn KindError>),
    /// The answer could not be written.
    #[error("writing the answer: {0}")]
    Write(#[source] std::io::Error),
    /// The answer could not be encoded as JSON.
    #[error("writing the answer as JSON: {0}")]
    Json(#[source] serde_json::Error),
    /// The answer could not be encoded as YAML.
    #[error("writing the answer as YAML: {0}")]
    Yaml(#[source] serde_saphyr::SerializeError),
}

/// The progress of a Migration, as far as the hint depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationProgress {
    /// Nothing has been changed yet.
    Planned,
    /// The first change has been made.
    Begun,
    /// The Migration is completed or rolled back.
    Over,
}

/// An error of one kind.
pub trait KindError: std::error::Error + Send + Sync {
    /// What the user does about the error, if the error does not say it.
    fn hint(&self) -> Option<String> {
        None
    }

    /// The exit code of the process.
    fn outcome(&self) -> Outcome {
        Outcome::Failed
    }
}

impl<E: KindError + 'static> From<E> for CliError {
    fn from(error: E) -> Self {
        Self::OfKind(Box::new(error))
    }
}

impl CliError {
    /// A failed request.
    pub fn api(attempt: &'static str, object: impl Into<String>, source: kube::Error) -> Self {
        Self::Api {
            attempt,
            object: object.into(),
            source: Box::new(source),
        }
    }

    /// Whether there was no answer, so the result is unknown.
    pub fn is_unanswered(&self) -> bool {
        match self {
            Self::Api { source, .. } => is_unanswered(source),
            _ => false,
        }
    }

    /// Whether the API server forbids the request to this user.
    pub fn is_forbidden(&self) -> bool {
        match self {
            Self::Api { source, .. } => {
                matches!(source.as_ref(), kube::Error::Api(status) if status.is_forbidden())
            }
            _ => false,
        }
    }

    /// The exit code of the process.
    pub fn outcome(&self) -> Outcome {
        match self {
            // The check of the hash refuses, and nothing has changed.
            Self::PlanChanged { .. } => Outcome::Refused,
            Self::OfKind(error) => error.outcome(),
            _ => Outcome::Failed,
        }
    }
}

/// Whether there was no answer: the connection failed, broke, or timed out.
fn is_unanswered(error: &kube::Error) -> bool {
    match error {
        kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => true,
        // A server that starts or terminates answers with such a code.
        kube::Error::Api(status) => matches!(status.code, 429 | 500 | 502 | 503 | 504),
        _ => false,
    }
}

/// The message of the API server, without that of the client library.
pub fn words(error: &kube::Error) -> String {
    match error {
        // A reason is one word; the client library sets a sentence if the answer was plain text.
        kube::Error::Api(status) if status.reason.is_empty() || status.reason.contains(' ') => {
            format!("{} ({})", status.message.trim(), status.code)
        }
        kube::Error::Api(status) => format!("{} ({})", status.message.trim(), status.reason),
        other => chain(other),
    }
}

fn listed(existing: &[(String, String)]) -> String {
    if existing.is_empty() {
        return "there are no Migrations".to_owned();
    }
    let names: Vec<String> = existing
        .iter()
        .map(|(name, phase)| format!("{name} ({phase})"))
        .collect();
    format!("existing: {}", names.join(", "))
}

#[cfg(test)]
mod tests;
