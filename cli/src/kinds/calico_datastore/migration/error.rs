//! Errors of calicoDatastore.

use thiserror::Error;

use crate::error::KindError;

/// A new Migration with calicoDatastore lacks the manifest.
#[derive(Debug, Error)]
#[error(
    "a new Migration with spec.calicoDatastore needs the manifest of Calico v3: found no --calico-v3-manifest"
)]
pub struct NoCalicoManifest;

impl KindError for NoCalicoManifest {
    fn hint(&self) -> Option<String> {
        Some(
            "use the file that you would give to `kubectl apply`: calico-etcd.yaml of the release, with the endpoints of \
             your etcd; with kops, the addon networking.projectcalico.org in the state store"
                .to_owned(),
        )
    }
}
