//! The certificate of a program that serves with TLS. No I/O.

use std::sync::Arc;

use rcgen::CertifiedKey;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The key or the certificate could not be created.
    #[error("creating a certificate")]
    Make(#[from] rcgen::Error),
    /// The TLS library does not accept the certificate.
    #[error("using the created certificate")]
    Use(#[from] rustls::Error),
}

/// Accepts TLS with a new key and a self-signed certificate. They protect a token against eavesdropping; they do not prove to a
/// client which program answers.
///
/// # Errors
///
/// The certificate for this name cannot be generated, or TLS cannot be configured with it.
pub fn acceptor(name: &str) -> Result<TlsAcceptor, Error> {
    let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed([name.to_owned()])?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
