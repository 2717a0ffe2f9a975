//! The connections to both stores: from flags, then calicoctl's files, then the environment.

use std::collections::BTreeMap;
use std::path::Path;

use datastore::access::{Access, PartialAccess, Pem, Side};
use datastore::stores::Stores;
use serde_json::Value;

use super::flags::StoreFlags;
use crate::error::CliError;

/// Variables by name.
pub type Variables = BTreeMap<String, String>;

/// Connects to both stores.
pub async fn stores(flags: &StoreFlags, variables: &Variables) -> Result<Stores, CliError> {
    let v2 = access(
        Side::V2,
        PartialAccess {
            endpoints: flags.v2_endpoints.clone(),
            authority: flags.v2_ca_cert_file.clone().map(Pem::from),
            certificate: flags.v2_cert_file.clone().map(Pem::from),
            key: flags.v2_key_file.clone().map(Pem::from),
            ..PartialAccess::default()
        },
        flags.apiconfigv1.as_deref(),
        variables,
    )?;
    let v3 = access(
        Side::V3,
        PartialAccess {
            endpoints: flags.v3_endpoints.clone(),
            authority: flags.v3_ca_cert_file.clone().map(Pem::from),
            certificate: flags.v3_cert_file.clone().map(Pem::from),
            key: flags.v3_key_file.clone().map(Pem::from),
            ..PartialAccess::default()
        },
        flags.apiconfigv3.as_deref(),
        variables,
    )?;
    Ok(Stores::connect(&v2, &v3).await?)
}

fn access(
    side: Side,
    flags: PartialAccess,
    file: Option<&Path>,
    variables: &Variables,
) -> Result<Access, CliError> {
    let of_file = match file {
        Some(path) => PartialAccess::of_file(side, path, &read(path)?)?,
        None => PartialAccess::default(),
    };
    let merged = flags
        .or(of_file)
        .or(PartialAccess::of_environment(side, variables));
    Ok(merged.access(side)?)
}

fn read(path: &Path) -> Result<Value, CliError> {
    let wrong = |why: String| CliError::File {
        file: path.display().to_string(),
        why,
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    yaml_serde::from_str(&text).map_err(|error| wrong(error.to_string()))
}
