//! The way to an etcd of Calico's, by what calico-node or a Migration says and the Secrets hold.

use api::migration::EtcdAccess;
use calico::etcd_access::StoreProblem;
use calico::etcd_access::{Etcd, SecretKey};
use datastore::access::{Access, Pem, Said, Side};
use datastore::error::StoreError;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use crate::context::Context;
use crate::kinds::calico_datastore::hints;

/// Keys of a Secret that says the way to an etcd, as in Calico's own.
const AUTHORITY: &str = "etcd-ca";
const CERTIFICATE: &str = "etcd-cert";
const KEY: &str = "etcd-key";

/// Who asks: what a person corrects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The field of the Migration that says the way.
    pub field: &'static str,
    /// The folder with the rights to read certificates.
    pub component: &'static str,
}

/// The way that a Migration says; the Secret is in our own namespace.
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

/// As checks and messages say it.
pub fn problem(error: &StoreError) -> StoreProblem {
    let otherwise =
        "see whether etcd answers where the coordinator runs, with the certificates of Calico's own pods";
    StoreProblem {
        message: error.to_string(),
        hint: hints::of_store(error).unwrap_or_else(|| otherwise.to_owned()),
    }
}

/// The way to it, with its certificates.
pub async fn access(
    context: &Context,
    asker: Asker,
    side: Side,
    etcd: &Etcd,
) -> Result<Access, StoreProblem> {
    let namespace = if etcd.namespace.is_empty() {
        &context.namespace
    } else {
        &etcd.namespace
    };
    let said = Said {
        endpoints: etcd.endpoints.clone(),
        authority: pem(context, asker, namespace, etcd.authority.as_ref()).await?,
        certificate: pem(context, asker, namespace, etcd.certificate.as_ref()).await?,
        key: pem(context, asker, namespace, etcd.key.as_ref()).await?,
        ..Said::default()
    };
    said.access(side).map_err(|error| StoreProblem {
        message: error.to_string(),
        hint: format!("correct it in {}, or where calico-node has it from", asker.field),
    })
}

/// What a Secret holds under a key; nothing where none is named, or the key is empty.
async fn pem(
    context: &Context,
    asker: Asker,
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
            "let the coordinator read it: `kubectl apply -k {}`, with the Secret's name in its Role",
            asker.component
        ),
    })?;
    let data = found.and_then(|secret| secret.data).unwrap_or_default();
    match data.get(key) {
        Some(bytes) if !bytes.0.is_empty() => Ok(Some(Pem::Here {
            place,
            bytes: bytes.0.clone(),
        })),
        Some(_) | None => Err(StoreProblem {
            message: format!("{place}: there is nothing"),
            hint: format!(
                "calico-node reads its certificate there, or {} names the Secret: write it",
                asker.field
            ),
        }),
    }
}
