//! Lock of both stores for one process at a time: a key with a lease, which expires after the death of its process.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::error::StoreError;
use crate::etcd3::{Change, Condition, Etcd3};

/// The key. Its value names the holder.
pub const KEY: &str = "/replumb/calico-datastore/lock";
/// Time after which the lock of a dead holder expires, in seconds.
const TTL: u32 = 15;
/// Time between two renewals.
const RENEWAL: Duration = Duration::from_secs(4);

/// The lock, held until this value is dropped or its process ends.
#[derive(Debug)]
pub struct Lock {
    store: Arc<Etcd3>,
    lease: i64,
    created: i64,
    renewing: JoinHandle<()>,
}

/// The holder, as stored in the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    /// Name for messages.
    who: String,
    /// Lease of the key, which is unique.
    lease: i64,
    /// The process: another process on the same machine can see that it is dead.
    process: Process,
}

impl Lock {
    /// Takes the lock. An error names the holder.
    ///
    /// # Errors
    ///
    /// A living process holds the lock, or etcd does not answer or refuses a request.
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
            && has_dead_holder(&found.value)
        {
            let unchanged = Condition::Created {
                key: KEY.to_owned(),
                at: found.revision,
            };
            let delete = Change::Delete { key: KEY.to_owned() };
            store
                .commit("taking the lock of a dead process", &[unchanged], &[delete])
                .await?;
            put(store, &value, lease).await?;
            entry = store.get(KEY).await?;
        }
        // The value decides: no other process has this lease. The result of the write above does not matter.
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
                // Otherwise the lease expires.
                let _ = store.revoke(lease).await;
                let gone = || "a process that has just ended".to_owned();
                Err(StoreError::Locked {
                    holder: other.map_or_else(gone, |entry| holder_name(&entry.value)),
                })
            }
        }
    }

    /// Name of the holder; `None` when the lock is free.
    ///
    /// # Errors
    ///
    /// etcd does not answer, refuses the request, or sends an answer that cannot be read.
    pub async fn holder(store: &Etcd3) -> Result<Option<String>, StoreError> {
        let entry = store.get(KEY).await?;
        Ok(entry.map(|entry| holder_name(&entry.value)))
    }

    /// Condition for each write of the holder: a process that was stopped for too long writes nothing more.
    pub fn condition(&self) -> Condition {
        Condition::Created {
            key: KEY.to_owned(),
            at: self.created,
        }
    }

    /// Releases the lock.
    ///
    /// # Errors
    ///
    /// etcd does not answer, refuses the request, or sends an answer that cannot be read.
    pub async fn release(self) -> Result<(), StoreError> {
        self.renewing.abort();
        self.store.revoke(self.lease).await
        // The drop here revokes the lease again, which has no effect: each lease is unique.
    }
}

/// Revokes the lease where possible when the process ends early: otherwise the next process waits until the lease expires.
impl Drop for Lock {
    fn drop(&mut self) {
        self.renewing.abort();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (store, lease) = (Arc::clone(&self.store), self.lease);
            runtime.spawn(async move {
                // Otherwise the lease expires.
                let _ = store.revoke(lease).await;
            });
        }
    }
}

/// Renews the lease until the task is aborted. A failed renewal is repeated; when the lease expires, the next write fails.
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

fn holder_name(value: &[u8]) -> String {
    match serde_json::from_slice::<Holder>(value) {
        Ok(holder) => holder.who,
        Err(_) => String::from_utf8_lossy(value).into_owned(),
    }
}

/// Whether the holder was a process of this machine and has ended. The state of processes elsewhere is unknown: their lease
/// expires.
fn has_dead_holder(value: &[u8]) -> bool {
    let Ok(holder) = serde_json::from_slice::<Holder>(value) else {
        return false;
    };
    let own = Process::own();
    let found = &holder.process;
    let is_here = !found.boot.is_empty() && found.boot == own.boot && found.namespace == own.namespace;
    // Where processes of other users are hidden, an invisible process may be alive.
    let sees_all = !Process::of(1).started.is_empty();
    is_here && sees_all && Process::of(found.pid).started != found.started
}

/// Unique identity of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Process {
    /// Boot ID of the kernel, unique for each machine and boot.
    boot: String,
    /// PID namespace of the process.
    namespace: String,
    /// Process ID.
    pid: u32,
    /// Start time in ticks since boot, because process IDs are used again. Empty when the process does not exist.
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
        // The second field is a name in brackets that can contain spaces; the 22nd field is the start time.
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let mut fields = after_name.split(' ');
        // A zombie counts as ended.
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
    fn a_holder_is_dead_only_when_its_process_on_this_machine_has_ended() {
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
        assert!(!has_dead_holder(&held(own.clone())), "this process is alive");
        let earlier = Process {
            started: "1".to_owned(),
            ..own.clone()
        };
        assert!(has_dead_holder(&held(earlier)), "another process had this ID");
        let gone = Process {
            pid: u32::MAX,
            ..own.clone()
        };
        assert!(has_dead_holder(&held(gone)));
        let elsewhere = Process {
            boot: "other".to_owned(),
            started: "1".to_owned(),
            ..own.clone()
        };
        assert!(!has_dead_holder(&held(elsewhere)));
        let in_a_pod = Process {
            namespace: "pid:[1]".to_owned(),
            started: "1".to_owned(),
            ..own
        };
        assert!(!has_dead_holder(&held(in_a_pod)));
        assert!(!has_dead_holder(b"not JSON"));
    }
}
