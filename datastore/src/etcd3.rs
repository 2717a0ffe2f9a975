//! Client of etcd's v3 API through its JSON gateway: keys and values in base64, 64-bit numbers as strings.

mod message;
mod transaction;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::HeaderValue;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use self::message::{Number, Range, after};
pub use self::transaction::{Change, Condition};
use self::transaction::{change, condition};
use crate::access::Access;
use crate::error::StoreError;
use crate::etcd2;
use crate::http::{Body, Http, Repeat, Reply};

/// Keys in one answer.
const PAGE: usize = 500;

/// One key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value. Calico's values are texts; other bytes are kept unchanged.
    pub value: Vec<u8>,
    /// Revision of the store at the last write of the key.
    pub revision: i64,
}

impl Entry {
    /// The value as JSON.
    ///
    /// # Errors
    ///
    /// The value is not JSON.
    pub fn json(&self) -> Result<Value, serde_json::Error> {
        serde_json::from_slice(&self.value)
    }
}

/// The store of Calico v3.
#[derive(Debug)]
pub struct Etcd3 {
    http: Http,
    prefix: &'static str,
    user: Option<(String, String)>,
    /// Version of the endpoint that answered first.
    pub version: String,
}

impl Etcd3 {
    /// From now on an unreachable store fails at once.
    pub fn be_impatient(&mut self) {
        self.http.fail_at_once();
    }

    /// Reads the version, logs in, and checks that a read works.
    ///
    /// # Errors
    ///
    /// A certificate cannot be read, etcd does not answer or refuses the login or the read, or etcd has no supported JSON
    /// gateway.
    pub async fn connect(access: &Access) -> Result<Self, StoreError> {
        let http = Http::new(access)?;
        let (version, endpoint) = etcd2::version(&http).await?;
        let Some(prefix) = gateway(&version) else {
            return Err(StoreError::NoV3 {
                store: http.store(),
                endpoint,
                version,
            });
        };
        let mut store = Self {
            http,
            prefix,
            user: access.user.clone(),
            version,
        };
        store.log_in().await?;
        store.count("/calico/").await?;
        store.http.wait_for_recovery();
        Ok(store)
    }

    /// Gets a token. etcd limits its life; an expired token is replaced by a new one.
    async fn log_in(&self) -> Result<(), StoreError> {
        #[derive(Deserialize)]
        struct Token {
            token: String,
        }
        let Some((name, password)) = &self.user else {
            return Ok(());
        };
        let attempt = format!("logging in as {name:?}");
        let body = json!({ "name": name, "password": password });
        let reply = self
            .ask(&attempt, "/auth/authenticate", &body, Repeat::Always)
            .await?;
        let token: Token = self.read(&attempt, &reply)?;
        if let Ok(value) = HeaderValue::from_str(&token.token) {
            self.http.authorize(value);
        }
        Ok(())
    }

