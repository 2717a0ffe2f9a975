//! The two addresses of a Service that changes its range.

/// One of the two addresses of a Service; of several families one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The one that it had before this migration.
    Old,
    /// The one of the new range.
    New,
}

impl Side {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Old, Self::New];

    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Old => Self::New,
            Self::New => Self::Old,
        }
    }

    /// As it stands in names and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Old => "old",
            Self::New => "new",
        }
    }
}

/// One of something for each address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sides<T> {
    /// Of the old one.
    pub old: T,
    /// Of the new one.
    pub new: T,
}

impl<T> Sides<T> {
    /// Makes one for each.
    pub fn each(mut make: impl FnMut(Side) -> T) -> Self {
        Self {
            old: make(Side::Old),
            new: make(Side::New),
        }
    }

    /// That of this address.
    pub fn of(&self, side: Side) -> &T {
        match side {
            Side::Old => &self.old,
            Side::New => &self.new,
        }
    }

    /// That of this address, to be changed.
    pub fn of_mut(&mut self, side: Side) -> &mut T {
        match side {
            Side::Old => &mut self.old,
            Side::New => &mut self.new,
        }
    }
}
