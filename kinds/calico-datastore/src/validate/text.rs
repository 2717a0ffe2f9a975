//! Checks texts against the patterns of Kubernetes and Calico.

/// The longest name in Kubernetes.
pub const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;
const LONGEST_PORT_NAME: usize = 15;
const LONGEST_INTERFACE: usize = 15;

/// Lower-case letters, digits and dashes, no dash at an end. The length is not limited: Calico limits only the whole name.
pub fn is_label(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    ends_are(text, letter) && text.bytes().all(|byte| letter(byte) || byte == b'-')
}

/// Labels with dots between them.
pub fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

/// A key of labels and annotations: an optional domain and slash, then a name.
pub fn is_qualified_name(text: &str) -> bool {
    let (domain, name) = match text.split_once('/') {
        Some((domain, name)) => (Some(domain), name),
        None => (None, text),
    };
    domain.is_none_or(|domain| is_subdomain(domain) && domain.len() <= LONGEST_NAME)
        && !name.is_empty()
        && is_label_value(name)
}

/// A value of a label: empty, or letters, digits, dashes, underscores and dots, with a letter or a digit at each end.
pub fn is_label_value(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.is_empty()
        || (text.len() <= LONGEST_LABEL
            && ends_are(text, |byte| byte.is_ascii_alphanumeric())
            && text.bytes().all(inner))
}

/// A name of a port: lower-case letters, digits and single dashes between them, with at least one letter.
pub fn is_port_name(text: &str) -> bool {
    text.len() <= LONGEST_PORT_NAME
        && is_label(text)
        && !text.contains("--")
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// An ID of a container.
pub fn is_container(text: &str) -> bool {
    ends_are(text, |byte| byte.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// A name of an interface, or `*`.
pub fn is_interface(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    text == "*" || ((1..=LONGEST_INTERFACE).contains(&text.len()) && text.bytes().all(letter))
}

fn ends_are(text: &str, letter: impl Fn(u8) -> bool) -> bool {
    match text.as_bytes() {
        [] => false,
        [first, ..] => letter(*first) && text.as_bytes().last().is_some_and(|last| letter(*last)),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("a", true)]
    #[case("a-b.c9", true)]
    #[case("a--b", true)]
    #[case("a..b", false)]
    #[case("a.-b", false)]
    #[case("-a", false)]
    #[case("a.", false)]
    #[case("A", false)]
    #[case("", false)]
    fn a_subdomain_is_recognized(#[case] text: &str, #[case] wanted: bool) {
        assert_eq!(is_subdomain(text), wanted);
    }

    #[rstest]
    #[case("calico/k8s_ns", true)]
    #[case("MyName", true)]
    #[case("a.b_c-d", true)]
    #[case("bad key!", false)]
    #[case("/a", false)]
    #[case("a/", false)]
    #[case("a/b/c", false)]
    #[case("A.b/c", false)]
    #[case("_a", false)]
    #[case("", false)]
    fn a_key_of_a_label_is_recognized(#[case] text: &str, #[case] wanted: bool) {
        assert_eq!(is_qualified_name(text), wanted);
    }

    #[test]
    fn a_part_of_a_key_beyond_its_limit_is_refused() {
        let (longest, domain) = ("a".repeat(63), "a".repeat(253));
        assert!(is_qualified_name(&longest) && !is_qualified_name(&format!("{longest}a")));
        assert!(is_qualified_name(&format!("{domain}/a")) && !is_qualified_name(&format!("{domain}a/a")));
        assert!(is_label_value("") && is_label_value(&longest) && !is_label_value(&format!("{longest}a")));
    }

    #[rstest]
    #[case("http", true)]
    #[case("8-a", true)]
    #[case("80", false)]
    #[case("a--b", false)]
    #[case("-a", false)]
    #[case("Http", false)]
    #[case("a.b", false)]
    #[case("", false)]
    #[case("abcdefghijklmno", true)]
    #[case("abcdefghijklmnop", false)]
    fn a_name_of_a_port_is_recognized(#[case] text: &str, #[case] wanted: bool) {
        assert_eq!(is_port_name(text), wanted);
    }

    #[rstest]
    #[case("eth0", true)]
    #[case("*", true)]
    #[case("cali0ef24ba.12_-", false)]
    #[case("eth 0", false)]
    #[case("eth0:1", false)]
    #[case("", false)]
    fn a_name_of_an_interface_is_recognized(#[case] text: &str, #[case] wanted: bool) {
        assert_eq!(is_interface(text), wanted);
    }

    #[rstest]
    #[case("abc123", true)]
    #[case("ABC-1", true)]
    #[case("a.b", false)]
    #[case("-a", false)]
    #[case("", false)]
    fn an_id_of_a_container_is_recognized(#[case] text: &str, #[case] wanted: bool) {
        assert_eq!(is_container(text), wanted);
    }
}
