//! Details of pods that few pods have: command lines of the control plane, pins, the image of calico-node.

use std::net::IpAddr;

use calico::{NODE_CONTAINER, PIN_ANNOTATIONS};
use engine::cluster;
use engine::command_line::runs;
use engine::owner::KUBE_SYSTEM;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::super::daemon_sets;

/// Programs whose command lines are read.
const PROGRAMS: [&str; 3] = ["kube-apiserver", "kube-controller-manager", PER_NODE];
/// The one of them that runs on every node. The template of a `DaemonSet` has the command line of all its pods.
const PER_NODE: &str = "kube-proxy";

/// Most bytes kept of an annotation.
pub(super) const LONGEST: usize = 4096;

/// Details of a few pods, empty for most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDetails {
    /// Containers of a pod of kube-system that run an API server, a controller manager, or kube-proxy as a static pod.
    pub programs: Vec<cluster::Container>,
    /// The host's address of such a pod.
    pub host_address: Option<IpAddr>,
    /// Annotations that pin the pod's address or pool, with their values.
    pub pins: Vec<(String, String)>,
    /// `ConfigMap`s mounted by a pod of kube-system: that of a name server has its Corefile.
    pub config_maps: Vec<String>,
    /// The image of the calico-node container.
    pub calico_image: Option<String>,
}

/// Details of the pod; `None` for most pods.
pub fn details(pod: &Pod) -> Option<PodDetails> {
    let annotations = pod.metadata.annotations.iter().flatten();
    let mut more = PodDetails {
        pins: annotations
            .filter(|(key, _)| PIN_ANNOTATIONS.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), kept(value)))
            .collect(),
        ..PodDetails::default()
    };
    if let Some(spec) = &pod.spec {
        // In another namespace, its owner may run a program of any name with any arguments.
        if pod.metadata.namespace.as_deref() == Some(KUBE_SYSTEM) {
            let of_daemon_set = is_of_a_daemon_set(pod);
            let is_read = |container: &cluster::Container| {
                let mut programs = PROGRAMS
                    .iter()
                    .filter(|program| !(of_daemon_set && **program == PER_NODE));
                programs.any(|program| runs(container, program))
            };
            more.programs = spec
                .containers
                .iter()
                .filter(|container| names_a_program(container))
                .map(|found| daemon_sets::container(found, false))
                .filter(is_read)
                .collect();
            let volumes = spec.volumes.iter().flatten();
            more.config_maps = volumes
                .filter_map(|volume| Some(volume.config_map.as_ref()?.name.clone()))
                .collect();
        }
        let mut containers = spec.containers.iter();
        more.calico_image = containers
            .find(|container| container.name == NODE_CONTAINER)
            .and_then(|container| container.image.as_deref())
            .map(kept);
    }
    if !more.programs.is_empty() {
        let host = pod.status.as_ref().and_then(|status| status.host_ip.as_deref());
        more.host_address = host.and_then(|text| text.parse().ok());
    }
    (more != PodDetails::default()).then_some(more)
}

fn is_of_a_daemon_set(pod: &Pod) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.controller == Some(true) && owner.kind == "DaemonSet")
}

/// Whether the container names a program of interest: a quick filter before parsing.
fn names_a_program(container: &Container) -> bool {
    let words = container
        .command
        .iter()
        .flatten()
        .chain(container.args.iter().flatten());
    PROGRAMS
        .iter()
        .any(|program| words.clone().any(|word| word.contains(program)))
}

/// The part of a value that is kept: an annotation or an image name may be as long as a whole object.
fn kept(value: &str) -> String {
    let mut end = value.len().min(LONGEST);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    value[..end].to_owned()
}
