//! Selectors: the label of a pod's namespace has another name in v3, and v3 refuses what is no selector.

mod parse;
mod token;

pub use parse::parse;

use token::{Token, tokens};

/// v2's label of the namespace that a pod is in.
pub const OLD_NAMESPACE: &str = "calico/k8s_ns";
/// v3's.
pub const NEW_NAMESPACE: &str = "projectcalico.org/namespace";

/// The selector with v3's label. It is replaced wherever its letters stand, as Calico's own migration does it.
pub fn rewritten(selector: &str) -> String {
    selector.replace(OLD_NAMESPACE, NEW_NAMESPACE)
}

/// Whether the letters of the old label stand somewhere that is not that label: in a text, or in a longer label. What is selected
/// there is another thing after the rewriting.
pub fn is_rewritten_elsewhere(selector: &str) -> bool {
    tokens(selector).is_ok_and(|tokens| {
        tokens.iter().any(|(_, token)| match token {
            Token::Label(name) | Token::Has(name) => *name != OLD_NAMESPACE && name.contains(OLD_NAMESPACE),
            Token::Text(text) => text.contains(OLD_NAMESPACE),
            _ => false,
        })
    })
}

/// A rule's selector with its tag: tags are labels without a value in v3.
pub fn with_tag(selector: &str, tag: &str) -> String {
    match (selector, tag) {
        (selector, "") => selector.to_owned(),
        ("", tag) => format!("{tag} == ''"),
        (selector, tag) => format!("({selector}) && {tag} == ''"),
    }
}

#[cfg(test)]
#[path = "selector_tests.rs"]
mod tests;
