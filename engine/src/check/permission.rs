//! Permissions that the API server has to grant.

/// A request that the coordinator must be allowed to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// Verb.
    pub verb: &'static str,
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Resource.
    pub resource: &'static str,
    /// Subresource; empty for none.
    pub subresource: &'static str,
}

impl Permission {
    /// A permission for this verb, API group, resource and subresource.
    pub const fn new(
        verb: &'static str,
        group: &'static str,
        resource: &'static str,
        subresource: &'static str,
    ) -> Self {
        Self {
            verb,
            group,
            resource,
            subresource,
        }
    }

    /// The permission as text, which is the key of its answer: `create pods/eviction`, `patch daemonsets.apps`.
    pub fn key(&self) -> String {
        let mut key = format!("{} {}", self.verb, self.resource);
        for (mark, part) in [('.', self.group), ('/', self.subresource)] {
            if !part.is_empty() {
                key.push(mark);
                key += part;
            }
        }
        key
    }
}
