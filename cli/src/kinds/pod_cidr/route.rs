//! The hops from one range to another. Calico has no two pools that share addresses: if the ranges overlap, pods move through a
//! third range, in two hops.

use engine::ranges::{self, Relation};
use ipnet::IpNet;
use pod_cidr::pools::check_block_size;

use super::error::RangeError;
use crate::error::CliError;

/// A range with its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The field or the flag.
    pub name: String,
    /// The range.
    pub range: IpNet,
}

/// The requested change of the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeChange {
    /// The range that pods move from.
    pub from: End,
    /// The range that pods move to.
    pub to: End,
    /// The temporary range.
    pub via: Option<IpNet>,
    /// Other ranges of the cluster, which the temporary range must not overlap.
    pub others: Vec<End>,
    /// Prefix length of the new blocks, if given.
    pub block_size: Option<u8>,
}

/// Source and target range of each Migration.
pub type Hops = Vec<(IpNet, IpNet)>;

/// Ranges that are unused in most clusters, as examples.
const EXAMPLES: [&str; 6] = [
    "10.200.0.0/16",
    "172.28.0.0/16",
    "192.168.0.0/16",
    "fd00:10:200::/56",
    "fd00:172:28::/56",
    "fd00:192:168::/56",
];

impl RangeChange {
    /// One hop, or two through the temporary range. The error has every problem.
    pub fn hops(&self) -> Result<Hops, CliError> {
        let (from, to) = (self.from.range, self.to.range);
        let words = match ranges::relation(&from, &to) {
            Relation::Apart => return self.direct(),
            Relation::OtherFamily => {
                return Err(refused(vec![format!(
                    "{}: found {to}, needed a range of the same address family as {} ({from}): a migration changes one \
                     family",
                    self.to.name, self.from.name
                )]));
            }
            Relation::Same if self.block_size.is_none() => {
                return Err(refused(vec![format!(
                    "{}: found {to}, the same as {}; needed another range, or --block-size for other blocks in it",
                    self.to.name, self.from.name
                )]));
            }
            Relation::Same => "the same as",
            Relation::NewWithinOld => "which is within",
            Relation::OldWithinNew => "which contains",
        };
        match self.via {
            Some(via) => self.hops_through(via),
            None => Err(RangeError::Ranges {
                errors: vec![format!(
                    "{}: found {to}, {words} {} ({from}). Calico has no two IPPools that share addresses: pods move in two hops, \
                     through a temporary range",
                    self.to.name, self.from.name
                )],
                hint: Some(self.hint()),
            }
            .into()),
        }
    }

    fn direct(&self) -> Result<Hops, CliError> {
        let (from, to) = (self.from.range, self.to.range);
        let mut errors = Vec::new();
        if let Some(via) = self.via {
            errors.push(format!(
                "--via: found {via}, needed none: {} ({from}) and {} ({to}) do not overlap, so pods move in one hop",
                self.from.name, self.to.name
            ));
        }
        errors.extend(self.block_size_problem(&self.to.name, &to));
        finished(errors, vec![(from, to)])
    }

    fn hops_through(&self, via: IpNet) -> Result<Hops, CliError> {
        let (from, to) = (self.from.range, self.to.range);
        let mut errors = Vec::new();
        if ranges::relation(&from, &via) == Relation::OtherFamily {
            errors.push(format!(
                "--via: found {via}, needed a range of the same address family as {} ({from})",
                self.from.name
            ));
        } else {
            let near: Vec<String> = self
                .ends()
                .filter(|end| ranges::overlap(&end.range, &via))
                .map(|end| format!("{} ({})", end.name, end.range))
                .collect();
            if !near.is_empty() {
                errors.push(format!(
                    "--via: found {via}, which overlaps with {}; needed a range that overlaps with no other{}",
                    near.join(" and "),
                    self.example().map(|range| format!(", such as {range}")).unwrap_or_default()
                ));
            }
            errors.extend(self.block_size_problem("--via", &via));
        }
        errors.extend(self.block_size_problem(&self.to.name, &to));
        finished(errors, vec![(from, via), (via, to)])
    }

    /// The problem of the block size with this range, if any.
    fn block_size_problem(&self, name: &str, range: &IpNet) -> Option<String> {
        let size = self.block_size?;
        let needed = check_block_size(size, range).err()?;
        Some(format!(
            "--block-size: found {size}, needed {needed} for {name} ({range})"
        ))
    }

    fn ends(&self) -> impl Iterator<Item = &End> {
        [&self.from, &self.to].into_iter().chain(&self.others)
    }

    /// A range that overlaps with no known range.
    fn example(&self) -> Option<IpNet> {
        EXAMPLES
            .iter()
            .filter_map(|range| range.parse().ok())
            .filter(|range| ranges::relation(&self.from.range, range) == Relation::Apart)
            .find(|range| self.ends().all(|end| !ranges::overlap(&end.range, range)))
    }

