//! Writes of single fields as JSON patches (RFC 6902). The API server applies such a patch to the current object, and refuses the
//! patch if a field that the decision depends on has changed since it was read. An edit of any other field is no conflict, while
//! a write with `resourceVersion` would conflict with every edit.
//!
//! Some fields are never equal to the values that were read. The API server compares with the object as stored, and some fields
//! of Services are stored in another form; the API server also compares encoded values, and encodes `&` as `\u0026`.
//! [`FieldPatch::merge`] is for these.

use serde_json::{Map, Value, json};

/// A change of an object, relative to the object that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPatch {
    /// Fields that have to be unchanged; `None` for a field that did not exist.
    tests: Vec<(String, Option<Value>)>,
    /// Fields that are written; `None` for a field that is removed.
    writes: Vec<(String, Option<Value>)>,
}

/// The fields that a decision depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Basis {
    /// JSON pointers (RFC 6901) of the fields: [`pointer()`].
    pub fields: Vec<String>,
    /// Fields that identify the members of a list. A list whose members only get new fields is then not written as a whole.
    pub members: &'static [&'static str],
}

const UID: &str = "/metadata/uid";
const GENERATION: &str = "/metadata/generation";

/// The JSON pointer (RFC 6901) of a field, from the names of its path.
pub fn pointer<'part>(parts: impl IntoIterator<Item = &'part str>) -> String {
    let mut pointer = String::new();
    for part in parts {
        pointer.push('/');
        pointer.push_str(&part.replace('~', "~0").replace('/', "~1"));
    }
    pointer
}

fn unescaped(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}

impl FieldPatch {
    /// The patch with the effect of the merge patch (RFC 7386) `change` on `read`. Besides the fields of `basis`, the UID and
    /// every written field of the object have to be unchanged.
    ///
    /// # Examples
    ///
    /// ```
    /// use engine::field_patch::{Basis, FieldPatch};
    /// use serde_json::json;
    ///
    /// let read = json!({ "metadata": { "uid": "1" }, "spec": { "unschedulable": false } });
    /// let change = json!({ "spec": { "unschedulable": true } });
    /// let patch = FieldPatch::new(&read, &Basis::default(), &change);
    /// assert_eq!(
    ///     patch.operations(),
    ///     json!([
    ///         { "op": "test", "path": "/metadata/uid", "value": "1" },
    ///         { "op": "test", "path": "/spec/unschedulable", "value": false },
    ///         { "op": "add", "path": "/spec/unschedulable", "value": true },
    ///     ])
    /// );
    /// ```
    pub fn new(read: &Value, basis: &Basis, change: &Value) -> Self {
        let mut patch = Self {
            tests: Vec::new(),
            writes: Vec::new(),
        };
        patch.test(read, UID);
        for field in &basis.fields {
            patch.test(read, field);
        }
        patch.write(read, basis, String::new(), change);
        // The API server changes the generation of an object with each change of its spec.
        if basis.fields.iter().any(|field| field == GENERATION) {
            patch.tests.retain(|(field, _)| !field.starts_with("/spec"));
        }
        patch
    }

    /// The operations of the patch: the tests, then the writes.
    pub fn operations(&self) -> Value {
        let tests = self.tests.iter();
        // An absent field is equal to null.
        let tests = tests.map(|(path, value)| json!({ "op": "test", "path": path, "value": value }));
        let writes = self.writes.iter().map(|(path, value)| match value {
            Some(value) => json!({ "op": "add", "path": path, "value": value }),
            None => json!({ "op": "remove", "path": path }),
        });
        tests.chain(writes).collect()
    }

    /// Whether the API server would apply the patch to this object. If not, the object has changed since it was read.
    pub fn holds(&self, now: &Value) -> bool {
        let found = |path: &str| now.pointer(path).filter(|value| !value.is_null());
        // The API server refuses a test of a field whose parent does not exist, even a test that the field is absent.
        let parent_exists = |path: &str| path.rsplit_once('/').is_some_and(|(way, _)| found(way).is_some());
        self.tests
            .iter()
            .all(|(path, value)| found(path) == value.as_ref() && parent_exists(path))
    }

