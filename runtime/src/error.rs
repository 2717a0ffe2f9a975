//! Words for an error.

/// An error with everything that caused it, in one line. A cause that the text before says already is left away.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text += ": ";
            text += &words;
        }
        next = cause.source();
    }
    text
}
