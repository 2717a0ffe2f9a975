//! Quotas of namespaces.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use plan::cluster::Malformed;
use plan::service_cidr::facts::{Quota, Room};

use super::quantity::units;

/// What a quota allows of Services. One whose use nobody has counted yet counts as unused: it refuses nothing before it is counted.
pub fn quota(object: &ResourceQuota) -> Result<Quota, Malformed> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let hard = object.spec.as_ref().and_then(|spec| spec.hard.as_ref());
    let used = object.status.as_ref().and_then(|status| status.used.as_ref());
    let read = |place: &str, resource: &str, quantity: &Quantity| {
        units(quantity).ok_or_else(|| Malformed {
            object: format!("ResourceQuota {namespace}/{name}"),
            problem: format!("{place}.{resource} is {:?}, needed a quantity", quantity.0),
        })
    };
    let of_services = hard
        .into_iter()
        .flatten()
        .filter(|(resource, _)| is_of_services(resource));
    let rooms = of_services
        .map(|(resource, hard)| {
            let used = used.and_then(|used| used.get(resource));
            let room = Room {
                hard: read("spec.hard", resource, hard)?,
                used: used.map_or(Ok(0), |used| read("status.used", resource, used))?,
            };
            Ok((resource.clone(), room))
        })
        .collect::<Result<BTreeMap<_, _>, Malformed>>()?;
    Ok(Quota {
        namespace,
        name,
        rooms,
    })
}

fn is_of_services(resource: &str) -> bool {
    resource == "services" || resource == "count/services" || resource.starts_with("services.")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(hard: &serde_json::Value, used: &serde_json::Value) -> Result<Quota, Malformed> {
        let object = json!({
            "metadata": { "name": "small", "namespace": "shop" }, "spec": { "hard": hard }, "status": { "used": used },
        });
        quota(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn what_it_allows_of_services_is_read() {
        let found = of(
            &json!({ "services": "1k", "services.loadbalancers": "0", "cpu": "much" }),
            &json!({ "services": "7" }),
        );
        let rooms = found.unwrap().rooms;
        assert_eq!(rooms.len(), 2);
        assert_eq!(rooms["services"], Room { hard: 1000, used: 7 });
        assert_eq!(rooms["services.loadbalancers"], Room { hard: 0, used: 0 });
    }

    #[test]
    fn what_is_no_quantity_is_said() {
        let error = of(&json!({ "services": "many" }), &json!({})).unwrap_err();
        assert_eq!(error.object, "ResourceQuota shop/small");
        assert_eq!(error.problem, "spec.hard.services is \"many\", needed a quantity");
    }
}
