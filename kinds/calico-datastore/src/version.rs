//! Which versions of Calico can be migrated, and whether a store still has to be.

use std::fmt;

use thiserror::Error;

/// The oldest version that keeps the flag which holds nodes back (libcalico-go, `lib/upgrade/migrator`).
const OLDEST: (i64, i64, i64) = (2, 6, 5);
/// The first version with the new data model.
const NEW_MODEL: i64 = 3;

/// A version of Calico whose store can be migrated. What follows the three numbers (`-rc1`, `-15-gabc`) does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The first number.
    pub major: i64,
    /// The second.
    pub minor: i64,
    /// The third.
    pub patch: i64,
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "v{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Why a store is not migrated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VersionRefused {
    /// The store says no version.
    #[error(
        "the v2 store says no version (/calico/v1/config/CalicoVersion is missing), needed v2.6.5 or later: is this the right etcd?"
    )]
    Missing,
    /// It is not three numbers.
    #[error("the version is {found:?}, needed one like v2.6.12: run a tagged release of Calico first")]
    Unreadable {
        /// As it is written.
        found: String,
    },
    /// Its nodes do not wait for the flag.
    #[error("the version is {found:?}, needed v2.6.5 or later: upgrade Calico to the last v2.6 first")]
    TooOld {
        /// As it is written.
        found: String,
    },
    /// Calico v3 never writes there.
    #[error("the v2 store says version {found:?}, needed v2.6.5 or later and before v3: who wrote it there?")]
    NewModel {
        /// As it is written.
        found: String,
    },
}

/// Whether there is anything to migrate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The v3 store is not written by v3 nodes yet, and the v2 store can be migrated.
    Needed,
    /// v3 nodes have written the v3 store, or there is no Calico at all.
    NotNeeded,
}

/// Whether a store of this version can be migrated; `None` when it says none.
pub fn gate(version: Option<&str>) -> Result<Version, VersionRefused> {
    let text = version.ok_or(VersionRefused::Missing)?;
    let found = || text.to_owned();
    let version = parse(text).ok_or_else(|| VersionRefused::Unreadable { found: found() })?;
    if version.major >= NEW_MODEL {
        return Err(VersionRefused::NewModel { found: found() });
    }
    if (version.major, version.minor, version.patch) < OLDEST {
        return Err(VersionRefused::TooOld { found: found() });
    }
    Ok(version)
}

/// Whether a migration is needed, by what the v3 store's `ClusterInformation` says and, when it says nothing, by what the v2 store
/// says. A migrated store says the version that was copied, so the answer stays until a v3 node writes its own.
pub fn needed(v3: Option<&str>, v2: Option<&str>) -> Result<Need, VersionRefused> {
    match (v3.filter(|text| !text.is_empty()), v2) {
        (Some(v3), _) => match gate(Some(v3)) {
            Ok(_) => Ok(Need::Needed),
            Err(VersionRefused::NewModel { .. }) => Ok(Need::NotNeeded),
            Err(refused) => Err(refused),
        },
        (None, None) => Ok(Need::NotNeeded),
        (None, v2) => gate(v2).map(|_| Need::Needed),
    }
}

/// Three numbers, with what may follow them after `-` and `+` (semver as `coreos/go-semver` reads it).
fn parse(text: &str) -> Option<Version> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let (text, build) = split_off(text, '+');
    let (numbers, release) = split_off(text, '-');
    if ![build, release].into_iter().flatten().all(is_identifier) {
        return None;
    }
    let mut numbers = numbers.splitn(3, '.').map(|number| number.parse().ok());
    let (major, minor, patch) = (numbers.next()??, numbers.next()??, numbers.next()??);
    Some(Version { major, minor, patch })
}

/// What comes before the sign, and what comes after it unless that is nothing.
fn split_off(text: &str, sign: char) -> (&str, Option<&str>) {
    match text.split_once(sign) {
        Some((before, after)) => (before, Some(after).filter(|after| !after.is_empty())),
        None => (text, None),
    }
}

fn is_identifier(text: &str) -> bool {
    text.split('.').all(|part| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    })
}

#[cfg(test)]
#[path = "version_tests.rs"]
mod tests;
