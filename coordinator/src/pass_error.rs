//! The error of a read or write: a conflict, an error of the API, or an error of etcd.

use datastore::error::StoreError;
use thiserror::Error;

/// A read or write of an object that failed.
#[derive(Debug, Error)]
pub enum PassError {
    /// The object changed since the decision. The next pass decides again.
    #[error("{attempt} {object}: the object changed since it was read")]
    Conflict {
        /// The attempt.
        attempt: String,
        /// The object.
        object: String,
    },
    /// The API server refused, or did not answer.
    #[error("{attempt} {object}")]
    Api {
        /// The attempt.
        attempt: String,
        /// The object.
        object: String,
        /// The error of the API client.
        #[source]
        source: kube::Error,
    },
    /// etcd refused, or did not answer.
    #[error(transparent)]
    Etcd(#[from] StoreError),
}

impl PassError {
    /// The error of an attempt on an object; a conflict becomes its own variant.
    pub fn of(attempt: impl Into<String>, object: impl Into<String>, source: kube::Error) -> Self {
        match source {
            kube::Error::Api(status) if status.is_conflict() => Self::Conflict {
                attempt: attempt.into(),
                object: object.into(),
            },
            source => Self::Api {
                attempt: attempt.into(),
                object: object.into(),
                source,
            },
        }
    }

    /// The message of a final refusal by the API server; `None` if it could not answer, or the object changed.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Api {
                source: kube::Error::Api(status),
                ..
            } if [400, 403, 422].contains(&status.code) => Some(&status.message),
            Self::Api { .. } | Self::Conflict { .. } | Self::Etcd(_) => None,
        }
    }

    /// The attempt, the object, and the cause, as a message with the API server's text.
    pub fn message(&self) -> String {
        match self {
            Self::Api {
                source: kube::Error::Api(status),
                ..
            } => format!("{self}: {}", status.message),
            Self::Api { .. } | Self::Conflict { .. } | Self::Etcd(_) => runtime::error::chain(self),
        }
    }

    /// Whether the object changed since the decision.
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Conflict { .. } => true,
            Self::Api { .. } | Self::Etcd(_) => false,
        }
    }

    /// Whether the error concerns this object only: the API server refused it, or sent an unreadable answer, or a component
    /// behind this request did not answer in time. An unreachable API server concerns all objects.
    pub fn concerns_one_object(&self) -> bool {
        match self {
            Self::Conflict { .. }
            | Self::Api {
                source: kube::Error::Api(_) | kube::Error::SerdeError(_),
                ..
            } => true,
            Self::Api { source, .. } => timed_out(source),
            Self::Etcd(_) => false,
        }
    }

    /// Whether the object to be created exists already.
    pub fn already_exists(&self) -> bool {
        match self {
            Self::Api {
                source: kube::Error::Api(status),
                ..
            } => status.reason == "AlreadyExists",
            Self::Api { .. } | Self::Conflict { .. } | Self::Etcd(_) => false,
        }
    }

    /// Label for metrics.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Conflict { .. } => "Conflict",
            Self::Api {
                source: kube::Error::Api(_),
                ..
            }
            | Self::Etcd(StoreError::Answer { .. }) => "Refused",
            Self::Api { .. } | Self::Etcd(_) => "Unreachable",
        }
    }
}

/// Whether the request timed out. An admission webhook has up to 30 s, a request of the coordinator less.
fn timed_out(error: &kube::Error) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        let io = error.downcast_ref::<std::io::Error>();
        if io.is_some_and(|error| error.kind() == std::io::ErrorKind::TimedOut) {
            return true;
        }
        source = error.source();
    }
    false
}
