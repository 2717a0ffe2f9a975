//! Calico's objects that cannot be parsed, with the parts that are known. Such an object affects only the decisions about itself.

use ipnet::IpNet;

use engine::cluster::Malformed;
use engine::ranges::overlap;

/// An object that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclear {
    /// The object, and the field that cannot be parsed.
    pub malformed: Malformed,
    /// Its range; `None` if unknown.
    pub range: Option<IpNet>,
    /// The node that owns it; `None` if unknown.
    pub node: Option<String>,
}

impl Unclear {
    /// Whether it may contain an address of this range.
    pub fn may_touch(&self, range: &IpNet) -> bool {
        self.range.is_none_or(|own| overlap(&own, range))
    }

    /// The object and its problem, for messages.
    pub fn message(&self) -> String {
        let Malformed { object, problem } = &self.malformed;
        match &self.node {
            Some(node) => format!("{object} of node {node}: {problem}"),
            None => format!("{object}: {problem}"),
        }
    }
}

/// Objects of Calico's IPAM that cannot be parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnclearIpam {
    /// Blocks.
    pub blocks: Vec<Unclear>,
    /// Block affinities.
    pub claims: Vec<Unclear>,
    /// Entries of `IPReservation`s. Calico ignores them too.
    pub reservations: Vec<Malformed>,
}

impl UnclearIpam {
    /// Objects that may belong to this range. While one exists, the range is not known to be empty.
    pub fn in_range(&self, range: &IpNet) -> impl Iterator<Item = &Unclear> {
        let both = self.blocks.iter().chain(&self.claims);
        both.filter(move |unclear| unclear.may_touch(range))
    }

    /// A block of an unknown node that may belong to this range. While it exists, the free addresses of the range are not known.
    pub fn block_of_unknown_node(&self, range: &IpNet) -> Option<&Unclear> {
        let mut blocks = self.blocks.iter();
        blocks.find(|block| block.node.is_none() && block.may_touch(range))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn unclear(range: Option<&str>, node: Option<&str>) -> Unclear {
        Unclear {
            malformed: Malformed {
                object: "IPAMBlock x".to_owned(),
                problem: "spec.allocations: found 1, needed a list".to_owned(),
            },
            range: range.map(|range| range.parse().unwrap()),
            node: node.map(str::to_owned),
        }
    }

    #[rstest]
    #[case::unknown_range(None, None, true, true)]
    #[case::unknown_range_of_a_known_node(None, Some("a"), true, false)]
    #[case::within(Some("10.244.1.0/26"), None, true, true)]
    #[case::of_a_known_node(Some("10.244.1.0/26"), Some("a"), true, false)]
    #[case::around(Some("10.0.0.0/8"), None, true, true)]
    #[case::no_overlap(Some("10.99.0.0/26"), None, false, false)]
    fn an_unparsable_block_blocks_its_own_range_only(
        #[case] range: Option<&str>,
        #[case] node: Option<&str>,
        #[case] blocks_completion: bool,
        #[case] hides_free_addresses: bool,
    ) {
        let source: IpNet = "10.244.0.0/16".parse().unwrap();
        let ipam = UnclearIpam {
            blocks: vec![unclear(range, node)],
            ..UnclearIpam::default()
        };
        assert_eq!(ipam.in_range(&source).count() == 1, blocks_completion);
        assert_eq!(
            ipam.block_of_unknown_node(&source).is_some(),
            hides_free_addresses
        );
        let claims = UnclearIpam {
            claims: ipam.blocks,
            ..UnclearIpam::default()
        };
        assert_eq!(claims.in_range(&source).count() == 1, blocks_completion);
        assert_eq!(
            claims.block_of_unknown_node(&source),
            None,
            "a claim has no addresses"
        );
    }
}
