//! Lists: by labels, and in pages.

use serde_json::{Value, json};

/// The page of these objects for the query, or why the query is not understood.
pub fn page(mut objects: Vec<Value>, query: &str) -> Result<Value, String> {
    let asked = |key: &str| {
        form_urlencoded::parse(query.as_bytes()).find_map(|(found, value)| (found == key).then_some(value))
    };
    if let Some(labels) = asked("labelSelector") {
        let terms = labels.split(',').map(|term| {
            term.split_once('=')
                .ok_or_else(|| format!("labelSelector {term:?}: only KEY=VALUE is known"))
        });
        let wanted: Vec<(&str, &str)> = terms.collect::<Result<_, _>>()?;
        objects.retain(|object| {
            let labels = &object["metadata"]["labels"];
            wanted.iter().all(|(key, value)| labels[*key] == *value)
        });
    }
    if let Some(fields) = asked("fieldSelector") {
        return Err(format!("fieldSelector {fields:?}: not known"));
    }
    let number = |key: &str| {
        let parse = |text: std::borrow::Cow<'_, str>| {
            text.parse::<usize>()
                .map_err(|_| format!("{key} {text:?}: not a number"))
        };
        asked(key).map(parse).transpose()
    };
    let start = number("continue")?.unwrap_or_default().min(objects.len());
    let end = number("limit")?.map_or(objects.len(), |limit| (start + limit).min(objects.len()));
    let next = if end < objects.len() {
        json!({ "continue": end.to_string() })
    } else {
        json!({})
    };
    Ok(json!({ "metadata": next, "items": objects[start..end] }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(page: &Value) -> Vec<&str> {
        let items = page["items"].as_array().unwrap().iter();
        items
            .map(|item| item["metadata"]["name"].as_str().unwrap())
            .collect()
    }

    #[test]
    fn a_list_is_filtered_by_labels_and_paged() {
        let object =
            |name: &str, label: &str| json!({ "metadata": { "name": name, "labels": { "a/b": label } } });
        let all = vec![object("one", "x"), object("two", "y"), object("three", "x")];
        assert_eq!(
            named(&page(all.clone(), "labelSelector=a%2Fb%3Dx").unwrap()),
            ["one", "three"]
        );
        let first = page(all.clone(), "limit=2").unwrap();
        assert_eq!(named(&first), ["one", "two"]);
        let next = first["metadata"]["continue"].as_str().unwrap();
        let last = page(all.clone(), &format!("limit=2&continue={next}")).unwrap();
        assert_eq!(
            (named(&last), &last["metadata"]["continue"]),
            (vec!["three"], &Value::Null)
        );
        assert!(page(all, "labelSelector=spare").unwrap_err().contains("spare"));
    }
}