    /// One key.
    ///
    /// # Errors
    ///
    /// etcd does not answer, refuses the request, or sends an answer that cannot be read.
    pub async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let body = json!({ "key": STANDARD.encode(key) });
        let found = self.range(&format!("reading {key}"), &body).await?;
        Ok(found.0.into_iter().next())
    }

    /// Number of keys with this prefix.
    ///
    /// # Errors
    ///
    /// etcd does not answer, refuses the request, or sends an answer that cannot be read.
    pub async fn count(&self, prefix: &str) -> Result<usize, StoreError> {
        let mut body = json!({ "count_only": true });
        body["key"] = json!(STANDARD.encode(prefix));
        body["range_end"] = json!(STANDARD.encode(after(prefix)));
        let attempt = format!("counting the keys below {prefix}");
        let found: Range = self.call(&attempt, "/kv/range", &body, Repeat::Always).await?;
        Ok(usize::try_from(found.count.0).unwrap_or_default())
    }

    /// Every key with this prefix, in order, all at one revision.
    ///
    /// # Errors
    ///
    /// etcd does not answer, refuses the request, or sends an answer that cannot be read.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        self.each(prefix, Some).await
    }

    /// The result of `choose` for each key with this prefix, in order, all at one revision. One page of keys is in memory at a
    /// time.
    ///
    /// # Errors
    ///
    /// etcd does not answer, refuses the request, or sends an answer that cannot be read.
    pub async fn each<T>(
        &self,
        prefix: &str,
        mut choose: impl FnMut(Entry) -> Option<T>,
    ) -> Result<Vec<T>, StoreError> {
        let attempt = format!("reading the keys below {prefix}");
        let end = STANDARD.encode(after(prefix));
        let mut from = prefix.as_bytes().to_vec();
        let mut revision = 0;
        let mut all = Vec::new();
        loop {
            let body = json!({
                "key": STANDARD.encode(&from), "range_end": end, "limit": PAGE.to_string(), "revision": revision.to_string(),
            });
            let (entries, more, at) = self.range(&attempt, &body).await?;
            let last = entries.last().map(|last| last.key.as_bytes().to_vec());
            all.extend(entries.into_iter().filter_map(&mut choose));
            let Some(last) = last.filter(|_| more) else {
                return Ok(all);
            };
            from = last;
            from.push(0);
            revision = at;
        }
    }

    async fn range(&self, attempt: &str, body: &Value) -> Result<(Vec<Entry>, bool, i64), StoreError> {
        let found: Range = self.call(attempt, "/kv/range", body, Repeat::Always).await?;
        let mut entries = Vec::new();
        for pair in found.kvs {
            let key = self.decode(attempt, &pair.key)?;
            entries.push(Entry {
                key: String::from_utf8(key).map_err(|error| self.nonsense(attempt, &error.to_string()))?,
                value: self.decode(attempt, &pair.value)?,
                revision: pair.mod_revision.0,
            });
        }
        let at = found.header.map_or(0, |header| header.revision.0);
        Ok((entries, found.more, at))
    }

    /// Makes all changes in one transaction if all conditions hold; `false` when one does not.
    ///
    /// # Errors
    ///
    /// etcd does not answer, refuses the transaction, or sends an answer that cannot be read. A failed condition is no error.
    pub async fn commit(
        &self,
        attempt: &str,
        conditions: &[Condition],
        changes: &[Change],
    ) -> Result<bool, StoreError> {
        #[derive(Deserialize)]
        struct Done {
            #[serde(default)]
            succeeded: bool,
        }
        let compare: Vec<Value> = conditions.iter().map(condition).collect();
        let success: Vec<Value> = changes.iter().map(change).collect();
        let body = json!({ "compare": compare, "success": success });
        let done: Done = self.call(attempt, "/kv/txn", &body, Repeat::BeforeSend).await?;
        Ok(done.succeeded)
    }

    /// Requests a lease of this many seconds.
    ///
    /// # Errors
    ///
    /// etcd does not answer, refuses the request, or sends an answer that cannot be read.
    pub async fn lease(&self, seconds: u32) -> Result<i64, StoreError> {
        #[derive(Deserialize)]
        struct Granted {
            #[serde(rename = "ID")]
            id: Number,
        }
        let body = json!({ "TTL": seconds.to_string(), "ID": "0" });
        let granted: Granted = self
            .call("requesting a lease", "/lease/grant", &body, Repeat::Always)
            .await?;
        Ok(granted.id.0)
    }

    /// Renews a lease; `false` when it has expired.
    ///
    /// # Errors
    ///
    /// etcd does not answer, refuses the request, or sends an answer that cannot be read.
    pub async fn renew(&self, lease: i64) -> Result<bool, StoreError> {
        #[derive(Deserialize)]
        struct Renewed {
            result: Result_,
        }
        #[derive(Deserialize)]
        struct Result_ {
            #[serde(default, rename = "TTL")]
            seconds: Number,
        }
        let body = json!({ "ID": lease.to_string() });
        let renewed: Renewed = self
            .call("renewing the lease", "/lease/keepalive", &body, Repeat::Always)
            .await?;
        Ok(renewed.result.seconds.0 > 0)
    }

    /// Revokes a lease, which deletes its keys.
    ///
    /// # Errors
    ///
    /// etcd does not answer, refuses the request, or sends an answer that cannot be read.
    pub async fn revoke(&self, lease: i64) -> Result<(), StoreError> {
        let body = json!({ "ID": lease.to_string() });
        // Every version has this path; the one without `/kv` exists only since 3.4.
        let path = "/kv/lease/revoke";
        let _: Value = self
            .call("revoking the lease", path, &body, Repeat::Always)
            .await?;
        Ok(())
    }

    async fn call<T: serde::de::DeserializeOwned>(
        &self,
        attempt: &str,
        path: &str,
        body: &Value,
        repeat: Repeat,
    ) -> Result<T, StoreError> {
        let mut reply = self.ask(attempt, path, body, repeat).await?;
        if reply.status == StatusCode::UNAUTHORIZED && self.user.is_some() {
            self.log_in().await?;
            reply = self.ask(attempt, path, body, repeat).await?;
        }
        self.read(attempt, &reply)
    }

    async fn ask(
        &self,
        attempt: &str,
        path: &str,
        body: &Value,
        repeat: Repeat,
    ) -> Result<Reply, StoreError> {
        let body = Body {
            content_type: "application/json",
            bytes: body.to_string().into_bytes(),
        };
        let path = format!("{}{path}", self.prefix);
        self.http
            .send(attempt, Method::POST, &path, Some(&body), repeat)
            .await
    }

    fn read<T: serde::de::DeserializeOwned>(&self, attempt: &str, reply: &Reply) -> Result<T, StoreError> {
        if !reply.status.is_success() {
            let body: Option<Value> = serde_json::from_slice(&reply.body).ok();
            // 3.6 has another field name.
            let message = body.and_then(|body| {
                let mut messages = ["error", "message"]
                    .into_iter()
                    .filter_map(|field| body[field].as_str());
                messages.next().map(str::to_owned)
            });
            return Err(StoreError::Answer {
                store: self.http.store(),
                attempt: attempt.to_owned(),
                why: format!(
                    "{} answered {}",
                    reply.endpoint,
                    message.unwrap_or_else(|| reply.text())
                ),
            });
        }
        serde_json::from_slice(&reply.body).map_err(|error| self.nonsense(attempt, &error.to_string()))
    }

    fn decode(&self, attempt: &str, text: &str) -> Result<Vec<u8>, StoreError> {
        STANDARD
            .decode(text)
            .map_err(|error| self.nonsense(attempt, &error.to_string()))
    }

    fn nonsense(&self, attempt: &str, why: &str) -> StoreError {
        StoreError::Answer {
            store: self.http.store(),
            attempt: attempt.to_owned(),
            why: format!("the answer is not valid for etcd v3: {why}"),
        }
    }
}

/// Path of the JSON gateway in this version; `None` when the version has none.
fn gateway(version: &str) -> Option<&'static str> {
    let mut parts = version.split('.').map_while(|part| part.parse::<u32>().ok());
    match (parts.next()?, parts.next()?) {
        (3, 0) => None,
        (3, 1 | 2) => Some("/v3alpha"),
        (3, 3) => Some("/v3beta"),
        (major, _) if major >= 3 => Some("/v3"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_its_path_of_the_gateway() {
        for (version, path) in [
            ("2.3.8", None),
            ("3.0.17", None),
            ("3.2.24", Some("/v3alpha")),
            ("3.3.10", Some("/v3beta")),
            ("3.4.23", Some("/v3")),
            ("3.6.1-rc.0", Some("/v3")),
            ("banana", None),
        ] {
            assert_eq!(gateway(version), path, "{version}");
        }
    }
}
