//! A list of pods that are shared, not copied: a large cluster has more than 100 000.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};
use std::slice;
use std::sync::Arc;

use crate::drain::Pod;

/// An ordered list of pods. A clone shares the pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods(Vec<Arc<Pod>>);

/// Iterates over pods.
pub type Iter<'pods> = std::iter::Map<slice::Iter<'pods, Arc<Pod>>, fn(&'pods Arc<Pod>) -> &'pods Pod>;

impl Pods {
    /// No pods.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Each pod.
    pub fn iter(&self) -> Iter<'_> {
        self.0.iter().map(AsRef::as_ref)
    }

    /// Each pod, mutable; a shared pod is copied first.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pod> {
        self.0.iter_mut().map(Arc::make_mut)
    }

    /// Each pod, as a shared pointer.
    pub fn shared(&self) -> slice::Iter<'_, Arc<Pod>> {
        self.0.iter()
    }

    /// The number of pods.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a pod at the end.
    pub fn push(&mut self, pod: impl Into<Arc<Pod>>) {
        self.0.push(pod.into());
    }

    /// The place of the pod with this namespace and name in a list sorted by name: `Ok` if found, `Err` with the place to insert
    /// it.
    ///
    /// # Errors
    ///
    /// The list does not contain the pod.
    pub fn place(&self, namespace: &str, name: &str) -> Result<usize, usize> {
        self.0
            .binary_search_by(|pod| (pod.namespace.as_str(), pod.name.as_str()).cmp(&(namespace, name)))
    }

    /// Inserts a pod at this place.
    pub fn insert(&mut self, place: usize, pod: Arc<Pod>) {
        self.0.insert(place, pod);
    }

    /// Replaces the pod at this place.
    pub fn replace(&mut self, place: usize, pod: Arc<Pod>) {
        self.0[place] = pod;
    }

    /// Removes the pod at this place.
    pub fn remove(&mut self, place: usize) -> Arc<Pod> {
        self.0.remove(place)
    }

    /// Keeps the pods for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&Pod) -> bool) {
        self.0.retain(|pod| keep(pod));
    }

    /// Sorts the pods by namespace and name.
    pub fn sort_by_name(&mut self) {
        self.0
            .sort_by(|left, right| (&left.namespace, &left.name).cmp(&(&right.namespace, &right.name)));
    }
}

/// The pods of each node. Callers that need every node call this once.
pub fn by_node(pods: &Pods) -> BTreeMap<&str, Vec<&Pod>> {
    let mut by_node: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in pods {
        by_node.entry(&pod.node).or_default().push(pod);
    }
    by_node
}

impl From<Vec<Pod>> for Pods {
    fn from(pods: Vec<Pod>) -> Self {
        pods.into_iter().collect()
    }
}

impl<const N: usize> From<[Pod; N]> for Pods {
    fn from(pods: [Pod; N]) -> Self {
        pods.into_iter().collect()
    }
}

impl<P: Into<Arc<Pod>>> FromIterator<P> for Pods {
    fn from_iter<I: IntoIterator<Item = P>>(pods: I) -> Self {
        Self(pods.into_iter().map(Into::into).collect())
    }
}

impl<'pods> IntoIterator for &'pods Pods {
    type Item = &'pods Pod;
    type IntoIter = Iter<'pods>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Index<usize> for Pods {
    type Output = Pod;

    fn index(&self, place: usize) -> &Pod {
        &self.0[place]
    }
}

impl IndexMut<usize> for Pods {
    fn index_mut(&mut self, place: usize) -> &mut Pod {
        Arc::make_mut(&mut self.0[place])
    }
}
