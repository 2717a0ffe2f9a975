//! What goes wrong at a store: what was attempted, where, and what a person does.

use thiserror::Error;

/// A store cannot be read, or not be written.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The way to it is not said, or makes no sense.
    #[error("{store}: {what}")]
    Access {
        /// Which store.
        store: &'static str,
        /// What is wrong.
        what: String,
    },
    /// A certificate or a key cannot be read.
    #[error("{store}: reading {what} {place}: {why}")]
    File {
        /// Which store.
        store: &'static str,
        /// What is in it.
        what: &'static str,
        /// Where it is.
        place: String,
        /// Why not.
        why: String,
    },
    /// No endpoint answers.
    #[error("{store}: {attempt}: {}", tried.join("; "))]
    Unreachable {
        /// Which store.
        store: &'static str,
        /// What was attempted.
        attempt: String,
        /// Each endpoint with its reason.
        tried: Vec<String>,
    },
    /// It answers something else than was asked for.
    #[error("{store}: {attempt}: {why}")]
    Answer {
        /// Which store.
        store: &'static str,
        /// What was attempted.
        attempt: String,
        /// What it answered.
        why: String,
    },
    /// It does not have this API.
    #[error("{store}: {endpoint} (etcd {version}) has no v2 API")]
    NoV2 {
        /// Which store.
        store: &'static str,
        /// Which endpoint.
        endpoint: String,
        /// Its version.
        version: String,
    },
    /// It is too old.
    #[error("{store}: {endpoint} is etcd {version}: its v3 API has no JSON gateway that this tool speaks")]
    NoV3 {
        /// Which store.
        store: &'static str,
        /// Which endpoint.
        endpoint: String,
        /// Its version.
        version: String,
    },
    /// Somebody else works on the stores.
    #[error("somebody else works on these stores: {holder}")]
    Locked {
        /// Who, and since when.
        holder: String,
    },
    /// Somebody else wrote first.
    #[error("{store}: {attempt}: it was changed by somebody else meanwhile")]
    Changed {
        /// Which store.
        store: &'static str,
        /// What was attempted.
        attempt: String,
    },
    /// The lock was lost: this process stood still for too long.
    #[error("the lock was lost while {attempt}: nothing was written since. Somebody else may go on by now")]
    LockLost {
        /// What was attempted.
        attempt: String,
    },
}

impl StoreError {
    /// What a person does about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Access { .. } | Self::File { .. } => return None,
            Self::Unreachable { tried, .. } if tried.iter().any(|tried| tried.contains("handshake failed")) => {
                "etcd's JSON gateway asks etcd itself as a client, with etcd's own certificate: that one has to be for clients, too (extended \
                 key usage clientAuth)"
                    .to_owned()
            }
            Self::Unreachable { store, .. } => format!(
                "does etcd answer there, from this machine, with these certificates? Check the endpoints of {store} (--help names flags and \
                 variables)"
            ),
            Self::Answer { why, .. } => return hint_of(why).map(str::to_owned),
            Self::NoV2 { version, .. } => {
                let minor = version.split('.').take(2).collect::<Vec<_>>().join(".");
                match minor.as_str() {
                    "3.2" | "3.3" | "3.4" | "3.5" => "start etcd with --enable-v2=true, or name the etcd that Calico v2 uses".to_owned(),
                    _ => "etcd from 3.6 on has no v2 API: name the etcd that Calico v2 uses; its data are not in this one".to_owned(),
                }
            }
            Self::NoV3 { .. } => "Calico v3 needs etcd 3: upgrade etcd first, to 3.3 or later".to_owned(),
            Self::Locked { .. } => {
                "wait until it has ended. The lock of a process that died goes by itself after 15 s".to_owned()
            }
            Self::Changed { .. } | Self::LockLost { .. } => "run the command again: it goes on where it stopped".to_owned(),
        })
    }
}

/// What helps, by etcd's own words.
fn hint_of(why: &str) -> Option<&'static str> {
    let why = why.to_lowercase();
    let said = |words: &str| why.contains(words);
    if said("404") {
        Some("etcd has to serve its JSON gateway: start it with --enable-grpc-gateway=true")
    } else if said("permission denied") {
        Some(
            "the user needs a role that reads and writes below /calico/ and below /replumb/calico-datastore/",
        )
    } else if said("user name is empty") || said("invalid auth token") {
        Some(
            "etcd wants a user: give ETCD_USERNAME and ETCD_PASSWORD. Through its JSON gateway etcd takes nobody's name from a certificate",
        )
    } else if said("space") {
        Some("etcd is full: compact it, defragment it, and disarm its alarm (`etcdctl alarm disarm`)")
    } else {
        None
    }
}
