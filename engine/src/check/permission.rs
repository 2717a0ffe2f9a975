//! What the API server has to allow.

/// Something that the coordinator must be allowed to do.
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
    /// Verb, API group, resource, subresource.
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

    /// The permission as answers are keyed: `create pods/eviction`, `patch daemonsets.apps`.
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
