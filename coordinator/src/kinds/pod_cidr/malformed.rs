//! Malformed objects of Calico, with the node and the range that other objects give for them. Pure.

use std::collections::{BTreeMap, HashMap};

use calico::{block_name, node_of};
use engine::cluster::Malformed;
use ipnet::IpNet;
use kube::ResourceExt;
use kube::core::DynamicObject;
use pod_cidr::facts::Pool;
use pod_cidr::ipam::{Block, Claim, Ipam};
use pod_cidr::unclear::{Unclear, UnclearIpam};

use super::objects;
use crate::facts;

/// `IPPool`s.
#[derive(Clone, Debug, Default)]
pub struct Pools {
    /// The valid ones, by name.
    pub valid: BTreeMap<String, Pool>,
    /// The malformed ones.
    pub malformed: Vec<Unclear>,
}

impl Pools {
    /// The name and the range of every pool with a known range.
    pub fn ranges(&self) -> impl Iterator<Item = (&str, IpNet)> {
        let understood = self.valid.values();
        let understood = understood.map(|pool| (pool.name.as_str(), pool.range));
        let unclear = self.malformed.iter();
        understood.chain(unclear.filter_map(|pool| Some((pool.malformed.object.as_str(), pool.range?))))
    }
}

/// Parses pools, and separates the malformed ones.
pub fn pools(found: &[DynamicObject]) -> Pools {
    let mut pools = Pools::default();
    for object in found {
        match objects::pool(object) {
            Ok(pool) => {
                pools.valid.insert(pool.name.clone(), pool);
            }
            Err(malformed) => pools.malformed.push(Unclear {
                malformed,
                range: facts::calico::range(object),
                node: None,
            }),
        }
    }
    pools
}

/// The allocations and reservations of Calico's IPAM, from the parsed objects.
pub fn ipam(
    blocks: Vec<Result<Block, Unclear>>,
    claims: Claims,
    reservations: Vec<(Vec<IpNet>, Option<Malformed>)>,
) -> Ipam {
    let (blocks, unclear_blocks) = partition(blocks);
    let mut reserved = Vec::new();
    let mut ignored = Vec::new();
    for (ranges, not_understood) in reservations {
        reserved.extend(ranges);
        ignored.extend(not_understood);
    }
    let mut ipam = Ipam::new(blocks, claims.understood, reserved);
    ipam.unclear = UnclearIpam {
        blocks: unclear_blocks,
        claims: claims.unclear,
        reservations: ignored,
    };
    ipam
}

/// The valid objects, and the malformed ones.
pub fn partition<T>(found: Vec<Result<T, Unclear>>) -> (Vec<T>, Vec<Unclear>) {
    let mut understood = Vec::new();
    let mut unclear = Vec::new();
    for found in found {
        match found {
            Ok(found) => understood.push(found),
            Err(found) => unclear.push(found),
        }
    }
    (understood, unclear)
}

/// A block. A block with a malformed range gets the range in its name, if a node has a claim on that range. A name alone proves
/// nothing.
pub fn block(object: &DynamicObject, claims: &Claims) -> Result<Block, Unclear> {
    objects::block(object).map_err(|malformed| {
        let claim = match facts::calico::range(object) {
            Some(range) => claims.on(range),
            None => claims.on_named(&object.name_any()),
        };
        let said = object.data["spec"]["affinity"].as_str().and_then(node_of);
        let claimed = claim.and_then(|claim| claim.node.as_deref());
        Unclear {
            malformed,
            range: facts::calico::range(object).or(claim.map(|claim| claim.range)),
            node: said
                .or(claimed)
                .filter(|node| !node.is_empty())
                .map(str::to_owned),
        }
    })
}

/// A claim of a node on a block.
pub fn claim(object: &DynamicObject) -> Result<Claim, Unclear> {
    objects::claim(object).map_err(|malformed| Unclear {
        malformed,
        range: None,
        node: object.data["spec"]["node"].as_str().map(str::to_owned),
    })
}

/// Claims of nodes on blocks.
#[derive(Default)]
pub struct Claims {
    understood: Vec<Claim>,
    unclear: Vec<Unclear>,
    /// Indexes of the valid claims, by range.
    by_range: HashMap<IpNet, usize>,
    /// The same by the block's name.
    by_name: HashMap<String, usize>,
}

impl Claims {
    /// Indexes these claims.
    pub fn of(found: Vec<Result<Claim, Unclear>>) -> Self {
        let (understood, unclear) = partition(found);
        let mut claims = Self {
            unclear,
            ..Self::default()
        };
        for (place, claim) in understood.iter().enumerate() {
            claims.by_range.entry(claim.range).or_insert(place);
            claims.by_name.entry(block_name(claim.range)).or_insert(place);
        }
        claims.understood = understood;
        claims
    }

    /// The claim on the block of this range.
    fn on(&self, range: IpNet) -> Option<&Claim> {
        self.understood.get(*self.by_range.get(&range)?)
    }

    /// The claim on the block of this name.
    fn on_named(&self, block: &str) -> Option<&Claim> {
        self.understood.get(*self.by_name.get(block)?)
    }
}

