//! Changes, as many at a time as etcd takes.

use crate::etcd3::Change;

/// Bytes of keys and values of one transaction: etcd takes one and a half million, in base64 and with names.
pub const BYTES: usize = 512 * 1024;

/// Bytes of a change.
pub fn bytes(change: &Change) -> usize {
    match change {
        Change::Put { key, value, .. } => key.len() + value.len(),
        Change::Delete { key } => key.len(),
        Change::DeletePrefix { prefix } => prefix.len(),
    }
}

/// Splits changes: at most so many together, and not too large together unless one is by itself.
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
    fn a_batch_is_neither_too_long_nor_too_large() {
        let lengths =
            |changes: Vec<Change>, most| batches(changes, most).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(vec![put(1); 5], 2), [2, 2, 1]);
        assert_eq!(lengths(vec![put(BYTES / 2); 3], 100), [2, 1]);
        assert_eq!(lengths(vec![put(1), put(2 * BYTES), put(1)], 100), [1, 1, 1]);
        assert_eq!(lengths(Vec::new(), 2), Vec::<usize>::new());
    }
}
