//! The certificate of a program that serves by TLS. No I/O.

use std::sync::Arc;

use rcgen::CertifiedKey;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No key or certificate was made.
    #[error("making a certificate")]
    Make(#[from] rcgen::Error),
    /// The TLS library does not take it.
    #[error("using the certificate that was made")]
    Use(#[from] rustls::Error),
}

/// Accepts TLS with a key and a certificate that are made for this process and signed by themselves. They keep a token from a listener on
/// the way; a client cannot tell by them which program answers.
pub fn made_for(name: &str) -> Result<TlsAcceptor, Error> {
    let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed([name.to_owned()])?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
