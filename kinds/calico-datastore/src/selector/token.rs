//! Splits a selector into tokens.

use super::error::SelectorError;

/// The longest label in Calico.
const LONGEST_LABEL: usize = 512;

/// A token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'text> {
    Label(&'text str),
    Text(&'text str),
    Has(&'text str),
    All,
    Equal,
    NotEqual,
    In,
    NotIn,
    Contains,
    StartsWith,
    EndsWith,
    Not,
    And,
    Or,
    OpeningParenthesis,
    ClosingParenthesis,
    OpeningBrace,
    ClosingBrace,
    Comma,
}

/// All tokens with the position of their first byte.
pub(super) fn tokens(selector: &str) -> Result<Vec<(usize, Token<'_>)>, SelectorError> {
    let mut tokens = Vec::new();
    let mut rest = selector.trim_start_matches([' ', '\t']);
    while !rest.is_empty() {
        let place = selector.len() - rest.len();
        let after_label = matches!(tokens.last(), Some((_, Token::Label(_))));
        let (token, after) = next(rest, after_label).map_err(|needed| SelectorError { place, needed })?;
        tokens.push((place, token));
        rest = after.trim_start_matches([' ', '\t']);
    }
    Ok(tokens)
}

/// The first token and the rest of the text; an error has the expected token.
fn next(text: &str, after_label: bool) -> Result<(Token<'_>, &str), &'static str> {
    let signs = [
        ("(", Token::OpeningParenthesis),
        (")", Token::ClosingParenthesis),
        ("{", Token::OpeningBrace),
        ("}", Token::ClosingBrace),
        (",", Token::Comma),
        ("==", Token::Equal),
        ("!=", Token::NotEqual),
        ("!", Token::Not),
        ("&&", Token::And),
        ("||", Token::Or),
    ];
    for (sign, token) in signs {
        if let Some(after) = text.strip_prefix(sign) {
            return Ok((token, after));
        }
    }
    for quote in ['"', '\''] {
        if let Some(inside) = text.strip_prefix(quote) {
            let (text, after) = inside.split_once(quote).ok_or("a closing quote")?;
            return Ok((Token::Text(text), after));
        }
    }
    for (sign, needed) in [("=", "=="), ("&", "&&"), ("|", "||")] {
        if text.starts_with(sign) {
            return Err(needed);
        }
    }
    if after_label {
        operator(text).ok_or("==, !=, in, not in, contains, starts with or ends with")
    } else {
        operand(text).ok_or("a label, has(label), all(), ! or (")
    }
}

fn operator(text: &str) -> Option<(Token<'_>, &str)> {
    if let Some(after) = text.strip_prefix("contains") {
        return Some((Token::Contains, after));
    }
    for (first, token) in [("starts", Token::StartsWith), ("ends", Token::EndsWith)] {
        if let Some(after) = text
            .strip_prefix(first)
            .and_then(|rest| spaced(rest).strip_prefix("with"))
        {
            return Some((token, after));
        }
    }
    let word = |rest: &'_ str| -> bool {
        let next = rest.bytes().next();
        !next.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let not_in = text
        .strip_prefix("not")
        .and_then(|rest| spaced(rest).strip_prefix("in"))
        .filter(|after| word(after));
    if let Some(after) = not_in {
        return Some((Token::NotIn, after));
    }
    let after = text.strip_prefix("in").filter(|after| word(after))?;
    Some((Token::In, after))
}

fn operand(text: &str) -> Option<(Token<'_>, &str)> {
    let has = text.strip_prefix("has(").and_then(|rest| {
        let (name, after) = label(spaced(rest))?;
        Some((Token::Has(name), spaced(after).strip_prefix(')')?))
    });
    let all = || {
        let after = spaced(text.strip_prefix("all(")?).strip_prefix(')')?;
        Some((Token::All, after))
    };
    has.or_else(all)
        .or_else(|| label(text).map(|(name, after)| (Token::Label(name), after)))
}

/// The longest label at the start.
fn label(text: &str) -> Option<(&str, &str)> {
    let length = text
        .bytes()
        .take(LONGEST_LABEL)
        .take_while(|byte| byte.is_ascii_alphanumeric() || b"_./-".contains(byte))
        .count();
    (length > 0).then(|| text.split_at(length))
}

/// The text without leading whitespace, as in Go's patterns.
fn spaced(text: &str) -> &str {
    text.trim_start_matches([' ', '\t', '\n', '\x0c', '\r'])
}
