//! Releases claims on empty blocks whose pool no longer selects their node. Claims of a disabled pool stay: Calico
//! checks only enabled pools.

use std::collections::BTreeMap;

use anyhow::Result;
use ipnet::Ipv4Net;
use tracing::{info, warn};

use super::claim::{self, PENDING_DELETION};
use super::pool::{self, Choice};
use super::{Ipam, TRIES, names};
use crate::datastore::Written;
use crate::datastore::types::IPPool;

impl Ipam {
    /// Releases this node's empty blocks of enabled pools that do not select it. After a failure the next assignment tries again.
    pub(super) async fn release_unselected(&self, choice: &Choice, claimed: &[Ipv4Net]) {
        let kept = claim::within(claimed, &choice.selecting);
        for range in claimed.iter().filter(|range| !kept.contains(range)) {
            let released = async {
                if is_unselected(*range, &choice.enabled, &choice.labels)? {
                    self.release_claim(*range, &self.node).await?;
                }
                Ok::<_, anyhow::Error>(())
            };
            if let Err(error) = released.await {
                warn!(%range, "release a block of a pool that does not select the node: {error:#}");
            }
        }
    }

    /// The same for one block of a node, from which an address has just been released.
    pub(super) async fn release_where_unselected(&self, range: Ipv4Net, node: &str) {
        let released = async {
            let Some(labels) = self.labels_of(node).await? else {
                return Ok(());
            };
            if is_unselected(range, &self.enabled_pools().await?, &labels)? {
                self.release_claim(range, node).await?;
            }
            Ok::<_, anyhow::Error>(())
        };
        if let Err(error) = released.await {
            warn!(%range, node, "release a block of a pool that does not select its node: {error:#}");
        }
    }

    /// Releases a node's claim if no address of the block is assigned: the claim is marked, the block is deleted, the
    /// claim is deleted.
    async fn release_claim(&self, range: Ipv4Net, node: &str) -> Result<()> {
        for _ in 0..TRIES {
            let Some(claim) = self.claim_on(&names::affinity(node, range)).await? else {
                return Ok(());
            };
            let Some(block) = self.block(range).await? else {
                return Ok(());
            };
            if block.spec.affinity.is_some() && block.spec.node() != Some(node) {
                // The block belongs to another node: the claim is a leftover.
                self.affinities.delete(&claim).await?;
                return Ok(());
            }
            if !block.spec.is_empty() {
                return Ok(());
            }
            let Written::Done(claim) = self.set(claim, PENDING_DELETION).await? else {
                continue;
            };
            if let Written::Done(()) = self.blocks.delete(&block).await?
                && let Written::Done(()) = self.affinities.delete(&claim).await?
            {
                info!(%range, node, "released an empty block: its pool does not select the node");
                return Ok(());
            }
        }
        anyhow::bail!("release block {range} of node {node}: another writer was faster {TRIES} times")
    }
}

