//! Tables and wrapped text.

/// Rows in columns, separated by two blanks; the last column is not padded.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut all: Vec<Vec<String>> = Vec::new();
    if !header.is_empty() {
        all.push(header.iter().map(|text| (*text).to_owned()).collect());
    }
    all.extend(rows.iter().cloned());
    let columns = all.iter().map(Vec::len).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            all.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or_default()
        })
        .collect();
    let mut text = String::new();
    for row in &all {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            line.push_str(cell);
            let fill = widths
                .get(column)
                .copied()
                .unwrap_or_default()
                .saturating_sub(cell.chars().count());
            line.push_str(&" ".repeat(fill + 2));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A text of at most this many characters; a cut text ends with an ellipsis.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// A text in lines of at most this many characters, broken at blanks; a longer word keeps its length.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = vec![
            vec!["worker-1".to_owned(), "Done".to_owned()],
            vec!["b".to_owned(), String::new()],
        ];
        assert_eq!(
            table(&["NODE", "STEP"], &rows),
            "NODE      STEP\nworker-1  Done\nb\n"
        );
    }

    #[test]
    fn long_texts_are_cut_or_wrapped() {
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("abcd", 4), "abcd");
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("incomprehensible", 4), ["incomprehensible"]);
    }
}