/// The warnings about these objects, by kind, each with its consequence.
pub fn warnings<'found>(
    pools: &'found [Unclear],
    ipam: Option<&'found UnclearIpam>,
    ours: [IpNet; 2],
) -> Vec<(&'static str, String)> {
    let is_apart = |unclear: &Unclear| !ours.iter().any(|range| unclear.may_touch(range));
    let nothing = "no effect: it shares no address with the ranges of this migration";
    let of_pools = pools.iter().map(|pool| {
        let costs = if is_apart(pool) {
            nothing
        } else {
            "no pool opens, closes or is deleted on the way forward"
        };
        ("IPPool", format!("{}; {costs}", pool.message()))
    });
    let ipam = ipam.into_iter();
    let of_blocks = ipam.clone().flat_map(|ipam| &ipam.blocks).map(|block| {
        let costs = if is_apart(block) {
            nothing
        } else {
            "the pool of its range is kept"
        };
        ("IPAMBlock", format!("{}; {costs}", block.message()))
    });
    let of_claims = ipam.clone().flat_map(|ipam| &ipam.claims).map(|claim| {
        let costs = "no pool is deleted";
        ("BlockAffinity", format!("{}; {costs}", claim.message()))
    });
    let of_reservations = ipam.flat_map(|ipam| &ipam.reservations).map(|found| {
        let words = format!(
            "{}: {}; no address is reserved by it, as in Calico",
            found.object, found.problem
        );
        ("IPReservation", words)
    });
    of_pools
        .chain(of_blocks)
        .chain(of_claims)
        .chain(of_reservations)
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn object(name: &str, spec: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "X", "metadata": { "name": name }, "spec": spec,
        }))
        .unwrap()
    }

    fn ipam(blocks: &[DynamicObject], claims: &[DynamicObject], reservations: &[DynamicObject]) -> Ipam {
        let claims = Claims::of(claims.iter().map(claim).collect());
        let blocks = blocks.iter().map(|object| block(object, &claims)).collect();
        super::ipam(
            blocks,
            claims,
            reservations.iter().map(crate::facts::calico::reserved).collect(),
        )
    }

    #[rstest]
    #[case::own_range_and_affinity(json!({ "cidr": "10.244.1.0/26", "affinity": "host:a", "allocations": 1 }), None, Some("10.244.1.0/26"), Some("a"))]
    #[case::node_of_the_claim(json!({ "cidr": "10.244.1.0/26", "allocations": 1 }), Some("10.244.1.0/26"), Some("10.244.1.0/26"), Some("b"))]
    #[case::range_of_the_name_with_a_claim(json!({ "cidr": "everything" }), Some("10.244.1.0/26"), Some("10.244.1.0/26"), Some("b"))]
    #[case::name_without_a_claim(json!({ "cidr": "everything" }), None, None, None)]
    #[case::claim_on_another_block(json!({ "cidr": "everything" }), Some("10.244.2.0/26"), None, None)]
    #[case::larger_than_any_block(json!({ "cidr": "10.0.0.0/8", "affinity": "host:a" }), None, Some("10.0.0.0/8"), Some("a"))]
    fn a_malformed_block_gets_range_and_node_from_a_claim(
        #[case] spec: Value,
        #[case] claim: Option<&str>,
        #[case] range: Option<&str>,
        #[case] node: Option<&str>,
    ) {
        let claims: Vec<DynamicObject> = claim
            .iter()
            .map(|range| object("claim", &json!({ "cidr": range, "node": "b" })))
            .collect();
        let ipam = ipam(&[object("10-244-1-0-26", &spec)], &claims, &[]);
        assert_eq!((ipam.blocks().len(), ipam.unclear.blocks.len()), (0, 1));
        let found = &ipam.unclear.blocks[0];
        assert_eq!(found.range, range.map(|range| range.parse().unwrap()));
        assert_eq!(found.node.as_deref(), node);
    }

    #[test]
    fn valid_objects_are_kept_beside_malformed_ones() {
        let ipam = ipam(
            &[
                object("x", &json!({ "cidr": 1 })),
                object("y", &json!({ "cidr": "10.244.1.0/26" })),
            ],
            &[
                object("x", &json!({ "node": "a" })),
                object("y", &json!({ "cidr": "10.244.1.0/26" })),
            ],
            &[object("x", &json!({ "reservedCIDRs": ["ten", "10.200.0.1"] }))],
        );
        assert_eq!(
            (ipam.blocks().len(), ipam.claims().len(), ipam.reserved.len()),
            (1, 1, 1)
        );
        let UnclearIpam {
            blocks,
            claims,
            reservations,
        } = &ipam.unclear;
        assert_eq!((blocks.len(), claims.len(), reservations.len()), (1, 1, 1));
        assert_eq!(claims[0].node.as_deref(), Some("a"));
    }

    #[test]
    fn a_warning_names_the_malformed_object_and_its_consequence() {
        let ours: [IpNet; 2] = ["10.244.0.0/16", "10.200.0.0/16"].map(|range| range.parse().unwrap());
        let pools = pools(&[
            object("apart", &json!({ "cidr": "10.99.0.0/16", "blockSize": 99 })),
            object("anywhere", &json!({ "cidr": "x".repeat(100_000) })),
            object("well", &json!({ "cidr": "10.98.0.0/16" })),
        ]);
        assert_eq!(pools.valid.len(), 1);
        let told = warnings(&pools.malformed, None, ours);
        let told: Vec<&str> = told.iter().map(|(_, words)| words.as_str()).collect();
        assert_eq!(
            told[0],
            "IPPool apart: spec.blockSize: found 99, needed a number up to 32; no effect: it shares no address with the ranges \
             of this migration"
        );
        assert!(
            told[1].starts_with("IPPool anywhere: spec.cidr: found \"xxx"),
            "{told:?}"
        );
        assert!(
            told[1].contains("100002 bytes in total") && told[1].len() < 300,
            "{told:?}"
        );
        assert!(
            told[1].ends_with("no pool opens, closes or is deleted on the way forward"),
            "{told:?}"
        );
    }
}
