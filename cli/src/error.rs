//! What can go wrong: what was attempted on which object, and what a person does about it.

use std::path::PathBuf;

use datastore::error::StoreError;
use datastore::run::RunError;
use runtime::error::chain;
use thiserror::Error;

use crate::exit::Outcome;
use crate::kinds::Kind;
use crate::kinds::flannel_to_calico::environment::EnvironmentError;

/// Why a command did not do what was asked for.
#[derive(Debug, Error)]
pub enum CliError {
    /// There is no way to an API server.
    #[error("finding the API server: {}", chain(&**.source))]
    Kubeconfig {
        /// The kubeconfig that was named, if one was.
        path: Option<PathBuf>,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A request failed.
    #[error("{attempt} {object}: {}", words(.source))]
    Api {
        /// What was attempted: `reading`, `patching`.
        attempt: &'static str,
        /// On which object.
        object: String,
        /// The answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server does not serve our resources.
    #[error(
        "the API server does not know {kind} ({}/{}): replumb is not installed in this cluster",
        api::names::GROUP,
        api::names::VERSION
    )]
    NotInstalled {
        /// Plural name of the resource.
        kind: &'static str,
    },
    /// No Migration of this name.
    #[error("there is no Migration {name}; {}", listed(.existing))]
    NoSuchMigration {
        /// The name that was given.
        name: String,
        /// Name and phase of those that exist.
        existing: Vec<(String, String)>,
    },
    /// No Migration at all.
    #[error("there is no Migration in this cluster")]
    NoMigration,
    /// Several Migrations and no name.
    #[error("which one? {}", listed(.existing))]
    WhichMigration {
        /// Name and phase of those that exist.
        existing: Vec<(String, String)>,
    },
    /// A second Migration would be made beside one that is not over.
    #[error("Migration {name} cannot be made beside another one that is not over; {}", listed(.existing))]
    Another {
        /// The name that was given.
        name: String,
        /// Name and phase of those that exist.
        existing: Vec<(String, String)>,
    },
    /// What is immutable would be changed.
    #[error("Migration {name}: these fields are immutable: {}", .differences.join("; "))]
    Immutable {
        /// Name of the Migration.
        name: String,
        /// Field, value there and value asked for.
        differences: Vec<String>,
        /// How far it is.
        life: Life,
    },
    /// Flags of two kinds.
    #[error(
        "one Migration is of one kind: asked for spec.{} by {}, and for spec.{} by {}",
        .said[0].0, .said[0].1, .said[1].0, .said[1].1
    )]
    TwoKinds {
        /// Each kind with its flags.
        said: [(Kind, String); 2],
    },
    /// Another kind is asked for than is there.
    #[error("{object}: found spec.{found}, asked for spec.{asked} by {by}")]
    OtherKind {
        /// The Migration or the file.
        object: String,
        /// Its kind.
        found: Kind,
        /// The other one.
        asked: Kind,
        /// Who asks for it: flags or a file.
        by: String,
        /// What a person does.
        hint: String,
    },
    /// A new Migration is to change the range, and nobody says from where or to where.
    #[error("a new Migration with spec.podCidr needs both ranges: found no {}", .missing.join(" and no "))]
    NoRange {
        /// The flags that are missing.
        missing: Vec<&'static str>,
    },
    /// A new Migration is to change the range of Services, and nobody says to which.
    #[error("a new Migration with spec.serviceCidr needs the new range: found no --service-cidr-to")]
    NoServiceRange,
    /// A new Migration is to convert Calico's datastore, and nobody says what comes after.
    #[error(
        "a new Migration with spec.calicoDatastore needs what Calico ships for v3: found no --calico-v3-manifest"
    )]
    NoCalicoManifest,
    /// Ranges, as they were given, are no migration.
    #[error("{}", .errors.join("\n       "))]
    Ranges {
        /// Every error.
        errors: Vec<String>,
        /// What a person does, where the errors do not say it.
        hint: Option<String>,
    },
    /// The file cannot be taken.
    #[error("file {file}: {why}")]
    File {
        /// Its name.
        file: String,
        /// What was found and what is needed.
        why: String,
    },
    /// The environment cannot be taken.
    #[error("{}", .errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n       "))]
    Environment {
        /// Every error.
        errors: Vec<EnvironmentError>,
    },
    /// Nobody makes the checks and the plan.
    #[error("no coordinator leads: {found}")]
    NoLeader {
        /// What the Lease says.
        found: String,
        /// Namespace of the Lease.
        namespace: String,
    },
    /// The coordinator did not get there in time.
    #[error("Migration {name} is not {wanted} after {}; last seen: {seen}", crate::age::seconds(*.waited))]
    Deadline {
        /// Name of the Migration.
        name: String,
        /// What was waited for.
        wanted: &'static str,
        /// How long.
        waited: std::time::Duration,
        /// The value that was seen last.
        seen: String,
        /// What is missing, with the command that mends it.
        missing: Vec<String>,
    },
    /// The plan that stands in the objects is not the one that the hash is of.
    #[error("Migration {name}: the plan in the NodeMigrations has hash {found}, its status says {needed}")]
    TornPlan {
        /// Name of the Migration.
        name: String,
        /// Hash of what was read.
        found: String,
        /// Hash in the status.
        needed: String,
    },
    /// The plan is another one than was reviewed.
    #[error(
        "Migration {name}: the plan has hash {found}, --plan-hash says {reviewed}: it changed since it was reviewed"
    )]
    PlanChanged {
        /// Name of the Migration.
        name: String,
        /// Hash of the plan now.
        found: String,
        /// Hash that was reviewed.
        reviewed: String,
    },
    /// Somebody has to say yes, and nobody can be asked.
    #[error("it asks before it starts, and the standard input is not a terminal: nothing was started")]
    NobodyToAsk,
    /// The answer was no.
    #[error("not confirmed: nothing was started")]
    NotConfirmed,
    /// A node that the Migration does not have.
    #[error("Migration {name} has no node {node}; it has {}", existing.join(", "))]
    NoSuchNode {
        /// Name of the Migration.
        name: String,
        /// What was typed.
        node: String,
        /// Its nodes.
        existing: Vec<String>,
    },
    /// The command makes no sense in this phase.
    #[error("Migration {name} {state}")]
    NotNow {
        /// Name of the Migration.
        name: String,
        /// Where it is.
        state: String,
        /// What a person does.
        hint: String,
    },
    /// Somebody else wrote the object while we did.
    #[error("Migration {name} was changed by somebody else while it was being looked at")]
    Changed {
        /// Name of the Migration.
        name: String,
    },
    /// The object went away.
    #[error("Migration {name} was deleted while it was being looked at")]
    Gone {
        /// Name of the Migration.
        name: String,
    },
    /// A pause that ends before anything is done.
    #[error(
        "--pause-limit has to be longer than --settle: it would be taken back before anything is written"
    )]
    PauseTooShort,
    /// The record of a conversion that is held.
    #[error(
        "the record of this conversion is not in etcd v3 any more: nobody knows whether Calico is paused"
    )]
    RecordGone,
    /// Calico's data, from one etcd to the other.
    #[error(transparent)]
    Datastore(#[from] RunError),
    /// The answer could not be written.
    #[error("writing the answer: {0}")]
    Write(#[source] std::io::Error),
    /// The answer could not be put into JSON.
    #[error("writing the answer as JSON: {0}")]
    Json(#[source] serde_json::Error),
    /// The answer could not be put into YAML.
    #[error("writing the answer as YAML: {0}")]
    Yaml(#[source] yaml_serde::Error),
}

/// How far a Migration is, as far as it matters for what may still be said of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Nothing has been changed yet.
    Planned,
    /// The first change has been made.
    Begun,
    /// It was completed or taken back.
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

    /// Whether nobody answered, so that nobody knows.
    pub fn is_unanswered(&self) -> bool {
        match self {
            Self::Api { source, .. } => is_unanswered(source),
            _ => false,
        }
    }

    /// Whether the API server does not let this user do it.
    pub fn is_forbidden(&self) -> bool {
        match self {
            Self::Api { source, .. } => {
                matches!(source.as_ref(), kube::Error::Api(status) if status.is_forbidden())
            }
            _ => false,
        }
    }

    /// What the process says with its exit code.
    pub fn outcome(&self) -> Outcome {
        match self {
            // The check of the hash refuses, and nothing has changed.
            Self::PlanChanged { .. } => Outcome::Refused,
            Self::Datastore(error) if error.is_refusal() => Outcome::Refused,
            _ => Outcome::Failed,
        }
    }

    /// What a person does about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Kubeconfig { path: Some(path), .. } => {
                Some(format!("is {} a kubeconfig, and is the context in it? `kubectl config get-contexts`", path.display()))
            }
            Self::Kubeconfig { path: None, .. } => {
                Some("name a kubeconfig with --kubeconfig or KUBECONFIG, and see `kubectl config get-contexts`".to_owned())
            }
            Self::Api { source, .. } => hint_of(source),
            Self::NotInstalled { .. } => Some(
                "is it the right cluster (`kubectl config current-context`)? Install replumb: \
                 `kubectl apply --server-side -k deploy/base`"
                    .to_owned(),
            ),
            Self::NoSuchMigration { existing, .. } if !existing.is_empty() => {
                Some("take one of these names, or none when there is one".to_owned())
            }
            Self::NoMigration | Self::NoSuchMigration { .. } => {
                Some("`kubectl replumb preflight` looks whether one may be done, `kubectl replumb apply` starts it".to_owned())
            }
            Self::WhichMigration { existing } => {
                existing.first().map(|(name, _)| format!("add the name, such as `kubectl replumb status {name}`"))
            }
            Self::Another { existing, .. } => existing.first().map(|(name, _)| {
                format!("leave the name away to work with {name}; or `kubectl delete migration {name}` if it has not begun")
            }),
            Self::Immutable { name, life, .. } => Some(match life {
                Life::Planned => format!(
                    "nothing has changed in the cluster yet: `kubectl delete migration {name}`, then run this command again"
                ),
                Life::Begun => "it has begun: leave these options away and go on with those that it has".to_owned(),
                Life::Over => format!("it is over: give the new one a name of its own, such as `kubectl replumb plan {name}-2`"),
            }),
            Self::Datastore(error) => error.hint(),
            Self::RecordGone => Some("`kubectl replumb datastore status` shows both flags; `abort` lets Calico work with etcd v2".to_owned()),
            Self::TwoKinds { .. } => Some("leave the options of one of them away".to_owned()),
            Self::Ranges { hint, .. } => hint.clone(),
            Self::NoRange { .. } => Some(
                "`kubectl get ippools.crd.projectcalico.org -o custom-columns=NAME:.metadata.name,RANGE:.spec.cidr` lists the ranges of \
                 the pools that are there"
                    .to_owned(),
            ),
            Self::NoServiceRange => Some(
                "`kubectl get servicecidrs.networking.k8s.io kubernetes` shows the range of now: choose one apart from it, from pods and nodes"
                    .to_owned(),
            ),
            Self::NoCalicoManifest => Some(
                "give the file that `kubectl apply` would be given: calico-etcd.yaml of the release, with the endpoints of your etcd; of kops the addon \
                 networking.projectcalico.org of its bucket"
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
                 `kubectl -n {namespace} logs deployment/{}`; if replumb lives in another namespace, name it with -n",
                api::names::COORDINATOR
            )),
            Self::Deadline { missing, .. } if missing.is_empty() => {
                Some("`kubectl replumb status` shows what it waits for; --timeout waits longer".to_owned())
            }
            Self::Deadline { missing, .. } => Some(missing.join("\nhint: ")),
            Self::TornPlan { .. } => Some("run the command again; if it stays so, look at the coordinator's log".to_owned()),
            Self::PlanChanged { .. } => Some("review it again: `kubectl replumb plan`".to_owned()),
            Self::NobodyToAsk => {
                Some("review it, then add --yes; with apply best --plan-hash as well".to_owned())
            }
            Self::OtherKind { hint, .. } | Self::NotNow { hint, .. } => Some(hint.clone()),
            Self::Changed { .. } => Some("run the command again".to_owned()),
        }
    }
}

