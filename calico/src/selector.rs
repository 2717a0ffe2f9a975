//! Selectors of Calico over labels, as in `nodeSelector` of an `IPPool` (libcalico-go, `lib/selector/parser`).

use std::collections::BTreeMap;

/// Most characters of a selector that is read.
const LONGEST: usize = 4096;
/// Most parentheses and negations around each other.
const DEEPEST: u32 = 64;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Whether a selector selects an object with these labels. An empty selector selects every object.
///
/// # Errors
///
/// The selector cannot be parsed: the place.
pub fn selects(selector: &str, labels: &Labels) -> Result<bool, String> {
    if selector.chars().count() > LONGEST {
        return Err(format!("longer than {LONGEST} characters"));
    }
    if selector.trim().is_empty() {
        return Ok(true);
    }
    let mut parser = Parser {
        rest: selector,
        labels,
        depth: 0,
    };
    let selected = parser.either()?;
    parser.skip();
    if parser.rest.is_empty() {
        Ok(selected)
    } else {
        Err(parser.unexpected())
    }
}

/// Whether an operator holds for the value of a label and a text.
type Holds = fn(&str, &str) -> bool;

struct Parser<'text> {
    rest: &'text str,
    labels: &'text Labels,
    depth: u32,
}

impl Parser<'_> {
    /// `both || both`.
    fn either(&mut self) -> Result<bool, String> {
        let mut selected = self.both()?;
        while self.take("||") {
            selected |= self.both()?;
        }
        Ok(selected)
    }

    /// `term && term`.
    fn both(&mut self) -> Result<bool, String> {
        let mut selected = self.term()?;
        while self.take("&&") {
            selected &= self.term()?;
        }
        Ok(selected)
    }

    fn term(&mut self) -> Result<bool, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!(
                "more than {DEEPEST} parentheses and negations around each other"
            ));
        }
        let selected = self.bounded_term();
        self.depth -= 1;
        selected
    }

    fn bounded_term(&mut self) -> Result<bool, String> {
        if self.take("!") {
            return Ok(!self.term()?);
        }
        if self.take("(") {
            let selected = self.either()?;
            return if self.take(")") {
                Ok(selected)
            } else {
                Err(self.unexpected())
            };
        }
        let name = self.name()?;
        if self.take("(") {
            return self.function(&name);
        }
        self.comparison(&name)
    }

    /// `all()`, `global()` and `has(label)`, after the parenthesis.
    fn function(&mut self, name: &str) -> Result<bool, String> {
        let selected = match name {
            "all" => true,
            // Of network policies: objects without a namespace.
            "global" => false,
            "has" => {
                let label = self.name()?;
                self.labels.contains_key(&label)
            }
            _ => return Err(format!("{name}() is not a function of selectors")),
        };
        if self.take(")") {
            Ok(selected)
        } else {
            Err(self.unexpected())
        }
    }

    /// What follows the name of a label. A label that an object does not have differs from every value.
    fn comparison(&mut self, label: &str) -> Result<bool, String> {
        let value = self.labels.get(label).cloned();
        let value = value.as_deref();
        if self.take("==") {
            let wanted = self.text()?;
            return Ok(value == Some(wanted.as_str()));
        }
        if self.take("!=") {
            let wanted = self.text()?;
            return Ok(value != Some(wanted.as_str()));
        }
        if self.take_word("not") {
            return if self.take_word("in") {
                let set = self.set()?;
                Ok(!value.is_some_and(|value| set.iter().any(|one| one == value)))
            } else {
                Err(self.unexpected())
            };
        }
        if self.take_word("in") {
            let set = self.set()?;
            return Ok(value.is_some_and(|value| set.iter().any(|one| one == value)));
        }
        let operators: [(&str, Holds); 3] = [
            ("contains", |value, part| value.contains(part)),
            ("starts with", |value, part| value.starts_with(part)),
            ("ends with", |value, part| value.ends_with(part)),
        ];
        for (words, holds) in operators {
            if words.split(' ').all(|word| self.take_word(word)) {
                let part = self.text()?;
                return Ok(value.is_some_and(|value| holds(value, &part)));
            }
        }
        Err(self.unexpected())
    }

    /// `{"a", "b"}`.
    fn set(&mut self) -> Result<Vec<String>, String> {
        if !self.take("{") {
            return Err(self.unexpected());
        }
        let mut set = Vec::new();
        while !self.take("}") {
            if !set.is_empty() && !self.take(",") {
                return Err(self.unexpected());
            }
            set.push(self.text()?);
        }
        Ok(set)
    }

    /// A text in quotes.
    fn text(&mut self) -> Result<String, String> {
        self.skip();
        let quote = self
            .rest
            .chars()
            .next()
            .filter(|letter| ['"', '\''].contains(letter));
        let Some(quote) = quote else {
            return Err(self.unexpected());
        };
        let (text, rest) = self.rest[1..]
            .split_once(quote)
            .ok_or_else(|| self.unexpected())?;
        self.rest = rest;
        Ok(text.to_owned())
    }

    fn name(&mut self) -> Result<String, String> {
        self.skip();
        let is_of_a_name =
            |letter: char| letter.is_ascii_alphanumeric() || ['.', '_', '-', '/'].contains(&letter);
        let end = self
            .rest
            .find(|letter| !is_of_a_name(letter))
            .unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        if name.is_empty() {
            return Err(self.unexpected());
        }
        self.rest = rest;
        Ok(name.to_owned())
    }

    fn take(&mut self, text: &str) -> bool {
        self.skip();
        let Some(rest) = self.rest.strip_prefix(text) else {
            return false;
        };
        // `!=` is no negation.
        if text == "!" && rest.starts_with('=') {
            return false;
        }
        self.rest = rest;
        true
    }

    fn take_word(&mut self, word: &str) -> bool {
        self.skip();
        let Some(rest) = self.rest.strip_prefix(word) else {
            return false;
        };
        let ends = rest
            .chars()
            .next()
            .is_none_or(|letter| !letter.is_ascii_alphanumeric());
        if ends {
            self.rest = rest;
        }
        ends
    }

    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn unexpected(&self) -> String {
        let rest: String = self.rest.chars().take(20).collect();
        if rest.is_empty() {
            "unexpected end".to_owned()
        } else {
            format!("not understood from {rest:?} on")
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn labels() -> Labels {
        let labels = [("zone", "a"), ("kubernetes.io/os", "linux"), ("empty", "")];
        labels
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    }

    #[rstest]
    #[case("", true)]
    #[case("all()", true)]
    #[case("!all()", false)]
    #[case("! all()", false)]
    #[case("!(all())", false)]
    #[case("all() && !all()", false)]
    #[case("! ! all()", true)]
    #[case("zone == 'a'", true)]
    #[case("zone == \"b\"", false)]
    #[case("zone != 'b' && kubernetes.io/os == 'linux'", true)]
    #[case("rack != 'b'", true)]
    #[case("rack == ''", false)]
    #[case("empty == ''", true)]
    #[case("has(zone) && !has(rack)", true)]
    #[case("zone in {'a', 'b'}", true)]
    #[case("zone not in {\"a\"}", false)]
    #[case("rack not in {'a'}", true)]
    #[case("zone in {}", false)]
    #[case("kubernetes.io/os starts with 'lin' && kubernetes.io/os ends with 'ux'", true)]
    #[case("kubernetes.io/os contains 'win'", false)]
    #[case("(zone == 'b' || zone == 'a') && all()", true)]
    #[case("zone == 'b' || zone == 'c' && all()", false)]
    #[case("global()", false)]
    fn selectors(#[case] selector: &str, #[case] expected: bool) {
        assert_eq!(selects(selector, &labels()), Ok(expected), "{selector}");
    }

    #[rstest]
    #[case("zone", "unexpected end")]
    #[case("zone = 'a'", "\"= 'a'\"")]
    #[case("all", "unexpected end")]
    #[case("(all()", "unexpected end")]
    #[case("some()", "some()")]
    #[case("zone == 'a", "\"'a\"")]
    #[case("all() all()", "\"all()\"")]
    fn what_is_not_understood_has_its_place(#[case] selector: &str, #[case] place: &str) {
        let error = selects(selector, &labels()).unwrap_err();
        assert!(error.contains(place), "{selector}: {error}");
    }

    #[test]
    fn a_selector_has_limits() {
        assert!(selects(&"(".repeat(1000), &labels()).unwrap_err().contains("64"));
        assert!(
            selects(&" ".repeat(10_000), &labels())
                .unwrap_err()
                .contains("4096")
        );
    }
}
