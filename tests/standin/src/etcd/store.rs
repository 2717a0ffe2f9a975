//! Calico's keys in etcd, with either API: reads one key or those below a directory, writes and deletes guarded by
//! the version that was read.

use anyhow::{Context, Result};
use datastore::access::{PartialAccess, Side};
use datastore::etcd3::{Change, Condition, Etcd3};

use super::client2::{Client2, Guard};
use crate::version::Generation;

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
    /// Version of the last write: the modified index of v2, the revision of v3.
    pub version: u64,
}

/// One of etcd's stores.
#[derive(Debug)]
pub struct Store {
    backend: Backend,
    /// The kind of store.
    pub generation: Generation,
}

#[derive(Debug)]
enum Backend {
    V2(Client2),
    V3(Etcd3),
    #[cfg(test)]
    Memory(super::memory::Memory),
}

impl Store {
    /// Connects to the etcd in a manifest or a conflist.
    pub async fn connect(generation: Generation, said: PartialAccess) -> Result<Self> {
        let side = match generation {
            Generation::V2 => Side::V2,
            Generation::V3 => Side::V3,
        };
        let access = said
            .access(side)
            .context("find etcd (ETCD_ENDPOINTS, etcd_endpoints)")?;
        let backend = match generation {
            Generation::V2 => Backend::V2(Client2::connect(&access).await?),
            Generation::V3 => Backend::V3(Etcd3::connect(&access).await?),
        };
        Ok(Self { backend, generation })
    }

    /// An empty store in memory.
    #[cfg(test)]
    pub fn in_memory(generation: Generation) -> Self {
        Self {
            backend: Backend::Memory(super::memory::Memory::default()),
            generation,
        }
    }

    /// One key.
    pub async fn get(&self, key: &str) -> Result<Option<Entry>> {
        match &self.backend {
            Backend::V2(client) => client.get(key).await,
            Backend::V3(client) => client.get(key).await?.map(entry).transpose(),
            #[cfg(test)]
            Backend::Memory(memory) => Ok(memory.get(key)),
        }
    }

    /// Every key below a directory, in order.
    pub async fn list(&self, directory: &str) -> Result<Vec<Entry>> {
        match &self.backend {
            Backend::V2(client) => client.list(directory).await,
            Backend::V3(client) => {
                let found = client.list(&format!("{directory}/")).await?;
                found.into_iter().map(entry).collect()
            }
            #[cfg(test)]
            Backend::Memory(memory) => Ok(memory.list(directory)),
        }
    }

    /// Writes a key, replacing an existing value.
    pub async fn put(&self, key: &str, value: &str) -> Result<()> {
        self.set(key, value, Guard::None).await.map(drop)
    }

    /// Creates a key; `false` if it exists.
    pub async fn create(&self, key: &str, value: &str) -> Result<bool> {
        self.set(key, value, Guard::Absent).await
    }

    /// Writes a key that was read before; `false` if it was written since, or deleted.
    pub async fn replace(&self, before: &Entry, value: &str) -> Result<bool> {
        self.set(&before.key, value, Guard::At(before.version)).await
    }

    /// Deletes a key that was read before; `false` if it was written since, or deleted.
    pub async fn delete(&self, before: &Entry) -> Result<bool> {
        match &self.backend {
            Backend::V2(client) => client.delete(&before.key, before.version).await,
            Backend::V3(client) => {
                let conditions = conditions(&before.key, Guard::At(before.version))?;
                let change = Change::Delete {
                    key: before.key.clone(),
                };
                Ok(client
                    .commit(&format!("deleting {}", before.key), &conditions, &[change])
                    .await?)
            }
            #[cfg(test)]
            Backend::Memory(memory) => Ok(memory.delete(&before.key, before.version)),
        }
    }

    /// Creates a directory. Only v2 has directories.
    pub async fn make_directory(&self, key: &str) -> Result<()> {
        match &self.backend {
            Backend::V2(client) => client.make_directory(key).await,
            Backend::V3(_) => Ok(()),
            #[cfg(test)]
            Backend::Memory(_) => Ok(()),
        }
    }

    /// Deletes an empty directory; `false` if it is not empty. Only v2 has directories.
    pub async fn delete_empty(&self, directory: &str) -> Result<bool> {
        match &self.backend {
            Backend::V2(client) => client.delete_empty(directory).await,
            Backend::V3(_) => Ok(false),
            #[cfg(test)]
            Backend::Memory(_) => Ok(false),
        }
    }

    async fn set(&self, key: &str, value: &str, guard: Guard) -> Result<bool> {
        match &self.backend {
            Backend::V2(client) => client.set(key, value, guard).await,
            Backend::V3(client) => {
                let change = Change::Put {
                    key: key.to_owned(),
                    value: value.as_bytes().to_vec(),
                    lease: None,
                };
                Ok(client
                    .commit(&format!("writing {key}"), &conditions(key, guard)?, &[change])
                    .await?)
            }
            #[cfg(test)]
            Backend::Memory(memory) => Ok(memory.set(key, value, guard)),
        }
    }
}

fn conditions(key: &str, guard: Guard) -> Result<Vec<Condition>> {
    let key = key.to_owned();
    Ok(match guard {
        Guard::None => Vec::new(),
        Guard::Absent => vec![Condition::Created { key, at: 0 }],
        Guard::At(version) => {
            let at = i64::try_from(version).context("convert a revision to a signed number")?;
            vec![Condition::Modified { key, at }]
        }
    })
}

fn entry(found: datastore::etcd3::Entry) -> Result<Entry> {
    let version = u64::try_from(found.revision).context("convert a revision to an unsigned number")?;
    let value =
        String::from_utf8(found.value).with_context(|| format!("read {}: it is not text", found.key))?;
    Ok(Entry {
        key: found.key,
        value,
        version,
    })
}
