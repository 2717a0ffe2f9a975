//! The registry of the kinds of migration, and the name of each kind.

use engine::kind_fields::KindFields;
use strum::{Display, IntoStaticStr, VariantArray};
use thiserror::Error;

/// The registry of kinds: one line for each. Calls the macro `$callback` with all lines.
///
/// A line has the name of the kind, its crate, its field in the API, and the name of a Migration that is created without a name.
/// The crate has a module `api` with the types of these fields: `Spec` and `Status` for the Migration, `NodeSpec` and
/// `NodeStatus` for its `NodeMigration`s. A line may start with `#[cfg(...)]`.
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

/// Defines [`Kind`] from the registry.
macro_rules! kinds {
    ($($(#[cfg($($cfg:tt)*)])? $kind:ident $field:ident $api_field:literal $default_name:literal,)+) => {
        /// The kind of a Migration.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, IntoStaticStr, VariantArray)]
        pub enum Kind {
            $(
                $(#[cfg($($cfg)*)])?
                #[doc = concat!("Migrations with `spec.", $api_field, "`.")]
                #[strum(serialize = $api_field)]
                $kind,
            )+
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Self] = Self::VARIANTS;

            /// The field of the kind in `spec` and `status`.
            pub fn field(self) -> &'static str {
                self.into()
            }

            /// Fields in the part of the kind that are not immutable.
            pub fn changeable(self) -> &'static [&'static str] {
                match self {
                    $($(#[cfg($($cfg)*)])? Self::$kind => <::$field::api::Spec as KindFields>::CHANGEABLE,)+
                }
            }

            /// The name of a Migration that is created without a name.
            pub fn default_name(self) -> &'static str {
                match self {
                    $($(#[cfg($($cfg)*)])? Self::$kind => $default_name,)+
                }
            }
        }
    };
}

for_each_kind!(kinds);

impl Kind {
    /// The kind of a Migration that is created without a file and without flags of a kind.
    pub const DEFAULT: Self = Self::FlannelToCalico;
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

/// The rule of the CRD that the part of a kind is immutable, except the fields that may change.
pub(crate) fn immutable_rule<Spec: KindFields>(field: &str) -> String {
    let same = if Spec::CHANGEABLE.is_empty() {
        format!("self.{field} == oldSelf.{field}")
    } else {
        let schema = schemars::schema_for!(Spec);
        let properties = schema.get("properties").and_then(|found| found.as_object());
        let names = properties.into_iter().flat_map(|properties| properties.keys());
        let same = names
            .filter(|name| !Spec::CHANGEABLE.contains(&name.as_str()))
            .map(|name| {
                let (new, old) = (format!("self.{field}.{name}"), format!("oldSelf.{field}.{name}"));
                format!("has({new}) == has({old}) && (!has({new}) || {new} == {old})")
            });
        same.collect::<Vec<_>>().join(" && ")
    };
    format!("has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || {same})")
}

/// The message of this rule.
pub(crate) fn immutable_message<Spec: KindFields>(field: &str) -> String {
    let except = if Spec::CHANGEABLE.is_empty() {
        String::new()
    } else {
        format!(", except {}", Spec::CHANGEABLE.join(", "))
    };
    format!(
        "{field} is immutable{except}: delete this Migration before it starts or after it ends, and create another one"
    )
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
    use super::*;

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
