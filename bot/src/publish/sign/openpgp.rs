//! Signatures as `gpg --detach-sign --armor` makes them. A subkey that may sign goes before the primary key, the newest
//! first, as with `gpg`.

use chrono::{DateTime, Utc};
use config::SigningKey;
use pgp::composed::{
    ArmorOptions, Deserializable, DetachedSignature, SignedSecretKey, SubpacketConfig,
};
use pgp::crypto::hash::HashAlgorithm;
use pgp::packet::{self, Signature, SignatureType, Subpacket, SubpacketData};
use pgp::types::{
    KeyDetails, KeyVersion, Password, S2kParams, SecretParams, SigningKey as Signs, StringToKey,
    Timestamp,
};
use rsa::rand_core::OsRng;
use secrecy::ExposeSecret;

use super::Flaw;

/// A private key, unlocked, with the time that it may sign in.
pub(super) struct Key {
    private: Private,
    /// The fingerprint that people know the key by: the primary key's.
    fingerprint: String,
    /// When it ceases to be valid, in seconds since 1970.
    end: Option<u64>,
}

enum Private {
    Primary(packet::SecretKey),
    Subkey(packet::SecretSubkey),
}

impl Key {
    pub(super) fn open(secret: &SigningKey, email: &str, now: DateTime<Utc>) -> Result<Self, Flaw> {
        let whole = read(secret.text.expose_secret())?;
        if !whole.details.revocation_signatures.is_empty() {
            return Err(Flaw::Revoked);
        }
        owned_by(&whole, email)?;
        let fingerprint = whole.primary_key.fingerprint().to_string().to_uppercase();
        let (mut private, ends) = choose(&whole, now)?;
        let password = match (&secret.passphrase, private.params().is_encrypted()) {
            (None, true) => return Err(Flaw::Locked),
            (Some(passphrase), true) => Password::from(passphrase.expose_secret()),
            (_, false) => Password::empty(),
        };
        private.unlock(&password).map_err(|_| Flaw::Passphrase)?;
        let key = Self { private, fingerprint, end: ends.into_iter().flatten().min() };
        key.sign(b"", now)?;
        Ok(key)
    }

    pub(super) fn is_valid(&self, at: DateTime<Utc>) -> Result<(), Flaw> {
        let at = u64::try_from(at.timestamp()).unwrap_or(0);
        if self.end.is_some_and(|end| end <= at) { Err(Flaw::Expired) } else { Ok(()) }
    }

    pub(super) fn sign(&self, message: &[u8], at: DateTime<Utc>) -> Result<String, Flaw> {
        let signature = match &self.private {
            Private::Primary(key) => sign(key, message, at),
            Private::Subkey(key) => sign(key, message, at),
        };
        let signature = signature.map_err(|_| Flaw::Broken)?;
        // One that was made wrongly tells about the key.
        let fits = match &self.private {
            Private::Primary(key) => signature.verify(key.public_key(), message),
            Private::Subkey(key) => signature.verify(key.public_key(), message),
        };
        fits.map_err(|_| Flaw::Broken)?;
        signature.to_armored_string(ArmorOptions::default()).map_err(|_| Flaw::Broken)
    }

    pub(super) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

impl Private {
    fn params(&self) -> &SecretParams {
        match self {
            Self::Primary(key) => key.secret_params(),
            Self::Subkey(key) => key.secret_params(),
        }
    }

