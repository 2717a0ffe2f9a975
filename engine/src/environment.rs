//! Variables of a container, as far as the Kubernetes API shows their values.

use std::collections::BTreeMap;

/// Data of `ConfigMap`s by (namespace, name).
pub type ConfigMaps = BTreeMap<(String, String), BTreeMap<String, String>>;

/// The value of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Variable<'facts> {
    /// The container does not have the variable.
    Unset,
    /// Its value.
    Known(&'facts str),
    /// The variable may be set, and the API does not show its value: where it comes from.
    Unknown(String),
}

impl<'facts> Variable<'facts> {
    /// The value, if it is known.
    pub fn known(&self) -> Option<&'facts str> {
        match self {
            Self::Known(value) => Some(value),
            Self::Unset | Self::Unknown(_) => None,
        }
    }
}

/// The source of one variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// Written in the pod template.
    Plain(String),
    /// A key of a `ConfigMap` of the same namespace.
    ConfigMapKey {
        /// Name of the `ConfigMap`.
        config_map: String,
        /// The key.
        key: String,
        /// Whether the container starts without it.
        optional: bool,
    },
    /// A Secret, or a field of the pod or the container.
    Elsewhere(String),
}

/// A source of many variables (`envFrom`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManyValues {
    /// Start of the names of the variables.
    pub prefix: String,
    /// The object.
    pub source: ManySource,
    /// Whether the container starts without the object.
    pub optional: bool,
}

/// The object of `envFrom`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManySource {
    /// A `ConfigMap` of the same namespace, by name.
    ConfigMap(String),
    /// A Secret, by name: its values are not read.
    Secret(String),
}

/// The variables of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// Single variables (`env`), which override the others.
    pub single: BTreeMap<String, ValueSource>,
    /// `envFrom`, in order: the last one wins.
    pub many: Vec<ManyValues>,
}

