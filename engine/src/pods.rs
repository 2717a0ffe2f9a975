//! Pods that are shared, not copied: a large cluster has more than a hundred thousand.

use std::ops::{Index, IndexMut};
use std::slice;
use std::sync::Arc;

use crate::drain::Pod;

/// Pods in some order. A clone shares each of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods(Vec<Arc<Pod>>);

/// Goes over pods.
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

    /// Each pod, to be changed; one that is shared is copied first.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pod> {
        self.0.iter_mut().map(Arc::make_mut)
    }

    /// Each pod, to be shared.
    pub fn shared(&self) -> slice::Iter<'_, Arc<Pod>> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds one at the end.
    pub fn push(&mut self, pod: impl Into<Arc<Pod>>) {
        self.0.push(pod.into());
    }

    /// Where a pod of this namespace and name is, or should be, among pods in that order.
    pub fn place(&self, namespace: &str, name: &str) -> Result<usize, usize> {
        self.0
            .binary_search_by(|pod| (pod.namespace.as_str(), pod.name.as_str()).cmp(&(namespace, name)))
    }

    /// Puts one in at this place.
    pub fn insert(&mut self, place: usize, pod: Arc<Pod>) {
        self.0.insert(place, pod);
    }

    /// Puts this one in place of the one that is there.
    pub fn replace(&mut self, place: usize, pod: Arc<Pod>) {
        self.0[place] = pod;
    }

    /// Takes out the one at this place.
    pub fn remove(&mut self, place: usize) -> Arc<Pod> {
        self.0.remove(place)
    }

    /// Keeps those of which this is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&Pod) -> bool) {
        self.0.retain(|pod| keep(pod));
    }

    /// Puts them in order of namespace and name.
    pub fn sort_by_name(&mut self) {
        self.0
            .sort_by(|left, right| (&left.namespace, &left.name).cmp(&(&right.namespace, &right.name)));
    }
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
