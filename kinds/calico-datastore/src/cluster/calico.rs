//! Which of both Calicos.

use serde::{Deserialize, Serialize};

/// Which of both Calicos, and so which of both stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Calico {
    /// v2, which works with etcd v2.
    V2,
    /// v3, which works with etcd v3.
    V3,
}

impl Calico {
    /// As messages say it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V2 => "v2",
            Self::V3 => "v3",
        }
    }
}

/// One of something for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Each<T> {
    /// Of v2.
    pub v2: T,
    /// Of v3.
    pub v3: T,
}

impl<T> Each<T> {
    /// That of this one.
    pub fn of(&self, calico: Calico) -> &T {
        match calico {
            Calico::V2 => &self.v2,
            Calico::V3 => &self.v3,
        }
    }
}

/// What an object of the cluster says: what it said before, what the manifest of v3 says, or something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// What it said before the migration.
    V2,
    /// What the manifest says.
    V3,
    /// Both are the same.
    Both,
    /// Neither: somebody else has changed it.
    Other,
    /// It is gone.
    Missing,
}

impl Says {
    /// Of what it says now.
    pub fn of<T: PartialEq>(now: &T, known: &Each<T>) -> Self {
        match (*now == known.v2, *now == known.v3) {
            (true, true) => Self::Both,
            (true, false) => Self::V2,
            (false, true) => Self::V3,
            (false, false) => Self::Other,
        }
    }

    /// Whether it says what it has to say for this Calico.
    pub fn is(self, calico: Calico) -> bool {
        match self {
            Self::Both => true,
            Self::V2 => calico == Calico::V2,
            Self::V3 => calico == Calico::V3,
            Self::Other | Self::Missing => false,
        }
    }
}
