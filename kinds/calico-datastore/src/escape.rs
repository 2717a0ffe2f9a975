//! Names inside keys: a slash would end the part, so it is written `%2f`, and a percent sign `%25`.

/// A name as it stands in a key. Names of hosts stand there as they are.
pub fn escaped(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2f")
}

/// The name that stands in a key. Only lower-case digits are read, as Calico does.
pub fn unescaped(part: &str) -> String {
    part.replace("%2f", "/").replace("%25", "%")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("Team.A%2fweb", "Team.A/web")]
    #[case("100%25", "100%")]
    #[case("%252f", "%2f")]
    #[case("%2F", "%2F")]
    #[case("%", "%")]
    fn parts_of_keys(#[case] part: &str, #[case] name: &str) {
        assert_eq!(unescaped(part), name);
    }

    proptest! {
        #[test]
        fn every_name_comes_back(name in "[a-c/%25f]{0,12}") {
            prop_assert_eq!(unescaped(&escaped(&name)), name.clone());
            prop_assert!(!escaped(&name).contains('/'));
        }
    }
}
