//! Splits changes into transactions that etcd accepts.

use crate::etcd3::Change;

/// Bytes of keys and values in one transaction: etcd accepts 1.5 million bytes, which include base64 and field names.
pub const BYTES: usize = 512 * 1024;

/// Size of a change in bytes.
pub fn bytes(change: &Change) -> usize {
    match change {
        Change::Put { key, value, .. } => key.len() + value.len(),
        Change::Delete { key } => key.len(),
        Change::DeletePrefix { prefix } => prefix.len(),
    }
}

/// Splits changes into batches of at most `most` changes and [`BYTES`] bytes. A larger change is a batch of its own.
pub fn batches(changes: Vec<Change>, most: usize) -> Vec<Vec<Change>> {
    let mut all: Vec<Vec<Change>> = Vec::new();
    let mut size = 0;
    for change in changes {
        let more = bytes(&change);
        match all.last_mut() {
            Some(last) if last.len() < most && size + more <= BYTES => {
                size += more;
                last.push(change);
            }
            _ => {
                size = more;
                all.push(vec![change]);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(bytes: usize) -> Change {
        Change::Put {
            key: String::new(),
            value: vec![0; bytes],
            lease: None,
        }
    }

    #[test]
    fn a_batch_stays_within_both_limits() {
        let lengths =
            |changes: Vec<Change>, most| batches(changes, most).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(vec![put(1); 5], 2), [2, 2, 1]);
        assert_eq!(lengths(vec![put(BYTES / 2); 3], 100), [2, 1]);
        assert_eq!(lengths(vec![put(1), put(2 * BYTES), put(1)], 100), [1, 1, 1]);
        assert_eq!(lengths(Vec::new(), 2), Vec::<usize>::new());
    }
}
