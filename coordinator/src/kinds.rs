//! The kinds of migration: one folder, one `mod` line and one line of [`with_kind`] for each.

pub(crate) mod calico_datastore;
pub mod flannel_to_calico;
pub(crate) mod pod_cidr;
pub mod service_cidr;

/// Evaluates an expression with the kind of a Migration bound to a name, as the type that implements
/// [`Kind`](crate::lifecycle::Kind).
macro_rules! with_kind {
    ($spec:expr, $kind:ident => $evaluated:expr) => {
        match $spec {
            ::api::KindSpec::FlannelToCalico($kind) => $evaluated,
            ::api::KindSpec::PodCidr($kind) => $evaluated,
            ::api::KindSpec::ServiceCidr($kind) => $evaluated,
            ::api::KindSpec::CalicoDatastore($kind) => $evaluated,
        }
    };
}
pub(crate) use with_kind;
