//! Where this tool is meant to do otherwise than Calico's own.

use calico_datastore::difference::Difference;

/// A difference that is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Intended {
    /// In what is converted.
    Conversion(Difference),
    /// `complete` opens only what was converted and read again.
    NothingToComplete,
    /// `abort` makes v3 as it was before.
    AbortTakesBack,
    /// `abort` opens no second store.
    NoSecondStore,
    /// `start` goes on where an earlier one ended, also at its end.
    StartsAgain,
    /// `abort` makes no flag where there is none.
    NoFlag,
    /// What is in v3 already is kept aside, whatever it is.
    KeptAside,
    /// `complete` loses nothing that was written to v2 since it was converted.
    ChangedSince,
    /// `start` deletes what controllers of v3 wrote in an earlier attempt.
    ControllersWriteAnew,
}

impl Intended {
    /// Its name.
    pub fn name(self) -> String {
        match self {
            Self::Conversion(difference) => format!("{difference:?}"),
            other => format!("{other:?}"),
        }
    }

    /// What is otherwise, and why.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Conversion(difference) => difference.reason(),
            Self::NothingToComplete => {
                "Calico's own tool opens v3 unseen: on a cluster that was never converted, both stores would be open, or an empty one"
            }
            Self::AbortTakesBack => {
                "Calico's own tool leaves what it wrote in v3, so that every later start finds it not empty and refuses"
            }
            Self::StartsAgain => {
                "Calico's own tool refuses a second start, whatever the first one came to: here it goes on, and finds nothing left to do"
            }
            Self::NoSecondStore => {
                "Calico's own tool opens v2, or writes over v3, also when v3 is open: Calico would work with two stores, or lose what it works with"
            }
            Self::ChangedSince => {
                "Calico's own tool opens v3 although v2 says something else than what was converted: that is lost"
            }
            Self::NoFlag => {
                "Calico's own tool makes a Ready flag in an etcd in which there is no Calico: it is the wrong one"
            }
            Self::ControllersWriteAnew => {
                "Calico's own tool leaves profiles of namespaces and policies of Kubernetes of an earlier attempt in v3: nodes would go by them before the \
                 controllers have looked at them, and nobody could tell whether they have"
            }
            Self::KeptAside => {
                "Calico's own tool stops at a value of v3 that it cannot read, half-way; here it is kept aside and written over, as was asked for"
            }
        }
    }
}
