//! Small stores for tests.

use serde_json::Value;

use super::convert::{Conversion, convert};
use super::difference::Difference;
use super::v2::Tree;

/// A store of these values.
pub(super) fn tree(values: &[(&str, &str)]) -> Tree {
    Tree::of(
        values
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
    )
}

/// The conversion of these values.
pub(super) fn converted(values: &[(&str, &str)]) -> Conversion {
    convert(&tree(values))
}

/// The conversion of one JSON value.
pub(super) fn converted_value(key: &str, value: &Value) -> Conversion {
    converted(&[(key, &value.to_string())])
}

impl Conversion {
    /// The object with this key, or with this part of the key below the resources.
    pub(super) fn value(&self, key: &str) -> &Value {
        let resource = format!("/calico/resources/v3/projectcalico.org/{key}");
        let object = self
            .objects
            .iter()
            .find(|object| object.key == key || object.key == resource);
        match object {
            Some(object) => &object.value,
            None => panic!("there is no {key} in {self:?}"),
        }
    }

    /// Lines of all reports and of the notes.
    pub(super) fn report_lines(&self) -> Vec<String> {
        let problems = self.conversion_errors.iter().chain(&self.validation_errors);
        problems
            .map(ToString::to_string)
            .chain(self.clashes.iter().map(ToString::to_string))
            .chain(self.notes.iter().map(ToString::to_string))
            .collect()
    }

    /// Lines of the report of new names.
    pub(super) fn names(&self) -> Vec<String> {
        self.renamed.iter().map(ToString::to_string).collect()
    }

    /// Whether this is the only difference from Calico's own tool.
    pub(super) fn differs_by(&self, difference: Difference) -> bool {
        self.differences().into_iter().eq([difference])
    }
}
