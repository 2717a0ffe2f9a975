//! The kinds of migration as the coordinator drives them: one folder and one `mod` line for each.

pub(crate) mod calico_datastore;
#[cfg(feature = "example-kind")]
mod example;
pub mod flannel_to_calico;
pub(crate) mod pod_cidr;
pub mod service_cidr;

use api::MigrationStatus;
use memory_api::Objects;

use crate::kind::Kind;
use crate::kind_stores::KindStores;

/// Defines [`with_kind`], and what is done for every kind, from the registry.
macro_rules! kinds {
    ($($(#[cfg($($cfg:tt)*)])? $kind:ident $field:ident $api_field:literal $default_name:literal,)+) => {
        define_with_kind! { ($) $($(#[cfg($($cfg)*)])? $kind,)+ }

        /// Cuts the texts of every kind in the status whose length depends on the content of the cluster.
        pub(crate) fn cut_texts(status: &mut MigrationStatus) {
            $($(#[cfg($($cfg)*)])? <::$field::api::Spec as Kind>::cut_texts(status);)+
        }

        /// Whether the checks of this kind ask only the Kubernetes API and agents.
        pub(crate) fn is_judged_offline(kind: &::api::KindSpec) -> bool {
            match kind {
                $($(#[cfg($($cfg)*)])? ::api::KindSpec::$kind(_) => <::$field::api::Spec as Kind>::is_judged_offline(),)+
            }
        }

        /// Fills the stores of every kind from an API server in memory.
        ///
        /// # Errors
        ///
        /// An object is not of its kind.
        pub(crate) fn fill_stores(objects: &Objects, stores: &KindStores) -> anyhow::Result<()> {
            $($(#[cfg($($cfg)*)])? <::$field::api::Spec as Kind>::fill_stores(objects, stores)?;)+
            Ok(())
        }

        /// Clears the counts of every kind in the status, on which no decision depends.
        pub(crate) fn clear_counts(status: &mut MigrationStatus) {
            $($(#[cfg($($cfg)*)])? <::$field::api::Spec as Kind>::clear_counts(status);)+
        }
    };
}

/// `$dollar` is the character that makes the parameters of the inner macro.
macro_rules! define_with_kind {
    (($dollar:tt) $($(#[cfg($($cfg:tt)*)])? $kind:ident,)+) => {
        /// Evaluates an expression with the kind of a Migration bound to a name, as the type that implements
        /// [`Kind`](crate::kind::Kind).
        macro_rules! with_kind {
            ($dollar spec:expr, $dollar bound:ident => $dollar evaluated:expr) => {
                match $dollar spec {
                    $($(#[cfg($($cfg)*)])? ::api::KindSpec::$kind($dollar bound) => $dollar evaluated,)+
                }
            };
        }
        pub(crate) use with_kind;
    };
}

api::for_each_kind!(kinds);
