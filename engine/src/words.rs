//! Bounded lists and texts for people. Texts of a status, an Event or a plan are read by people and stored by the API server, so
//! each has a limit.

use std::borrow::{Borrow, Cow};
use std::fmt::Display;

/// Names beyond this number are counted, not listed.
pub const LISTED: usize = 10;
/// Lines beyond this number are counted, not listed.
const LINES: usize = 5;
/// A name is cut to this many bytes. A namespace and a name of Kubernetes have at most 317.
const NAME_BYTES: usize = 320;
/// A line of a list is cut to this many bytes.
const LINE_BYTES: usize = 1024;
/// The end of a text that was cut.
const CUT: &str = "…";

/// The text, cut to at most `bytes` bytes, between two characters.
pub fn cut(text: &str, bytes: usize) -> Cow<'_, str> {
    if text.len() <= bytes {
        return Cow::Borrowed(text);
    }
    let end = text.floor_char_boundary(bytes.saturating_sub(CUT.len()));
    Cow::Owned(format!("{}{CUT}", &text[..end]))
}

/// The names, or the first names and the number of the others: `a, b and 3 more`.
pub fn names(names: &[impl Borrow<str>]) -> String {
    names_of(names, names.len())
}

/// The same for `count` names, where `names` has only the first names.
pub fn names_of(names: &[impl Borrow<str>], count: usize) -> String {
    let listed = first(names, LISTED, NAME_BYTES).join(", ");
    match count.saturating_sub(LISTED.min(names.len())) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}

/// The lines, or the first lines and the number of the others: `a; b; and 3 more`.
pub fn lines(lines: &[impl Borrow<str>]) -> String {
    let listed = first(lines, LINES, LINE_BYTES).join("; ");
    match lines.len().saturating_sub(LINES) {
        0 => listed,
        more => format!("{listed}; and {more} more"),
    }
}

/// The same for lines that `line` formats: only the listed items are formatted.
pub fn lines_of<T>(all: &[T], line: impl Fn(&T) -> String) -> String {
    let listed: Vec<String> = all.iter().take(LINES).map(line).collect();
    let listed = lines(&listed);
    match all.len().saturating_sub(LINES) {
        0 => listed,
        more => format!("{listed}; and {more} more"),
    }
}

/// A count with its noun: `1 Service`, `12 Services`.
///
/// # Examples
///
/// ```
/// use engine::words::number;
///
/// assert_eq!(number(1, "Service", "Services"), "1 Service");
/// assert_eq!(number(12, "Service", "Services"), "12 Services");
/// ```
pub fn number<Count: Copy + Display + PartialEq + From<u8>>(count: Count, one: &str, many: &str) -> String {
    if count == Count::from(1) {
        format!("1 {one}")
    } else {
        format!("{count} {many}")
    }
}

/// A count with the names: `node a`, `3 nodes: a, b, c`, `5000 nodes, the first: a, b, c`.
pub fn counted(one: &str, many: &str, names: &[impl Borrow<str>]) -> String {
    let listed = first(names, LISTED, NAME_BYTES).join(", ");
    match names.len() {
        0 => format!("no {one}"),
        1 => format!("{one} {listed}"),
        count if count <= LISTED => format!("{count} {many}: {listed}"),
        count => format!("{count} {many}, the first: {listed}"),
    }
}

fn first(texts: &[impl Borrow<str>], count: usize, bytes: usize) -> Vec<Cow<'_, str>> {
    let texts = texts.iter().take(count);
    texts.map(|text| cut(text.borrow(), bytes)).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn numbers(count: usize) -> Vec<String> {
        (0..count).map(|number| number.to_string()).collect()
    }

    #[rstest]
    #[case("abc", 3, "abc")]
    #[case("abcdef", 5, "ab…")]
    #[case("aößü", 6, "aö…")]
    #[case("aößü", 5, "a…")]
    #[case("äöü", 2, "…")]
    fn a_text_is_cut_between_two_characters(
        #[case] text: &str,
        #[case] bytes: usize,
        #[case] expected: &str,
    ) {
        assert_eq!(cut(text, bytes), expected);
    }

    #[rstest]
    #[case(0, "no node")]
    #[case(1, "node 0")]
    #[case(3, "3 nodes: 0, 1, 2")]
    #[case(10, "10 nodes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9")]
    #[case(5000, "5000 nodes, the first: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9")]
    fn a_list_has_its_count_and_the_first_names(#[case] count: usize, #[case] expected: &str) {
        assert_eq!(counted("node", "nodes", &numbers(count)), expected);
    }

    #[test]
    fn lists_of_any_length_have_a_bounded_size() {
        assert_eq!(names(&["a", "b"]), "a, b");
        assert_eq!(names(&numbers(12)), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more");
        assert_eq!(names_of(&numbers(2), 5), "0, 1 and 3 more");
        assert_eq!(
            names_of(&numbers(11), 12),
            "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"
        );
        assert_eq!(lines(&["a", "b"]), "a; b");
        assert_eq!(lines(&numbers(7)), "0; 1; 2; 3; 4; and 2 more");
        let made = std::cell::Cell::new(0);
        let line = |number: &String| {
            made.set(made.get() + 1);
            number.clone()
        };
        assert_eq!(lines_of(&numbers(7), line), "0; 1; 2; 3; 4; and 2 more");
        assert_eq!(made.get(), LINES);
        assert_eq!(lines_of(&numbers(2), String::clone), "0; 1");
        let long = vec!["x".repeat(1 << 20); 100];
        assert!(names(&long).len() < 4096);
        assert!(lines(&long).len() < 6144);
        assert!(counted("node", "nodes", &long).len() < 4096);
    }
}
