//! The grammar of selectors: `||` of `&&` of conditions and parentheses, each with optional negation.

use super::error::SelectorError;
use super::token::{Token, tokens};

/// Limit of nested parentheses: more than any selector needs, and each level uses stack.
const DEEPEST: usize = 200;

/// Checks the syntax of a selector. An empty selector selects everything.
pub fn parse(selector: &str) -> Result<(), SelectorError> {
    let tokens = tokens(selector)?;
    let mut parser = Parser {
        tokens: &tokens,
        end: selector.len(),
    };
    if tokens.is_empty() {
        return Ok(());
    }
    parser.alternatives(0)?;
    match parser.tokens {
        [] => Ok(()),
        _ => Err(parser.error("the end, && or ||")),
    }
}

struct Parser<'text> {
    tokens: &'text [(usize, Token<'text>)],
    end: usize,
}

impl<'text> Parser<'text> {
    fn error(&self, needed: &'static str) -> SelectorError {
        let place = self.tokens.first().map_or(self.end, |(place, _)| *place);
        SelectorError { place, needed }
    }

    fn next_is(&self, wanted: impl Fn(&Token<'text>) -> bool) -> bool {
        self.tokens.first().is_some_and(|(_, token)| wanted(token))
    }

    /// Consumes the next token if it is the wanted one.
    fn take(&mut self, wanted: impl Fn(&Token<'text>) -> bool) -> bool {
        let is_so = self.next_is(wanted);
        if is_so {
            self.tokens = &self.tokens[1..];
        }
        is_so
    }

    fn need(
        &mut self,
        wanted: impl Fn(&Token<'text>) -> bool,
        needed: &'static str,
    ) -> Result<(), SelectorError> {
        if self.take(wanted) {
            Ok(())
        } else {
            Err(self.error(needed))
        }
    }

    fn alternatives(&mut self, depth: usize) -> Result<(), SelectorError> {
        self.conditions(depth)?;
        while self.take(|token| *token == Token::Or) {
            self.conditions(depth)?;
        }
        Ok(())
    }

    fn conditions(&mut self, depth: usize) -> Result<(), SelectorError> {
        self.condition(depth)?;
        while self.take(|token| *token == Token::And) {
            self.condition(depth)?;
        }
        Ok(())
    }

    fn condition(&mut self, depth: usize) -> Result<(), SelectorError> {
        while self.take(|token| *token == Token::Not) {}
        if self.take(|token| matches!(token, Token::Has(_) | Token::All)) {
            return Ok(());
        }
        if self.next_is(|token| *token == Token::OpeningParenthesis) {
            if depth >= DEEPEST {
                return Err(self.error("fewer nested parentheses"));
            }
            self.tokens = &self.tokens[1..];
            self.alternatives(depth + 1)?;
            return self.need(|token| *token == Token::ClosingParenthesis, ")");
        }
        self.need(
            |token| matches!(token, Token::Label(_)),
            "a label, has(label), all(), ! or (",
        )?;
        if self.take(|token| matches!(token, Token::In | Token::NotIn)) {
            return self.set();
        }
        self.need(
            |token| {
                matches!(
                    token,
                    Token::Equal | Token::NotEqual | Token::Contains | Token::StartsWith | Token::EndsWith
                )
            },
            "==, !=, in, not in, contains, starts with or ends with",
        )?;
        self.need(|token| matches!(token, Token::Text(_)), "a text in quotes")
    }

    /// Texts between braces, with an optional comma after the last.
    fn set(&mut self) -> Result<(), SelectorError> {
        self.need(|token| *token == Token::OpeningBrace, "{")?;
        while self.take(|token| matches!(token, Token::Text(_))) {
            if !self.take(|token| *token == Token::Comma) {
                break;
            }
        }
        self.need(|token| *token == Token::ClosingBrace, "a text in quotes or }")
    }
}
