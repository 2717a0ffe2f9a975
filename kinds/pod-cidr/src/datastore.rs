//! Where Calico keeps its pools and its IPAM: by what calico-node is told, and what is found there.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use calico::etcd::ReadyV3;
use calico::etcd_access::StoreProblem;
use calico::etcd_access::{self, ConfigMaps, Etcd};
use engine::sourced::{Source, Sourced};

/// By which calico-node is told which one it is.
const KIND: &str = "DATASTORE_TYPE";
/// By which it is told where etcd is.
const ENDPOINTS: &str = "ETCD_ENDPOINTS";
/// The field of the Migration that says the way to etcd.
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

/// What a migration that began before this was written down works with.
pub(super) fn in_kubernetes() -> Sourced<Datastore> {
    Sourced {
        value: Datastore::default(),
        source: Source::Default,
    }
}

/// What calico-node, or the Migration, says cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclear {
    /// Which object says it.
    pub object: String,
    /// What it says.
    pub found: String,
    /// What is needed.
    pub needed: String,
    /// What a person does.
    pub fix: String,
}

/// Where Calico's objects are said to be, and what is there.
#[derive(Clone, Debug)]
pub struct DatastoreFacts {
    /// Where they are.
    pub said: Result<Sourced<Datastore>, Unclear>,
    /// What was found in etcd; `None` where nobody has to look.
    pub etcd: Option<Result<EtcdFacts, StoreProblem>>,
}

impl Default for DatastoreFacts {
    fn default() -> Self {
        Self {
            said: Ok(in_kubernetes()),
            etcd: None,
        }
    }
}

impl DatastoreFacts {
    /// Whether they are in etcd, as far as anybody knows.
    pub fn is_etcd(&self) -> bool {
        matches!(&self.said, Ok(said) if said.value.etcd.is_some())
    }
}

/// What etcd says of itself, and Calico in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdFacts {
    /// Version of etcd.
    pub version: String,
    /// Whether Calico works with it.
    pub ready: ReadyV3,
    /// Version of Calico, as calico-node wrote it at its start.
    pub calico: Option<String>,
}

/// Where Calico's objects are, by the pod template of calico-node; the way to etcd as the Migration says it, where it does.
///
/// `object` names the `DaemonSet`; `config_maps` are those of its namespace.
pub fn said(
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
            "say the way to etcd in {FIELD} (endpoints, and secret: with the keys etcd-ca, etcd-cert and etcd-key), or where calico-node has \
             it from"
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
                fix: "convert Calico's datastore first: a Migration with calicoDatastore leads from etcd v2 to v3".to_owned(),
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
                found: format!("a way to etcd, and {object} says {KIND} kubernetes"),
                needed: "no such field: Calico's objects are in the Kubernetes API".to_owned(),
                fix: "take it away".to_owned(),
            }),
        };
    }
    let (etcd, source) = match wish {
        Some(etcd) => (etcd.clone(), Source::Spec),
        None => (
            etcd_access::of_template(template, namespace, config_maps).map_err(unclear)?,
            Source::Detected(object.to_owned()),
        ),
    };
    Ok(Sourced {
        value: Datastore { etcd: Some(etcd) },
        source,
    })
}

/// Why Calico's objects are not where they were at the start; `None` when they are.
pub fn moved(before: &Datastore, now: &Result<Sourced<Datastore>, Unclear>) -> Option<String> {
    let advice = "nothing is done until it says so again: this migration reads and writes nowhere else";
    match now {
        Ok(now) if now.value == *before => None,
        Ok(now) => Some(format!(
            "Calico keeps its objects in {} ({}), and kept them in {before} when this migration began; {advice}",
            now.value, now.source
        )),
        Err(unclear) => Some(format!(
            "{}: found {}, needed {}. Calico kept its objects in {before} when this migration began; {advice}",
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

    fn ask(environment: &[(&str, &str)], wish: Option<&Etcd>) -> Result<Sourced<Datastore>, Unclear> {
        let environment: Vec<Value> = environment
            .iter()
            .map(|(name, value)| json!({ "name": name, "value": value }))
            .collect();
        let template = json!({ "spec": { "containers": [{ "name": "calico-node", "env": environment }] } });
        said(wish, OBJECT, &template, "kube-system", &ConfigMaps::new())
    }

    #[rstest]
    #[case::nothing_said(&[])]
    #[case::said(&[(KIND, "kubernetes")])]
    #[case::endpoints_of_another_time(&[(KIND, "kubernetes"), (ENDPOINTS, "http://a:2379")])]
    #[case::empty(&[(ENDPOINTS, "")])]
    fn in_the_kubernetes_api(#[case] environment: &[(&str, &str)]) {
        let found = ask(environment, None).unwrap();
        assert_eq!(found.value, Datastore::default());
        assert_eq!(found.source.to_string(), format!("detected from {OBJECT}"));
    }

    #[rstest]
    #[case::by_its_endpoints(&[(ENDPOINTS, "http://a:2379,http://b:2379")])]
    #[case::by_its_kind(&[(KIND, "etcdv3"), (ENDPOINTS, "http://a:2379,http://b:2379")])]
    fn in_etcd(#[case] environment: &[(&str, &str)]) {
        let found = ask(environment, None).unwrap();
        assert_eq!(found.value.to_string(), "etcd at http://a:2379,http://b:2379");
        assert_eq!(found.source.to_string(), format!("detected from {OBJECT}"));
    }

    #[test]
    fn the_migration_says_another_way_to_the_same() {
        let wish = Etcd {
            endpoints: vec!["http://c:2379".to_owned()],
            ..Etcd::default()
        };
        for environment in [&[(ENDPOINTS, "http://a:2379")][..], &[(KIND, "etcdv3")], &[]] {
            let found = ask(environment, Some(&wish)).unwrap();
            assert_eq!(
                (found.value.etcd, found.source),
                (Some(wish.clone()), Source::Spec)
            );
        }
        let refused = ask(&[(KIND, "kubernetes")], Some(&wish)).unwrap_err();
        assert_eq!(refused.object, FIELD);
    }

    #[rstest]
    #[case::v2(&[(KIND, "etcdv2")], "etcdv2")]
    #[case::nowhere(&[(KIND, "etcdv3")], "no ETCD_ENDPOINTS")]
    #[case::on_the_host(&[(ENDPOINTS, "https://a:2379"), ("ETCD_CA_CERT_FILE", "/certs/ca.pem")], "/certs/ca.pem")]
    fn what_cannot_be_followed_is_said(#[case] environment: &[(&str, &str)], #[case] found: &str) {
        let refused = ask(environment, None).unwrap_err();
        assert!(refused.found.contains(found), "{refused:?}");
        assert!(
            !refused.needed.is_empty() && !refused.fix.is_empty(),
            "{refused:?}"
        );
    }

    #[test]
    fn who_moves_calico_is_named() {
        let at = |url: &str| ask(&[(ENDPOINTS, url)], None);
        let before = at("http://a:2379").unwrap().value;
        assert_eq!(moved(&before, &at("http://a:2379")), None);
        let said = moved(&before, &at("http://b:2379")).unwrap();
        assert!(
            said.contains("http://a:2379") && said.contains("http://b:2379"),
            "{said}"
        );
        let said = moved(&before, &ask(&[(KIND, "etcdv2")], None)).unwrap();
        assert!(said.contains("etcdv2"), "{said}");
    }
}
