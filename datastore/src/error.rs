//! Errors of the stores: the attempt, the store, and a hint for the user.

use thiserror::Error;

/// A store cannot be read or written.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The connection settings are incomplete or invalid.
    #[error("{store}: {what}")]
    Access {
        /// The store.
        store: &'static str,
        /// The invalid setting.
        what: String,
    },
    /// A certificate or a key cannot be read.
    #[error("{store}: reading {what} {place}: {why}")]
    File {
        /// The store.
        store: &'static str,
        /// Content of the file.
        what: &'static str,
        /// Source of the content.
        place: String,
        /// The cause.
        why: String,
    },
    /// No endpoint answers.
    #[error("{store}: {attempt}: {}", attempts.join("; "))]
    Unreachable {
        /// The store.
        store: &'static str,
        /// The attempt.
        attempt: String,
        /// Each endpoint with its reason.
        attempts: Vec<String>,
    },
    /// The store sent an unexpected answer.
    #[error("{store}: {attempt}: {why}")]
    Answer {
        /// The store.
        store: &'static str,
        /// The attempt.
        attempt: String,
        /// The answer.
        why: String,
    },
    /// The store has no v2 API.
    #[error("{store}: {endpoint} (etcd {version}) has no v2 API")]
    NoV2 {
        /// The store.
        store: &'static str,
        /// The endpoint.
        endpoint: String,
        /// Version of etcd.
        version: String,
    },
    /// The store is too old for the JSON gateway.
    #[error("{store}: {endpoint} (etcd {version}) has no supported JSON gateway for the v3 API")]
    NoV3 {
        /// The store.
        store: &'static str,
        /// The endpoint.
        endpoint: String,
        /// Version of etcd.
        version: String,
    },
    /// Another process holds the lock.
    #[error("another process is working on these stores: {holder}")]
    Locked {
        /// The holder and its start time.
        holder: String,
    },
    /// Another program wrote first.
    #[error("{store}: {attempt}: another program changed the data at the same time")]
    Changed {
        /// The store.
        store: &'static str,
        /// The attempt.
        attempt: String,
    },
    /// The lock was lost: this process was stopped for too long.
    #[error(
        "the lock was lost while {attempt}: nothing was written afterwards, and another process may have continued"
    )]
    LockLost {
        /// The attempt.
        attempt: String,
    },
}

impl StoreError {
    /// The fix for the user.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Access { .. } | Self::File { .. } => return None,
            Self::Unreachable { attempts: tried, .. } if tried.iter().any(|tried| tried.contains("handshake failed")) => {
                "etcd's JSON gateway connects to etcd as a client, with etcd's own certificate: that certificate also needs the \
                 extended key usage clientAuth"
                    .to_owned()
            }
            Self::Unreachable { store, .. } => format!(
                "check the endpoints of {store} (--help lists flags and variables), and that etcd answers this machine with \
                 these certificates"
            ),
            Self::Answer { why, .. } => return hint_of(why).map(str::to_owned),
            Self::NoV2 { version, .. } => {
                let minor = version.split('.').take(2).collect::<Vec<_>>().join(".");
                match minor.as_str() {
                    "3.2" | "3.3" | "3.4" | "3.5" => {
                        "start etcd with --enable-v2=true, or set the endpoints of the etcd of Calico v2".to_owned()
                    }
                    _ => {
                        "etcd 3.6 and later have no v2 API: set the endpoints of the etcd of Calico v2; its data is not here"
                            .to_owned()
                    }
                }
            }
            Self::NoV3 { .. } => "Calico v3 needs etcd 3: upgrade etcd first, to 3.3 or later".to_owned(),
            Self::Locked { .. } => {
                "wait until the process ends; the lock of a dead process expires after 15 s".to_owned()
            }
            Self::Changed { .. } | Self::LockLost { .. } => "run the command again: it continues where it stopped".to_owned(),
        })
    }
}

/// The fix, by the words of etcd's answer.
fn hint_of(why: &str) -> Option<&'static str> {
    let why = why.to_lowercase();
    let has = |words: &str| why.contains(words);
    if has("404") {
        Some("etcd does not serve its JSON gateway: start etcd with --enable-grpc-gateway=true")
    } else if has("permission denied") {
        Some(
            "give the user a role that may read and write below /calico/ and below /replumb/calico-datastore/",
        )
    } else if has("user name is empty") || has("invalid auth token") {
        Some(
            "etcd needs a user: set ETCD_USERNAME and ETCD_PASSWORD. The JSON gateway takes no user name from a certificate",
        )
    } else if has("space") {
        Some("etcd is full: compact and defragment it, then disarm its alarm (`etcdctl alarm disarm`)")
    } else {
        None
    }
}
