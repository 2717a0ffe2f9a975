//! Each API server on its own: its range of Services, and the addresses of its certificate.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use engine::command_line::{argument, runs};
use futures::future::join_all;
use ipnet::IpNet;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Api, Client};
use runtime::error::chain;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use serde_json::Value;
use service_cidr::facts::ApiServer;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use x509_parser::extensions::GeneralName;

use crate::cache::Cache;
use crate::context::Context;
use crate::lenient_requests;
use crate::read_error::ReadError;

/// Time limit for the answer of an API server.
const LIMIT: Duration = Duration::from_secs(5);
/// A name that is in every API server's certificate, whatever its address is.
const NAME: &str = "kubernetes.default.svc";
/// The flag with the range of Services.
const FLAG: &str = "service-cluster-ip-range";
/// The program.
const PROGRAM: &str = "kube-apiserver";
/// Content type of the flags as data: the page is plain text otherwise.
const FLAGS: &str = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz";

/// Reads every API server behind Service `default/kubernetes`.
pub async fn read(context: &Context, cache: &Cache) -> Result<BTreeMap<IpAddr, ApiServer>, ReadError> {
    let asked = addresses(context).await?.into_iter().map(|address| async move {
        let (flag, certificate) = tokio::join!(flag(context, address), certificate(address));
        let ranges = match flag {
            Ok(text) => ranges(&text),
            // Before Kubernetes 1.36 no API server reports its flags; the manifest of a static pod has them.
            Err(why) => match of_static_pod(cache, address.ip()) {
                Some(text) => ranges(&text),
                None => Err(format!("{why}; no pod of {PROGRAM} has this address")),
            },
        };
        let server = ApiServer {
            ranges,
            addresses: certificate,
        };
        (address.ip(), server)
    });
    Ok(join_all(asked).await.into_iter().collect())
}

async fn addresses(context: &Context) -> Result<Vec<SocketAddr>, ReadError> {
    let api: Api<EndpointSlice> = Api::namespaced(context.client.clone(), "default");
    let of_kubernetes = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
    let slices = lenient_requests::pages(&api, of_kubernetes, Some)
        .await
        .map_err(|source| ReadError::of("listing", "EndpointSlices of Service default/kubernetes", source))?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for slice in slices {
        let mut ports = slice.ports.iter().flatten();
        let port = ports.find_map(|port| u16::try_from(port.port?).ok());
        for endpoint in slice.endpoints {
            let said = endpoint
                .addresses
                .iter()
                .filter_map(|text| text.parse::<IpAddr>().ok());
            addresses.extend(said.zip(port).map(SocketAddr::from));
        }
    }
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// A client for the API server of this address alone, regardless of the coordinator's own path.
fn of_its_own(context: &Context, address: SocketAddr) -> Result<Client, String> {
    let url = format!("https://{address}").parse();
    let mut config = context.config.clone();
    config.cluster_url = url.map_err(|error| format!("{address} is not valid in a URL: {error}"))?;
    config.tls_server_name = Some(NAME.to_owned());
    config.read_timeout = Some(LIMIT);
    Client::try_from(config).map_err(|error| chain(&error))
}

async fn flag(context: &Context, address: SocketAddr) -> Result<String, String> {
    let client = of_its_own(context, address)?;
    let request = http::Request::get("/flagz")
        .header(http::header::ACCEPT, FLAGS)
        .body(Vec::new())
        .map_err(|error| error.to_string())?;
    let answered = tokio::time::timeout(LIMIT, client.request::<Value>(request)).await;
    let page = match answered {
        Ok(Ok(page)) => page,
        Ok(Err(error)) => return Err(format!("GET /flagz: {}", chain(&error))),
        Err(_) => return Err(format!("GET /flagz: no answer within {} s", LIMIT.as_secs())),
    };
    let said = page["flags"][FLAG].as_str();
    said.map(str::to_owned)
        .ok_or_else(|| format!("GET /flagz: no flag {FLAG} in the answer"))
}

/// The ranges of the flag; none when the flag is empty.
fn ranges(text: &str) -> Result<Vec<IpNet>, String> {
    let said = text.split(',').map(str::trim).filter(|text| !text.is_empty());
    said.map(|text| text.parse().map_err(|_| format!("--{FLAG}={text}")))
        .collect()
}

fn of_static_pod(cache: &Cache, address: IpAddr) -> Option<String> {
    let pods = cache.pods.index();
    let mut there = pods.more().filter(|(_, more)| more.host_address == Some(address));
    there.find_map(|(_, more)| {
        let mut of_program = more.programs.iter().filter(|container| runs(container, PROGRAM));
        of_program.find_map(|container| argument(container, FLAG))
    })
}

/// The addresses of the certificate that the API server presents to clients without a server name, which connect by address.
async fn certificate(address: SocketAddr) -> Result<Vec<IpAddr>, String> {
    let shown = tokio::time::timeout(LIMIT, shown(address)).await;
    let certificate = shown.map_err(|_| format!("no TLS handshake within {} s", LIMIT.as_secs()))??;
    names(&certificate)
}

async fn shown(address: SocketAddr) -> Result<CertificateDer<'static>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| error.to_string())?;
    let name = ServerName::IpAddress(address.ip().into());
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(|error| error.to_string())?;
    let (_, connection) = stream.get_ref();
    let mut shown = connection.peer_certificates().into_iter().flatten();
    shown
        .next()
        .map(|certificate| certificate.clone().into_owned())
        .ok_or_else(|| "no certificate was presented".to_owned())
}

fn names(certificate: &CertificateDer<'_>) -> Result<Vec<IpAddr>, String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).map_err(|error| error.to_string())?;
    let names = parsed
        .subject_alternative_name()
        .map_err(|error| error.to_string())?;
    let addresses = names.into_iter().flat_map(|names| &names.value.general_names);
    Ok(addresses
        .filter_map(|name| match name {
            GeneralName::IPAddress(bytes) => address_of(bytes),
            _ => None,
        })
        .collect())
}

fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

/// Accepts any certificate: it is only read, and the connection carries no data.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_has_one_range_or_one_of_each_family() {
        assert_eq!(ranges("10.96.0.0/12,fd00::/112").unwrap().len(), 2);
        assert_eq!(ranges("").unwrap(), Vec::<IpNet>::new());
        assert_eq!(ranges("ten").unwrap_err(), "--service-cluster-ip-range=ten");
    }

    #[test]
    fn certificate_addresses_of_both_families_are_parsed() {
        assert_eq!(address_of(&[10, 96, 0, 1]), "10.96.0.1".parse().ok());
        assert_eq!(address_of(&[1, 2]), None);
    }
}
