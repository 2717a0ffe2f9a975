//! Calico's datastore, which stores its pools and IPAM data: detected from the configuration of calico-node, then checked.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use calico::etcd::ReadyV3;
use calico::etcd_access::StoreProblem;
use calico::etcd_access::{self, ConfigMaps, Etcd};
use engine::sourced::{Source, Sourced};

/// The environment variable of calico-node with the kind of the datastore.
const KIND: &str = "DATASTORE_TYPE";
/// The environment variable of calico-node with the endpoints of etcd.
const ENDPOINTS: &str = "ETCD_ENDPOINTS";
/// The field of the Migration with the connection to etcd.
pub const FIELD: &str = "spec.podCidr.etcd";

/// `Datastore` is where Calico stores its data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Datastore {
    /// `etcd` is the connection to etcd v3. Unset if Calico stores its data in the Kubernetes API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<Etcd>,
}

impl fmt::Display for Datastore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.etcd {
            None => formatter.write_str("the Kubernetes API"),
            Some(etcd) => write!(formatter, "etcd at {}", etcd.endpoints.join(",")),
        }
    }
}

/// The datastore of a migration whose saved settings have no such field.
pub(super) fn in_kubernetes() -> Sourced<Datastore> {
    Sourced {
        value: Datastore::default(),
        source: Source::Default,
    }
}

/// Why the datastore cannot be determined from the configuration of calico-node or from the Migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclear {
    /// The object with the value.
    pub object: String,
    /// The value found.
    pub found: String,
    /// The value needed.
    pub needed: String,
    /// The fix.
    pub fix: String,
}

/// The detected datastore, and its state.
#[derive(Clone, Debug)]
pub struct DatastoreFacts {
    /// The datastore.
    pub detected: Result<Sourced<Datastore>, Unclear>,
    /// The state of etcd; `None` if Calico does not use etcd.
    pub etcd: Option<Result<EtcdFacts, StoreProblem>>,
}

impl Default for DatastoreFacts {
    fn default() -> Self {
        Self {
            detected: Ok(in_kubernetes()),
            etcd: None,
        }
    }
}

impl DatastoreFacts {
    /// Whether the datastore is etcd, as far as known.
    pub fn is_etcd(&self) -> bool {
        matches!(&self.detected, Ok(said) if said.value.etcd.is_some())
    }
}

/// The state of etcd and of Calico's data in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdFacts {
    /// Version of etcd.
    pub version: String,
    /// Whether Calico may use it.
    pub ready: ReadyV3,
    /// Version of Calico, as calico-node wrote it when it started.
    pub calico: Option<String>,
}

/// Determines the datastore from the pod template of calico-node, with the connection `wish` of the Migration if it is set.
///
/// `object` names the `DaemonSet`; `config_maps` are those of its namespace.
///
/// # Errors
///
/// The template names neither a datastore of v3 nor how to reach it, or `wish` is set while the datastore is the Kubernetes API.
pub fn detect(
    wish: Option<&Etcd>,
    object: &str,
    template: &Value,
    namespace: &str,
    config_maps: &ConfigMaps,
) -> Result<Sourced<Datastore>, Unclear> {
    let unclear = |found: String| Unclear {
        object: object.to_owned(),
        found,
        needed: format!("{KIND} kubernetes, or {ENDPOINTS} with the certificates in a Secret"),
        fix: format!(
            "set {FIELD} (endpoints, and secret with the keys etcd-ca, etcd-cert and etcd-key), or correct the configuration of \
             calico-node"
        ),
    };
    let variable = |name: &str| {
        let found = etcd_access::variable_of(template, name, config_maps).map_err(unclear)?;
        Ok(found.unwrap_or_default())
    };
    let kind = variable(KIND)?;
    let is_etcd = match kind.as_str() {
        "kubernetes" => false,
        "etcdv3" => true,
        "" => wish.is_some() || !variable(ENDPOINTS)?.is_empty(),
        other => {
            return Err(Unclear {
                object: object.to_owned(),
                found: format!("{KIND} {other}"),
                needed: "kubernetes or etcdv3".to_owned(),
                fix: "convert Calico's datastore from etcd v2 to v3 first, with a Migration of kind calicoDatastore".to_owned(),
            });
        }
    };
    if !is_etcd {
        return match wish {
            None => Ok(Sourced {
                value: Datastore::default(),
                source: Source::Detected(object.to_owned()),
            }),
            Some(_) => Err(Unclear {
                object: FIELD.to_owned(),
                found: format!("a connection to etcd, and {object} has {KIND} kubernetes"),
                needed: "no such field: Calico's objects are in the Kubernetes API".to_owned(),
                fix: "remove the field".to_owned(),
            }),
        };
    }
    let (etcd, source) = match wish {
        Some(etcd) => (etcd.clone(), Source::Spec),
        None => (
            etcd_access::of_template(template, namespace, config_maps)
                .map_err(|problem| unclear(problem.to_string()))?,
            Source::Detected(object.to_owned()),
        ),
    };
    Ok(Sourced {
        value: Datastore { etcd: Some(etcd) },
        source,
    })
}

