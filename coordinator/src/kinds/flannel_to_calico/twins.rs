//! Warnings about migrated nodes on which rules of other programs have no twins: these rules do not apply to pods of Calico there.

use std::sync::Arc;

use api::{Migration, NodeMigration};
use flannel_to_calico::api::missing_twins;
use kube::ResourceExt;

use crate::memory::Memory;
use crate::snapshot::Snapshot;

/// Warns of each missing twin.
pub(super) fn warn(memory: &mut Memory, migration: &Migration, snapshot: &Snapshot) {
    let twins = warnings(snapshot.node_migrations.values());
    memory.warnings.of_kind(&migration.name_any(), twins);
}

/// The node and the message of each missing twin.
fn warnings<'objects>(
    objects: impl IntoIterator<Item = &'objects Arc<NodeMigration>>,
) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for object in objects {
        let status = object
            .status
            .as_ref()
            .and_then(|status| status.flannel_to_calico.as_ref());
        if let (Some(spec), Some(status)) = (&object.spec.flannel_to_calico, status) {
            let node = format!("node {}", object.spec.node_name);
            found.extend(missing_twins(spec, status).map(|twin| (node.clone(), format!("{node}: {twin}"))));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(phase: &str, write_twins: bool) -> Arc<NodeMigration> {
        let facts = json!({
            "flanneldRunning": false, "subnetEnvironment": { "absent": true },
            "cni": { "path": "/etc/cni/net.d", "files": [] }, "vxlanDevices": [], "bridge": { "absent": true },
            "directRoutes": [], "reversePathFilter": { "all": 1, "interfaces": {} }, "firewall": [], "leases": 0, "delegates": 0,
            "detectedAddress": null, "uplink": null, "bridgeNfCallIptables": null,
            "foreignRules": { "rules": [{
                "chain": "nft inet odd c", "rule": "iifname \"cni0\" accept", "twin": "iifname \"cali*\" accept",
                "refused": "nft: too long",
            }] },
        });
        let object = json!({
            "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration", "metadata": { "name": "a" },
            "spec": { "nodeName": "a", "migration": "demo", "flannelToCalico": { "host": {
                "vni": 1, "port": 8472, "mtu": 1450, "cniConfigurationDirectory": "/etc/cni/net.d",
                "writeFirewallTwins": write_twins,
            } } },
            "status": { "observedGeneration": 1, "flannelToCalico": { "phase": phase, "facts": facts } },
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    /// A firewall of a migrated node has reloaded its rules, and refuses a twin.
    #[test]
    fn a_missing_twin_on_a_migrated_node_is_reported() {
        let found = warnings([&node("Calico", true)]);
        let line = "node a: nft inet odd c: iifname \"cni0\" accept: without its twin (nft: too long): iifname \"cali*\" accept";
        assert_eq!(found, [("node a".to_owned(), line.to_owned())]);
        assert_eq!(warnings([&node("Flannel", true)]), [], "the check says so");
        assert_eq!(warnings([&node("Calico", false)]), [], "a person keeps them");
    }
}