/// Whether a block is of an enabled pool that does not select a node with these labels.
fn is_unselected(range: Ipv4Net, enabled: &[IPPool], labels: &BTreeMap<String, String>) -> Result<bool> {
    match pool::holding(enabled, range.addr()) {
        Some(pool) => Ok(!pool::selects_node(&pool.spec, labels)?),
        None => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::Use;
    use super::super::block::Owner;
    use super::*;
    use crate::fake_api::{CALICO, FakeApi};

    const OLD: &str = "/apis/crd.projectcalico.org/v1/ippools/old";
    const NEW: &str = "/apis/crd.projectcalico.org/v1/ippools/new";

    /// A node, and two pools of one block each.
    fn api() -> FakeApi {
        let api = FakeApi::default();
        api.put(
            "/api/v1/nodes/n1",
            json!({ "metadata": { "labels": { "zone": "a" } } }),
        );
        api.put(
            OLD,
            json!({ "spec": { "cidr": "10.244.0.0/26", "vxlanMode": "Always" } }),
        );
        api.put(
            NEW,
            json!({ "spec": { "cidr": "10.200.0.0/26", "vxlanMode": "Always", "disabled": true } }),
        );
        api
    }

    fn ipam(api: &FakeApi) -> Ipam {
        Ipam::new(&api.client(), "n1")
    }

    fn pod(name: &str) -> Owner {
        let attributes = [("node", "n1"), ("pod", name), ("namespace", "default")];
        Owner {
            handle: names::pod_handle("k8s-pod-network", name),
            attributes: attributes
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
        }
    }

    async fn assign(api: &FakeApi, name: &str, requested: &[&str]) -> Result<String> {
        let requested: Vec<String> = requested.iter().map(|it| (*it).to_owned()).collect();
        let address = ipam(api)
            .assign_any(&pod(name), Use::Workload, &requested)
            .await?;
        Ok(address.addr().to_string())
    }

    fn blocks(api: &FakeApi) -> Vec<String> {
        let blocks = api.names(&format!("{CALICO}/ipamblocks"));
        let claims = api.names(&format!("{CALICO}/blockaffinities"));
        let of_claims: Vec<_> = claims.iter().map(|name| name.trim_start_matches("n1-")).collect();
        assert_eq!(blocks, of_claims, "each block has its claim");
        blocks
    }

    fn change(api: &FakeApi, pool: &str, spec: &Value) {
        api.edit(pool, &json!({ "spec": spec }));
    }

    #[tokio::test]
    async fn a_disabled_pool_assigns_no_address_and_its_empty_block_keeps_its_node() {
        let api = api();
        assert_eq!(assign(&api, "before", &[]).await.unwrap(), "10.244.0.0");
        change(&api, NEW, &json!({ "disabled": false }));
        change(&api, OLD, &json!({ "disabled": true }));
        assert_eq!(assign(&api, "after", &[]).await.unwrap(), "10.200.0.0");
        assert_eq!(ipam(&api).release(&pod("before").handle).await.unwrap(), 1);
        assert_eq!(assign(&api, "later", &[]).await.unwrap(), "10.200.0.1");
        assert_eq!(blocks(&api), ["10-200-0-0-26", "10-244-0-0-26"]);
        change(&api, NEW, &json!({ "disabled": true }));
        let error = assign(&api, "none", &[]).await.unwrap_err().to_string();
        assert_eq!(error, "cannot find a qualified ippool");
    }

    #[tokio::test]
    async fn a_pool_without_nodes_serves_requests_and_its_empty_block_is_released_at_once() {
        let api = api();
        assign(&api, "before", &[]).await.unwrap();
        let error = assign(&api, "early", &["new"]).await.unwrap_err().to_string();
        assert_eq!(
            error,
            "the given pool (10.200.0.0/26) does not exist, or is not enabled"
        );
        change(&api, NEW, &json!({ "disabled": false, "nodeSelector": "!all()" }));
        assert_eq!(
            assign(&api, "probe", &["10.200.0.0/26"]).await.unwrap(),
            "10.200.0.0"
        );
        assert_eq!(assign(&api, "other", &[]).await.unwrap(), "10.244.0.1");
        assert_eq!(
            blocks(&api),
            ["10-200-0-0-26", "10-244-0-0-26"],
            "the block is in use"
        );
        ipam(&api).release(&pod("probe").handle).await.unwrap();
        assert_eq!(blocks(&api), ["10-244-0-0-26"]);
    }

    #[tokio::test]
    async fn the_next_assignment_releases_an_empty_block_whose_pool_no_longer_selects_the_node() {
        let api = api();
        change(
            &api,
            NEW,
            &json!({ "disabled": false, "nodeSelector": "zone == 'a'" }),
        );
        for (name, pool) in [("one", "old"), ("two", "new")] {
            assign(&api, name, &[pool]).await.unwrap();
        }
        ipam(&api).release(&pod("one").handle).await.unwrap();
        assert_eq!(blocks(&api).len(), 2, "the pool still selects the node");
        change(&api, OLD, &json!({ "nodeSelector": "zone == 'b'" }));
        assign(&api, "three", &[]).await.unwrap();
        assert_eq!(blocks(&api), ["10-200-0-0-26"]);
    }

    #[tokio::test]
    async fn a_block_deleted_in_a_disabled_pool_is_not_claimed_again() {
        let api = api();
        assign(&api, "before", &[]).await.unwrap();
        ipam(&api).release(&pod("before").handle).await.unwrap();
        change(&api, NEW, &json!({ "disabled": false }));
        change(&api, OLD, &json!({ "disabled": true }));
        let claim = format!("{CALICO}/blockaffinities/n1-10-244-0-0-26");
        api.edit(&claim, &json!({ "spec": { "state": PENDING_DELETION } }));
        api.remove(&format!("{CALICO}/ipamblocks/10-244-0-0-26"));
        assign(&api, "after", &[]).await.unwrap();
        assert_eq!(api.names(&format!("{CALICO}/ipamblocks")), ["10-200-0-0-26"]);
        assert_eq!(api.get(&claim).unwrap()["spec"]["state"], PENDING_DELETION);
    }

    #[tokio::test]
    async fn a_claim_marked_as_deleted_is_confirmed_by_a_new_version_of_the_block() {
        let api = api();
        assign(&api, "before", &[]).await.unwrap();
        let claim = format!("{CALICO}/blockaffinities/n1-10-244-0-0-26");
        let block = format!("{CALICO}/ipamblocks/10-244-0-0-26");
        api.edit(&claim, &json!({ "spec": { "state": PENDING_DELETION } }));
        let number = || {
            api.get(&block).unwrap()["spec"]["sequenceNumber"]
                .as_u64()
                .unwrap()
        };
        let before = number();
        assert_eq!(assign(&api, "after", &[]).await.unwrap(), "10.244.0.1");
        assert_eq!(api.get(&claim).unwrap()["spec"]["state"], "confirmed");
        assert_eq!(number(), before + 2, "once for the claim, once for the address");
    }

    #[tokio::test]
    async fn a_block_marked_as_deleted_is_deleted_at_its_next_read() {
        let api = api();
        assign(&api, "before", &[]).await.unwrap();
        let block = format!("{CALICO}/ipamblocks/10-244-0-0-26");
        api.edit(&block, &json!({ "spec": { "deleted": true } }));
        // Its address is free by now: the new block starts with the first one again.
        assert_eq!(assign(&api, "after", &[]).await.unwrap(), "10.244.0.0");
        assert_eq!(api.get(&block).unwrap()["spec"]["deleted"], false);
        assert_eq!(blocks(&api), ["10-244-0-0-26"]);
    }
}
