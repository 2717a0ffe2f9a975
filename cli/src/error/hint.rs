//! What the user does about an error.

use std::path::Path;

use super::{CliError, MigrationProgress};

impl CliError {
    /// What the user does about the error.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Kubeconfig { path, .. } => Some(of_kubeconfig(path.as_deref())),
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
            Self::Immutable { name, life, .. } => Some(of_immutable(name, *life)),
            Self::OfKind(error) => error.hint(),
            Self::TwoKinds { .. } => Some("omit the options of one kind".to_owned()),
            Self::BundleAfterStart { name } => Some(format!(
                "`kubectl replumb status {name} -o json` has the migration in progress"
            )),
            Self::File { .. }
            | Self::Offline { .. }
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

/// The hint for an unusable kubeconfig.
fn of_kubeconfig(path: Option<&Path>) -> String {
    match path {
        Some(path) => format!(
            "check that {} is a kubeconfig and has the context: `kubectl config get-contexts`",
            path.display()
        ),
        None => "tried $KUBECONFIG, ~/.kube/config and in-cluster: set --kubeconfig or KUBECONFIG, and check the context \
                 with `kubectl config get-contexts`"
            .to_owned(),
    }
}

/// The hint for a change of immutable fields.
fn of_immutable(name: &str, life: MigrationProgress) -> String {
    match life {
        MigrationProgress::Planned => {
            format!(
                "nothing has changed in the cluster yet: run `kubectl delete migration {name}`, then this command again"
            )
        }
        MigrationProgress::Begun => "the migration has started: omit these options".to_owned(),
        MigrationProgress::Over => {
            format!("the migration has ended: use another name, such as `kubectl replumb plan {name}-2`")
        }
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
