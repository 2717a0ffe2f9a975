//! Parses the objects that `nft -j list` prints, one after another, without holding all of them. Pure.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Calls `each` with every object of the list.
///
/// # Errors
///
/// The text is not nft's JSON, or `each` returns an error.
pub fn each_object<'text, T: Deserialize<'text>>(
    text: &'text str,
    each: impl FnMut(T) -> Result<(), String>,
) -> Result<(), String> {
    let mut answer = serde_json::Deserializer::from_str(text);
    let objects = Objects {
        each,
        of: PhantomData,
    };
    let read = |answer: &mut _| Answer(objects).deserialize(answer);
    read(&mut answer)
        .and_then(|()| answer.end())
        .map_err(|error| error.to_string())
}

/// The whole output: an object with a list `nftables`.
struct Answer<F, T>(Objects<F, T>);

impl<'text, T: Deserialize<'text>, F: FnMut(T) -> Result<(), String>> DeserializeSeed<'text>
    for Answer<F, T>
{
    type Value = ();

    fn deserialize<D: Deserializer<'text>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'text, T: Deserialize<'text>, F: FnMut(T) -> Result<(), String>> Visitor<'text> for Answer<F, T> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with a list \"nftables\"")
    }

    fn visit_map<A: MapAccess<'text>>(self, mut map: A) -> Result<(), A::Error> {
        let mut objects = Some(self.0);
        while let Some(key) = map.next_key::<String>()? {
            match objects.take_if(|_| key == "nftables") {
                Some(objects) => map.next_value_seed(objects)?,
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        match objects {
            None => Ok(()),
            Some(_) => Err(A::Error::custom("no list \"nftables\"")),
        }
    }
}

/// The list.
struct Objects<F, T> {
    each: F,
    of: PhantomData<T>,
}

impl<'text, T: Deserialize<'text>, F: FnMut(T) -> Result<(), String>> DeserializeSeed<'text>
    for Objects<F, T>
{
    type Value = ();

    fn deserialize<D: Deserializer<'text>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'text, T: Deserialize<'text>, F: FnMut(T) -> Result<(), String>> Visitor<'text> for Objects<F, T> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'text>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(object) = list.next_element::<T>()? {
            (self.each)(object).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn objects(text: &str) -> Result<Vec<Value>, String> {
        let mut found = Vec::new();
        each_object(text, |object| {
            found.push(object);
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn each_object_of_the_list_is_visited_and_other_keys_are_ignored() {
        assert_eq!(
            objects(r#"{"other": [7], "nftables": [{"a": 1}, {"b": {}}]}"#).unwrap(),
            [serde_json::json!({"a": 1}), serde_json::json!({"b": {}})]
        );
        assert_eq!(objects(r#"{"nftables": []}"#).unwrap(), Vec::<Value>::new());
    }

    #[test]
    fn output_without_a_list_is_an_error() {
        for (text, words) in [
            ("{}", "no list \"nftables\""),
            (r#"{"nftables": {}}"#, "a list of objects"),
            (r#"{"nftables": [{"a": 1}"#, "EOF"),
            ("Error: no such file", "expected value"),
            ("[]", "an object with a list"),
        ] {
            let problem = objects(text).unwrap_err();
            assert!(problem.contains(words), "{problem}");
        }
    }
}
