//! The cause of a failed read or write, and what follows from it. The errors of the steps have one cause each.

use datastore::error::StoreError;

/// The cause of a failure.
#[derive(Clone, Copy, Debug)]
pub enum Cause<'error> {
    /// The object changed since the decision. The next pass decides again.
    Changed,
    /// The API server refused, or did not answer.
    Api(&'error kube::Error),
    /// etcd refused, or did not answer.
    Etcd(&'error StoreError),
}

/// A failed read or write. Its text is the attempt and the object.
pub trait Failure: std::error::Error + Sized + 'static {
    /// The cause.
    fn root_cause(&self) -> Cause<'_>;

    /// Whether the object changed since the decision.
    fn is_conflict(&self) -> bool {
        match self.root_cause() {
            Cause::Changed => true,
            Cause::Api(_) | Cause::Etcd(_) => false,
        }
    }

    /// The message of a final refusal by the API server; `None` if it could not answer, or the object changed.
    fn refusal(&self) -> Option<&str> {
        match self.root_cause() {
            Cause::Api(kube::Error::Api(status)) if [400, 403, 422].contains(&status.code) => {
                Some(&status.message)
            }
            Cause::Changed | Cause::Api(_) | Cause::Etcd(_) => None,
        }
    }

    /// The attempt, the object, and the cause, as a message with the API server's text.
    fn message(&self) -> String {
        match self.root_cause() {
            Cause::Api(kube::Error::Api(status)) => format!("{self}: {}", status.message),
            Cause::Changed | Cause::Api(_) | Cause::Etcd(_) => runtime::error::chain(self),
        }
    }

    /// Whether the failure concerns this object only: the API server refused it, or sent an unreadable answer, or a component
    /// behind this request did not answer in time. An unreachable API server concerns all objects.
    fn concerns_one_object(&self) -> bool {
        match self.root_cause() {
            Cause::Changed | Cause::Api(kube::Error::Api(_) | kube::Error::SerdeError(_)) => true,
            Cause::Api(source) => timed_out(source),
            Cause::Etcd(_) => false,
        }
    }

    /// Whether the object to be created exists already.
    fn already_exists(&self) -> bool {
        match self.root_cause() {
            Cause::Api(kube::Error::Api(status)) => status.reason == "AlreadyExists",
            Cause::Changed | Cause::Api(_) | Cause::Etcd(_) => false,
        }
    }

    /// Label for metrics.
    fn category(&self) -> &'static str {
        match self.root_cause() {
            Cause::Changed => "Conflict",
            Cause::Api(kube::Error::Api(_)) | Cause::Etcd(StoreError::Answer { .. }) => "Refused",
            Cause::Api(_) | Cause::Etcd(_) => "Unreachable",
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use kube::core::Status;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::calico::error::CalicoStoreError;
    use crate::pass_error::PassError;
    use crate::read_error::ReadError;
    use crate::write::WriteError;

    fn answer(code: u16, reason: &str) -> kube::Error {
        let status = Status::failure("said the server", reason).with_code(code);
        kube::Error::Api(Box::new(status))
    }

    fn read(source: kube::Error) -> ReadError {
        ReadError::of("reading", "Node a", source)
    }

    fn write(source: kube::Error) -> WriteError {
        WriteError::of("labelling", "Node a", source)
    }

    fn unreachable() -> kube::Error {
        kube::Error::Service("refused".into())
    }

    fn etcd(is_answer: bool) -> CalicoStoreError {
        let (store, attempt) = ("etcd v3", "reading".to_owned());
        CalicoStoreError::Etcd(if is_answer {
            let why = "permission denied".to_owned();
            StoreError::Answer { store, attempt, why }
        } else {
            let attempts = Vec::new();
            StoreError::Unreachable {
                store,
                attempt,
                attempts,
            }
        })
    }

    #[rstest]
    #[case::write_of_a_changed_object(write(answer(409, "Conflict")).into(), "Conflict", true)]
    #[case::read_with_the_same_answer(read(answer(409, "Conflict")).into(), "Refused", true)]
    #[case::read_in_a_write(WriteError::from(read(answer(409, "Conflict"))).into(), "Refused", true)]
    #[case::refused_write(write(answer(403, "Forbidden")).into(), "Refused", true)]
    #[case::unreachable(read(unreachable()).into(), "Unreachable", false)]
    #[case::conflict_in_the_store(
        CalicoStoreError::from(write(answer(409, "Conflict"))).into(), "Conflict", true
    )]
    #[case::answer_of_etcd(etcd(true).into(), "Refused", false)]
    #[case::unreachable_etcd(etcd(false).into(), "Unreachable", false)]
    fn errors_of_every_step_have_one_category(
        #[case] error: PassError,
        #[case] category: &str,
        #[case] concerns_one_object: bool,
    ) {
        assert_eq!(error.category(), category);
        assert_eq!(error.is_conflict(), category == "Conflict");
        assert_eq!(error.concerns_one_object(), concerns_one_object);
    }

    #[test]
    fn a_refusal_is_named_with_attempt_object_and_the_answer() {
        let error = PassError::from(CalicoStoreError::from(WriteError::from(read(answer(
            403,
            "Forbidden",
        )))));
        assert_eq!(error.to_string(), "reading Node a");
        assert_eq!(error.message(), "reading Node a: said the server");
        assert_eq!(error.refusal(), Some("said the server"));
        assert!(!error.already_exists());
        let error = write(answer(409, "Conflict"));
        let changed = "labelling Node a: the object changed since it was read";
        assert_eq!((error.message().as_str(), error.refusal()), (changed, None));
    }

    /// The API server has answered: other objects may be readable, and the status names this one.
    #[test]
    fn an_unreadable_answer_concerns_its_object_only() {
        let source = serde_json::from_value::<Node>(json!({ "metadata": 7 })).unwrap_err();
        assert!(read(kube::Error::SerdeError(source)).concerns_one_object());
    }
}
