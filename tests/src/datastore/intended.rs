//! The intended differences from Calico's own tool.

use calico_datastore::difference::Difference;

/// An intended difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Intended {
    /// A difference of the conversion.
    Conversion(Difference),
    /// `complete` opens only a store that was converted and verified.
    NothingToComplete,
    /// `abort` restores v3.
    AbortTakesBack,
    /// `abort` opens no second store.
    NoSecondStore,
    /// `start` continues from the end of an earlier one, also if that was complete.
    StartsAgain,
    /// `abort` creates no flag if there is none.
    NoFlag,
    /// Existing contents of v3 are kept aside, whatever they are.
    KeptAside,
    /// `complete` keeps changes that were written to v2 since the conversion.
    ChangedSince,
    /// `start` deletes the objects that controllers of v3 wrote in an earlier attempt.
    ControllersRewrite,
}

impl Intended {
    /// The name.
    pub fn name(self) -> String {
        match self {
            Self::Conversion(difference) => format!("{difference:?}"),
            other => format!("{other:?}"),
        }
    }

    /// The difference and its reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Conversion(difference) => difference.reason(),
            Self::NothingToComplete => {
                "Calico's own tool opens v3 without a check: in a cluster that was never converted, \
                 both stores would be open, or an empty one"
            }
            Self::AbortTakesBack => {
                "Calico's own tool leaves its keys in v3, so every later start finds v3 not empty and refuses"
            }
            Self::StartsAgain => {
                "Calico's own tool refuses every second start: here the second start continues, and finds no remaining work"
            }
            Self::NoSecondStore => {
                "Calico's own tool opens v2, or writes over v3, also when v3 is open: \
                 Calico would use two stores, or lose its data"
            }
            Self::ChangedSince => {
                "Calico's own tool opens v3 although v2 has changed since the conversion: the changes are lost"
            }
            Self::NoFlag => {
                "Calico's own tool creates a Ready flag in an etcd without Calico, which is the wrong etcd"
            }
            Self::ControllersRewrite => {
                "Calico's own tool leaves profiles of namespaces and policies of Kubernetes of an earlier attempt in v3: \
                 nodes would use them before the controllers have updated them, and this could not be detected"
            }
            Self::KeptAside => {
                "Calico's own tool stops in the middle at a value of v3 that it cannot read; \
                 here the value is kept aside and overwritten, as requested"
            }
        }
    }
}
