//! Converts selectors: the namespace label has another name in v3, and v3 refuses invalid selectors.

mod error;
mod parse;
mod token;

pub use parse::parse;

use token::{Token, tokens};

/// Label of the namespace of a pod in v2.
pub const OLD_NAMESPACE: &str = "calico/k8s_ns";
/// Label of the namespace of a pod in v3.
pub const NEW_NAMESPACE: &str = "projectcalico.org/namespace";

/// The selector with the label of v3. The label is replaced everywhere in the text, as Calico's own migration does it.
pub fn rewritten(selector: &str) -> String {
    selector.replace(OLD_NAMESPACE, NEW_NAMESPACE)
}

/// Whether the old label occurs inside a text or a longer label. The selector then changes its meaning.
pub fn is_rewritten_inside_words(selector: &str) -> bool {
    tokens(selector).is_ok_and(|tokens| {
        tokens.iter().any(|(_, token)| match token {
            Token::Label(name) | Token::Has(name) => *name != OLD_NAMESPACE && name.contains(OLD_NAMESPACE),
            Token::Text(text) => text.contains(OLD_NAMESPACE),
            _ => false,
        })
    })
}

/// The selector of a rule combined with its tag: tags are labels without a value in v3.
pub fn with_tag(selector: &str, tag: &str) -> String {
    match (selector, tag) {
        (selector, "") => selector.to_owned(),
        ("", tag) => format!("{tag} == ''"),
        (selector, tag) => format!("({selector}) && {tag} == ''"),
    }
}

#[cfg(test)]
mod tests;
