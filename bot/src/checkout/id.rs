//! The ids of git objects, by the processor's own instructions where it has them. A walk over a workspace hashes every
//! file of it, and libgit2 looks for the marks of a forged collision besides, which takes most of the time. What libgit2
//! stores it hashes itself.

use git2::ObjectType;
use sha1::{Digest, Sha1};

/// The id that an object with this content has.
pub(crate) fn object_id(kind: ObjectType, content: &[u8]) -> [u8; 20] {
    Sha1::new()
        .chain_update(format!("{kind} {}\0", content.len()))
        .chain_update(content)
        .finalize()
        .into()
}
