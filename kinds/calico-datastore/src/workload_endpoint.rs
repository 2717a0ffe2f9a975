//! Converts workload endpoints.

use std::collections::BTreeMap;

use super::conversion::Conversion;
use super::decode::{Decode, Fields, read};
use super::endpoint_port::EndpointPort;
use super::escape::unescaped;
use super::finding::Findings;
use super::hardware_address::HardwareAddress;
use super::json::Json;
use super::key::{ObjectKind, V2Key};
use super::mismatch::Mismatch;
use super::names;
use super::network::{Address, Network};
use super::note::Note;
use super::report::Cause;
use super::resource::Resource;
use super::selector::{NEW_NAMESPACE, OLD_NAMESPACE};
use super::spec::workload_endpoint::{Spec, Translation};
use super::v2::Tree;
use super::validate::{metadata, workload};

/// Orchestrator whose own driver writes its endpoints again.
const OPENSTACK: &str = "openstack";
/// Namespace of endpoints of other orchestrators than Kubernetes.
const DEFAULT_NAMESPACE: &str = "default";

/// An endpoint in v2.
#[derive(Debug, Default)]
struct Endpoint {
    interface: String,
    instance: String,
    hardware_address: Option<HardwareAddress>,
    profiles: Vec<String>,
    networks: [Vec<Network>; 2],
    translations: [Vec<OldTranslation>; 2],
    gateways: [Option<Address>; 2],
    labels: BTreeMap<String, String>,
    ports: Vec<EndpointPort>,
}

impl Decode for Endpoint {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        // Only their types are checked.
        for name in ["state", "generate_name"] {
            fields.get::<String>(name)?;
        }
        Ok(Self {
            interface: fields.get("name")?,
            instance: fields.get("active_instance_id")?,
            hardware_address: fields.get("mac")?,
            profiles: fields.get("profile_ids")?,
            networks: [fields.get("ipv4_nets")?, fields.get("ipv6_nets")?],
            translations: [fields.get("ipv4_nat")?, fields.get("ipv6_nat")?],
            gateways: [fields.get("ipv4_gateway")?, fields.get("ipv6_gateway")?],
            labels: fields.get("labels")?,
            ports: fields.get("ports")?,
        })
    }
}

#[derive(Debug, Default)]
struct OldTranslation {
    inner: Address,
    outer: Address,
}

impl Decode for OldTranslation {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        Ok(Self {
            inner: fields.get("int_ip")?,
            outer: fields.get("ext_ip")?,
        })
    }
}

/// The parts of the key of an endpoint.
struct Place<'tree> {
    host: &'tree str,
    orchestrator: String,
    workload: String,
    endpoint: String,
}

/// Converts all endpoints except those of `OpenStack`.
pub fn convert(tree: &Tree, conversion: &mut Conversion) {
    let mut of_openstack = 0;
    let mut batch = conversion.batch();
    for entry in tree.matching("/calico/v1/host/*/workload/*/*/endpoint/*") {
        let place = Place {
            host: entry.parts[0],
            orchestrator: unescaped(entry.parts[1]),
            workload: unescaped(entry.parts[2]),
            endpoint: unescaped(entry.parts[3]),
        };
        if place.orchestrator == OPENSTACK {
            of_openstack += 1;
            continue;
        }
        let key = V2Key::WorkloadEndpoint {
            node: place.host.to_owned(),
            orchestrator: place.orchestrator.clone(),
            workload: place.workload.clone(),
            endpoint: place.endpoint.clone(),
        };
        let converted = read(entry.value).and_then(|endpoint| converted(&key, &place, endpoint));
        batch.add(key, entry.path, converted);
    }
    if of_openstack > 0 {
        conversion.notes.push(Note::WrittenByControllers {
            what: "endpoints of OpenStack",
            count: of_openstack,
        });
    }
}

fn converted(key: &V2Key, place: &Place<'_>, endpoint: Endpoint) -> Result<Resource, Cause> {
    let texts = |networks: &[Network]| networks.iter().map(Network::to_string).collect::<Vec<_>>();
    let gateway = |gateway: &Option<Address>| gateway.map_or_else(String::new, |address| address.to_string());
    let mut spec = Spec {
        orchestrator: names::name(&place.orchestrator),
        node: names::node(place.host),
        endpoint: names::name(&place.endpoint),
        ip_networks: endpoint
            .networks
            .iter()
            .flat_map(|networks| texts(networks))
            .collect(),
        ip_nats: endpoint.translations.iter().flatten().map(translation).collect(),
        ipv4_gateway: gateway(&endpoint.gateways[0]),
        ipv6_gateway: gateway(&endpoint.gateways[1]),
        profiles: endpoint
            .profiles
            .iter()
            .map(|profile| names::profile(profile))
            .collect(),
        interface_name: endpoint.interface,
        mac: endpoint
            .hardware_address
            .map_or_else(String::new, |address| address.to_string()),
        ports: endpoint.ports.iter().map(EndpointPort::in_v3).collect(),
        ..Spec::default()
    };
    let mut namespace = DEFAULT_NAMESPACE.to_owned();
    match place.orchestrator.as_str() {
        "k8s" => {
            let (of_pod, pod) = place.workload.split_once('.').ok_or_else(|| Cause::Workload {
                workload: place.workload.clone(),
            })?;
            of_pod.clone_into(&mut namespace);
            pod.clone_into(&mut spec.pod);
            spec.container_id = endpoint.instance;
        }
        "cni" => spec.container_id.clone_from(&place.workload),
        "libnetwork" => "libnetwork".clone_into(&mut spec.workload),
        _ => spec.workload = names::name(&place.workload),
    }
    let name = name(&spec)?;
    let mut labels = endpoint.labels;
    if let Some(value) = labels.remove(OLD_NAMESPACE) {
        labels.insert(NEW_NAMESPACE.to_owned(), value);
    }
    let mut findings = Findings::default();
    metadata::name(&name, &mut findings);
    metadata::labels("metadata.labels", &labels, &mut findings);
    workload::spec(&namespace, &spec, &mut findings);
    let mut resource = Resource::new(ObjectKind::WorkloadEndpoint, name, &spec)?;
    resource.name.namespace = Some(namespace);
    resource.labels = labels;
    resource.findings = findings.0;
    for (old, new) in endpoint.ports.iter().zip(&spec.ports) {
        let by_number = old.note(key);
        if by_number.is_none() && old.protocol != new.protocol {
            resource.notes.push(Note::WorkloadPort {
                key: key.clone(),
                port: old.name.clone(),
            });
        }
        resource.notes.extend(by_number);
    }
    Ok(resource)
}

fn translation(old: &OldTranslation) -> Translation {
    Translation {
        internal_ip: old.inner.to_string(),
        external_ip: old.outer.to_string(),
    }
}

/// The name of an endpoint, from its spec.
fn name(spec: &Spec) -> Result<String, Cause> {
    let third = match spec.orchestrator.as_str() {
        "k8s" => ("pod", spec.pod.as_str()),
        "cni" => ("containerID", spec.container_id.as_str()),
        "libnetwork" => ("orchestrator", spec.orchestrator.as_str()),
        _ => ("workload", spec.workload.as_str()),
    };
    names::workload_endpoint(&[
        ("node", &spec.node),
        ("orchestrator", &spec.orchestrator),
        third,
        ("endpoint", &spec.endpoint),
    ])
}

#[cfg(test)]
mod tests;
