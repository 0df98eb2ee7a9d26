//! Links: a link names one history up to one message, under one owner.

use std::hash::{Hash, Hasher};

use super::hex::hex;
use super::{Fingerprint, HashPurpose, Pepper};

static TENANT: HashPurpose = HashPurpose::new("diarist 2026-11 tenant");
static CHAIN: HashPurpose = HashPurpose::new("diarist 2026-11 chain");

/// The owner of a history. It seeds every chain, so two owners never share a link (INV-OWN).
///
/// It has no default on purpose: every verb of the store and every chain names its owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    /// The hash of the credential, or of the name that the operator gave it.
    pub tenant: [u8; 32],
    /// The hash of the resource (a user of the application), if the client names one. It separates
    /// owners further.
    pub resource: Option<[u8; 32]>,
}

impl Scope {
    /// The scope of `credential` and, if there is one, of `resource`, without a pepper. For tests.
    pub fn new(credential: &[u8], resource: Option<&[u8]>) -> Self {
        Self {
            tenant: Self::hash_tenant(&Pepper::NONE, credential),
            resource: resource.map(|r| blake3::derive_key("diarist 2026-11 resource", r)),
        }
    }

    /// The tenant with this `credential`, which must be whole: a truncated one would merge its owners.
    pub fn hash_tenant(pepper: &Pepper, credential: &[u8]) -> [u8; 32] {
        pepper.hash(&TENANT, credential)
    }

    /// The stored form of the resource: empty for none.
    pub fn resource_key(&self) -> &[u8] {
        self.resource.as_ref().map_or(&[], |r| r.as_slice())
    }

    /// A short name of the tenant for people (audit, `diarist threads`): 48 bits, never used as a
    /// key.
    pub fn tenant_label(&self) -> String {
        Self::format_tenant_label(&self.tenant)
    }

    /// The same for a tenant alone.
    pub fn format_tenant_label(tenant: &[u8; 32]) -> String {
        hex(&tenant[..6])
    }
}

/// The hash of a chain up to one message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link([u8; 32]);

/// Eight of its bytes are enough to find it in a table: two links that share them take billions of tries.
impl Hash for Link {
    fn hash<H: Hasher>(&self, state: &mut H) {
        if let Some(beginning) = self.0.first_chunk() {
            state.write_u64(u64::from_le_bytes(*beginning));
        }
    }
}

impl Link {
    /// The link before the first message of any history of `scope`.
    pub fn root(scope: &Scope) -> Self {
        let mut hasher = CHAIN.hasher();
        hasher.update(&scope.tenant);
        match &scope.resource {
            None => hasher.update(&[0]),
            Some(resource) => hasher.update(&[1]).update(resource),
        };
        Self(*hasher.finalize().as_bytes())
    }

    /// The link after one more message.
    #[must_use]
    pub fn next(self, fingerprint: &Fingerprint) -> Self {
        Self(*blake3::keyed_hash(&self.0, fingerprint.as_bytes()).as_bytes())
    }

    /// The stored form.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Reads the stored form; `None` if it has not 32 bytes.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }

    /// A short name for people: 48 bits, never compared.
    pub fn label(&self) -> String {
        hex(&self.0[..6])
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({})", self.label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Encoder;

    fn fingerprint(text: &str) -> Fingerprint {
        let mut encoder = Encoder::new();
        encoder.text("content", text);
        encoder.finish()
    }

    #[test]
    fn owners_never_share_a_link() {
        let scopes = [
            Scope::new(b"Bearer alice", None),
            Scope::new(b"Bearer bob", None),
            Scope::new(b"Bearer alice", Some(b"home")),
            Scope::new(b"Bearer alice", Some(b"")),
        ];
        let links = scopes.map(|scope| Link::root(&scope).next(&fingerprint("hi")));
        for (i, a) in links.iter().enumerate() {
            assert!(links[i + 1..].iter().all(|b| a != b));
        }
    }

    #[test]
    fn the_order_of_messages_changes_the_link() {
        let root = Link::root(&Scope::new(b"k", None));
        let (a, b) = (fingerprint("a"), fingerprint("b"));
        assert_ne!(root.next(&a).next(&b), root.next(&b).next(&a));
    }
}
