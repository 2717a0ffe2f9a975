//! Parses raw values as Go's `strconv` does, since Calico reads its settings so.

/// `strconv.ParseBool`.
pub fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// `strconv.ParseInt` in base 10: digits, with a sign or without.
pub fn integer(text: &str) -> Option<i64> {
    text.parse().ok()
}

/// `strconv.ParseUint` in base 10: only digits, at most `largest`.
pub fn unsigned(text: &str, largest: u32) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // A number of more than 32 bits does not parse.
    let number: u32 = if digits { text.parse().ok()? } else { return None };
    (number <= largest).then_some(number)
}

/// `strings.ToLower`: character by character. One character has two characters as lower case, and Go takes the first.
pub fn lower(text: &str) -> String {
    text.chars()
        .filter_map(|letter| letter.to_lowercase().next())
        .collect()
}

/// `strings.EqualFold` for words of ASCII letters: two other characters fold into ASCII letters.
pub fn equal_fold(one: &str, other: &str) -> bool {
    let fold = |letter: char| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        letter => letter.to_ascii_lowercase(),
    };
    one.chars().map(fold).eq(other.chars().map(fold))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("true", Some(true))]
    #[case("T", Some(true))]
    #[case("1", Some(true))]
    #[case("False", Some(false))]
    #[case("0", Some(false))]
    #[case("tRUE", None)]
    #[case("yes", None)]
    #[case("", None)]
    #[case(" true", None)]
    fn booleans_are_read_as_go_reads_them(#[case] text: &str, #[case] value: Option<bool>) {
        assert_eq!(boolean(text), value);
    }

    #[rstest]
    #[case("1440", Some(1440))]
    #[case("+7", Some(7))]
    #[case("-7", Some(-7))]
    #[case("007", Some(7))]
    #[case("9223372036854775808", None)]
    #[case("1.0", None)]
    #[case("0x10", None)]
    #[case("1_000", None)]
    #[case("", None)]
    fn integers_are_read_as_go_reads_them(#[case] text: &str, #[case] value: Option<i64>) {
        assert_eq!(integer(text), value);
    }

    #[rstest]
    #[case("4278190080", Some(0xff00_0000))]
    #[case("0007", Some(7))]
    #[case("+7", None)]
    #[case("4294967296", None)]
    #[case("0xff000000", None)]
    #[case("", None)]
    fn unsigned_numbers_are_read_as_go_reads_them(#[case] text: &str, #[case] value: Option<u32>) {
        assert_eq!(unsigned(text, u32::MAX), value);
    }

    #[test]
    fn an_unsigned_number_above_the_limit_is_refused() {
        assert_eq!(unsigned("65535", u16::MAX.into()), Some(65535));
        assert_eq!(unsigned("65536", u16::MAX.into()), None);
    }

    #[test]
    fn words_are_compared_in_any_case() {
        assert!(equal_fold("SCTP", "sctp") && equal_fold("\u{17f}ctp", "SCTP"));
        assert!(!equal_fold("tcp", "tcpx") && !equal_fold("tcp", "udp"));
        assert_eq!(lower("wARN\u{130}NG"), "warning");
    }
}
