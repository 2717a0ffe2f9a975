//! The one place that tells the kinds apart: the kind of a spec, with its part of the spec.

use crate::kind::{Kind, KindError};
use crate::migration::MigrationSpec;
use crate::node_migration::NodeMigrationSpec;

/// Defines [`KindSpec`] from the registry.
macro_rules! kind_specs {
    ($($(#[cfg($($cfg:tt)*)])? $kind:ident $field:ident $api_field:literal $default_name:literal,)+) => {
        /// The kind of a Migration, with its part of the spec.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum KindSpec<'spec> {
            $(
                $(#[cfg($($cfg)*)])?
                #[doc = concat!("`spec.", $api_field, "`.")]
                $kind(&'spec ::$field::api::Spec),
            )+
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

crate::for_each_kind!(kind_specs);

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
    ///
    /// # Examples
    ///
    /// ```
    /// use api::kind::KindError;
    /// use api::{KindSpec, MigrationSpec};
    /// use serde_json::json;
    ///
    /// let spec: MigrationSpec = serde_json::from_value(json!({ "serviceCidr": { "to": ["172.30.0.0/16"] } }))?;
    /// assert!(matches!(spec.kind(), Ok(KindSpec::ServiceCidr(_))));
    /// let spec: MigrationSpec = serde_json::from_value(json!({ "desired": "Plan" }))?;
    /// assert!(matches!(spec.kind(), Err(KindError::None)));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
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
}
