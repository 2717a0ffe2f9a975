//! The Node's network label against what this migration wrote there.
//!
//! Whoever else writes it starts a network's daemon on a host that is not its own yet: Calico's on a node of flannel's gives new
//! pods the addresses of living ones. What was written is remembered, since it cannot be told from what is there: an agent that is
//! silent, a host that was started anew, or a node that another tool has moved before look the same.

use std::fmt;

use super::NetworkLabel;

/// A label that somebody else wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelDrift {
    /// What it says.
    pub found: NetworkLabel,
    /// The value that this migration wrote.
    pub needed: String,
}

impl fmt::Display for LabelDrift {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.found.value() {
            Some(found) => write!(formatter, "is {found:?}, needed {:?}", self.needed),
            None => write!(formatter, "is missing, needed {:?}", self.needed),
        }
    }
}

/// What is wrong with the label; `None` when it says what this migration has `written`, or has announced as `next`, and while
/// it has written nothing.
pub fn drift(label: &NetworkLabel, written: Option<&str>, next: Option<&str>) -> Option<LabelDrift> {
    let needed = written?;
    let found = label.value();
    // Announced, then written: a crash may have come in between.
    let is_right = found == Some(needed) || (found.is_some() && found == next);
    (!is_right).then(|| LabelDrift {
        found: label.clone(),
        needed: needed.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_or_announced_is_right_and_nothing_else() {
        let read = |value| NetworkLabel::read(value);
        for (found, written, next, needed) in [
            (Some("flannel"), None, None, None),
            (None, None, None, None),
            (Some("flannel"), Some("flannel"), None, None),
            (Some("flannel"), Some("flannel"), Some("none"), None),
            (Some("none"), Some("flannel"), Some("none"), None),
            (Some("calico"), Some("flannel"), Some("none"), Some("flannel")),
            (Some("odd"), Some("calico"), None, Some("calico")),
            (None, Some("calico"), None, Some("calico")),
        ] {
            let drift = drift(&read(found), written, next);
            assert_eq!(
                drift.as_ref().map(|drift| drift.needed.as_str()),
                needed,
                "{found:?} where {written:?} was written, {next:?} announced"
            );
        }
        let drift = drift(&read(None), Some("calico"), None).unwrap();
        assert_eq!(drift.to_string(), "is missing, needed \"calico\"");
    }
}
