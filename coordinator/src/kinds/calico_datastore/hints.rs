//! What a person does about what was refused at the stores: in the words of whoever watches a Migration, not of whoever runs
//! `kubectl replumb datastore`.

use calico_datastore::run::refusal::Refusal;
use datastore::error::StoreError;
use datastore::run::RunError;

/// What helps; `None` where the error says all there is.
pub fn of(error: &RunError) -> Option<String> {
    match error {
        RunError::Store(error) => of_store(error),
        RunError::Refused(refusal) => Some(of_refusal(refusal).to_owned()),
        RunError::NotConvertible(error) => Some(error.hint().to_owned()),
        RunError::NotTakenBack { error, .. } => of(error),
        RunError::Backup(_) | RunError::TookBack { .. } => None,
    }
}

/// The same of a store alone.
pub fn of_store(error: &StoreError) -> Option<String> {
    match error {
        StoreError::Unreachable { .. } => Some(
            "Does etcd answer where the coordinator runs, with the certificates of calico-node?".to_owned(),
        ),
        StoreError::Locked { .. } => Some("It is tried again by itself".to_owned()),
        StoreError::Changed { .. } | StoreError::LockLost { .. } => {
            Some("It goes on by itself where it stopped".to_owned())
        }
        StoreError::Access { .. }
        | StoreError::File { .. }
        | StoreError::Answer { .. }
        | StoreError::NoV2 { .. }
        | StoreError::NoV3 { .. } => error.hint(),
    }
}

fn of_refusal(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NoFlag => {
            "Is this the etcd that Calico v2 works with? If somebody took the key away, set it to true"
        }
        Refusal::PausedBySomebody { .. } => {
            "If no other upgrade is under way, `kubectl replumb datastore abort` sets it to true; this goes on then"
        }
        Refusal::NotEmpty { .. } => {
            "Look at them (`etcdctl get --prefix --keys-only /calico/`) and remove them: this goes on then"
        }
        Refusal::V3Open { .. } => {
            "Who opened it? `kubectl replumb datastore status` shows both stores; nobody but a person can tell which is right"
        }
        Refusal::V2Open => {
            "Who set it to true? `kubectl replumb rollback --all` takes everything back; then begin again"
        }
        Refusal::NothingConverted | Refusal::NotVerified { .. } | Refusal::BeingCompleted => {
            "Somebody else works on the stores: `kubectl replumb datastore status` shows how far it is"
        }
        Refusal::Completed => "`kubectl replumb datastore status` shows both stores",
        Refusal::LeavesCompleted => "Calico works with etcd v3: there is no way back from here",
        Refusal::Lost { .. } => {
            "Who took them away? `kubectl replumb rollback --all` takes everything back; then begin again"
        }
        Refusal::Changed => {
            "`kubectl replumb rollback --all`, and begin again; or, if what changed does not matter (`kubectl replumb datastore dry-run` shows it), \
             `kubectl replumb datastore complete --despite-changes`, and this goes on"
        }
        Refusal::Missing { .. } => {
            "calico-kube-controllers of v3 writes it: `kubectl -n kube-system logs deployment/calico-kube-controllers`"
        }
        Refusal::OtherCluster { .. } => "The endpoints of both stores have to be of one cluster",
    }
}
