//! Reads the connection to a store from flags, then a file, then the environment, with the names that Calico uses.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::StoreError;

/// Name of the v2 store in messages.
pub const V2: &str = "etcd of Calico v2";
/// Name of the v3 store in messages.
pub const V3: &str = "etcd of Calico v3";

/// One of the two stores. Their names in files and environments differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Calico v2: `APIV1_ETCD_ENDPOINTS` and so on.
    V2,
    /// Calico v3: `ETCD_ENDPOINTS` and so on.
    V3,
}

impl Side {
    /// Name of the store in messages.
    pub fn store(self) -> &'static str {
        match self {
            Self::V2 => V2,
            Self::V3 => V3,
        }
    }

    /// Names of a variable; the first one that is set is used.
    fn variables(self, name: &str) -> [String; 2] {
        let prefix = match self {
            Self::V2 => "APIV1_",
            Self::V3 => "",
        };
        [format!("CALICO_{prefix}{name}"), format!("{prefix}{name}")]
    }
}

/// Certificates or a key in PEM.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// In a file.
    File(PathBuf),
    /// In memory.
    Memory {
        /// The source, for messages: `Secret a/b, key c`.
        source: String,
        /// The text.
        bytes: Vec<u8>,
    },
}

impl Pem {
    /// The source, for messages.
    pub fn place(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Memory { source: place, .. } => place.clone(),
        }
    }
}

/// Omits the content, which may be a key.
impl fmt::Debug for Pem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Pem").field(&self.place()).finish()
    }
}

impl From<PathBuf> for Pem {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

impl From<&str> for Pem {
    fn from(path: &str) -> Self {
        Self::File(path.into())
    }
}

impl From<String> for Pem {
    fn from(path: String) -> Self {
        Self::File(path.into())
    }
}

/// Settings of the connection to one store. Any of them may be missing: [`PartialAccess::or`] adds them from another source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartialAccess {
    /// `http://…` or `https://…`.
    pub endpoints: Vec<String>,
    /// CA certificates of the store.
    pub authority: Option<Pem>,
    /// The client certificate.
    pub certificate: Option<Pem>,
    /// The key of the client certificate.
    pub key: Option<Pem>,
    /// User name.
    pub username: Option<String>,
    /// Password.
    pub password: Option<String>,
}

