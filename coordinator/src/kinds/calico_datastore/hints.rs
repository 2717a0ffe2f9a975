//! Hints for errors of the stores, for a user of a Migration (not for a user of `kubectl replumb datastore`).

use calico_datastore::run::refusal::Refusal;
use datastore::run::RunError;

use crate::etcd_access::hint_of_store;

/// The hint; `None` when the error needs none.
pub fn hint(error: &RunError) -> Option<String> {
    match error {
        RunError::Store(error) => hint_of_store(error),
        RunError::Refused(refusal) => Some(of_refusal(refusal).to_owned()),
        RunError::NotConvertible(error) => Some(error.hint().to_owned()),
        RunError::AbortFailed { error, .. } => hint(error),
        RunError::Backup(_) | RunError::Aborted { .. } => None,
    }
}

fn of_refusal(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NoFlag => "Check that Calico v2 uses this etcd. If the key was deleted, set it to true",
        Refusal::PausedByOthers { .. } => {
            "If no other upgrade runs, `kubectl replumb datastore abort` sets it to true, and the migration continues"
        }
        Refusal::NotEmpty { .. } => {
            "Check them (`etcdctl get --prefix --keys-only /calico/`) and delete them: the migration continues then"
        }
        Refusal::V3Open { .. } => {
            "Find out what opened it. `kubectl replumb datastore status` shows both stores; replumb cannot decide which is right"
        }
        Refusal::V2Open => {
            "Find out what set it to true. Run `kubectl replumb rollback --all`, then start again"
        }
        Refusal::NothingConverted | Refusal::NotVerified { .. } | Refusal::BeingCompleted => {
            "Another program changes the stores: `kubectl replumb datastore status` shows its progress"
        }
        Refusal::Completed => "`kubectl replumb datastore status` shows both stores",
        Refusal::AlreadyCompleted => "Calico works with etcd v3: a rollback is not possible any more",
        Refusal::KeysMissing { .. } => {
            "Find out what deleted them. Run `kubectl replumb rollback --all`, then start again"
        }
        Refusal::Changed => {
            "Run `kubectl replumb rollback --all` and start again. If the changes do not matter (`kubectl replumb datastore \
             dry-run` shows them), run `kubectl replumb datastore complete --despite-changes`, and the migration continues"
        }
        Refusal::Missing { .. } => {
            "calico-kube-controllers of v3 writes it. Check `kubectl -n kube-system logs deployment/calico-kube-controllers`"
        }
        Refusal::OtherCluster { .. } => "Correct the endpoints: both stores must belong to one cluster",
    }
}
