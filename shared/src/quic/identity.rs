//! Who a node is: one self-signed certificate with its key, and the digest by which others know it.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use laguna_topology::Pin;
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};

/// The pin of a certificate: SHA-256 of its DER. Public, and all that another node must know to trust this one.
pub(crate) fn pin_of(certificate: &CertificateDer<'_>) -> Pin {
    Pin(Sha256::digest(certificate).into())
}

/// A node's certificate and private key.
pub struct Identity {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl Identity {
    /// A new identity, in memory only: Ed25519, self-signed. Certificates carry no meaning beyond their pin.
    pub fn generate() -> Result<Self, IdentityError> {
        let (certificate, key) = make()?;
        Ok(Self {
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::try_from(key.serialize_der())
                .map_err(|error| IdentityError::Generate(error.to_owned()))?,
        })
    }

    /// A new identity in a new file of mode 0600, certificate and key in PEM. Appears whole or not at all.
    ///
    /// # Errors
    /// Where `path` exists already: identities are never overwritten.
    pub fn create(path: &Path) -> Result<Self, IdentityError> {
        let (certificate, key) = make()?;
        let text = format!("{}{}", certificate.pem(), key.serialize_pem());
        write_new(path, text.as_bytes()).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => IdentityError::Exists(path.to_owned()),
            _ => IdentityError::Write { path: path.to_owned(), error },
        })?;
        Self::load(path)
    }

    /// The identity in a file that [`create`](Self::create) wrote.
    ///
    /// # Errors
    /// Where the file cannot be read, lacks a part, or can be read by other users.
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        let read = |error| IdentityError::Read { path: path.to_owned(), error };
        let mode = fs::metadata(path).map_err(read)?.permissions().mode();
        if mode & OTHERS != 0 {
            return Err(IdentityError::Exposed { path: path.to_owned(), mode: mode & 0o777 });
        }
        let text = fs::read(path).map_err(read)?;
        let broken = |part| move |_| IdentityError::Broken { path: path.to_owned(), part };
        Ok(Self {
            certificate: CertificateDer::from_pem_slice(&text).map_err(broken("certificate"))?,
            key: PrivateKeyDer::from_pem_slice(&text).map_err(broken("private key"))?,
        })
    }

    /// The digest by which other nodes know this one.
    pub fn pin(&self) -> Pin {
        pin_of(&self.certificate)
    }
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        Self { certificate: self.certificate.clone(), key: self.key.clone_key() }
    }
}

impl fmt::Debug for Identity {
    /// Shows the pin, never the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").field(&self.pin()).finish()
    }
}

/// Why an identity could not be had.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file exists.
    #[error("{} exists and is not overwritten", .0.display())]
    Exists(PathBuf),
    /// The file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {}: {error}", path.display())]
    Write {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file can be read by other users.
    #[error("{} has mode {mode:04o}, so other users could read the key; run chmod 600 on it", path.display())]
    Exposed {
        /// Which file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file lacks a part.
    #[error("{} holds no {part} in PEM", path.display())]
    Broken {
        /// Which file.
        path: PathBuf,
        /// `certificate` or `private key`.
        part: &'static str,
    },
    /// The key could not be made.
    #[error("cannot make a key: {0}")]
    Generate(String),
}

fn make() -> Result<(rcgen::Certificate, KeyPair), IdentityError> {
    let failed = |error: rcgen::Error| IdentityError::Generate(error.to_string());
    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(failed)?;
    let params = CertificateParams::new(vec![SERVER_NAME.to_owned()]).map_err(failed)?;
    Ok((params.self_signed(&key).map_err(failed)?, key))
}

/// Writes beside `path`, then links: a link never replaces a file, and a crash leaves no half-written key under `path`.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}.draft", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written =
        file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::hard_link(&draft, path));
    fs::remove_file(&draft)?;
    written
}

/// Name in every certificate. TLS wants one; the pin is what is checked.
pub(crate) const SERVER_NAME: &str = "laguna";

/// Permission bits of group and others.
const OTHERS: u32 = 0o077;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_private_complete_and_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker.pem");
        let made = Identity::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Identity::load(&path).unwrap().pin(), made.pin());
        let before = fs::read(&path).unwrap();
        assert!(matches!(Identity::create(&path), Err(IdentityError::Exists(_))));
        assert_eq!(fs::read(&path).unwrap(), before);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left behind");
    }

    #[test]
    fn an_exposed_or_broken_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker.pem");
        Identity::create(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = Identity::load(&path).unwrap_err().to_string();
        assert!(error.contains("mode 0644") && error.contains("chmod 600"), "{error}");
        let empty = folder.path().join("empty.pem");
        write_new(&empty, b"-----BEGIN").unwrap();
        assert!(matches!(Identity::load(&empty), Err(IdentityError::Broken { part: "certificate", .. })));
        assert!(matches!(Identity::load(&folder.path().join("none")), Err(IdentityError::Read { .. })));
    }
}
