//! A store in memory for the tests.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use super::client2::Guard;
use super::store::Entry;

/// Keys with their values and versions.
#[derive(Debug, Default)]
pub struct Memory(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    keys: BTreeMap<String, (String, u64)>,
    version: u64,
}

impl Memory {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap()
    }

    /// One key.
    pub fn get(&self, key: &str) -> Option<Entry> {
        self.kept().keys.get(key).map(|found| entry(key, found))
    }

    /// Every key below a directory.
    pub fn list(&self, directory: &str) -> Vec<Entry> {
        let start = format!("{directory}/");
        let kept = self.kept();
        let below = kept.keys.iter().filter(|(key, _)| key.starts_with(&start));
        below.map(|(key, found)| entry(key, found)).collect()
    }

    /// Writes a key if the condition holds.
    pub fn set(&self, key: &str, value: &str, guard: Guard) -> bool {
        let mut kept = self.kept();
        let found = kept.keys.get(key).map(|(_, version)| *version);
        let may = match guard {
            Guard::None => true,
            Guard::Absent => found.is_none(),
            Guard::At(version) => found == Some(version),
        };
        if may {
            kept.version += 1;
            let version = kept.version;
            kept.keys.insert(key.to_owned(), (value.to_owned(), version));
        }
        may
    }

    /// Deletes a key of this version.
    pub fn delete(&self, key: &str, version: u64) -> bool {
        let mut kept = self.kept();
        let may = kept.keys.get(key).is_some_and(|(_, found)| *found == version);
        if may {
            kept.keys.remove(key);
        }
        may
    }
}

fn entry(key: &str, (value, version): &(String, u64)) -> Entry {
    Entry {
        key: key.to_owned(),
        value: value.clone(),
        version: *version,
    }
}
