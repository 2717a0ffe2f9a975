//! One at a time works on the stores: a key with a lease, which goes with the process that holds it.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::error::StoreError;
use crate::etcd3::{Change, Condition, Etcd3};

/// The key. Its value says who.
pub const KEY: &str = "/replumb/calico-datastore/lock";
/// How long it stays when its holder has died, in seconds.
const TTL: u32 = 15;
/// Between two renewals.
const RENEWAL: Duration = Duration::from_secs(4);

/// Held as long as this lives, and its process.
#[derive(Debug)]
pub struct Lock {
    store: Arc<Etcd3>,
    lease: i64,
    created: i64,
    renewing: JoinHandle<()>,
}

/// Who has it, as it stands in the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    /// For people.
    who: String,
    /// With which it goes: no two are the same.
    lease: i64,
    /// For whoever comes to the same machine after it has died.
    process: Process,
}

impl Lock {
    /// Takes it, or says who has it.
    pub async fn take(store: &Arc<Etcd3>, who: &str) -> Result<Self, StoreError> {
        let lease = store.lease(TTL).await?;
        let holder = Holder {
            who: who.to_owned(),
            lease,
            process: Process::own(),
        };
        let value = serde_json::json!(holder).to_string().into_bytes();
        put(store, &value, lease).await?;
        let mut entry = store.get(KEY).await?;
        if let Some(found) = &entry
            && is_of_the_dead(&found.value)
        {
            let unchanged = Condition::Created {
                key: KEY.to_owned(),
                at: found.revision,
            };
            let delete = Change::Delete { key: KEY.to_owned() };
            store
                .commit(
                    "taking the lock of a process that has died",
                    &[unchanged],
                    &[delete],
                )
                .await?;
            put(store, &value, lease).await?;
            entry = store.get(KEY).await?;
        }
        // It is ours by what it says: nobody else has this lease. Whether it was ours a moment ago means nothing.
        match entry {
            Some(entry) if entry.value == value => {
                let renewing = tokio::spawn(renew(Arc::clone(store), lease));
                Ok(Self {
                    store: Arc::clone(store),
                    lease,
                    created: entry.revision,
                    renewing,
                })
            }
            other => {
                // It goes by itself otherwise.
                let _ = store.revoke(lease).await;
                let gone = || "who it was has ended in this moment".to_owned();
                Err(StoreError::Locked {
                    holder: other.map_or_else(gone, |entry| who_has(&entry.value)),
                })
            }
        }
    }

    /// Who has it, if anybody has.
    pub async fn holder(store: &Etcd3) -> Result<Option<String>, StoreError> {
        let entry = store.get(KEY).await?;
        Ok(entry.map(|entry| who_has(&entry.value)))
    }

    /// What has to be so for a write of its holder: a process that stood still for too long writes nothing more.
    pub fn condition(&self) -> Condition {
        Condition::Created {
            key: KEY.to_owned(),
            at: self.created,
        }
    }

    /// Gives it back.
    pub async fn release(self) -> Result<(), StoreError> {
        self.renewing.abort();
        self.store.revoke(self.lease).await
        // Dropped here, it is given back once more, which does nothing: no two leases are the same.
    }
}

/// Who is told to end in the middle of it gives it back as well as he can: otherwise the next one waits until the lease goes.
impl Drop for Lock {
    fn drop(&mut self) {
        self.renewing.abort();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (store, lease) = (Arc::clone(&self.store), self.lease);
            runtime.spawn(async move {
                // It goes by itself otherwise.
                let _ = store.revoke(lease).await;
            });
        }
    }
}

/// Until it is told to end. One that fails is made again; when the lease is gone by then, the next write says so.
async fn renew(store: Arc<Etcd3>, lease: i64) {
    let mut beat = tokio::time::interval(RENEWAL);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        beat.tick().await;
        if let Ok(false) = store.renew(lease).await {
            return;
        }
    }
}

async fn put(store: &Etcd3, value: &[u8], lease: i64) -> Result<(), StoreError> {
    let free = Condition::Created {
        key: KEY.to_owned(),
        at: 0,
    };
    let put = Change::Put {
        key: KEY.to_owned(),
        value: value.to_vec(),
        lease: Some(lease),
    };
    store.commit("taking the lock", &[free], &[put]).await.map(|_| ())
}

fn who_has(value: &[u8]) -> String {
    match serde_json::from_slice::<Holder>(value) {
        Ok(holder) => holder.who,
        Err(_) => String::from_utf8_lossy(value).into_owned(),
    }
}

/// Whether its holder was a process of this machine, and is none any more. Of any other nobody knows: its lease tells.
fn is_of_the_dead(value: &[u8]) -> bool {
    let Ok(holder) = serde_json::from_slice::<Holder>(value) else {
        return false;
    };
    let own = Process::own();
    let found = &holder.process;
    let is_here = !found.boot.is_empty() && found.boot == own.boot && found.namespace == own.namespace;
    // Where others' processes are hidden, one that is not seen may live.
    let sees_all = !Process::of(1).started.is_empty();
    is_here && sees_all && Process::of(found.pid).started != found.started
}

/// A process, told apart from every other one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Process {
    /// Of the kernel's start: no two machines have the same.
    boot: String,
    /// In which its number means something.
    namespace: String,
    /// Its number.
    pid: u32,
    /// When it was started, in ticks since the kernel was: numbers are given out again. Empty: there is no such process.
    started: String,
}

impl Process {
    fn own() -> Self {
        Self::of(std::process::id())
    }

    fn of(pid: u32) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let namespace = std::fs::read_link("/proc/self/ns/pid");
        let stat = read(&format!("/proc/{pid}/stat"));
        // The second field is a name in brackets, with blanks of its own; the 22nd is the time.
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let mut fields = after_name.split(' ');
        // A process that has ended and that nobody has asked for is none.
        let is_alive = fields
            .next()
            .is_some_and(|state| !matches!(state, "" | "Z" | "X"));
        Self {
            boot: read("/proc/sys/kernel/random/boot_id").trim().to_owned(),
            namespace: namespace
                .map(|path| path.display().to_string())
                .unwrap_or_default(),
            pid,
            started: fields.nth(18).filter(|_| is_alive).unwrap_or_default().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_of_the_dead_only_where_one_can_know() {
        let held = |process: Process| {
            let holder = Holder {
                who: "a".to_owned(),
                lease: 1,
                process,
            };
            serde_json::json!(holder).to_string().into_bytes()
        };
        let own = Process::own();
        assert!(own.started.parse::<u64>().is_ok(), "{own:?}");
        assert!(!is_of_the_dead(&held(own.clone())), "this process lives");
        let earlier = Process {
            started: "1".to_owned(),
            ..own.clone()
        };
        assert!(is_of_the_dead(&held(earlier)), "another process had this number");
        let gone = Process {
            pid: u32::MAX,
            ..own.clone()
        };
        assert!(is_of_the_dead(&held(gone)));
        let elsewhere = Process {
            boot: "other".to_owned(),
            started: "1".to_owned(),
            ..own.clone()
        };
        assert!(!is_of_the_dead(&held(elsewhere)));
        let in_a_pod = Process {
            namespace: "pid:[1]".to_owned(),
            started: "1".to_owned(),
            ..own
        };
        assert!(!is_of_the_dead(&held(in_a_pod)));
        assert!(!is_of_the_dead(b"somebody"));
    }
}