    /// The same writes as a merge patch (RFC 7386) for exactly this version of the object; `None` if the patch does not apply to
    /// it.
    pub fn merge(&self, now: &Value) -> Option<Value> {
        if !self.holds(now) {
            return None;
        }
        let mut merge = json!({ "metadata": { "resourceVersion": now["metadata"]["resourceVersion"] } });
        for (path, value) in &self.writes {
            let (mut at, mut found) = (&mut merge, Some(now));
            for part in path.split('/').skip(1).map(unescaped) {
                if let Some(Value::Array(members)) = found {
                    // A merge patch writes a list as a whole.
                    if !at.is_array() {
                        *at = Value::Array(members.clone());
                    }
                    let place: usize = part.parse().ok()?;
                    at = at.get_mut(place)?;
                    found = members.get(place);
                } else {
                    if !at.is_object() {
                        *at = json!({});
                    }
                    at = &mut at[part.as_str()];
                    found = found.and_then(|found| found.get(part.as_str()));
                }
            }
            *at = value.clone().unwrap_or(Value::Null);
        }
        Some(merge)
    }

    fn test(&mut self, read: &Value, field: &str) {
        let found = |path: &str| read.pointer(path).filter(|value| !value.is_null());
        let ends = field.match_indices('/').skip(1).map(|(end, _)| end);
        let mut ways = ends.chain([field.len()]).map(|end| &field[..end]);
        let absent = ways.find(|way| found(way).is_none());
        let test = match absent {
            Some(absent) => (absent.to_owned(), None),
            None => (field.to_owned(), found(field).cloned()),
        };
        if !self.tests.contains(&test) {
            self.tests.push(test);
        }
    }

    fn write(&mut self, read: &Value, basis: &Basis, path: String, change: &Value) {
        let found = read.pointer(&path).filter(|value| !value.is_null());
        match (found, change) {
            (None, Value::Null) => {}
            (Some(_), Value::Null) => {
                self.test(read, &path);
                self.writes.push((path, None));
            }
            (Some(Value::Object(_)), Value::Object(fields)) => {
                for (field, change) in fields {
                    self.write(
                        read,
                        basis,
                        format!("{path}{}", pointer([field.as_str()])),
                        change,
                    );
                }
            }
            (Some(found), wanted) if found == wanted => {}
            (Some(Value::Array(found)), Value::Array(wanted)) if only_gains_fields(found, wanted, basis) => {
                for (place, (found, wanted)) in found.iter().zip(wanted).enumerate() {
                    let member = format!("{path}/{place}");
                    for field in new_fields(found, wanted) {
                        for name in basis.members {
                            self.test(read, &format!("{member}{}", pointer([*name])));
                        }
                        let field = format!("{member}{}", pointer([field.as_str()]));
                        self.test(read, &field);
                        let value = wanted.pointer(&field[member.len()..]).cloned();
                        self.writes.push((field, value));
                    }
                }
            }
            (_, wanted) => {
                let value = without_nulls(wanted);
                // An absent field has no subfields to remove.
                let only_removes = value != *wanted && value.as_object().is_some_and(Map::is_empty);
                if found.is_some() || !only_removes {
                    self.test(read, &path);
                    self.writes.push((path, Some(value)));
                }
            }
        }
    }
}

/// Whether both lists have the same members, and the members of the second list only have additional fields.
fn only_gains_fields(found: &[Value], wanted: &[Value], basis: &Basis) -> bool {
    let keeps = |(found, wanted): (&Value, &Value)| match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => found
            .iter()
            .all(|(field, value)| wanted.get(field) == Some(value)),
        _ => found == wanted,
    };
    !basis.members.is_empty() && found.len() == wanted.len() && found.iter().zip(wanted).all(keeps)
}

/// Fields that only the second object has.
fn new_fields<'object>(found: &Value, wanted: &'object Value) -> impl Iterator<Item = &'object String> {
    let fields = wanted.as_object().into_iter().flat_map(Map::keys);
    fields.filter(move |field| found.get(field.as_str()).is_none())
}

/// The value without nulls: a null in a merge patch removes a field, and a new object has no field to remove.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            fields
                .map(|(field, value)| (field.clone(), without_nulls(value)))
                .collect()
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests;
