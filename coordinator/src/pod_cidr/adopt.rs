//! One `NodeMigration` for each Node, with what its agent looks for.

use api::migration::{Direction, PodCidr, Stage, StageNow};
use api::node_migration::NodeMigrationSpec;
use api::{Migration, NodeMigration};
use kube::{Api, ResourceExt};
use plan::pod_cidr::ends;
use plan::pod_cidr::host::HostSettings;

use crate::cache::Cache;
use crate::context::Context;
use crate::node_migrations::{self, belongs_to};
use crate::write::{self, WriteError};

/// What agents look for on the way there.
pub fn look(kind: &PodCidr) -> HostSettings {
    HostSettings {
        from: kind.from,
        to: kind.to,
        mtu: None,
        cni_configuration_directory: None,
        tunnel_ends: Vec::new(),
    }
}

/// The same on the way back: the range that is left is the other one.
pub fn look_back(kind: &PodCidr) -> HostSettings {
    HostSettings {
        from: kind.to,
        to: kind.from,
        ..look(kind)
    }
}

/// Whether agents keep the addresses of tunnels that Calico exchanges: from the moment at which it may do so until blocks go.
pub fn keeps(stage: Option<&StageNow>, direction: Direction) -> bool {
    stage.is_some_and(|stage| {
        stage.direction == direction && (Stage::Switch..=Stage::Soak).contains(&stage.name)
    })
}

/// Brings the `NodeMigration`s in line with the Nodes, and asks every agent for what it does not know of yet. `keeps` says whether
/// agents keep the addresses of their tunnels.
pub async fn adopt(
    context: &Context,
    cache: &Cache,
    migration: &Migration,
    look: &HostSettings,
    keeps: bool,
) -> Result<(), WriteError> {
    for object in node_migrations::without_node(cache, migration) {
        node_migrations::delete(context, &object).await?;
    }
    // From the start: an agent that does not know better looks for flannel.
    let ask = |spec: &mut NodeMigrationSpec| spec.pod_cidr = Some(look.clone());
    node_migrations::adopt(context, cache, migration, ask).await?;
    let api: Api<NodeMigration> = Api::all(context.client.clone());
    let nodes = node_migrations::linux_nodes(cache);
    for object in cache.node_migrations.state() {
        let before = object.spec.pod_cidr.as_ref();
        let tunnel_ends = match nodes.get(&object.spec.node_name).filter(|_| keeps) {
            Some(node) => {
                let told = before.map_or(&[][..], |settings| settings.tunnel_ends.as_slice());
                ends::told(told, &ends::of_node(node.annotations()), &look.from)
            }
            None => Vec::new(),
        };
        let wanted = HostSettings {
            tunnel_ends,
            ..look.clone()
        };
        if belongs_to(&object, migration) && before != Some(&wanted) {
            let spec = NodeMigrationSpec {
                pod_cidr: Some(wanted),
                ..object.spec.clone()
            };
            write::patch_spec(&api, object.as_ref(), &object.spec, &spec).await?;
        }
    }
    Ok(())
}
