//! The two addresses of a Service that changes its address.

use strum::{EnumCount, IntoStaticStr};

/// One of the two addresses of a Service; with several address families, one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumCount, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Side {
    /// The address before this migration.
    Old,
    /// The address of the new range.
    New,
}

impl Side {
    /// Both sides.
    pub const ALL: [Self; Self::COUNT] = [Self::Old, Self::New];

    /// The other side.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Old => Self::New,
            Self::New => Self::Old,
        }
    }

    /// The side as written in names and labels.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// One value for each side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sides<T> {
    /// The value of the old side.
    pub old: T,
    /// The value of the new side.
    pub new: T,
}

impl<T> Sides<T> {
    /// Creates a value for each side.
    pub fn each(mut make: impl FnMut(Side) -> T) -> Self {
        Self {
            old: make(Side::Old),
            new: make(Side::New),
        }
    }

    /// The value of this side.
    pub fn of(&self, side: Side) -> &T {
        match side {
            Side::Old => &self.old,
            Side::New => &self.new,
        }
    }

    /// The value of this side, mutable.
    pub fn of_mut(&mut self, side: Side) -> &mut T {
        match side {
            Side::Old => &mut self.old,
            Side::New => &mut self.new,
        }
    }
}
