//! Paths of the API: `/api/v1/nodes/a`, `/apis/apps/v1/namespaces/shop/deployments/web/scale`.

use serde_json::Value;

/// The parts of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place<'path> {
    /// The group and version: `/api/v1`, `/apis/apps/v1`.
    pub version: &'path str,
    /// The namespace, for objects that have one.
    pub namespace: Option<&'path str>,
    /// The plural of the kind.
    pub plural: &'path str,
    /// The name; none for a collection.
    pub name: Option<&'path str>,
    /// The part below an object: `status`, `eviction`.
    pub subresource: Option<&'path str>,
}

impl Place<'_> {
    /// The collection of all namespaces: `/apis/apps/v1/deployments`.
    pub fn collection(&self) -> String {
        format!("{}/{}", self.version, self.plural)
    }
}

/// Takes a path apart; `None` for one that is none of an object or a collection.
pub fn parse(path: &str) -> Option<Place<'_>> {
    let trimmed = path.trim_end_matches('/');
    let parts_of_version = if trimmed.starts_with("/apis/") { 3 } else { 2 };
    let end = trimmed
        .match_indices('/')
        .map(|(at, _)| at)
        .nth(parts_of_version)?;
    let (version, rest) = trimmed.split_at(end);
    let mut parts: Vec<&str> = rest.split('/').skip(1).collect();
    let mut namespace = None;
    // A Namespace is an object itself, and has a status.
    if parts.first() == Some(&"namespaces") && parts.len() > 2 && !["status", "finalize"].contains(&parts[2])
    {
        namespace = Some(parts[1]);
        parts.drain(..2);
    }
    let (plural, name, subresource) = match parts.as_slice() {
        [plural] => (*plural, None, None),
        [plural, name] => (*plural, Some(*name), None),
        [plural, name, subresource] => (*plural, Some(*name), Some(*subresource)),
        _ => return None,
    };
    Some(Place {
        version,
        namespace,
        plural,
        name,
        subresource,
    })
}

/// The path of an object of a collection, which is of all namespaces, of one, or of every one as `*`; `None` for one without a name.
pub fn path_of(collection: &str, object: &Value) -> Option<String> {
    let Place { version, plural, .. } = parse(collection)?;
    let name = object["metadata"]["name"].as_str()?;
    Some(match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{version}/namespaces/{namespace}/{plural}/{name}"),
        None => format!("{version}/{plural}/{name}"),
    })
}

/// Whether an object is one part below a path, in which `*` matches one part: `/api/v1/namespaces/a/pods/b` is below
/// `/api/v1/namespaces/*/pods`.
pub fn is_below(object: &str, path: &str) -> bool {
    let Some((collection, _)) = object.rsplit_once('/') else {
        return false;
    };
    let mut parts = collection.split('/');
    path.split('/')
        .all(|wanted| parts.next().is_some_and(|part| wanted == "*" || wanted == part))
        && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_apart() {
        let place = |path| {
            let place = parse(path)?;
            Some((place.collection(), place.namespace, place.name, place.subresource))
        };
        assert_eq!(
            place("/api/v1/nodes"),
            Some(("/api/v1/nodes".to_owned(), None, None, None))
        );
        assert_eq!(
            place("/apis/apps/v1/namespaces/shop/deployments/web/scale"),
            Some((
                "/apis/apps/v1/deployments".to_owned(),
                Some("shop"),
                Some("web"),
                Some("scale")
            ))
        );
        assert_eq!(
            place("/api/v1/namespaces/shop/status"),
            Some((
                "/api/v1/namespaces".to_owned(),
                None,
                Some("shop"),
                Some("status")
            ))
        );
        assert_eq!(
            place("/api/v1/namespaces/shop/pods"),
            Some(("/api/v1/pods".to_owned(), Some("shop"), None, None))
        );
        assert_eq!(place("/apis/crd.projectcalico.org/v1"), None);
        assert_eq!(place("/version"), None);
    }

    #[test]
    fn an_object_has_its_namespace_in_its_path() {
        let object = serde_json::json!({ "metadata": { "namespace": "shop", "name": "web" } });
        for collection in [
            "/api/v1/pods",
            "/api/v1/namespaces/*/pods",
            "/api/v1/namespaces/shop/pods",
        ] {
            let path = path_of(collection, &object);
            assert_eq!(path.as_deref(), Some("/api/v1/namespaces/shop/pods/web"));
        }
        let node = serde_json::json!({ "metadata": { "name": "a" } });
        assert_eq!(
            path_of("/api/v1/nodes", &node).as_deref(),
            Some("/api/v1/nodes/a")
        );
        assert_eq!(path_of("/api/v1/nodes", &Value::Null), None);
    }

    #[test]
    fn a_star_matches_one_part() {
        assert!(is_below(
            "/api/v1/namespaces/a/pods/b",
            "/api/v1/namespaces/*/pods"
        ));
        assert!(!is_below("/api/v1/namespaces/a/pods/b", "/api/v1/namespaces/*"));
        assert!(!is_below(
            "/api/v1/namespaces/a/pods/b/c",
            "/api/v1/namespaces/*/pods"
        ));
    }
}
