//! Escapes names inside keys: a slash is written `%2f`, because it would end the part, and a percent sign `%25`.

/// The escaped form of a name. Names of hosts are not escaped.
pub fn escaped(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2f")
}

/// The name in a part of a key. Only lower-case digits are decoded, as in Calico.
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
    fn a_part_of_a_key_is_unescaped(#[case] part: &str, #[case] name: &str) {
        assert_eq!(unescaped(part), name);
    }

    proptest! {
        #[test]
        fn an_escaped_name_is_unescaped_to_itself(name in "[a-c/%25f]{0,12}") {
            prop_assert_eq!(unescaped(&escaped(&name)), name.clone());
            prop_assert!(!escaped(&name).contains('/'));
        }
    }
}
