//! Labels that objects share: the pods of a workload have the same labels, and a cluster has many pods.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Labels of an object. A clone shares them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels(Arc<[(Arc<str>, Arc<str>)]>);

impl Labels {
    /// The value of this key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let place = self.place(key).ok()?;
        Some(&self.0[place].1)
    }

    /// Whether a label with this key exists.
    pub fn contains_key(&self, key: &str) -> bool {
        self.place(key).is_ok()
    }

    /// Keys with their values, in order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// Whether another object shares these labels.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    fn place(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| (**known).cmp(key))
    }
}

impl<K: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(K, V)> for Labels {
    /// The last value of a key counts.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(labels: I) -> Self {
        let labels = labels.into_iter().map(|(key, value)| (key.into(), value.into()));
        let by_key: BTreeMap<Arc<str>, Arc<str>> = labels.collect();
        Self(by_key.into_iter().collect())
    }
}

impl<K: Into<Arc<str>>, V: Into<Arc<str>>, const N: usize> From<[(K, V); N]> for Labels {
    fn from(labels: [(K, V); N]) -> Self {
        labels.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_key_counts_and_keys_are_sorted() {
        let labels = Labels::from([("b", "2"), ("a", "1"), ("b", "3")]);
        assert_eq!(labels.get("a"), Some("1"));
        assert_eq!(labels.get("b"), Some("3"));
        assert_eq!((labels.get("c"), labels.contains_key("c")), (None, false));
        assert_eq!(labels, Labels::from([("a", "1"), ("b", "3")]));
        let keys: Vec<&str> = labels.iter().map(|(key, _)| &**key).collect();
        assert_eq!(keys, ["a", "b"]);
    }

    #[test]
    fn a_clone_shares_the_labels() {
        let labels = Labels::from([("a", "1")]);
        assert!(!labels.is_shared());
        let other = labels.clone();
        assert!(labels.is_shared() && other == labels);
    }
}
