//! The two versions of Calico, and the version that an object of the cluster has.

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// A version of Calico, and so one of both stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Calico {
    /// v2, which works with etcd v2.
    V2,
    /// v3, which works with etcd v3.
    V3,
}

impl Calico {
    /// Name of the version in messages.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A value for each version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerVersion<T> {
    /// The value for v2.
    pub v2: T,
    /// The value for v3.
    pub v3: T,
}

impl<T> PerVersion<T> {
    /// The value for this version.
    pub fn of(&self, calico: Calico) -> &T {
        match calico {
            Calico::V2 => &self.v2,
            Calico::V3 => &self.v3,
        }
    }
}

/// Content of an object of the cluster: the former content, the content of the manifest of v3, or another content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The content from before the migration.
    V2,
    /// The content of the manifest.
    V3,
    /// Both contents, which are the same.
    Both,
    /// Neither content: another program has changed the object.
    Other,
    /// The object does not exist.
    Missing,
}

impl Content {
    /// Compares the present content with both known ones.
    pub fn of<T: PartialEq>(now: &T, known: &PerVersion<T>) -> Self {
        match (*now == known.v2, *now == known.v3) {
            (true, true) => Self::Both,
            (true, false) => Self::V2,
            (false, true) => Self::V3,
            (false, false) => Self::Other,
        }
    }

    /// Whether the object has the content for this version.
    pub fn is(self, calico: Calico) -> bool {
        match self {
            Self::Both => true,
            Self::V2 => calico == Calico::V2,
            Self::V3 => calico == Calico::V3,
            Self::Other | Self::Missing => false,
        }
    }
}
