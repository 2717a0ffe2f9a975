//! Objects of Calico's that are not understood, with what is known of each all the same: it costs what is decided about it, and no more.

use ipnet::IpNet;

use engine::cluster::Malformed;
use engine::ranges::overlap;

/// An object that is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclear {
    /// The object, and what is not understood of it.
    pub malformed: Malformed,
    /// Its range; `None` where that is not known either.
    pub range: Option<IpNet>,
    /// The node whose it is; `None` where no object says so.
    pub node: Option<String>,
}

impl Unclear {
    /// Whether it may have an address of this range.
    pub fn may_touch(&self, range: &IpNet) -> bool {
        self.range.is_none_or(|own| overlap(&own, range))
    }

    /// The object and what is not understood of it, for people.
    pub fn words(&self) -> String {
        let Malformed { object, problem } = &self.malformed;
        match &self.node {
            Some(node) => format!("{object} of node {node}: {problem}"),
            None => format!("{object}: {problem}"),
        }
    }
}

/// What is not understood of Calico's IPAM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnclearIpam {
    /// Blocks.
    pub blocks: Vec<Unclear>,
    /// Claims on blocks.
    pub claims: Vec<Unclear>,
    /// Entries of `IPReservation`s. Calico passes over them, too.
    pub reservations: Vec<Malformed>,
}

impl UnclearIpam {
    /// What may be of this range: while it is there, the range is not known to be empty.
    pub fn in_range(&self, range: &IpNet) -> impl Iterator<Item = &Unclear> {
        let both = self.blocks.iter().chain(&self.claims);
        both.filter(move |unclear| unclear.may_touch(range))
    }

    /// A block of no known node that may be of this range: which addresses of the range are free is not known while it is there.
    pub fn of_no_node(&self, range: &IpNet) -> Option<&Unclear> {
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
    #[case::of_an_unknown_range(None, None, true, true)]
    #[case::of_an_unknown_range_of_a_node(None, Some("a"), true, false)]
    #[case::within(Some("10.244.1.0/26"), None, true, true)]
    #[case::of_a_node(Some("10.244.1.0/26"), Some("a"), true, false)]
    #[case::around(Some("10.0.0.0/8"), None, true, true)]
    #[case::apart(Some("10.99.0.0/26"), None, false, false)]
    fn what_it_costs(
        #[case] range: Option<&str>,
        #[case] node: Option<&str>,
        #[case] holds_the_end: bool,
        #[case] hides_what_is_free: bool,
    ) {
        let left: IpNet = "10.244.0.0/16".parse().unwrap();
        let ipam = UnclearIpam {
            blocks: vec![unclear(range, node)],
            ..UnclearIpam::default()
        };
        assert_eq!(ipam.in_range(&left).count() == 1, holds_the_end);
        assert_eq!(ipam.of_no_node(&left).is_some(), hides_what_is_free);
        let claims = UnclearIpam {
            claims: ipam.blocks,
            ..UnclearIpam::default()
        };
        assert_eq!(claims.in_range(&left).count() == 1, holds_the_end);
        assert_eq!(claims.of_no_node(&left), None, "a claim has no addresses");
    }
}
