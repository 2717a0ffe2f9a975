//! Foreign objects, decoded one by one as far as they are readable: an object that the API server stores and the types here
//! cannot read affects decisions about itself only, and neither a list nor a watch.
//!
//! The types read times up to the year 9999; the API server stores later ones wherever a client may write a time: in
//! `metadata.managedFields`, and in the metadata of a pod template. `fieldsV1` there is free text of any depth.

use std::borrow::Cow;

use engine::words::cut;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::runtime::watcher::Event;
use serde::Deserialize;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Value, json};

/// Deeper content of an object is left out: no kind that decisions read is half as deep, and a JSON parser stops at 128.
const DEPTH: usize = 100;
/// Owners of fields: as long as the rest of an object, and of any depth. No decision reads it.
const OWNED_FIELDS: &str = "fieldsV1";
/// Free text of users, in which a time is not a time.
const TEXTS: [&str; 3] = ["annotations", "labels", "data"];
/// Replacements for times later and earlier than the types can read. Both leave room for arithmetic.
const LATEST: &str = "9999-01-01T00:00:00Z";
const EARLIEST: &str = "0001-01-01T00:00:00Z";
/// Most unreadable fields reported of one object.
const REPORTED: usize = 8;
/// Most bytes of each report.
const LONGEST: usize = 256;

/// An object as far as it is readable.
#[derive(Clone, Debug)]
pub struct Lenient<K> {
    /// The object, without unreadable fields.
    pub object: K,
    /// Unreadable fields, nearly always none.
    pub unreadable: Vec<UnreadableField>,
}

/// A field that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableField {
    /// The field: `spec.replicas`.
    pub field: String,
    /// The error.
    pub why: String,
}

impl UnreadableField {
    fn new(field: String, why: &serde_json::Error) -> Self {
        let why = why.to_string();
        Self {
            field,
            why: cut(&why, LONGEST).into_owned(),
        }
    }
}

impl<K> From<K> for Lenient<K> {
    fn from(object: K) -> Self {
        Self {
            object,
            unreadable: Vec::new(),
        }
    }
}

impl<K> Lenient<K> {
    /// The unreadable fields as a message; `None` if all were read.
    pub fn words(&self) -> Option<String> {
        let reported = self.unreadable.iter().take(REPORTED);
        let reported: Vec<String> = reported
            .map(|unclear| format!("{}: {}", unclear.field, unclear.why))
            .collect();
        (!reported.is_empty()).then(|| reported.join("; "))
    }
}

/// The same event with the plain object.
pub fn plain<K>(event: Event<Lenient<K>>) -> Event<K> {
    match event {
        Event::Apply(read) => Event::Apply(read.object),
        Event::Delete(read) => Event::Delete(read.object),
        Event::Init => Event::Init,
        Event::InitApply(read) => Event::InitApply(read.object),
        Event::InitDone => Event::InitDone,
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Lenient<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Bounded(DEPTH).deserialize(deserializer)?;
        read(object).map_err(de::Error::custom)
    }
}

impl<K: Resource> Resource for Lenient<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(kind: &K::DynamicType) -> Cow<'_, str> {
        K::kind(kind)
    }

    fn group(kind: &K::DynamicType) -> Cow<'_, str> {
        K::group(kind)
    }

    fn version(kind: &K::DynamicType) -> Cow<'_, str> {
        K::version(kind)
    }

    fn plural(kind: &K::DynamicType) -> Cow<'_, str> {
        K::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        self.object.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.object.meta_mut()
    }
}

fn read<K: DeserializeOwned>(mut object: Value) -> Result<Lenient<K>, serde_json::Error> {
    if let Ok(read) = K::deserialize(&object) {
        return Ok(read.into());
    }
    saturate(&mut object);
    let why = match K::deserialize(&object) {
        Ok(read) => return Ok(read.into()),
        Err(why) => why,
    };
    let unclear = take_out_unreadable::<K>(&mut object, &why);
    Ok(Lenient {
        object: K::deserialize(&object)?,
        unreadable: unclear,
    })
}