/// Whether nobody answered: the connection failed, or broke, or took too long.
fn is_unanswered(error: &kube::Error) -> bool {
    match error {
        kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => true,
        // A server that starts or ends says so itself.
        kube::Error::Api(status) => matches!(status.code, 429 | 500 | 502 | 503 | 504),
        _ => false,
    }
}

/// What helps when the API server does not do what was asked for.
fn hint_of(error: &kube::Error) -> Option<String> {
    match error {
        kube::Error::Api(status) if status.is_forbidden() => Some(
            "the ClusterRole replumb-operator allows it; bind it: `kubectl create clusterrolebinding NAME \
             --clusterrole=replumb-operator --user=USER`"
                .to_owned(),
        ),
        kube::Error::Api(status) if status.code == 401 => {
            Some("the API server does not know who you are: log in again".to_owned())
        }
        kube::Error::Api(_) => None,
        kube::Error::SerdeError(_) => Some(
            "an object is of another version than this tool: `kubectl replumb version`, and install the same version \
             of both"
                .to_owned(),
        ),
        _ => Some("does the API server answer? `kubectl get --raw /readyz`".to_owned()),
    }
}

/// The API server's words, without our library's.
pub fn words(error: &kube::Error) -> String {
    match error {
        // A reason is one word; our library puts a sentence of its own there when the answer was a plain text.
        kube::Error::Api(status) if status.reason.is_empty() || status.reason.contains(' ') => {
            format!("{} ({})", status.message.trim(), status.code)
        }
        kube::Error::Api(status) => format!("{} ({})", status.message.trim(), status.reason),
        other => chain(other),
    }
}

