//! Quotas of namespaces.

use engine::cluster::Needed;
use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use service_cidr::facts::{Quota, Room};

use crate::facts::{self, quantity::units};

/// The Services that a quota allows. A quota without a counted use counts as unused: it refuses nothing before it is counted.
pub fn quota(object: &ResourceQuota) -> Quota {
    let hard = object.spec.as_ref().and_then(|spec| spec.hard.as_ref());
    let used = object.status.as_ref().and_then(|status| status.used.as_ref());
    let mut not_understood = Vec::new();
    let mut read = |place: &str, resource: &str, quantity: &Quantity| {
        let amount = units(quantity);
        if amount.is_none() {
            let field = format!("{place}.{resource}");
            not_understood.push(facts::not_understood(field, &quantity.0, Needed::Quantity));
        }
        amount
    };
    let of_services = hard
        .into_iter()
        .flatten()
        .filter(|(resource, _)| is_of_services(resource));
    let rooms = of_services
        .filter_map(|(resource, hard)| {
            let used = used.and_then(|used| used.get(resource));
            let room = Room {
                hard: read("spec.hard", resource, hard)?,
                used: used.map_or(Some(0), |used| read("status.used", resource, used))?,
            };
            Some((resource.clone(), room))
        })
        .collect();
    Quota {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        rooms,
        not_understood,
    }
}

fn is_of_services(resource: &str) -> bool {
    resource == "services" || resource == "count/services" || resource.starts_with("services.")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(hard: &serde_json::Value, used: &serde_json::Value) -> Quota {
        let object = json!({
            "metadata": { "name": "small", "namespace": "shop" }, "spec": { "hard": hard }, "status": { "used": used },
        });
        quota(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn quotas_of_services_are_read() {
        let found = of(
            &json!({ "services": "1k", "services.loadbalancers": "0", "cpu": "much" }),
            &json!({ "services": "7" }),
        );
        let rooms = found.rooms;
        assert_eq!(rooms.len(), 2);
        assert_eq!(rooms["services"], Room { hard: 1000, used: 7 });
        assert_eq!(rooms["services.loadbalancers"], Room { hard: 0, used: 0 });
    }

    #[test]
    fn an_unreadable_quantity_is_named_and_others_are_kept() {
        let found = of(
            &json!({ "services": "many", "services.loadbalancers": "3", "count/services": "1e99" }),
            &json!({ "services.loadbalancers": "-1", "count/services": "20P" }),
        );
        let named: Vec<String> = found.not_understood.iter().map(ToString::to_string).collect();
        assert_eq!(
            named,
            [
                "spec.hard.services: found \"many\", needed a quantity",
                "status.used.services.loadbalancers: found \"-1\", needed a quantity",
            ]
        );
        let room = Room {
            hard: u64::MAX,
            used: 20_000_000_000_000_000,
        };
        assert_eq!(
            found.rooms.into_iter().collect::<Vec<_>>(),
            [("count/services".to_owned(), room)]
        );
    }
}
