//! Why a text of flannel could not be parsed.

use thiserror::Error;

/// Why a text of flannel could not be parsed: the text, the key, the value found and the value needed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// The text is not JSON, or not a JSON object.
    #[error("{text}: not a JSON object: {problem}")]
    NotJson {
        /// The name of the text.
        text: String,
        /// The message of the JSON parser.
        problem: String,
    },
    /// A line is not an assignment.
    #[error("{text}: line {line}: found {found:?}, needed KEY=VALUE")]
    NotAssignment {
        /// The name of the text.
        text: String,
        /// Number of the line, from 1.
        line: usize,
        /// The line.
        found: String,
    },
    /// A required key is missing.
    #[error("{text}: key {key} is missing, needed {needed}")]
    Missing {
        /// The name of the text.
        text: String,
        /// The key.
        key: String,
        /// The value needed.
        needed: &'static str,
    },
    /// A value is not valid.
    #[error("{text}: key {key}: found {found}, needed {needed}")]
    Value {
        /// The name of the text.
        text: String,
        /// The key.
        key: String,
        /// The value that was found.
        found: String,
        /// The value needed.
        needed: &'static str,
    },
    /// A key occurs in several spellings: flannel uses the last one, and the user may mean another.
    #[error("{text}: key {key} is written {times} times: {spellings}; needed once")]
    Repeated {
        /// The name of the text.
        text: String,
        /// The key.
        key: String,
        /// The number of spellings found.
        times: usize,
        /// The spellings found.
        spellings: String,
    },
    /// Pods have IPv6 addresses only.
    #[error("{text}: EnableIPv4 is false: pods have IPv6 addresses only")]
    Ipv6Only {
        /// The name of the text.
        text: String,
    },
    /// flannel refuses the annotation prefix.
    #[error(
        "annotation prefix: found {found:?}, needed a domain such as flannel.alpha.coreos.com, or domain/name"
    )]
    Prefix {
        /// The prefix.
        found: String,
    },
}