    fn hint(&self) -> String {
        let such = self
            .example()
            .map(|range| format!(", such as `--via {range}`"))
            .unwrap_or_default();
        format!(
            "set --via to a range that is unused in your networks, does not overlap with both ranges and has room for every \
             pod{such}; two Migrations are then printed"
        )
    }
}

fn refused(errors: Vec<String>) -> CliError {
    RangeError::Ranges { errors, hint: None }.into()
}

fn finished(errors: Vec<String>, hops: Hops) -> Result<Hops, CliError> {
    if errors.is_empty() {
        Ok(hops)
    } else {
        Err(refused(errors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn journey(from: &str, to: &str, via: Option<&str>) -> RangeChange {
        let end = |name: &str, text: &str| End {
            name: name.to_owned(),
            range: range(text),
        };
        RangeChange {
            from: end("--from", from),
            to: end("--to", to),
            via: via.map(range),
            others: Vec::new(),
            block_size: None,
        }
    }

    fn words(journey: &RangeChange) -> String {
        let error = journey.hops().unwrap_err();
        format!("{error}\n{}", error.hint().unwrap_or_default())
    }

    #[test]
    fn disjoint_ranges_take_one_hop_and_nested_ranges_two() {
        let one = journey("10.244.0.0/16", "10.200.0.0/16", None);
        assert_eq!(
            one.hops().unwrap(),
            [(range("10.244.0.0/16"), range("10.200.0.0/16"))]
        );
        for (from, to) in [
            ("100.64.0.0/10", "100.96.0.0/11"),
            ("100.96.0.0/11", "100.64.0.0/10"),
        ] {
            let two = journey(from, to, Some("10.200.0.0/16"));
            let via = range("10.200.0.0/16");
            assert_eq!(two.hops().unwrap(), [(range(from), via), (via, range(to))]);
        }
    }

    #[test]
    fn other_blocks_in_the_same_range_take_two_hops() {
        let mut same = journey("10.244.0.0/16", "10.244.0.0/16", Some("10.200.0.0/16"));
        assert!(words(&same).contains("the same as --from; needed another range, or --block-size"));
        same.block_size = Some(28);
        assert_eq!(same.hops().unwrap().len(), 2);
    }

    #[test]
    fn a_nested_range_without_via_is_an_error_with_an_unused_example() {
        let mut nested = journey("10.0.0.0/8", "10.96.0.0/11", None);
        let said = words(&nested);
        for word in [
            "--to: found 10.96.0.0/11, which is within --from (10.0.0.0/8)",
            "two hops",
            "`--via 172.28.0.0/16`",
        ] {
            assert!(said.contains(word), "{word} is not in {said}");
        }
        nested.others = vec![End {
            name: "spec.networkCIDR".to_owned(),
            range: range("172.16.0.0/12"),
        }];
        assert!(words(&nested).contains("`--via 192.168.0.0/16`"));
        let six = journey("fd00:10::/32", "fd00:10:1::/48", None);
        assert!(words(&six).contains("`--via fd00:"), "{}", words(&six));
    }

    #[test]
    fn all_problems_of_a_temporary_range_are_returned_at_once() {
        let mut nested = journey("100.64.0.0/10", "100.96.0.0/11", Some("100.127.0.0/24"));
        nested.block_size = Some(22);
        nested.others = vec![End {
            name: "spec.serviceClusterIPRange".to_owned(),
            range: range("100.127.0.0/16"),
        }];
        let said = words(&nested);
        for word in [
            "--via: found 100.127.0.0/24, which overlaps with --from (100.64.0.0/10) and --to (100.96.0.0/11) and \
             spec.serviceClusterIPRange (100.127.0.0/16)",
            "such as 10.200.0.0/16",
            "--block-size: found 22, needed 24 to 32 for --via (100.127.0.0/24)",
        ] {
            assert!(said.contains(word), "{word} is not in {said}");
        }
        let six = journey("100.64.0.0/10", "100.96.0.0/11", Some("fd00::/64"));
        assert!(words(&six).contains("--via: found fd00::/64, needed a range of the same address family"));
    }

    #[test]
    fn disjoint_ranges_with_via_or_an_invalid_block_size_are_refused() {
        let one = journey("10.244.0.0/16", "10.200.0.0/16", Some("10.201.0.0/16"));
        assert!(words(&one).contains("--via: found 10.201.0.0/16, needed none"));
        let mut small = journey("10.244.0.0/16", "10.200.0.0/24", None);
        small.block_size = Some(20);
        assert!(words(&small).contains("needed 24 to 32 for --to"));
        let families = journey("10.244.0.0/16", "fd00::/64", None);
        assert!(words(&families).contains("the same address family as --from"));
    }
}
