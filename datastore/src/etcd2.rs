//! Client of etcd's v2 API: `/v2/keys`, plain HTTP. Every read is a quorum read.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use calico_datastore::v2::Tree;
use http::header::HeaderValue;
use http::{Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::access::Access;
use crate::error::StoreError;
use crate::http::{Body, Http, Repeat, Reply};

/// Parent key of all of Calico's data.
const ROOT: &str = "/calico";
/// Error codes of etcd.
const KEY_NOT_FOUND: u32 = 100;
const COMPARE_FAILED: u32 = 101;

/// One node of the tree in etcd's answer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    #[serde(default)]
    key: String,
    #[serde(default)]
    dir: bool,
    modified_index: Option<u64>,
    value: Option<String>,
    #[serde(default)]
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Found {
    node: Node,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Refused {
    error_code: u32,
    #[serde(default)]
    message: String,
    #[serde(default)]
    cause: String,
}

/// `/version` of any etcd.
#[derive(Debug, Deserialize)]
struct Version {
    etcdserver: String,
}

/// The version of the first endpoint that answers, and the endpoint.
pub(crate) async fn version(http: &Http) -> Result<(String, String), StoreError> {
    let attempt = "reading its version (GET /version)";
    let reply = http
        .send(attempt, Method::GET, "/version", None, Repeat::Always)
        .await?;
    let parsed: Result<Version, _> = serde_json::from_slice(&reply.body);
    match parsed {
        Ok(version) if reply.status.is_success() => Ok((version.etcdserver, reply.endpoint)),
        _ => Err(StoreError::Answer {
            store: http.store(),
            attempt: attempt.to_owned(),
            why: format!("{} is not an etcd: it answered {}", reply.endpoint, reply.text()),
        }),
    }
}

/// One value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The value.
    pub value: String,
    /// Index of the last write of the key.
    pub index: u64,
}

/// The store of Calico v2.
#[derive(Debug)]
pub struct Etcd2 {
    http: Http,
    /// Version of the endpoint that answered first.
    pub version: String,
}

impl Etcd2 {
    /// From now on an unreachable store fails at once.
    pub fn be_impatient(&mut self) {
        self.http.fail_at_once();
    }

    /// Reads the version and checks that the v2 API exists.
    ///
    /// # Errors
    ///
    /// A certificate cannot be read, etcd does not answer or refuses the request, or etcd has no v2 API.
    pub async fn connect(access: &Access) -> Result<Self, StoreError> {
        let http = Http::new(access)?;
        if let Some((name, password)) = &access.user {
            let word = format!("Basic {}", STANDARD.encode(format!("{name}:{password}")));
            if let Ok(value) = HeaderValue::from_str(&word) {
                http.authorize(value);
            }
        }
        let (version, endpoint) = version(&http).await?;
        let mut store = Self { http, version };
        let path = "/v2/keys/";
        let reply = store
            .http
            .send("checking for the v2 API", Method::GET, path, None, Repeat::Always)
            .await?;
        // An etcd without the v2 API answers with a page that is not an error of the v2 API.
        if reply.status == StatusCode::NOT_FOUND && refused(&reply).is_none() {
            return Err(StoreError::NoV2 {
                store: store.http.store(),
                endpoint,
                version: store.version,
            });
        }
        store.answer("checking for the v2 API", &reply)?;
        store.http.wait_for_recovery();
        Ok(store)
    }

    /// Everything below `/calico`.
    ///
    /// # Errors
    ///
    /// etcd does not answer, refuses the request, or sends an answer that cannot be read.
    pub async fn tree(&self) -> Result<Tree, StoreError> {
        self.below(ROOT).await
    }

    /// Everything below a key.
    ///
    /// # Errors
    ///
    /// etcd does not answer, refuses the request, or sends an answer that cannot be read.
    pub async fn below(&self, key: &str) -> Result<Tree, StoreError> {
        let attempt = format!("reading every key below {key}");
        let path = format!("{}?recursive=true&sorted=true&quorum=true", url(key));
        let reply = self
            .http
            .send(&attempt, Method::GET, &path, None, Repeat::AlwaysLong)
            .await?;
        if is(&reply, KEY_NOT_FOUND) {
            return Ok(Tree::default());
        }
        self.answer(&attempt, &reply)?;
        let found: Found = self.parse(&attempt, &reply)?;
        let mut values = BTreeMap::new();
        let mut directories = BTreeSet::new();
        let mut open = vec![found.node];
        while let Some(node) = open.pop() {
            if node.dir {
                directories.insert(node.key);
            } else {
                values.insert(node.key, node.value.unwrap_or_default());
            }
            open.extend(node.nodes);
        }
        let mut tree = Tree::of(values);
        tree.directories.append(&mut directories);
        Ok(tree)
    }

    /// The value of one key, and the index of its last write. A directory is an error.
    ///
    /// # Errors
    ///
    /// The key is a directory, or etcd does not answer, refuses the request, or sends an answer that cannot be read.
    pub async fn get(&self, key: &str) -> Result<Option<Written>, StoreError> {
        let Some(node) = self.node(key).await? else {
            return Ok(None);
        };
        let index = node
            .modified_index
            .filter(|_| !node.dir)
            .ok_or_else(|| StoreError::Answer {
                store: self.http.store(),
                attempt: format!("reading {key}"),
                why: "the key is a directory, needed a value".to_owned(),
            })?;
        Ok(Some(Written {
            value: node.value.unwrap_or_default(),
            index,
        }))
    }

    async fn node(&self, key: &str) -> Result<Option<Node>, StoreError> {
        let attempt = format!("reading {key}");
        let path = format!("{}?quorum=true", url(key));
        let reply = self
            .http
            .send(&attempt, Method::GET, &path, None, Repeat::Always)
            .await?;
        if is(&reply, KEY_NOT_FOUND) {
            return Ok(None);
        }
        self.answer(&attempt, &reply)?;
        let found: Found = self.parse(&attempt, &reply)?;
        Ok(Some(found.node))
    }

    /// Sets a key whose last write has this index; `false` when it was written since. The index is compared and not the value:
    /// after a long stop of this process the value may be the same again, but the index is not.
    ///
    /// # Errors
    ///
    /// etcd does not answer, or refuses the request for another reason than the index.
    pub async fn replace(&self, key: &str, index: u64, to: &str) -> Result<bool, StoreError> {
        let attempt = format!("setting {key} to {to:?}");
        let path = format!("{}?prevExist=true&prevIndex={index}", url(key));
        let body = Body {
            content_type: "application/x-www-form-urlencoded",
            bytes: format!("value={}", encode(to)).into_bytes(),
        };
        let reply = self
            .http
            .send(&attempt, Method::PUT, &path, Some(&body), Repeat::BeforeSend)
            .await?;
        if is(&reply, COMPARE_FAILED) || is(&reply, KEY_NOT_FOUND) {
            return Ok(false);
        }
        self.answer(&attempt, &reply).map(|()| true)
    }

    fn answer(&self, attempt: &str, reply: &Reply) -> Result<(), StoreError> {
        if reply.status.is_success() {
            return Ok(());
        }
        let why = match refused(reply) {
            Some(refused) => format!("{}: {} ({})", refused.error_code, refused.message, refused.cause),
            None => reply.text(),
        };
        Err(StoreError::Answer {
            store: self.http.store(),
            attempt: attempt.to_owned(),
            why: format!("{} answered {why}", reply.endpoint),
        })
    }

    fn parse<T: serde::de::DeserializeOwned>(&self, attempt: &str, reply: &Reply) -> Result<T, StoreError> {
        serde_json::from_slice(&reply.body).map_err(|error| StoreError::Answer {
            store: self.http.store(),
            attempt: attempt.to_owned(),
            why: format!("{}: the answer is not valid for etcd v2: {error}", reply.endpoint),
        })
    }
}

fn refused(reply: &Reply) -> Option<Refused> {
    serde_json::from_slice(&reply.body).ok()
}

fn is(reply: &Reply, code: u32) -> bool {
    !reply.status.is_success() && refused(reply).is_some_and(|refused| refused.error_code == code)
}

/// The URL path of a key. Keys can contain percent signs: Calico writes a slash in a name as `%2f`.
pub fn url(key: &str) -> String {
    let segments = key.split('/').map(encode);
    format!("/v2/keys{}", segments.collect::<Vec<_>>().join("/"))
}

/// The characters without a meaning in a URL or a form: the unreserved ones of RFC 3986. All others are encoded.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Percent-encodes every character with a meaning in a URL or a form.
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percent_sign_in_a_key_is_encoded() {
        let key = "/calico/v1/policy/tier/default/policy/Team.A%2fweb";
        assert_eq!(
            url(key),
            "/v2/keys/calico/v1/policy/tier/default/policy/Team.A%252fweb"
        );
        assert_eq!(encode("tcp:22, a=b&c"), "tcp%3A22%2C%20a%3Db%26c");
        assert_eq!(encode("é"), "%C3%A9");
    }

    #[test]
    fn every_character_but_the_unreserved_ones_is_encoded() {
        assert_eq!(encode(""), "");
        assert_eq!(encode("AZaz09-_.~"), "AZaz09-_.~");
        assert_eq!(encode("+ %2f/?#[]@"), "%2B%20%252f%2F%3F%23%5B%5D%40");
        assert_eq!(encode("a\0\r\n\u{7f}\u{1f4a5}"), "a%00%0D%0A%7F%F0%9F%92%A5");
        assert_eq!(url("/a b/c+d"), "/v2/keys/a%20b/c%2Bd");
    }
}
