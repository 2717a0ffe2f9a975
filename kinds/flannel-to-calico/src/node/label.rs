//! Comparison of the network label of a Node with the value that this migration wrote.
//!
//! If another client writes the label, the daemon of the other network starts too early: Calico on a node with flannel would
//! assign the addresses of running pods to new pods. The written value is recorded, because the state of the node does not show
//! it: a silent agent, a restarted host and a node that another tool has migrated look the same.

use std::fmt;

use super::NetworkLabel;

/// A label that another client wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelDrift {
    /// The value of the label.
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

/// The difference between the label and the value that this migration has `written`; `None` if they are equal, if the label has
/// the announced `next` value, or if this migration has not written the label yet.
pub fn drift(label: &NetworkLabel, written: Option<&str>, next: Option<&str>) -> Option<LabelDrift> {
    let needed = written?;
    let found = label.value();
    // The value is announced and then written: a crash may happen in between.
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
    fn only_the_written_or_announced_label_is_right() {
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
                "found {found:?}, written {written:?}, announced {next:?}"
            );
        }
        let drift = drift(&read(None), Some("calico"), None).unwrap();
        assert_eq!(drift.to_string(), "is missing, needed \"calico\"");
    }
}
