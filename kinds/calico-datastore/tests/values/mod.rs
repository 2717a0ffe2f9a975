//! Checks that a value of Calico v2 is written or reported. Shared by a test and the fuzzer.

use std::collections::BTreeMap;

use calico_datastore::convert::{Conversion, convert};
use calico_datastore::run::record::PREFIX;
use calico_datastore::v2::Tree;
use serde_json::Value;

/// A key of each kind with a valid value.
pub const SHAPES: [(&str, &str); 27] = [
    ("/calico/v1/config/RouteRefreshInterval", "12.345"),
    ("/calico/v1/config/FailsafeInboundHostPorts", "tcp:22, udp:68,443"),
    ("/calico/v1/config/IptablesMarkMask", "0xff000000"),
    ("/calico/v1/config/Ipv6Support", "false"),
    ("/calico/v1/config/LogSeverityScreen", "WARNING"),
    ("/calico/v1/host/node-1/config/IpInIpMtu", "1440"),
    ("/calico/v1/host/node-1/config/IpInIpTunnelAddr", "10.0.0.1"),
    (
        "/calico/v1/host/node-1/orchestrator_refs",
        "[{\"orchestrator\": \"k8s\", \"nodeName\": \"n\"}]",
    ),
    ("/calico/bgp/v1/global/as_num", "1.10"),
    ("/calico/bgp/v1/global/loglevel", "debug"),
    ("/calico/bgp/v1/global/node_mesh", "{\"enabled\": true}"),
    (
        "/calico/bgp/v1/global/peer_v4/192.0.2.1",
        "{\"ip\": \"192.0.2.1\", \"as_num\": \"64512\"}",
    ),
    (
        "/calico/bgp/v1/host/node-1/peer_v6/fd00::9",
        "{\"ip\": \"fd00::9\", \"as_num\": \"1\"}",
    ),
    (
        "/calico/v1/host/node-1/endpoint/eth0",
        "{\"name\": \"eth0\", \"expected_ipv4_addrs\": [\"192.0.2.7\"], \"ports\": []}",
    ),
    (
        "/calico/v1/host/node-1/workload/k8s/ns.pod/endpoint/eth0",
        "{\"state\": \"active\", \"name\": \"cali1\", \"active_instance_id\": \"a\", \"mac\": \"ee:ee:ee:ee:ee:ee\", \
         \"profile_ids\": [\"p\"], \"ipv4_nets\": [\"10.0.0.7/32\"], \"labels\": {\"a\": \"b\"}}",
    ),
    (
        "/calico/v1/ipam/v4/pool/10.0.0.0-16",
        "{\"cidr\": \"10.0.0.0/16\", \"ipip\": \"tunl0\", \"masquerade\": true}",
    ),
    ("/calico/v1/ipam/v6/pool/fd00::-64", "{\"cidr\": \"fd00::/64\"}"),
    (
        "/calico/v1/policy/tier/default/policy/p",
        "{\"order\": 1.5, \"selector\": \"a == 'b' && has(calico/k8s_ns)\", \"inbound_rules\": [{\"action\": \"allow\", \"protocol\": \"tcp\", \
         \"dst_ports\": [80, \"1:2\", \"http\"], \"src_tag\": \"t\", \"!src_net\": \"10.0.0.1/8\"}], \"types\": [\"ingress\"]}",
    ),
    (
        "/calico/v1/policy/profile/p/rules",
        "{\"inbound_rules\": [{\"action\": \"next-tier\"}], \"outbound_rules\": []}",
    ),
    ("/calico/v1/policy/profile/p/labels", "{\"a\": \"b\"}"),
    ("/calico/v1/policy/profile/p/tags", "[\"t\"]"),
    (
        "/calico/ipam/v2/config",
        "{\"strict_affinity\": true, \"auto_allocate_blocks\": true}",
    ),
    (
        "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-30",
        "{\"cidr\": \"10.0.0.0/30\", \"affinity\": \"host:node-1\", \"allocations\": [0, null, null, null], \"unallocated\": [1, 2, 3], \
         \"attributes\": [{\"handle_id\": \"h\", \"secondary\": {}}]}",
    ),
    (
        "/calico/ipam/v2/host/node-1/ipv4/block/10.0.0.0-30",
        "{\"state\": \"confirmed\"}",
    ),
    ("/calico/ipam/v2/host/node-1/ipv6/block/fd00::-122", ""),
    ("/calico/ipam/v2/handle/h", "{\"block\": {\"10.0.0.0/30\": 1}}"),
    ("/calico/v1/config/ClusterType", "k8s,bgp"),
];

/// A store with this value, and without it.
fn stores(shape: usize, value: &str) -> [Tree; 2] {
    let base = [
        ("/calico/v1/Ready", "true"),
        ("/calico/v1/config/CalicoVersion", "v2.6.12"),
        ("/calico/v1/host/node-1/metadata", "{}"),
        ("/calico/bgp/v1/host/node-1/ip_addr_v4", "192.0.2.1"),
    ];
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let without: BTreeMap<String, String> = base.into_iter().map(owned).collect();
    let mut with = without.clone();
    let (key, _) = SHAPES[shape % SHAPES.len()];
    with.insert(key.to_owned(), value.to_owned());
    [Tree::of(with), Tree::of(without)]
}

/// Whether the value means the same as a missing one: an empty text, or an empty list of references.
fn is_blank(key: &str, value: &str) -> bool {
    let is_nothing = |value: Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    value.is_empty()
        || key.ends_with("/orchestrator_refs") && serde_json::from_str(value).is_ok_and(is_nothing)
}

/// Number of lines in all reports.
fn lines(conversion: &Conversion) -> usize {
    conversion.conversion_errors.len()
        + conversion.validation_errors.len()
        + conversion.clashes.len()
        + conversion.notes.len()
}

/// Converts a store with this value and checks the invariants.
pub fn check(shape: usize, value: &str) {
    let [with, without] = stores(shape, value);
    let (found, before) = (convert(&with), convert(&without));
    assert_eq!(found, convert(&with), "the same store gives another conversion");
    let key = SHAPES[shape % SHAPES.len()].0;
    assert!(
        is_blank(key, value) || found.objects != before.objects || lines(&found) > lines(&before),
        "{key:?} = {value:?} is neither written nor reported"
    );
    let mut keys: Vec<&str> = found.objects.iter().map(|object| object.key.as_str()).collect();
    assert!(
        keys.iter()
            .all(|key| key.starts_with("/calico/") && !key.starts_with(PREFIX))
    );
    assert!(
        keys.iter().all(|key| !key.contains("//") && !key.ends_with('/')),
        "{keys:?}"
    );
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), found.objects.len(), "two values have one key");
    let problems = found.conversion_errors.iter().chain(&found.validation_errors);
    for text in problems
        .map(ToString::to_string)
        .chain(found.notes.iter().map(ToString::to_string))
    {
        assert!(!text.contains('\n'), "a report has a line break: {text:?}");
    }
}
