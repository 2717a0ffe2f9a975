//! Checks: a verdict on one prerequisite, with the object, the value found and the value needed.

pub mod access;
pub mod agents;
pub mod budgets;
mod few;
pub mod owner;
mod permission;
pub mod pods;
pub mod policies;
mod report;

use std::borrow::Cow;

pub use few::fit_checks;
pub use permission::Permission;
pub use report::{Finding, Report, worst};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use crate::words::cut;
pub use crate::words::names;

/// The object of a check is cut to this many bytes: a list of names is shorter.
const OBJECT_BYTES: usize = 4096;
/// The other texts of a check are cut to this many bytes.
const TEXT_BYTES: usize = 2048;

/// `Verdict` is the result of a check.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
    VariantArray,
)]
pub enum Verdict {
    /// The prerequisite is met.
    Pass,
    /// The migration can start, and the user should read this first.
    Warn,
    /// The check could not be made. Refuses the migration.
    Unknown,
    /// The prerequisite is not met. Refuses the migration.
    Fail,
}

impl Verdict {
    /// Every verdict, from good to bad.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The name of the verdict, as in the API and in metrics.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether a migration may start with this verdict.
    pub fn allows(self) -> bool {
        match self {
            Self::Pass | Self::Warn => true,
            Self::Unknown | Self::Fail => false,
        }
    }
}

/// `Check` is the result of a check of one prerequisite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// `name` is the name of the check, in `CamelCase`, as in the metrics and in the runbook.
    pub name: String,
    /// `verdict` is the result. Possible values: `Pass`: the prerequisite is met. `Warn`: the migration can start, and the user
    /// should read this first. `Unknown`: the check could not be made. `Fail`: the prerequisite is not met. `Unknown` and `Fail`
    /// refuse the migration.
    pub verdict: Verdict,
    /// `object` is the object that was checked, such as `DaemonSet kube-flannel/kube-flannel-ds`. At most 4096 bytes.
    pub object: String,
    /// `found` is the value that was found. At most 2048 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub found: String,
    /// `needed` is the value that is needed. Empty if the check passed. At most 2048 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub needed: String,
    /// `fix` is what the user can do. Empty if there is nothing to do. At most 2048 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fix: String,
    /// The results that this result summarizes, with all objects. Not part of the API, because no object has room for them.
    #[serde(skip)]
    #[schemars(skip)]
    pub whole: Vec<Check>,
}

/// Name of the check, of every kind, for fields that are set and that the kind does not use.
pub const UNUSED_FIELDS: &str = "UnusedFields";

impl Check {
    /// A prerequisite that is met; `found` is the value that shows it.
    pub fn pass(name: impl Into<String>, object: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            verdict: Verdict::Pass,
            object: small(object, OBJECT_BYTES),
            found: small(found, TEXT_BYTES),
            needed: String::new(),
            fix: String::new(),
            whole: Vec::new(),
        }
    }

    /// A prerequisite that is not met, not known, or met with a warning.
    pub fn not_pass(
        name: impl Into<String>,
        verdict: Verdict,
        object: impl Into<String>,
        found: impl Into<String>,
        needed: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            verdict,
            object: small(object, OBJECT_BYTES),
            found: small(found, TEXT_BYTES),
            needed: small(needed, TEXT_BYTES),
            fix: small(fix, TEXT_BYTES),
            whole: Vec::new(),
        }
    }

    /// The checks that together name every object.
    pub fn in_full(&self) -> &[Self] {
        if self.whole.is_empty() {
            std::slice::from_ref(self)
        } else {
            &self.whole
        }
    }

    /// One line that names object, value and fix.
    pub fn line(&self) -> String {
        let mut line = format!("{}: {}: found {}", self.name, self.object, self.found);
        if !self.needed.is_empty() {
            line += ", needed ";
            line += &self.needed;
        }
        if !self.fix.is_empty() {
            line += ". Fix: ";
            line += &self.fix;
        }
        line
    }
}

/// The text, cut to at most `bytes` bytes.
fn small(text: impl Into<String>, bytes: usize) -> String {
    let text = text.into();
    match cut(&text, bytes) {
        Cow::Borrowed(_) => text,
        Cow::Owned(cut) => cut,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_of_a_check_are_cut_to_their_limits() {
        let long = || "x".repeat(100_000);
        let check = Check::not_pass("Name", Verdict::Fail, long(), long(), long(), long());
        assert_eq!(check.object.len(), 4_096);
        for text in [&check.found, &check.needed, &check.fix] {
            assert_eq!(text.len(), 2_048);
        }
        let passed = Check::pass("Name", long(), long());
        assert_eq!((passed.object.len(), passed.found.len()), (4_096, 2_048));
    }
}
