//! Blocks, claims and handles, with exactly the fields that Calico v2.6 and v3.8 write.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use super::store::Entry;
use crate::datastore::types::{AllocationAttribute, IPAMBlockSpec, Other};
use crate::version::Generation;

/// State of a host's claim on a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The block may not exist.
    Pending,
    /// The block belongs to the host. v2 has only this state.
    Confirmed,
    /// The block is being deleted.
    PendingDeletion,
}

/// A stored block. Go's empty list that was never filled is `null`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    cidr: String,
    affinity: Option<String>,
    #[serde(default)]
    strict_affinity: bool,
    allocations: Option<Vec<Option<usize>>>,
    unallocated: Option<Vec<usize>>,
    attributes: Option<Vec<Attribute>>,
    /// Only in v3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deleted: Option<bool>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Attribute {
    handle_id: Option<String>,
    secondary: Option<BTreeMap<String, String>>,
}

/// Addresses that are released together, by block.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    /// Number of addresses of each block.
    #[serde(default)]
    pub block: BTreeMap<String, usize>,
    /// Only in v3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deleted: Option<bool>,
}

#[derive(Serialize, Deserialize)]
struct State {
    #[serde(default)]
    state: String,
    #[serde(default)]
    deleted: bool,
}

/// Parses the value of a block.
pub fn read(entry: &Entry) -> Result<IPAMBlockSpec> {
    let stored: Stored = serde_json::from_str(&entry.value).with_context(|| format!("read {}", entry.key))?;
    let attributes = stored.attributes.unwrap_or_default().into_iter();
    Ok(IPAMBlockSpec {
        cidr: stored.cidr,
        affinity: stored.affinity,
        strict_affinity: stored.strict_affinity,
        allocations: stored.allocations.unwrap_or_default(),
        unallocated: stored.unallocated.unwrap_or_default(),
        attributes: attributes
            .map(|attribute| AllocationAttribute {
                handle_id: attribute.handle_id,
                secondary: attribute.secondary,
                other: Other::new(),
            })
            .collect(),
        deleted: stored.deleted.unwrap_or_default(),
        ..IPAMBlockSpec::default()
    })
}

/// The value of a block. `fresh`: no address of the block has been assigned yet.
pub fn text(block: &IPAMBlockSpec, generation: Generation, fresh: bool) -> Result<String> {
    let attributes = block.attributes.iter().map(|attribute| Attribute {
        handle_id: attribute.handle_id.clone(),
        secondary: attribute
            .secondary
            .clone()
            .filter(|secondary| !secondary.is_empty()),
    });
    let stored = Stored {
        cidr: block.cidr.clone(),
        affinity: block.affinity.clone(),
        strict_affinity: block.strict_affinity,
        allocations: Some(block.allocations.clone()),
        unallocated: Some(block.unallocated.clone()),
        attributes: (!fresh).then(|| attributes.collect()),
        deleted: of_v3(generation, block.deleted),
    };
    Ok(serde_json::to_string(&stored)?)
}

/// The value of a claim.
pub fn claim_text(claim: Claim, generation: Generation) -> Result<String> {
    if generation == Generation::V2 {
        return Ok("{}".to_owned());
    }
    let state = match claim {
        Claim::Pending => "pending",
        Claim::Confirmed => "confirmed",
        Claim::PendingDeletion => "pendingDeletion",
    };
    Ok(serde_json::to_string(&State {
        state: state.to_owned(),
        deleted: false,
    })?)
}

/// Parses the value of a claim. A claim without a state is confirmed: v2 writes `{}`, older versions nothing.
pub fn read_claim(entry: &Entry) -> Claim {
    let state: Option<State> = serde_json::from_str(&entry.value).ok();
    match state {
        Some(state) if !state.state.is_empty() && state.state != "confirmed" => Claim::Pending,
        _ => Claim::Confirmed,
    }
}

impl Handle {
    /// Parses the value.
    pub fn read(entry: &Entry) -> Result<Self> {
        serde_json::from_str(&entry.value).with_context(|| format!("read {}", entry.key))
    }

    /// The value.
    pub fn text(&self, generation: Generation) -> Result<String> {
        let written = Self {
            block: self.block.clone(),
            deleted: of_v3(generation, false),
        };
        Ok(serde_json::to_string(&written)?)
    }

