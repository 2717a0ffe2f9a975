//! The cluster's certificate authority: every component has its own certificate, as in a real cluster.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use serde_json::json;

/// A certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

/// Signs certificates. Kept as `ca.crt` and `ca.key` in its folder.
#[derive(Debug)]
pub struct Authority {
    folder: PathBuf,
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Creates an authority and a key for service account tokens.
    pub fn create(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
            .context("restrict the permissions of the key folder")?;
        let key = KeyPair::generate().context("create the authority's key")?;
        let params = authority_params()?;
        let certificate = params
            .self_signed(&key)
            .context("sign the authority's certificate")?
            .pem();
        write(&folder.join("ca.key"), &key.serialize_pem())?;
        write(&folder.join("ca.crt"), &certificate)?;
        let tokens = KeyPair::generate().context("create the service account key")?;
        write(&folder.join("service-account.key"), &tokens.serialize_pem())?;
        write(&folder.join("service-account.pub"), &tokens.public_key_pem())?;
        Ok(Self {
            folder: folder.to_owned(),
            certificate,
            issuer: Issuer::new(params, key),
        })
    }

    /// Opens the authority that `create` has made.
    pub fn open(folder: &Path) -> Result<Self> {
        let read = |name: &str| {
            let file = folder.join(name);
            fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
        };
        let key = KeyPair::from_pem(&read("ca.key")?).context("parse the authority's key")?;
        let certificate = read("ca.crt")?;
        Ok(Self {
            folder: folder.to_owned(),
            certificate,
            issuer: Issuer::new(authority_params()?, key),
        })
    }

    /// The folder with the authority's own files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The authority's certificate, as PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A certificate that identifies a client.
    pub fn client(&self, user: &str, group: Option<&str>) -> Result<Identity> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
            .with_context(|| format!("create the client certificate of {user}"))
    }

    /// A certificate of a server that is also its own client, as etcd's JSON gateway is.
    pub fn server_and_client(&self, name: &str, addresses: &[IpAddr]) -> Result<Identity> {
        let usages = [
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        self.server_for(name, &[], addresses, usages.to_vec())
    }

    /// A certificate of a server with these names and addresses.
    pub fn server(&self, name: &str, names: &[&str], addresses: &[IpAddr]) -> Result<Identity> {
        self.server_for(name, names, addresses, vec![ExtendedKeyUsagePurpose::ServerAuth])
    }

    fn server_for(
        &self,
        name: &str,
        names: &[&str],
        addresses: &[IpAddr],
        usages: Vec<ExtendedKeyUsagePurpose>,
    ) -> Result<Identity> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params =
            CertificateParams::new(names).with_context(|| format!("name the certificate of {name}"))?;
        params
            .subject_alt_names
            .extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = usages;
        self.sign(params)
            .with_context(|| format!("create the server certificate of {name}"))
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Identity> {
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().context("create a key")?;
        let certificate = params.signed_by(&key, &self.issuer).context("sign")?;
        Ok(Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// A kubeconfig without references to files, so that it works in any place. JSON is YAML.
    pub fn kubeconfig(&self, server: &str, user: &str, identity: &Identity) -> Result<String> {
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "lab",
                "cluster": {"server": server, "certificate-authority-data": STANDARD.encode(&self.certificate)},
            }],
            "users": [{
                "name": user,
                "user": {
                    "client-certificate-data": STANDARD.encode(&identity.certificate),
                    "client-key-data": STANDARD.encode(&identity.key),
                },
            }],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
            "current-context": "lab",
        });
        serde_json::to_string_pretty(&kubeconfig).context("write a kubeconfig")
    }
}

impl Identity {
    /// Writes `NAME.crt` and `NAME.key`.
    pub fn write(&self, folder: &Path, name: &str) -> Result<()> {
        write(&folder.join(format!("{name}.crt")), &self.certificate)?;
        write(&folder.join(format!("{name}.key")), &self.key)
    }
}

fn authority_params() -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::<String>::new()).context("describe the authority")?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "replumb-lab");
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
    ];
    Ok(params)
}

/// Writes a file that only root may read.
pub fn write(file: &Path, text: &str) -> Result<()> {
    let attempt = || -> std::io::Result<()> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(file, text)?;
        fs::set_permissions(file, fs::Permissions::from_mode(0o600))
    };
    attempt().with_context(|| format!("write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn openssl_accepts_a_certificate_of_a_reopened_authority() {
        let temporary = tempfile::tempdir().unwrap();
        Authority::create(temporary.path()).unwrap();
        let authority = Authority::open(temporary.path()).unwrap();
        let identity = authority.client("system:node:one", Some("system:nodes")).unwrap();
        identity.write(temporary.path(), "node").unwrap();
        let output = Command::new("openssl")
            .args(["verify", "-purpose", "sslclient", "-CAfile", "ca.crt", "node.crt"])
            .current_dir(temporary.path())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let subject = Command::new("openssl")
            .args(["x509", "-noout", "-subject", "-in", "node.crt"])
            .current_dir(temporary.path())
            .output()
            .unwrap();
        let subject = String::from_utf8_lossy(&subject.stdout).into_owned();
        assert!(
            subject.contains("system:node:one") && subject.contains("system:nodes"),
            "{subject}"
        );
    }
}
