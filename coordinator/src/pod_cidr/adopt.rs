//! One `NodeMigration` for each Node, with what its agent looks for.

use api::migration::PodCidr;
use api::node_migration::NodeMigrationSpec;
use api::{Migration, NodeMigration};
use kube::Api;
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

/// Brings the `NodeMigration`s in line with the Nodes, and asks every agent for what it does not know of yet.
pub async fn adopt(
    context: &Context,
    cache: &Cache,
    migration: &Migration,
    look: &HostSettings,
) -> Result<(), WriteError> {
    for object in node_migrations::without_node(cache, migration) {
        node_migrations::delete(context, &object).await?;
    }
    // From the start: an agent that does not know better looks for flannel.
    let ask = |spec: &mut NodeMigrationSpec| spec.pod_cidr = Some(look.clone());
    node_migrations::adopt(context, cache, migration, ask).await?;
    let api: Api<NodeMigration> = Api::all(context.client.clone());
    for object in cache.node_migrations.state() {
        if belongs_to(&object, migration) && object.spec.pod_cidr.as_ref() != Some(look) {
            let spec = NodeMigrationSpec {
                pod_cidr: Some(look.clone()),
                ..object.spec.clone()
            };
            write::patch_spec(&api, object.as_ref(), &object.spec, &spec).await?;
        }
    }
    Ok(())
}