    /// Counts one more address of this block.
    pub fn add(&mut self, range: Ipv4Net) {
        *self.block.entry(range.to_string()).or_default() += 1;
    }

    /// Subtracts this number of addresses of this block; at most all.
    pub fn take(&mut self, range: Ipv4Net, count: usize) {
        let block = range.to_string();
        if let Some(had) = self.block.get_mut(&block) {
            *had = had.saturating_sub(count);
            if *had == 0 {
                self.block.remove(&block);
            }
        }
    }
}

fn of_v3(generation: Generation, value: bool) -> Option<bool> {
    (generation == Generation::V3).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipam::block::{self, Owner};

    fn entry(value: &str) -> Entry {
        Entry {
            key: "/k".to_owned(),
            value: value.to_owned(),
            version: 1,
        }
    }

    fn owner(attributes: &[(&str, &str)]) -> Owner {
        let owned = attributes
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Owner {
            handle: "k8s-pod-network.a".to_owned(),
            attributes: owned.collect(),
        }
    }

    #[test]
    fn a_block_of_v2_has_the_stored_form_of_calico_v2() {
        let mut block = block::new("10.244.1.0/30".parse().unwrap(), "n1", 0);
        assert_eq!(
            text(&block, Generation::V2, true).unwrap(),
            r#"{"cidr":"10.244.1.0/30","affinity":"host:n1","strictAffinity":false,"allocations":[null,null,null,null],"unallocated":[0,1,2,3],"attributes":null}"#
        );
        block.assign_any(&owner(&[]), &[]).unwrap();
        let value = text(&block, Generation::V2, false).unwrap();
        assert_eq!(
            value,
            r#"{"cidr":"10.244.1.0/30","affinity":"host:n1","strictAffinity":false,"allocations":[0,null,null,null],"unallocated":[1,2,3],"attributes":[{"handle_id":"k8s-pod-network.a","secondary":null}]}"#
        );
        let mut read = read(&entry(&value)).unwrap();
        assert_eq!(read.release("k8s-pod-network.a"), 1);
        assert!(
            text(&read, Generation::V2, false)
                .unwrap()
                .ends_with(r#""unallocated":[1,2,3,0],"attributes":[]}"#)
        );
    }

    #[test]
    fn a_block_of_v3_has_the_holders_of_its_addresses_and_is_not_deleted() {
        let mut block = block::new("10.244.1.0/31".parse().unwrap(), "n1", 0);
        block
            .assign_any(&owner(&[("pod", "p"), ("node", "n1")]), &[])
            .unwrap();
        assert_eq!(
            text(&block, Generation::V3, false).unwrap(),
            r#"{"cidr":"10.244.1.0/31","affinity":"host:n1","strictAffinity":false,"allocations":[0,null],"unallocated":[1],"attributes":[{"handle_id":"k8s-pod-network.a","secondary":{"node":"n1","pod":"p"}}],"deleted":false}"#
        );
    }

    #[test]
    fn claims_and_handles_have_the_stored_form_of_each_release() {
        let text = |claim, generation| claim_text(claim, generation).unwrap();
        assert_eq!(text(Claim::Confirmed, Generation::V2), "{}");
        assert_eq!(
            text(Claim::Pending, Generation::V3),
            r#"{"state":"pending","deleted":false}"#
        );
        for (value, claim) in [
            ("", Claim::Confirmed),
            ("{}", Claim::Confirmed),
            (r#"{"state":"","deleted":false}"#, Claim::Confirmed),
            (r#"{"state":"confirmed","deleted":false}"#, Claim::Confirmed),
            (r#"{"state":"pendingDeletion","deleted":false}"#, Claim::Pending),
        ] {
            assert_eq!(read_claim(&entry(value)), claim, "{value}");
        }
        let range = "10.244.1.0/26".parse().unwrap();
        let mut handle = Handle::default();
        handle.add(range);
        assert_eq!(
            handle.text(Generation::V2).unwrap(),
            r#"{"block":{"10.244.1.0/26":1}}"#
        );
        assert_eq!(
            handle.text(Generation::V3).unwrap(),
            r#"{"block":{"10.244.1.0/26":1},"deleted":false}"#
        );
        handle.take(range, 5);
        assert!(handle.block.is_empty());
    }
}
