//! The capabilities in deploy/base/agent.yaml are sufficient, and are those that the tests use.

use std::path::Path;

use flannel_to_calico::host::leftovers;
use flannel_to_calico::phase::Goal;
use rustix::thread::{
    CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use crate::drive;
use crate::host::{Host, in_namespace, run};

const MANIFEST: &str = include_str!("../../../deploy/base/agent.yaml");
const SERVICE_CIDR: &str = include_str!("../../../deploy/service-cidr/component/kustomization.yaml");

/// The capabilities of the agent's container.
pub fn container_capabilities() -> CapabilitySet {
    let mut granted = CapabilitySet::empty();
    let lines = MANIFEST
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "add:")
        .skip(1);
    for name in lines.map_while(|line| line.strip_prefix("- ")) {
        let name = name.split('#').next().unwrap().trim();
        granted |= CapabilitySet::from_name(name).unwrap_or_else(|| panic!("{name} is not a capability"));
    }
    assert!(!granted.is_empty(), "the manifest grants nothing");
    granted
}

/// The same with deploy/service-cidr.
pub fn granted_for_service_cidr() -> CapabilitySet {
    assert!(SERVICE_CIDR.contains("value: SYS_PTRACE\n"), "{SERVICE_CIDR}");
    container_capabilities() | CapabilitySet::SYS_PTRACE
}

/// Limits this thread to the capabilities of the agent's container, and to its own processes.
///
/// A machine with running labs has flanneld processes of other nodes, which an agent with these capabilities cannot distinguish
/// from its own node's.
pub fn limit_to_container(host: &mut Host) {
    let proc = host.folder.path().join("proc");
    std::fs::create_dir(&proc).unwrap();
    for name in ["sys", "thread-self"] {
        std::os::unix::fs::symlink(Path::new("/proc").join(name), proc.join(name)).unwrap();
    }
    host.paths.proc = proc;
    drop_all_capabilities_except(container_capabilities());
    let refused = std::process::Command::new("unshare")
        .args(["--mount", "true"])
        .output()
        .unwrap();
    assert!(
        !refused.status.success(),
        "capabilities that are not granted were not dropped"
    );
}

/// Drops all capabilities that a container with these capabilities and without new privileges does not have.
pub fn drop_all_capabilities_except(granted: CapabilitySet) {
    for capability in CapabilitySet::all().iter() {
        if !granted.contains(capability) {
            // A kernel that does not know the capability cannot grant it.
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
    set_capabilities(
        None,
        CapabilitySets {
            effective: granted,
            permitted: granted,
            inheritable: CapabilitySet::empty(),
        },
    )
    .unwrap();
    set_no_new_privs(true).unwrap();
}

#[test]
#[ignore = "needs root and network namespaces"]
fn the_capabilities_of_the_manifest_are_sufficient() {
    in_namespace(|| async {
        let mut host = Host::new();
        for backend in [
            "iptables-nft",
            "ip6tables-nft",
            "iptables-legacy",
            "ip6tables-legacy",
        ] {
            Host::firewall(backend);
        }
        Host::nftables();
        limit_to_container(&mut host);
        assert_eq!(drive(&host, Goal::Held).await, None);
        Host::delete_last_pod();
        assert_eq!(drive(&host, Goal::Detached).await, None);
        host.install_calico();
        assert_eq!(drive(&host, Goal::Calico).await, None);
        assert_eq!(
            leftovers(&host.observe().await.facts, &host.settings()),
            Vec::<String>::new()
        );
        assert!(!run("iptables-legacy-save").contains("FLANNEL"));
    });
}

#[test]
fn the_manifest_mounts_every_folder_and_shares_the_hosts_namespaces() {
    for path in [
        "/etc/cni/net.d",
        "/var/lib/cni",
        "/run/flannel",
        "/run/replumb",
        "/var/lib/replumb",
        "/run/xtables.lock",
    ] {
        assert!(
            MANIFEST.contains(&format!("mountPath: {path}\n")),
            "{path} is not mounted"
        );
        assert!(
            MANIFEST.contains(&format!("path: {path}\n")),
            "{path} of the host is not named"
        );
    }
    for line in ["hostNetwork: true", "hostPID: true", "privileged: false"] {
        assert!(MANIFEST.contains(line), "{line} is missing");
    }
    for name in ["NODE_NAME", "HOST_IP"] {
        assert!(MANIFEST.contains(&format!("name: {name}\n")), "{name} is not set");
    }
    assert!(
        !container_capabilities().contains(CapabilitySet::SYS_PTRACE),
        "only serviceCidr reads other processes"
    );
}