    fn unlock(&mut self, password: &Password) -> pgp::errors::Result<()> {
        match self {
            Self::Primary(key) => key.remove_password(password),
            Self::Subkey(key) => key.remove_password(password),
        }
    }
}

/// The one key of a file.
fn read(text: &str) -> Result<SignedSecretKey, Flaw> {
    if text.lines().next().is_some_and(|first| first == "-----BEGIN PGP PUBLIC KEY BLOCK-----") {
        return Err(Flaw::PublicOpenPgp);
    }
    let (keys, _) =
        SignedSecretKey::from_armor_many(text.as_bytes()).map_err(|_| Flaw::NotOpenPgp)?;
    let mut keys: Vec<_> = keys.collect::<Result<_, _>>().map_err(|_| Flaw::NotOpenPgp)?;
    match (keys.len(), keys.pop()) {
        (1, Some(key)) => Ok(key),
        (0, _) | (_, None) => Err(Flaw::NotOpenPgp),
        (many, Some(_)) => Err(Flaw::Several(many)),
    }
}

/// Forges and people trust a signature only where the key is the committer's.
fn owned_by(whole: &SignedSecretKey, email: &str) -> Result<(), Flaw> {
    let ids: Vec<String> = whole
        .details
        .users
        .iter()
        .filter(|user| !is_revoked(&user.signatures))
        .map(|user| String::from_utf8_lossy(user.id.id()).into_owned())
        .collect();
    let address = |id: &str| {
        let inner = id.rsplit_once('<').map_or(id, |(_, rest)| rest.trim_end_matches('>'));
        inner.trim().to_owned()
    };
    if ids.iter().any(|id| address(id).eq_ignore_ascii_case(email)) {
        return Ok(());
    }
    let whose: Vec<String> = ids.iter().map(|id| crate::reply::code_span(id)).collect();
    let whose = if whose.is_empty() { "nobody".to_owned() } else { whose.join(", ") };
    Err(Flaw::OtherOwner { email: email.to_owned(), whose })
}

/// The key that signs, and the ends of what makes it valid, in seconds since 1970.
fn choose(
    whole: &SignedSecretKey,
    now: DateTime<Utc>,
) -> Result<(Private, [Option<u64>; 2]), Flaw> {
    let now = u64::try_from(now.timestamp()).unwrap_or(0);
    let is_past = |end: Option<u64>| end.is_some_and(|end| end <= now);
    let primary = &whole.primary_key;
    let own = whole.details.users.iter().flat_map(|user| &user.signatures);
    let own = own.chain(&whole.details.direct_signatures).filter(|own| is_by(own, primary));
    let own = newest(own).ok_or(Flaw::NothingSigns)?;
    let primary_end = end(primary.created_at(), own);
    if is_past(primary_end) {
        return Err(Flaw::Expired);
    }
    let mut subkeys: Vec<_> = whole
        .secret_subkeys
        .iter()
        .filter(|subkey| is_here(subkey.key.secret_params()) && !is_revoked(&subkey.signatures))
        .filter_map(|subkey| {
            let binding = newest(subkey.signatures.iter())?;
            binding.key_flags().sign().then(|| (subkey, end(subkey.key.created_at(), binding)))
        })
        .collect();
    let n_signing = subkeys.len();
    subkeys.retain(|(_, end)| !is_past(*end));
    subkeys.sort_by_key(|(subkey, _)| subkey.key.created_at());
    if let Some((subkey, end)) = subkeys.pop() {
        return Ok((Private::Subkey(subkey.key.clone()), [primary_end, end]));
    }
    if own.key_flags().sign() && is_here(primary.secret_params()) {
        return Ok((Private::Primary(primary.clone()), [primary_end, None]));
    }
    Err(if n_signing > 0 { Flaw::Expired } else { Flaw::NothingSigns })
}

/// Whether the private part is in the file. `gpg` exports a primary key without it where asked for subkeys alone.
fn is_here(params: &SecretParams) -> bool {
    let SecretParams::Encrypted(locked) = params else { return true };
    let s2k = match locked.string_to_key_params() {
        S2kParams::Aead { s2k, .. }
        | S2kParams::Cfb { s2k, .. }
        | S2kParams::MalleableCfb { s2k, .. } => s2k,
        S2kParams::Unprotected | S2kParams::LegacyCfb { .. } => return true,
    };
    !matches!(s2k, StringToKey::Private { .. } | StringToKey::Other { .. })
}

fn is_revoked(signatures: &[Signature]) -> bool {
    let revokes = [SignatureType::SubkeyRevocation, SignatureType::CertRevocation];
    signatures.iter().any(|each| each.typ().is_some_and(|kind| revokes.contains(&kind)))
}

fn is_by(signature: &Signature, primary: &packet::SecretKey) -> bool {
    signature.issuer_fingerprint().contains(&&primary.fingerprint())
        || signature.issuer_key_id().contains(&&primary.legacy_key_id())
}

fn newest<'a>(signatures: impl Iterator<Item = &'a Signature>) -> Option<&'a Signature> {
    signatures.max_by_key(|each| each.created())
}

fn end(created: Timestamp, binding: &Signature) -> Option<u64> {
    let lasts = binding.key_expiration_time()?.as_secs();
    (lasts > 0).then(|| u64::from(created.as_secs()) + u64::from(lasts))
}

fn sign(
    key: &impl Signs,
    message: &[u8],
    at: DateTime<Utc>,
) -> pgp::errors::Result<DetachedSignature> {
    let at = Timestamp::from_secs(u32::try_from(at.timestamp()).unwrap_or(u32::MAX));
    let hashed = vec![
        Subpacket::regular(SubpacketData::IssuerFingerprint(key.fingerprint()))?,
        Subpacket::critical(SubpacketData::SignatureCreationTime(at))?,
    ];
    let mut unhashed = Vec::new();
    if key.version() <= KeyVersion::V4 {
        unhashed.push(Subpacket::regular(SubpacketData::IssuerKeyId(key.legacy_key_id()))?);
    }
    let subpackets = SubpacketConfig::UserDefined { hashed, unhashed };
    let none = Password::empty();
    let hash = HashAlgorithm::Sha512;
    DetachedSignature::sign_binary_data_with_subpackets(
        OsRng, key, &none, hash, message, subpackets,
    )
}
