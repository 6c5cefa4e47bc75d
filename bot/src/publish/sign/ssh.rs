//! Signatures as `ssh-keygen -Y sign -n git` makes them.

use config::SigningKey;
use rsa::pkcs1v15;
use rsa::rand_core::OsRng;
use rsa::sha2::Sha512;
use rsa::signature::{RandomizedSigner, SignatureEncoding};
use rsa::{BigUint, RsaPrivateKey};
use secrecy::ExposeSecret;
use ssh_key::private::{KeypairData, RsaKeypair};
use ssh_key::{Algorithm, HashAlg, LineEnding, PrivateKey, Signature, SshSig};

use super::Flaw;

/// What `git` expects of a signature of a commit.
const NAMESPACE: &str = "git";
/// What `ssh-keygen` takes if nobody says otherwise.
const HASH: HashAlg = HashAlg::Sha512;
/// Bits of an RSA key at least: forges take no shorter ones.
const SHORTEST_RSA: usize = 2048;

/// A private key, unlocked.
pub(super) struct Key {
    private: PrivateKey,
    rsa: Option<pkcs1v15::SigningKey<Sha512>>,
}

impl Key {
    pub(super) fn open(secret: &SigningKey) -> Result<Self, Flaw> {
        let text = secret.text.expose_secret();
        let mut private = PrivateKey::from_openssh(text).map_err(|error| misread(text, &error))?;
        if private.is_encrypted() {
            let passphrase = secret.passphrase.as_ref().ok_or(Flaw::Locked)?;
            let unlocked = private.decrypt(passphrase.expose_secret());
            private = unlocked.map_err(|_| Flaw::Passphrase)?;
        }
        let rsa = match private.key_data() {
            KeypairData::Rsa(pair) => Some(rsa(pair)?),
            KeypairData::Ed25519(_) | KeypairData::Ecdsa(_) => None,
            // The library may learn of further ones; a key on a device can be used through the device alone.
            _ => return Err(Flaw::Algorithm(private.algorithm().to_string())),
        };
        let key = Self { private, rsa };
        key.sign(b"")?;
        Ok(key)
    }

    pub(super) fn sign(&self, message: &[u8]) -> Result<String, Flaw> {
        let signature = match &self.rsa {
            Some(rsa) => self.sign_rsa(rsa, message),
            None => self.private.sign(NAMESPACE, HASH, message),
        };
        let signature = signature.map_err(|_| Flaw::Broken)?;
        // One that was made wrongly tells about the key.
        let fits = self.private.public_key().verify(NAMESPACE, message, &signature);
        fits.map_err(|_| Flaw::Broken)?;
        signature.to_pem(LineEnding::LF).map_err(|_| Flaw::Broken)
    }

    /// `ssh_key` 0.6 cannot sign with RSA: it takes the first of the two primes twice.
    fn sign_rsa(
        &self,
        rsa: &pkcs1v15::SigningKey<Sha512>,
        message: &[u8],
    ) -> ssh_key::Result<SshSig> {
        let signed = SshSig::signed_data(NAMESPACE, HASH, message)?;
        // Random numbers blind the private key's work; the signature is the same each time.
        let bytes = rsa.sign_with_rng(&mut OsRng, &signed).to_vec();
        let signature = Signature::new(Algorithm::Rsa { hash: Some(HASH) }, bytes)?;
        let public = self.private.public_key().key_data().clone();
        SshSig::new(public, NAMESPACE, HASH, signature)
    }

    pub(super) fn fingerprint(&self) -> String {
        self.private.fingerprint(HashAlg::Sha256).to_string()
    }
}

/// Why a text is no private key.
fn misread(text: &str, error: &ssh_key::Error) -> Flaw {
    match error {
        ssh_key::Error::AlgorithmUnsupported { algorithm } => {
            return Flaw::Algorithm(algorithm.to_string());
        }
        ssh_key::Error::AlgorithmUnknown => return Flaw::Algorithm("unknown".into()),
        _ => {}
    }
    let first = text.lines().next().unwrap_or_default();
    let is_public = ["ssh-", "ecdsa-", "sk-"].iter().any(|start| first.starts_with(start));
    match first {
        _ if is_public => Flaw::PublicSsh,
        "-----BEGIN OPENSSH PRIVATE KEY-----" => Flaw::NotSsh,
        _ if first.ends_with("PRIVATE KEY-----") => Flaw::OtherSsh,
        _ => Flaw::NotSsh,
    }
}

fn rsa(pair: &RsaKeypair) -> Result<pkcs1v15::SigningKey<Sha512>, Flaw> {
    let number = |number: &ssh_key::Mpint| {
        number.as_positive_bytes().map(BigUint::from_bytes_be).ok_or(Flaw::Broken)
    };
    let modulus = number(&pair.public.n)?;
    if modulus.bits() < SHORTEST_RSA {
        return Err(Flaw::Short(modulus.bits()));
    }
    let primes = vec![number(&pair.private.p)?, number(&pair.private.q)?];
    let (public, private) = (number(&pair.public.e)?, number(&pair.private.d)?);
    let key = RsaPrivateKey::from_components(modulus, public, private, primes);
    Ok(pkcs1v15::SigningKey::new(key.map_err(|_| Flaw::Broken)?))
}
