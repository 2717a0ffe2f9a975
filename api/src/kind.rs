//! The kinds of migration, and the one place that tells them apart.

use std::fmt;

use thiserror::Error;

use crate::migration::MigrationSpec;
use crate::node_migration::NodeMigrationSpec;

/// The registry of kinds: one line for each. Calls the macro `$callback` with all lines.
///
/// A line has the name of the kind, its crate, its field in the API, and the name of a Migration that is created without a name.
/// The crate has a module `api` with the types of these fields: `Spec` and `Status` for the Migration, `NodeSpec` and `NodeStatus`
/// for its `NodeMigration`s. A line may start with `#[cfg(...)]`.
#[macro_export]
macro_rules! for_each_kind {
    ($callback:ident) => {
        $callback! {
            FlannelToCalico flannel_to_calico "flannelToCalico" "flannel-to-calico",
            PodCidr pod_cidr "podCidr" "pod-cidr",
            ServiceCidr service_cidr "serviceCidr" "service-cidr",
            CalicoDatastore calico_datastore "calicoDatastore" "calico-datastore",
            #[cfg(feature = "example-kind")]
            Example example "example" "example",
        }
    };
}

/// Defines [`Kind`] and [`KindSpec`] from the registry.
macro_rules! kinds {
    ($($(#[cfg($($cfg:tt)*)])? $kind:ident $field:ident $api_field:literal $default_name:literal,)+) => {
        /// The kind of a Migration.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $(
                $(#[cfg($($cfg)*)])?
                #[doc = concat!("Migrations with `spec.", $api_field, "`.")]
                $kind,
            )+
        }

        /// The kind of a Migration, with its part of the spec.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum KindSpec<'spec> {
            $(
                $(#[cfg($($cfg)*)])?
                #[doc = concat!("`spec.", $api_field, "`.")]
                $kind(&'spec ::$field::api::Spec),
            )+
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$($(#[cfg($($cfg)*)])? Self::$kind,)+];

            /// The field of the kind in `spec` and `status`.
            pub fn field(self) -> &'static str {
                match self {
                    $($(#[cfg($($cfg)*)])? Self::$kind => $api_field,)+
                }
            }

            /// The name of a Migration that is created without a name.
            pub fn default_name(self) -> &'static str {
                match self {
                    $($(#[cfg($($cfg)*)])? Self::$kind => $default_name,)+
                }
            }
        }

        impl KindSpec<'_> {
            /// The kind alone.
            pub fn kind(self) -> Kind {
                match self {
                    $($(#[cfg($($cfg)*)])? Self::$kind(_) => Kind::$kind,)+
                }
            }
        }

        impl MigrationSpec {
            /// Every kind that is set, in the order of [`Kind::ALL`]. The API server admits only one.
            fn kinds(&self) -> impl Iterator<Item = KindSpec<'_>> {
                [$($(#[cfg($($cfg)*)])? self.$field.as_ref().map(KindSpec::$kind),)+].into_iter().flatten()
            }
        }

        impl NodeMigrationSpec {
            /// Every kind that is set, in the order of [`Kind::ALL`]. The coordinator sets at most one.
            fn kinds(&self) -> impl Iterator<Item = Kind> {
                [$($(#[cfg($($cfg)*)])? self.$field.as_ref().map(|_| Kind::$kind),)+].into_iter().flatten()
            }
        }
    };
}

for_each_kind!(kinds);

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.field())
    }
}

impl Kind {
    /// The kind of a spec, or the first one if several are set. `None` if no kind is set.
    pub fn of(spec: &MigrationSpec) -> Option<Self> {
        spec.kinds().next().map(KindSpec::kind)
    }
}

impl MigrationSpec {
    /// The kind of the Migration, with its part of the spec.
    ///
    /// # Errors
    ///
    /// If no kind or more than one kind is set. The API server refuses both.
    pub fn kind(&self) -> Result<KindSpec<'_>, KindError> {
        let mut kinds = self.kinds();
        match (kinds.next(), kinds.next()) {
            (Some(kind), None) => Ok(kind),
            (None, _) => Err(KindError::None),
            (Some(_), Some(_)) => Err(KindError::Several),
        }
    }
}

impl NodeMigrationSpec {
    /// The kind of the migration of this node. `None` if no kind is set.
    ///
    /// # Errors
    ///
    /// If more than one kind is set.
    pub fn kind(&self) -> Result<Option<Kind>, KindError> {
        let mut kinds = self.kinds();
        match (kinds.next(), kinds.next()) {
            (kind, None) => Ok(kind),
            (_, Some(_)) => Err(KindError::Several),
        }
    }
}

/// The rule of the CRD that exactly one kind is set.
pub(crate) fn exactly_one_rule() -> String {
    let set: Vec<String> = Kind::ALL.iter().map(|kind| format!("has(self.{kind})")).collect();
    format!("[{}].filter(kind, kind).size() == 1", set.join(", "))
}

/// The message of this rule.
pub(crate) fn exactly_one_message() -> String {
    let fields: Vec<&str> = Kind::ALL.iter().map(|kind| kind.field()).collect();
    format!("exactly one of {} must be set", fields.join(", "))
}

/// A spec without exactly one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KindError {
    /// No kind is set.
    #[error("no kind is set; set exactly one of {}", fields())]
    None,
    /// More than one kind is set.
    #[error("more than one kind is set; set exactly one of {}", fields())]
    Several,
}

/// The fields of all kinds, for messages: `spec.a, spec.b and spec.c`.
pub fn fields() -> String {
    let fields: Vec<String> = Kind::ALL.iter().map(|kind| format!("spec.{kind}")).collect();
    match fields.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(fields: serde_json::Value) -> MigrationSpec {
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn each_kind_is_found_by_its_field() {
        let specs = [
            json!({ "flannelToCalico": {} }),
            json!({ "podCidr": { "from": "10.0.0.0/16", "to": "10.1.0.0/16" } }),
            json!({ "serviceCidr": { "to": ["10.2.0.0/16"] } }),
            json!({ "calicoDatastore": { "manifest": "{}" } }),
        ];
        let kinds = specs.map(|fields| spec(fields).kind().map(KindSpec::kind));
        assert_eq!(
            kinds.to_vec(),
            Kind::ALL.iter().copied().map(Ok).collect::<Vec<_>>()
        );
    }

    #[test]
    fn no_kind_and_two_kinds_are_errors_that_name_the_fields() {
        let fields = "set exactly one of spec.flannelToCalico, spec.podCidr, spec.serviceCidr and spec.calicoDatastore";
        let none = spec(json!({}));
        assert_eq!(
            none.kind().unwrap_err().to_string(),
            format!("no kind is set; {fields}")
        );
        assert_eq!(Kind::of(&none), None);
        let two = spec(json!({ "flannelToCalico": {}, "serviceCidr": { "to": ["10.2.0.0/16"] } }));
        assert_eq!(
            two.kind().unwrap_err().to_string(),
            format!("more than one kind is set; {fields}")
        );
        assert_eq!(Kind::of(&two), Some(Kind::FlannelToCalico));
    }

    #[test]
    fn default_names_are_the_fields_in_kebab_case() {
        for kind in Kind::ALL {
            let kebab: String = kind
                .field()
                .chars()
                .flat_map(|letter| {
                    letter
                        .is_uppercase()
                        .then_some('-')
                        .into_iter()
                        .chain(letter.to_lowercase())
                })
                .collect();
            assert_eq!(kind.default_name(), kebab);
        }
    }
}