impl PartialAccess {
    /// These settings, completed by those of another source.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            endpoints: if self.endpoints.is_empty() {
                other.endpoints
            } else {
                self.endpoints
            },
            authority: self.authority.or(other.authority),
            certificate: self.certificate.or(other.certificate),
            key: self.key.or(other.key),
            username: self.username.or(other.username),
            password: self.password.or(other.password),
        }
    }

    /// Settings from the environment, by Calico's names with or without the prefix `CALICO_`.
    pub fn of_environment(side: Side, variables: &BTreeMap<String, String>) -> Self {
        let read = |name: &str| {
            let names = side.variables(name);
            let mut found = names.iter().filter_map(|name| variables.get(name));
            found.find(|value| !value.is_empty()).cloned()
        };
        // v3 ignores these two variables.
        let authority = read("ETCD_AUTHORITY").filter(|_| side == Side::V2);
        Self {
            endpoints: endpoints(read("ETCD_ENDPOINTS"), authority, read("ETCD_SCHEME")),
            authority: read("ETCD_CA_CERT_FILE").map(Pem::from),
            certificate: read("ETCD_CERT_FILE").map(Pem::from),
            key: read("ETCD_KEY_FILE").map(Pem::from),
            username: read("ETCD_USERNAME"),
            password: read("ETCD_PASSWORD"),
        }
    }

    /// Settings from a file of `calicoctl` or `calico-upgrade`: a parsed `calicoApiConfig` or `CalicoAPIConfig`.
    ///
    /// # Errors
    ///
    /// The file is for another datastore than etcd of this side.
    pub fn of_file(side: Side, path: &Path, config: &Value) -> Result<Self, StoreError> {
        let spec = &config["spec"];
        let text = |name: &str| {
            spec[name]
                .as_str()
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        };
        if let Some(kind) = text("datastoreType").filter(|kind| kind == "kubernetes") {
            return Err(StoreError::Access {
                store: side.store(),
                what: format!(
                    "{}: datastoreType is {kind}: Calico with the Kubernetes API as its datastore needs no conversion",
                    path.display()
                ),
            });
        }
        let needed = match side {
            Side::V2 => "etcdv2",
            Side::V3 => "etcdv3",
        };
        // Both tools of Calico use this type when the file has none.
        if let Some(kind) = text("datastoreType").filter(|kind| kind != needed) {
            return Err(StoreError::Access {
                store: side.store(),
                what: format!(
                    "{}: datastoreType is {kind}, needed {needed}: check that the files of v2 and v3 are not exchanged",
                    path.display()
                ),
            });
        }
        Ok(Self {
            endpoints: endpoints(text("etcdEndpoints"), text("etcdAuthority"), text("etcdScheme")),
            authority: text("etcdCACertFile").map(Pem::from),
            certificate: text("etcdCertFile").map(Pem::from),
            key: text("etcdKeyFile").map(Pem::from),
            username: text("etcdUsername"),
            password: text("etcdPassword"),
        })
    }

    /// The connection to the store, if the settings are complete.
    ///
    /// # Errors
    ///
    /// No endpoint is set, an endpoint is not an HTTP URL, or only one part of a pair is set: https and CA certificate, client
    /// certificate and key, user name and password.
    pub fn access(self, side: Side) -> Result<Access, StoreError> {
        let wrong = |what: String| StoreError::Access {
            store: side.store(),
            what,
        };
        if self.endpoints.is_empty() {
            let [_, name] = side.variables("ETCD_ENDPOINTS");
            let flag = match side {
                Side::V2 => "--v2-endpoints",
                Side::V3 => "--v3-endpoints",
            };
            return Err(wrong(format!("no endpoint is set: set {flag} or {name}")));
        }
        let mut endpoints = Vec::new();
        for text in &self.endpoints {
            let trimmed = text.trim_end_matches('/');
            let is_one = ["http://", "https://"].iter().any(|scheme| {
                trimmed
                    .strip_prefix(scheme)
                    .is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
            });
            if !is_one {
                return Err(wrong(format!(
                    "endpoint is {text:?}, needed http://HOST:PORT or https://HOST:PORT"
                )));
            }
            endpoints.push(trimmed.to_owned());
        }
        let needs_tls = endpoints.iter().any(|endpoint| endpoint.starts_with("https://"));
        if needs_tls && self.authority.is_none() {
            let [_, name] = side.variables("ETCD_CA_CERT_FILE");
            return Err(wrong(format!(
                "an endpoint uses https, but no CA certificate is set: set {name}"
            )));
        }
        let pair = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (certificate, _) => {
                let (present, missing) = if certificate.is_some() {
                    ("certificate", "key")
                } else {
                    ("key", "certificate")
                };
                return Err(wrong(format!(
                    "a client {present} is set, but no {missing}: set both or neither"
                )));
            }
        };
        let user = match (self.username, self.password) {
            (Some(name), Some(password)) => Some((name, password)),
            (None, None) => None,
            _ => {
                return Err(wrong(
                    "only one of user name and password is set: set both or neither".to_owned(),
                ));
            }
        };
        Ok(Access {
            side,
            endpoints,
            authority: self.authority.filter(|_| needs_tls),
            pair: pair.filter(|_| needs_tls),
            user,
        })
    }
}

/// Endpoints from a list with commas or, in the older form, from one `HOST:PORT` and its scheme.
fn endpoints(list: Option<String>, authority: Option<String>, scheme: Option<String>) -> Vec<String> {
    let list = list.unwrap_or_default();
    let parts = list.split(',').map(str::trim).filter(|part| !part.is_empty());
    let mut endpoints: Vec<String> = parts.map(str::to_owned).collect();
    if endpoints.is_empty()
        && let Some(authority) = authority
    {
        let scheme = scheme.unwrap_or_else(|| "http".to_owned());
        endpoints.push(format!("{scheme}://{authority}"));
    }
    endpoints
}