/// Replaces every time outside the readable range by the nearest readable one.
fn saturate(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some(nearest) = nearest_time(text) {
                nearest.clone_into(text);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(saturate),
        Value::Object(fields) => {
            let fields = fields.iter_mut();
            fields
                .filter(|(field, _)| !TEXTS.contains(&field.as_str()))
                .for_each(|(_, value)| saturate(value));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The nearest readable time of an unreadable one.
fn nearest_time(text: &str) -> Option<&'static str> {
    let (date, _) = text.split_once('T')?;
    let mut parts = date.rsplitn(3, '-');
    let [day, month, year] = [parts.next()?, parts.next()?, parts.next()?];
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let (is_before, year) = match year.strip_prefix('-') {
        Some(year) => (true, year),
        None => (false, year),
    };
    let is_a_date = [day, month, year].into_iter().all(is_number);
    let is_far = is_before || year.parse::<u32>().map_or(true, |year| year >= 9999);
    let is_out_of_reach = is_a_date && is_far && text.parse::<Timestamp>().is_err();
    is_out_of_reach.then_some(if is_before { EARLIEST } else { LATEST })
}

/// Removes from an object what its kind cannot read, field by field. `why` is the error for the whole object.
fn take_out_unreadable<K: DeserializeOwned>(
    object: &mut Value,
    why: &serde_json::Error,
) -> Vec<UnreadableField> {
    let Value::Object(parts) = object else {
        return Vec::new();
    };
    let problem = |candidate: Value| K::deserialize(&candidate).err();
    if problem(json!({})).is_some() {
        // A kind with a required spec: other writers write its status.
        let is_taken = parts.remove("status").is_some();
        return is_taken
            .then(|| UnreadableField::new("status".to_owned(), why))
            .into_iter()
            .collect();
    }
    let mut unclear = Vec::new();
    parts.retain(|part, value| {
        match value {
            Value::Object(fields) => fields.retain(|field, value| {
                let problem = problem(json!({ part: { field: &*value } }));
                unclear.extend(
                    problem
                        .iter()
                        .map(|why| UnreadableField::new(format!("{part}.{field}"), why)),
                );
                problem.is_none()
            }),
            Value::Array(items) => {
                let mut place = 0_usize;
                items.retain(|value| {
                    let problem = problem(json!({ part: [value] }));
                    unclear.extend(
                        problem
                            .iter()
                            .map(|why| UnreadableField::new(format!("{part}[{place}]"), why)),
                    );
                    place += 1;
                    problem.is_none()
                });
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        let problem = problem(json!({ part: &*value }));
        unclear.extend(problem.iter().map(|why| UnreadableField::new(part.clone(), why)));
        problem.is_none()
    });
    unclear
}

/// Reads a value to this depth, and leaves out deeper content. Skipped content is not kept and needs no stack.
#[derive(Clone, Copy)]
struct Bounded(usize);

impl<'de> DeserializeSeed<'de> for Bounded {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded {
    type Value = Value;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut read = Vec::new();
        match self.0.checked_sub(1) {
            Some(depth) => {
                while let Some(item) = items.next_element_seed(Self(depth))? {
                    read.push(item);
                }
            }
            None => while items.next_element::<IgnoredAny>()?.is_some() {},
        }
        Ok(Value::Array(read))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut read = Map::new();
        match self.0.checked_sub(1) {
            Some(depth) => {
                while let Some(field) = fields.next_key::<String>()? {
                    let depth = if field == OWNED_FIELDS { 0 } else { depth };
                    let value = fields.next_value_seed(Self(depth))?;
                    read.insert(field, value);
                }
            }
            None => while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {},
        }
        Ok(Value::Object(read))
    }
}

#[cfg(test)]
mod tests;
