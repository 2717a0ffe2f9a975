//! Calico's objects that are not understood: what else says whose each of them is. Pure.

use std::collections::{BTreeMap, HashMap};

use calico::{block_name, node_of};
use engine::cluster::Malformed;
use ipnet::IpNet;
use kube::ResourceExt;
use kube::core::DynamicObject;
use pod_cidr::facts::Pool;
use pod_cidr::ipam::{Block, Claim, Ipam};
use pod_cidr::unclear::{Unclear, UnclearIpam};
use serde_json::Value;

use super::objects;
use crate::facts;

/// `IPPool`s.
#[derive(Clone, Debug, Default)]
pub struct Pools {
    /// Those that are understood, by name.
    pub understood: BTreeMap<String, Pool>,
    /// The others.
    pub unclear: Vec<Unclear>,
}

impl Pools {
    /// The name and the range of every pool of which the range is known.
    pub fn ranges(&self) -> impl Iterator<Item = (&str, IpNet)> {
        let understood = self.understood.values();
        let understood = understood.map(|pool| (pool.name.as_str(), pool.range));
        let unclear = self.unclear.iter();
        understood.chain(unclear.filter_map(|pool| Some((pool.malformed.object.as_str(), pool.range?))))
    }
}

/// Tells pools that are understood from those that are not.
pub fn pools(found: &[DynamicObject]) -> Pools {
    let mut pools = Pools::default();
    for object in found {
        match objects::pool(object) {
            Ok(pool) => {
                pools.understood.insert(pool.name.clone(), pool);
            }
            Err(malformed) => pools.unclear.push(Unclear {
                malformed,
                range: facts::calico::range(object),
                node: None,
            }),
        }
    }
    pools
}

/// What Calico's IPAM has given out, and what it gives to nobody, of what was made of each object.
pub fn ipam(
    blocks: Vec<Result<Block, Unclear>>,
    claims: Claims,
    reservations: Vec<(Vec<IpNet>, Option<Malformed>)>,
) -> Ipam {
    let (blocks, unclear_blocks) = apart(blocks);
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

/// What is understood, and the others.
pub fn apart<T>(found: Vec<Result<T, Unclear>>) -> (Vec<T>, Vec<Unclear>) {
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

/// A block. One whose range is not understood has the one that its name says, if a node has a claim on that. A name alone proves nothing.
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
    /// Places of those that are understood, by the range.
    by_range: HashMap<IpNet, usize>,
    /// The same by the name that the block has.
    by_name: HashMap<String, usize>,
}

impl Claims {
    /// These claims.
    pub fn of(found: Vec<Result<Claim, Unclear>>) -> Self {
        let (understood, unclear) = apart(found);
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

/// What is told of these objects, by their kinds: each with what it costs.
pub fn told<'found>(
    pools: &'found [Unclear],
    ipam: Option<&'found UnclearIpam>,
    ours: [IpNet; 2],
) -> Vec<(&'static str, String)> {
    let is_apart = |unclear: &Unclear| !ours.iter().any(|range| unclear.may_touch(range));
    let nothing = "it shares no address with the ranges of this migration, and costs nothing else";
    let of_pools = pools.iter().map(|pool| {
        let costs = if is_apart(pool) {
            nothing
        } else {
            "no pool is opened, closed or deleted on the way there"
        };
        ("IPPool", format!("{}; {costs}", pool.words()))
    });
    let ipam = ipam.into_iter();
    let of_blocks = ipam.clone().flat_map(|ipam| &ipam.blocks).map(|block| {
        let costs = if is_apart(block) {
            nothing
        } else {
            "the pool of its range is not deleted"
        };
        ("IPAMBlock", format!("{}; {costs}", block.words()))
    });
    let of_claims = ipam.clone().flat_map(|ipam| &ipam.claims).map(|claim| {
        let costs = "no pool is deleted";
        ("BlockAffinity", format!("{}; {costs}", claim.words()))
    });
    let of_reservations = ipam.flat_map(|ipam| &ipam.reservations).map(|found| {
        let words = format!(
            "{}: {}; it keeps no address free, as in Calico",
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

/// As much of a value as a line has room for.
pub fn shown(value: &Value) -> String {
    facts::shown(&value.to_string())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

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
            reservations.iter().map(objects::reserved).collect(),
        )
    }

    #[rstest]
    #[case::by_its_own_words(json!({ "cidr": "10.244.1.0/26", "affinity": "host:a", "allocations": 1 }), None, Some("10.244.1.0/26"), Some("a"))]
    #[case::by_a_claim(json!({ "cidr": "10.244.1.0/26", "allocations": 1 }), Some("10.244.1.0/26"), Some("10.244.1.0/26"), Some("b"))]
    #[case::by_its_name_and_a_claim(json!({ "cidr": "everything" }), Some("10.244.1.0/26"), Some("10.244.1.0/26"), Some("b"))]
    #[case::by_its_name_alone(json!({ "cidr": "everything" }), None, None, None)]
    #[case::beside_a_claim_on_another(json!({ "cidr": "everything" }), Some("10.244.2.0/26"), None, None)]
    #[case::larger_than_any(json!({ "cidr": "10.0.0.0/8", "affinity": "host:a" }), None, Some("10.0.0.0/8"), Some("a"))]
    fn whose_a_block_is_that_is_not_understood(
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
    fn what_is_understood_is_there_beside_what_is_not() {
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
    fn each_is_told_with_what_it_costs() {
        let ours: [IpNet; 2] = ["10.244.0.0/16", "10.200.0.0/16"].map(|range| range.parse().unwrap());
        let pools = pools(&[
            object("apart", &json!({ "cidr": "10.99.0.0/16", "blockSize": 99 })),
            object("anywhere", &json!({ "cidr": "x".repeat(100_000) })),
            object("well", &json!({ "cidr": "10.98.0.0/16" })),
        ]);
        assert_eq!(pools.understood.len(), 1);
        let told = told(&pools.unclear, None, ours);
        let told: Vec<&str> = told.iter().map(|(_, words)| words.as_str()).collect();
        assert_eq!(
            told[0],
            "IPPool apart: spec.blockSize: found 99, needed a number up to 32; it shares no address with the ranges of this migration, \
             and costs nothing else"
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
            told[1].ends_with("no pool is opened, closed or deleted on the way there"),
            "{told:?}"
        );
    }
}
