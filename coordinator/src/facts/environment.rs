//! Variables of a container.

use engine::environment::{Environment, ManySource, ManyValues, ValueSource};
use k8s_openapi::api::core::v1::{Container, EnvFromSource, EnvVar};

/// The variables of a container.
pub fn environment(container: &Container) -> Environment {
    let single = container.env.iter().flatten();
    Environment {
        single: single
            .map(|variable| (variable.name.clone(), value_source(variable)))
            .collect(),
        many: container.env_from.iter().flatten().filter_map(many).collect(),
    }
}

fn value_source(variable: &EnvVar) -> ValueSource {
    let Some(source) = &variable.value_from else {
        return ValueSource::Plain(variable.value.clone().unwrap_or_default());
    };
    if let Some(source) = &source.config_map_key_ref {
        return ValueSource::ConfigMapKey {
            config_map: source.name.clone(),
            key: source.key.clone(),
            optional: source.optional.unwrap_or_default(),
        };
    }
    ValueSource::Elsewhere(if let Some(secret) = &source.secret_key_ref {
        format!("key {} of Secret {}", secret.key, secret.name)
    } else if let Some(field) = &source.field_ref {
        format!("field {} of the pod", field.field_path)
    } else if let Some(field) = &source.resource_field_ref {
        format!("field {} of the container", field.resource)
    } else {
        "a source that is not known".to_owned()
    })
}

fn many(source: &EnvFromSource) -> Option<ManyValues> {
    let prefix = source.prefix.clone().unwrap_or_default();
    let of = |source, optional: Option<bool>| ManyValues {
        prefix: prefix.clone(),
        source,
        optional: optional.unwrap_or_default(),
    };
    if let Some(found) = &source.config_map_ref {
        return Some(of(ManySource::ConfigMap(found.name.clone()), found.optional));
    }
    let found = source.secret_ref.as_ref()?;
    Some(of(ManySource::Secret(found.name.clone()), found.optional))
}

#[cfg(test)]
mod tests {
    use engine::environment::Variable;

    use super::*;

    #[test]
    fn every_source_is_kept() {
        let container: Container = serde_json::from_value(serde_json::json!({
            "name": "c",
            "env": [
                {"name": "DEPTH", "value": "5000"},
                {"name": "EMPTY"},
                {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                {"name": "BACKEND", "valueFrom": {"configMapKeyRef": {"name": "config", "key": "backend"}}},
            ],
            "envFrom": [{"configMapRef": {"name": "all", "optional": true}}, {"prefix": "S_", "secretRef": {"name": "s"}}],
        }))
        .unwrap();
        let environment = environment(&container);
        let maps = std::collections::BTreeMap::new();
        let read = |name| environment.variable(name, "n", &maps);
        assert_eq!(
            (read("DEPTH"), read("EMPTY")),
            (Variable::Known("5000"), Variable::Known(""))
        );
        for (name, place) in [
            ("POD", "metadata.name"),
            ("KEY", "key k of Secret s"),
            ("CPU", "limits.cpu"),
            ("BACKEND", "key backend of ConfigMap n/config"),
            ("S_ANY", "Secret n/s"),
        ] {
            let Variable::Unknown(found) = read(name) else {
                panic!("{name}")
            };
            assert!(found.contains(place), "{name}: {found}");
        }
        assert_eq!(read("OTHER"), Variable::Unset);
        assert_eq!(environment.config_maps().collect::<Vec<_>>(), ["config", "all"]);
    }
}