/// The connection to one store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The store.
    pub side: Side,
    /// `http://HOST:PORT` or `https://HOST:PORT`, at least one; tried in this order.
    pub endpoints: Vec<String>,
    /// CA certificates of the store.
    pub authority: Option<Pem>,
    /// Client certificate and its key.
    pub pair: Option<(Pem, Pem)>,
    /// User name and password.
    pub user: Option<(String, String)>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn variables(all: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        all.iter().map(owned).collect()
    }

    #[test]
    fn each_store_is_read_from_calicos_variables() {
        let all = variables(&[
            ("APIV1_ETCD_ENDPOINTS", "http://a:2379, http://b:2379"),
            ("ETCD_ENDPOINTS", "https://c:2379"),
            ("CALICO_ETCD_ENDPOINTS", "https://d:2379"),
            ("ETCD_CA_CERT_FILE", "/ca.pem"),
            ("ETCD_CERT_FILE", ""),
        ]);
        let old = PartialAccess::of_environment(Side::V2, &all)
            .access(Side::V2)
            .unwrap();
        assert_eq!(old.endpoints, ["http://a:2379", "http://b:2379"]);
        let new = PartialAccess::of_environment(Side::V3, &all)
            .access(Side::V3)
            .unwrap();
        assert_eq!(new.endpoints, ["https://d:2379"]);
        assert_eq!((new.authority, new.pair), (Some("/ca.pem".into()), None));
        let authority = variables(&[("APIV1_ETCD_AUTHORITY", "e:4001"), ("APIV1_ETCD_SCHEME", "https")]);
        assert_eq!(
            PartialAccess::of_environment(Side::V2, &authority).endpoints,
            ["https://e:4001"]
        );
    }

    #[test]
    fn a_file_of_calicoctl_is_read_and_flags_take_precedence() {
        let file = json!({ "kind": "calicoApiConfig", "spec": {
            "datastoreType": "etcdv2", "etcdEndpoints": "http://a:2379", "etcdUsername": "u", "etcdPassword": "p",
        } });
        let of_file = PartialAccess::of_file(Side::V2, Path::new("f"), &file).unwrap();
        let flags = PartialAccess {
            endpoints: vec!["http://z:1".to_owned()],
            ..PartialAccess::default()
        };
        let access = flags.or(of_file).access(Side::V2).unwrap();
        assert_eq!(access.endpoints, ["http://z:1"]);
        assert_eq!(access.user, Some(("u".to_owned(), "p".to_owned())));
        let kubernetes = json!({ "spec": { "datastoreType": "kubernetes" } });
        let refused = PartialAccess::of_file(Side::V3, Path::new("f"), &kubernetes).unwrap_err();
        assert!(refused.to_string().contains("needs no conversion"), "{refused}");
    }

    #[test]
    fn incomplete_settings_are_refused_by_name() {
        let with_endpoint = |endpoint: &str| PartialAccess {
            endpoints: vec![endpoint.to_owned()],
            ..PartialAccess::default()
        };
        for (settings, words) in [
            (PartialAccess::default(), "--v3-endpoints or ETCD_ENDPOINTS"),
            (with_endpoint("c:2379"), "needed http://HOST:PORT"),
            (with_endpoint("https://c:2379"), "ETCD_CA_CERT_FILE"),
            (
                PartialAccess {
                    certificate: Some("/c".into()),
                    ..with_endpoint("http://c:1")
                },
                "no key",
            ),
            (
                PartialAccess {
                    key: Some("/c".into()),
                    ..with_endpoint("http://c:1")
                },
                "no certificate",
            ),
            (
                PartialAccess {
                    username: Some("u".into()),
                    ..with_endpoint("http://c:1")
                },
                "set both",
            ),
        ] {
            let refused = settings.access(Side::V3).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }
}
