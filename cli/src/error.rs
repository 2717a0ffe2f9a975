//! Errors of the commands: the attempt, the object, and a hint for the user.

use std::path::PathBuf;

use datastore::error::StoreError;
use datastore::run::RunError;
use runtime::error::chain;
use thiserror::Error;

use crate::exit::Outcome;
use crate::kinds::Kind;
use crate::kinds::flannel_to_calico::environment::EnvironmentError;

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
    /// A new Migration with podCidr lacks a range.
    #[error("a new Migration with spec.podCidr needs both ranges: found no {}", .missing.join(" and no "))]
    NoRange {
        /// The missing flags.
        missing: Vec<&'static str>,
    },
    /// A new Migration with serviceCidr lacks the new range.
    #[error("a new Migration with spec.serviceCidr needs the new range: found no --service-cidr-to")]
    NoServiceRange,
    /// A new Migration with calicoDatastore lacks the manifest.
    #[error(
        "a new Migration with spec.calicoDatastore needs the manifest of Calico v3: found no --calico-v3-manifest"
    )]
    NoCalicoManifest,
    /// The given ranges allow no migration.
    #[error("{}", .errors.join("\n       "))]
    Ranges {
        /// Every error.
        errors: Vec<String>,
        /// What the user does, if the errors do not say it.
        hint: Option<String>,
    },
    /// The file cannot be used.
    #[error("file {file}: {why}")]
    File {
        /// Its name.
        file: String,
        /// The value found and the value needed.
        why: String,
    },
    /// The environment cannot be used.
    #[error("{}", .errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n       "))]
    Environment {
        /// Every error.
        errors: Vec<EnvironmentError>,
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
    /// The pause limit is too short.
    #[error(
        "--pause-limit must be longer than --settle: the conversion would be rolled back before any data is written"
    )]
    PauseTooShort,
    /// The record of a running conversion is missing.
    #[error(
        "the record of this conversion is missing from etcd v3, so it is unknown whether Calico is paused"
    )]
    RecordGone,
    /// The conversion of Calico's data failed.
    #[error(transparent)]
    Datastore(#[from] RunError),
    /// The answer could not be written.
    #[error("writing the answer: {0}")]
    Write(#[source] std::io::Error),
    /// The answer could not be encoded as JSON.
    #[error("writing the answer as JSON: {0}")]
    Json(#[source] serde_json::Error),
    /// The answer could not be encoded as YAML.
    #[error("writing the answer as YAML: {0}")]
    Yaml(#[source] yaml_serde::Error),
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

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        Self::Datastore(error.into())
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
            Self::Datastore(error) if error.is_refusal() => Outcome::Refused,
            _ => Outcome::Failed,
        }
    }

    /// What the user does about the error.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Kubeconfig { path: Some(path), .. } => {
                Some(format!(
                    "check that {} is a kubeconfig and has the context: `kubectl config get-contexts`",
                    path.display()
                ))
            }
            Self::Kubeconfig { path: None, .. } => {
                Some(
                    "tried $KUBECONFIG, ~/.kube/config and in-cluster: set --kubeconfig or KUBECONFIG, and check the context \
                     with `kubectl config get-contexts`"
                        .to_owned(),
                )
            }
            Self::Api { source, .. } => hint_of(source),
            Self::NotInstalled { .. } => Some(
                "check the cluster with `kubectl config current-context`, or install replumb: \
                 `kubectl apply --server-side -k deploy/base`"
                    .to_owned(),
            ),
            Self::NoSuchMigration { existing, .. } if !existing.is_empty() => {
                Some("use one of these names, or omit the name if there is only one".to_owned())
            }
            Self::NoMigration | Self::NoSuchMigration { .. } => {
                Some(
                    "`kubectl replumb preflight` checks prerequisites, `kubectl replumb apply` starts a migration".to_owned(),
                )
            }
            Self::NameNeeded { existing } => {
                existing.first().map(|(name, _)| format!("add the name, such as `kubectl replumb status {name}`"))
            }
            Self::OtherMigrationExists { existing, .. } => existing.first().map(|(name, _)| {
                format!("omit the name to use {name}, or run `kubectl delete migration {name}` if it has not started")
            }),
            Self::Immutable { name, life, .. } => Some(match life {
                MigrationProgress::Planned => format!(
                    "nothing has changed in the cluster yet: run `kubectl delete migration {name}`, then this command again"
                ),
                MigrationProgress::Begun => "the migration has started: omit these options".to_owned(),
                MigrationProgress::Over => {
                    format!("the migration has ended: use another name, such as `kubectl replumb plan {name}-2`")
                }
            }),
            Self::Datastore(error) => error.hint(),
            Self::RecordGone => Some(
                "`kubectl replumb datastore status` shows both flags; `abort` returns Calico to etcd v2".to_owned(),
            ),
            Self::TwoKinds { .. } => Some("omit the options of one kind".to_owned()),
            Self::Ranges { hint, .. } => hint.clone(),
            Self::NoRange { .. } => Some(
                "`kubectl get ippools.crd.projectcalico.org -o custom-columns=NAME:.metadata.name,RANGE:.spec.cidr` lists the \
                 existing IPPools"
                    .to_owned(),
            ),
            Self::NoServiceRange => Some(
                "`kubectl get servicecidrs.networking.k8s.io kubernetes` shows the current range: the new range must not overlap \
                 with it, with pods or with nodes"
                    .to_owned(),
            ),
            Self::NoCalicoManifest => Some(
                "use the file that you would give to `kubectl apply`: calico-etcd.yaml of the release, with the endpoints of \
                 your etcd; with kops, the addon networking.projectcalico.org in the state store"
                    .to_owned(),
            ),
            Self::File { .. }
            | Self::PauseTooShort
            | Self::Environment { .. }
            | Self::NotConfirmed
            | Self::NoSuchNode { .. }
            | Self::Gone { .. }
            | Self::Write(_)
            | Self::Json(_)
            | Self::Yaml(_) => None,
            Self::NoLeader { namespace, .. } => Some(format!(
                "`kubectl -n {namespace} get pods -l app.kubernetes.io/component=coordinator -o wide` and \
                 `kubectl -n {namespace} logs deployment/{}`; if replumb is in another namespace, set -n",
                api::names::COORDINATOR
            )),
            Self::Deadline { missing, .. } if missing.is_empty() => {
                Some("`kubectl replumb status` shows the reason of the wait; --timeout sets a longer wait".to_owned())
            }
            Self::Deadline { missing, .. } => Some(missing.join("\nhint: ")),
            Self::TornPlan { .. } => {
                Some("run the command again; if the error persists, check the coordinator's log".to_owned())
            }
            Self::PlanChanged { .. } => Some("review the plan again: `kubectl replumb plan`".to_owned()),
            Self::ConfirmationNeeded => {
                Some("review the plan, then add --yes; for apply, also set --plan-hash".to_owned())
            }
            Self::OtherKind { hint, .. } | Self::NotPossible { hint, .. } => Some(hint.clone()),
            Self::Changed { .. } => Some("run the command again".to_owned()),
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

/// The hint for a failed request.
fn hint_of(error: &kube::Error) -> Option<String> {
    match error {
        kube::Error::Api(status) if status.is_forbidden() => Some(
            "the ClusterRole replumb-operator allows the request: `kubectl create clusterrolebinding NAME \
             --clusterrole=replumb-operator --user=USER`"
                .to_owned(),
        ),
        kube::Error::Api(status) if status.code == 401 => {
            Some("the API server does not accept your credentials: log in again".to_owned())
        }
        kube::Error::Api(_) => None,
        kube::Error::SerdeError(_) => Some(
            "an object has another version than this tool: check `kubectl replumb version`, and install the same version \
             of both"
                .to_owned(),
        ),
        _ => Some("check whether the API server answers: `kubectl get --raw /readyz`".to_owned()),
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
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn an_error_has_the_message_of_the_api_server_only() {
        let status = Status::failure("migrations.replumb.dev \"a\" is forbidden", "Forbidden").with_code(403);
        let error = CliError::api("patching", "Migration a", kube::Error::Api(status.boxed()));
        assert_eq!(
            error.to_string(),
            "patching Migration a: migrations.replumb.dev \"a\" is forbidden (Forbidden)"
        );
        assert!(error.hint().unwrap().contains("replumb-operator"));
    }

    #[test]
    fn an_unknown_name_is_an_error_with_the_existing_names() {
        let existing = vec![("flannel-to-calico".to_owned(), "Rolling".to_owned())];
        let error = CliError::NoSuchMigration {
            name: "flanel".to_owned(),
            existing,
        };
        assert_eq!(
            error.to_string(),
            "Migration flanel not found; existing: flannel-to-calico (Rolling)"
        );
        let none = CliError::NoSuchMigration {
            name: "flanel".to_owned(),
            existing: Vec::new(),
        };
        assert!(none.to_string().contains("there are no Migrations"), "{none}");
    }
}
