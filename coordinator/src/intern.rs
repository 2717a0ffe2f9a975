//! Equal words and labels of many pods are in memory once.

use std::collections::HashSet;
use std::sync::Arc;

use engine::labels::Labels;

/// Words and labels in use.
#[derive(Debug, Default)]
pub struct Interned {
    words: HashSet<Arc<str>>,
    labels: HashSet<Labels>,
    /// Number of labels at which unused ones are removed.
    enough: usize,
}

/// Number of labels kept before unused ones are removed.
const FEW: usize = 1024;

impl Interned {
    /// The same labels, shared by all objects that have them.
    pub fn labels(&mut self, labels: &Labels) -> Labels {
        if let Some(known) = self.labels.get(labels) {
            return known.clone();
        }
        if self.labels.len() >= self.enough {
            self.forget_unused();
        }
        let shared: Labels = labels
            .iter()
            .map(|(key, value)| (self.word(key), self.word(value)))
            .collect();
        self.labels.insert(shared.clone());
        shared
    }

    /// Removes words and labels that no object has any more.
    pub fn forget_unused(&mut self) {
        self.labels.retain(Labels::is_shared);
        self.words.retain(|word| Arc::strong_count(word) > 1);
        self.enough = (self.labels.len() * 2).max(FEW);
    }

    fn word(&mut self, word: &Arc<str>) -> Arc<str> {
        if let Some(known) = self.words.get(word) {
            return Arc::clone(known);
        }
        self.words.insert(Arc::clone(word));
        Arc::clone(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_labels_are_stored_once() {
        let mut interned = Interned::default();
        let of = |number: usize| {
            Labels::from([
                ("app".to_owned(), "web".to_owned()),
                ("n".to_owned(), number.to_string()),
            ])
        };
        let kept: Vec<Labels> = (0..3).map(|number| interned.labels(&of(number % 2))).collect();
        assert_eq!(kept[0], kept[2]);
        assert_eq!((interned.labels.len(), interned.words.len()), (2, 5));
    }

    #[test]
    fn unused_labels_are_removed() {
        let mut interned = Interned::default();
        let kept = interned.labels(&Labels::from([("app", "web")]));
        for number in 0..10 * FEW {
            interned.labels(&Labels::from([("n".to_owned(), number.to_string())]));
        }
        assert!(interned.labels.len() <= FEW, "{}", interned.labels.len());
        interned.forget_unused();
        assert_eq!((interned.labels.len(), interned.words.len()), (1, 2));
        drop(kept);
    }
}
