//! The pool that a first start creates if there is none, and the other objects of every cluster.

use std::fmt::Write as _;
use std::io::Read;

use anyhow::{Context, Result};
use kube::Client;
use serde_json::Value;
use tracing::info;

use super::environment::Environment;
use crate::datastore::types::{
    ClusterInformation, ClusterInformationSpec, FelixConfiguration, FelixConfigurationSpec, IPPool,
    IPPoolSpec, Tier, TierSpec,
};
use crate::datastore::{Store, Written};
use crate::version;

/// Name of the pool.
const POOL: &str = "default-ipv4-ippool";

/// Creates the default pool if there is no IPv4 pool and the environment permits it.
pub async fn ensure_pool(client: &Client, environment: &Environment) -> Result<()> {
    if environment.get("NO_DEFAULT_POOLS") == Some("true") {
        return Ok(());
    }
    let store: Store<IPPool> = Store::new(client);
    if store
        .list("")
        .await?
        .iter()
        .any(|pool| pool.spec.range().is_some())
    {
        return Ok(());
    }
    let size = environment.get("CALICO_IPV4POOL_BLOCK_SIZE");
    let size = size
        .map(str::parse)
        .transpose()
        .context("read CALICO_IPV4POOL_BLOCK_SIZE as a number")?;
    let spec = IPPoolSpec {
        cidr: environment
            .get("CALICO_IPV4POOL_CIDR")
            .unwrap_or("192.168.0.0/16")
            .to_owned(),
        block_size: Some(size.unwrap_or(26)),
        ipip_mode: Some(
            environment
                .get("CALICO_IPV4POOL_IPIP")
                .unwrap_or("Never")
                .to_owned(),
        ),
        vxlan_mode: Some(
            environment
                .get("CALICO_IPV4POOL_VXLAN")
                .unwrap_or("Never")
                .to_owned(),
        ),
        nat_outgoing: environment.get("CALICO_IPV4POOL_NAT_OUTGOING") != Some("false"),
        node_selector: Some(
            environment
                .get("CALICO_IPV4POOL_NODE_SELECTOR")
                .unwrap_or("all()")
                .to_owned(),
        ),
        allowed_uses: Some(vec!["Workload".to_owned(), "Tunnel".to_owned()]),
        assignment_mode: Some("Automatic".to_owned()),
        ..IPPoolSpec::default()
    };
    if let Written::Done(pool) = store.create(&IPPool::new(POOL, spec)).await? {
        info!(cidr = pool.spec.cidr, "created the default pool: there was none");
    }
    Ok(())
}

/// Creates the missing objects that every cluster has.
pub async fn ensure_defaults(client: &Client, environment: &Environment) -> Result<()> {
    let information: Store<ClusterInformation> = Store::new(client);
    let kind = environment
        .get("CLUSTER_TYPE")
        .map_or("k8s,kdd".to_owned(), |kind| format!("{kind},kdd"));
    match information.get("default").await? {
        None => {
            let spec = ClusterInformationSpec {
                cluster_guid: Some(guid()?),
                cluster_type: Some(kind),
                calico_version: Some(version::WITHOUT_FILE.to_owned()),
                datastore_ready: Some(true),
                ..ClusterInformationSpec::default()
            };
            information
                .create(&ClusterInformation::new("default", spec))
                .await?;
        }
        Some(mut found) => {
            let before = found.clone();
            found.spec.calico_version = Some(version::WITHOUT_FILE.to_owned());
            found.spec.cluster_type.get_or_insert(kind);
            found.spec.datastore_ready.get_or_insert(true);
            if found.spec.cluster_guid.is_none() {
                found.spec.cluster_guid = Some(guid()?);
            }
            if found.spec != before.spec {
                // A conflict means that another node writes the same object.
                information.replace(&found).await?;
            }
        }
    }
    let tiers: Store<Tier> = Store::new(client);
    for (name, order, action) in [
        ("default", 1_000_000.0, "Deny"),
        ("adminnetworkpolicy", 1_000.0, "Pass"),
        ("baselineadminnetworkpolicy", 10_000_000.0, "Pass"),
    ] {
        if tiers.get(name).await?.is_none() {
            let other = [("defaultAction".to_owned(), Value::from(action))].into();
            tiers
                .create(&Tier::new(
                    name,
                    TierSpec {
                        order: Some(order),
                        other,
                    },
                ))
                .await?;
        }
    }
    ensure_felix(client).await
}

async fn ensure_felix(client: &Client) -> Result<()> {
    let store: Store<FelixConfiguration> = Store::new(client);
    let defaults = [
        ("reportingInterval", "0s"),
        ("logSeverityScreen", "Info"),
        ("floatingIPs", "Disabled"),
        ("bpfConnectTimeLoadBalancing", "TCP"),
        ("bpfHostNetworkedNATWithoutCTLB", "Enabled"),
    ];
    let defaults = defaults.map(|(name, value)| (name.to_owned(), Value::from(value)));
    match store.get("default").await? {
        None => {
            let spec = FelixConfigurationSpec {
                settings: defaults.into(),
            };
            store.create(&FelixConfiguration::new("default", spec)).await?;
        }
        Some(mut found) => {
            let before = found.spec.clone();
            for (name, value) in defaults {
                found.spec.settings.entry(name).or_insert(value);
            }
            if found.spec != before {
                // A conflict means that another node writes the same object.
                store.replace(&found).await?;
            }
        }
    }
    Ok(())
}

fn guid() -> Result<String> {
    let mut bytes = [0_u8; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("read random bytes for the cluster's identifier")?;
    let mut text = String::new();
    for byte in bytes {
        write!(text, "{byte:02x}")?;
    }
    Ok(text)
}