/// The message if the datastore differs from the one at the start of the migration; `None` if it is the same.
pub fn changed_message(before: &Datastore, now: &Result<Sourced<Datastore>, Unclear>) -> Option<String> {
    let advice = "restore that configuration: until then this migration makes no changes";
    match now {
        Ok(now) if now.value == *before => None,
        Ok(now) => Some(format!(
            "Calico's datastore is {} ({}), and was {before} when this migration started; {advice}",
            now.value, now.source
        )),
        Err(unclear) => Some(format!(
            "{}: found {}, needed {}. Calico's datastore was {before} when this migration started; {advice}",
            unclear.object, unclear.found, unclear.needed
        )),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const OBJECT: &str = "DaemonSet kube-system/calico-node";

    fn detected(environment: &[(&str, &str)], wish: Option<&Etcd>) -> Result<Sourced<Datastore>, Unclear> {
        let environment: Vec<Value> = environment
            .iter()
            .map(|(name, value)| json!({ "name": name, "value": value }))
            .collect();
        let template = json!({ "spec": { "containers": [{ "name": "calico-node", "env": environment }] } });
        detect(wish, OBJECT, &template, "kube-system", &ConfigMaps::new())
    }

    #[rstest]
    #[case::no_variable(&[])]
    #[case::by_its_kind(&[(KIND, "kubernetes")])]
    #[case::with_unused_endpoints(&[(KIND, "kubernetes"), (ENDPOINTS, "http://a:2379")])]
    #[case::empty_endpoints(&[(ENDPOINTS, "")])]
    fn the_kubernetes_api_is_detected(#[case] environment: &[(&str, &str)]) {
        let found = detected(environment, None).unwrap();
        assert_eq!(found.value, Datastore::default());
        assert_eq!(found.source.to_string(), format!("detected from {OBJECT}"));
    }

    #[rstest]
    #[case::by_its_endpoints(&[(ENDPOINTS, "http://a:2379,http://b:2379")])]
    #[case::by_its_kind(&[(KIND, "etcdv3"), (ENDPOINTS, "http://a:2379,http://b:2379")])]
    fn etcd_is_detected(#[case] environment: &[(&str, &str)]) {
        let found = detected(environment, None).unwrap();
        assert_eq!(found.value.to_string(), "etcd at http://a:2379,http://b:2379");
        assert_eq!(found.source.to_string(), format!("detected from {OBJECT}"));
    }

    #[test]
    fn the_connection_of_the_migration_takes_precedence() {
        let wish = Etcd {
            endpoints: vec!["http://c:2379".to_owned()],
            ..Etcd::default()
        };
        for environment in [&[(ENDPOINTS, "http://a:2379")][..], &[(KIND, "etcdv3")], &[]] {
            let found = detected(environment, Some(&wish)).unwrap();
            assert_eq!(
                (found.value.etcd, found.source),
                (Some(wish.clone()), Source::Spec)
            );
        }
        let refused = detected(&[(KIND, "kubernetes")], Some(&wish)).unwrap_err();
        assert_eq!(refused.object, FIELD);
    }

    #[rstest]
    #[case::v2(&[(KIND, "etcdv2")], "etcdv2")]
    #[case::no_endpoints(&[(KIND, "etcdv3")], "no ETCD_ENDPOINTS")]
    #[case::on_the_host(&[(ENDPOINTS, "https://a:2379"), ("ETCD_CA_CERT_FILE", "/certs/ca.pem")], "/certs/ca.pem")]
    fn an_unusable_configuration_is_refused(#[case] environment: &[(&str, &str)], #[case] found: &str) {
        let refused = detected(environment, None).unwrap_err();
        assert!(refused.found.contains(found), "{refused:?}");
        assert!(
            !refused.needed.is_empty() && !refused.fix.is_empty(),
            "{refused:?}"
        );
    }

    #[test]
    fn a_user_name_is_refused_without_a_command_of_another_kind() {
        let refused = detected(&[(ENDPOINTS, "http://a:2379"), ("ETCD_USERNAME", "root")], None).unwrap_err();
        assert_eq!(
            refused.found,
            "ETCD_USERNAME is set: this kind supports only client certificates"
        );
        assert!(!refused.fix.contains("kubectl replumb datastore"), "{refused:?}");
    }

    #[test]
    fn a_changed_datastore_is_reported_with_both_values() {
        let at = |url: &str| detected(&[(ENDPOINTS, url)], None);
        let before = at("http://a:2379").unwrap().value;
        assert_eq!(changed_message(&before, &at("http://a:2379")), None);
        let said = changed_message(&before, &at("http://b:2379")).unwrap();
        assert!(
            said.contains("http://a:2379") && said.contains("http://b:2379"),
            "{said}"
        );
        let said = changed_message(&before, &detected(&[(KIND, "etcdv2")], None)).unwrap();
        assert!(said.contains("etcdv2"), "{said}");
    }
}
