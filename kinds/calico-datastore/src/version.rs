//! Decides which versions of Calico can be migrated, and whether a store needs a migration.

use std::fmt;

use thiserror::Error;

/// The oldest version whose nodes obey the flag of v2 (libcalico-go, `lib/upgrade/migrator`).
const OLDEST: (i64, i64, i64) = (2, 6, 5);
/// The first major version with the new data model.
const NEW_MODEL: i64 = 3;

/// A version of Calico whose store can be migrated. Suffixes (`-rc1`, `-15-gabc`) are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Major version.
    pub major: i64,
    /// Minor version.
    pub minor: i64,
    /// Patch version.
    pub patch: i64,
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "v{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Reason why a store cannot be migrated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VersionRefused {
    /// The store has no version.
    #[error(
        "/calico/v1/config/CalicoVersion is missing in etcd v2, needed v2.6.5 or later: check that this is the etcd of Calico v2"
    )]
    Missing,
    /// The version does not have three numbers.
    #[error(
        "Calico's version is {found:?}, needed a version like v2.6.12: run a tagged release of Calico first"
    )]
    Unreadable {
        /// The version as text.
        found: String,
    },
    /// The nodes of this version do not obey the flag.
    #[error("Calico's version is {found:?}, needed v2.6.5 or later: upgrade Calico to the last v2.6 first")]
    TooOld {
        /// The version as text.
        found: String,
    },
    /// The version is v3, which never writes to v2.
    #[error(
        "Calico's version in etcd v2 is {found:?}, needed v2.6.5 or later and before v3: find out which program wrote it"
    )]
    NewModel {
        /// The version as text.
        found: String,
    },
}

/// Whether a migration is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nodes of v3 have not written to the v3 store yet, and the v2 store can be migrated.
    Needed,
    /// Nodes of v3 have written to the v3 store, or neither store has data of Calico.
    NotNeeded,
}

/// Checks that a store of this version can be migrated; `None` is a store without a version.
///
/// # Errors
///
/// The store has no version or an unreadable one, is older than 2.6.5, or has the data model of v3 already.
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

/// Whether a migration is needed, by the version in `ClusterInformation` of v3 or, when that is empty, by the version in v2. A
/// migrated store has the version that was copied, so the answer stays until a node of v3 writes its own.
///
/// # Errors
///
/// The version that decides is unreadable or too old; in v2, also one with the data model of v3.
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

/// Parses three numbers with optional suffixes after `-` and `+` (semver as `coreos/go-semver` reads it).
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

/// The text before the sign, and the text after it unless that is empty.
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
mod tests;