fn listed(existing: &[(String, String)]) -> String {
    if existing.is_empty() {
        return "there are none at all".to_owned();
    }
    let names: Vec<String> = existing
        .iter()
        .map(|(name, phase)| format!("{name} ({phase})"))
        .collect();
    format!("there is {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn the_api_servers_words_are_kept_and_ours_left_away() {
        let status = Status::failure("migrations.replumb.dev \"a\" is forbidden", "Forbidden").with_code(403);
        let error = CliError::api("patching", "Migration a", kube::Error::Api(status.boxed()));
        assert_eq!(
            error.to_string(),
            "patching Migration a: migrations.replumb.dev \"a\" is forbidden (Forbidden)"
        );
        assert!(error.hint().unwrap().contains("replumb-operator"));
    }

    #[test]
    fn a_wrong_name_is_told_the_names_that_exist() {
        let existing = vec![("flannel-to-calico".to_owned(), "Rolling".to_owned())];
        let error = CliError::NoSuchMigration {
            name: "flanel".to_owned(),
            existing,
        };
        assert_eq!(
            error.to_string(),
            "there is no Migration flanel; there is flannel-to-calico (Rolling)"
        );
        let none = CliError::NoSuchMigration {
            name: "flanel".to_owned(),
            existing: Vec::new(),
        };
        assert!(none.to_string().contains("none at all"), "{none}");
    }
}