impl Environment {
    /// Variables with these values.
    pub fn plain<'text>(values: impl IntoIterator<Item = (&'text str, &'text str)>) -> Self {
        let single = values.into_iter().map(|(name, value)| {
            let value = ValueSource::Plain(value.to_owned());
            (name.to_owned(), value)
        });
        Self {
            single: single.collect(),
            many: Vec::new(),
        }
    }

    /// Sets a variable to a plain value.
    pub fn set(&mut self, name: &str, value: &str) {
        self.single
            .insert(name.to_owned(), ValueSource::Plain(value.to_owned()));
    }

    /// The value of a variable. `namespace` is that of the pod.
    pub fn variable<'facts>(
        &'facts self,
        name: &str,
        namespace: &str,
        config_maps: &'facts ConfigMaps,
    ) -> Variable<'facts> {
        let data = |config_map: &str| config_maps.get(&(namespace.to_owned(), config_map.to_owned()));
        match self.single.get(name) {
            // The kubelet replaces $(NAME) by another variable.
            Some(ValueSource::Plain(value)) if value.contains("$(") => {
                Variable::Unknown(format!("the text {value:?}"))
            }
            Some(ValueSource::Plain(value)) => Variable::Known(value),
            Some(ValueSource::ConfigMapKey {
                config_map,
                key,
                optional,
            }) => match data(config_map).and_then(|data| data.get(key)) {
                Some(value) => Variable::Known(value),
                // The kubelet leaves out the variable, so that one of many may have the name.
                None if *optional => self.of_many(name, namespace, data),
                None => Variable::Unknown(format!(
                    "key {key} of ConfigMap {namespace}/{config_map}, which does not exist"
                )),
            },
            Some(ValueSource::Elsewhere(place)) => Variable::Unknown(place.clone()),
            None => self.of_many(name, namespace, data),
        }
    }

    fn of_many<'facts>(
        &'facts self,
        name: &str,
        namespace: &str,
        data: impl Fn(&str) -> Option<&'facts BTreeMap<String, String>>,
    ) -> Variable<'facts> {
        for ManyValues {
            prefix,
            source,
            optional,
        } in self.many.iter().rev()
        {
            let Some(key) = name.strip_prefix(prefix.as_str()) else {
                continue;
            };
            match source {
                ManySource::ConfigMap(config_map) => match data(config_map) {
                    Some(data) => {
                        if let Some(value) = data.get(key) {
                            return Variable::Known(value);
                        }
                    }
                    None if *optional => {}
                    None => {
                        return Variable::Unknown(format!(
                            "ConfigMap {namespace}/{config_map}, which does not exist"
                        ));
                    }
                },
                ManySource::Secret(secret) => {
                    return Variable::Unknown(format!(
                        "Secret {namespace}/{secret}, whose keys are not read"
                    ));
                }
            }
        }
        Variable::Unset
    }

    /// Names of the `ConfigMap`s that hold values.
    pub fn config_maps(&self) -> impl Iterator<Item = &str> {
        let single = self.single.values().filter_map(|source| match source {
            ValueSource::ConfigMapKey { config_map, .. } => Some(config_map.as_str()),
            ValueSource::Plain(_) | ValueSource::Elsewhere(_) => None,
        });
        let many = self.many.iter().filter_map(|many| match &many.source {
            ManySource::ConfigMap(name) => Some(name.as_str()),
            ManySource::Secret(_) => None,
        });
        single.chain(many)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps() -> ConfigMaps {
        let data = BTreeMap::from([("backend".to_owned(), "vxlan".to_owned())]);
        BTreeMap::from([(("n".to_owned(), "config".to_owned()), data)])
    }

    fn key(config_map: &str, key: &str, optional: bool) -> ValueSource {
        ValueSource::ConfigMapKey {
            config_map: config_map.to_owned(),
            key: key.to_owned(),
            optional,
        }
    }

    fn read(source: ValueSource, maps: &ConfigMaps) -> Result<Option<String>, String> {
        let environment = Environment {
            single: BTreeMap::from([("A".to_owned(), source)]),
            many: Vec::new(),
        };
        match environment.variable("A", "n", maps) {
            Variable::Unset => Ok(None),
            Variable::Known(value) => Ok(Some(value.to_owned())),
            Variable::Unknown(place) => Err(place),
        }
    }

    #[test]
    fn a_value_is_known_unset_or_has_a_place() {
        let maps = maps();
        let value = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(read(ValueSource::Plain("x".to_owned()), &maps), value("x"));
        assert_eq!(read(key("config", "backend", false), &maps), value("vxlan"));
        assert_eq!(read(key("config", "other", true), &maps), Ok(None));
        assert!(
            read(key("config", "other", false), &maps)
                .unwrap_err()
                .contains("key other")
        );
        assert!(
            read(key("none", "other", false), &maps)
                .unwrap_err()
                .contains("ConfigMap n/none")
        );
        assert!(
            read(ValueSource::Plain("$(B)".to_owned()), &maps)
                .unwrap_err()
                .contains("$(B)")
        );
        let field = ValueSource::Elsewhere("field status.hostIP".to_owned());
        assert_eq!(read(field, &maps), Err("field status.hostIP".to_owned()));
    }

    #[test]
    fn the_last_of_many_sources_wins_and_a_single_variable_over_it() {
        let maps = maps();
        let many = |prefix: &str, source, optional| ManyValues {
            prefix: prefix.to_owned(),
            source,
            optional,
        };
        let mut environment = Environment {
            single: BTreeMap::new(),
            many: vec![
                many("", ManySource::ConfigMap("config".to_owned()), false),
                many("CALICO_", ManySource::ConfigMap("none".to_owned()), true),
            ],
        };
        assert_eq!(
            environment.variable("backend", "n", &maps),
            Variable::Known("vxlan")
        );
        assert_eq!(
            environment.variable("CALICO_backend", "n", &maps),
            Variable::Unset
        );
        environment
            .many
            .push(many("", ManySource::Secret("s".to_owned()), true));
        assert!(matches!(
            environment.variable("backend", "n", &maps),
            Variable::Unknown(_)
        ));
        let plain = ValueSource::Plain("bird".to_owned());
        environment.single.insert("backend".to_owned(), plain);
        assert_eq!(
            environment.variable("backend", "n", &maps),
            Variable::Known("bird")
        );
        assert_eq!(environment.config_maps().collect::<Vec<_>>(), ["config", "none"]);
    }
}
