//! Converts a whole store: the objects of v3 in the order of writing, and the reports.

pub use super::conversion::Conversion;
pub use super::key::ObjectKind;
use super::note::Note;
pub use super::object::Object;
use super::v2::Tree;
use super::{
    bgp_configuration, bgp_peer, cluster_information, felix, host_endpoint, ip_pool, ipam, node, policy,
    profile, workload_endpoint,
};

/// Converts a store. Values that cannot be converted are missing in the objects, so the objects are written only when the
/// conversion is clean.
///
/// The same store gives the same conversion, in the same order.
///
/// # Examples
///
/// ```
/// use calico_datastore::convert::convert;
/// use calico_datastore::v2::Tree;
///
/// let pool = r#"{"cidr":"10.244.0.0/16","ipip":"tunl0","masquerade":true}"#;
/// let key = "/calico/v1/ipam/v4/pool/10.244.0.0-16".to_owned();
/// let conversion = convert(&Tree::of([(key, pool.to_owned())].into()));
/// assert!(conversion.is_clean());
/// let pool = &conversion.objects[0];
/// assert_eq!(pool.key, "/calico/resources/v3/projectcalico.org/ippools/10-244-0-0-16");
/// assert_eq!(pool.value["spec"]["ipipMode"], "Always");
/// ```
pub fn convert(tree: &Tree) -> Conversion {
    let mut conversion = Conversion::default();
    felix::of_all(tree, &mut conversion);
    cluster_information::convert(tree, &mut conversion);
    felix::of_nodes(tree, &mut conversion);
    bgp_configuration::convert(tree, &mut conversion);
    node::convert(tree, &mut conversion);
    bgp_peer::of_all(tree, &mut conversion);
    bgp_peer::of_nodes(tree, &mut conversion);
    host_endpoint::convert(tree, &mut conversion);
    ip_pool::convert(tree, &mut conversion);
    policy::convert(tree, &mut conversion);
    profile::convert(tree, &mut conversion);
    workload_endpoint::convert(tree, &mut conversion);
    ipam::convert(tree, &mut conversion);
    conversion.notes.extend(tree.hidden().map(|path| Note::NotRead {
        path: path.to_owned(),
        what: "etcd does not list names that begin with an underscore, so Calico has never read this key",
    }));
    conversion
}

#[cfg(test)]
mod tests;
