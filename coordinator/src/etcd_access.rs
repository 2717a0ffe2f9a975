//! Access to Calico's etcd, as set in calico-node or a Migration, with certificates from Secrets.

use api::migration::EtcdAccess;
use calico::etcd_access::StoreProblem;
use calico::etcd_access::{Etcd, SecretKey};
use datastore::access::{Access, PartialAccess, Pem, Side};
use datastore::error::StoreError;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use crate::context::Context;

/// Keys of a Secret with access to etcd, as in Calico's own.
const AUTHORITY: &str = "etcd-ca";
const CERTIFICATE: &str = "etcd-cert";
const KEY: &str = "etcd-key";

/// The source of the settings: names what the user corrects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingsSource {
    /// Field of the Migration with the settings.
    pub field: &'static str,
    /// Folder with the RBAC rules for reading certificates.
    pub component: &'static str,
}

/// The access that a Migration sets; its Secret is in the coordinator's namespace.
pub fn of_spec(said: &EtcdAccess) -> Etcd {
    let key = |key: &str| {
        said.secret.as_ref().map(|secret| SecretKey {
            secret: secret.clone(),
            key: key.to_owned(),
        })
    };
    Etcd {
        endpoints: said.endpoints.clone(),
        namespace: String::new(),
        authority: key(AUTHORITY),
        certificate: key(CERTIFICATE),
        key: key(KEY),
    }
}

/// The problem as checks and messages show it.
pub fn problem(error: &StoreError) -> StoreProblem {
    let otherwise =
        "check that etcd answers on the coordinator's node with the certificates of Calico's pods";
    StoreProblem {
        message: error.to_string(),
        hint: hint_of_store(error).unwrap_or_else(|| otherwise.to_owned()),
    }
}

/// The hint for an error of one store.
pub fn hint_of_store(error: &StoreError) -> Option<String> {
    match error {
        StoreError::Unreachable { .. } => Some(
            "Check that etcd answers on the coordinator's node, with the certificates of calico-node"
                .to_owned(),
        ),
        StoreError::Locked { .. } => Some("replumb retries automatically".to_owned()),
        StoreError::Changed { .. } | StoreError::LockLost { .. } => {
            Some("replumb continues automatically from where it stopped".to_owned())
        }
        StoreError::Access { .. }
        | StoreError::File { .. }
        | StoreError::Answer { .. }
        | StoreError::NoV2 { .. }
        | StoreError::NoV3 { .. } => error.hint(),
    }
}

/// Access to etcd, with its certificates.
pub async fn access(
    context: &Context,
    asker: SettingsSource,
    side: Side,
    etcd: &Etcd,
) -> Result<Access, StoreProblem> {
    let namespace = if etcd.namespace.is_empty() {
        &context.namespace
    } else {
        &etcd.namespace
    };
    let said = PartialAccess {
        endpoints: etcd.endpoints.clone(),
        authority: pem(context, asker, namespace, etcd.authority.as_ref()).await?,
        certificate: pem(context, asker, namespace, etcd.certificate.as_ref()).await?,
        key: pem(context, asker, namespace, etcd.key.as_ref()).await?,
        ..PartialAccess::default()
    };
    said.access(side).map_err(|error| StoreProblem {
        message: error.to_string(),
        hint: format!("correct {}, or the source of calico-node's settings", asker.field),
    })
}

/// Content of a key of a Secret; `None` where no key is named.
async fn pem(
    context: &Context,
    asker: SettingsSource,
    namespace: &str,
    key: Option<&SecretKey>,
) -> Result<Option<Pem>, StoreProblem> {
    let Some(SecretKey { secret, key }) = key else {
        return Ok(None);
    };
    let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let place = format!("Secret {namespace}/{secret}, key {key}");
    let found = api.get_opt(secret).await.map_err(|error| StoreProblem {
        message: format!("reading {place}: {error}"),
        hint: format!(
            "allow the coordinator to read the Secret: add its name to the Role in {0} and run `kubectl apply -k {0}`",
            asker.component
        ),
    })?;
    let data = found.and_then(|secret| secret.data).unwrap_or_default();
    match data.get(key) {
        Some(bytes) if !bytes.0.is_empty() => Ok(Some(Pem::Memory {
            source: place,
            bytes: bytes.0.clone(),
        })),
        Some(_) | None => Err(StoreProblem {
            message: format!("{place}: no content"),
            hint: format!(
                "calico-node or {} refers to this key: write it to the Secret",
                asker.field
            ),
        }),
    }
}
