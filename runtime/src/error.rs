//! The text of an error.

/// An error with its causes, in one line. A cause that the preceding text already contains is omitted.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text_of_cause = cause.to_string();
        if !text.contains(&text_of_cause) {
            text += ": ";
            text += &text_of_cause;
        }
        next = cause.source();
    }
    text
}
