//! Names and labels of helpers, by which a Service is recognized as one.

use data_encoding::HEXLOWER;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::exchange::{ROLE_LABEL, Role};

/// Label on a helper: name of its Service.
pub const SERVICE_LABEL: &str = "replumb.dev/service";

/// Longest name of a Service.
const LONGEST_NAME: usize = 63;

/// Name of the helper of this Service for this role.
pub fn helper_name(service: &str, role: Role) -> String {
    let name = format!("{service}-replumb-{}", role.as_str());
    if name.len() <= LONGEST_NAME {
        return name;
    }
    let short = HEXLOWER.encode(&Sha256::digest(service.as_bytes())[..5]);
    let end = format!("-{short}-replumb-{}", role.as_str());
    let kept: String = service.chars().take(LONGEST_NAME - end.len()).collect();
    format!("{}{end}", kept.trim_end_matches('-'))
}

/// Whether this Service is a helper of replumb, by its labels and its name: a label alone can be set on any Service.
pub fn is_helper(service: &Value) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let labels = &service["metadata"]["labels"];
    let (role, of) = (text(&labels[ROLE_LABEL]), text(&labels[SERVICE_LABEL]));
    let name = text(&service["metadata"]["name"]);
    Role::ALL
        .into_iter()
        .any(|known| known.as_str() == role && helper_name(&of, known) == name)
}

/// Whether `helper` is the helper of `service` for this role, and not of an earlier Service with the same name.
pub fn is_helper_of(service: &Value, helper: &Value, role: Role) -> bool {
    let labels = &helper["metadata"]["labels"];
    let owners = helper["metadata"]["ownerReferences"].as_array();
    is_helper(helper)
        && labels[ROLE_LABEL] == role.as_str()
        && labels[SERVICE_LABEL] == service["metadata"]["name"]
        && owners
            .into_iter()
            .flatten()
            .any(|owner| owner["uid"] == service["metadata"]["uid"])
}

/// Whether an environment variable is about a helper (`WEB_REPLUMB_OLD_SERVICE_HOST`): the kubelet sets variables for every
/// Service of the namespace, and no program uses those of helpers.
pub fn is_about_helper(variable: &str) -> bool {
    Role::ALL.into_iter().any(|role| {
        let role = role.as_str().to_ascii_uppercase().replace('-', "_");
        variable.contains(&format!("_REPLUMB_{role}_"))
    })
}
